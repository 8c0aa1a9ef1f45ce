"""Kernel time models: laws that hold for any constants within their bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.core.errors import RooflineError
from roofline.core.parameters import Unit
from roofline.specs.hardware import load_hardware
from roofline.specs.hardware_files import parse_hardware
from roofline.timing.calibration import Calibration, Fit
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import KERNELS, kernel, kernel_bound, kernel_regimes, kernel_time, shape_of
from roofline.timing.kernels.attention_prefill import TILINGS
from roofline.timing.kernels.elementwise import PASSES

H100 = load_hardware("h100-sxm")
B200 = load_hardware("b200-sxm")

CASES = {
    "gemm": ({"m": 64.0, "n": 4096.0, "k": 4096.0}, ("bf16", "fp8", "fp8_block"), "m"),
    "attention_prefill": (
        {
            "batch": 2.0,
            "q_len": 512.0,
            "kv_len": 512.0,
            "heads": 32.0,
            "kv_heads": 8.0,
            "head_dim": 128.0,
            "window": 0.0,
        },
        ("bf16",),
        "batch",
    ),
    "attention_decode": (
        {
            "batch": 8.0,
            "q_len": 1.0,
            "kv_len": 2048.0,
            "heads": 32.0,
            "kv_heads": 8.0,
            "head_dim": 128.0,
            "window": 0.0,
        },
        ("bf16",),
        "batch",
    ),
    "mla_decode": (
        {"batch": 8.0, "q_len": 1.0, "kv_len": 4096.0, "heads": 128.0, "latent": 512.0, "rope": 64.0},
        ("bf16",),
        "kv_len",
    ),
    "moe": (
        {
            "tokens": 64.0,
            "hidden": 4096.0,
            "intermediate": 2048.0,
            "top_k": 8.0,
            "experts": 256.0,
            "tp": 1.0,
            "ep": 1.0,
        },
        ("bf16", "fp8", "fp8_block"),
        "tokens",
    ),
    "collective": ({"collective": "all_reduce", "ranks": 8.0, "bytes": 1e6}, ("bf16",), "bytes"),
    "gated_delta_rule": (
        {"variant": "chunked", "batch": 2.0, "q_len": 512.0, "heads": 32.0, "key_dim": 128.0, "value_dim": 128.0},
        ("bf16",),
        "batch",
    ),
    "top_k": ({"batch": 64.0, "kv_len": 32768.0, "top_k": 2048.0}, ("bf16",), "kv_len"),
    "norm": ({"rows": 64.0, "columns": 4096.0}, ("bf16",), "rows"),
}


def defaults(op: str, format: str) -> dict[str, float]:
    return {parameter.name: parameter.default for parameter in kernel(op).parameters(format)}


def cases() -> list[tuple[str, str]]:
    return [(op, dtype) for op, (_, dtypes, _) in CASES.items() for dtype in dtypes]


@pytest.mark.parametrize("op", KERNELS)
def test_every_parameter_is_physical(op: str) -> None:
    for format in ("bf16", "fp8", "nvfp4", "fp8_block"):
        parameters = kernel(op).parameters(format)
        assert sum(not parameter.optional for parameter in parameters) <= 12
        optional = sum(one.optional and not one.local for one in parameters)
        most = {"attention_decode": 6, "sparse_prefill": 5, "sparse_decode": 5}  # single heads, windows, and selections
        assert optional <= most.get(op, 4)
        assert len({parameter.name for parameter in parameters}) == len(parameters)
        for parameter in parameters:
            assert parameter.meaning
            assert parameter.unit in Unit
            assert parameter.low <= parameter.default <= parameter.high
            if "efficiency" in parameter.name:
                assert parameter.high <= 1.0


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm", "b200-sxm", "gb200"])
def test_block_scaled_gemms_without_graphs_have_the_launch_of_those_with(name: str) -> None:
    """Whatever vLLM's benchmark waits for: an engine's step replays a graph, without gaps between its kernels."""
    device = load_hardware(name)
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        calibration = load_calibration(device, engine=engine)
        blocks, plain = (calibration.find("gemm", format) for format in ("fp8_block", "fp8"))
        assert blocks is not None
        assert plain is not None
        assert blocks.fit.parameters["launch"] <= plain.fit.parameters["launch"] * (1 + 1e-3)
    columns = {"dtype": "fp8_block", "m": 16.0, "n": 4096.0, "k": 4096.0}
    assert float(load_calibration(device).expected("gemm", columns, device).mid) < 35e-6


@pytest.mark.parametrize(("op", "dtype"), cases())
def test_scalar_and_array_agree(op: str, dtype: str) -> None:
    columns, _, along = CASES[op]
    sizes = np.array([1.0, 8.0, 100.0, 4096.0])
    together = kernel_time(op, {**columns, "dtype": dtype, along: sizes}, H100, defaults(op, dtype))
    one_by_one = [
        float(kernel_time(op, {**columns, "dtype": dtype, along: size}, H100, defaults(op, dtype))) for size in sizes
    ]
    np.testing.assert_allclose(together, one_by_one, rtol=1e-12)


@pytest.mark.parametrize(("op", "dtype"), cases())
def test_never_below_the_bound(op: str, dtype: str) -> None:
    columns, _, along = CASES[op]
    columns = {**columns, "op": op, "dtype": dtype, along: np.geomspace(1, 1e5, 40).round()}
    time = kernel_time(op, columns, H100, defaults(op, dtype))
    assert np.all(time >= kernel_bound(op, columns, H100))
    assert np.all(np.isfinite(time))


@pytest.mark.parametrize(("op", "dtype"), cases())
def test_grows_with_size_up_to_tile_steps(op: str, dtype: str) -> None:
    columns, _, along = CASES[op]
    time = kernel_time(op, {**columns, "dtype": dtype, along: 128.0 * 2.0 ** np.arange(12)}, H100, defaults(op, dtype))
    assert np.all(np.diff(time) >= -1e-12)


@given(data=st.data())
def test_any_constants_within_bounds_respect_the_bound(data: st.DataObject) -> None:
    op, dtype = data.draw(st.sampled_from(cases()))
    constants = {
        parameter.name: float(int(value) if parameter.unit is Unit.CHOICE else value)
        for parameter in kernel(op).parameters(dtype)
        for value in [data.draw(st.floats(parameter.low, parameter.high))]
    }
    columns, _, along = CASES[op]
    columns = {**columns, "op": op, "dtype": dtype, along: np.array([1.0, 7.0, 130.0, 5000.0])}
    time = kernel_time(op, columns, H100, constants)
    assert np.all(time >= kernel_bound(op, columns, H100))


def test_a_window_caps_the_keys() -> None:
    columns, _, _ = CASES["attention_decode"]
    full = kernel_time(
        "attention_decode", {**columns, "dtype": "bf16", "kv_len": 65536.0}, H100, defaults("attention_decode", "bf16")
    )
    cut = kernel_time(
        "attention_decode",
        {**columns, "dtype": "bf16", "kv_len": 65536.0, "window": 128.0},
        H100,
        defaults("attention_decode", "bf16"),
    )
    short = kernel_time(
        "attention_decode", {**columns, "dtype": "bf16", "kv_len": 128.0}, H100, defaults("attention_decode", "bf16")
    )
    assert cut < full
    np.testing.assert_allclose(cut, short)


def test_causal_pairs_under_a_window() -> None:
    """The closed form against counting, with cached tokens before the queries."""
    peak = H100.matrix_peak("bf16")
    for cached, queries, window in [(0, 7, 0), (5, 7, 0), (0, 40, 16), (20, 9, 16), (100, 3, 16)]:
        counted = sum(min(cached + i + 1, window) if window else cached + i + 1 for i in range(queries))
        columns = {
            "dtype": "bf16", "batch": 1.0, "q_len": float(queries), "kv_len": float(cached + queries), "heads": 1.0,
            "kv_heads": 1.0, "head_dim": 128.0, "window": float(window),
        }  # fmt: skip
        bound = kernel("attention_prefill").bound(shape_of("attention_prefill", columns), H100).compute
        np.testing.assert_allclose(bound, 4 * 128 * counted / peak)


CPU = parse_hardware(
    {
        "name": "two-threads",
        "title": "Two threads",
        "vendor": "Nobody",
        "family": "cpu",
        "kind": "cpu",
        "memory": {"capacity": "8 GB [sheet]", "bandwidth": "20 GB/s [sheet]"},
        "compute": {"units": "2 [sheet]", "clock": "2 GHz [sheet]", "vector": {"fp32": "200 GFLOP/s [sheet]"}},
        "sources": {"sheet": "made up"},
    },
    "two-threads",
)


def test_elementwise_kernels_run_on_a_cpu_thread_for_each_grain() -> None:
    """t = launch + bytes / (e bandwidth) + elements cycles / (clock threads): a thread for each 32768 results."""
    constants = {**defaults("softmax", "fp32"), "launch": 5e-6, "memory_efficiency": 0.5, "cycles": 0.4}
    rows = np.array([1.0, 32.0, 48.0, 4096.0])
    time = kernel_time("softmax", {"dtype": "fp32", "rows": rows, "columns": 1024.0}, CPU, constants)
    moved, threads = 2 * rows * 1024, np.array([1.0, 1.0, 1.5, 2.0])
    np.testing.assert_allclose(time, 5e-6 + 4 * moved / 10e9 + 0.4 * moved / (2e9 * threads))
    graph = {"bytes": 4.0 * moved, "elements": moved}
    np.testing.assert_allclose(kernel_time("softmax", graph, CPU, constants), time)
    lacking = {**constants, "cycles": defaults("softmax", "fp32")["cycles"]}
    without = kernel_time("softmax", {"bytes": 4.0 * moved}, CPU, constants)
    np.testing.assert_allclose(kernel_time("softmax", graph, CPU, lacking), without, rtol=1e-4)


def test_large_results_on_cpus_are_mapped_page_by_page() -> None:
    """Beyond 32 MiB a result is 4096-byte pages that are new each time; a result of that size is not."""
    constants = {**defaults("activation", "fp32"), "page": 2e-6}
    without = {**constants, "page": 0.0}
    rows = np.array([1.0, 2048.0, 2049.0, 8192.0])
    columns = {"dtype": "fp32", "rows": rows, "columns": 4096.0}
    mapping, nothing = (kernel_time("activation", columns, CPU, found) for found in (constants, without))
    pages = np.array([0, 0, 2049 * 4, 8192 * 4])  # of which each of the two threads maps half
    np.testing.assert_allclose(mapping - nothing, pages * 2e-6 / 2, rtol=1e-9, atol=1e-12)
    graph = {"bytes": 3 * 4.0 * rows * 4096, "elements": 3 * rows * 4096}
    np.testing.assert_allclose(kernel_time("activation", graph, CPU, constants), mapping)


def test_cpu_gemms_pack_weights_unless_rows_are_few() -> None:
    """Two rows share a pass; beyond 2.5 passes' worth of them, packing is less."""
    fixed = {"launch": 0.0, "memory_efficiency": 1.0, "sharpness": 20.0, "throttling": 0.0, "tile_prologue": 0.0}
    constants = {**defaults("gemm", "fp32"), **fixed, "tile_bandwidth": 1e15, "compute_efficiency": 1.0}
    rows = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 16.0])
    columns = {"dtype": "fp32", "m": rows, "n": 4096.0, "k": 4096.0}
    packing = kernel_time("gemm", columns, CPU, {**constants, "packing": 1.5, "vector_rows": 2.0})
    passes = np.array([1, 1, 2, 2, 2.5, 2.5])
    np.testing.assert_allclose(packing, (4 * 4096**2 * passes + 4 * rows * 4096 + 2 * rows * 4096) / 20e9, rtol=1e-3)
    once = kernel_time("gemm", columns, CPU, {**constants, "packing": 1e-6, "vector_rows": 1.0})
    np.testing.assert_allclose(once, kernel_time("gemm", columns, CPU, constants))


