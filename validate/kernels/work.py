"""The work of a benchmark as operators of the simulator, so that measured and predicted work are the same.

A `Case` is a row of the measurement schema. `work_of` converts it to the operators that the simulator builds for such a
layer, with a workload of the row's shape. FLOPs and bytes of benchmarks come from here.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import UnknownNameError
from roofline.graph.extents import Step, extents
from roofline.graph.fusion import FUSIONS, apply_fusion
from roofline.graph.layers.attention import cached_attention, mask_of
from roofline.graph.layers.basic import Formats, activation, add, elementwise, linear, normalise
from roofline.graph.layers.flops import ROPE_FLOPS
from roofline.graph.layers.mlp import mixture_of_experts
from roofline.graph.op import Kind, Op, extent_rules, fuse
from roofline.graph.parallel import Parallelism
from roofline.graph.size import total
from roofline.specs.formats import Format, find_format, grouped
from roofline.specs.model import Norm
from roofline.specs.precision import Precision
from roofline.specs.schemes import WeightScheme
from roofline.specs.sublayers import Attention, MixtureOfExperts
from roofline.timing.kernels.elementwise import PASSES

Columns = Mapping[str, int | str]

BASES: Mapping[str, str] = {"fp16": "fp16", "fp32": "fp32"}
"""The format of activations and results by the kernel's `dtype`; bf16 for all others."""

GROUP = 128
"""Weights along k that share a scale, in the 4-bit format."""

WEIGHTS: Mapping[str, Format] = {"int4_wo": Format("int4-g128", grouped(4, GROUP, 16), "int4")}
"""Weight-only formats: symmetric 4-bit integers with an fp16 scale per group."""


class Case(Struct, frozen=True):
    """A row of the measurement schema, without its hardware and its latency."""

    op: str
    columns: Columns

    def __getitem__(self, name: str) -> int:
        value = self.columns[name]
        assert isinstance(value, int)
        return value

    @property
    def dtype(self) -> str:
        return str(self.columns["dtype"])

    @property
    def kv_dtype(self) -> str:
        """The number format of the KV cache; that of the kernel where there is none."""
        return str(self.columns.get("kv_dtype", self.dtype))

    @property
    def format(self) -> str:
        """The number format, with that of the KV cache where it is another: `bf16/fp8`."""
        return self.dtype if self.kv_dtype == self.dtype else f"{self.dtype}/{self.kv_dtype}"

    def __str__(self) -> str:
        return f"{self.op} " + " ".join(f"{name}={value}" for name, value in self.columns.items())

    def __hash__(self) -> int:
        return hash((self.op, *self.columns.items()))


def gemm_case(dtype: str, m: int, n: int, k: int) -> Case:
    """C[m, n] = A[m, k] W[n, k]^T."""
    return Case("gemm", {"dtype": dtype, "m": m, "n": n, "k": k})


def attention_case(op: str, dtype: str = "fp16", **given: int | str) -> Case:
    """Attention; one token and one head but for what is given."""
    small = {"batch": 1, "q_len": 1, "kv_len": 1, "heads": 1, "kv_heads": 1, "head_dim": 64, "window": 0}
    return Case(op, {"dtype": dtype, "kv_dtype": dtype, **small, **given})


def experts_case(
    tokens: int,
    hidden: int,
    intermediate: int,
    top_k: int,
    experts: int,
    routing: str = "uniform",
    dtype: str = "bf16",
    tp: int = 1,
    ep: int = 1,
) -> Case:
    """Routed experts."""
    sizes = {"tokens": tokens, "hidden": hidden, "intermediate": intermediate, "top_k": top_k, "experts": experts}
    return Case("moe", {"dtype": dtype, "routing": routing, **sizes, "tp": tp, "ep": ep})


def rows_case(op: str, dtype: str, rows: int, columns: int) -> Case:
    """A kernel that streams rows."""
    return Case(op, {"dtype": dtype, "rows": rows, "columns": columns})


class Work(Struct, frozen=True):
    """The operators of one kernel, and the workload that fixes their sizes."""

    parts: tuple[Op, ...]
    step: Step
    arithmetic: str | None = None

    @property
    def extents(self) -> Mapping[str, float]:
        return extents(self.step, extent_rules(self.parts))

    @property
    def flops(self) -> float:
        return float(total(op.flops for op in self.parts).evaluate(self.extents))

    @property
    def bytes(self) -> float:
        """Memory traffic in bytes, each operand once."""
        return float(total(op.bytes for op in self.parts).evaluate(self.extents))


