"""Times of kernels without a calibrated form, and of work that the forms leave out.

    not measured                    t = launch + ((compute / 0.6)^2 + (memory / 0.8)^2)^(1/2)
    upcast weights                  t = (form^2 + (conversion / dequantization)^2)^(1/2)
    block-scaled integers           t = (form^2 + (multiplications x integer_blocks / (1024 units clock))^2)^(1/2)
    unpacked weights                t = (form^2 + (weights x instructions / (units lanes clock))^2)^(1/2)
    concurrent link transfers       t = max(form, bytes / (0.75 bandwidth) + latencies)
    power limits                    t = memory + (form - memory) / clock (`roofline.specs.power`)

Every correction changes rows of `expected` in place, p10, p50 and p90 of kernels (3, kernels, points); `times` are
those of operators at their bounds (kinds of work, operators, points).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.bound.roof import Placement, Row
from roofline.graph.op import Kind
from roofline.graph.parallel import over_link
from roofline.graph.tensor import Role
from roofline.specs.engine import Engine
from roofline.specs.hardware import Hardware
from roofline.specs.power import stretched
from roofline.timing.constants import ATTENTION, ENCODER, KERNELS_OF, LAUNCH
from roofline.timing.intervals.kernels import UNMEASURED
from roofline.timing.kernels import Array
from roofline.timing.kernels.common import unit_clocks
from roofline.timing.kernels.ggml import PREFIX
from roofline.timing.kernels.model import smooth_maximum
from roofline.timing.launches import LaunchedKernel

Rows = NDArray[np.intp]

_UNMEASURED = np.array([UNMEASURED.low, UNMEASURED.mid, UNMEASURED.high]).reshape(3, 1, 1)

OF_SIXTEEN, MORE_SCALES = frozenset({"q2_k", "q3_k", "q6_k", "iq2_xs", "iq2_s"}), 1.5
"""GGUF formats with a scale for every 16 elements, not 32 (ggml/src/ggml-common.h), and their time of scaling.

