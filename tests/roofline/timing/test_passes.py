"""Expected times of passes: bounds, order of percentiles, grids, and the formulas of the sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import Scenario, analyze, list_hardware, list_models, load_hardware, load_model
from roofline.core.errors import UnsupportedError
from roofline.graph.extents import Step
from roofline.graph.offload import Offload
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.scenario.speculation import Speculation
from roofline.specs.checkpoint import precision_of
from roofline.specs.engine import Engine, load_engine
from roofline.specs.library import spec_files
from roofline.specs.precision import parse_precision
from roofline.timing.chains import load_calibration
from roofline.timing.evaluation import resolve
from roofline.timing.intervals import Estimate
from roofline.timing.kernels import kernel_time
from roofline.timing.passes import timing
from tests.cases import sampled

LLAMA, H100 = load_model("llama-3.1-8b"), load_hardware("h100-sxm")
IDEAL = load_engine("ideal")
MODELS = sorted(spec_files("modelspecs"))


def ordered(estimate: Estimate) -> bool:
    return bool(np.all(estimate.low <= estimate.mid) and np.all(estimate.mid <= estimate.high))


@pytest.mark.parametrize("hardware", ["h100-sxm", "a100-sxm-80gb", "mi300x", "v100-pcie-16gb", "m2-ultra", "epyc-9654"])
@pytest.mark.parametrize("model", sampled(MODELS[::8], 5))
def test_never_below_the_bound_and_ordered(model: str, hardware: str) -> None:
    answer = analyze(Scenario(load_model(model), load_hardware(hardware), batch=4, prompt=300))
    for phase in (answer.prefill, answer.decode):
        if phase is None:
            continue
        assert ordered(phase.expected)
        assert phase.expected.low >= phase.bound_time * (1 - 1e-9)
        for op, expectation in zip(phase.ops, phase.expected_ops, strict=True):
            assert ordered(expectation.time), op.name
            assert expectation.time.low >= op.bound_time * (1 - 1e-9), op.name
    assert ordered(answer.expected.total)
    assert answer.expected.total.low >= answer.generation.total * (1 - 1e-6)


@given(
    batch=st.integers(1, 300),
    prompt=st.integers(1, 6000),
    model=st.sampled_from(MODELS),
    engine=st.sampled_from(["vllm", "ideal", "llama.cpp", "hf-eager"]),
)
def test_arrays_agree_with_scalars(batch: int, prompt: int, model: str, engine: str) -> None:
    spec, batches = load_model(model), np.array([1, batch, 2 * batch])
    grid = analyze(Scenario(spec, H100, batch=batches, prompt=prompt, generate=20, engine=engine))
    single = analyze(Scenario(spec, H100, batch=batch, prompt=prompt, generate=20, engine=engine))
    for many, one in [
        (grid.prefill.expected, single.prefill.expected),
        (grid.expected.total, single.expected.total),
        (grid.expected.ttft, single.expected.ttft),
    ]:
        for end, value in zip(many, one, strict=True):
            assert end[1] == pytest.approx(value, rel=1e-9)
    for many_op, one_op in zip(grid.prefill.expected_ops, single.prefill.expected_ops, strict=True):
        assert many_op.time.mid[1] == pytest.approx(one_op.time.mid, rel=1e-9, abs=1e-15)


def test_a_large_grid_agrees_with_its_points() -> None:
    grid = analyze(Scenario(LLAMA, H100, batch=np.arange(1, 101)[:, None], prompt=7 * np.arange(1, 121)[None, :]))
    for row, column in [(0, 0), (0, 119), (41, 77), (99, 119), (99, 1)]:
        one = analyze(Scenario(LLAMA, H100, batch=row + 1, prompt=7 * (column + 1)))
        assert grid.prefill.expected.mid[row, column] == pytest.approx(one.prefill.expected.mid, rel=1e-9)
        assert grid.decode is not None
        assert one.decode is not None
        assert grid.decode.expected.high[row, column] == pytest.approx(one.decode.expected.high, rel=1e-9)


def test_time_grows_with_batch_and_length_up_to_tile_steps() -> None:
    batches = 2 ** np.arange(9)
    answer = analyze(Scenario(LLAMA, H100, batch=batches[:, None], prompt=512 * batches[None, :]))
    assert answer.decode is not None
    for time in (answer.prefill.expected.mid, answer.decode.expected.mid):
        assert (np.diff(time, axis=0) > -0.02 * time[:-1]).all()
        assert (np.diff(time, axis=1) > -0.02 * time[:, :-1]).all()


def test_a_pass_is_the_sum_of_its_kernels_and_the_host() -> None:
    step = Step(3, 1, 700)
    engine = Engine("mine", fusions=IDEAL.fusions, parameters={"step": 2e-3, "sequence": 1e-4, "gap": 1e-6})
    placement = analyze(Scenario(LLAMA, H100)).decode
    assert placement is not None
    kernels = timing(placement.passes[0].placement, engine, load_calibration(H100))
    detail = kernels.detail(step)
    counts = [kernel.count for kernel in kernels.kernels]
    expected = float(np.dot(counts, detail.mid[:, 0])) + sum(counts) * 1e-6 + 2e-3 + 3 * 1e-4
    assert resolve(kernels.deferred(step, "decode")).mid[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "counted"),
    [
        *(("llama-3.2-1b", 43), ("qwen3-0.6b", 58), ("qwen3-30b-a3b", 92)),  # traced on an H200 (lab/data/transformers)
        *(("gpt2-xl", 22), ("opt-13b", 18), ("bloom-7b1", 27), ("falcon-7b", 26), ("pythia-1b", 27), ("phi-2", 35)),
    ],
)
def test_transformers_launches_the_operators_that_its_code_runs(model: str, counted: int) -> None:
    """Kernels of a layer: traced, or operators that Transformers 5.24 dispatches and attention's three more on GPUs."""
    phase = analyze(Scenario(model, "h200-sxm", engine="hf-eager", generate=2)).decode
    assert phase is not None
    assert phase.timed(phase.passes[0]).number / load_model(model).layers == pytest.approx(counted, rel=0.13)


