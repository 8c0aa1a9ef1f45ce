"""What a maintainer's visit found, as Markdown: the summary in its folder, and the body of the page `docs/gpu.md`."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from lab.gpu.library import Choice, choice
from lab.gpu.steps import KERNELS, VERDICTS
from roofline.specs.hardware import Hardware
from roofline.validate.gpu.summary import (
    Row,
    escaped,
    fit_section,
    kernels_section,
    machine_section,
    network_section,
    rows_in,
    steps_section,
    table,
    timings,
)
from roofline.validate.gpu.visit import NETWORK, ROWS, Result, machine_from


def summary(folder: Path, results: Sequence[Result]) -> str:
    """The summary of a folder."""
    parts = ["# A visit to a GPU", "", *steps_section(results)]
    machine = next((result for result in reversed(results) if result.step == "machine" and result.facts), None)
    if machine is not None:
        parts += body(folder, machine_from(machine.facts).hardware, machine, results)
    return "\n".join(parts) + "\n"


def body(
    folder: Path, hardware: Hardware, machine: Result, results: Sequence[Result], others: Sequence[Row] = ()
) -> list[str]:
    """The sections on the machine, correctness, kernels, the library's choices, a network and the fit.

    `others` are timings beside those in the folder.
    """
    return [
        *machine_section(hardware, machine),
        *_correctness(rows_in(folder / VERDICTS)),
        *kernels_section(timings([*others, *rows_in(folder / ROWS)], hardware)),
        *_choices(rows_in(folder / KERNELS)),
        *network_section(rows_in(folder / NETWORK)),
        *fit_section(results),
    ]


def _correctness(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["op"], row["kernel"]].append(row)
    lines = []
    for (op, kernel), found in sorted(groups.items()):
        count = {status: sum(row["status"] == status for row in found) for status in ("correct", "refused")}
        worst = max((share(row) for row in found if row["error"]), default=0.0)
        wrong = len(found) - count["correct"] - count["refused"]
        lines.append((f"{op}, {kernel}", count["correct"], wrong, count["refused"], f"{100 * worst:.0f}%"))
    failed = [
        escaped(f"{row['case']}, {row['kernel']}: {row['reason'] or row['error'] + ', allowed ' + row['allowed']}")
        for row in rows
        if row["status"] in ("wrong", "failed")
    ]
    header = ("kernel", "correct", "wrong or failed", "refused", "largest error, % of the allowed")
    return [
        "## Correctness against float64",
        "",
        *table(header, lines),
        *(f"- {text}" for text in failed[:40]),
        *([""] if failed else []),
    ]


def share(row: Row) -> float:
    """The error of a verdict over the allowed one; infinite where it is NaN, which is what nobody wrote."""
    error, allowed = float(row["error"]), float(row["allowed"])
    return error / allowed if allowed > 0 and math.isfinite(error) else math.inf


def _choices(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    lines = []
    for dtype in sorted({row["dtype"] for row in rows}):
        own = [row for row in rows if row["dtype"] == dtype]
        split = [row for row in own if "splitk" in row["kernel"].lower() or int(row["kernels"]) > 1]
        lines.append((dtype, len(own), len({row["kernel"] for row in own}), len(split)))
    header = ("format", "GEMMs", "different kernels", "with k split or several kernels")
    return ["## What the library chose", "", *table(header, lines), *_rules(rows)]


ROWS_OF_GEMMS = (1, 9, 65, 129, 257, 1025, 4097)
"""The first number of rows of each group of GEMMs."""


def _rules(rows: Sequence[Row]) -> list[str]:
    """What holds of the tiles of 16-bit GEMMs, by rows: how tiles divide m, and how many programs run."""
    known = [(row, found) for row in rows if row["dtype"] == "bf16" and (found := choice(row["kernel"])) is not None]
    if not known:
        return []
    lines = []
    for low, high in zip(ROWS_OF_GEMMS, (*ROWS_OF_GEMMS[1:], 1 << 31), strict=True):
        group = [(row, found) for row, found in known if low <= int(row["m"]) < high]
        if not group:
            continue
        facts = [_facts(row, found) for row, found in group]
        shares = (100 * statistics.mean(getattr(fact, name) for fact in facts) for name in Facts.__struct_fields__[:4])
        lines.append(
            (
                f"{low} to {high - 1}" if high < 1 << 31 else f"from {low}",
                len(group),
                *(f"{share:.0f}%" for share in shares),
                f"{statistics.median(fact.columns for fact in facts):.0f}",
            )
        )
    header = (
        *("rows m", "GEMMs", "tile rows = m / row tiles, to 8", "one row of tiles", "all tiles at once", "k split"),
        "median tile columns",
    )
    note = (
        "By the names of the bf16 kernels (cuBLAS's nvjet family): how often a tile is as high as m divided by the rows"
        " of tiles, rounded up to a multiple of 8; how often one row of tiles covers m; how often all tiles run at"
        " once, at most one a multiprocessor; how often k is split over programs."
    )
    asked = sum(row["dtype"] == "bf16" for row in rows)
    rest = f" The other {asked - len(known)} of {asked} kernels are of other families." if asked > len(known) else ""
    return [note + rest, "", *table(header, lines)]


class Facts(Struct, frozen=True):
    """Of a GEMM's kernel: whether its tiles divide m evenly, cover m in one row, all run at once, split k; columns."""

    even: bool
    single: bool
    at_once: bool
    split: bool
    columns: int


def _facts(row: Row, found: Choice) -> Facts:
    m, n = int(row["m"]), int(row["n"])
    high, wide = found.tiles(m, n)
    even = found.rows == 8 * math.ceil(math.ceil(m / high) / 8)
    programs = 1
    for part in row["grid"].split("x"):
        programs *= int(part)
    return Facts(even, high == 1, high * wide <= programs, found.split, found.columns)
