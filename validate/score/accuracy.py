"""The accuracy table: how far off predictions are on shapes, and on hardware, that the fit did not see.

    python -m roofline.validate.score.accuracy MEASUREMENTS_DIR [--output accuracy.md]

For each accelerator half of the shapes (never of the rows) is held out: (n, k) pairs, head configurations, expert
shapes, message sizes. Constants and intervals come from the other half alone, without any prior from other hardware.
MAPE is quoted over n, k >= 1024 for products, head_dim 128 and a full window for attention; "all rows" are those of
unusual shapes, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from roofline.core.files import save_text
from roofline.specs.hardware import Hardware, load_hardware
from roofline.timing.calibration import Calibration, families
from roofline.validate.fit.calibrate import fit, fit_shared, hold_out
from roofline.validate.main import answer
from roofline.validate.score.kernels import Group, Scored, predict, summarise
from roofline.validate.tables.mla_modules import latent_rows
from roofline.validate.tables.rows import MODULES, Measurements, by_op, read_measurements

FAST_DECODE = ("h100-sxm", "h200-sxm", "b200-sxm", "gb200")
FEW_SEEDS = (0, 1, 2)
FEW_POINTS = 50

Data = Mapping[str, Mapping[str, Measurements]]
"""Measurements by hardware and op."""


class Line(Struct, frozen=True):
    """One line of the table: what is quoted, the mean over accelerators, and each one's share."""

    name: str
    reach: float
    aim: float
    mape: float
    bound: float
    coverage: float
    mape_all: float
    coverage_all: float
    parts: Mapping[str, float]


def load(folder: Path) -> Data:
    """The measurements of a folder by hardware and op; of whole modules the attention over latents in decode."""
    gathered: dict[str, list[Measurements]] = {}
    for part in read_measurements(folder):
        kernels = latent_rows(part) if part.op == "mla_decode_module" else part
        if kernels is not None and kernels.op not in MODULES:
            for name, rows in kernels.by_hardware().items():
                gathered.setdefault(name, []).append(rows)
    return {name: by_op(parts) for name, parts in gathered.items()}


def held_out(parts: Mapping[str, Measurements], hardware: Hardware, seed: int = 0) -> list[Scored]:
    """Predictions for half of the shapes of an accelerator from the other half."""
    train, test = [], []
    for part in parts.values():
        for rows in part.formats().values():
            held = hold_out(rows, seed)
            if held.any() and not held.all():
                train.append(rows.rows(~held))
                test.append(rows.rows(held))
    calibration = fit(train, hardware, seed=seed)
    return [scored for part in test for scored in predict(part, hardware, calibration)]


def relatives(name: str, hardware: Mapping[str, Hardware]) -> list[str]:
    """The other accelerators that one without measurements would inherit from: its family, else all."""
    own = families(hardware[name])[0]
    family = [other for other in hardware if other != name and families(hardware[other])[0] == own]
    return family or [other for other in hardware if other != name]


def inherited(name: str, op: str, format: str, data: Data, hardware: Mapping[str, Hardware]) -> Calibration:
    """What an accelerator would inherit for one op and format if nothing had been measured on it."""
    members = []
    for other in relatives(name, hardware):
        rows = data[other].get(op)
        formats = rows.formats() if rows is not None else {}
        if format in formats:
            members.append((hardware[other], [formats[format]]))
    return fit_shared("family", members)


def zero_shot(op: str, format: str, data: Data, hardware: Mapping[str, Hardware]) -> list[Scored]:
    """Predictions for each accelerator from the others alone."""
    found: list[Scored] = []
    for name, parts in data.items():
        rows = parts[op].formats().get(format) if op in parts else None
        if rows is not None:
            calibration = inherited(name, op, format, data, hardware)
            found += predict(rows, hardware[name], calibration)
    return found


def few_points(op: str, format: str, data: Data, hardware: Mapping[str, Hardware]) -> list[Scored]:
    """Predictions for each accelerator from 50 rows of it and what it would inherit, for several draws of the rows."""
    found: list[Scored] = []
    for name, parts in data.items():
        rows = parts[op].formats().get(format) if op in parts else None
        if rows is None:
            continue
        prior = inherited(name, op, format, data, hardware)
        for seed in FEW_SEEDS:
            calibration = fit([rows], hardware[name], prior, FEW_POINTS, seed)
            found += predict(rows, hardware[name], calibration)
    return found


