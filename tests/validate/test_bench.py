"""Measuring: interrupted files, resumed runs, and a synthetic machine whose constants the fit recovers."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from roofline.core.errors import RooflineError, SpecError, UnknownNameError
from roofline.specs.hardware import load_hardware
from roofline.timing.chains import load_calibration
from roofline.timing.intervals.kernels import Residuals
from roofline.validate.fit.calibrate import log_errors
from roofline.validate.kernels import benchmark
from roofline.validate.kernels.work import Case
from roofline.validate.loop import calibrate as calibrating
from roofline.validate.measure import bench as measuring
from roofline.validate.measure import device as devices
from roofline.validate.measure.bench import Outcome, measure, points_of
from roofline.validate.measure.design import Limits, design
from roofline.validate.measure.device import Cpu, Cuda, Sample, open_device
from roofline.validate.tables.rowfile import COLUMNS, RowFile, as_line, case_of, read_rows, repaired
from roofline.validate.tables.rows import read_measurements
from tests.validate.fakes import H100, FakeBenchmark, FakeDevice, fake_benchmarks, true_time

HEADER = as_line(COLUMNS)
LIMITS = Limits(memory=20e9, flops=2e13, traffic=2e10)
GEMM = Case("gemm", {"dtype": "bf16", "m": 8, "n": 1024, "k": 2048})


def taken(path: Path, cases: list[Case], seconds: float = 60.0, **options: Any) -> Outcome:
    device = options.pop("device", FakeDevice())
    points = points_of(cases, options.pop("known", fake_benchmarks()), device, ("torch",))
    with RowFile(path) as file:
        return measure(points, seconds, device, "h100-sxm", file)


# --- the constants of a synthetic machine are recovered ---


@pytest.mark.slow
def test_fifty_points_of_each_kernel_recover_the_machine(tmp_path: Path) -> None:
    """From 50 points with 5% noise, predictions of other shapes are within 6% on average (attention: 10%)."""
    ops = ("gemm", "attention_prefill", "attention_decode", "copy")
    cases = [case for op in ops for case in design({op: ("bf16",)}, LIMITS, 50)[:50]]
    path = tmp_path / "rows.csv"
    assert taken(path, cases).measured == len(cases)
    calibration, after, before, overall, failed = calibrating.fitted_and_scored(read_measurements(path), H100)
    assert failed == []
    assert overall is not None
    assert overall.median_ape < 0.08
    assert {group["op"] for group in after} == set(ops)
    assert np.mean([group.mape for group in before]) > overall.mape
    others = [case for case in design(dict.fromkeys(ops, ("bf16",)), LIMITS, 300) if case not in set(cases)]
    for op, reach in (("gemm", 0.06), ("attention_prefill", 0.10), ("attention_decode", 0.10), ("copy", 0.05)):
        mine = [case for case in others if case.op == op]
        assert len(mine) > 80
        assert float(np.mean([error(calibration, case) for case in mine])) < reach


def test_own_constants_are_kept_only_where_they_predict_better(tmp_path: Path) -> None:
    """Than inherited ones do, on rows that a fit has not seen: which is what its residuals are of."""
    path = tmp_path / "rows.csv"
    taken(path, design({"gemm": ("bf16",)}, LIMITS, 50)[:50])
    (part,) = read_measurements(path)
    inherited = load_calibration(H100)
    match = inherited.find("gemm", "bf16")
    assert match is not None
    off = np.exp(np.percentile(-log_errors(part, H100, match.fit.parameters), (10, 90)))
    reach = max(1 / off[0], off[1])
    for factor in (0.9, 1.1):
        spread = Residuals(1 / (factor * reach), 1.0, factor * reach, 50)
        own = replace(match.fit, residuals={"all": spread})
        said = calibrating._worse(own, part, H100, inherited)
        if factor < 1:
            assert said == ""
        else:
            assert said == (
                f"the 80% interval of gemm in bf16 is a factor of {reach:.2f} with them,"
                f" {1.1 * reach:.2f} with fitted ones"
            )


def error(calibration: Any, case: Case) -> float:
    columns = {name: value if isinstance(value, str) else float(value) for name, value in case.columns.items()}
    expected = calibration.expected(case.op, {**columns, "op": case.op}, H100)
    return abs(float(expected.mid) / true_time(case) - 1)


# --- files ---


def rows_of(path: Path) -> int:
    return sum(len(part) for part in read_measurements(path))


def test_a_file_is_read_by_the_fit_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "rows.csv"
    cases = design(dict.fromkeys(("gemm", "attention_decode", "norm"), ("bf16",)), LIMITS, 20)
    first = taken(path, cases[:30])
    assert (first.measured, first.before, first.left) == (30, 0, 0)
    assert rows_of(path) == 30
    again = taken(path, cases)
    assert (again.measured, again.before) == (len(cases) - 30, 30)
    row = read_rows(path)[0]
    assert case_of(row) == cases[0]
    assert float(row["latency_p10_us"]) <= float(row["latency_us"]) <= float(row["latency_p90_us"])
    assert (row["kernel"], row["cache"], row["driver"], row["clock_mhz"]) == ("torch", "cold", "1.0", "1980")
    assert all(row[name] for name in ("software", "revision", "date", "temperature_c", "samples", "timing"))
    assert {part.op: part.formats().keys() for part in read_measurements(path)}["gemm"] == {"bf16"}


@pytest.mark.slow
def test_cut_off_at_any_byte_it_is_readable_and_resumable(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    cases = design({"gemm": ("bf16",)}, LIMITS, 6)[:6]
    taken(path, cases)
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for length in range(start, len(whole)):
        path.write_bytes(whole[:length])
        assert len(read_rows(path)) == 5
        with RowFile(path) as file:
            assert len(file.rows) == 5
        assert path.read_bytes() == whole[:start]
        if length % 9 == 0:
            assert rows_of(path) == 5
    assert taken(path, cases).measured == 1
    for length in range(len(HEADER)):
        path.write_bytes(whole[:length])
        with RowFile(path) as file:
            assert file.rows == []
        assert path.read_bytes() == HEADER


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    """Two runs once interleaved their rows: 36 lines for 63, then unreadable."""
    path = tmp_path / "rows.csv"
    cases = design({"gemm": ("bf16",)}, LIMITS, 6)[:6]
    with RowFile(path):
        with pytest.raises(RooflineError, match="another process is writing"):
            taken(path, cases)
        assert path.read_bytes() == HEADER
    assert taken(path, cases).measured == 6


def test_a_last_line_of_garbage_is_removed_and_one_before_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    taken(path, design({"gemm": ("bf16",)}, LIMITS, 3)[:3])
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0\0\0\n")
    assert len(read_rows(path)) == 3
    path.write_bytes(HEADER + b"1,2\n" + whole[len(HEADER) :])
    with pytest.raises(SpecError, match="has 2 cells in row 1"):
        read_rows(path)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(SpecError, match="name a new file"):
        RowFile(path)
    assert path.read_text() == "a,b\n1,2\n"
    with pytest.raises(RooflineError, match="cannot write"):
        RowFile(tmp_path)


WRITER = """
import sys
from pathlib import Path
from roofline.validate.tables.rowfile import RowFile
with RowFile(Path(sys.argv[1])) as file:
    for number in range(1, 10**6):
        file.append({"hardware": "x", "op": "gemm", "dtype": "bf16", "m": number, "n": 64, "k": 64,
                     "latency_us": 5, "kernel": "torch", "cache": "cold"})
