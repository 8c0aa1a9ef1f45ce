"""How long every documented command takes, from start to end: `make bench`. Each should answer within two seconds.

Over all hardware `size` may take three seconds, and `advise --objective goodput` five.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.examples import ROOT, Command, blocks, furnish, pages

LONGER = (
    "advise llama-3.1-8b --hw h100-sxm --objective goodput",
    "choose disaggregation llama-3.1-70b --hw 8xh100-sxm --users 64",
    "choose hardware llama-3.1-8b --hw h100-sxm,l40s,mi300x,b200-sxm --users 64",
    "size llama-3.1-8b --users 64",
    "size llama-3.1-8b --rate 5 --prompt 2000 --generate 300 --ttft 2s --tpot 50ms",
)
"""Commands that search most."""


def documented() -> Iterator[Command]:
    """The commands of all pages that are run, but for those that measure the machine, each once."""
    found: dict[tuple[str, ...], Command] = {}
    for page in pages():
        for block in blocks(page):
            for command in block.commands if block.language in ("console", "sh", "bash") and not block.reason else ():
                if command.words[0] == "roofline" and "validate" not in command.words:
                    found.setdefault(command.words, command)
    yield from found.values()
    yield from (Command(("roofline", *text.split()), {}) for text in LONGER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("commands")
    furnish(found)
    return found


@pytest.mark.parametrize("command", list(documented()), ids=lambda command: " ".join(command.words[1:]))
def test_documented_command(benchmark: Any, command: Command, folder: Path) -> None:
    line = [sys.executable, "-m", "roofline", *command.words[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **command.environment}

    def run() -> None:
        subprocess.run(line, cwd=folder, env=environment, capture_output=True, check=False, timeout=120)

    benchmark.pedantic(run, rounds=1)
