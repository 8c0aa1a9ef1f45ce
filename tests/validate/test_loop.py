"""The loop: machines and their specs, a decoder that is right, calibrations in an overlay, drift."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from roofline.core.errors import RooflineError, SpecError, UnsupportedError
from roofline.specs.engine import load_engine
from roofline.specs.hardware import list_hardware, load_hardware
from roofline.specs.modelspec import load_model
from roofline.timing.chains import load_calibration
from roofline.validate.kernels.benchmark import benchmarks
from roofline.validate.kernels.work import Case
from roofline.validate.loop import calibrate, host, whole_model
from roofline.validate.loop import device_drift as drifting
from roofline.validate.measure import bench as measuring
from roofline.validate.measure import device as devices
from roofline.validate.measure import machine
from roofline.validate.measure.bench import measure, points_of
from roofline.validate.measure.decoder import Decoder, check, layers_that_fit, with_layers
from roofline.validate.measure.design import Limits, design
from roofline.validate.measure.device import Cuda
from roofline.validate.tables.rowfile import RowFile, read_rows
from tests.validate.fakes import FakeDevice, fake_benchmarks
from tests.validate.test_bench import FakeTorch

OPS = ("gemm", "attention_prefill", "attention_decode", "norm", "copy")


@pytest.fixture
def torch() -> Iterator[Any]:
    module = importlib.import_module("torch")
    threads = module.get_num_threads()
    yield module
    module.set_num_threads(threads)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with a small cache, whose roofs take little time to find."""
    monkeypatch.setattr(devices, "last_level_cache", lambda: 2e6)
    monkeypatch.setattr(devices, "busy_cores", lambda: 0.0)
    monkeypatch.setattr(devices, "SAMPLING_TIME", 0.01)
    monkeypatch.setitem(machine.PEAK_TIME, "cpu", 1e-3)
    monkeypatch.setitem(measuring.MAX_CALL_TIME, "cpu", 1e-3)


# --- machines ---


def test_every_card_of_the_list_is_bundled() -> None:
    assert set(machine.GPUS.values()) <= set(list_hardware())


@pytest.mark.parametrize(
    ("name", "memory", "units", "found"),
    [
        ("NVIDIA H100 80GB HBM3", 85.0e9, 132, "h100-sxm"),
        ("NVIDIA H100 PCIe", 85.0e9, 114, "h100-pcie"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10.4e9, 16, "h100-sxm-1g.10gb"),
        ("NVIDIA H100 NVL", 100e9, 132, "h100-nvl"),
        ("NVIDIA GB10", 128e9, 48, "dgx-spark"),
        ("NVIDIA H200", 150.0e9, 132, "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", 85.0e9, 108, "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", 42.3e9, 108, "a100-sxm-40gb"),
        ("NVIDIA GeForce RTX 4090", 25.3e9, 128, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 17e9, 76, "rtx-4090-laptop"),
        ("NVIDIA L4", 23.6e9, 58, "l4"),
        ("NVIDIA L40S", 47.7e9, 142, "l40s"),
        ("Tesla T4", 15.8e9, 40, "t4"),
        ("NVIDIA RTX A6000", 51e9, 84, "a6000"),
        ("NVIDIA B200", 191e9, 148, "b200-sxm"),
        ("AMD Instinct MI300X", 206e9, 304, "mi300x"),
    ],
)
def test_a_card_is_known_by_its_name_and_size(name: str, memory: float, units: int, found: str | None) -> None:
    hardware = machine.bundled(name, memory, units)
    assert (hardware.name if hardware else None) == found


def card(monkeypatch: pytest.MonkeyPatch, name: str, memory: float) -> machine.Machine:
    fake = FakeTorch()
    properties = SimpleNamespace(
        name=name, total_memory=memory, multi_processor_count=132, major=9, minor=0, L2_cache_size=50 * 2**20,
        clock_rate=1980000,
    )  # fmt: skip
    fake.cuda.get_device_properties = lambda index: properties
    monkeypatch.setattr(machine, "achieved_bandwidth", lambda device: 3.0e12)
    peaks = {"fp32": 5e13, "bf16": 7e14, "fp8": 1.3e15, "int8": 1.2e15}
    monkeypatch.setattr(machine, "achieved_peak", lambda device, name: peaks.get(name))
    return machine.examine(Cuda(fake))


def test_a_known_card_is_set_beside_its_datasheet(monkeypatch: pytest.MonkeyPatch) -> None:
    found = card(monkeypatch, "NVIDIA H100 80GB HBM3", 85e9)
    assert (found.hardware.name, found.bundled, found.spec) == ("h100-sxm", True, "")
    assert "  bandwidth: 3.00 TB/s achieved, 90% of the datasheet's 3.35 TB/s" in found.lines
    assert "  bf16 GEMM: 700 TFLOP/s achieved, 71% of the datasheet's 989 TFLOP/s" in found.lines