"""


def test_killed_it_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=Path(__file__).parents[2])
    try:
        deadline = time.monotonic() + 30
        while not (path.exists() and path.stat().st_size > 20_000) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    before = path.read_bytes()
    with RowFile(path) as file:
        count = len(file.rows)
        file.append({"hardware": "x", "op": "gemm", "dtype": "bf16", "m": 10**7, "n": 64, "k": 64, "latency_us": 5})
    assert count > 50
    assert rows_of(path) == count + 1
    assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_sentence() -> None:
    with pytest.raises(RooflineError, match="cannot write '/dev/full': no space left on device"):
        RowFile(Path("/dev/full"))


def test_a_disk_that_fills_keeps_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    cases = design({"gemm": ("bf16",)}, LIMITS, 6)[:6]
    taken(path, cases[:3])
    real, calls = os.write, []

    def full(file: int, line: bytes) -> int:
        calls.append(line)
        if len(calls) == 2:
            return real(file, line[: len(line) // 2])
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        return real(file, line)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RooflineError, match=r"no space left on device; it keeps the 4 rows before this one"):
        taken(path, cases)
    monkeypatch.undo()
    assert rows_of(path) == 4
    assert path.read_bytes().endswith(b"\n")


def test_a_line_is_a_line_whatever_is_in_it() -> None:
    line = as_line(["a\nb", 'say "x", y', 3])
    assert line.count(b"\n") == 1
    content = HEADER + as_line(["x\r\n y"] * len(COLUMNS))
    assert repaired(content, "f") == (len(content), [dict.fromkeys(COLUMNS, "x y")])


# --- what goes wrong while it runs ---


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"), "ran out of memory"),
        (MemoryError(), "ran out of memory"),
        (NotImplementedError('"addmm" not implemented for Float8'), '"addmm" not implemented for Float8'),
        (Exception("CompilationError: at 3:4\n lots\n of lines"), "CompilationError: at 3:4"),
    ],
)
def test_failed_measurements_are_skipped(tmp_path: Path, error: Exception, reason: str) -> None:
    cases = design({"gemm": ("bf16", "fp8")}, LIMITS, 5)
    outcome = taken(tmp_path / "rows.csv", cases, known=fake_benchmarks(error))
    assert outcome.measured == sum(case.dtype == "bf16" for case in cases)
    assert outcome.refused == {f"gemm in fp8, torch: {reason}": len(cases) - outcome.measured}


def test_a_format_without_a_kernel_and_a_case_that_is_too_large_are_left_out(tmp_path: Path) -> None:
    strange = Case("gemm", {"dtype": "nvfp4", "m": 8, "n": 1024, "k": 2048})
    large = Case("gemm", {"dtype": "bf16", "m": 8, "n": 10**6, "k": 10**6})
    outcome = taken(tmp_path / "rows.csv", [strange, large, GEMM])
    assert outcome.measured == 1
    assert sorted(outcome.refused) == [
        "gemm in bf16, torch: needs more memory than is free",
        "gemm in nvfp4, torch: there is no kernel in this format",
    ]
    assert "skipped (1): gemm in nvfp4, torch: there is no kernel in this format" in "\n".join(
        measuring.outcome_lines(outcome, tmp_path / "rows.csv")
    )


def test_a_device_that_stops_working_ends_the_run_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    cases = [GEMM, Case("gemm", {"dtype": "fp8", "m": 8, "n": 1024, "k": 2048})]
    broken = RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors ...")
    with pytest.raises(RooflineError, match=r"the device stopped working at gemm dtype=fp8.*run again") as caught:
        taken(path, cases, known=fake_benchmarks(broken))
    assert "\n" not in str(caught.value)
    assert rows_of(path) == 1


def test_time_that_is_up_leaves_the_rest(tmp_path: Path) -> None:
    cases = design({"gemm": ("bf16",)}, LIMITS, 5)
    outcome = taken(tmp_path / "rows.csv", cases, seconds=0.0)
    assert (outcome.measured, outcome.left) == (0, len(cases))


def test_unsupported_formats_of_a_device_have_a_reason() -> None:
    chosen, refused = measuring.formats_for(FakeDevice(), load_hardware("a100-sxm-80gb"), fake_benchmarks())
    assert set(chosen["gemm"]) == {"bf16"}
    assert "gemm in fp8: a100-sxm-80gb has no fp8" in refused
    with pytest.raises(RooflineError, match="has none of the requested formats"):
        measuring.formats_for(FakeDevice(), load_hardware("a100-sxm-80gb"), fake_benchmarks(), ("fp8",))


def test_caches_in_another_format_are_offered_where_the_card_has_it(tmp_path: Path) -> None:
    """By the kernel that reads them: PyTorch's attention does not, though calibrations want its rows."""
    known = fake_benchmarks()
    known["attention_decode"] = Cached("attention_decode")
    chosen, refused = measuring.formats_for(FakeDevice(), H100, known)
    assert chosen["attention_decode"] == ("bf16", "fp8", "bf16/fp8")
    assert measuring.formats_for(FakeDevice(), H100, known, ("bf16/fp8",))[0] == {"attention_decode": ("bf16/fp8",)}
    chosen, refused = measuring.formats_for(FakeDevice(), load_hardware("a100-sxm-80gb"), known)
    assert chosen["attention_decode"] == ("bf16",)
    assert "attention_decode in bf16/fp8: a100-sxm-80gb has no fp8" in refused
    cases = design({"attention_decode": ("bf16", "bf16/fp8")}, LIMITS, 4)
    path = tmp_path / "rows.csv"
    with RowFile(path) as file:
        measure(points_of(cases, known, FakeDevice(), preferred="torch"), 60.0, FakeDevice(), "h100-sxm", file)
    taken = {(row["dtype"], row["kv_dtype"], row["kernel"]) for row in read_rows(path)}
    assert taken == {("bf16", "bf16", "torch"), ("bf16", "fp8", "triton")}


