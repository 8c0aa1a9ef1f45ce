"""Kernels of sparse attention, recurrent steps, delta attention and hyper-connections, in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from roofline import load_hardware
from roofline.timing.kernels import kernel_time
from roofline.timing.kernels.common import reachable_bandwidth, unit_clocks
from roofline.timing.kernels.gated_delta_rule import KIMI as DELTA
from roofline.timing.kernels.sparse import prefill_parameters
from roofline.timing.kernels.streaming import CONVOLUTION, MIXING, SCAN, STEP

H200 = load_hardware("h200-sxm")
UNITS = 132
ONLY_MEMORY = {"launch": 1e-6, "sharpness": 20.0, "head": 1e-30, "row": 1e-30, "tile_prologue": 1e-30}


def seconds(op: str, parameters: tuple[Any, ...], constants: dict[str, float], **columns: Any) -> float:
    known = {parameter.name: parameter.default for parameter in parameters}
    chosen = known | {name: value for name, value in constants.items() if name in known}
    return float(kernel_time(op, columns, H200, chosen))


@pytest.mark.parametrize(("tokens", "copies"), [(1, 2), (4, 5)])
def test_a_step_reads_states_once_and_writes_one_a_token(tokens: int, copies: int) -> None:
    state = 64 * 32 * 128 * 128 * 4
    found = seconds(
        "state_update",
        STEP,
        ONLY_MEMORY | {"memory_efficiency": 0.5},
        batch=64,
        q_len=tokens,
        heads=32,
        key_dim=128,
        value_dim=128,
    )
    assert found == pytest.approx(1e-6 + copies * state / (0.5 * H200.memory_bandwidth), rel=1e-6)


@pytest.mark.parametrize("op", ["convolution_prefill", "convolution_decode"])
def test_a_convolution_reads_and_writes_its_channels_and_reads_those_before(op: str) -> None:
    found = seconds(
        op,
        CONVOLUTION,
        ONLY_MEMORY | {"memory_efficiency": 1.0},
        batch=8,
        q_len=1000,
        channels=8192,
        taps=4,
    )
    assert found == pytest.approx(1e-6 + 8 * 8192 * 2 * 2004 / reachable_bandwidth(H200), rel=1e-6)


def test_hyper_connections_read_the_stream_twice_before_a_sub_layer() -> None:
    found = seconds(
        "hyper_connection",
        MIXING,
        ONLY_MEMORY | {"memory_efficiency": 1.0},
        variant="pre",
        tokens=4096,
        hidden=7168,
        streams=4,
    )
    assert found == pytest.approx(1e-6 + 4096 * 7168 * 2 * 9 / H200.memory_bandwidth, rel=1e-6)


DSA = {"heads": 16, "width": 2176.0, "entry": 656.0, "index_flops": 16384.0, "index_key": 132.0, "slots": 2048.0}
DSA |= {"variant": "dsa", "dtype": "bf16", "kv_dtype": "fp8"}
SPARSE = prefill_parameters("csa/fp8")
ONLY_UNITS = {"launch": 1e-6, "gather_rate": 8.0, "passes": 0.01, "score_efficiency": 1.0, "sharpness": 20.0}


def sparse(op: str, **given: Any) -> float:
    """Seconds of a sparse attention of 10,000 tokens without scores, unless given."""
    constants = {name: value for name, value in given.items() if name in {one.name for one in SPARSE}}
    columns = {"batch": 1e4, "kv_len": 2048.0, "scored": 0.0, **DSA}
    columns |= {name: value for name, value in given.items() if name not in constants}
    return seconds(op, SPARSE, ONLY_UNITS | constants, **columns)


@pytest.mark.parametrize(("tile", "heads"), [(0, 16), (1, 16), (2, 64), (3, 128)])
def test_tiles_pad_the_heads_of_a_token(tile: int, heads: int) -> None:
    own, padded = (sparse("sparse_prefill", tile=tile, heads=count) for count in (16, heads))
    assert own == pytest.approx(padded, rel=0.02)


@pytest.mark.parametrize("padded", [0, 1])
def test_small_kernels_pass_over_the_heads_of_an_engines_buffers(padded: int) -> None:
    """vLLM writes the queries of 16 heads into those of 64 (`padded_heads` of its attention of DeepSeek-V4)."""
    sizes = {"tile": 2, "padded": padded, "compute_efficiency": 1.0, "passes": 200.0, "kv_len": 16.0}
    few, all_heads = (sparse("sparse_prefill", heads=heads, **sizes) for heads in (16, 64))
    assert few == pytest.approx(all_heads if padded else all_heads / 4, rel=0.02)


def test_all_slots_of_a_selection_take_time_where_kernels_pass_over_them() -> None:
    few, all_slots = (sparse("sparse_prefill", whole=1.0, kv_len=keys) for keys in (16.0, 2048.0))
    assert few == pytest.approx(all_slots, rel=1e-6)


def test_decode_reads_the_index_keys_of_every_token() -> None:
    prompt, step = (sparse(op, scored=1e9) for op in ("sparse_prefill", "sparse_decode"))
    assert step - prompt == pytest.approx(1e9 * 132 / H200.memory_bandwidth, rel=1e-4)


@pytest.mark.parametrize(("last", "share"), [(2000, 0.0), (8192, 0.75), (32768, 0.9375)])
def test_selections_take_time_for_the_tokens_that_see_more_keys_than_they_keep(last: int, share: float) -> None:
    """Of a prompt without a prefix, whose tokens see 1 to `last` keys and keep 2,048 of them."""
    seen = np.arange(1, last + 1)
    sizes = {"kv_len": np.minimum(seen, 2048).mean(), "scored": 1e4 * seen.mean()}
    none, some = (sparse("sparse_prefill", selection=clocks, **sizes) for clocks in (0.0, 1e5))
    assert some - none == pytest.approx(share * 1e4 * 1e5 / unit_clocks(H200), rel=1e-3, abs=1e-9)


def test_kernels_for_fewer_heads_than_128_may_be_slower() -> None:
    """TensorRT-LLM 1.2's with 64 heads take longer than with 128."""
    fewer, all_heads = (sparse("sparse_prefill", tile=2, partial=7.0, heads=heads) for heads in (64, 128))
    assert fewer == pytest.approx(3.5 * all_heads, rel=0.02)


