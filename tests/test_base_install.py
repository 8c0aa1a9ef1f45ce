"""Commands that predict need the base install only; what an extra holds is absent here."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cases import sampled

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


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", RUN, *shlex.split(command)], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(
    "command",
    sampled(
        [
            "serve llama-3.1-8b --hw h100-sxm --concurrency 8",
            "size llama-3.1-8b --prompt 500 --generate 100 --hw h100-sxm --quality lossless",
            "advise llama-3.2-1b --hw h100-sxm --objective goodput --concurrency 8 --tpot 40ms",
            "compare 'llama-3.1-8b --hw h100-sxm' '--hw h200-sxm'",
        ],
        1,
    ),
)
def test_extras_are_not_imported(command: str) -> None:
    done = run(command)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    sampled(
        [
            ("plot roofs --hw h100-sxm", "report"),
            ("plot roofline llama-3.1-8b --hw h100-sxm", "report"),
            ("plot heatmap llama-3.1-8b --hw h100-sxm --over batch=1,8 --over prompt=64,128", "report"),
            ("plot frontier llama-3.1-8b --hw h100-sxm", "report"),
            ("plot measured nothing.csv", "report"),
            ("report llama-3.1-8b --hw h100-sxm", "report"),
            ("view llama-3.1-8b --hw h100-sxm", "view"),
            ("sweep llama-3.1-8b --hw h100-sxm --over batch=1,8 --output nothing.parquet", "fit"),
            ("validate measure", "validate"),
        ],
        1,
    ),
)
def test_an_extra_that_is_missing_is_named_in_one_sentence(command: str, extra: str) -> None:
    done = run(command)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("roofline: ")
    assert f"[{extra}]'" in done.stderr
