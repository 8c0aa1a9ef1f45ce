"""What is written: whole or not at all, over no input, and after a question where it would take for ever."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import yaml

from roofline.core import files
from roofline.core.errors import RooflineError
from roofline.core.files import write_together
from roofline.whatif import executors
from roofline.whatif.sweeps import LostWorkersError
from tests.cases import sampled
from tests.conftest import Run
from tests.paths import ROOT

INTO_AN_INPUT = [
    "analyze own.yaml --hw a6000 --format json -o own.yaml",
    "analyze llama-3.2-1b --hw hw.yaml -o hw.yaml",
    "sweep own.yaml --hw a6000 --over batch=1,2 -o own.yaml",
    "sweep own.yaml --hw a6000 --over batch=1,2 -o link.yaml --resume",
    "sweep study.yaml --hw a6000 -o study.yaml",
    "advise own.yaml --hw a6000 -o own.yaml",
    "specs import config.json -o config.json",
    "validate score rows.csv --hw epyc-9654 -o rows.csv",
    "validate server http://127.0.0.1:9 --model llama-3.2-1b --hw a6000 --engine e.yaml -o new.csv --fit e.yaml",
]


@pytest.mark.parametrize("command", sampled(INTO_AN_INPUT, 3))
def test_an_input_is_not_overwritten(run: Run, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "modelspecs" / "llama-3.2-1b.yaml", "own.yaml")
    shutil.copy(ROOT / "hwspecs" / "a6000.yaml", "hw.yaml")
    shutil.copy(ROOT / "validate" / "measurements" / "epyc-2-threads.csv", "rows.csv")
    shutil.copy(sorted((ROOT / "tests" / "data" / "configs").glob("llama*.json"))[0], "config.json")
    shutil.copy(ROOT / "roofline" / "specs" / "engines" / "ideal.yaml", "e.yaml")
    Path("study.yaml").write_text(yaml.safe_dump({"model": "llama-3.2-1b", "over": {"batch": [1, 2]}}))
    Path("link.yaml").symlink_to("own.yaml")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    status, out, err = run(*command.split())
    assert (status, out) == (2, "")
    assert err.endswith(("it is an input of this command\n", "write the fitted one to another file (--fit)\n"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def start(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command line of a shell, in which `roofline` is the program."""
    command = command.replace("roofline", f"{sys.executable} -m roofline")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)


SWEEP = "roofline sweep llama-3.2-1b --hw a6000 --over batch=1,2 --format csv"


def test_what_a_link_points_to_is_replaced_and_not_the_link(run: Run, tmp_path: Path) -> None:
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to(real.name)
    assert run(*SWEEP.split()[1:], "-o", link, "--resume")[0] == 0
    assert link.is_symlink()
    assert real.read_text().startswith("batch,")


@pytest.mark.slow
def test_our_own_output_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    Path(tmp_path / "out").symlink_to("/dev/stdout")
    assert start(f"{SWEEP} -o out >> log", tmp_path).returncode == 0
    assert log.read_text().startswith("before\nbatch,")
    ended = start(f"{SWEEP} -o out --resume > other", tmp_path)
    assert (ended.returncode, ended.stderr) == (2, "roofline: only a file can be resumed, and 'out' is not a file\n")
    assert Path(tmp_path / "out").is_symlink()


@pytest.mark.slow
def test_an_answer_to_a_closed_output_is_no_success(tmp_path: Path) -> None:
    ended = start("roofline --version >&-", tmp_path)
    assert (ended.returncode, ended.stderr) == (2, "roofline: standard output is closed: name a file with --output\n")
    assert start(f"{SWEEP} -o answer.csv >&-", tmp_path).returncode == 0
    assert (tmp_path / "answer.csv").exists()


def test_files_written_together_are_all_old_or_all_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that is full at the second."""
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_text("old")
    write_together(dict.fromkeys(paths, b"new"))
    assert [path.read_text() for path in paths] == ["new"] * 3
    whole_file = files.whole_file

    class Full:
        def __init__(self, file: BinaryIO) -> None:
            self.write, self.flush = file.write, self._fail

        def _fail(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Opened:
        def __init__(self, path: Path) -> None:
            self.inner, self.fails = whole_file(path), path.name == "b"

        def __enter__(self) -> Any:
            file = self.inner.__enter__()
            return Full(file) if self.fails else file

        def __exit__(self, *error: Any) -> Any:
            return self.inner.__exit__(*error)

    monkeypatch.setattr(files, "whole_file", Opened)
    with pytest.raises(RooflineError, match="No space left"):
        write_together(dict.fromkeys(paths, b"newer"))
    assert [path.read_text() for path in paths] == ["new"] * 3
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
def test_a_report_on_a_full_disk_leaves_no_folder(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from roofline.reports.pages import write

    def full(contents: Any) -> None:
        raise RooflineError(f"cannot write {len(contents)} files: No space left on device")

    monkeypatch.setattr(write, "write_together", full)
    status, _, err = run("report", "llama-3.2-1b", "--hw", "a6000", "--no-advice", "-o", tmp_path / "r.md")
    assert (status, "No space left" in err) == (2, True)
    assert list(tmp_path.iterdir()) == []


ENDLESS = ("sweep", "llama-3.2-1b", "--hw", "a6000", *("--over", "batch=1:100000", "--over", "prompt=1:100000"))


def test_an_endless_sweep_asks_first(run: Run, tmp_path: Path) -> None:
    status, out, err = run(*ENDLESS, "-o", tmp_path / "a.csv")
    assert (status, out) == (2, "")
    assert "has 10,000,000,000 points, more than 1,000,000,000: shorten an axis, or confirm with --yes" in err
    assert list(tmp_path.iterdir()) == []


# Clusters that lose their workers


class Scheduler:
    """A cluster with so many workers at each look, whose calls never end."""

    def __init__(self, *workers: int) -> None:
        self.workers = list(workers)

    def submit(self, *_: object) -> Scheduler:
        return self

    def result(self, timeout: float) -> None:
        assert timeout == executors.PATIENCE / 2
        if not self.workers:
            return
        raise TimeoutError

    def cancel(self) -> None:
        pass

    def nthreads(self) -> dict[str, int]:
        return {str(index): 1 for index in range(self.workers.pop(0))}


def test_a_cluster_without_workers_is_told() -> None:
    lost = Scheduler(2, 2, 0, 0)
    with pytest.raises(LostWorkersError, match="no workers left"):
        executors._Watchful(lost.submit(int), lost).result()
    late = Scheduler(0, 1, 1)
    executors._Watchful(late.submit(int), late).result()


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ((), "with --output and --resume, a sweep keeps its complete chunks"),
        (("-o", "a.csv"), "with --resume, a sweep keeps its complete chunks"),
        (("-o", "a.csv", "--resume"), "the same command continues from its complete chunks"),
    ],
)
@pytest.mark.parametrize("end", [KeyboardInterrupt(), LostWorkersError("the workers were lost (X)")])
def test_what_an_interrupted_sweep_keeps_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], hint: str, end: BaseException
) -> None:
    from roofline.reports.tables import sweep

    def interrupted(*_: object, **__: object) -> None:
        raise end

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "answers", interrupted)
    status, _, err = run("sweep", "llama-3.2-1b", "--hw", "a6000", "--over", "batch=1,2", *options)
    if isinstance(end, KeyboardInterrupt):
        assert (status, err) == (130, f"roofline: interrupted; {hint}\n")
    else:
        assert (status, err) == (2, f"roofline: the workers were lost (X); {hint}\n")
