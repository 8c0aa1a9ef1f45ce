"""The work of a benchmark, as operators of the simulator: the same that is predicted is what is run.

A `Case` is a row of the measurement schema. `work_of` turns it into the operators that the simulator builds for such a
layer, with the workload that gives them the row's shape; `Work.row` turns them back. A benchmark allocates its tensors
and counts its FLOPs and bytes from here, so that measured and predicted are never about different work.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.graph.extents import Rule, Step, extents, view_of
from roofline.graph.fusion import FUSIONS, apply_fusion
from roofline.graph.layers.attention import ROPE_FLOPS, products
from roofline.graph.layers.basic import Formats, activation, add, elementwise, linear, normalise
from roofline.graph.layers.mlp import mixture_of_experts, pool_of
from roofline.graph.op import Kind, Op, fuse
from roofline.graph.parallel import Parallelism
from roofline.graph.size import total
from roofline.specs.formats import Format, find_format, grouped
from roofline.specs.model import Attention, MixtureOfExperts, Norm
from roofline.specs.precision import Precision
from roofline.specs.schemes import WeightScheme
from roofline.timing.kernels.elementwise import PASSES
from roofline.timing.kernels.shapes import kernel_shape

Columns = Mapping[str, int | str]

BASES: Mapping[str, str] = {"fp16": "fp16", "fp32": "fp32"}
"""The format of activations and results beside a kernel's own, by its `dtype`; bf16 for all others."""

GROUP = 128
"""Weights along k that share a scale, in the 4-bit format."""

WEIGHTS: Mapping[str, Format] = {"int4_wo": Format("int4-g128", grouped(4, GROUP, 16), "int4")}
"""Weights of kernels that convert them: symmetric 4-bit integers, an fp16 scale a group."""


class Case(Struct, frozen=True):
    """A row of the measurement schema, without its hardware and its latency."""

    op: str
    columns: Columns

    def __getitem__(self, name: str) -> int:
        """A shape column."""
        value = self.columns[name]
        assert isinstance(value, int)
        return value

    @property
    def dtype(self) -> str:
        """The number format that the kernel is named by."""
        return str(self.columns["dtype"])

    @property
    def format(self) -> str:
        """The number format, with that of the cache where it is another: `bf16/fp8`."""
        stored = str(self.columns.get("kv_dtype", self.dtype))
        return self.dtype if stored == self.dtype else f"{self.dtype}/{stored}"

    def __str__(self) -> str:
        return f"{self.op} " + " ".join(f"{name}={value}" for name, value in self.columns.items())

    def __hash__(self) -> int:
        return hash((self.op, *self.columns.items()))


class Work(Struct, frozen=True):
    """Operators that one kernel computes, and the workload: sizes become numbers with `extents`."""

    op: str
    parts: tuple[Op, ...]
    step: Step
    arithmetic: str | None = None
    rules: tuple[Rule, ...] = ()
    fixed: Columns = field(default_factory=lambda: MappingProxyType({}))

    @property
    def extents(self) -> Mapping[str, float]:
        """The numbers behind the symbols."""
        return extents(self.step, self.rules)

    @property
    def flops(self) -> float:
        """All arithmetic, in FLOP."""
        return float(total(op.flops for op in self.parts).evaluate(self.extents))

    @property
    def bytes(self) -> float:
        """Traffic with memory, in bytes, each operand once."""
        return float(total(op.bytes for op in self.parts).evaluate(self.extents))

    @property
    def row(self) -> dict[str, float | str]:
        """The row of the measurement schema that the simulator takes this work for."""
        shape = kernel_shape(self.parts, self.arithmetic)
        if shape is None:
            raise RooflineError(f"the simulator has no kernel for {quote(self.op)}")
        sizes = {name: round(size.evaluate(self.extents)) for name, size in shape.sizes.items()}
        return {**shape.texts, **sizes, **self.fixed}


