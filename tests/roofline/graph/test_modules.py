"""Layers as the modules of their class: the same network as from the records of attention and MLP."""

from __future__ import annotations

from typing import Any

import pytest

from roofline.bound.memory import active_parameters, kv_bytes_per_token, parameters, state_bytes_per_sequence
from roofline.graph.extents import Step, extents
from roofline.graph.network import Build, network
from roofline.graph.op import Kind
from roofline.graph.parallel import Parallelism
from roofline.specs.model import Model
from roofline.specs.modelspec import parse_model
from roofline.specs.precision import parse_precision
from roofline.specs.written import to_spec

BF16 = parse_precision("bf16")
TOP: dict[str, Any] = {
    "name": "own",
    "hidden": 256,
    "vocabulary": 1000,
    "layers": 3,
    "norm": {"kind": "rmsnorm"},
}
ATTENTION = {"heads": 8, "kv_heads": 2, "head_dim": 32}
LINEARS = [
    {"name": "self_attn.q_proj", "inputs": 256, "outputs": 256},
    {"name": "self_attn.k_proj", "inputs": 256, "outputs": 64},
    {"name": "self_attn.v_proj", "inputs": 256, "outputs": 64},
    {"name": "self_attn.o_proj", "inputs": 256, "outputs": 256},
]
MLP = [
    {"name": "mlp.gate_proj", "inputs": 256, "outputs": 640},
    {"name": "mlp.up_proj", "inputs": 256, "outputs": 640},
    {"name": "mlp.down_proj", "inputs": 640, "outputs": 256},
]


def as_modules(**changes: Any) -> Model:
    modules = {"linears": [*LINEARS, *MLP], "norms": [{"width": 256}], "attention": ATTENTION, "before": 3}
    return parse_model({**TOP, "modules": {**modules, **changes}}, "modules")


RECORDS = parse_model(
    {**TOP, "attention": ATTENTION, "mlp": {"width": 640, "gated": True, "activation": "silu"}}, "records"
)


def flops(model: Model, step: Step, *kinds: Kind, parallel: Parallelism | None = None) -> float:
    graph = network(model, BF16, Build() if parallel is None else Build(parallel=parallel))
    values = extents(step, graph.rules)
    return float(sum(count * op.matrix_flops.evaluate(values) for op, count, _ in graph.ops if op.kind in kinds))


@pytest.mark.parametrize("step", [Step(2, 100, 0), Step(5, 1, 300)])
def test_modules_are_the_network_of_the_records(step: Step) -> None:
    model = as_modules()
    assert parameters(model) == parameters(RECORDS)
    for kind in (Kind.GEMM, Kind.ATTENTION):
        assert flops(model, step, kind) == pytest.approx(flops(RECORDS, step, kind))
    assert kv_bytes_per_token(model, BF16) == kv_bytes_per_token(RECORDS, BF16)


def test_a_window_caps_the_attention_of_modules() -> None:
    model = as_modules(attention={**ATTENTION, "window": 64})
    assert flops(model, Step(1, 1, 1000), Kind.ATTENTION) == flops(as_modules(), Step(1, 1, 63), Kind.ATTENTION)


def test_rows_state_tables_and_scan() -> None:
    step = Step(3, 7, 0)
    plain, more = as_modules(attention=None, before=0), as_modules(
        attention=None, before=0, state=5000, scan=1e6, weights=77, tables=[{"rows": 50, "width": 8}],
        linears=[*LINEARS, *({**linear, "rows": 2.5} for linear in MLP)],
    )  # fmt: skip
    assert parameters(more) - parameters(plain) == 3 * (77 + 50 * 8)
    assert state_bytes_per_sequence(more, BF16) == 3 * 5000 * 4
    assert flops(more, step, Kind.SCAN) == 3 * 21 * 1e6
    assert flops(more, step, Kind.GEMM) - flops(plain, step, Kind.GEMM) == pytest.approx(
        3 * 1.5 * 21 * 2 * 3 * 256 * 640
    )


def test_tensor_parallelism_divides_modules() -> None:
    step, parallel = Step(2, 50, 0), Parallelism(tensor=2)
    for kind in (Kind.GEMM, Kind.ATTENTION):
        own = flops(as_modules(), step, kind, parallel=parallel)
        assert own == pytest.approx(flops(as_modules(), step, kind) / 2, rel=0.02)


def test_experts_stand_beside_modules() -> None:
    moe = {"experts": 8, "top_k": 2, "width": 64, "gated": True, "activation": "silu"}
    spec = {**TOP, "modules": {"linears": LINEARS, "attention": ATTENTION, "before": 3}, "moe": moe}
    model = parse_model(spec, "modules")
    assert parameters(model) - active_parameters(model) == 3 * 6 * 3 * 256 * 64


def test_a_spec_with_modules_is_written_and_read_back() -> None:
    model = as_modules(state=9, tables=[{"rows": 5, "width": 8}])
    assert parse_model(to_spec(model), "again") == model
