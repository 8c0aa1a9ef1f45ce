"""Published acceptance of drafts, by method, model and task.

A chain of draft tokens is accepted up to the first wrong one, so a figure for one length gives those for others: the
rates by position where they are published, else the one rate with which that length yields the published tokens.
A tree's figure holds for its own size and depth alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from operator import mul
from types import MappingProxyType

from msgspec import Struct

from roofline.core.errors import UnknownNameError
from roofline.scenario.speculation import acceptance_rate
from roofline.techniques.base import Published

VLLM = "vLLM, tests/v1/spec_decode/test_acceptance_length.py (main, 2026)"
VLLM_EXAMPLE = "vLLM, examples/offline_inference/spec_decode.py, its --test"
ANGELSLIM = "AngelSlim, README (vLLM 0.11.2 on H20, batch 1)"
EAGLE_1 = "Li et al. 2024, EAGLE, tables 1 and 2"
EAGLE_2 = "Li et al. 2024, EAGLE-2, table 1"
EAGLE_3 = "Li et al. 2025, EAGLE-3, table 1"

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
        """The model and the task."""
        return f"{self.model} on {self.task}"


def _chains(method: str, length: int, source: str, figures: Mapping[str, tuple[float, ...]]) -> Iterator[Acceptance]:
    """Chains on several models, with their tokens by task in the order of `TASKS`."""
    for model, tokens in figures.items():
        for task, value in zip(TASKS, tokens, strict=False):
            yield Acceptance(method, model, task, length, value, source)


def _trees(
    method: str, depth: int, tree: int, source: str, figures: Mapping[str, tuple[float, ...]]
) -> Iterator[Acceptance]:
    """Trees on several models, with their tokens by task in the order of `TASKS`."""
    for model, tokens in figures.items():
        for task, value in zip(TASKS, tokens, strict=False):
            yield Acceptance(method, model, task, depth, value, source, tree=tree)


def _by_position(method: str, model: str, source: str, *rates: float) -> Acceptance:
    """A chain on MT-Bench with its rates by position."""
    return Acceptance(method, model, "mt-bench", len(rates), 1.0 + sum(accumulate(rates, mul)), source, rates)


# Vicuna 7B, 13B and 33B are fine-tuned LLaMA 7B, 13B and 30B. Trees: EAGLE's released one; EAGLE-2's and EAGLE-3's
# sizes by model are in the appendices on implementation.
PUBLISHED: tuple[Acceptance, ...] = (
    # The first chain and the first tree of a method stand for models that have none.
    Acceptance("eagle", "llama-3.1-8b", "mt-bench", 3, 2.296, VLLM_EXAMPLE),
    _by_position("eagle", "llama-7b", EAGLE_1, 0.79, 0.74, 0.72, 0.73, 0.67),
    _by_position("eagle", "llama-13b", EAGLE_1, 0.79, 0.74, 0.72, 0.74, 0.70),
    _by_position("eagle", "llama-30b", EAGLE_1, 0.74, 0.69, 0.67, 0.67, 0.66),
    _by_position("eagle", "llama-2-7b", EAGLE_1, 0.76, 0.69, 0.67, 0.68, 0.68),
    _by_position("eagle", "llama-2-13b", EAGLE_1, 0.77, 0.69, 0.69, 0.70, 0.71),
    _by_position("eagle", "llama-2-70b", EAGLE_1, 0.75, 0.69, 0.65, 0.64, 0.64),
    _by_position("eagle", "mixtral-8x7b", "Li et al. 2024, EAGLE, table 3", 0.67, 0.62, 0.61, 0.64, 0.63),
    *_trees(
        *("eagle", 5, 25, EAGLE_1),
        {
            "llama-7b": (3.94, 4.29, 4.00, 3.86),
            "llama-13b": (3.98, 4.39, 3.97, 3.95),
            "llama-30b": (3.68, 4.28, 3.94, 3.61),
            "llama-2-7b": (3.62, 4.24, 3.82, 3.71),
            "llama-2-13b": (3.90, 4.52, 4.03, 3.83),
            "llama-2-70b": (3.81, 4.42, 3.93, 3.77),
        },
    ),
    *_trees("eagle-2", 6, 60, EAGLE_3, {"llama-3.1-8b": (4.05, 4.71, 4.24, 4.12, 3.45)}),
    *_trees(
        *("eagle-2", 6, 60, EAGLE_2),
        {"llama-7b": (4.98, 5.33, 4.97, 4.86, 4.12), "llama-2-7b": (4.70, 5.39, 4.77, 4.66, 4.12)},
    ),
    *_trees(
        *("eagle-2", 6, 50, EAGLE_2),
        {"llama-13b": (4.83, 5.41, 4.79, 4.89, 4.21), "llama-2-13b": (4.75, 5.52, 4.90, 4.61, 4.24)},
    ),
    *_trees("eagle-2", 6, 48, EAGLE_3, {"llama-3.3-70b": (3.67, 4.09, 3.69, 3.92, 3.55)}),
    Acceptance("eagle-3", "llama-3.1-8b", "mt-bench", 3, 2.811, VLLM_EXAMPLE),
    _by_position("eagle-3", "qwen3-8b", VLLM, 0.6541, 0.6105, 0.5059),
    _by_position("eagle-3", "gpt-oss-20b", VLLM, 0.7165, 0.7146, 0.6518),
    *_chains(
        *("eagle-3", 2, ANGELSLIM),
        {
            "qwen3-1.7b": (2.17, 2.20, 2.13, 2.19),
            "qwen3-4b": (2.07, 2.08, 2.07, 2.10),
            "qwen3-8b": (1.97, 1.97, 2.00, 2.02),
            "qwen3-14b": (1.74, 1.76, 1.87, 1.78),
            "qwen3-32b": (1.86, 1.86, 2.01, 1.90),
            "qwen3-30b-a3b": (2.01, 2.02, 2.10, 2.04),
        },
    ),
    *_trees("eagle-3", 8, 60, EAGLE_3, {"llama-3.1-8b": (6.13, 6.74, 6.23, 6.70, 5.34)}),
    *_trees("eagle-3", 8, 50, EAGLE_3, {"llama-13b": (6.65, 7.54, 6.29, 6.17, 6.47)}),
    *_trees("eagle-3", 8, 48, EAGLE_3, {"llama-3.3-70b": (5.63, 6.52, 6.15, 6.09, 5.02)}),
    *_chains(
        *("prompt-lookup", 10, EAGLE_2),
        {
            "llama-7b": (1.68, 1.87, 1.99, 1.31, 2.72),
            "llama-2-7b": (1.43, 1.59, 1.37, 1.19, 1.43),
            "llama-2-13b": (1.46, 1.70, 1.44, 1.20, 1.45),
        },
    ),
)


SHAPES: Mapping[str, str] = MappingProxyType({"vicuna-13b": "llama-13b"})
"""Bundled models of the shape of another."""


def published_acceptance(method: str, model: str, task: str, tree: bool = False) -> Acceptance | None:
    """The published acceptance of a method on a model's task; that of the method's first model if it has none.

    `model` may have suffixes of techniques (`+`). None for a method without figures; raises UnknownNameError for an
    unknown task.
    """
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS)
    rows = [row for row in PUBLISHED if row.method == method and bool(row.tree) == tree]
    name = model.partition("+")[0]
    name = SHAPES.get(name, name)
    nearest = sorted(rows, key=lambda row: (row.model != name, row.task != task))  # stable: the first of equal ones
    return nearest[0] if nearest else None


def as_published(method: str) -> tuple[Published, ...]:
    """The published effects of a method's acceptance, one for each model, drafts and source."""
    grouped: dict[tuple[str, int, int, str], list[Acceptance]] = {}
    for row in PUBLISHED:
        if row.method == method:
            grouped.setdefault((row.model, row.tree, row.length, row.source), []).append(row)
    found = []
    for (model, tree, length, source), rows in grouped.items():
        drafts = f"a tree of {tree} tokens, {length} deep" if tree else f"{length} draft tokens"
        figures = ", ".join(f"{row.tokens:.3g} on {row.task}" for row in rows)
        found.append(Published(f"tokens an iteration: {figures}", f"{model}'s shape, {drafts}, temperature 0", source))
    return tuple(found)
