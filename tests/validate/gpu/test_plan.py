"""The plan of a visit to a GPU, with interpreted kernels and a made-up clock."""

from __future__ import annotations

import importlib.util
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the kernels need PyTorch")
if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parent))
import interpreted

from roofline.core.errors import RooflineError
from roofline.validate.gpu import plan, runner, shapes
from roofline.validate.gpu.plan import STEPS, Step
from roofline.validate.gpu.summary import rows_in
from roofline.validate.gpu.visit import NETWORK, PARQUET, ROWS, SUMMARY, VERDICTS, Visit, read_results
from roofline.validate.tables.rowfile import RowFile, case_of


@pytest.mark.slow
def test_the_whole_plan(tmp_path: Path) -> None:
    """Every step ends, every kernel is correct, every row can be read, and the summary names them."""
    clock, lines = interpreted.Clock(), list[str]()

    def passed() -> None:
        clock.now += 0.3

    device = interpreted.bench(clock=clock, find_device=lambda: interpreted.Interpreted(passed))
    results = runner.run(tmp_path, 8.0, lines.append, device)
    status = {result.step: result.status for result in results}
    assert list(status) == [step.name for step in STEPS]
    assert status.pop("fit") == "failed", "so few rows cannot be fitted to"
    assert set(status.values()) == {"done"}
    assert len(lines) == len(STEPS)
    verdicts = rows_in(tmp_path / VERDICTS)
    assert {row["status"] for row in verdicts} == {"correct", "refused"}
    assert {(row["op"], row["kernel"]) for row in verdicts if row["status"] == "correct"} >= {
        ("gemm", "triton"), ("moe", "triton"), ("attention_prefill", "triton"), ("attention_decode", "triton"),
        ("norm", "triton"),
    }  # fmt: skip
    rows = rows_in(tmp_path / ROWS)
    cases = [case_of(row) for row in rows]
    assert {case.op for case in cases} == {
        "gemm", "attention_prefill", "attention_decode", "moe", "norm", "activation", "rope", "softmax", "copy",
    }  # fmt: skip
    assert {row["kernel"] for row in rows} == {"torch", "triton", "torch_flash"}
    assert {"bf16", "fp8", "int8", "int4_wo"} <= {case.dtype for case in cases}
    assert len(rows_in(tmp_path / NETWORK)) == 2
    assert (tmp_path / PARQUET).is_file()
    text = (tmp_path / SUMMARY).read_text()
    assert all(f"| {step.name} |" in text for step in STEPS)
    assert read_results(tmp_path) == results


@pytest.mark.slow
def test_a_second_visit_keeps_rows(tmp_path: Path) -> None:
    steps = [step for step in STEPS if step.name in ("machine", "quantized")]
    for _ in range(2):
        runner.run(tmp_path, 8.0, lambda _: None, interpreted.bench(), steps)
    rows = rows_in(tmp_path / ROWS)
    assert len(rows) == len({tuple(row.items()) for row in rows}) > 5


@pytest.mark.slow
def test_rows_of_another_machine_and_foreign_files_are_refused(tmp_path: Path) -> None:
    steps = [step for step in STEPS if step.name in ("machine", "quantized")]
    runner.run(tmp_path, 8.0, lambda _: None, interpreted.bench(), steps)
    rows = (tmp_path / ROWS).read_text()
    (tmp_path / ROWS).write_text(rows.replace("h100-sxm", "h200-sxm"))
    with pytest.raises(RooflineError, match="rows of 'h200-sxm', this is 'h100-sxm'"):
        runner.run(tmp_path, 8.0, lambda _: None, interpreted.bench(), steps)
    for name in (ROWS, VERDICTS, NETWORK):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("a,b\n1,2\n")
        with pytest.raises(RooflineError, match="has other columns"):
            runner.run(folder, 8.0, lambda _: None, interpreted.bench(), steps)


def test_a_wrong_kernel_and_a_hostile_sentence_leave_a_summary(tmp_path: Path) -> None:
    def found(visit: Visit) -> plan.Found:
        with RowFile(visit.folder / VERDICTS, plan.VERDICT_COLUMNS) as file:
            for error in ("inf", "nan"):
                file.append({"op": "gemm", "kernel": "triton", "status": "wrong", "error": error, "allowed": "0"})
        return "<script>alert(1)</script> | two\nlines", {}

    runner.run(tmp_path, 8.0, lambda _: None, interpreted.bench(), [STEPS[0], Step("odd", "", 1, 9, found)])
    text = (tmp_path / SUMMARY).read_text()
    assert "<script>" not in text
    assert "| gemm, triton | 0 | 2 | 0 | inf% |" in text


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RooflineError, match="cannot write"):
            runner.run(folder, 8.0, lambda _: None, interpreted.bench())