class Cached(FakeBenchmark):
    """Reads an fp8 cache by one of its backends."""

    mixed = ("bf16/fp8",)

    def refusal(self, case: Case, backend: str, device: str) -> str | None:
        return (
            "no fp8 cache"
            if backend == "torch" and case.format == "bf16/fp8"
            else super().refusal(case, backend, device)
        )


# --- devices ---


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


def test_no_torch_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch")
    with pytest.raises(RooflineError, match=r"needs PyTorch: .*pip install '.*\[validate\]'"):
        open_device("cuda")


def test_no_gpu_is_one_sentence() -> None:
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(
        RooflineError, match=r"there is no CUDA device that PyTorch can use.*the device cpu measures the CPU"
    ):
        open_device("cuda")
    with pytest.raises(UnknownNameError, match="unknown device 'tpu'"):
        open_device("tpu")


def test_no_triton_leaves_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "triton")
    monkeypatch.setattr("roofline.validate.kernels.tools.find_spec", lambda name: None)
    gemm = benchmark.benchmarks("cuda")["gemm"]
    case = Case("gemm", {"dtype": "fp32", "m": 1, "n": 128, "k": 128})
    assert gemm.refusal(case, "triton", "cpu") == "triton is not installed"
    assert gemm.refusal(case, "torch", "cpu") is None


