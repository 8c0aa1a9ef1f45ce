"""Attention beyond heads of 128 elements: softmax beside products, and dimensions without a kernel of their own."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import Hardware, Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.specs.modelspec import parse_model
from roofline.specs.written import to_spec
from roofline.timing.kernels import Array, kernel, kernel_time

B200, H100 = load_hardware("b200-sxm"), load_hardware("h100-sxm")
LONG = {"dtype": "bf16", "batch": 8.0, "q_len": 8192.0, "kv_len": 8192.0, "heads": 64.0, "kv_heads": 8.0, "window": 0.0}
STEP = {**LONG, "batch": 256.0, "q_len": 1.0}


def times(op: str, dims: list[float], shape: dict[str, object], hardware: Hardware = B200, **constants: float) -> Array:
    known = {one.name: one.default for one in kernel(op).parameters("bf16")}
    known |= {"sharpness": 20.0, "tile_prologue": 1e-8, **constants}
    return kernel_time(op, {**shape, "head_dim": np.array(dims)}, hardware, known)  # type: ignore[arg-type]


def test_the_softmax_of_a_score_takes_clocks_of_a_multiprocessor() -> None:
    """One clock for each score below the diagonal, on 108 multiprocessors at 1.41 GHz, whatever the format."""
    a100 = load_hardware("a100-sxm-80gb")
    known = {one.name: one.default for one in kernel("attention_prefill").parameters("bf16")}
    shape = {**LONG, "head_dim": 128.0}
    one, none = (
        kernel_time("attention_prefill", shape, a100, {**known, "sharpness": 20.0, "softmax": clocks})  # type: ignore[arg-type]
        for clocks in (1.0, 0.0)
    )
    scores = 8 * 64 * 8192 * 8193 / 2
    assert one - none == pytest.approx(scores / (108 * 1.41e9), rel=0.03)  # tiles on the diagonal are whole


@pytest.mark.parametrize(("op", "shape"), [("attention_prefill", LONG), ("attention_decode", STEP)])
def test_only_dimensions_without_a_kernel_are_slower(op: str, shape: dict[str, object]) -> None:
    """160 is the mean of MLA's expanded heads, which have kernels."""
    dims = [64.0, 80.0, 96.0, 128.0, 160.0, 192.0, 256.0, 512.0]
    slower = times(op, dims, shape, other_dim=3.0) / times(op, dims, shape)
    np.testing.assert_allclose(slower, [1.0, 1.0, 1.0, 1.0, 1.0, 4.0, 1.0, 1.0], rtol=0.03)


def test_a_mean_over_keys_and_values_is_no_dimension_without_a_kernel() -> None:
    """Heads of 256 for keys and 128 for values have a mean of 192."""
    shape = {**LONG, "uneven": 1.0}
    assert times("attention_prefill", [192.0], shape, other_dim=3.0) == times("attention_prefill", [192.0], shape)


def test_prefill_of_mla_on_blackwell_is_not_that_of_heads_without_a_kernel() -> None:
    """8,192 tokens of DeepSeek-R1 in FP4 on eight B200 take less than 0.3 s; as heads of 192 four times that."""
    eight = Settings(parallel=Parallelism(tensor=8))
    precision = parse_precision("bf16", "nvfp4")
    found = analyze(
        Scenario(
            load_model("deepseek-r1"),
            load_hardware("b200-sxm"),
            prompt=8192,
            precision=precision,
            settings=eight,
            engine="sglang",
        )
    )
    assert found.expected.ttft.mid < 0.3


def test_single_queries_of_a_group_fill_one_tile_or_one_each() -> None:
    """Where tiles take all time, eight heads of a group take eight times as long alone."""
    shape = {**LONG, "batch": 4096.0, "q_len": 1.0, "kv_len": 1.0}
    constants = {"tile_prologue": 1e-5, "token": 0.0, "launch": 0.0, "tiling": 0.0}
    packed, apart = (times("attention_prefill", [128.0], shape, pack_single=value, **constants)[0] for value in (1, 0))
    assert apart == pytest.approx(8 * packed, rel=0.02)


GROUPED = {"grouped": 1.0, "tile_prologue": 3e-6, "head_prologue": 1e-6, "regroup": 0.0, "sequence": 0.0}