def test_kernel_time_is_divided_among_its_operators() -> None:
    answer = analyze(Scenario(LLAMA, H100, batch=16, prompt=1024, engine=IDEAL))
    for phase in (answer.prefill, answer.decode):
        assert phase is not None
        summed = sum(op.count * e.time.mid for op, e in zip(phase.ops, phase.expected_ops, strict=True))
        assert phase.expected.mid == pytest.approx(summed, rel=1e-9)


def test_qkv_is_one_gemm_of_the_calibrated_form() -> None:
    answer = analyze(Scenario(LLAMA, H100, batch=4, prompt=1024, engine=IDEAL))
    by_name = {op.name: e for op, e in zip(answer.prefill.ops, answer.prefill.expected_ops, strict=True)}
    fused = sum(by_name[name].time.mid for name in ("q_proj", "k_proj", "v_proj"))
    match = load_calibration(H100).find("gemm", "bf16")
    assert match is not None
    columns = {"dtype": "bf16", "m": 4096.0, "n": 6144.0, "k": 4096.0}
    assert fused == pytest.approx(float(kernel_time("gemm", columns, H100, match.fit.parameters)), rel=1e-9)
    assert by_name["q_proj"].basis == "calibrated"
    assert by_name["q_proj"].source.startswith("h100-sxm")


def test_without_cuda_graphs_a_small_model_is_launch_bound() -> None:
    slow = Engine("slow", fusions=IDEAL.fusions, graphs=(), parameters={"issue": 50e-6})
    answer = analyze(Scenario(load_model("opt-125m"), H100, engine=slow))
    assert answer.decode is not None
    passes = answer.decode.passes[0]
    kernels = timing(passes.placement, slow, load_calibration(H100)).kernels
    assert answer.decode.expected.mid == pytest.approx(50e-6 * sum(kernel.count for kernel in kernels), rel=1e-9)


@pytest.mark.parametrize(
    ("parameter", "value", "slower"),
    [
        ("launch", 2.0, True),
        ("memory", 0.8, True),
        ("kv_reread", 0.5, True),
        ("prefill", 1.5, True),
        ("decode", 1.5, True),
        ("decode", 0.9, False),
        ("gap", 1e-6, True),
        ("memory", 1.2, False),
    ],
)
def test_engine_parameters_change_the_time(parameter: str, value: float, slower: bool) -> None:
    changed = replace(IDEAL, name="changed", parameters={parameter: value})
    before = analyze(Scenario(LLAMA, H100, batch=64, prompt=4096, engine=IDEAL)).expected.total.mid
    after = analyze(Scenario(LLAMA, H100, batch=64, prompt=4096, engine=changed)).expected.total.mid
    assert (after > before) is slower


def test_collectives_scale_with_the_engine_factor() -> None:
    run = Settings(parallel=Parallelism(tensor=8))
    quick = replace(IDEAL, name="quick", parameters={"collective": 0.5})
    one, half = (analyze(Scenario(LLAMA, H100, settings=run, engine=engine)) for engine in (IDEAL, quick))
    assert one.decode is not None
    assert half.decode is not None
    names = [op.name for op in one.decode.ops]
    index = names.index("attn_all_reduce")
    assert half.decode.expected_ops[index].time.mid == pytest.approx(one.decode.expected_ops[index].time.mid / 2)


