"""Weight-only GEMMs: closed forms, published figures, and the kernels that engines run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from roofline import Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.core.errors import SpecError
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.specs.engine import list_engines, load_engine
from roofline.specs.engine_files import parse_engine
from roofline.specs.engine_written import render
from roofline.specs.hardware import Hardware
from roofline.specs.weight_only import WEIGHT_ONLY_KERNELS, kernel_of
from roofline.techniques import apply_techniques
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel_bound, kernel_time
from roofline.timing.kernels.gemm import conversion_time

A100, H100, RTX_3090 = (load_hardware(name) for name in ("a100-sxm-40gb", "h100-sxm", "rtx-3090"))
LLAMA = load_model("llama-2-7b")


def constants(hardware: Hardware = A100) -> Mapping[str, float]:
    found = load_calibration(hardware).find("gemm", "bf16")
    assert found is not None
    return found.fit.parameters


def gemm(m: Any, kernel: str = "", n: float = 8192, k: float = 8192, hardware: Hardware = A100) -> Any:
    columns: dict[str, Any] = {
        "dtype": "int4_wo" if kernel else "bf16",
        "m": np.atleast_1d(np.float64(m)),
        "n": n,
        "k": k,
    }
    columns |= {"weight_only": kernel} if kernel else {}
    return kernel_time("gemm", columns, hardware, constants(hardware))


@pytest.mark.parametrize("kernel", WEIGHT_ONLY_KERNELS)
def test_no_kernel_is_faster_than_the_bound(kernel: str) -> None:
    rows = np.array([1.0, 4, 5, 6, 7, 16, 100, 255, 256, 4096])
    columns: dict[str, Any] = {"dtype": "int4_wo", "m": rows, "n": 4096.0, "k": 11008.0}
    assert (gemm(rows, kernel, 4096, 11008) > kernel_bound("gemm", columns, A100)).all()


@pytest.mark.parametrize("kernel", ["fpa-intb", "turbomind", "marlin", "awq", "unmeasured"])
def test_conversion_grows_with_the_tiles_of_rows(kernel: str) -> None:
    """For many rows every tile converts its weights again: the loss is that of one tile, whatever the rows."""
    chosen = WEIGHT_ONLY_KERNELS[kernel]
    if chosen.library_rows:
        return
    few, many = (float(gemm(m, kernel)[0] / gemm(m)[0]) for m in (8192, 32768))
    assert few == pytest.approx(many, rel=0.05)
    peak = A100.matrix_peak("bf16") * constants()["compute_efficiency"]
    assert many == pytest.approx(1 + conversion_time(chosen, A100) * peak / (2 * chosen.tile_rows), rel=0.08)


def test_marlin_gains_with_few_rows_and_loses_with_many() -> None:
    """Marlin's benchmark on the layers of LLaMA-13B on A100: vllm-project/vllm, pull request 2497."""
    published = {1: 3.12, 16: 3.19, 32: 2.28, 64: 1.47, 128: 1.01, 256: 0.74, 512: 0.73, 1024: 0.66, 4000: 0.61}
    shapes = ((15360, 5120), (5120, 5120), (27136, 5120), (5120, 13568))
    rows = np.array([*published], dtype=np.float64)
    gains = sum(gemm(rows, "", *shape) for shape in shapes) / sum(gemm(rows, "marlin", *shape) for shape in shapes)
    errors = gains / np.array([*published.values()]) - 1
    assert np.abs(errors).mean() < 0.12
    assert ((gains < 1) == (rows > 128)).all()


