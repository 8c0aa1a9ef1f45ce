"""Times of passes as functions of an engine's parameters, tabulated for fits (`lab.fit.engines`).

A pass takes  max(prefill K + gap N, [no CUDA graph] issue N) + step + sequence batch  with N kernels that take K; with
overlap scheduling the last term is in the maximum (`roofline.specs.engine`). K depends on the kernel parameters through
every kernel, so it is tabulated for each row along each parameter, the others at a centre, and the differences are
added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline import Analysis, analyze
from roofline.scenario.generation import NODES, WEIGHTS
from roofline.specs.engine import Engine
from roofline.validate.score.end_to_end import Case

Array = NDArray[np.float64]

TABULATED: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "launch": (0.3, 0.6, 1.0, 1.6, 3.0),
        "memory": (0.7, 0.85, 1.0, 1.15, 1.4),
        "kv_reread": (0.0, 0.15, 0.4, 1.0),
        "collective": (0.3, 0.6, 1.0, 1.6, 3.0),
        "dequantization": (0.01, 0.03, 0.08, 0.2, 0.45, 1.0),
        "integer_blocks": (0.0, 1.5, 3.0, 4.5, 6.0, 9.0),
        "kv_conversion": (0.0, 30.0, 60.0, 90.0, 130.0, 200.0),
    }
)
"""Parameters of kernel times, with the grids at which the times are tabulated."""


class Passes(Struct, frozen=True):
    """Passes of one phase, and how often each runs in the row's time (`repeats`)."""

    phase: str
    answer: Analysis
    repeats: Array
    sequences: float

    def kernels(self, engine: Engine) -> tuple[Array, float]:
        """Seconds of all kernels of each pass, and their number."""
        phase = self.answer.prefill if self.phase == "prefill" else self.answer.decode
        assert phase is not None
        seconds, number = np.zeros(self.repeats.size), 0.0
        for run in phase.passes:
            found = phase.timed(run, engine)
            seconds = seconds + run.repeat * found.spent(found.detail(run.step)).sum(axis=0)
            number += float(run.repeat) * sum(kernel.count for kernel in found.kernels)
        return seconds, number


def passes_of(case: Case) -> list[Passes]:
    """The passes of a row: prefills, decode steps at three quadrature contexts, or both."""
    found = []
    for scenario, times in case.parts:
        batch, run = float(scenario.batch), scenario.changed(engine=case.engine)
        if case.quantity != "tpot":
            found.append(Passes("prefill", analyze(run), np.full(1, float(times)), batch))
        if case.quantity != "ttft":
            steps = scenario.generate - 1
            contexts = np.maximum(np.round(scenario.first_cached + (steps - 1) / 2 + steps / 2 * NODES), 0)
            share = times * WEIGHTS / 2 * (steps if case.quantity == "total" else 1.0)
            found.append(Passes("decode", analyze(run.changed(context=contexts)), share, batch))
    return found


class Table(Struct, frozen=True):
    """Passes of many rows: kernel seconds at a centre, the change along each parameter's grid, and counts."""

    row: NDArray[np.intp]
    prefill: NDArray[np.bool_]
    repeats: Array
    number: Array
    sequences: Array
    centre: Array
    added: Mapping[str, tuple[Array, Array]]

    def seconds(self, values: Mapping[str, float], engine: Engine, rows: int) -> Array:
        """The time of every row with these parameters, and `engine`'s graphs and overlap."""
        kernels = self.centre.copy()
        for name, (grid, added) in self.added.items():
            kernels += _between(_scale(name, values[name]), grid, added)
        device = np.where(self.prefill, values["prefill"], 1.0) * kernels + values["gap"] * self.number
        replayed = np.where(self.prefill, "prefill" in engine.graphs, "decode" in engine.graphs)
        busy = np.where(replayed, device, np.maximum(device, values["issue"] * self.number))
        host = values["sequence"] * self.sequences
        whole = values["step"] + (np.maximum(busy, host) if engine.overlap else busy + host)
        found: Array = np.bincount(self.row, weights=self.repeats * whole, minlength=rows).astype(np.float64)
        return found


def _scale(name: str, value: float) -> float:
    """The scale on which kernel times are nearly linear in a parameter."""
    return 1.0 / value if name in ("memory", "dequantization") else value


def _between(at: float, grid: Array, added: Array) -> Array:
    """Linear interpolation along the rows of `added` (rows, grid), with linear extrapolation."""
    index = int(np.clip(np.searchsorted(grid, at), 1, grid.size - 1))
    share = (at - grid[index - 1]) / (grid[index] - grid[index - 1])
    found: Array = added[:, index - 1] * (1 - share) + added[:, index] * share
    return found


def tabulate(rows: Sequence[list[Passes]], engine: Engine) -> Table:
    """The table of all passes around the parameters of `engine`."""
    flat = [(row, passes) for row, members in enumerate(rows) for passes in members]
    sizes = [passes.repeats.size for _, passes in flat]
    centre, numbers = _kernels(flat, engine)
    added = {name: _along(flat, engine, name, grid, centre) for name, grid in TABULATED.items()}
    return Table(
        row=np.repeat([row for row, _ in flat], sizes),
        prefill=np.repeat([passes.phase == "prefill" for _, passes in flat], sizes),
        repeats=np.concatenate([passes.repeats for _, passes in flat]),
        number=np.repeat(numbers, sizes),
        sequences=np.repeat([passes.sequences for _, passes in flat], sizes),
        centre=centre,
        added=added,
    )


def _along(
    flat: Sequence[tuple[int, Passes]], engine: Engine, name: str, grid: Sequence[float], centre: Array
) -> tuple[Array, Array]:
    """A parameter's grid in ascending `_scale`, and its change of the kernel times at the centre (rows, grid)."""
    abscissae = np.array([_scale(name, value) for value in grid])
    order = np.argsort(abscissae)
    columns = [_kernels(flat, changed(engine, {name: value}))[0] - centre for value in grid]
    table = np.stack(columns, axis=1)[:, order]
    at_centre = _between(_scale(name, engine[name]), abscissae[order], table)
    return abscissae[order], table - at_centre[:, np.newaxis]


def _kernels(flat: Sequence[tuple[int, Passes]], engine: Engine) -> tuple[Array, list[float]]:
    found = [passes.kernels(engine) for _, passes in flat]
    return np.concatenate([seconds for seconds, _ in found]), [number for _, number in found]


def changed(engine: Engine, parameters: Mapping[str, float]) -> Engine:
    """The engine with other values of some parameters."""
    return replace(engine, parameters=MappingProxyType({**engine.parameters, **parameters}))
