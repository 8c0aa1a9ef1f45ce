"""Kernels of sparse attention, recurrent steps, delta attention and hyper-connections, in closed form."""

from __future__ import annotations

from typing import Any

import pytest

from roofline import load_hardware
from roofline.timing.kernels import kernel_time
from roofline.timing.kernels.hyper_connection import PARAMETERS as MIXING
from roofline.timing.kernels.kimi_delta import PARAMETERS as DELTA
from roofline.timing.kernels.recurrent import CONVOLUTION
from roofline.timing.kernels.recurrent import PARAMETERS as STEP
from roofline.timing.kernels.sparse import GATHERED, SCORES
from roofline.timing.kernels.state_space import PARAMETERS as SCAN

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
    assert found == pytest.approx(1e-6 + 8 * 8192 * 2 * 2004 / H200.memory_bandwidth, rel=1e-6)


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


def test_scores_are_written_in_32_bits_for_every_key() -> None:
    found = seconds(
        "index_scores",
        SCORES,
        ONLY_MEMORY | {"memory_efficiency": 1.0, "compute_efficiency": 1.0},
        batch=1,
        kv_len=1e8,
        heads=1,
        head_dim=128,
        dtype="fp8",
        kv_dtype="fp8",
    )
    assert found == pytest.approx(1e-6 + 1e8 * (128 + 4) / H200.memory_bandwidth, rel=0.05)


def test_idle_units_share_the_entries_of_a_token() -> None:
    """The 64 blocks of a token are 64 parts: they take as long as one block, and six steps of combination."""
    sizes = {"batch": 1, "heads": 64, "latent": 448, "rope": 64, "dtype": "bf16", "kv_dtype": "fp8"}
    constants = {"combine": 1e-6, "gather_rate": 8.0}
    one, four, all_parts = (
        seconds("sparse_decode", GATHERED, constants, kv_len=64 * blocks, **sizes) for blocks in (1, 4, 64)
    )
    assert all_parts - one == pytest.approx(3 * (four - one), rel=0.02)


def test_prompts_pay_for_the_slots_of_a_window() -> None:
    sizes = {"batch": 4096, "heads": 64, "latent": 448, "rope": 64, "dtype": "bf16", "kv_dtype": "fp8"}
    constants = {"gather_rate": 8.0}
    few, window = (seconds("sparse_prefill", GATHERED, constants, kv_len=entries, **sizes) for entries in (16, 128))
    assert few == pytest.approx(window, rel=1e-3)


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