def test_cpu_attention_computes_masked_keys() -> None:
    """Tiles end at the diagonal without cached tokens; with them a mask hides the keys, which are computed all."""
    fixed = {"launch": 0.0, "tile_prologue": 0.0, "token": 0.0, "sharpness": 20.0, "wave_quantization": 0.01}
    cpu = next(index for index, tiling in enumerate(TILINGS) if tiling.cpu)
    constants = {**defaults("attention_prefill", "fp32"), **fixed, "compute_efficiency": 0.5, "tiling": cpu}
    shape = {
        "dtype": "fp32",
        "batch": 1.0,
        "heads": 64.0,
        "kv_heads": 64.0,
        "head_dim": 64.0,
        "window": 0.0,
        "bare": 1.0,
    }
    keys = np.array([1024.0, 2048.0])
    time = kernel_time("attention_prefill", {**shape, "q_len": 1024.0, "kv_len": keys}, CPU, constants)
    pairs = np.array([256 * (256 + 512 + 768 + 1024), 1024 * 2048])
    np.testing.assert_allclose(time, 4 * 64 * 64 * pairs / (0.5 * 200e9), rtol=1e-3)


def test_the_heads_of_a_group_take_time_at_the_peak_of_the_units() -> None:
    """One unit, no splits: each key costs 4 d G slowdown / (peak / S) more, on a CPU and on a card."""
    columns, _, _ = CASES["attention_decode"]
    columns = {**columns, "dtype": "fp32", "batch": 64.0, "kv_len": 4096.0, "kv_heads": 2.0, "window": 0.0}
    columns = {**columns, "head_dim": 64.0, "heads": np.array([2.0, 8.0])}
    fixed = {"sharpness": 20.0, "wave_quantization": 0.01, "regroup": 0.0, "memory_efficiency": 1.0}
    constants = {**defaults("attention_decode", "fp32"), **fixed, "unit_bandwidth": 4e9, "head_slowdown": 2.0}
    one, four = kernel_time("attention_decode", columns, CPU, constants)
    extra = 64 * 4096 * 2 * 4 * 64 * (4 - 1) / (0.5 * 200e9)
    np.testing.assert_allclose(four - one, extra, rtol=0.01)
    lacking = {**constants, "head_slowdown": defaults("attention_decode", "fp32")["head_slowdown"]}
    one, four = kernel_time("attention_decode", columns, CPU, lacking)
    np.testing.assert_allclose(one, four, rtol=0.01)
    card = {**columns, "dtype": "bf16", "batch": 66.0}
    one, four = kernel_time("attention_decode", card, H100, constants)
    extra = 4096 * 4 * 64 * (4 - 1) * 132 / (989.4e12 / 2)  # 132 items on 132 units
    np.testing.assert_allclose(four - one, extra, rtol=0.02)