def test_few_items_run_the_kernel_of_single_heads() -> None:
    """33 KV heads are a quarter of the multiprocessors of H100, with up to 128 keys each; fewer are not."""
    small = {**STEP, "kv_len": 64.0, "batch": 1.0}
    few, enough = ({**small, "kv_heads": heads, "heads": 8 * heads} for heads in (32.0, 33.0))
    assert runs_alone(few, H100)
    assert not runs_alone(enough, H100)
    assert not runs_alone({**few, "kv_len": 256.0}, H100)


@pytest.mark.parametrize(("group", "alone"), [(1, False), (16, False), (17, True)])
def test_tensor_memory_has_a_grouped_kernel_for_any_group_up_to_16(group: int, alone: bool) -> None:
    assert runs_alone({**STEP, "kv_heads": 1.0, "heads": float(group), "batch": 1.0}, B200) == alone
    assert runs_alone({**STEP, "ungrouped": 1.0}, B200)


def runs_alone(shape: dict[str, object], hardware: Hardware) -> bool:
    """Whether the kernel of single heads runs, whose blocks of keys are shorter."""
    together, alone = (
        times("attention_decode", [128.0], shape, hardware, **GROUPED | {"grouped": value}) for value in (1.0, 0.0)
    )
    return bool(together == alone)


def test_a_cache_of_keys_alone_is_read_once_by_the_grouped_kernel_and_twice_by_the_other() -> None:
    """TensorRT-LLM 1.3 on H100 reads groups of 2 at up to 5.5 TB/s of 3.35, single heads at 2.9 (public rows)."""
    large = {**STEP, "batch": 4096.0, "kv_len": 8192.0}
    fast = {**GROUPED, "unit_bandwidth": 1.5e12, "tile_prologue": 1e-9, "head_prologue": 1e-9, "head_slowdown": 0.0}
    for heads, ratio in ((16.0, 0.5), (8.0, 1.0)):
        shape = {**large, "heads": heads}
        half, whole = (
            times("attention_decode", [128.0], {**shape, "keys_only": keys}, H100, **fast) for keys in (1.0, 0.0)
        )
        assert half / whole == pytest.approx(ratio, rel=0.02)


def test_blackwell_ultra_computes_exponentials_twice_as_fast() -> None:
    """The softmax takes half the time; the rest of prefill is that of a GPU with the usual 16 a clock."""
    ultra = load_hardware("b300-sxm")
    usual = replace(ultra, exponentials=None)
    softmax = [
        times("attention_prefill", [128.0], LONG, gpu, softmax=0.05)
        - times("attention_prefill", [128.0], LONG, gpu, softmax=0.0)
        for gpu in (ultra, usual)
    ]
    assert softmax[0] == pytest.approx(softmax[1] / 2, rel=1e-3)


def test_grouped_kernels_take_128_keys_at_a_time() -> None:
    """As TensorRT-LLM's rows on A100: 4,096 items take as long with 2 keys as with 128."""
    shape = {**STEP, "kv_heads": 8.0, "batch": 512.0}
    found = [
        times("attention_decode", [128.0], {**shape, "kv_len": keys}, **GROUPED)[0] for keys in (2.0, 128.0, 129.0)
    ]
    assert found[0] == pytest.approx(found[1], rel=0.1)
    assert found[2] > 1.05 * found[1]
    fuller = {**GROUPED, "grouped": 2.0}
    whole, half = (
        [times("attention_decode", [128.0], {**shape, "kv_len": keys}, gpu, **fuller)[0] for gpu in (B200, H100)]
        for keys in (128.0, 64.0)
    )
    assert half[0] / whole[0] > 0.95 > half[1] / whole[1]


def test_the_grouped_kernel_splits_long_sequences_by_a_rule() -> None:
    """One item a multiprocessor of H100, where starting parts takes all time: the parts of a sequence.

    256 keys make 2, 4,096 the root of 8 * 32, which is 16, but no more than 8 waves, whatever a window hides; half a
    wave of items makes 16 then.
    """
    wave = {**STEP, "kv_heads": 11.0, "heads": 88.0, "batch": 12.0}
    starting = {**GROUPED, "tile_prologue": 1e-2, "unit_bandwidth": 1.5e12, "combine": 5e-8, "wave_quantization": 1.0}
    cases = [{"kv_len": 64.0}, {"kv_len": 256.0}, {"kv_len": 4096.0}, {"kv_len": 4096.0, "window": 128.0}]
    cases.append({"kv_len": 4096.0, "batch": 6.0})
    found = np.array([times("attention_decode", [128.0], wave | case, H100, **starting)[0] for case in cases])
    np.testing.assert_allclose(found / found[0], [1.0, 2.0, 8.0, 8.0, 8.0], rtol=0.01)


