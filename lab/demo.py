"""`python -m lab.demo`: calibrate the CPU in a few minutes, and compare models with their predictions.

It rewrites the overlay folder `specs-demo`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from lab.command import run_command
from roofline.core.units import seconds
from roofline.validate.loop.calibrate import run_calibrate
from roofline.validate.loop.whole_model import run_model

MODELS = ("qwen2.5-0.5b", "llama-3.2-1b")
"""Small models, run one after the other with as many layers as take two seconds."""


def main() -> int:
    """Measure, calibrate, score, and run the models; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.demo", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.5, help="minutes of measuring [1.5]")
    parser.add_argument(
        "--folder", type=Path, default=Path("specs-demo"), help="the overlay folder to write [specs-demo]"
    )
    parser.add_argument("--dtype", default="fp32", help="format of kernels and models [fp32]")
    start = time.monotonic()

    def show(lines: list[str]) -> None:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    def work(options: argparse.Namespace) -> str:
        shutil.rmtree(options.folder, ignore_errors=True)
        found = run_calibrate("cpu", options.minutes, folder=options.folder, dtypes=(options.dtype,))
        show([*found.lines, "", "Predicted and measured times of models:"])
        threads = found.measured.machine.hardware.units
        for model in MODELS:
            show(run_model(model, "cpu", options.folder, options.dtype, threads=threads, max_prefill=2.0).lines)
        return f"\nin {seconds(time.monotonic() - start, 2)}\n"

    return run_command(parser, work)


if __name__ == "__main__":
    sys.exit(main())
