"""A maintainer's visit to this machine's GPU: `python -m lab.gpu --minutes 8 --output build/gpu`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.command import run_command
from lab.gpu.page import summary
from lab.gpu.steps import STEPS
from roofline.validate.gpu import runner


def main() -> None:
    """Run the visit, and print how each step ended."""
    parser = argparse.ArgumentParser(prog="python -m lab.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0, help="minutes that the visit may take in all")
    parser.add_argument("--output", type=Path, default=Path("gpu"), help="folder of the results; rows there are kept")

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    def work(given: argparse.Namespace) -> str:
        runner.run(given.output, given.minutes, say, steps=STEPS, summarize=summary)
        return f"{given.output / 'summary.md'}\n"

    raise SystemExit(run_command(parser, work))


if __name__ == "__main__":
    main()
