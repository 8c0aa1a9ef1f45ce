"""Published acceptance of drafts, by method, model and task, in acceptance.yaml.

A chain of draft tokens is accepted up to the first wrong one, so a figure for one length gives those for others: the
rates by position where they are published, else the one rate with which that length yields the published tokens. With
w tokens in a level of a tree, at most those that the draft continues, a level misses w^-WIDER as often as a chain.

A model without figures borrows those of the method's first model. How predictable a model's text is, one draft's rate
on it over that on another model, holds nearly for other trained drafts: with EAGLE's ratio, EAGLE-2's rate on Llama 3.1
8B gives those on four Llamas 2 to 5% too low, without 14 to 20%. So borrowed rates of EAGLE's drafts are scaled by
their siblings on that model, else by the median of models that have figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from statistics import mean, median

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import UnknownNameError
from roofline.scenario.speculation import acceptance_rate
from roofline.specs.model import Model
from roofline.specs.records import bundled_record
from roofline.techniques.base import Published

TASKS = ("mt-bench", "humaneval", "gsm8k", "alpaca", "cnn-dm", "coding", "coding-direct", "long")
"""MT-Bench is conversation, HumanEval code, GSM8K arithmetic, Alpaca instructions, CNN/DM summaries; coding and
coding-direct are SPEED-Bench's, with thinking and without, long are outputs of 8,192 tokens to random prompts."""

WIDER = 0.3
"""Fitted to the tables of EAGLE to EAGLE-3: a tree of 25 tokens, 5 deep, misses 0.73 times as often a level as the
chain of its paper, one of 60, 6 deep, half as often, one of 60, 8 deep, 0.47 times: 0.2, 0.3 and 0.37."""


class Acceptance(Struct, frozen=True):
    """A published acceptance: `tokens` an iteration for `length` draft tokens in a row.

    Temperature is 0 but for SPEED-Bench's tasks. `rates`: of draft tokens by position, if the ones before are accepted.
    `tree`: tokens of a tree of that depth; 0 for a chain. `model` is the bundled model that has the target's shape.
    `scale` multiplies rates that another model borrows; None where they are the model's own.
    """

    method: str
    model: str
    task: str
    length: int
    tokens: float
    source: str
    rates: tuple[float, ...] = ()
    tree: int = 0
    scale: float | None = None

    def of(self, length: int, tree: int = 0, topk: int = 1) -> float:
        """Tokens an iteration for another length of the chain, or for a tree of that depth and so many tokens."""
        scale = self.scale or 1.0
        if (length, tree, scale) == (self.length, self.tree, 1.0):
            return self.tokens
        rates = [min(rate * scale, 1.0) for rate in self.rates or (acceptance_rate(self.tokens, self.length),)]
        width = max(1.0, min(tree / length, topk)) / max(1.0, self.tree / self.length)
        missed = width**-WIDER
        levels = [max(0.0, 1 - (1 - rates[min(index, len(rates) - 1)]) * missed) for index in range(length)]
        return sum(accumulate(levels, mul), 1.0)

    @property
    def where(self) -> str:
        scaled = "" if self.scale in (None, 1.0) else f", rates times {self.scale:.2g}"
        return f"{self.model} on {self.task}{scaled}"


class _Figures(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the file, by model: `tokens` by task in the order of TASKS, or figures of one `task`.

    These are `rates` by position, or a `curve`, the tokens of 1, 2 and more draft tokens.
    """

    method: str
    source: str
    length: int = 0
    tree: int = 0
    task: str = TASKS[0]
    tokens: dict[str, tuple[float, ...]] = {}
    rates: dict[str, tuple[float, ...]] = {}
    curve: dict[str, tuple[float, ...]] = {}

    def rows(self) -> Iterator[Acceptance]:
        for model, tokens in self.tokens.items():
            for task, value in zip(TASKS, tokens, strict=False):
                yield Acceptance(self.method, model, task, self.length, value, self.source, tree=self.tree)
        for model, rates in (*self.rates.items(), *((name, rates_of(curve)) for name, curve in self.curve.items())):
            tokens_of_chain = 1.0 + sum(accumulate(rates, mul))
            yield Acceptance(self.method, model, self.task, len(rates), tokens_of_chain, self.source, rates)


def rates_of(curve: tuple[float, ...]) -> tuple[float, ...]:
    """The rates by position of chains that yield so many tokens with 1, 2 and more draft tokens, none fewer.

    >>> [round(rate, 2) for rate in rates_of((1.8, 2.4, 2.7))]
    [0.8, 0.75, 0.5]
    """
    gained = [after - before for before, after in pairwise((1.0, *accumulate(curve, max)))]
    return tuple(gain / before if before else 0.0 for before, gain in zip((1.0, *gained), gained, strict=False))


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The figures, the methods whose drafts are `trained` on hidden states, and models `alike` without figures."""

    published: tuple[_Figures, ...]
    trained: tuple[str, ...]
    alike: dict[str, str]


def _file() -> _File:
    return bundled_record(_File, "techniques/acceptance.yaml")


@lru_cache(maxsize=1)
def published_rows() -> tuple[Acceptance, ...]:
    """All published figures, in the order of the file."""
    return tuple(row for figures in _file().published for row in figures.rows())


def _alike(model: str) -> str:
    name = model.partition("+")[0]
    return _file().alike.get(name, name)


def is_published(method: str, model: str) -> bool:
    """Whether a method has figures of a model, or of one like it."""
    return any(row.method == method and row.model == _alike(model) for row in published_rows())


def is_superseded(method: str, model: Model) -> bool:
    """Whether a draft of its own has hardly been trained for a model: its checkpoint has MTP modules."""
    return method in _file().trained and bool(model.mtp) and not is_published(method, model.name)


def published_acceptance(method: str, model: str, task: str, tree: bool = False) -> Acceptance | None:
    """The published acceptance of a method on a model's task; borrowed from the method's first model if it has none.

    That of a tree for a tree, and of a chain for a chain, where there is one. `model` may have suffixes of techniques
    (`+`). None for a method without figures; raises UnknownNameError for an unknown task.
    """
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS)
    name = _alike(model)

    def distance(row: Acceptance) -> tuple[bool, ...]:
        return row.model != name, bool(row.tree) != tree, row.task != task

    rows = [row for row in published_rows() if row.method == method]
    nearest = min(rows, key=distance, default=None)  # the first of equally near ones
    if nearest is None or nearest.model == name:
        return nearest
    return replace(nearest, scale=relative_rate(method, name, nearest.model))


COMMON = 3
"""Draft tokens in a row at which rates are compared."""


@lru_cache(maxsize=256)
def relative_rate(method: str, model: str, reference: str) -> float:
    """The rate at which a model accepts drafts of the other trained methods, over that of a reference model.

    Of a model without figures, the median over models with figures of the newest method. 1 for methods that are not
    trained on hidden states.
    """
    trained = _file().trained
    if method not in trained:
        return 1.0
    rates: dict[str, dict[str, float]] = {name: {} for name in trained}
    for row in sorted(published_rows(), key=lambda row: bool(row.tree)):  # chains before trees
        if row.method in rates:
            rates[row.method].setdefault(row.model, acceptance_rate(row.of(COMMON), COMMON))
    siblings = [own for name, own in rates.items() if name != method and {model, reference} <= own.keys()]
    if siblings:
        return mean(own[model] / own[reference] for own in siblings)
    newest = rates[trained[-1]]
    return median(newest.values()) / newest[reference] if reference in newest else 1.0


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
        found.append(Published(f"tokens an iteration: {figures}", f"{model}'s shape, {drafts}", source))
    return tuple(found)