def test_an_unknown_card_becomes_a_spec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = card(monkeypatch, "NVIDIA H177 'X' 96GB", 96e9)
    path = tmp_path / f"{found.hardware.name}.yaml"
    path.write_text(found.spec)
    hardware = load_hardware(str(path))
    assert hardware == found.hardware
    assert (hardware.name, hardware.vendor, hardware.family, hardware.kind) == (
        "h177-x-96gb", "NVIDIA", "hopper", "gpu",
    )  # fmt: skip
    assert hardware.memory_bandwidth == 3e12
    assert (hardware.tensor["bf16"], hardware.tensor["int8"], hardware.vector) == (7e14, 1.2e15, {"fp32": 5e13})
    assert (hardware.units, hardware.clock) == (132, 1.98e9)
    assert "measured by roofline validate measure on" in hardware.sources["memory.bandwidth"]


@pytest.mark.usefixtures("small")
def test_a_cpu_becomes_a_spec(tmp_path: Path, torch: Any) -> None:
    device = devices.Cpu(torch, threads=1)
    found = machine.examine(device)
    path = tmp_path / "cpu.yaml"
    path.write_text(found.spec)
    hardware = load_hardware(str(path))
    assert (hardware.kind, hardware.family, hardware.units) == ("cpu", machine.cpu_family(), 1)
    assert hardware.name.endswith("-1-thread")
    assert 1e8 < hardware.memory_bandwidth < 1e12
    assert 1e9 < hardware.vector["fp32"] < 1e13
    assert 1e9 < hardware.memory_capacity < 1e14


# --- kernels ---

SMALL: dict[str, dict[str, int]] = {
    "gemm": {"m": 5, "n": 24, "k": 40},
    "norm": {"rows": 3, "columns": 256},
    "softmax": {"rows": 3, "columns": 256},
    "activation": {"rows": 3, "columns": 256},
    "rope": {"rows": 7, "columns": 256},
    "copy": {"rows": 3, "columns": 256},
}
HEADS = {"batch": 2, "heads": 6, "kv_heads": 2, "head_dim": 16}


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        *SMALL.items(),
        ("attention_prefill", {**HEADS, "q_len": 9, "kv_len": 9, "window": 0}),
        ("attention_prefill", {**HEADS, "q_len": 4, "kv_len": 13, "window": 0}),
        ("attention_decode", {**HEADS, "q_len": 1, "kv_len": 13, "window": 0}),
        ("attention_decode", {**HEADS, "q_len": 1, "kv_len": 13, "window": 5}),
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_pytorch_kernels_are_correct(op: str, shape: dict[str, int], dtype: str, torch: Any) -> None:
    stored = {"kv_dtype": dtype} if op.startswith("attention") else {}
    case, benchmark = Case(op, {"dtype": dtype, **stored, **shape}), benchmarks("cpu")[op]
    assert benchmark.refusal(case, "torch", "cpu") is None
    inputs, outputs = benchmark.inputs(case, "cpu", 1), benchmark.outputs(case, "cpu")
    assert all(tensor.isnan().all() for tensor in outputs.values())
    benchmark.backends["torch"](case, inputs, outputs)
    for name, expected in benchmark.reference(case, inputs).items():
        close = {"fp32": 1e-5, "bf16": 4e-2}[dtype]
        torch.testing.assert_close(outputs[name].double(), expected, rtol=close, atol=close)


def test_attention_is_the_textbook_one(torch: Any) -> None:
    case = Case(
        "attention_prefill", {"dtype": "fp32", "kv_dtype": "fp32", **HEADS, "q_len": 4, "kv_len": 9, "window": 0}
    )
    inputs = benchmarks("cpu")["attention_prefill"].inputs(case, "cpu", 0)
    query, keys, values = (inputs[name].double() for name in ("query", "keys", "values"))
    keys, values = (tensor.repeat_interleave(3, dim=1) for tensor in (keys, values))
    scores = query @ keys.transpose(-1, -2) / 4.0
    hidden = torch.arange(9)[None] > torch.arange(5, 9)[:, None]
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values
    torch.testing.assert_close(benchmarks("cpu")["attention_prefill"].reference(case, inputs)["output"], expected)


def test_plain_kernels_refuse_what_they_cannot() -> None:
    case = Case("attention_decode", {"dtype": "bf16", "kv_dtype": "fp8", **HEADS, "q_len": 1, "kv_len": 9, "window": 0})
    assert "fp8" in (benchmarks("cpu")["attention_decode"].refusal(case, "torch", "cpu") or "")
    window = Case("attention_prefill", {**case.columns, "kv_dtype": "bf16", "q_len": 9, "window": 4})
    assert "window" in (benchmarks("cpu")["attention_prefill"].refusal(window, "torch", "cpu") or "")