def formats_of(dtype: str, kv_dtype: str | None = None) -> tuple[Formats, str]:
    """The simulator's formats for a kernel of `dtype`, and the arithmetic that its operands meet in."""
    base = find_format(BASES.get(dtype, "bf16"))
    kv = base if kv_dtype is None else find_format(kv_dtype)
    weight = WEIGHTS[dtype] if dtype in WEIGHTS else find_format(dtype)
    activations = base if dtype in WEIGHTS else find_format({"fp8_block": "fp8_group"}.get(dtype, dtype))
    precision = Precision(base, WeightScheme(dtype, weight, unquantised=frozenset()), activations, kv)
    return Formats(precision, 1, 1), base.name if dtype in WEIGHTS else weight.arithmetic


def work_of(case: Case) -> Work:
    """The operators of a case; raises UnknownNameError for an op without a benchmark."""
    if case.op in PASSES:
        return _pass(case)
    match case.op:
        case "gemm":
            return _gemm(case)
        case "attention_prefill" | "attention_decode":
            return _attention(case)
        case "moe":
            return _experts(case)
    raise UnknownNameError("benchmark", case.op, ("gemm", "attention_prefill", "attention_decode", "moe", *PASSES))


def _gemm(case: Case) -> Work:
    formats, arithmetic = formats_of(case.dtype)
    source = activation("input", formats.activations, case["k"])
    op = linear("proj", source, activation("output", formats.base, case["n"]), formats)
    return Work(case.op, (op,), Step(1, case["m"], 0), arithmetic)


def _attention(case: Case) -> Work:
    """The products with a cache of which all but the new tokens are there already; their write is not part of it."""
    formats, arithmetic = formats_of(case.dtype, str(case.columns.get("kv_dtype", case.dtype)))
    heads, kv_heads, width = case["heads"], case["kv_heads"], case["head_dim"]
    spec = Attention(heads=heads, kv_heads=kv_heads, head_dim=width, window=case["window"] or None)
    query = activation("query", formats.attention, heads, width)
    output = activation("attn_output", formats.base, heads, width)
    view = view_of(spec)
    ops = apply_fusion(products(spec, view, query, output, formats), FUSIONS["attention"])
    step = Step(case["batch"], case["q_len"], case["kv_len"] - case["q_len"])
    return Work(case.op, tuple(ops), step, arithmetic, (view,))


def _experts(case: Case) -> Work:
    """The experts of one of `ep` ranks, for the tokens of all of them: its share of the pairs of a token and an expert.

    The graph's ranks that all have the tokens are tensor ranks; the width that they would share is divided already.
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
    return Work(
        case.op, tuple(ops[first:]), Step(1, case["tokens"], 0), arithmetic, (pool_of(spec, ranks, 0.0),), _schema(case)
    )


def _schema(case: Case) -> Columns:
    """Columns that a rank's operators do not have: there are several ranks, and they show one's share of the pairs."""
    whole = ("top_k", "experts", "intermediate", "tp", "ep")
    return {name: case[name] for name in whole} if case["ep"] > 1 else {}


def _pass(case: Case) -> Work:
    """Kernels that stream their rows: residual and norm together, as engines run them, and the others alone."""
    formats, _ = formats_of(case.dtype)
    rows, width = case["rows"], case["columns"]
    source, target = activation("input", formats.base, width), activation("output", formats.base, width)
    other = activation("other", formats.base, width)
    flops = source.elements
    parts: tuple[Op, ...]
    match case.op:
        case "norm":
            summed = activation("summed", formats.base, width)
            both = (
                add("add", other, source, summed),
                normalise("norm", Norm("rmsnorm"), summed, target, formats),
            )
            parts = (fuse("add_norm", Kind.NORM, both, needed=("summed",)),)
        case "activation":
            parts = (elementwise("act", Kind.ACTIVATION, (source, other), target, 5 * flops),)
        case "softmax":
            parts = (elementwise("softmax", Kind.SOFTMAX, (source,), target, 5 * flops),)
        case "rope":
            parts = (elementwise("rope", Kind.ROPE, (source,), target, ROPE_FLOPS * flops),)
        case _:
            parts = (elementwise("copy", Kind.ELEMENTWISE, (source,), target),)
    return Work(case.op, parts, Step(1, rows, 0), None)
