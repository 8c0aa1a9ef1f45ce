"""Errors of whole attention layers with the bundled constants, by table: DSA, CSA, HCA and MSA.

    python -m lab.score.attention_layers FOLDER [--rows N] [--output FILE]

The layers are those of `lab.tables.sparse_layers`, timed as their collector does (`lab.observation.collector`). Errors
for what no fit saw are those of `python -m lab.fit.attention_layers FOLDER --score`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lab.command import run_written
from lab.observation.collector import Collector
from lab.tables.sparse_layers import read
from roofline.specs.hardware import load_hardware
from roofline.timing.chains import load_calibration
from roofline.validate.score.errors import group_of
from roofline.validate.score.kernels import Scored, predict
from roofline.validate.tables.rows import Measurements, Origin, by_origin


def score(rows: Measurements, device: str, origin: Origin) -> list[Scored]:
    """The predictions for the rows of one table, by format."""
    hardware = load_hardware(device)
    calibration = load_calibration(hardware, engine=origin.engine, version=origin.version)
    return list(predict(rows, hardware, calibration, origin, Collector(hosted=True)))


def report(folder: Path, rows: int) -> str:
    """The errors in a table of Markdown."""
    lines = [
        "| layer | rows | MAPE, % | median, % | predicted / measured | in the interval, % |",
        "|---|---|---|---|---|---|",
    ]
    for kernels in read(folder, rows):
        for device, own in kernels.by_hardware().items():
            for origin, part in by_origin(own).items():
                for one in score(part, device, origin):
                    found = group_of({}, one.measured, one.low, one.mid, one.high, one.bound)
                    figures = [100 * getattr(found, name) for name in ("mape", "median_ape", "interval_coverage")]
                    bias = float(np.median(one.mid / one.measured))
                    name = f"{one.part.frame['variant'].iloc[0]} {one.op}, {device}, {origin.engine} {origin.version}"
                    lines.append(
                        f"| {name}, {one.format} | {len(one.mid)} | {figures[0]:.1f} | {figures[1]:.1f} | {bias:.2f}"
                        f" | {figures[2]:.0f} |"
                    )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.attention_layers", description="Attention layers.")
    parser.add_argument("measurements", type=Path, help="folder of public tables")
    parser.add_argument("--rows", type=int, default=400, help="rows of each table")
    return run_written(parser, lambda options: report(options.measurements, options.rows), arguments)


if __name__ == "__main__":
    sys.exit(main())
