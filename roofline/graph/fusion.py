"""Fusions by name: the operators of a layer that become one kernel, by `roofline.graph.op.fuse`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from roofline.core.errors import UnknownNameError
from roofline.graph.op import Kind, Op, fuse


class Fusion(NamedTuple):
    """A sequence of operators, `parts`, that one kernel replaces."""

    name: str
    kind: Kind
    parts: tuple[str, ...]
    effect: str


FUSIONS: Mapping[str, Fusion] = MappingProxyType(
    {
        "attention": Fusion(
            "fused_attention",
            Kind.ATTENTION,
            ("qk_matmul", "softmax", "sv_matmul"),
            "FlashAttention: scores and probabilities stay in on-chip SRAM",
        ),
        "qkv": Fusion("qkv_proj", Kind.GEMM, ("q_proj", "k_proj", "v_proj"), "the input is read once for Q, K and V"),
        "gate_up": Fusion("gate_up_proj", Kind.GEMM, ("gate_proj", "up_proj"), "the input is read once for both"),
        "gate_up_act": Fusion(
            "gate_up_act", Kind.GEMM, ("gate_proj", "up_proj", "mlp_act"), "gate and up stay in on-chip SRAM"
        ),
        "residual_norm": Fusion(
            "attn_add_norm", Kind.NORM, ("attn_add", "mlp_norm"), "the sum is normalised in on-chip SRAM"
        ),
    }
)
"""The fusions by option name."""


def check_fusions(names: Iterable[str]) -> tuple[str, ...]:
    """`names` without duplicates, in the order of FUSIONS; raises UnknownNameError for others."""
    chosen = set(names)
    for name in chosen:
        if name not in FUSIONS:
            raise UnknownNameError("fusion", name, FUSIONS)
    return tuple(name for name in FUSIONS if name in chosen)


def apply_fusion(ops: list[Op], fusion: Fusion) -> list[Op]:
    """`ops` with the fusion's parts replaced by one kernel, also in cross attention; unchanged if a part is missing."""
    for prefix in ("", "cross_") if fusion.kind is Kind.ATTENTION else ("",):
        ops = _replaced(ops, fusion, prefix)
    return ops


def _replaced(ops: list[Op], fusion: Fusion, prefix: str) -> list[Op]:
    parts = tuple(prefix + part for part in fusion.parts)
    length = len(parts)
    for start in range(len(ops) - length + 1):
        run = ops[start : start + length]
        if tuple(op.name for op in run) == parts:
            outside = [*ops[:start], *ops[start + length :]]
            read_outside = {tensor.name for op in outside for tensor in op.reads}
            return [*ops[:start], fuse(prefix + fusion.name, fusion.kind, run, read_outside), *ops[start + length :]]
    return ops