@pytest.mark.parametrize(
    ("name", "n", "k", "published"),
    [
        # FP4 weights, which take a sixteenth more bytes (flashinfer-ai/flashinfer, pull request 4466): no fit saw these
        ("b200-sxm", 6656, 19968, "1 29.17, 8 29.28, 32 45.09, 128 106.0, 512 382.1, 2048 1492, 4096 2984"),
        ("b200-sxm", 19968, 6656, "1 29.38, 8 29.59, 32 38.24"),
        # 4.98, 19.85 TFLOP/s, in another run 5.81, 46.36, 90.52 (inclusionAI/humming, pull request 2)
        ("h100-sxm", 8192, 8192, "1 26.95, 4 27.05, 1 23.10, 8 23.16, 16 23.72"),
        # 9.4% less than 23.84 us (tile-ai/TileOPs, pull request 2159)
        ("h200-sxm", 8192, 8192, "1 21.79"),
    ],
)
def test_conversion_and_mma_sync_limit_marlin_on_newer_hardware(name: str, n: int, k: int, published: str) -> None:
    """Rows and microseconds: integer lanes and the rate of mma.sync did not grow with bandwidth and peak."""
    rows, times = np.array([pair.split() for pair in published.split(", ")], dtype=np.float64).T
    errors = 1e6 * gemm(rows, "marlin", n, k, load_hardware(name)) / times - 1
    assert np.abs(errors).mean() < 0.12
    assert np.abs(errors).max() < 0.2


def test_awq_decodes_and_prefills_more_slowly_than_nvfp4_on_blackwell() -> None:
    """Marlin's conversion takes longer than memory there (29 us for 6656 x 19968, where BF16 takes 46)."""
    awq, nvfp4 = (
        analyze(Scenario(LLAMA, load_hardware("b200-sxm"), precision=parse_precision("bf16", name))).expected
        for name in ("awq", "nvfp4")
    )
    assert awq.tpot is not None
    assert nvfp4.tpot is not None
    assert awq.tpot.mid > nvfp4.tpot.mid
    assert awq.ttft.mid > 2 * nvfp4.ttft.mid


def test_vector_units_multiply_few_rows() -> None:
    """Up to four rows TensorRT-LLM's time rises with 2 m n k over the vector peak."""
    n = k = 16384.0
    assert A100.vector_peak is not None
    four, three = (float(gemm(m, "fpa-intb", n, k)[0]) for m in (4, 3))
    step = 2 * n * k / A100.vector_peak
    assert 0.5 * step < four - three < step


def test_weights_in_memory_cost_a_pass_over_both_forms() -> None:
    """AWQ's kernel in vLLM writes FP16 weights for 256 rows and more, and reads them again."""
    n = k = 8192.0
    rate = constants()["memory_efficiency"] * A100.memory_bandwidth
    passes = (2 + 0.5 + 2 / 128) * n * k / rate
    converted = conversion_time(WEIGHT_ONLY_KERNELS["awq"], A100) * n * k
    assert float((gemm(1024, "awq") - gemm(1024))[0]) == pytest.approx(max(passes, converted) + constants()["launch"])
    assert gemm(255, "awq")[0] <= gemm(256, "awq")[0]


def expected(hardware: Hardware = A100, engine: str = "vllm", technique: str = "") -> Any:
    plain = Scenario(LLAMA, hardware, precision=parse_precision("fp16"), engine=engine, prompt=512, generate=64)
    return analyze(apply_techniques(plain, [technique]) if technique else plain)


def gain(hardware: Hardware, engine: str, technique: str) -> float:
    """How many times as fast the technique makes decode."""
    plain, changed = (expected(hardware, engine, name).expected.tpot for name in ("", technique))
    return float(plain.mid / changed.mid)


@pytest.mark.xfail(strict=True, reason="1.19 on RTX 3090 since 16-bit GEMMs overlap better")
def test_codebooks_are_looked_up() -> None:
    """AQLM, 16-bit codes: 1.29 times as fast as FP16 on RTX 3090 Ti, 0.69 times on A100 (Vahe1994/AQLM, issue 133)."""
    assert gain(RTX_3090, "vllm", "aqlm") == pytest.approx(1.29, rel=0.05)
    assert gain(load_hardware("a100-sxm-80gb"), "vllm", "aqlm") == pytest.approx(0.69, abs=0.1)


