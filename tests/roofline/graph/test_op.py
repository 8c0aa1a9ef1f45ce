"""Operators and fusion."""

from __future__ import annotations

from roofline.graph.extents import BATCH, QUERIES
from roofline.graph.fusion import FUSIONS, apply_fusion
from roofline.graph.op import Kind, Op, fuse
from roofline.graph.size import as_size
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import FORMATS

HALF = FORMATS["fp16"]


def tensor(name: str, elements: int, role: Role = Role.ACTIVATION) -> Tensor:
    return Tensor(name, role, (elements,), HALF)


def op(name: str, reads: list[Tensor], writes: list[Tensor], flops: int = 1) -> Op:
    return Op(name, Kind.ELEMENTWISE, tuple(reads), tuple(writes), vector_flops=as_size(flops))


def test_bytes_follow_from_shape_and_format() -> None:
    weight = Tensor("w", Role.WEIGHT, (4096, 11008), FORMATS["awq"])
    assert weight.bytes == 4096 * 11008 * 4.15625 / 8
    assert Tensor("x", Role.ACTIVATION, (BATCH, QUERIES, 8), HALF).bytes == 16 * BATCH * QUERIES


def test_fusion_removes_intermediate_tensors() -> None:
    x, y, z = tensor("x", 10), tensor("y", 20), tensor("z", 30)
    fused = fuse("both", Kind.ELEMENTWISE, [op("a", [x], [y], 5), op("b", [y], [z], 7)])
    assert [t.name for t in fused.reads] == ["x"]
    assert [t.name for t in fused.writes] == ["z"]
    assert fused.flops == 12
    assert fused.bytes == 2 * 40


def test_fusion_writes_tensors_that_other_ops_read() -> None:
    x, y, z = tensor("x", 10), tensor("y", 20), tensor("z", 30)
    fused = fuse("both", Kind.ELEMENTWISE, [op("a", [x], [y]), op("b", [y], [z])], needed=["y"])
    assert {t.name for t in fused.writes} == {"y", "z"}


def test_fusion_reads_a_shared_input_once() -> None:
    x = tensor("x", 10)
    fused = fuse("both", Kind.GEMM, [op("a", [x], [tensor("y", 1)]), op("b", [x], [tensor("z", 1)])])
    assert fused.bytes == 2 * 12


def test_fusion_never_drops_the_cache() -> None:
    key = tensor("key", 10, Role.KV)
    fused = fuse("both", Kind.ATTENTION, [op("a", [], [key]), op("b", [key], [tensor("y", 1)])])
    assert sum(tensor.bytes for tensor in fused.tensors if tensor.role is Role.KV) == 20


def test_fusion_with_missing_parts_is_a_no_op() -> None:
    ops = [op("q_proj", [], []), op("v_proj", [], [])]
    assert apply_fusion(ops, FUSIONS["qkv"]) == ops