@pytest.mark.parametrize(
    ("hardware", "basis"),
    [
        ("h100-sxm", "calibrated"),
        ("h20", "family"),
        ("rtx-4090", "family"),
        ("mi300x", "family"),
        ("gaudi-3", "pooled"),
    ],
)
def test_the_basis_is_the_nearest_calibration(hardware: str, basis: str) -> None:
    answer = analyze(Scenario(LLAMA, load_hardware(hardware), batch=8, prompt=1024))
    assert answer.prefill.basis.basis == basis


def test_int8_moe_uses_block_scaled_constants() -> None:
    """Rows of experts in FP8 with one scale are of kernels that differ by threefold, which no interval should have."""
    for name in ("rtx-5080", "dgx-spark", "h100-sxm"):
        found, other = (load_calibration(load_hardware(name)).find("moe", form) for form in ("int8", "fp8_block"))
        assert found is not None
        assert other is not None
        assert (found.fit.format, found.fit.version, found.place) == ("fp8_block", other.fit.version, other.place)
    precision = parse_precision("bf16", "mxfp4_moe")
    card, experts = load_hardware("rtx-5080"), load_model("gpt-oss-20b")
    time = analyze(Scenario(experts, card, precision=precision, engine="llama.cpp")).expected.tpot
    assert time is not None
    assert time.high < 3 * time.low


@pytest.mark.parametrize(
    "run",
    [
        Settings(chunk=256),
        Settings(speculation=Speculation(4, 2.5, 4, draft=load_model("llama-3.2-1b"))),
        Settings(parallel=Parallelism(tensor=2, pipeline=2, nodes=2)),
        Settings(parallel=Parallelism(sequence=2)),
        Settings(offload=Offload(weights=0.5)),
        Settings(decode_hardware=load_hardware("h20")),
        Settings(depth=0.5),
        Settings(beams=4),
    ],
)
def test_every_schedule_has_expected_times(run: Settings) -> None:
    answer = analyze(Scenario(LLAMA, H100, batch=2, prompt=900, generate=30, settings=run))
    assert ordered(answer.expected.total)
    assert answer.expected.total.mid > answer.generation.total


def test_one_generated_token_has_no_tpot() -> None:
    answer = analyze(Scenario(LLAMA, H100, generate=1))
    assert answer.expected.tpot is None
    assert answer.expected.total == answer.expected.ttft


def test_generation_time_is_the_sum_of_its_steps() -> None:
    for name in ("llama-3.1-8b", "gemma-2-9b"):
        model = load_model(name)
        answer = analyze(Scenario(model, H100, batch=4, prompt=3900, generate=400))
        steps = analyze(Scenario(model, H100, batch=4, prompt=3900, context=3900 + np.arange(399)))
        assert steps.decode is not None
        summed = answer.expected.ttft.mid + steps.decode.expected.mid.sum()
        assert answer.expected.total.mid == pytest.approx(summed, rel=2e-3)


def test_hardware_without_matrix_units_does_not_fill_tiles() -> None:
    answer = analyze(Scenario(LLAMA, load_hardware("m1-pro"), engine=IDEAL))
    assert answer.decode is not None
    assert answer.decode.expected.mid < 2.0 * answer.decode.bound_time


def test_moe_runs_the_faster_of_two_kernels() -> None:
    model = load_model("mixtral-8x7b")
    per_tensor, blocks = (
        analyze(Scenario(model, H100, batch=8, precision=parse_precision("bf16", scheme), engine=IDEAL))
        for scheme in ("fp8", "fp8_block")
    )
    assert per_tensor.decode is not None
    assert blocks.decode is not None
    assert per_tensor.decode.expected.mid <= 1.05 * blocks.decode.expected.mid


