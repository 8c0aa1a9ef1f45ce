"""The shapes that a short visit to a GPU measures, by step (shapes.yaml), the most informative first.

`Sizes` bounds them, so that the same plan runs on a small machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import TypeVar

from msgspec import Struct

from roofline.core.documents import bundled
from roofline.validate.kernels.work import Case, attention_case, experts_case, gemm_case, rows_case

Item = TypeVar("Item")

Point = tuple[Case, str]
"""A case and the backend that computes it."""

_SHAPES = bundled("validate/gpu/shapes.yaml")

GROUP = 128
"""Inputs of a GEMM are multiples of it where they are cut: of the groups of 4-bit weights."""

CACHED_IN_FP8 = {"attention_decode": 8, "attention_prefill": 4}
"""Shapes of attention that are also timed over a cache in FP8."""


class Sizes(Struct, frozen=True):
    """The largest sizes of a plan: rows (tokens, batch times length), widths (of matrices), lengths, heads, experts."""

    rows: int = 1 << 20
    width: int = 1 << 20
    length: int = 1 << 20
    heads: int = 256
    experts: int = 512

    def cut(self, case: Case) -> Case:
        """The case with sizes of at most these; groups of heads, and ranks of experts, stay whole."""
        most = {
            **dict.fromkeys(("m", "tokens", "rows"), self.rows),
            **dict.fromkeys(("n", "hidden", "intermediate", "columns", "head_dim"), self.width),
            "k": max(GROUP, self.width // GROUP * GROUP),
            "kv_len": self.length,
            "batch": max(1, self.rows // 8),
        }
        found = {name: min(size, most.get(name, size)) for name, size in case.columns.items() if isinstance(size, int)}
        if case.op.startswith("attention"):
            group = found["heads"] // found["kv_heads"]
            found["kv_heads"] = max(1, min(found["kv_heads"], self.heads // group))
            found["heads"] = found["kv_heads"] * group
            found["q_len"] = min(found["q_len"], found["kv_len"])
            found["window"] = found["window"] if found["window"] < found["kv_len"] else 0
        if case.op == "moe":
            found["experts"] = max(found["ep"], min(found["experts"], self.experts))
            found["top_k"] = min(found["top_k"], found["experts"])
        return Case(case.op, {**case.columns, **found})

    def different(self, points: Iterable[Point]) -> list[Point]:
        """The points with sizes of at most these, without the repetitions that this makes."""
        return list(dict.fromkeys((self.cut(case), backend) for case, backend in points))


FULL = Sizes()
"""The sizes of the models themselves."""


def gemms(sizes: Sizes = FULL) -> list[Point]:
    """16-bit and FP8 GEMMs by the vendor's library and by our kernel; every prefix of the list covers the range."""
    given = _SHAPES["gemms"]
    shapes = [(m, n, k) for m in _spread(given["rows"]) for n, k in given["layers"]]
    mixed = _interleaved(shapes, given["others"], given["odd"])
    return sizes.different((gemm_case(dtype, *shape), way) for shape in mixed for dtype, way in given["kernels"])


def attention(sizes: Sizes = FULL) -> list[Point]:
    """Prefill and decode in bf16: causal, grouped heads, windows, 16-bit and FP8 caches."""
    names = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "window")
    cases = {
        op: [
            attention_case(op, "bf16", **{"head_dim": 128, **dict(zip(names, shape, strict=False))}) for shape in shapes
        ]
        for op, shapes in _SHAPES["attention"].items()
    }
    found = [(case, way) for case in _interleaved(*cases.values()) for way in ("torch", "triton", "torch_flash")]
    for op, count in CACHED_IN_FP8.items():
        found += [(Case(op, {**case.columns, "kv_dtype": "fp8"}), "triton") for case in cases[op][:count]]
    return sizes.different(found)


def layers(sizes: Sizes = FULL) -> list[Point]:
    """Routed experts, and the kernels that stream rows: norm, activation, rotary embedding, softmax, copy."""
    given = _SHAPES["layers"]
    experts = [(experts_case(tokens, **each), "triton") for tokens in given["tokens"] for each in given["experts"]]
    streams = [
        (rows_case(op, "bf16", rows, columns), way)
        for rows, (op, columns), way in product(given["rows"], given["streams"], ("torch", "triton"))
    ]
    return sizes.different(_interleaved(streams, experts))


def quantized(sizes: Sizes = FULL) -> list[Point]:
    """4-bit weights and INT8 beside bf16, from 1 to 4,096 rows."""
    given = _SHAPES["quantized"]
    every = product(given["rows"], given["layers"], given["kernels"])
    return sizes.different((gemm_case(dtype, m, *layer), way) for m, layer, (dtype, way) in every)


def _spread(items: Sequence[int]) -> list[int]:
    """The items, ends and middles first."""
    order, ranges = [], [(0, len(items) - 1)]
    while ranges:
        low, high = ranges.pop(0)
        for index in (low, high):
            if index not in order:
                order.append(index)
        middle = (low + high) // 2
        if middle not in (low, high):
            ranges += [(low, middle), (middle, high)]
    return [items[index] for index in order]


def _interleaved(*lists: Sequence[Item]) -> list[Item]:
    """The items of several lists in proportion to their lengths."""
    placed = [((index + 0.5) / len(items), item) for items in lists for index, item in enumerate(items)]
    return [item for _, item in sorted(placed, key=lambda entry: entry[0])]