# --- the decoder ---


def test_the_cache_gives_what_a_whole_pass_gives(torch: Any) -> None:
    decoder = Decoder(host.TINY, "fp32", "cpu")
    tokens = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        whole = decoder.forward(tokens, decoder.cache(2, 16))
        cache = decoder.cache(2, 16)
        decoder.forward(tokens[:, :7], cache)
        decoder.forward(tokens[:, 7:9], cache)
        for position in range(9, 12):
            stepped = decoder.forward(tokens[:, position : position + 1], cache)
        first = decoder.forward(tokens[:1], decoder.cache(1, 16))
    assert whole.shape == (2, 64)
    torch.testing.assert_close(stepped, whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(first, whole[:1], rtol=1e-4, atol=1e-4)
    assert cache.length == 12


def test_the_measured_model_has_the_parameters_of_the_spec() -> None:
    from roofline.bound.memory import parameters

    model = with_layers(load_model("qwen2.5-0.5b"), 1)
    decoder = Decoder(model, "bf16", "cpu")
    count = decoder.embedding.numel() + decoder.final.numel() + sum(w.numel() for w in decoder.layers[0].values())
    assert count == parameters(model)


def test_layers_fit_the_memory() -> None:
    model = load_model("llama-3.2-1b")
    assert layers_that_fit(model, 1e12, 2) == 16
    assert layers_that_fit(model, 1e9, 2) == 3
    assert layers_that_fit(model, 1e6, 2) == 1
    assert with_layers(model, 3).layers == 3


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mixtral-8x7b", "feed-forward"),
        ("mamba-130m", "no softmax attention"),
        ("opt-125m", "RMSNorm"),
        ("gemma-2-2b", "kinds of layers|RMSNorm"),
        ("qwen3-0.6b", "attention is of another kind"),
        ("bert-base", "generates"),
    ],
)
def test_other_architectures_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{name} cannot be run here: .*({reason})"):
        check(load_model(name))


# --- calibrate, and a model ---


@pytest.mark.usefixtures("small", "torch")
def test_measure_fit_score_and_run_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measuring.POINTS, "cpu", 30)
    folder = tmp_path / "specs"
    found = calibrate.run_calibrate("cpu", 0.12, ("copy", "activation"), folder, ("fp32",), threads=1)
    name = found.measured.machine.hardware.name
    text = "\n".join(found.lines)
    assert f"ROOFLINE_SPECS={folder} roofline analyze MODEL --hw {name}" in text
    assert "copy fp32" in text
    assert found.measured.outcome.measured >= 20
    engine = load_engine(str(folder / "engines" / f"{name}.yaml"))
    assert 1e-6 < engine["issue"] < 1e-3
    with whole_model.overlay(folder):
        calibration = load_calibration(load_hardware(name))
    assert calibration.basis == "calibrated"
    assert calibration.fits["copy", "any"].rows > 5
    again = calibrate.run_calibrate("cpu", 0.001, ("copy", "activation"), folder, ("fp32",), threads=1)
    assert again.measured.outcome.before >= 20
    assert again.measured.machine.hardware == load_hardware(str(folder / f"{name}.yaml"))

    run = whole_model.run_model("llama-68m", "cpu", folder, "fp32", prompt=4, generate=3, layers=1, threads=1)
    assert [time.name for time in run.times] == ["TTFT", "TPOT"]
    first, each = run.times
    assert first.predicted.bound <= first.predicted.low
    bound, low = each.predicted.bound, each.predicted.low
    assert bound <= low * (1 + 1e-6)  # three contexts stand for all steps, the bound sums every one
    assert all(0 < time.predicted.low <= time.predicted.mid <= time.predicted.high for time in run.times)
    assert all(time.measured > 0 for time in run.times)
    assert "1 of 2 layers" in run.lines[0]
    assert "calibrated on this machine" in run.lines[0]
    alone = whole_model._calibrated_hardware(devices.open_device("cpu", 1), folder, None)
    assert alone is not None
    assert alone.units == 1
    assert whole_model._calibrated_hardware(devices.open_device("cpu", 1), folder, 2) is None
    slow = replace(each, measured=2 * bound)  # whatever this machine did meanwhile
    quick = replace(run, times=(replace(first, measured=first.predicted.bound / 2), slow))
    assert sum("faster than the bound" in line for line in quick.lines) == 1
    with pytest.raises(RooflineError, match="the layers must be from 1 to 2"):
        whole_model.run_model("llama-68m", "cpu", folder, "fp32", layers=3, threads=1)