def line(name: str, reach: float, aim: float, scored: Sequence[Scored]) -> Line:
    """A line whose MAPE is the mean over accelerators and formats, each counting the same; coverage is of all rows."""
    by = ("op", "format", "hardware")
    everything, groups = summarise(scored, by), summarise([found.rows(found.headline) for found in scored], by)
    parts: dict[str, list[Group]] = {}
    for group in groups:
        parts.setdefault(group.hardware, []).append(group)
    shown = {hardware: float(np.mean([group.mape for group in same])) for hardware, same in parts.items()}
    return Line(
        name,
        reach,
        aim,
        float(np.mean([group.mape for group in groups])),
        float(np.mean([group.bound_mape for group in groups])),
        _coverage(groups),
        float(np.mean([group.mape for group in everything])),
        _coverage(everything),
        shown,
    )


def _coverage(groups: Sequence[Group]) -> float:
    return float(np.average([group.interval_coverage for group in groups], weights=[group.rows for group in groups]))


def table(data: Data) -> list[Line]:
    """All lines of the accuracy table that the measurements allow."""
    hardware = {name: load_hardware(name) for name in data}
    scored = [found for name, parts in data.items() for found in held_out(parts, hardware[name])]

    def chosen(test: Callable[[Scored], bool]) -> list[Scored]:
        return [found for found in scored if test(found)]

    def gemm(*formats: str) -> list[Scored]:
        return chosen(lambda found: found.op == "gemm" and found.format in formats)

    def decode(fast: bool) -> list[Scored]:
        return chosen(lambda s: s.op == "attention_decode" and (s.hardware in FAST_DECODE) == fast)

    wanted = [
        ("GEMM bf16", 0.09, 0.065, gemm("bf16")),
        ("GEMM fp8", 0.10, 0.07, gemm("fp8")),
        ("GEMM nvfp4", 0.10, 0.07, gemm("nvfp4")),
        ("GEMM fp8_block (host-bound benchmark)", 0.10, 0.07, gemm("fp8_block")),
        (
            "attention prefill, bf16 cache",
            0.10,
            0.07,
            chosen(lambda s: s.op == "attention_prefill" and s.format == "bf16"),
        ),
        (
            "attention prefill, fp8 cache",
            0.10,
            0.07,
            chosen(lambda s: s.op == "attention_prefill" and s.format != "bf16"),
        ),
        ("attention decode, H100, H200, B200, GB200", 0.10, 0.065, decode(fast=True)),
        ("attention decode, A100, L40S, RTX PRO 6000", 0.18, 0.12, decode(fast=False)),
        ("attention over latents, decode", 0.25, 0.12, chosen(lambda s: s.op == "latent_decode")),
        ("MoE", 0.20, 0.12, chosen(lambda s: s.op == "moe")),
        ("collectives", 0.10, 0.06, chosen(lambda s: s.op == "collective")),
        ("50 points and prior, GEMM bf16", 0.12, 0.08, few_points("gemm", "bf16", data, hardware)),
        ("50 points and prior, prefill bf16", 0.12, 0.08, few_points("attention_prefill", "bf16", data, hardware)),
        ("zero-shot, GEMM bf16", 0.13, 0.09, zero_shot("gemm", "bf16", data, hardware)),
    ]
    return [line(name, reach, aim, found) for name, reach, aim, found in wanted if found]


def markdown(lines: Sequence[Line]) -> str:
    """The table as Markdown, in percent."""
    names = list(dict.fromkeys(name for entry in lines for name in entry.parts))
    head = ["", "MAPE", "reach", "aim", "roofline", "in interval", "MAPE, all rows", "in interval, all rows", *names]
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for entry in lines:
        own = [f"{100 * entry.parts[name]:.1f}" if name in entry.parts else "" for name in names]
        cells = [
            *(entry.name, f"**{100 * entry.mape:.1f}**", f"{100 * entry.reach:g}", f"{100 * entry.aim:g}"),
            *(f"{100 * entry.bound:.0f}", f"{100 * entry.coverage:.0f}"),
            *(f"{100 * entry.mape_all:.1f}", f"{100 * entry.coverage_all:.0f}", *own),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m roofline.validate.score.accuracy", description="Held-out errors, as Markdown."
    )
    parser.add_argument("measurements", type=Path, help="folder of measurement files")
    parser.add_argument("--output", type=Path, help="write the table here, too")

    def work(options: argparse.Namespace) -> str:
        text = markdown(table(load(options.measurements)))
        if options.output is not None:
            save_text(options.output, text)
        return text

    return answer(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