def test_dense_attention_skips_the_indexer_where_nothing_is_left_out() -> None:
    complete, chosen = (sparse("sparse_prefill", dense=1.0, kv_len=1000.0, scored=1e4 * s) for s in (1000, 1001))
    assert complete < 0.5 * chosen
    glm = {"index_flops": 8192.0, "kv_len": 1000.0, "scored": 1e7}
    dense, indexed = (sparse("sparse_prefill", dense=choice, **glm) for choice in (1.0, 2.0))
    assert dense < 0.5 * indexed


@pytest.mark.parametrize(
    ("op", "parameters", "sizes"),
    [
        ("kimi_delta", DELTA, {"variant": "fused", "key_dim": 128.0, "value_dim": 128.0}),
        ("mamba2", SCAN, {"head_dim": 64.0, "state": 128.0, "groups": 8.0, "chunk": 256.0}),
    ],
)
def test_heads_beyond_the_units_take_another_round(op: str, parameters: tuple[Any, ...], sizes: dict[str, Any]) -> None:
    constants = {"launch": 1e-6, "token": 300e-9, "sharpness": 20.0, "head": 1e-9}
    one, two = (
        seconds(op, parameters, constants, batch=1.0, q_len=8192.0, heads=float(heads), **sizes)
        for heads in (UNITS, UNITS + 1)
    )
    assert two - one == pytest.approx(8192 * 300e-9, rel=0.02)