def test_under_a_window_flash_attention_2_has_an_item_for_each_query_head() -> None:
    """Where items take all time, the eight heads of a group take eight times as long; without a window as before."""
    shape = {**STEP, "kv_len": 128.0}
    slow = {"tile_prologue": 2e-5, "regroup": 0.0, "sequence": 0.0, "launch": 1e-9, "wave_quantization": 0.01}
    grouped, apart, unlimited, selected = (
        times("attention_decode", [64.0], {**shape, **limit}, H100, window_grouped=value, **slow)[0]
        for limit, value in (
            ({"window": 128.0}, 1.0),
            ({"window": 128.0}, 0.0),
            ({}, 0.0),
            ({"window": 128.0, "selected": 1.0}, 0.0),
        )
    )
    assert apart == pytest.approx(8 * grouped, rel=0.02)
    assert [unlimited, selected] == pytest.approx([grouped, grouped], rel=0.02)


def test_a_window_that_hides_keys_is_read_with_the_blocks_around_it() -> None:
    """128 keys of many: two blocks of 64 more, but no key that there is not; a model's layer ends at its window."""
    shape, model = {**STEP, "batch": 8192.0, "window": 128.0}, kernel("attention_decode")

    def time(keys: float, blocks: float, all_keys: bool = True) -> float:
        known = {one.name: one.default for one in model.parameters("bf16")}
        fast = {"unit_bandwidth": 1.5e12, "tile_prologue": 1e-9, "launch": 1e-9, "sequence": 0.0}
        row = {**shape, "kv_len": keys, "head_dim": np.array([128.0])}
        keys_of = replace(model.shape(row), all_keys=all_keys)
        return float(model.terms(keys_of, H100, {**known, **fast, "window_blocks": blocks}).seconds[0])

    assert time(9000.0, 2.0) == pytest.approx(2 * time(9000.0, 0.0), rel=0.05)
    assert time(192.0, 2.0) == pytest.approx(1.5 * time(192.0, 0.0), rel=0.05)
    assert time(128.0, 2.0) == time(128.0, 0.0)
    assert time(128.0, 2.0, all_keys=False) == pytest.approx(2 * time(128.0, 0.0, all_keys=False), rel=0.05)


def test_the_general_kernel_of_prefill_packs_short_prompts_into_tiles_of_16_rows() -> None:
    """Of 16 queries of a group of 16 heads, 16 tiles; one head's 256-row tile would hold 16 of its own.

    A kernel of other dimensions, half as fast again, has the tiles of the others.
    """
    shape = {**LONG, "q_len": 16.0, "kv_len": 16.0, "heads": 64.0, "kv_heads": 4.0, "batch": 4096.0}
    known = {"tile_prologue": 1e-9, "token": 0.0, "launch": 1e-9, "tiling": 3.0}
    usual, slower, general = (
        times("attention_prefill", [192.0], shape, other_dim=value, **known)[0] for value in (0.0, 0.4, 9.0)
    )
    assert slower == pytest.approx(1.4 * usual, rel=0.05)
    assert general < usual


def test_a_window_hides_no_keys_from_the_general_kernel_of_sglang() -> None:
    """On B200 it does 110 TFLOP/s of a whole triangle under windows of 128 and 1,024 alike (SGLang 0.5.10)."""

    def time(window: float, extend: float) -> float:
        shape = {**LONG, "window": window, "extend": extend}
        return float(times("attention_prefill", [192.0], shape, other_dim=3.0, token=0.0)[0])

    assert time(128.0, extend=1.0) == time(0.0, extend=1.0)
    assert time(128.0, extend=0.0) < time(0.0, extend=0.0) / 10


@pytest.mark.parametrize(("engine", "least", "most"), [("sglang", 64, 256), ("vllm", 14, 17)])
def test_the_general_kernel_is_that_of_the_engine(engine: str, least: float, most: float) -> None:
    """Prompts of 32,768 and 2,048 tokens of Mistral 7B with heads of 192 and a window of 128: FP8 caches on B200."""
    spec = to_spec(load_model("mistral-7b"))
    model = parse_model({**spec, "attention": {**spec["attention"], "head_dim": 192, "window": 128}}, "wide")

    def ttft(prompt: int) -> float:
        scenario = Scenario(model, B200, prompt=prompt, precision=parse_precision("bf16", kv="fp8"), engine=engine)
        found = analyze(scenario).expected
        assert found is not None
        return float(found.ttft.mid)

    assert least < ttft(32768) / ttft(2048) < most