Llama 3 8B in Q3_K_S, 2,048 tokens, RTX 3090: 3,699 tokens/s (ggml-org/llama.cpp, pull request 8495), 5,004 with the
time of Q4_0. Held out, Q2_K on an RTX 4090: 7,639 (7921), 10% too fast, and 48% with that of Q4_0.
"""

INTEGER_LANES = {"volta": 64, "turing": 64, "ampere": 64, "ada": 64, "hopper": 64}
"""INT32 lanes of a multiprocessor (NVIDIA's whitepapers); Blackwell's are not told apart by card here."""

COMPUTE_SHARE, MEMORY_SHARE, LINK_SHARE = 0.6, 0.8, 0.75
"""Achievable fractions of the peaks, of memory bandwidth and of links, for unmeasured kernels."""


class Corrections:
    """The corrections of a placed graph's kernels on an engine."""

    def __init__(
        self, placement: Placement, engine: Engine, kernels: Sequence[LaunchedKernel], limited: Hardware | None = None
    ) -> None:
        self._placement = placement
        self._engine = engine
        self._kernels = kernels
        self.limited = limited

    @cached_property
    def kernel_of(self) -> tuple[int, ...]:
        """The index of each operator's kernel."""
        owner = {index: row for row, entry in enumerate(self._kernels) for index in entry.parts}
        return tuple(owner[index] for index in range(len(self._placement.ops)))

    @cached_property
    def parts(self) -> Array:
        """1 where an operator (column) is part of a kernel (row)."""
        members = np.zeros((len(self._kernels), len(self._placement.ops)))
        members[self.kernel_of, range(len(self._placement.ops))] = 1.0
        return members

    def _kernels_of(self, ops: NDArray[Any]) -> list[int]:
        """The kernels of the operators that are not 0, in order."""
        return sorted({self.kernel_of[index] for index in ops.nonzero()[0].tolist()})

    @cached_property
    def _unmeasured(self) -> tuple[Rows, Array]:
        """Kernels without constants in prefill or decode, and the rows of `parts` for them."""
        found = [row for row, entry in enumerate(self._kernels) if not entry.always_measured]
        rows = np.array(found, dtype=np.intp)
        return rows, self.parts[rows]

    def apply_unmeasured(self, times: Array, expected: Array) -> None:
        """Give kernels without constants their bound at typical efficiencies."""
        rows, parts = self._unmeasured
        if not rows.size:
            return
        compute, memory = times[: Row.MEMORY_TIME].max(axis=0), times[Row.MEMORY_TIME]
        guess = LAUNCH + smooth_maximum(parts @ compute / COMPUTE_SHARE, parts @ memory / MEMORY_SHARE, 2.0)
        expected[:, rows] = guess * _UNMEASURED

    @cached_property
    def upcasting(self) -> Rows:
        """Kernels that upcast operands before they multiply them; attention's and weight-only kernels' times do so."""
        rows = self._kernels_of(self._placement.coefficients[Row.UPCAST_FLOPS].any(axis=1))
        return np.array([row for row in rows if not _includes_upcast(self._kernels[row])], dtype=np.intp)

    @cached_property
    def scaling_factors(self) -> Array:
        """Time to scale the partial sums of integer blocks, over the time of an operator's multiplications at the peak.

        A unit multiplies 1024 pairs, which are 2048 FLOP, in `integer_blocks` cycles for blocks of 32.
        """
        factors, hardware = np.zeros(len(self._placement.ops)), self._placement.hardware
        if self._engine["integer_blocks"] and self._engine.uses_calibrated_kernels(hardware):
            seconds = self._engine["integer_blocks"] / unit_clocks(hardware) / 2048
            peaks = zip(self._placement.arithmetic, self._placement.roofs, strict=True)
            factors[:] = [seconds * (peak or 0.0) if arithmetic == "int8" else 0.0 for arithmetic, peak in peaks]
            factors *= self.scales
        return factors

    @cached_property
    def scales(self) -> Array:
        """The time of scaling an operator's blocks relative to Q4_0's."""
        ops = (op for op, _, _ in self._placement.ops)
        return np.array([_scales(op.operands[-1].format.name if op.operands else "") for op in ops])

    @cached_property
    def scaling(self) -> Rows:
        """Kernels that multiply block-scaled integers."""
        return np.array(self._kernels_of(self.scaling_factors), dtype=np.intp)

    @cached_property
    def unpacked(self) -> Array:
        """Seconds of integer instructions for each byte of an operator's weights (kernels of few tokens)."""
        seconds, hardware = np.zeros(len(self._placement.ops)), self._placement.hardware
        if (lanes := INTEGER_LANES.get(hardware.family)) and self._engine.unpacking:
            rate = lanes * unit_clocks(hardware)
            for index, (op, _, _) in enumerate(self._placement.ops):
                for tensor in (read for read in op.reads if read.role is Role.WEIGHT):
                    work = _mean(self._engine.unpacking, tensor.format.name)
                    seconds[index] = max(seconds[index], work / tensor.format.bytes / rate)  # a bias has no blocks
        return seconds

    @cached_property
    def unpacking(self) -> Rows:
        """Kernels that unpack weights by integer instructions."""
        return np.array(self._kernels_of(self.unpacked), dtype=np.intp)

    def unpacking_time(self, values: Array) -> Array | float:
        """Seconds of integer instructions in each operator, for the values of the monomials."""
        if not self.unpacking.size:
            return 0.0
        weights: Array = self._placement.coefficients[Row.WEIGHT_BYTES] @ values
        return weights * self.unpacked[:, np.newaxis]

    def apply_conversions(self, times: Array, unpacked: Array | float, expected: Array) -> None:
        """Add what overlaps with kernels: upcasts of weights, scaling of blocks' partial sums, unpacking of weights."""
        for rows, factor, work in (
            (self.upcasting, 1.0 / self._engine["dequantization"], times[Row.VECTOR_TIME]),
            (self.scaling, self.scaling_factors, times[Row.MATRIX_TIME]),
            (self.unpacking, 1.0, unpacked),
        ):
            if rows.size:
                mid = expected[1, rows]
                both = smooth_maximum(mid, (self.parts[rows] * factor) @ work, 2.0)
                expected[:, rows] *= both / np.where(mid > 0, mid, 1.0)

    @cached_property
    def linked(self) -> Rows:
        """Kernels with operands that arrive over a link while they compute; fits of collectives include the link."""
        rows, ops = self._kernels_of(self._placement.coefficients[Row.LINK_TIME].any(axis=1)), self._placement.ops
        fitted = [bool(entry.matches) and ops[entry.parts[0]][0].kind is Kind.COLLECTIVE for entry in self._kernels]
        return np.array([row for row in rows if not fitted[row]], dtype=np.intp)

    @cached_property
    def latencies(self) -> Array:
        """Seconds of the latencies of each operator's link, (operators, 1)."""
        hardware, nodes = self._placement.hardware, self._placement.nodes
        links = [op.link for op, _, _ in self._placement.ops]
        return np.array(
            [
                over_link(hardware, nodes, link.collective, link.reach, link.ranks, link.steps).latency if link else 0.0
                for link in links
            ]
        )[:, np.newaxis]

    def apply_link(self, times: Array, expected: Array) -> None:
        """Raise kernels with operands from a link to at least the link's time: its latency is what it is."""
        rows = self.linked
        if rows.size:
            sent = np.maximum(times[Row.LINK_TIME] - self.latencies, 0.0)
            transfer = self.parts[rows] @ (sent / LINK_SHARE + np.minimum(self.latencies, times[Row.LINK_TIME]))
            expected[:, rows] = np.maximum(expected[:, rows], transfer * _UNMEASURED)

    def apply_power_limit(self, times: Array, unpacked: Array | float, expected: Array) -> None:
        """Lengthen kernels by the clock that a limit leaves them; unmeasured ones have the limited peaks."""
        if self.limited is None:
            return
        rows = np.array([row for row, entry in enumerate(self._kernels) if entry.matches], dtype=np.intp)
        compute, memory = times[: Row.MEMORY_TIME].max(axis=0) + unpacked, times[Row.MEMORY_TIME]
        parts = self.parts[rows]
        expected[:, rows] *= stretched(self.limited, expected[1, rows], parts @ compute, parts @ memory)


CONVERTING = (*ATTENTION, *KERNELS_OF["sparse_attention"], ENCODER)
"""Kernels of attention, which convert what they read of a cache."""


def _scales(name: str) -> float:
    """The time of scaling blocks of a GGUF format, or of a mixture by layer ("q4_k/q6_k"), relative to Q4_0."""
    return 1.0 + _mean(dict.fromkeys(OF_SIXTEEN, MORE_SCALES - 1.0), name)


def _mean(values: Mapping[str, float], name: str) -> float:
    """The value of a format, or the mean of a mixture by layer ("q4_k/q6_k"); 0 for formats without one."""
    mixed = name.split("/")
    return sum(values.get(part, 0.0) for part in mixed) / len(mixed)


def _includes_upcast(kernel: LaunchedKernel) -> bool:
    """Whether the kernel's own times include its upcasts."""
    texts = {} if kernel.shape is None else kernel.shape.texts
    return kernel.kind in CONVERTING or "weight_only" in texts or str(texts.get("dtype")).startswith(PREFIX)