@pytest.mark.xfail(strict=True, reason="1.32 since 16-bit GEMMs overlap better")
def test_mixed_decomposition_loses_a_token_s_time() -> None:
    """LLM.int8(): a token takes 1.15 to 1.23 times as long (Dettmers et al. 2022, BLOOM-176B on 8 A100)."""
    eight = Settings(parallel=Parallelism(pipeline=8))
    bloom = Scenario(load_model("bloom-176b"), load_hardware("a100-sxm-80gb"), engine="hf-eager", settings=eight)
    plain, changed = (analyze(found).expected.tpot.mid for found in (bloom, apply_techniques(bloom, ["llm-int8"])))
    assert 1.1 < changed / plain < 1.28


@pytest.mark.parametrize(
    ("width", "published"),
    [(768, 0.14), (1024, 0.2), (1536, 0.36), (2048, 0.51), (2560, 0.64), (4096, 0.86), (5140, 1.22), (12288, 1.81)],
)
def test_mixed_decomposition_gains_in_prefill_of_wide_layers_only(width: int, published: float) -> None:
    """Speed of an MLP's first layer over FP16, 2048 tokens on A100 (Dettmers et al. 2022, Table 5)."""
    columns: dict[str, Any] = {"m": np.array([2048.0]), "n": 4.0 * width, "k": float(width)}
    plain = kernel_time("gemm", {"dtype": "bf16", **columns}, A100, constants())
    mixed = kernel_time("gemm", {"dtype": "int8", "weight_only": "llm-int8", **columns}, A100, constants())
    assert float(plain[0] / mixed[0]) == pytest.approx(published, rel=0.2)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "hf-eager"])
def test_mixed_decomposition_is_one_kernel_whatever_the_engine(engine: str) -> None:
    chosen = kernel_of("llm-int8-weights", load_engine(engine).weight_only, "hopper")
    assert chosen.name == "llm-int8"


@pytest.mark.parametrize("technique", ["quip-sharp", "squeezellm", "lut-gemm"])
def test_unmeasured_formats_have_a_wide_interval_and_a_reason(technique: str) -> None:
    """Without constants the interval is wide, and the source says why."""
    measured, guessed = (expected(technique=name).expected.tpot for name in ("awq", technique))
    assert guessed.high / guessed.low > 1.6 * measured.high / measured.low
    plain = expected().expected.tpot
    assert guessed.high > 0.9 * plain.mid, "a gain of bits alone is not sure"
    sources = [found.source for found in expected(technique=technique).decode.expected_ops]
    assert any("no kernel of this weight format was measured" in source for source in sources)


@pytest.mark.parametrize("scheme", ["W3", "W3A3", "W4A8", "ternary", "q4_k_m"])
def test_basis_of_a_format_without_a_measured_kernel(scheme: str) -> None:
    found = analyze(Scenario(LLAMA, H100, precision=parse_precision("fp16", scheme), engine="vllm"))
    assert found.decode is not None
    assert found.decode.basis.basis == "unmeasured"
    assert "no kernel" in found.decode.basis.source


def test_a_format_measured_with_another_engine_has_its_constants() -> None:
    """INT8 GEMMs on H100 were measured with other engines than vLLM."""
    found = analyze(Scenario(LLAMA, H100, precision=parse_precision("fp16", "W8A8"), engine="vllm"))
    assert found.decode is not None
    assert found.decode.basis.basis == "engine"


@pytest.mark.parametrize("cache", ["int8", "int4", "int2"])
def test_a_cache_that_no_measured_kernel_reads_is_uncertain(cache: str) -> None:
    """On the H100 kernels were measured for an FP8 cache."""

    def attention(name: str) -> Any:
        precision = parse_precision("fp16", kv=name)
        found = analyze(Scenario(LLAMA, H100, precision=precision, engine="vllm", prompt=2048, batch=32)).decode
        assert found is not None
        return next(op for op, part in zip(found.expected_ops, found.ops, strict=True) if part.kind == "attention")

    measured, guessed = attention("fp8"), attention(cache)
    assert measured.basis == "calibrated"
    assert guessed.basis == "unmeasured"
    assert guessed.time.high / guessed.time.mid > 1.5 > measured.time.high / measured.time.mid