@pytest.mark.slow
def test_the_simulator_needs_neither_torch_nor_triton() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "import roofline.cli.validate, roofline.validate.loop\n"
        "from roofline.validate.kernels import benchmark\n"
        "from roofline.validate.measure import decoder, machine\n"
        "sys.argv = ['roofline', 'analyze', 'llama-3.1-8b', '--hw', 'h100-sxm', '--format', 'json']\n"
        "roofline.cli.main()"
    )
    root = Path(__file__).parents[2]
    answer = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("{")


def test_another_process_on_the_card_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "torch_module", lambda: FakeTorch())
    monkeypatch.setattr(devices, "nvidia_smi", lambda *query: ["4242", str(os.getpid()), "[Not Found]"])
    with pytest.raises(RooflineError, match=r"other programs use the GPU \(process 4242\)"):
        open_device("cuda")
    monkeypatch.setattr(devices, "nvidia_smi", lambda *query: [])
    assert isinstance(open_device("cuda"), Cuda)


class FakeTorch:
    """As much of PyTorch as timing on a card needs; time passes as the calls say."""

    __version__ = "2.13.0"
    float32 = "float32"
    version = SimpleNamespace(cuda="13.0", hip=None)

    def __init__(self, capturable: bool = True) -> None:
        self.now = 0.0
        self.capturable = capturable
        self.capturing: list[float] | None = None
        self.evicted = self.replays = 0
        self.cuda: Any = SimpleNamespace(
            is_available=lambda: True,
            get_device_properties=lambda index: SimpleNamespace(name="NVIDIA H100 80GB HBM3", L2_cache_size=50e6),
            mem_get_info=lambda index: (70e9, 80e9),
            synchronize=lambda: None,
            empty_cache=lambda: None,
            Event=lambda enable_timing: FakeEvent(self),
            Stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
            current_stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
            stream=lambda side: Context(),
            graph=self.graph,
            CUDAGraph=lambda: SimpleNamespace(replay=self.replay),
        )

    def zeros(self, count: int, dtype: Any, device: str) -> Any:
        assert count * 4 >= 4 * 49e6
        return SimpleNamespace(sum=self.evict)

    def evict(self) -> None:
        self.evicted += 1

    def kernel(self, seconds: float) -> None:
        if self.capturing is not None:
            if not self.capturable:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.capturing.append(seconds)
        else:
            self.now += seconds

    def graph(self, graph: Any) -> Any:
        self.captured: list[float] = []
        return Context(lambda: setattr(self, "capturing", self.captured), lambda: setattr(self, "capturing", None))

    def replay(self) -> None:
        self.replays += 1
        self.now += sum(self.captured)