def test_a_kv_cache_in_an_unsupported_format_is_upcast() -> None:
    a100, precision = load_hardware("a100-sxm-80gb"), parse_precision("bf16", kv="fp8")
    free = replace(IDEAL, name="free conversion", parameters={"kv_conversion": 0.0})
    step = {"batch": 16, "prompt": 4096, "precision": precision}
    slow, fast = (analyze(Scenario(LLAMA, a100, engine=engine, **step)).expected.tpot for engine in (IDEAL, free))
    assert slow is not None
    assert fast is not None
    work = 32 * 2 * 16 * 32 * 4096 * 128 * IDEAL["kv_conversion"] / a100.vector_peak
    assert fast.mid < slow.mid < fast.mid + work
    assert slow.mid > 0.9 * work
    # Nine queries read the same cache as one, and convert as much of it.
    one, nine = (
        analyze(Scenario(LLAMA, a100, batch=16, prompt=count, prefix=4088, precision=precision, engine=IDEAL))
        for count in (1, 9)
    )
    assert nine.expected.ttft.mid > 0.9 * one.expected.ttft.mid
    integers = (
        analyze(Scenario(LLAMA, a100, engine=engine, **{**step, "precision": parse_precision("bf16", kv="int4")}))
        for engine in (IDEAL, free)
    )
    assert next(integers).expected.tpot == next(integers).expected.tpot
    native = analyze(Scenario(LLAMA, H100, engine=IDEAL, **step)).expected.tpot
    same = analyze(Scenario(LLAMA, H100, engine=free, **step)).expected.tpot
    assert native == same


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-68m", "deepseek-v2-lite", "mamba-2.8b", "gemma-3-4b"])
def test_p10_is_never_below_the_bound(model: str) -> None:
    loose = replace(load_engine("ideal"), spread=(0.05, 4.0))  # an engine of which nothing is sure
    for batch, prompt in ((1, 4), (3, 333), (64, 2000)):
        answer = analyze(
            Scenario(load_model(model), load_hardware("l4"), batch=batch, prompt=prompt, generate=8, engine=loose)
        )
        for phase in (answer.prefill, answer.decode):
            assert phase is not None
            assert phase.expected.low == phase.bound_time  # to the last bit: sums are taken in one order


ENGINES = ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "llama.cpp", "hf-eager")
PROMPTS = np.unique([*range(1, 530), *range(600, 4200, 37), 768, 769, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096])


@example("qwen2.5-7b", "a30", "ideal", "bf16", 2, 0)  # attention kernels of decode and of prefill
@example("llama-2-7b", "a100-sxm-80gb", "tensorrt-llm", "awq", 1, 0)  # weights multiplied by vector units
@example("mistral-large-3", "gb300", "hf-eager", "awq", 1, 0)  # weights converted in memory
@example("llama-4-maverick", "a100-sxm-80gb", "tensorrt-llm", "bf16", 1, 5000)  # pieces of a chunk of attention
@example("mistral-7b-v0.3", "h800-sxm", "hf-eager", "fp8", 3, 100)  # rows in multiples of 8
@example("qwen2.5-0.5b", "epyc-9654", "llama.cpp", "q8_0", 2, 0)  # tiles of CPUs
@example("qwen2-7b", "a100-pcie-80gb", "lmdeploy", "bf16", 2, 0)  # splits of keys
@example("qwen3.5-27b", "xeon-6980p", "sglang", "fp8", 3, 0)  # threads of elementwise kernels
@example("gemma-2-9b", "a10", "vllm", "bf16", 2, 5000)  # one token after a prefix, under a window
@given(
    st.sampled_from(list_models()),
    st.sampled_from(list_hardware()),
    st.sampled_from(ENGINES),
    st.sampled_from(("bf16", "fp8", "awq", "w8a8", "nvfp4", "q8_0", "nf4", "mxfp4")),
    st.sampled_from((1, 2, 3, 8, 32)),
    st.sampled_from((0, 100, 5000)),
)
def test_longer_prompts_are_never_expected_faster(
    model: str, hardware: str, engine: str, scheme: str, batch: int, prefix: int
) -> None:
    loaded, device = load_model(model), load_hardware(hardware)
    precision = precision_of(loaded, device, engine, scheme=scheme)
    scenario = Scenario(loaded, device, prompt=64, generate=4, batch=batch, precision=precision, engine=engine)
    try:
        phase = analyze(scenario).prefill
    except UnsupportedError:  # a TPU has no wide arithmetic for some routers
        reject()
    run = phase.passes[-1]
    step = run.step._replace(queries=PROMPTS) if run.step.source else Step(batch, PROMPTS, prefix)
    times = resolve(phase.timed(run).deferred(step, "prefill")).mid
    # After a prefix chunks of attention have unequal keys, of which a kernel takes the mean: other numbers of tiles of
    # a whole chunk, or, of `flash` with its chunks of 256, of splits (up to 4%, lab/notes/kernels.md).
    divided = prefix > 0 and model.startswith("llama-4")
    if prefix > 0 and model == "flash":
        reject()
    least = np.full(times.size - 1, -2e-3 if divided else -1e-9)
    # After a prefix, one token runs the kernel of decode, which reads the keys of a window for each query head.
    least[0] = min(least[0], -2e-3 if prefix > 0 else 0.0)
    assert (np.diff(times) >= least * times[:-1]).all()


def test_constants_of_a_card_with_error_correction_on_one_without_it() -> None:
    """An L40S checks its GDDR6 in band, a GeForce does not: 93 tokens/s of Qwen2.5 14B on a 4090, in llama.cpp."""
    found = analyze(Scenario("qwen2.5-14b", "rtx-4090", engine="llama.cpp", quant="q4_k_m", prompt=1, generate=129))
    assert 1 / found.expected.tpot.mid == pytest.approx(92.49, rel=0.08)
