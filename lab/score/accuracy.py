"""The accuracy table: errors of predictions on held-out shapes, and on held-out hardware.

    python -m lab.score.accuracy MEASUREMENTS_DIR [--output accuracy.md]

Half of the shapes of each accelerator (never of the rows) are held out: (n, k) pairs, head configurations, expert
shapes, message sizes. Constants and intervals come from the other half alone, without a prior from other hardware. The
headline MAPE is over n, k >= 1024 for GEMMs, head_dim 128 and a full window for attention; "all rows" includes unusual
shapes.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from msgspec import Struct

from lab.command import run_report
from lab.fit.shared import fit_shared
from lab.observation.collector import Collector
from lab.tables.public import read
from roofline.specs.hardware import Hardware, load_hardware
from roofline.timing.calibration import Calibration
from roofline.timing.chains import families
from roofline.validate.fit.calibrate import fit, hold_out
from roofline.validate.score.errors import Group
from roofline.validate.score.kernels import Scored, predict, summarise
from roofline.validate.tables.rows import Measurements, by_op, headline

FAST_DECODE = ("h100-sxm", "h200-sxm", "b200-sxm", "gb200")
FEW_SEEDS = (0, 1, 2)
FEW_POINTS = 50

COLLECTOR = Collector()

TRANSFERRED = (("gemm", "bf16"), ("attention_prefill", "bf16"))
"""Ops and formats that are predicted from other accelerators."""

Data = Mapping[str, Mapping[str, Measurements]]
"""Measurements by hardware and op."""


class TableRow(Struct, frozen=True):
    """A row of the table: means over accelerators as fractions, and the headline MAPE by accelerator (`parts`)."""

    name: str
    target: float
    stretch: float
    mape: float
    bound: float
    coverage: float
    mape_all: float
    coverage_all: float
    parts: Mapping[str, float]


def load(folder: Path) -> Data:
    """The measurements of a folder by hardware and op; of whole modules only MLA decode."""
    gathered: dict[str, list[Measurements]] = {}
    for part in read(folder):
        for name, rows in part.by_hardware().items():
            gathered.setdefault(name, []).append(rows)
    return {name: by_op(parts) for name, parts in gathered.items()}


def held_out(parts: Mapping[str, Measurements], hardware: Hardware, seed: int = 0) -> list[Scored]:
    """Predictions for half of an accelerator's shapes from constants fitted to the other half."""
    train, test = [], []
    for part in parts.values():
        for rows in part.formats().values():
            held = hold_out(rows, seed)
            if held.any() and not held.all():
                train.append(rows.rows(~held))
                test.append(rows.rows(held))
    calibration = fit(train, hardware, seed=seed, harness=COLLECTOR)
    return [scored for part in test for scored in predict(part, hardware, calibration, harness=COLLECTOR)]


def relatives(name: str, hardware: Mapping[str, Hardware]) -> list[str]:
    """The accelerators whose constants `name` would inherit: the others of its family, else all others."""
    own = families(hardware[name])[0]
    family = [other for other in hardware if other != name and families(hardware[other])[0] == own]
    return family or [other for other in hardware if other != name]


def inherited(name: str, op: str, format: str, data: Data, hardware: Mapping[str, Hardware]) -> Calibration:
    """The constants that an accelerator without measurements would inherit for one op and format."""
    others = [(other, _rows(data[other], op, format)) for other in relatives(name, hardware)]
    known = [(hardware[other], [rows]) for other, rows in others if rows is not None]
    return fit_shared("family", known, harness=COLLECTOR)


def _rows(parts: Mapping[str, Measurements], op: str, format: str) -> Measurements | None:
    return parts[op].formats().get(format) if op in parts else None


def zero_shot(op: str, format: str, data: Data, hardware: Mapping[str, Hardware]) -> list[Scored]:
    """Predictions for each accelerator from inherited constants alone."""
    found: list[Scored] = []
    for name, parts in data.items():
        if (rows := _rows(parts, op, format)) is not None:
            calibration = inherited(name, op, format, data, hardware)
            found += predict(rows, hardware[name], calibration, harness=COLLECTOR)
    return found


def transferred(
    name: str, op: str, format: str, data: Data, hardware: Mapping[str, Hardware]
) -> tuple[list[Scored], list[Scored]]:
    """Predictions for an accelerator from inherited constants, and from draws of 50 rows with these as prior."""
    rows = _rows(data[name], op, format)
    if rows is None:
        return [], []
    prior = inherited(name, op, format, data, hardware)
    fitted = [fit([rows], hardware[name], prior, FEW_POINTS, seed, harness=COLLECTOR) for seed in FEW_SEEDS]
    few = [one for calibration in fitted for one in predict(rows, hardware[name], calibration, harness=COLLECTOR)]
    return list(predict(rows, hardware[name], prior, harness=COLLECTOR)), few


