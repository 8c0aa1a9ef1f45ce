"""Commands that predict need the base install only; what an extra holds is absent here."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE, *EXTRAS = (
    {re.split(r"[<>=\[; ]", entry)[0] for entry in entries}
    for entries in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
)
ABSENT = sorted({name.replace("-", "_") for name in set().union(*EXTRAS) - BASE})

RUN = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
from roofline.cli import main
main()
"""


@pytest.mark.parametrize(
    "command",
    [
        "serve llama-3.1-8b --hw h100-sxm --concurrency 8",
        "size llama-3.1-8b --prompt 500 --generate 100 --hw h100-sxm --quality lossless",
        "advise llama-3.2-1b --hw h100-sxm --objective goodput --concurrency 8 --tpot 40ms",
        "compare 'llama-3.1-8b --hw h100-sxm' '--hw h200-sxm'",
    ],
)
def test_extras_are_not_imported(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", RUN, *shlex.split(command)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
