"""Scores of predictions under load against the closed loops of AIConfigurator's validation data.

python -m lab.score.serving FILE [--by engine,metric]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from lab.command import run_written
from lab.tables.closed_loop import COLUMNS, DecodeApart, to_case
from roofline.core.options import names_in
from roofline.reports.documents.accuracy import accuracy_blocks
from roofline.reports.output.blocks import parts
from roofline.reports.output.terminal import render
from roofline.serving.outcome import Outcome
from roofline.serving.sessions.served import SessionOutcome
from roofline.validate.score import serving
from roofline.validate.score.errors import Skipped
from roofline.validate.tables.serving import ServingCase


class Predictor(serving.Predictor):
    """Predicts TPOT of decode alone where that has devices of its own."""

    def __call__(self, case: ServingCase) -> Outcome | SessionOutcome:
        found = super().__call__(case)
        if not isinstance(case, DecodeApart) or case.decode is None:
            return found
        return replace(found, tpot=self.outcome(*case.decode, case.scheduler).tpot)


def read_cases(path: Path) -> tuple[list[ServingCase], list[Skipped]]:
    """The rows of a file, also in the columns of closed loops; raises SpecError for no such table."""
    return serving.read_cases(path, ((COLUMNS, to_case), *serving.TABLES))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors by group."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.serving", description=__doc__)
    parser.add_argument("file", type=Path, help="a CSV file of serving benchmarks, also gzipped")
    parser.add_argument("--by", default="engine,metric", help=f"keys to group by: {', '.join(serving.KEYS)}")

    def report(options: argparse.Namespace) -> str:
        document = serving.scores(*read_cases(options.file), names_in(options.by), Predictor())
        return render(parts(accuracy_blocks(document)))

    return run_written(parser, report, arguments)


if __name__ == "__main__":
    sys.exit(main())