@pytest.mark.usefixtures("small", "torch")
def test_a_run_with_too_few_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RooflineError, match=r"too few to fit.*measure for longer|has no rows"):
        calibrate.run_calibrate("cpu", 0.0002, ("gemm",), tmp_path / "specs", ("fp32",), threads=1)
    with pytest.raises(RooflineError, match="the minutes must be above 0"):
        measuring.run_measure("cpu", 0.0)
    with pytest.raises(RooflineError, match="unknown op 'gem'"):
        measuring.run_measure("cpu", 1.0, ("gem",), threads=1)


@pytest.mark.usefixtures("small", "torch")
def test_measure_writes_rows_and_says_what_it_found(tmp_path: Path) -> None:
    found = measuring.run_measure("cpu", 0.02, ("gemm",), tmp_path / "rows.csv", warm=True, threads=1)
    assert found.outcome.measured > 0
    assert {row["cache"] for row in read_rows(tmp_path / "rows.csv")} == {"warm"}
    assert any("achieved" in line for line in found.lines)


def test_an_overlay_comes_first_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLINE_SPECS", "elsewhere")
    with whole_model.overlay(tmp_path):
        assert os.environ["ROOFLINE_SPECS"].startswith(str(tmp_path))
    assert os.environ["ROOFLINE_SPECS"] == "elsewhere"
    monkeypatch.delenv("ROOFLINE_SPECS")
    with whole_model.overlay(tmp_path / "absent"):
        assert "ROOFLINE_SPECS" not in os.environ


# --- drift ---


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drift") / "rows.csv"
    cases = design(dict.fromkeys(OPS, ("bf16",)), Limits(memory=20e9, flops=2e13, traffic=2e10), 60)
    with RowFile(path) as file:
        measure(points_of(cases, fake_benchmarks(), FakeDevice(1), ("torch",)), 60, FakeDevice(1), "h100-sxm", file)
    return path


def drifted(path: Path, device: FakeDevice) -> drifting.DriftResult:
    return drifting.drift_on(device, fake_benchmarks(), read_rows(path), path)


@pytest.mark.slow
def test_a_tenth_less_bandwidth_is_noticed(stored: Path) -> None:
    noticed = 0
    for seed in range(12):
        found = drifted(stored, FakeDevice(100 + seed, slower={"memory_efficiency": 0.9}))
        noticed += found.changed
        assert not any(ratio.change == "faster" for ratio in found.ratios)
    assert noticed >= 11
    assert "the machine has changed: " in found.lines[-1]
    assert "slower" in found.lines[-1]


@pytest.mark.slow
def test_noise_is_not_called_a_change(stored: Path) -> None:
    alarms = sum(drifted(stored, FakeDevice(500 + seed)).changed for seed in range(25))
    assert alarms <= 1


def test_drift_is_short_and_names_what_changed(stored: Path) -> None:
    device = FakeDevice(8)
    found = drifted(stored, device)
    assert len(device.timed) <= drifting.POINTS * len(OPS) + 2 * drifting.POOLED_POINTS
    assert {ratio.op for ratio in found.ratios} == {*OPS, "bandwidth", "arithmetic"}
    assert found.lines[-1] == "no change of the machine"
    rows = [{**row, "software": "torch 2.4.0", "device": "Other"} for row in read_rows(stored)]
    remarks = drifting.drift_on(FakeDevice(8), fake_benchmarks(), rows, stored).remarks
    assert remarks[0].startswith("the software has changed: torch 2.4.0 then")
    assert remarks[1] == "the device has changed: Other then, Fake H100 now"


def test_drift_needs_rows_that_can_be_measured(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(RooflineError, match="none of its rows can be measured"):
        drifting.drift_on(FakeDevice(), {}, read_rows(stored), stored)
    with pytest.raises(SpecError, match="cannot be read"):
        drifting.run_drift(tmp_path / "absent.csv")
    rows = [{**row, "m": "many"} for row in read_rows(stored)]
    with pytest.raises(SpecError, match="a row of gemm has a shape or a latency that is no number"):
        drifting.drift_on(FakeDevice(), fake_benchmarks(), rows, stored)


def test_the_interval_of_a_median_covers_it() -> None:
    random = np.random.default_rng(0)
    outside = sum(
        not found.low <= 1.0 <= found.high
        for found in (drifting.ratio_of("x", list(0.05 * random.standard_normal(12))) for _ in range(2000))
    )
    assert outside / 2000 < 0.015


@pytest.mark.usefixtures("small", "torch")
def test_a_model_that_does_not_fit_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ...")

    monkeypatch.setattr(whole_model, "Decoder", refuse)
    with pytest.raises(RooflineError, match="llama-68m with 1 layers does not fit in memory; take fewer layers"):
        whole_model.run_model("llama-68m", "cpu", tmp_path, "fp32", layers=1, threads=1)