@pytest.mark.parametrize("op", PASSES)
def test_elementwise_ops_differ_by_name(op: str) -> None:
    columns = {"dtype": "bf16", "rows": np.array([1.0, 4096.0]), "columns": 8192.0}
    np.testing.assert_allclose(kernel_bound(op, columns, H100)[1] * H100.memory_bandwidth, PASSES[op] * 2 * 4096 * 8192)
    assert kernel_regimes(op, columns).tolist() == [0, 1]
    fits = {(op, "any"): Fit(op, "any", defaults(op, "any"))}
    expected = Calibration("h100-sxm", "calibrated", fits).expected(op, columns, H100)
    assert expected.basis == "calibrated"
    assert np.all(expected.mid > kernel_bound(op, columns, H100))


def test_unusual_shapes_have_separate_regimes() -> None:
    labels = kernel("gemm").regimes.labels
    sizes = {"m": np.array([16.0, 17.0, 17.0, 5000.0]), "n": np.array([1024.0, 4096.0, 4096.0, 256.0])}
    sizes |= {"k": np.array([1024.0, 1024.0, 512.0, 4096.0])}
    found = [labels[index] for index in kernel_regimes("gemm", {**sizes, "dtype": "bf16"})]
    assert found == ["m<=16", "m<=128", "m<=128, n or k < 1024", "m>=4096, n or k < 1024"]
    heads = {"head_dim": np.array([128.0, 128.0, 64.0]), "window": np.array([0.0, 4096.0, 0.0])}
    columns = {**CASES["attention_prefill"][0], "dtype": "bf16", "q_len": 300.0, **heads}
    assert kernel_regimes("attention_prefill", columns).tolist() == [1, 5, 5]


