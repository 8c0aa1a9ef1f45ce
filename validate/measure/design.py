"""The experimental design: points to measure, the most informative first, so that a short run covers every regime.

The axes of an op (M, N, K; lengths, batch, heads; tokens and experts; rows and columns) span a box in the logarithm of
size. Its smallest and its largest corner come first; then, alternating, the candidate farthest from all earlier points
(maximin: finds the edges) and the next of a Halton sequence (Halton 1960: fills the inside). Ops and formats are
interleaved. The design is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.errors import UnknownNameError
from roofline.specs.records import bundled_record
from roofline.timing.kernels.elementwise import PASSES
from roofline.timing.kernels.formats import numbers
from roofline.validate.kernels.work import Case, attention_case, experts_case, work_of

CANDIDATES = 600
"""Candidate points of the Halton sequence."""

STREAMING_FRACTION = 0.25
"""Fraction of the traffic limit for kernels that only stream: their two constants need no more."""


class Limits(Struct, frozen=True):
    """Limits of one point: `memory` and `traffic` in bytes, `flops` in FLOP."""

    memory: float = 8e9
    flops: float = math.inf
    traffic: float = math.inf


class Axis(Struct, frozen=True):
    """Sizes from `low` to `high`, even in their logarithm, in multiples of `step`, or `choices`."""

    low: int = 1
    high: int = 1
    step: int = 1
    choices: tuple[int, ...] = ()

    def at(self, position: float) -> int:
        if self.choices:
            return self.choices[min(int(position * len(self.choices)), len(self.choices) - 1)]
        size = float(self.low * (self.high / self.low) ** position)
        return max(self.low, round(size / self.step) * self.step)


class Shapes(Struct, frozen=True):
    """The axes of an op by name, and its points in a round."""

    axes: dict[str, Axis]
    share: float = 0.5


class Designs(Struct, frozen=True):
    """The content of design.yaml."""

    ops: dict[str, Shapes]
    experts: tuple[tuple[int, int, int, int], ...]


DESIGNS = bundled_record(Designs, "validate/measure/design.yaml")


def design(formats: Mapping[str, Sequence[str]], limits: Limits, count: int = 100) -> list[Case]:
    """At most `count` cases for each op and format (`bf16`, or `bf16/fp8` with that of the KV cache).

    Any prefix of the list is a design of its own. An op whose smallest case exceeds the limits has no cases. Raises
    UnknownNameError for an op without axes.
    """
    rounds = []
    for op, names in formats.items():
        if op not in DESIGNS.ops:
            raise UnknownNameError("op", op, DESIGNS.ops)
        share = DESIGNS.ops[op].share
        per_format = math.ceil(count * min(1.0, max(share, 1) / 2))
        queue = [
            case
            for together in zip_longest(*(_cases(op, name, limits, per_format) for name in names))
            for case in together
            if case is not None
        ]
        rounds.append(_rounds(queue, share * len(names)))
    return list(chain.from_iterable(chain.from_iterable(zip_longest(*rounds, fillvalue=()))))


def _rounds(queue: Sequence[Case], share: float) -> list[tuple[Case, ...]]:
    """The queue cut into rounds of `share` cases on average."""
    edges = [round(index * share + 1e-9) for index in range(math.ceil(len(queue) / share) + 1)]
    return [tuple(queue[low:high]) for low, high in zip([0, *edges[1:]], [*edges[1:], len(queue)], strict=False)]


def _cases(op: str, format: str, limits: Limits, count: int) -> Iterator[Case]:
    """At most `count` different cases of one op and format within the limits, the most informative first."""
    found: set[Case] = set()
    dimensions = len(DESIGNS.ops[op].axes)
    # The smallest corner of the box, and the largest point on the diagonal from it that is within the limits.
    *diagonal, smallest = np.outer(np.linspace(1.0, 0.0, 33), np.ones(dimensions))
    largest = (point for point in (*diagonal, smallest) if fits(case_at(op, format, point), limits))
    for point in chain((smallest,), islice(largest, 1), _unit_box_points(dimensions)):
        if len(found) == count:
            return
        case = case_at(op, format, point)
        if case not in found and fits(case, limits):
            found.add(case)
            yield case


def _unit_box_points(dimensions: int) -> Iterator[NDArray[np.float64]]:
    """Positions in the unit box: both ends of its diagonal, then farthest points alternating with Halton's."""
    from scipy.stats.qmc import Halton  # takes a second to import

    corners = np.array(
        [[(index >> axis) & 1 for axis in range(dimensions)] for index in range(2**dimensions)], dtype=np.float64
    )
    inside = Halton(dimensions, scramble=False).random(CANDIDATES + 1)[1:]  # the first is a corner
    points = np.concatenate([corners, inside])
    order, left = [0, len(corners) - 1], np.ones(len(points), dtype=bool)
    distance = np.full(len(points), np.inf)
    following = len(corners)
    for turn in range(len(points)):
        if turn < len(order):
            chosen = order[turn]
        elif turn % 2:
            chosen = int(np.argmax(np.where(left, distance, -1.0)))
        else:
            while following < len(points) and not left[following]:
                following += 1
            chosen = following if following < len(points) else int(np.argmax(np.where(left, distance, -1.0)))
        left[chosen] = False
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen], axis=1))
        yield points[chosen]


def case_at(op: str, format: str, point: Sequence[float] | NDArray[np.float64]) -> Case:
    """The case at a position in the unit box of `op`; `format` is `dtype`, or `dtype/kv_dtype`."""
    axes = DESIGNS.ops[op].axes
    sizes = {name: axis.at(float(position)) for (name, axis), position in zip(axes.items(), point, strict=True)}
    dtype, _, kv_dtype = format.partition("/")
    if op.startswith("attention"):
        queries = sizes.get("q_len", 1)
        keys = sizes.get("kv_len", queries * (1 + sizes.get("cached", 0)))
        return attention_case(
            *(op, dtype),
            kv_dtype=kv_dtype or dtype,
            batch=sizes["batch"],
            q_len=queries,
            kv_len=keys,
            heads=sizes["kv_heads"] * sizes["group"],
            kv_heads=sizes["kv_heads"],
            head_dim=sizes["head_dim"],
            window=sizes["window"] if sizes["window"] < keys else 0,
        )
    if op == "moe":
        return experts_case(sizes["tokens"], *DESIGNS.experts[sizes["shape"]], dtype=dtype, ep=sizes["ep"])
    return Case(op, {"dtype": dtype, **sizes})


def memory_bytes(case: Case) -> float:
    """The memory of a case's operands: also experts without tokens and keys before the window, which are not read."""
    if case.op.startswith("attention"):
        stored = numbers(case.kv_dtype).bytes
        cache = 2.0 * case["batch"] * case["kv_heads"] * case["kv_len"] * case["head_dim"] * stored
        return max(cache, work_of(case).bytes)
    if case.op != "moe":
        return work_of(case).bytes
    weights = 3.0 * case["experts"] / case["ep"] * case["hidden"] * case["intermediate"] * numbers(case.dtype).bytes
    return weights + 2.0 * case["tokens"] * (2 + 4 * case["top_k"]) * case["hidden"]


def fits(case: Case, limits: Limits) -> bool:
    """Whether a case is within the limits."""
    work = work_of(case)
    traffic = limits.traffic * (STREAMING_FRACTION if case.op in PASSES else 1.0)
    return work.flops <= limits.flops and work.bytes <= traffic and memory_bytes(case) <= limits.memory
