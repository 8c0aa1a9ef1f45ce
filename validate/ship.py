"""Fit the calibrations that the package ships: each accelerator's, each family's, and the pooled one.

python -m validate.ship MEASUREMENTS_DIR --output hwspecs/calibration --repository NAME --commit HASH --date DATE
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from reports.files import save_text
from roofline.calibration import Calibration, Source, families, render
from roofline.hardware import Hardware, load_hardware
from validate.accuracy import Data, load
from validate.calibrate import describe, fit, fit_shared, widen
from validate.module import answer
from validate.rows import Measurements

Member = tuple[Hardware, list[Measurements]]


def calibrations(data: Data, source: Source) -> Iterator[Calibration]:
    """All calibrations that measurements allow, the pooled one first: the others start from it."""
    members: list[Member] = [(load_hardware(name), list(parts.values())) for name, parts in data.items()]
    pooled = fit_shared("pooled", members, source=_of(source, members))
    yield pooled
    for name, own in _families(members).items():
        shared = fit_shared(name, own, pooled, source=_of(source, own))
        yield shared if len(own) > 1 else widen(shared, pooled)
    for hardware, parts in members:
        yield fit(parts, hardware, source=_of(source, [(hardware, parts)]))


def _families(members: Sequence[Member]) -> dict[str, list[Member]]:
    """Members by family; those with GDDR apart where the family has members with HBM, too."""
    grouped: dict[str, list[Member]] = {}
    for member in members:
        special, *plain = families(member[0])
        mixed = any(families(other) == (*plain,) for other, _ in members)
        grouped.setdefault(special if mixed or not plain else plain[0], []).append(member)
    return grouped


def _of(source: Source, members: Sequence[Member]) -> Source:
    software = describe([part for _, parts in members for part in parts]).software
    return replace(source, software=software)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m validate.ship", description="Fit the shipped calibrations.")
    parser.add_argument("measurements", type=Path, help="folder of measurement files")
    parser.add_argument("--output", type=Path, required=True, help="folder of the calibration files")
    parser.add_argument("--repository", default="", help="where the measurements were published")
    parser.add_argument("--commit", default="", help="their commit")
    parser.add_argument("--date", type=datetime.date.fromisoformat, help="date of the fit")

    def work(options: argparse.Namespace) -> str:
        command = "python -m validate.ship MEASUREMENTS_DIR --output hwspecs/calibration"
        source = Source(options.repository, options.commit, (), options.date, command)
        texts = {found.name: render(found) for found in calibrations(load(options.measurements), source)}
        for name, text in texts.items():
            save_text(options.output / f"{name}.yaml", text)
        return ""

    return answer(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
