"""What kernels take that their calibrated forms do not know, and kernels that have none.

    not measured                        t = launch + ((compute / 0.6)^2 + (memory / 0.8)^2)^(1/2)
    all-reduces of the engine's own     t = min(form, latency + 2 x link)
    weights that are converted first    t = (form^2 + (conversion / dequantisation)^2)^(1/2)
    integers in blocks with scales      t = (form^2 + (products x integer_blocks / (1024 units clock))^2)^(1/2)
    what comes over a link meanwhile    t = max(form, link / 0.75)

Every correction changes rows of `low`, `mid` and `high` in place, expected times of kernels (kernels, points); `times`
are those of operators at their bounds (kinds of work, operators, points).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from roofline.bound.roof import Placement, Row
from roofline.graph.parallel import Collective
from roofline.specs.engine import Engine
from roofline.timing.kernels import Array
from roofline.timing.kernels.common import smooth_maximum, units
from roofline.timing.launches import ATTENTION, UNMEASURED, Kernel

Rows = NDArray[np.intp]

LAUNCH = 2e-6
"""Seconds: start and end of a small kernel in a step."""

COMPUTE_SHARE, MEMORY_SHARE, LINK_SHARE = 0.6, 0.8, 0.75
"""Achievable fractions of the peaks, of memory bandwidth and of links, for kernels that nobody measured."""

OWN_TRIPS = 2.0
"""Times that an engine's own all-reduce crosses a link, of what a ring sends at its full bandwidth. With 8 us that is
12, 15 and 22 us for 0.5, 1 and 2 MB on four H100; the fastest of vLLM's kernels take 10, 14 and 21 us on four devices
(vllm-project/vllm, pull request 24532)."""


class Corrections:
    """The corrections of a placed graph's kernels on an engine."""

    def __init__(self, placement: Placement, engine: Engine, kernels: Sequence[Kernel]) -> None:
        self._placement = placement
        self._engine = engine
        self._kernels = kernels

    @cached_property
    def kernel_of(self) -> tuple[int, ...]:
        """The kernel that each operator is part of."""
        owner = {index: row for row, entry in enumerate(self._kernels) for index in entry.parts}
        return tuple(owner[index] for index in range(len(self._placement.ops)))

    @cached_property
    def parts(self) -> Array:
        """1 where an operator (column) is part of a kernel (row)."""
        members = np.zeros((len(self._kernels), len(self._placement.ops)))
        members[self.kernel_of, range(len(self._placement.ops))] = 1.0
        return members

    def _involved(self, what: Row) -> list[int]:
        """The kernels of which any operator does any of it, in their order."""
        doing = self._placement.coefficients[what].any(axis=1).nonzero()[0]
        return sorted({self.kernel_of[index] for index in doing.tolist()})

    # --- kernels without constants ---

    @cached_property
    def _unmeasured(self) -> tuple[Rows, Array]:
        """Kernels without constants, in one phase at least, and their operators."""
        found = [row for row, entry in enumerate(self._kernels) if not entry.always_measured]
        rows = np.array(found, dtype=np.intp)
        return rows, self.parts[rows]

    def guess(self, times: Array, low: Array, mid: Array, high: Array) -> None:
        """Kernels without constants: their bound at typical efficiencies."""
        rows, parts = self._unmeasured
        if not rows.size:
            return
        compute, memory = times[: Row.MEMORY_TIME].max(axis=0), times[Row.MEMORY_TIME]
        guess = LAUNCH + smooth_maximum(parts @ compute / COMPUTE_SHARE, parts @ memory / MEMORY_SHARE, 2.0)
        low[rows], mid[rows], high[rows] = guess * UNMEASURED.low, guess, guess * UNMEASURED.high

    # --- all-reduces ---

    @cached_property
    def reducing(self) -> Mapping[int, float]:
        """The all-reduces that the engine has a kernel of its own for, and its seconds for a tiny message."""
        placement, found = self._placement, {}
        for row, entry in enumerate(self._kernels):
            sent = placement.ops[entry.parts[0]][0].link
            if len(entry.parts) == 1 and sent is not None and sent.collective is Collective.ALL_REDUCE:
                kind, *_ = placement.hardware.link(placement.nodes.span(sent.reach)).kind.split()
                if kind in self._engine.all_reduce:
                    found[row] = self._engine.all_reduce[kind]
        return found

    def reduce(self, times: Array, low: Array, mid: Array, high: Array) -> None:
        """All-reduces that the engine has a kernel of its own for: it takes the faster one."""
        if not self.reducing:
            return
        rows = list(self.reducing)
        latency = np.array([*self.reducing.values()])[:, np.newaxis]
        own = latency + OWN_TRIPS * (self.parts[rows] @ times[Row.LINK_TIME])
        faster = np.minimum(own / np.where(mid[rows] > 0, mid[rows], np.inf), 1.0)
        low[rows], mid[rows], high[rows] = low[rows] * faster, mid[rows] * faster, high[rows] * faster

    # --- weights that are converted ---

    @cached_property
    def converting(self) -> Rows:
        """Kernels that convert operands before they multiply them; in attention the fits include it."""
        rows = self._involved(Row.UPCAST_FLOPS)
        return np.array([row for row in rows if self._kernels[row].kind not in ATTENTION], dtype=np.intp)

    def convert(self, times: Array, low: Array, mid: Array, high: Array) -> None:
        """Kernels that convert weights before they multiply them."""
        rows = self.converting
        if rows.size:
            vector = self.parts[rows] @ times[Row.VECTOR_TIME] / self._engine["dequantisation"]
            _beside(rows, vector, low, mid, high)

    # --- integers in blocks ---

    @cached_property
    def scaling_factors(self) -> Array:
        """How many times longer than at its peak an operator takes to scale the sums of blocks of integers.

        A unit multiplies 1024 pairs, which are 2048 FLOP, in `integer_blocks` cycles.
        """
        factors, hardware = np.zeros(len(self._placement.ops)), self._placement.hardware
        if self._engine["integer_blocks"] and hardware.clock is not None:
            seconds = self._engine["integer_blocks"] / (units(hardware) * hardware.clock) / 2048
            peaks = zip(self._placement.arithmetic, self._placement.roofs, strict=True)
            factors[:] = [seconds * (peak or 0.0) if arithmetic == "int8" else 0.0 for arithmetic, peak in peaks]
        return factors

    @cached_property
    def scaling(self) -> Rows:
        """Kernels that multiply integers in blocks, one of which has a scale of its own."""
        return np.array(sorted({self.kernel_of[i] for i in self.scaling_factors.nonzero()[0].tolist()}), dtype=np.intp)

    def scale(self, times: Array, low: Array, mid: Array, high: Array) -> None:
        """Kernels that multiply integers in blocks: sums of every block are scaled one by one."""
        rows = self.scaling
        if rows.size:
            _beside(rows, (self.parts[rows] * self.scaling_factors) @ times[Row.MATRIX_TIME], low, mid, high)

    # --- links ---

    @cached_property
    def linked(self) -> Rows:
        """Kernels that wait for what comes over a link while they compute; exchanges have it in their fits."""
        rows = self._involved(Row.LINK_TIME)
        return np.array([row for row in rows if self._kernels[row].kind != "collective"], dtype=np.intp)

    def wait(self, times: Array, low: Array, mid: Array, high: Array) -> None:
        """Kernels that wait for what comes over a link."""
        rows = self.linked
        if not rows.size:
            return
        exchange = self.parts[rows] @ times[Row.LINK_TIME] / LINK_SHARE
        low[rows], mid[rows] = np.maximum(low[rows], exchange * UNMEASURED.low), np.maximum(mid[rows], exchange)
        high[rows] = np.maximum(high[rows], exchange * UNMEASURED.high)


def _beside(rows: Rows, work: Array, low: Array, mid: Array, high: Array) -> None:
    """Kernels with seconds of further work, which overlaps with theirs: (kernel^2 + work^2)^(1/2)."""
    slower = smooth_maximum(mid[rows], work, 2.0) / np.where(mid[rows] > 0, mid[rows], 1.0)
    low[rows], mid[rows], high[rows] = low[rows] * slower, mid[rows] * slower, high[rows] * slower
