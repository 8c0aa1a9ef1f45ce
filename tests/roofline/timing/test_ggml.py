"""llama.cpp's kernels on CPUs: the form, and published throughputs of two CPUs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.specs.engine import load_engine
from roofline.specs.hardware import MEASURED
from roofline.specs.library import SEARCH_PATH
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel_time

CPU = load_hardware("ryzen-9-7950x")
CONSTANTS = {"barrier": 0.625e-6, "compute_efficiency": 1.0, "row_efficiency": 0.5, "memory_efficiency": 0.5}


def time(m: Any, hardware: Any = CPU, **changes: float) -> Any:
    arithmetic = "int8" if hardware.supports("int8") else "fp32"
    columns = {"dtype": "ggml_q8_0", "arithmetic": arithmetic, "m": m, "n": 4096.0, "k": 4096.0}
    return kernel_time("gemm", columns, hardware, {**CONSTANTS, **changes})


def test_the_terms_add_up() -> None:
    # 16 threads wait 10 us; 4096^2 weights of 34/32 bytes and the vectors, at half of 83.2 GB/s, take 429.0 us;
    # 2 x 4096^2 FLOP of the first row at half of 2.304 TFLOP/s 29.13 us, of each further one 14.56 us
    assert time(1.0) == pytest.approx(10e-6 + 429.0e-6 + 29.13e-6, rel=1e-3)
    streamed = (4096**2 * 34 / 32 + 512 * 4096 * (34 / 32 + 4)) / 41.6e9
    assert time(512.0) == pytest.approx(10e-6 + streamed + 29.13e-6 + 511 * 14.564e-6, rel=1e-3)


@given(st.floats(1, 4096), st.floats(1.01, 8))
def test_more_rows_take_longer_and_faster_memory_or_cores_do_not(rows: float, factor: float) -> None:
    assert time(rows * factor) > time(rows)
    wide = replace(CPU, memory_bandwidth=CPU.memory_bandwidth * factor)
    fast = replace(CPU, vector={name: peak * factor for name, peak in CPU.vector.items()})
    assert time(rows, wide) <= time(rows)
    assert time(rows, fast) <= time(rows)


def tokens_per_s(hardware: Any, scheme: str, prompt: int, threads: int | None = None) -> float:
    """Throughput of prefill, or on so many threads of decode, of Llama 3.1 8B."""
    if threads:
        part = threads / hardware.units
        vector = {name: part * peak for name, peak in hardware.vector.items()}
        hardware = replace(hardware, units=threads, vector=vector)
    precision = parse_precision("fp16", scheme)
    found = analyze(
        Scenario(load_model("llama-3.1-8b"), hardware, prompt=prompt, generate=129, precision=precision)
    ).expected
    return 1 / float(found.tpot.mid) if threads else prompt / float(found.ttft.mid)


PUBLISHED = [
    ("ryzen-9-7950x", "q8_0", 147.92, 2, 4.95, 0.2),
    ("ryzen-9-7950x", "q4_0", 153.52, 2, 11.23, 0.2),
    ("ryzen-9-7950x", "q4_k_s", 108.40, 2, 9.57, 0.05),
    ("ryzen-9-7950x", "iq3_s", 30.20, 2, 3.71, 0.05),
    ("m2-max-cpu", "q8_0", 54.54, 3, 14.04, 0.05),
    ("m2-max-cpu", "q4_0", 114.63, 4, 23.89, 0.05),
    ("m2-max-cpu", "q6_k", 26.73, 4, 11.62, 0.05),
]
"""tokens/s of pp512 and tg128 of llama.cpp build 4384 (ikawrakow/ik_llama.cpp, discussion 164), and the tolerance: the
constants of Q8_0 and Q4_0 on x86 are means with those of a newer build on another CPU."""


@pytest.mark.parametrize(("name", "scheme", "prefill", "threads", "decode", "within"), PUBLISHED)
def test_published_throughputs(
    name: str, scheme: str, prefill: float, threads: int, decode: float, within: float
) -> None:
    hardware = load_hardware(name)
    assert tokens_per_s(hardware, scheme, 512) == pytest.approx(prefill, rel=within)
    assert tokens_per_s(hardware, scheme, 1, threads) == pytest.approx(decode, rel=within)


def test_rows_come_in_whole_tiles_but_for_a_single_one() -> None:
    assert time(1.0, tile=4.0) == time(1.0)
    moved = 4096 * (34 / 32 + 4) / 41.6e9  # input and output of a row
    for rows, full in ((2, 4), (3, 4), (4, 4), (5, 8), (45, 48)):
        assert time(float(rows), tile=4.0) == pytest.approx(time(float(full)) - (full - rows) * moved)


def test_interleaved_weights_are_unpacked_for_each_tile_and_read_behind_the_multiplications() -> None:
    # 2 x 4096^2 FLOP take 29.13 us for the first row of a tile, 14.56 us for a further one; 429.0 us for the weights
    assert time(1.0, interleaved=1.0) == pytest.approx(10e-6 + 429.0e-6, rel=1e-3)
    whole = 29.13e-6 + 15 * 14.564e-6
    assert time(512.0, interleaved=1.0) == pytest.approx(10e-6 + 32 * whole, rel=1e-3)
    rest = 2 * (29.13e-6 + 3 * 14.564e-6) + 29.13e-6
    assert time(48.0 + 9.0, interleaved=1.0) == pytest.approx(10e-6 + 3 * whole + rest, rel=1e-3)


@given(st.floats(1, 600), st.floats(1, 1.2), st.floats(0.02, 2))
def test_more_interleaved_rows_take_no_less(rows: float, factor: float, first: float) -> None:
    changes = {"interleaved": 1.0, "row_efficiency": first}
    assert time(rows * factor, **changes) >= time(rows, **changes) * (1 - 1e-9)


EPYC = replace(
    CPU,
    name="epyc-1-thread",
    units=1,
    memory_bandwidth=28.642e9,
    vector={"fp32": 103.39e9, "int8": 441.74e9},
    sources={"memory.bandwidth": f"{MEASURED} on 2026-11-25"},
)
"""One thread of an EPYC of Zen 4, as measured by PyTorch."""


@pytest.mark.parametrize(("rows", "measured"), [(1, 30.9), (2, 57.4), (3, 65.8), (4, 68.6), (8, 95.4), (16, 147.5)])
def test_a_few_rows_take_what_they_took_on_an_epyc(rows: int, measured: float) -> None:
    """ms of Qwen2.5-0.5B in Q8_0 (llama-cpp-python 0.3.36, CPU time); no constant is of this CPU."""
    model, precision = load_model("qwen2.5-0.5b"), parse_precision("fp16", "q8_0")
    found = analyze(Scenario(model, EPYC, batch=rows, prompt=1, generate=2, precision=precision)).decode
    assert found is not None
    assert float(found.expected.mid) == pytest.approx(measured / 1e3, rel=0.25)


@pytest.mark.parametrize(
    ("model", "measured"),
    [
        ("qwen2.5-0.5b", {1: 15.5, 16: 93.1, 32: 179.4, 44: 263.9, 45: 273.8, 48: 266.2, 160: 868.4}),
        ("llama-3.2-1b", {1: 36.3, 16: 231.5, 32: 456.2, 44: 675.0, 45: 705.9, 48: 680.4, 160: 2243.6}),
    ],
)
def test_a_few_interleaved_rows_take_what_they_took_on_an_epyc(model: str, measured: dict[int, float]) -> None:
    """ms of Q4_0 (llama-cpp-python 0.3.36, CPU time): a decode step and prompts; no constant is of this CPU.

    The output of Qwen2.5-0.5B, whose rows have 896 elements, falls back to Q8_0: its decode step is 13% too slow.
    """
    precision, hardware = parse_precision("fp16", "q4_0"), replace(EPYC, memory_bandwidth=38.822e9)
    for rows, time in measured.items():
        scenario = Scenario(load_model(model), hardware, prompt=rows, generate=2, precision=precision)
        found = analyze(scenario).expected
        seconds = found.tpot if rows == 1 else found.ttft
        assert seconds is not None
        assert float(seconds.mid) == pytest.approx(time / 1e3, rel=0.14 if rows == 1 else 0.12)


def test_a_bandwidth_that_streaming_achieved_is_reached() -> None:
    measured = replace(CPU, sources={**CPU.sources, "memory.bandwidth": f"{MEASURED} on 2026-11-25"})
    assert time(1.0, measured) == pytest.approx(10e-6 + 429.0e-6 / 2 + 29.13e-6, rel=1e-3)
    assert time(1.0, measured, memory_efficiency=0.3) == time(1.0, measured)


def test_a_single_row_has_vectors_of_its_own() -> None:
    assert time(1.0, wide=1.0) == time(1.0)
    assert time(1.0) - time(1.0, wide=2.0) == pytest.approx(29.13e-6 * 3 / 4, rel=1e-3)  # INT8: four times FP32
    assert time(2.0, wide=1.0) - time(1.0, wide=1.0) < (time(2.0) - time(1.0)) / 2


def test_wide_kernels_follow_the_peak_for_int8() -> None:
    assert time(512.0, wide=1.0) < time(512.0)
    unknown = replace(CPU, vector={"fp32": CPU.vector["fp32"]})
    slow = {"compute_efficiency": 0.2, "row_efficiency": 0.2, "wide": 2.0}  # no faster than the FP32 peak
    assert time(512.0, unknown, **slow) == pytest.approx(time(512.0, **slow))  # Zen 4: four times FP32


def test_experts_are_gemms_one_after_the_other() -> None:
    """Two experts of two, of three matrices: three barriers, and each expert's GEMMs of all 64 tokens."""
    arithmetic = {"dtype": "ggml_q8_0", "arithmetic": "int8"}
    sizes = {"tokens": 64.0, "hidden": 4096.0, "intermediate": 4096.0, "top_k": 2.0, "experts": 2.0}
    found = kernel_time("moe", {**arithmetic, **sizes}, CPU, CONSTANTS)
    # Outputs are written as those of one matrix, of which an expert has three.
    assert found == pytest.approx(3 * 10e-6 + 6 * time(64.0, barrier=0.0), rel=0.02)