def formats_of(dtype: str, kv_dtype: str | None = None) -> tuple[Formats, str]:
    """The simulator's formats for a kernel of `dtype`, and its arithmetic format."""
    base = find_format(BASES.get(dtype, "bf16"))
    kv = base if kv_dtype is None else find_format(kv_dtype)
    weight = WEIGHTS[dtype] if dtype in WEIGHTS else find_format(dtype)
    activations = base if dtype in WEIGHTS else find_format({"fp8_block": "fp8_group"}.get(dtype, dtype))
    precision = Precision(base, WeightScheme(dtype, weight, unquantized=frozenset()), activations, kv)
    return Formats(precision, 1, 1), base.name if dtype in WEIGHTS else weight.arithmetic


def work_of(case: Case) -> Work:
    """The operators of a case; raises UnknownNameError for an op without a benchmark."""
    if case.op in PASSES:
        return _pass(case)
    match case.op:
        case "gemm":
            formats, arithmetic = formats_of(case.dtype)
            source = activation("input", formats.activations, case["k"])
            op = linear("proj", source, activation("output", formats.base, case["n"]), formats)
            return Work((op,), Step(1, case["m"], 0), arithmetic)
        case "attention_prefill" | "attention_decode":
            return _attention(case)
        case "moe":
            return _experts(case)
    raise UnknownNameError("benchmark", case.op, ("gemm", "attention_prefill", "attention_decode", "moe", *PASSES))


def _attention(case: Case) -> Work:
    """Attention over a cache that holds all but the new tokens; writing these to it is not included."""
    formats, arithmetic = formats_of(case.dtype, case.kv_dtype)
    heads, kv_heads, width = case["heads"], case["kv_heads"], case["head_dim"]
    spec = Attention(heads=heads, kv_heads=kv_heads, head_dim=width, window=case["window"] or None)
    query = activation("query", formats.attention, heads, width)
    output = activation("attn_output", formats.base, heads, width)
    ops = apply_fusion(cached_attention(spec, mask_of(spec), query, output, formats), FUSIONS["attention"])
    step = Step(case["batch"], case["q_len"], case["kv_len"] - case["q_len"])
    return Work(tuple(ops), step, arithmetic)


def _experts(case: Case) -> Work:
    """The experts of one of `ep` ranks for the tokens of all ranks: 1 / ep of the pairs of a token and an expert.

    In the graph, ranks that all have the tokens are tensor-parallel ranks; the intermediate width is divided here.
    """
    formats, arithmetic = formats_of(case.dtype)
    ranks = Parallelism(tensor=case["ep"], expert=case["ep"])
    formats = replace(formats, parallel=ranks)
    spec = MixtureOfExperts(
        experts=case["experts"] // case["ep"],
        top_k=case["top_k"],
        width=case["intermediate"] // case["tp"],
        gated=True,
        activation="silu",
    )
    hidden = case["hidden"]
    source = activation("mlp_input", formats.activations, hidden)
    ops = mixture_of_experts(spec, source, activation("routed", formats.base, hidden), formats)
    first = next(index for index, op in enumerate(ops) if op.kind is Kind.MOE)
    return Work(tuple(ops[first:]), Step(1, case["tokens"], 0), arithmetic)


def _pass(case: Case) -> Work:
    """Kernels that stream rows: residual addition and norm fused, as engines run them, and the others alone."""
    formats, _ = formats_of(case.dtype)
    rows, width = case["rows"], case["columns"]
    source, target = activation("input", formats.base, width), activation("output", formats.base, width)
    other = activation("other", formats.base, width)
    flops = source.elements
    parts: tuple[Op, ...]
    match case.op:
        case "norm":
            summed = activation("summed", formats.base, width)
            both = (add("add", other, source, summed), normalise("norm", Norm("rmsnorm"), summed, target, formats))
            parts = (fuse("add_norm", Kind.NORM, both, needed=("summed",)),)
        case "activation":
            parts = (elementwise("act", Kind.ACTIVATION, (source, other), target, 5 * flops),)
        case "softmax":
            parts = (elementwise("softmax", Kind.SOFTMAX, (source,), target, 5 * flops),)
        case "rope":
            parts = (elementwise("rope", Kind.ROPE, (source,), target, ROPE_FLOPS * flops),)
        case _:
            parts = (elementwise("copy", Kind.ELEMENTWISE, (source,), target),)
    return Work(parts, Step(1, rows, 0), None)