class FakeEvent:
    def __init__(self, torch: FakeTorch) -> None:
        self.torch = torch

    def record(self) -> None:
        self.at = self.torch.now

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1e3 * (end.at - self.at)


class Context:
    def __init__(self, before: Any = lambda: None, after: Any = lambda: None) -> None:
        self.before, self.after = before, after

    def __enter__(self) -> None:
        self.before()

    def __exit__(self, *error: object) -> None:
        self.after()


@pytest.mark.parametrize(
    ("seconds", "capturable", "method"), [(8e-6, True, "graph"), (8e-6, False, "events"), (3e-3, True, "events")]
)
def test_cuda_times_short_kernels_in_a_graph(seconds: float, capturable: bool, method: str) -> None:
    torch = FakeTorch(capturable)
    sample = Cuda(torch).time([lambda: torch.kernel(seconds)] * 10, cold=True)
    assert sample.method == method
    assert sample.median == pytest.approx(seconds)
    assert torch.evicted == len(sample.seconds)
    assert (torch.replays > 0) == (method == "graph")


def test_cuda_reads_nothing_between_warm_calls() -> None:
    torch = FakeTorch()
    assert Cuda(torch).time([lambda: torch.kernel(2e-3)], cold=False).median == pytest.approx(2e-3)
    assert torch.evicted == 0


def test_cuda_names_its_software_and_state(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = []

    def answer(*query: str) -> list[str]:
        queries.append(query)
        return ["1980, 2619, 41, 580.65"]

    monkeypatch.setattr(devices, "nvidia_smi", answer)
    card = Cuda(FakeTorch())
    assert card.software.startswith("torch 2.13.0; CUDA 13.0")
    state = dict(card.state)
    assert state == {
        "device": "NVIDIA H100 80GB HBM3", "clock_mhz": "1980", "memory_clock_mhz": "2619", "temperature_c": "41",
        "driver": "580.65",
    }  # fmt: skip
    assert dict(card.state) == state
    assert len(queries) == 1


def test_buffers_outlast_the_cache() -> None:
    card = Cuda(FakeTorch())
    assert card.sets(1e6, cold=True) == 20
    assert card.sets(100e6, cold=True) * 100e6 > 2 * card.cache
    assert card.sets(100e6, cold=False) == 1
    assert card.sets(60e9, cold=True) == 1


def test_the_cpu_times_calls() -> None:
    torch = importlib.import_module("torch")
    before = torch.get_num_threads()
    try:
        cpu = Cpu(torch, threads=1)
        cpu.cache = 1e6
        buffers = [torch.ones(1000, 1000) for _ in range(4)]
        sample = cpu.time([lambda buffer=buffer: buffer.add_(1) for buffer in buffers], cold=True)  # type: ignore[misc]
        assert 5 <= len(sample.seconds) <= 30
        assert 1e-5 < sample.median < 1.0
        assert cpu.state["threads"] == "1"
        assert cpu.sets(1e3, cold=True) == 8
        assert cpu.sets(1e7, cold=True) == 2
    finally:
        torch.set_num_threads(before)


def test_percentiles() -> None:
    sample = Sample((1.0, 2.0, 3.0, 4.0, 5.0), "clock")
    assert (sample.percentile(0.1), sample.median, sample.percentile(0.9)) == pytest.approx((1.4, 3.0, 4.6))


def test_the_preferred_backend_or_the_first(tmp_path: Path) -> None:
    norm = Case("norm", {"dtype": "bf16", "rows": 8, "columns": 1024})
    known = fake_benchmarks()
    for preferred, kernels in (
        ("torch", {"torch"}),
        ("other", {"torch"}),
        ("triton", {"triton"}),
        (None, {"torch", "triton"}),
    ):
        path = tmp_path / f"{preferred}.csv"
        with RowFile(path) as file:
            measure(
                points_of([GEMM, norm], known, FakeDevice(), preferred=preferred), 60, FakeDevice(), "h100-sxm", file
            )
        assert {row["kernel"] for row in read_rows(path)} == kernels