@pytest.mark.parametrize(
    ("hardware", "scheme", "basis"),
    [("h100-sxm", "awq", "calibrated"), ("h100-sxm", "W8A16", "pooled"), ("b200-sxm", "awq", "pooled")],
)
def test_basis_of_weight_only_kernels(hardware: str, scheme: str, basis: str) -> None:
    """Marlin was fitted on Ampere and Hopper, Machete on none, and neither on Blackwell."""
    found = analyze(Scenario(LLAMA, load_hardware(hardware), precision=parse_precision("fp16", scheme)))
    assert found.decode is not None
    assert found.decode.basis.basis == basis


def test_engines_run_different_kernels() -> None:
    """vLLM: Machete for GPTQ on Hopper, Marlin for AWQ; in 2024 the kernel of AWQ's authors."""
    vllm, before = load_engine("vllm").weight_only, load_engine("vllm@0.5").weight_only
    assert kernel_of("gptq", vllm, "hopper").name == "machete"
    assert kernel_of("gptq", vllm, "ampere").name == kernel_of("awq-g64", vllm, "hopper").name == "marlin"
    assert kernel_of("awq", before, "ampere").name == "awq"
    assert kernel_of("gptq", before, "ampere").name == "marlin"
    assert kernel_of("awqish", vllm).name == "unmeasured"


def test_weights_that_the_hardware_multiplies_are_not_converted() -> None:
    """FP8 weights are converted on A100, not on H100."""
    plain = Scenario(LLAMA, H100, precision=parse_precision("bf16", "fp8"))
    native, older = (analyze(plain.changed(hardware=hardware)).prefill for hardware in (H100, A100))
    assert not any("Marlin" in found.source for found in native.expected_ops)
    assert any("Marlin" in found.source for found in older.expected_ops)


@pytest.mark.parametrize(("name", "format"), [("h100-sxm", "int4_wo"), ("mi300x", "bf16"), ("m2-ultra", "bf16")])
def test_converting_experts_of_other_vendors_are_not_marlin(name: str, format: str) -> None:
    """INT4 experts were measured on NVIDIA, where Marlin reaches half the FLOP/s of 16-bit experts in prefill."""
    scenario = Scenario(load_model("qwen3-30b-a3b"), load_hardware(name), precision=parse_precision("fp16", "awq"))
    phase = analyze(scenario).prefill
    kernels = [found for run in phase.passes for found in phase.timed(run).kernels if "moe" in found.matches]
    assert {found.matches["moe"].fit.format for found in kernels} == {format}


def test_profiles_name_known_kernels() -> None:
    for name in list_engines():
        engine = load_engine(name)
        assert set(engine.weight_only.values()) <= set(WEIGHT_ONLY_KERNELS)
    with pytest.raises(SpecError, match="unknown name 'marlim' in 'weight_only'"):
        parse_engine({"name": "x", "weight_only": {"awq": "marlim"}}, "x.yaml")
    with pytest.raises(SpecError, match="'weight_only' must be a mapping"):
        parse_engine({"name": "x", "weight_only": ["awq"]}, "x.yaml")
    assert "weight_only: {awq: awq" in render(load_engine("vllm@0.5"))


@pytest.mark.parametrize(
    ("hardware", "scheme"), [("h100-sxm", "nvfp4"), ("rtx-4090", "nvfp4"), ("a100-sxm-80gb", "fp8")]
)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_weights_without_arithmetic_of_their_own_prefill_no_faster_than_16_bits(
    hardware: str, scheme: str, engine: str
) -> None:
    narrow, wide = (
        analyze(Scenario("llama-3.1-8b", hardware, quant=quant, engine=engine, prompt=2048))
        for quant in (scheme, "bf16")
    )
    assert narrow.expected is not None
    assert wide.expected is not None
    assert narrow.expected.ttft.mid >= wide.expected.ttft.mid