def test_one_rank_sends_nothing() -> None:
    columns = {"collective": "all_reduce", "ranks": 1.0, "bytes": 1e9}
    assert kernel_time("collective", columns, H100, defaults("collective", "all_reduce")) == 0.0


def test_unknown_names_are_one_sentence() -> None:
    with pytest.raises(RooflineError, match="unknown kernel 'gem'"):
        kernel_time("gem", {}, H100, {})
    with pytest.raises(RooflineError, match="unknown kernel format 'fp7'"):
        kernel_time("gemm", {"dtype": "fp7", "m": 1.0, "n": 1.0, "k": 1.0}, H100, {})
    with pytest.raises(RooflineError, match="fp4"):
        kernel_time("gemm", {"dtype": "nvfp4", "m": 1.0, "n": 1.0, "k": 1.0}, H100, defaults("gemm", "nvfp4"))
    with pytest.raises(RooflineError, match="unknown column 'k'"):
        kernel_time("gemm", {"dtype": "bf16", "m": 1.0, "n": 1.0}, H100, defaults("gemm", "bf16"))


@pytest.mark.parametrize("name", ["h100-sxm", "b300-sxm", "rtx-4090", "mi300x", "a100-pcie-40gb", "gaudi-3"])
def test_bundled_calibrations_cover_all_hardware(name: str) -> None:
    hardware = load_hardware(name)
    calibration = load_calibration(hardware)
    columns = {"dtype": "bf16", "m": np.array([1.0, 300.0, 1e7]), "n": 4096.0, "k": 4096.0}
    expected = calibration.expected("gemm", columns, hardware)
    assert np.all(expected.low <= expected.mid)
    assert np.all(expected.mid <= expected.high)
    assert np.all(expected.low >= kernel_bound("gemm", columns, hardware))
    assert expected.inside.tolist() == [True, True, False]
    wanted = {"h100-sxm": "calibrated", "b300-sxm": "family", "mi300x": "family", "gaudi-3": "pooled"}
    assert expected.basis == wanted.get(name, expected.basis)
    assert ("AITER" if name == "mi300x" else "vLLM") in expected.source


