"""Text of files and paths on a terminal: no name moves the cursor, sets a title or ends in a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from roofline.specs.modelspec import load_model
from roofline.specs.written import to_spec
from tests.conftest import Run
from tests.paths import ROOT

ESCAPE = "\x1b]0;owned\x07\x9b31m\u202e"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with control characters in the name of a block, in a file whose name is not UTF-8 and has some, too."""
    spec = to_spec(load_model("llama-3.2-1b"))
    blocks = {f"odd {ESCAPE}": {}, "even": {"mlp": {"width": 4096}}}
    spec |= {"layers": {"count": 4, "pattern": list(blocks)}, "blocks": blocks, "parameters": None}
    path = tmp_path / "\udcff\x1b[2J\x9b.yaml"
    path.write_text(yaml.safe_dump(spec), "utf-8")
    return path


def controls(text: str) -> set[str]:
    return {char for char in text if not char.isprintable()} - {"\n"}


@pytest.mark.parametrize(
    "command",
    [
        *(f"analyze MODEL --hw h100-sxm --format {format}" for format in ("table", "json", "csv", "markdown")),
        *(f"sweep --over model=MODEL,llama-3.2-1b --hw a6000 --over batch=1 --format {f}" for f in ("csv", "jsonl")),
        "sweep --over model=MODEL,llama-3.2-1b --hw a6000 --over batch=1",
        "sweep --over model=MODEL,llama-3.2-1b --hw a6000 --over batch=1 -o OUTPUT.parquet",
        "sweep --over model=MODEL,llama-3.2-1b --hw a6000 --over batch=1 -o OUTPUT.parquet --resume",
        "explain ttft MODEL --hw a6000",
        "explain ttft MODEL --hw a6000 --format json",
        "specs check MODEL",
        "specs show MODEL",
        "plot batch MODEL --hw a6000 -o OUTPUT.svg",
        pytest.param("report MODEL --hw a6000 --no-advice -o OUTPUT.md", marks=pytest.mark.slow),
        "analyze MODEL.absent.yaml --hw a6000",
        "analyze MODEL --hw MODEL",
    ],
)
def test_control_characters_are_shown(run: Run, model: Path, command: str, tmp_path: Path) -> None:
    output = tmp_path / "out\x1b[2J\udcfe\x9b"
    words = (word.replace("MODEL", str(model)).replace("OUTPUT", str(output)) for word in command.split(" "))
    status, out, err = run(*words)
    assert status == (2 if "absent" in command or command.endswith("--hw MODEL") else 0), err
    assert not controls(out)
    assert not controls(err)
    for path in tmp_path.glob("*.md"):
        assert not controls(path.read_text("utf-8"))


@pytest.mark.slow
def test_a_closed_output_is_told() -> None:
    command = f"{sys.executable} -m roofline sweep llama-3.2-1b --hw a6000 --over batch=1 --format csv >&-"
    found = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "roofline: standard output is closed: name a file with --output\n"


@pytest.mark.parametrize(
    "command",
    ["validate score NAME", "report NAME.yaml --hw a6000", "plot measured NAME.json", "sweep NAME.yaml --over batch=1"],
)
def test_long_names_are_not_taken_for_outputs(run: Run, command: str) -> None:
    status, out, err = run(*command.replace("NAME", "n" * 300).split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("roofline: 'nnn")
    assert "ile name too long" in err
    assert os.strerror(36) in err