def test_a_mixture_of_experts_on_a_xeon() -> None:
    """DeepSeek-R1 Q8_0, Xeon 6980P with MRDIMM: 172 ms a token (lmsys.org/blog/2025-07-14-intel-xeon-optimization)."""
    xeon = replace(load_hardware("xeon-6980p"), memory_bandwidth=844.8e9)
    found = analyze(Scenario("deepseek-r1", xeon, quant="q8_0", engine="llama.cpp", prompt=1024, generate=1024))
    assert found.expected.tpot.low < 0.172 < found.expected.tpot.high


@pytest.mark.parametrize(
    "name", ["ryzen-9-7950x", "epyc-9654", "threadripper-pro-5975wx", "m2-max-cpu", "core-i9-13900k"]
)
def test_cpus_have_the_constants_of_the_engine_and_not_those_of_pytorch(name: str) -> None:
    hardware, engine = load_hardware(name), load_engine("llama.cpp")
    chain = load_calibration(hardware, engine=engine.measured_as(hardware)[0], kind=False)
    match = chain.find("gemm", "ggml_q4_k")
    assert match is not None
    assert (match.engine, match.calibration) == ("llama.cpp", "arm" if "m2" in name else "cpu")
    assert chain.find("gemm", "ggml_q4_1") is not None  # a related format


def test_a_calibration_of_pytorch_on_this_cpu_is_not_llama_cpps(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration" / "ryzen-9-7950x.yaml").write_text("name: ryzen-9-7950x\nkernels: {}\n")
    monkeypatch.setenv(SEARCH_PATH, str(tmp_path))
    assert load_calibration(CPU, engine="llama.cpp", kind=False).name != CPU.name
    assert load_calibration(CPU).name == CPU.name
