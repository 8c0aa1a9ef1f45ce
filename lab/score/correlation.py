"""Correlations between errors of different kernels, as the interval of a pass needs them (`timing.intervals`).

    python -m lab.score.correlation MEASUREMENTS_DIR [--output correlation.md]

With r = log(measured / predicted) of held-out rows, the correlation of two kernels of one kind is

    rho = sum over groups of the mean of r_i r_j over its pairs / sum over groups of the mean of r_i^2

the pairwise intraclass correlation (Fisher, 1925, chapter 7), here about zero: a common bias is a common error. A group
is the rows of one accelerator and format with the same number of tokens (pairs of different shapes), with the same
shape (pairs of different numbers of tokens), or all its rows. A pair of two kinds is one kernel of each on the same
accelerator. Errors are clipped at a factor of e^0.5, to limit the weight of outliers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from lab.command import run_report
from lab.score.accuracy import held_out, load, zero_shot
from roofline.specs.hardware import load_hardware
from roofline.timing.kernels import kernel
from roofline.validate.score.kernels import Scored
from roofline.validate.tables.rows import headline

if TYPE_CHECKING:
    import pandas as pd

CLIP = 0.5
"""Largest logarithmic error; larger ones are clipped."""

TOKENS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m",),
    "attention_prefill": ("batch", "q_len", "kv_len"),
    "attention_decode": ("batch", "q_len", "kv_len"),
    "moe": ("tokens",),
    "collective": ("bytes",),
}
"""The columns of a kind that depend on the number of tokens; the others are the shape."""

INHERITED = (
    ("gemm", "bf16"),
    ("attention_prefill", "bf16"),
    ("attention_decode", "bf16"),
    ("moe", "bf16"),
    ("collective", "all_reduce"),
)
"""Kinds and formats measured on all accelerators, for predictions of each from the others alone."""


class Correlations(Struct, frozen=True):
    """The correlations of one kind: of pairs with the same tokens, with the same shape, and of any of one accelerator.

    `spread` is the root mean square of the logarithmic errors, `lowest` and `highest` are `same_tokens` by accelerator.
    """

    op: str
    rows: int
    spread: float
    same_tokens: float
    lowest: float
    highest: float
    same_shape: float
    any_two: float


def errors(scored: Sequence[Scored]) -> pd.DataFrame:
    """Measured rows of one kind with their logarithmic `error`, the index of the `fit`, and `tokens` of the pass."""
    import pandas as pd

    frames = []
    for index, found in enumerate(scored):
        error = np.clip(np.log(found.measured / found.mid), -CLIP, CLIP)
        frames.append(found.part.frame.assign(hardware=found.hardware, fit=index, error=error, square=error**2))
    frame = pd.concat(frames, ignore_index=True)
    match scored[0].op:
        case "gemm":
            return frame.assign(tokens=frame["m"])
        case "attention_prefill" | "attention_decode":
            return frame.assign(tokens=frame["batch"] * frame["q_len"])
    return frame


def within(frame: pd.DataFrame, by: Sequence[str]) -> float:
    """The correlation of two rows of the same group (the module's formula)."""
    groups = frame.groupby(list(by), observed=True)
    count, total, squares = groups.size(), groups["error"].sum(), groups["square"].sum()
    paired = count > 1
    products = ((total**2 - squares) / (count * (count - 1)))[paired].sum()
    return float(products / (squares / count)[paired].sum())


def between(first: pd.DataFrame, second: pd.DataFrame, by: Sequence[str]) -> tuple[float, int]:
    """The correlation of a row of each of two kinds in the same group, and the number of groups that both have."""
    means = [frame.groupby(list(by), observed=True)[["error", "square"]].mean() for frame in (first, second)]
    one, other = means[0].align(means[1], join="inner", axis=0)
    scale = np.sqrt(one["square"].mean() * other["square"].mean())
    return float((one["error"] * other["error"]).mean() / scale), len(one)


def correlations(frame: pd.DataFrame, op: str) -> Correlations:
    """All correlations of one kind."""
    tokens = ("fit", *TOKENS[op])
    shape = ("fit", *(name for name in kernel(op).columns if name not in TOKENS[op]))
    single = [within(rows, tokens) for _, rows in frame.groupby("hardware", observed=True)]
    return Correlations(
        op=op,
        rows=len(frame),
        spread=float(np.sqrt(frame["square"].mean())),
        same_tokens=within(frame, tokens),
        lowest=min(single),
        highest=max(single),
        same_shape=within(frame, shape),
        any_two=within(frame, ("fit",)),
    )


def by_kind(scored: Sequence[Scored], usual: bool) -> dict[str, pd.DataFrame]:
    """The errors by kind, of all rows or of the headline rows only."""
    chosen = [found.rows(headline(found.part)) if usual else found for found in scored]
    kinds = {op: [found for found in chosen if found.op == op and len(found.part)] for op in TOKENS}
    return {op: errors(found) for op, found in kinds.items() if found}


def markdown(title: str, frames: Mapping[str, pd.DataFrame], by: Sequence[str]) -> str:
    """The correlations of kinds, and of pairs of kinds in groups `by`, as two Markdown tables."""
    lines = [
        f"## {title}\n",
        "| kind | rows | spread | other shapes, same tokens | by accelerator | same shape, other tokens | any two |",
        "|---|---|---|---|---|---|---|",
    ]
    for op, frame in frames.items():
        found = correlations(frame, op)
        lines.append(
            f"| {op} | {found.rows} | {found.spread:.3f} | **{found.same_tokens:.2f}** | "
            f"{found.lowest:.2f} to {found.highest:.2f} | {found.same_shape:.2f} | {found.any_two:.2f} |"
        )
    lines += ["", f"| kinds, same {' and '.join(by)} | correlation | groups |", "|---|---|---|"]
    for first, second in combinations(frames, 2):
        if all(name in frames[op] for name in by for op in (first, second)):
            value, groups = between(frames[first], frames[second], by)
            lines.append(f"| {first}, {second} | {value:.2f} | {groups} |")
    return "\n".join(lines) + "\n"


def report(folder: Path) -> str:
    """The tables for own constants (half of the shapes held out) and for inherited ones."""
    data = load(folder)
    hardware = {name: load_hardware(name) for name in data}
    own = [found for name, parts in data.items() for found in held_out(parts, hardware[name])]
    inherited = [found for op, format in INHERITED for found in zero_shot(op, format, data, hardware)]
    return "\n".join(
        (
            markdown("Own constants, headline shapes", by_kind(own, True), ("hardware", "tokens")),
            markdown("Own constants, all shapes", by_kind(own, False), ("hardware", "tokens")),
            markdown("Inherited constants", by_kind(inherited, True), ("hardware",)),
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the correlations of a folder of measurements; returns the exit status."""
    return run_report("score.correlation", "Correlations of errors, as Markdown.", report, arguments)


if __name__ == "__main__":
    sys.exit(main())