def table_row(name: str, target: float, stretch: float, scored: Sequence[Scored]) -> TableRow:
    """A table row: the MAPE is the unweighted mean over accelerators and formats, the coverage that of all rows."""
    by = ("op", "format", "hardware")
    everything, groups = summarise(scored, by), summarise([found.rows(headline(found.part)) for found in scored], by)
    parts: dict[str, list[Group]] = {}
    for group in groups:
        parts.setdefault(group["hardware"], []).append(group)
    shown = {hardware: float(np.mean([group.mape for group in same])) for hardware, same in parts.items()}
    return TableRow(
        name,
        target,
        stretch,
        float(np.mean([group.mape for group in groups])),
        float(np.mean([group.bound_mape for group in groups])),
        _coverage(groups),
        float(np.mean([group.mape for group in everything])),
        _coverage(everything),
        shown,
    )


def _coverage(groups: Sequence[Group]) -> float:
    return float(np.average([group.interval_coverage for group in groups], weights=[group.rows for group in groups]))


Task = tuple[str, str, str]
"""An accelerator whose shapes are held out; one that is, with the op and format."""

_AT_WORK: list[Data] = []
"""The rows of a process that scores, which it has from the one that forked it."""


def _scored(task: Task) -> tuple[list[Scored], list[Scored]]:
    """What a task predicts: held-out shapes, or an accelerator from inherited constants and from few rows."""
    (data,), (name, op, format) = _AT_WORK, task
    hardware = {one: load_hardware(one) for one in data}
    return transferred(name, op, format, data, hardware) if op else (held_out(data[name], hardware[name]), [])


def table(data: Data) -> list[TableRow]:
    """The rows of the accuracy table for which there are measurements."""
    of_shapes: list[Task] = [(name, "", "") for name in data]
    of_others: list[Task] = [(name, *key) for key in TRANSFERRED for name in data]
    _AT_WORK[:] = [data]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        found = dict(zip([*of_shapes, *of_others], pool.map(_scored, [*of_shapes, *of_others]), strict=True))
    scored = [one for task in of_shapes for one in found[task][0]]
    zero, few = (
        {key: [one for task in of_others if task[1:] == key for one in found[task][part]] for key in TRANSFERRED}
        for part in (0, 1)
    )

    def of(op: str, test: Callable[[Scored], bool] = lambda _: True) -> list[Scored]:
        return [found for found in scored if found.op == op and test(found)]

    def gemm(format: str) -> list[Scored]:
        return of("gemm", lambda found: found.format == format)

    def prefill(bf16: bool) -> list[Scored]:
        return of("attention_prefill", lambda found: (found.format == "bf16") == bf16)

    def decode(fast: bool) -> list[Scored]:
        return of("attention_decode", lambda found: (found.hardware in FAST_DECODE) == fast)

    rows = [
        ("GEMM bf16", 0.09, 0.065, gemm("bf16")),
        ("GEMM fp8", 0.10, 0.07, gemm("fp8")),
        ("GEMM nvfp4", 0.10, 0.07, gemm("nvfp4")),
        ("GEMM fp8_block (host-bound benchmark)", 0.10, 0.07, gemm("fp8_block")),
        ("attention prefill, bf16 cache", 0.10, 0.07, prefill(bf16=True)),
        ("attention prefill, fp8 cache", 0.10, 0.07, prefill(bf16=False)),
        ("attention decode, H100, H200, B200, GB200", 0.10, 0.065, decode(fast=True)),
        ("attention decode, A100, L40S, RTX PRO 6000", 0.18, 0.12, decode(fast=False)),
        ("MLA decode", 0.25, 0.12, of("mla_decode")),
        ("MoE", 0.20, 0.12, of("moe")),
        ("collectives", 0.10, 0.06, of("collective")),
        ("50 points and prior, GEMM bf16", 0.12, 0.08, few["gemm", "bf16"]),
        ("50 points and prior, prefill bf16", 0.12, 0.08, few["attention_prefill", "bf16"]),
        ("zero-shot, GEMM bf16", 0.13, 0.09, zero["gemm", "bf16"]),
    ]
    return [table_row(name, target, stretch, found) for name, target, stretch, found in rows if found]


def markdown(table: Sequence[TableRow]) -> str:
    """The table as Markdown, in percent."""
    names = list(dict.fromkeys(name for row in table for name in row.parts))
    head = ["", "MAPE", "target", "stretch target", "roofline", "in 80% interval"]
    head += ["MAPE, all rows", "in 80% interval, all rows", *names]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in table:
        own = [f"{100 * row.parts[name]:.1f}" if name in row.parts else "" for name in names]
        cells = [
            *(row.name, f"**{100 * row.mape:.1f}**", f"{100 * row.target:g}", f"{100 * row.stretch:g}"),
            *(f"{100 * row.bound:.0f}", f"{100 * row.coverage:.0f}"),
            *(f"{100 * row.mape_all:.1f}", f"{100 * row.coverage_all:.0f}", *own),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of a folder of measurements; returns the exit status."""
    return run_report(
        "score.accuracy", "Held-out errors, as Markdown.", lambda folder: markdown(table(load(folder))), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
