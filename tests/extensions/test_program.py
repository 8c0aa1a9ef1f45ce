"""A script that registers what it needs and runs the command line, in this process and in those of a sweep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extensions.conftest import put
from tests.extensions.test_techniques import OURS
from tests.paths import ROOT

SCRIPT = f"""
BITS = 6
{OURS}
from roofline.cli import main
from roofline.techniques import register

register(ENTRY, six_bit_cache)

if __name__ == "__main__":
    main()
"""


def run(script: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_command_knows_what_a_script_registered(tmp_path: Path) -> None:
    script = put(tmp_path / "ours.py", SCRIPT)
    assert "KV cache in six bits" in run(script, "techniques", "six-bit-cache")
    sweep = ("sweep", "llama-3.2-1b", "--hw", "l40s", "--over", "with=none,six-bit-cache", "--over", "batch=1,2,4")
    alone = run(script, *sweep)
    assert "six-bit-cache" in alone
    assert run(script, *sweep, "--workers", "2") == alone