def test_a_product_line_covers_families_without_rows() -> None:
    """The MI210 has no measurements; GEMMs of the MI300X use the constants of its line, which are no worse."""
    for name in ("mi300x", "mi210"):
        match = load_calibration(load_hardware(name)).find("gemm", "bf16")
        assert match is not None
        assert (match.calibration, match.basis) == ("cdna", "family")
    match = load_calibration(load_hardware("mi300x")).find("attention_prefill", "bf16")
    assert match is not None
    assert match.calibration == "cdna3"
    chain = load_calibration(load_hardware("mi300x")).chain
    assert [link.name for link in chain if not link.engine] == ["cdna3", "cdna", "pooled"]


# ROCm/aiter, tables of tuned kernels (times on the device): a8w8_blockscale_tuned_gemm.csv, a8w8_bpreshuffle_... of
# GLM-4.7, llama70B_bf16_tuned_gemm.csv; op_tests/cpp/mha/README.md (32 query and 8 KV heads, causal or not).
@pytest.mark.parametrize(
    ("hardware", "op", "columns", "published"),
    [
        ("mi300x", "gemm", {"dtype": "fp8_block", "m": 8192.0, "n": 4608.0, "k": 7168.0}, 752.3),
        ("mi300x", "gemm", {"dtype": "fp8_block", "m": 16384.0, "n": 7168.0, "k": 2304.0}, 701.2),
        ("mi355x", "gemm", {"dtype": "bf16", "m": 2048.0, "n": 6144.0, "k": 3072.0}, 77.3),
        ("mi300x", "attention_prefill", {"q_len": 8192.0, "kv_len": 8192.0, "causal": 0.0}, 1969.9),
        ("mi355x", "attention_prefill", {"q_len": 8192.0, "kv_len": 8192.0, "causal": 0.0}, 817.4),
    ],
)
def test_published_times_of_bare_kernels(hardware: str, op: str, columns: dict[str, float], published: float) -> None:
    device = load_hardware(hardware)
    heads = {"dtype": "bf16", "batch": 1.0, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0, "window": 0.0}
    asked = {**(heads if op == "attention_prefill" else {}), **columns, "bare": 1.0}
    found = load_calibration(device).expected(op, asked, device)
    assert float(found.mid) * 1e6 == pytest.approx(published, rel=0.15)


def test_bare_rows_leave_out_surrounding_kernels() -> None:
    quantized = {**CASES["gemm"][0], "dtype": "fp8"}
    experts = {**CASES["moe"][0], "dtype": "bf16"}
    attention = {**CASES["attention_prefill"][0], "dtype": "bf16"}
    for op, columns in (("gemm", quantized), ("moe", experts), ("attention_prefill", attention)):
        constants = defaults(op, str(columns["dtype"]))
        whole, bare = (float(kernel_time(op, {**columns, "bare": flag}, H100, constants)) for flag in (0.0, 1.0))
        assert bare < whole
    plain = {**CASES["gemm"][0], "dtype": "bf16"}
    constants = defaults("gemm", "bf16")
    assert kernel_time("gemm", {**plain, "bare": 1.0}, H100, constants) == kernel_time("gemm", plain, H100, constants)
    with pytest.raises(RooflineError, match="evaluate them separately"):
        kernel_time("gemm", {**quantized, "bare": np.array([0.0, 1.0])}, H100, defaults("gemm", "fp8"))


def test_intervals_widen_outside_the_fitted_range() -> None:
    calibration = load_calibration(H100)
    columns = {"dtype": "fp8", "m": np.array([32768.0, 65536.0 * 16]), "n": 4096.0, "k": 4096.0}
    expected = calibration.expected("gemm", columns, H100)
    spread = np.log(expected.high / expected.mid)
    assert spread[1] > 1.9 * spread[0]
