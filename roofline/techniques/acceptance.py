"""Published acceptance of drafts, by method, model and task, in acceptance.yaml.

A chain of draft tokens is accepted up to the first wrong one, so a figure for one length gives those for others: the
rates by position where they are published, else the one rate with which that length yields the published tokens.
A tree's figure holds for its own size and depth alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from itertools import accumulate
from operator import mul
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from roofline.core.documents import read_mapping
from roofline.core.errors import UnknownNameError
from roofline.scenario.speculation import acceptance_rate
from roofline.specs.records import record
from roofline.techniques.base import Published

TASKS = ("mt-bench", "humaneval", "gsm8k", "alpaca", "cnn-dm")
"""MT-Bench is conversation, HumanEval code, GSM8K arithmetic, Alpaca instructions, CNN/DM summaries."""


class Acceptance(Struct, frozen=True):
    """A published acceptance at temperature 0: `tokens` an iteration for `length` draft tokens in a row.

    `rates`: of draft tokens by position, if the ones before are accepted. `tree`: tokens of a tree of that depth; 0 for
    a chain. `model` is the bundled model that has the target's shape.
    """

    method: str
    model: str
    task: str
    length: int
    tokens: float
    source: str
    rates: tuple[float, ...] = ()
    tree: int = 0

    def of_length(self, length: int) -> float:
        """Tokens an iteration for another length of the chain; a tree's own figure."""
        if self.tree or length == self.length:
            return self.tokens
        rates = self.rates or (acceptance_rate(self.tokens, self.length),)
        reached: Iterator[float] = accumulate((rates[min(index, len(rates) - 1)] for index in range(length)), mul)
        return 1.0 + sum(reached)

    @property
    def where(self) -> str:
        return f"{self.model} on {self.task}"


class _Figures(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the file: `tokens` by task in the order of TASKS, or `rates` by position, each by model."""

    method: str
    source: str
    length: int = 0
    tree: int = 0
    tokens: dict[str, tuple[float, ...]] = {}
    rates: dict[str, tuple[float, ...]] = {}

    def rows(self) -> Iterator[Acceptance]:
        for model, tokens in self.tokens.items():
            for task, value in zip(TASKS, tokens, strict=False):
                yield Acceptance(self.method, model, task, self.length, value, self.source, tree=self.tree)
        for model, rates in self.rates.items():
            tokens_of_chain = 1.0 + sum(accumulate(rates, mul))
            yield Acceptance(self.method, model, TASKS[0], len(rates), tokens_of_chain, self.source, rates)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    published: tuple[_Figures, ...]


@lru_cache(maxsize=1)
def published_rows() -> tuple[Acceptance, ...]:
    """All published figures, in the order of the file."""
    path = Path(str(files("roofline.techniques") / "acceptance.yaml"))
    found = record(_File, read_mapping(path), str(path))
    return tuple(row for figures in found.published for row in figures.rows())


SHAPES: Mapping[str, str] = MappingProxyType({"vicuna-13b": "llama-13b"})
"""Bundled models of the shape of another."""


def published_acceptance(method: str, model: str, task: str, tree: bool = False) -> Acceptance | None:
    """The published acceptance of a method on a model's task; that of the method's first model if it has none.

    `model` may have suffixes of techniques (`+`). None for a method without figures; raises UnknownNameError for an
    unknown task.
    """
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS)
    rows = [row for row in published_rows() if row.method == method and bool(row.tree) == tree]
    name = model.partition("+")[0]
    name = SHAPES.get(name, name)
    nearest = sorted(rows, key=lambda row: (row.model != name, row.task != task))  # stable: the first of equal ones
    return nearest[0] if nearest else None


def as_published(method: str) -> tuple[Published, ...]:
    """The published effects of a method's acceptance, one for each model, drafts and source."""
    grouped: dict[tuple[str, int, int, str], list[Acceptance]] = {}
    for row in published_rows():
        if row.method == method:
            grouped.setdefault((row.model, row.tree, row.length, row.source), []).append(row)
    found = []
    for (model, tree, length, source), rows in grouped.items():
        drafts = f"a tree of {tree} tokens, {length} deep" if tree else f"{length} draft tokens"
        figures = ", ".join(f"{row.tokens:.3g} on {row.task}" for row in rows)
        found.append(Published(f"tokens an iteration: {figures}", f"{model}'s shape, {drafts}, temperature 0", source))
    return tuple(found)
