"""`python -m roofline.validate.demo`: the CPU calibrated in a few minutes, and a model beside its prediction.

It writes the overlay folder `specs-demo`, anew every time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from roofline.core.errors import RooflineError
from roofline.core.units import seconds
from roofline.validate.loop import calibrated, model_run

MODELS = ("qwen2.5-0.5b", "llama-3.2-1b")
"""Small models, run one after the other with as many layers as are quick."""


def main() -> int:
    """Measure, calibrate, score, and run the models; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m roofline.validate.demo", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.5, help="for the measurements [1.5]")
    parser.add_argument("--folder", type=Path, default=Path("specs-demo"), help="what is written [specs-demo]")
    parser.add_argument("--dtype", default="fp32", help="format of kernels and models [fp32]")
    asked = parser.parse_args()
    start = time.monotonic()

    def say(lines: list[str]) -> None:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    try:
        shutil.rmtree(asked.folder, ignore_errors=True)
        found = calibrated("cpu", asked.minutes, folder=asked.folder, dtypes=(asked.dtype,))
        say([*found.lines, "", "Whole models beside their predictions:"])
        threads = found.measured.machine.hardware.units
        for model in MODELS:
            say(model_run(model, "cpu", asked.folder, asked.dtype, threads=threads, longest=2.0).lines)
    except RooflineError as error:
        sys.stderr.write(f"roofline: {error}\n")
        return 2
    say(["", f"in {seconds(time.monotonic() - start, 2)}"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