def test_the_dry_run_is_within_its_minutes() -> None:
    lines = runner.dry_run(8.0)
    assert [line.split()[0] for line in lines] == [*(step.name for step in STEPS), "all"]
    assert sum(step.seconds for step in STEPS) <= 480
    assert int(runner.dry_run(4.0)[-1].split()[1]) <= 240
    for minutes in (0.0, 0.1, -1.0, float("nan"), 1e9):
        with pytest.raises(RooflineError, match=r"the minutes must be from 0.5 to 600"):
            runner.dry_run(minutes)


def spending(clock: interpreted.Clock, name: str, seconds: float, **options: Any) -> Step:
    """A step that takes `seconds`, or as long as it may."""

    def run(visit: Visit) -> plan.Found:
        clock.now += min(seconds, visit.left())
        return "spent", {}

    return Step(name, name, options.pop("should", seconds), options.pop("limit", 1e3), run, **options)


def test_time_goes_to_the_first_steps_and_the_last() -> None:
    """A step has its limit and no more, what is left goes to the one that takes the rest, the last has its time."""
    clock = interpreted.Clock()
    steps = [
        spending(clock, "machine", 10.0),
        spending(clock, "long", 500.0, should=50.0, limit=60.0),
        spending(clock, "rest", 1e9, should=10.0, limit=math.inf),
        spending(clock, "fit", 40.0),
    ]
    results = run_steps(steps, clock, 5.0)
    assert [result.seconds for result in results] == pytest.approx([10, 60, 190, 40])
    results = run_steps(steps, clock, 1.5)
    assert [result.status for result in results] == ["done", "done", "skipped", "done"]
    assert sum(result.seconds for result in results) <= 90 + 1e-6


def run_steps(steps: list[Step], clock: interpreted.Clock, minutes: float) -> list[Any]:
    """Steps on a clock of their own, in a folder that is thrown away."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return runner.run(Path(folder), minutes, lambda _: None, interpreted.bench(clock=clock), steps)


@pytest.mark.slow
def test_steps_that_fail_or_hang_leave_the_others(tmp_path: Path) -> None:
    def ends(_: Visit) -> plan.Found:
        os._exit(3)

    def raises(_: Visit) -> plan.Found:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore lines")

    def hangs(_: Visit) -> plan.Found:
        time.sleep(60)
        return "never", {}

    def fine(visit: Visit) -> plan.Found:
        return visit.facts["machine"]["hardware"], {}

    steps = [
        Step("machine", "", 1, 9, lambda _: ("found", {"hardware": "h100-sxm", "bundled": True, "title": "made up",
             "bandwidth": 1e12, "peaks": {}, "spec": "", "software": "made up"})),
        Step("ends", "", 1, 9, ends), Step("raises", "", 1, 9, raises), Step("hangs", "", 1, 1, hangs),
        Step("fine", "", 1, 9, fine),
    ]  # fmt: skip
    results = runner.run(tmp_path, 8.0, lambda _: None, interpreted.bench(isolated=True), steps)
    assert [result.status for result in results] == ["done", "failed", "failed", "stopped", "done"]
    assert "status 3" in results[1].sentence
    assert results[2].sentence == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert results[4].sentence == "h100-sxm"


def test_nothing_follows_a_device_that_is_not_there(tmp_path: Path) -> None:
    def missing(_: Visit) -> plan.Found:
        raise RooflineError("there is no CUDA device")

    steps = [Step("machine", "", 1, 9, missing), STEPS[3]]
    with pytest.raises(RooflineError, match="nothing was measured: there is no CUDA device"):
        runner.run(tmp_path / "new", 8.0, lambda _: None, interpreted.bench(), steps)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_any_moment_leaves_readable_files(tmp_path: Path, seed: int) -> None:
    """And no process that goes on writing."""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, str(Path(interpreted.__file__)), str(tmp_path), "0.02"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / ROWS).is_file() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(random.Random(seed).uniform(0.1, 1.5))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    time.sleep(1.5)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert all(case_of(row) for row in rows_in(tmp_path / ROWS))
    assert {row["status"] for row in rows_in(tmp_path / VERDICTS)} == {"correct", "refused"}
    assert [result.step for result in read_results(tmp_path)][:3] == ["machine", "compile", "correct"]
    assert "machine" in (tmp_path / SUMMARY).read_text()
    time.sleep(0.5)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == sizes


def test_shapes_of_the_plan() -> None:
    """No point twice, and every prefix of the GEMMs covers few rows and many."""
    for points in (shapes.gemms(), shapes.attention(), shapes.layers(), shapes.quantized()):
        assert len(points) == len(set(points))
    cases = list(dict.fromkeys(case for case, _ in shapes.gemms() if case.dtype == "bf16"))
    assert 55 <= len(cases) <= 65
    rows = [case["m"] for case in cases[:12]]
    assert min(rows) <= 16
    assert max(rows) >= 4096
    assert any(case["n"] % 16 or case["k"] % 16 for case in cases)
    small = [*shapes.gemms(interpreted.SMALL), *shapes.quantized(interpreted.SMALL)]
    assert all(case["m"] <= 16 and case["n"] <= 128 and case["k"] <= 128 for case, _ in small)
