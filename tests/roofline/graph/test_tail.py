"""DeepSeek-V4.1: entries that few layers store, layers that run the end of a prompt alone, and memories of n-grams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import Scenario, active_parameters, analyze, load_hardware, load_model, parameters
from roofline.core.errors import SpecError
from roofline.graph.extents import AttentionMask, Pool, Step, extents, of_last
from roofline.graph.network import Build, network
from roofline.graph.op import Kind, Op
from roofline.graph.parallel import Parallelism
from roofline.graph.size import rules_of
from roofline.graph.tensor import Role
from roofline.specs.modelspec import parse_model
from roofline.specs.precision import parse_precision

B200 = load_hardware("b200-sxm")
MODEL = load_model("deepseek-v4.1-flash")
TABLES = 256 * (384006168 + 384016682)


def ops(section: str) -> dict[str, Op]:
    return {op.name: op for op, _, name in network(MODEL, parse_precision("bf16")).ops if name == section}


@given(st.integers(1, 500), st.integers(0, 500), st.integers(1, 8))
def test_extents_are_those_of_the_last_tokens(queries: int, cached: int, batch: int) -> None:
    mask, pool = AttentionMask(window=64, selected=16, ratio=2), Pool(32, 4)
    rest = max(queries - 128, 0)
    last = extents(Step(batch, queries - rest, cached + rest), (mask, pool))
    sizes = [mask.pairs, mask.held, pool.touched]
    values = extents(Step(batch, queries, cached), rules_of(of_last(128, size) for size in sizes))
    for size in sizes:
        assert of_last(128, size).evaluate(values) == pytest.approx(size.evaluate(last))


def test_published_parameters() -> None:
    """552 billion and 196 billion in tables; 16 billion a token in decode (DeepSeek-V4.1-Flash's card)."""
    assert parameters(MODEL) - TABLES == pytest.approx(552e9, rel=0.001)
    assert pytest.approx(196e9, rel=0.004) == TABLES
    assert active_parameters(MODEL) == pytest.approx(16e9, rel=0.06)


def test_half_of_the_layers_skip_a_long_prompt() -> None:
    """8 billion parameters a token of a prompt: layers 21 to 39 run its last 128 tokens (its card)."""
    graph = network(MODEL, parse_precision("bf16"))
    values = extents(Step(1, 100_000, 0), graph.rules)
    linear = [op for op, count, name in graph.ops if op.kind in (Kind.GEMM, Kind.MOE) for _ in range(round(count))]
    flops = sum(float(op.matrix_flops.evaluate(values)) for op in linear)
    assert flops / (2 * 100_000) == pytest.approx(8e9, rel=0.08)


def test_adapters_of_experts_run_the_tokens_of_their_layers() -> None:
    """Rank 16 on the three matrices of six experts a token, a rank of eight having an eighth of a width of 2,304."""

    def flops(given: str) -> float:
        asked = Scenario(MODEL, "8xh200", prompt=4096, techniques=[f"lora:rank=16,adapters=8{given}"])
        return float(analyze(asked).prefill.flops)

    tokens = 21 * 4096 + 19 * 128
    assert flops(",experts=1") - flops("") == pytest.approx(tokens * 6 * 2 * 16 * 3 * (5120 + 2304 / 8))


def test_four_layers_keep_entries() -> None:
    """2.5 entries a token, of 584 bytes and an index key of 68, beside windows of 128 tokens."""

    def cache(prompt: int) -> float:
        return float(analyze(Scenario(MODEL, B200, tp=4, prompt=prompt, generate=1)).memory.kv_cache)

    assert cache(1_000_000 - 1) - cache(900_000 - 1) == 100_000 * 2.5 * (584 + 68)
    assert cache(1023) - 1024 * 2.5 * (584 + 68) == pytest.approx(40 * 128 * 584, rel=0.001)


def test_an_entry_of_one_token_is_its_projection() -> None:
    two, one = ops("stores_2"), ops("stores_1")
    assert {"compress_gate_proj", "compress"} <= two.keys()
    assert not {"compress_gate_proj", "compress"} & one.keys()
    assert "compress_kv_proj" not in ops("reads_1_last")
    assert two["index_k_proj"].reads[1].shape == (128, 512)
    assert not any(tensor.role is Role.STATE for op in one.values() for tensor in op.tensors)


def test_a_selection_scores_its_candidates() -> None:
    step = Step(1, 1, 200_000)
    values = extents(step, network(MODEL, parse_precision("bf16")).rules)
    whole, some = (ops(name)["index_scores"].matrix_flops for name in ("stores_1", "selects_1_candidates_last"))
    assert some.evaluate(values) / whole.evaluate(values) == pytest.approx(16384 / 200_001)
    assert "index_scores" not in ops("reads_1_last")


def test_ranks_divide_the_rows_of_a_memory() -> None:
    graph = network(MODEL, parse_precision("bf16"), Build(parallel=Parallelism(tensor=4)))
    found = {op.name: op for op, _, name in graph.ops if name == "window_engram_1"}
    assert found["engram"].reads[0].stored == (384006168 // 4, 256)
    assert found["engram"].reads[0].elements.evaluate({"batch": 1, "queries": 1}) == 24 * 256 / 4
    assert found["engram_all_reduce"].link is not None
    assert found["engram_proj"].reads[1].shape == (5 * 5120, 24 * 256)


def test_tables_are_where_the_engine_puts_them() -> None:
    """vLLM keeps them in CPU memory, SGLang on the devices; a unified memory holds all."""

    def weights(hardware: str = "b200-sxm", **options: str) -> float:
        return float(analyze(Scenario(MODEL, hardware, tp=4, **options)).memory.weights)

    tables = TABLES * 8.25 / 8 / 4
    assert weights(offload="tables=0") - weights() == pytest.approx(tables, rel=1e-6)
    assert weights(engine="sglang") - weights(engine="sglang", offload="tables=0.5") == pytest.approx(
        tables / 2, rel=1e-6
    )
    assert weights("dgx-spark") == weights("dgx-spark", offload="tables=0")


def test_rows_in_cpu_memory_cross_the_host_link() -> None:
    near, far = (
        analyze(Scenario(MODEL, B200, tp=4, batch=64, prompt=1, generate=2, offload=f"tables={share}")).decode
        for share in (0, 1)
    )
    assert near is not None
    assert far is not None
    assert far.link_bytes - near.link_bytes == pytest.approx(64 * 48 * 264 / 4)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"streams": 0}, "streams"),
        ({"tail": 128, "attention": {"heads": 4}}, "tail"),
    ],
)
def test_parts_that_do_not_go_together(change: dict[str, object], key: str) -> None:
    content = {
        "name": "small",
        "hidden": 64,
        "layers": 1,
        "vocabulary": 100,
        "norm": {"kind": "rmsnorm"},
        "streams": 4,
        "attention": {"heads": 4},
        "mlp": {"width": 64, "gated": True, "activation": "silu"},
        "engram": {"rows": 100, "width": 8, "heads": 2, "longest": 3},
    }
    with pytest.raises(SpecError, match=key):
        parse_model({**content, **change}, "small.yaml")
