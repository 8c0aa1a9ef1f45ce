"""The workflow of docs/howto/ci.md: it has what GitHub Actions want, and each of its commands does its part."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct

from lab.examples import ROOT, Block, blocks
from tests.cases import sampled
from tests.conftest import Run

PAGE = {block.title: block for block in blocks(ROOT / "docs" / "howto" / "ci.md") if block.title}
ANCHORS, WORKFLOW = "benchmarks/anchors.yaml", ".github/workflows/predictions.yml"
PREDICTIONS = Path("benchmarks/golden.yaml")
VALUES = {"github.event.number": "7", "github.token": "secret"}
"""What stands for the expressions of a pull request."""

BASH = shutil.which("bash")


def text(block: Block) -> str:
    return "\n".join(block.lines) + "\n"


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    read: dict[Any, Any] = yaml.safe_load(text(PAGE[WORKFLOW]))
    return {{True: "on"}.get(key, key): value for key, value in read.items()}  # YAML 1.1 takes `on` for yes


def steps(workflow: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = workflow["jobs"]["check"]["steps"]
    return found


def test_the_workflow_has_the_required_keys(workflow: dict[str, Any]) -> None:
    assert set(workflow) <= {"name", "on", "permissions", "env", "jobs"}
    assert workflow["on"] == "pull_request"
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    for job in workflow["jobs"].values():
        assert set(job) <= {"runs-on", "env", "steps"}
        assert job["runs-on"] == "ubuntu-latest"
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert set(step) <= {"name", "id", "if", "env", "uses", "with", "run", "continue-on-error"}
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "a/b@v1"))
    assert next(step["uses"].partition("@")[0] for step in steps(workflow) if "uses" in step) == "actions/checkout"


def test_referenced_steps_exist(workflow: dict[str, Any]) -> None:
    written = text(PAGE[WORKFLOW])
    assert set(re.findall(r"steps\.(\w+)\.", written)) == {step["id"] for step in steps(workflow) if "id" in step}
    assert set(re.findall(r"\$\{\{ (.+?) \}\}", written)) == set(VALUES)


class Outcome(Struct, frozen=True):
    """How a job ended: the exit statuses of its steps that ran, in order, the calls of other programs, its summary."""

    statuses: list[int]
    calls: list[str]
    summary: str


def do(workflow: Mapping[str, Any], folder: Path) -> Outcome:
    """Runs the job's `run` steps in a folder as GitHub does, but for programs that change more than the folder."""
    programs, calls, summary = folder / "bin", folder / "calls", folder / "summary"
    programs.mkdir()
    (programs / "roofline").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "from roofline.cli import main; main()" "$@"\n'
    )
    for name in ("pip", "gh"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "{calls}"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    job = workflow["jobs"]["check"]
    path = os.pathsep.join((str(programs), str(Path(sys.executable).parent), os.environ["PATH"]))
    given = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, "GITHUB_STEP_SUMMARY": str(summary)}
    failed, outcomes, statuses = False, dict[str, str](), []
    for step in job["steps"]:
        wanted = {
            None: not failed,
            "always()": True,
            "always() && github.event.pull_request.head.repo.full_name == github.repository": True,
            "steps.check.outcome == 'failure'": not failed and outcomes.get("check") == "failure",
        }
        if "run" not in step or not wanted[step.get("if")]:
            continue
        environment = {name: filled(value) for name, value in {**job["env"], **step.get("env", {})}.items()}
        done = subprocess.run(
            [BASH or "bash", "-e", "-c", filled(step["run"])],
            cwd=folder,
            env=given | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        statuses.append(done.returncode)
        outcomes[step.get("id", "")] = "failure" if done.returncode else "success"
        failed = failed or (done.returncode != 0 and not step.get("continue-on-error"))
    return Outcome(statuses, calls.read_text().splitlines(), summary.read_text(encoding="utf-8"))


def filled(value: str) -> str:
    """A text with the values of its expressions."""
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: VALUES[found[1]], value)


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize("moved", [False, True], ids=["as before", "moved"])
def test_the_commands_of_the_workflow_run(
    workflow: dict[str, Any], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    monkeypatch.chdir(tmp_path)
    Path(ANCHORS).parent.mkdir(parents=True)
    Path(ANCHORS).write_text(text(PAGE[ANCHORS]), encoding="utf-8")
    where = ("--anchors", ANCHORS, "--predictions", PREDICTIONS)
    assert run("validate", "check", *where, "--accept")[0] == 0
    if moved:
        accepted = PREDICTIONS.read_text(encoding="utf-8")
        before = re.sub(r"(?<=ours\.ttft: )(.*mid: )[\d.]+", r"\g<1>1.4", accepted)
        assert before != accepted
        PREDICTIONS.write_text(before, encoding="utf-8")
    outcome = do(workflow, tmp_path)
    assert outcome.statuses == ([0, 1, 0, 0, 1] if moved else [0, 0, 0, 0])
    assert outcome.calls == [
        "pip install llm-roofline[report]",
        "gh pr comment 7 --body-file comment.md --edit-last --create-if-none",
    ]
    comment = (tmp_path / "comment.md").read_text(encoding="utf-8")
    assert outcome.summary == comment
    assert ("ours.ttft" in comment.partition("<details>")[0]) == moved
    (kept,) = (step["with"]["path"] for step in steps(workflow) if step.get("uses", "").startswith("actions/upload"))
    assert (tmp_path / kept).read_bytes().startswith(b"<?xml")


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize("moved", sampled([False, True], [True]), ids=["as before", "moved"])
def test_the_action_fails_where_a_prediction_moved(run: Run, tmp_path: Path, moved: bool) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    (anchors, predictions) = (tmp_path / name for name in ("anchors.yaml", "golden.yaml"))
    anchors.write_text(text(PAGE[ANCHORS]), encoding="utf-8")
    assert run("validate", "check", "--anchors", anchors, "--predictions", predictions, "--accept")[0] == 0
    if moved:
        accepted = predictions.read_text(encoding="utf-8")
        predictions.write_text(re.sub(r"(?<=ours\.ttft: )(.*mid: )[\d.]+", r"\g<1>1.4", accepted), encoding="utf-8")
    step = next(step for step in action["runs"]["steps"] if step.get("id") == "check")
    program = f'roofline() {{ "{sys.executable}" -c "from roofline.cli import main; main()" "$@"; }}\n'
    given = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    named = {"ANCHORS": str(anchors), "PREDICTIONS": str(predictions), "PYTHONPATH": str(ROOT)}
    command = [BASH or "bash", "-ec", program + step["run"]]
    subprocess.run(command, cwd=tmp_path, env=os.environ | given | named, check=True)
    assert (tmp_path / "output").read_text() == f"status={int(moved)}\n"
    summary = (tmp_path / "summary").read_text(encoding="utf-8")
    assert ("ours.ttft" in summary.partition("<details>")[0]) == moved
    assert set(step["env"]) == {"ANCHORS", "PREDICTIONS"}
