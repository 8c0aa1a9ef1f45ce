"""Fit engine profiles to whole-model figures: `python -m roofline.validate.fit.engines FIGURES_DIR [--output FOLDER]`.

Every engine's parameters are pulled towards a prior, PRIORS, as strongly as STIFFNESS says, and towards its own rows by
the logarithm of predicted over measured time, with a loss that outliers cannot dominate. A model is scored with
parameters fitted to the other models only (where an engine was measured on a single model, accelerators are held out).

A pass takes  max(prefill K + gap N, [no CUDA graph] issue N) + step + sequence batch  with N kernels that take K, and
with overlap scheduling the last term is in the maximum (`roofline.specs.engine`). Host parameters enter as they stand.
K depends on the others through every kernel, so that it is tabulated for each row: along each parameter, the others at
a centre, added up. The table is exact at its centre, which moves to what was fitted; scores come from the simulator
itself.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.optimize import least_squares

from roofline import Analysis, analyze
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.files import save_text
from roofline.core.parameters import Parameter
from roofline.scenario.generation import NODES, WEIGHTS
from roofline.specs.engine import DEFAULTS, PARAMETERS, Engine, load_engine, render
from roofline.validate.main import answer
from roofline.validate.score.end_to_end import Case, Figure, Predicted, Quantity, map_figures, predict, read_all

Array = NDArray[np.float64]

PRIORS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "gpt-fast": {"step": 0.2e-3},
        "tensorrt-llm": {"step": 0.3e-3, "sequence": 10e-6, "issue": 3e-6},
        "vllm": {"step": 0.5e-3, "sequence": 15e-6, "issue": 6e-6},
        "vllm-sync": {"step": 1.0e-3, "sequence": 18e-6, "issue": 6e-6},
        "vllm-v0": {"step": 1.0e-3, "sequence": 20e-6, "issue": 6e-6},
        "sglang": {"step": 0.5e-3, "sequence": 15e-6, "issue": 6e-6},
        "llama.cpp": {"step": 0.2e-3, "sequence": 10e-6, "issue": 3e-6, "integer_blocks": 4.0},
        "hf-eager": {"step": 2e-3, "sequence": 20e-6, "issue": 25e-6},
    }
)
"""What is expected of an engine before it is fitted; parameters that are left out have their default.

Orders of magnitude: a step of Python scheduling, sampling and detokenising takes about a millisecond, in C++ a few
tenths; a kernel launch costs the host 3 us in C++ and about 6 us in Python (PyTorch's own profiles say 5 to 10).
"""

STIFFNESS: Mapping[str, float] = MappingProxyType(
    {
        "step": 0.4,
        "sequence": 0.7,
        "issue": 0.5,
        "launch": 0.5,
        "memory": 0.04,
        "collective": 0.4,
        "prefill": 0.15,
        "dequantisation": 0.7,
        "integer_blocks": 0.4,
        "gap": 0.7e-6,
        "kv_reread": 0.15,
        "kv_conversion": 0.4,
    }
)
"""How far a parameter may lie from its prior: a standard deviation of its logarithm, or of itself where it can be 0.

Bandwidth is held closest: kernels are calibrated to it, and a fit that may move it lets it pay for other mistakes.
"""

LINEAR = frozenset({"gap", "kv_reread"})
"""Parameters that are fitted as they are, because they may be 0; the others by their logarithm."""

NEGLIGIBLE = 1e-2
"""Share of its stiffness below which such a parameter is 0."""

TABULATED: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "launch": (0.3, 0.6, 1.0, 1.6, 3.0),
        "memory": (0.7, 0.85, 1.0, 1.15, 1.4),
        "kv_reread": (0.0, 0.15, 0.4, 1.0),
        "collective": (0.3, 0.6, 1.0, 1.6, 3.0),
        "dequantisation": (0.01, 0.03, 0.08, 0.2, 0.45, 1.0),
        "integer_blocks": (0.0, 1.5, 3.0, 4.5, 6.0, 9.0),
        "kv_conversion": (0.0, 30.0, 60.0, 90.0, 130.0, 200.0),
    }
)
"""Parameters that kernels depend on, and where their times are tabulated."""

ALIKE = 0.03
"""Correlation of the errors of rows of one model."""

RESIDUAL = 0.1
"""Scatter of whole-model times around a good prediction, as a logarithm: the unit in which residuals are counted."""

PAYS = 0.9
"""A fit is kept where it lowers the held-out error to this share of the prior's, or further."""

TRANSFER = (0.85, 1.18)
"""The least spread of a profile: the same engine in other versions, or in another harness, differs by as much."""

ROUNDS = 2
"""Tables: around the prior, and around the first fit."""

PARAMETER: Mapping[str, Parameter] = MappingProxyType({parameter.name: parameter for parameter in PARAMETERS})


def prior(name: str) -> Engine:
    """The profile that the fit of an engine starts from: what the bundled one fuses and replays, PRIORS, no spread."""
    return replace(load_engine(name), parameters=MappingProxyType(dict(PRIORS.get(name, {}))), spread=(1.0, 1.0))


# --- rows that are fast to evaluate -----------------------------------------------------------------------------------


class Passes(Struct, frozen=True):
    """Equal passes of one phase: how often each runs in the row's time, and what they are."""

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
    """What a row's time is made of: prefills, decode steps by three contexts that stand for all, or both."""
    found = []
    for scenario, times in case.parts:
        batch, run = float(scenario.batch), replace(scenario, engine=case.engine)
        if case.quantity is not Quantity.TPOT:
            found.append(Passes("prefill", analyze(run), np.full(1, float(times)), batch))
        if case.quantity is not Quantity.TTFT:
            steps = scenario.generate - 1
            contexts = np.maximum(np.round(scenario.first_cached + (steps - 1) / 2 + steps / 2 * NODES), 0)
            share = times * WEIGHTS / 2 * (steps if case.quantity is Quantity.TOTAL else 1.0)
            found.append(Passes("decode", analyze(replace(run, context=contexts)), share, batch))
    return found


class Table(Struct, frozen=True):
    """Passes of many rows: kernel seconds at a centre, what each parameter adds to them along its grid, and counts."""

    row: NDArray[np.intp]
    prefill: NDArray[np.bool_]
    repeats: Array
    number: Array
    sequences: Array
    centre: Array
    added: Mapping[str, tuple[Array, Array]]

    def seconds(self, values: Mapping[str, float], engine: Engine, rows: int) -> Array:
        """The time of every row with these parameters on an engine that is like `engine` elsewhere."""
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
    """The abscissa in which kernel times are close to linear in a parameter."""
    return 1.0 / value if name in ("memory", "dequantisation") else value


def _between(at: float, grid: Array, added: Array) -> Array:
    """Linear interpolation along the rows of `added` (rows, grid); beyond the ends as in the last piece."""
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
    """Abscissae of a parameter in rising order, and what each adds to the kernels' times at the centre (rows, grid)."""
    abscissae = np.array([_scale(name, value) for value in grid])
    order = np.argsort(abscissae)
    columns = [_kernels(flat, _with(engine, {name: value}))[0] - centre for value in grid]
    table = np.stack(columns, axis=1)[:, order]
    at_centre = _between(_scale(name, engine[name]), abscissae[order], table)
    return abscissae[order], table - at_centre[:, np.newaxis]


def _kernels(flat: Sequence[tuple[int, Passes]], engine: Engine) -> tuple[Array, list[float]]:
    found = [passes.kernels(engine) for _, passes in flat]
    return np.concatenate([seconds for seconds, _ in found]), [number for _, number in found]


def _with(engine: Engine, changed: Mapping[str, float]) -> Engine:
    return replace(engine, parameters=MappingProxyType({**engine.parameters, **changed}))


# --- the fit ----------------------------------------------------------------------------------------------------------


class Space(Struct, frozen=True):
    """The fitted parameters as coordinates in units of their stiffness, 0 at the prior."""

    names: tuple[str, ...]
    prior: Engine

    def bounds(self) -> tuple[Array, Array]:
        """The least and the greatest coordinates."""
        ends = [
            (self._coordinate(name, _low(name)), self._coordinate(name, PARAMETER[name].high)) for name in self.names
        ]
        return np.array([low for low, _ in ends]), np.array([high for _, high in ends])

    def _coordinate(self, name: str, value: float) -> float:
        start = self.prior[name]
        if name in LINEAR:
            return (value - start) / STIFFNESS[name]
        return float(np.log(value / start)) / STIFFNESS[name]

    def values(self, coordinates: Array) -> dict[str, float]:
        """All parameters at a point."""
        values = {name: self.prior[name] for name in DEFAULTS}
        for name, at in zip(self.names, coordinates, strict=True):
            start, scale = self.prior[name], STIFFNESS[name]
            value = start + scale * at if name in LINEAR else start * float(np.exp(scale * at))
            if name in LINEAR and value < NEGLIGIBLE * scale:
                value = 0.0
            values[name] = min(max(value, PARAMETER[name].low), PARAMETER[name].high)
        return values


def _low(name: str) -> float:
    """The least value of a parameter; above 0 where its logarithm is fitted."""
    return PARAMETER[name].low if name in LINEAR else max(PARAMETER[name].low, 1e-9)


def space(engine: Engine) -> Space:
    """The parameters that are fitted: those of STIFFNESS whose prior is not 0 or that may be 0; the others keep it."""
    names = [name for name in DEFAULTS if name in LINEAR or (name in STIFFNESS and engine[name] > 0)]
    if set(engine.graphs) == {"prefill", "decode"}:
        names = [name for name in names if name != "issue"]
    return Space(tuple(names), engine)


def weights_of(models: Sequence[str]) -> Array:
    """What each row counts: the errors of one model's rows are alike, so that many of them say little more than a few.

    With the correlation ALIKE, n rows are worth n / (1 + (n - 1) ALIKE).
    """
    counts = Counter(models)
    return np.array([1.0 / (1.0 + (counts[model] - 1) * ALIKE) for model in models])


def fit(table: Table, measured: Array, weights: Array, around: Space, start: Array) -> Array:
    """The coordinates that fit the rows best by their weights, pulled towards the prior."""
    logarithms, chosen = np.log(measured), weights > 0
    roots = np.sqrt(weights[chosen])

    def residuals(at: Array) -> Array:
        seconds = table.seconds(around.values(at), around.prior, measured.size)
        errors = (np.log(seconds) - logarithms)[chosen] / RESIDUAL
        # Beyond two of its units a row counts with its distance, not with the square of it.
        robust = np.sign(errors) * np.sqrt(2 * 4 * (np.sqrt(1 + errors**2 / 4) - 1))
        return np.concatenate([roots * robust, at])

    low, high = around.bounds()
    inside = np.clip(start, low + 0.3, high - 0.3)
    found: Array = least_squares(residuals, inside, bounds=(low, high), xtol=1e-6, ftol=1e-6).x
    return found


class Fitted(Struct, frozen=True):
    """An engine fitted to all its rows, and each row predicted without its own model.

    `pays`: the fit predicts models that it did not see better than the prior does, by the factor PAYS; where it does
    not, `engine` is the prior, since parameters that no held-out row asks for are noise elsewhere.
    """

    engine: Engine
    cases: tuple[Case, ...]
    unfitted: tuple[Predicted, ...]
    held_out: tuple[Predicted, ...]
    folds: str
    pays: bool


def fit_engine(name: str, cases: Sequence[Case]) -> Fitted:
    """The profile of an engine from its rows, with every model scored by a fit to the others."""
    start = prior(name)
    measured = np.array([case.measured for case in cases])
    rows = [passes_of(case) for case in cases]
    around = space(start)
    models = [case.scenario.model.name for case in cases]
    weights = weights_of(models)
    engine, table, at = start, None, np.zeros(len(around.names))
    for _ in range(ROUNDS):
        table = tabulate(rows, engine)
        at = fit(table, measured, weights, around, at)
        engine = _with(start, around.values(at))
    assert table is not None
    folds, key = "model", models
    if len(set(key)) == 1:
        folds, key = "hardware", [case.scenario.hardware.name for case in cases]
    held_out: dict[int, Predicted] = {}
    for left_out in dict.fromkeys(key):
        own = np.array([group == left_out for group in key])
        found = fit(table, measured, np.where(own, 0.0, weights), around, np.zeros(len(around.names)))
        fold = _with(start, around.values(found))
        held_out |= {index: predict(case, fold) for index, case in enumerate(cases) if own[index]}
    ordered = tuple(held_out[index] for index in range(len(cases)))
    unfitted = tuple(predict(case, start) for case in cases)
    before, after = (errors(cases, found).mean() for found in (unfitted, ordered))
    pays = bool(after < PAYS * before)
    chosen, predicted = (engine, ordered) if pays else (start, unfitted)
    return Fitted(
        replace(chosen, spread=wide_enough(spread(measured, predicted))), tuple(cases), unfitted, ordered, folds, pays
    )


def wide_enough(found: tuple[float, float]) -> tuple[float, float]:
    """At least TRANSFER: rows of one harness do not show how far its engine differs between versions and machines."""
    return min(found[0], TRANSFER[0]), max(found[1], TRANSFER[1])


def spread(measured: Array, predicted: Sequence[Predicted]) -> tuple[float, float]:
    """The engine's own 10th and 90th percentile of measured over predicted time, beside the kernels' intervals.

    An interval is the root of the squares of both, so that a row needs what its kernels leave of its error.
    """
    mid = np.array([found.mid for found in predicted])
    below = np.array([found.mid - found.low for found in predicted])
    above = np.array([found.high - found.mid for found in predicted])
    error = measured - mid
    low = np.where(error < 0, np.sqrt(np.maximum(error**2 - below**2, 0.0)) / mid, 0.0)
    high = np.where(error > 0, np.sqrt(np.maximum(error**2 - above**2, 0.0)) / mid, 0.0)
    return 1.0 - min(float(np.quantile(low, 0.9)), 0.95), 1.0 + float(np.quantile(high, 0.9))


def fit_all(figures: Sequence[Figure], names: Iterable[str] | None = None) -> list[Fitted]:
    """Every engine that the figures name, or those given."""
    cases, _ = map_figures(figures)
    by_engine: dict[str, list[Case]] = {}
    for case in cases:
        by_engine.setdefault(case.engine, []).append(case)
    wanted = list(by_engine if names is None else names)
    for name in wanted:
        if name not in by_engine:
            raise UnknownNameError("engine among the figures", name, by_engine)
    return [fit_engine(name, _usable(by_engine[name])) for name in wanted]


def _usable(cases: Sequence[Case]) -> list[Case]:
    """Cases that the simulator can express."""
    found = []
    for case in cases:
        try:
            predict(case)
        except RooflineError:
            continue
        found.append(case)
    return found


# --- printing ---------------------------------------------------------------------------------------------------------


def errors(cases: Sequence[Case], predicted: Sequence[Predicted]) -> Array:
    """Absolute errors as fractions of the measured time."""
    return np.array([abs(found.mid / case.measured - 1) for case, found in zip(cases, predicted, strict=True)])


def report(fitted: Sequence[Fitted]) -> str:
    """Errors by file and engine, held out and without any fit, and the parameters."""
    head = f"{'file':38} {'engine':14} {'rows':>4}  {'no fit':>13}  {'held out':>13}  {'in interval':>11}"
    lines = [f"{head}\n{'':38} {'':14} {'':4}  {'MAPE':>6} {'median':>6}  {'MAPE':>6} {'median':>6}"]
    for found in fitted:
        files = np.array([case.figure.line.file for case in found.cases])
        before, after = errors(found.cases, found.unfitted), errors(found.cases, found.held_out)
        inside = np.array(
            [_inside(case, one, found.engine) for case, one in zip(found.cases, found.held_out, strict=True)]
        )
        for file in dict.fromkeys(files):
            own = files == file
            lines.append(
                f"{file:38.38} {found.engine.name:14} {own.sum():4d}"
                f"  {before[own].mean():6.1%} {np.median(before[own]):6.1%}"
                f"  {after[own].mean():6.1%} {np.median(after[own]):6.1%}  {inside[own].mean():11.0%}"
            )
    lines += ["", "Held out: every model predicted with parameters fitted to the others."]
    lines += [f"{found.engine.name}: by {found.folds}" for found in fitted if found.folds != "model"]
    return "\n".join([*lines, "", *(render(found.engine) for found in fitted)])


def _inside(case: Case, found: Predicted, engine: Engine) -> bool:
    below = np.hypot(found.mid - found.low, found.mid * (1 - engine.spread[0]))
    above = np.hypot(found.high - found.mid, found.mid * (engine.spread[1] - 1))
    return bool(found.mid - below <= case.measured <= found.mid + above)


def described(found: Fitted) -> Engine:
    """The profile with what it was fitted to."""
    files = ", ".join(dict.fromkeys(case.figure.line.file for case in found.cases))
    before, after = (errors(found.cases, predicted) for predicted in (found.unfitted, found.held_out))
    rows = f"roofline.validate.fit.engines: {len(found.cases)} rows of {files}"
    if found.pays:
        source = (
            f"{rows}; fitted, held out by {found.folds}: MAPE {after.mean():.1%}, median {np.median(after):.1%}"
            f" (before {before.mean():.1%})"
        )
    else:
        source = (
            f"{rows}; not fitted, since that does not pay (MAPE held out by {found.folds} {after.mean():.1%}):"
            f" MAPE {before.mean():.1%}, median {np.median(before):.1%}; only the spread is from these rows"
        )
    return replace(found.engine, sources=(source,))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print the held-out errors, and write the profiles where asked to; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m roofline.validate.fit.engines", description="Engine profiles and their errors."
    )
    parser.add_argument("figures", type=Path, help="CSV file of whole-model figures, or a folder of them")
    parser.add_argument("--engine", action="append", help="fit this engine only; may be repeated")
    parser.add_argument("--output", type=Path, help="write one YAML file an engine into this folder")

    def work(options: argparse.Namespace) -> str:
        fitted = fit_all(read_all(options.figures)[0], options.engine)
        for found in fitted if options.output is not None else ():
            save_text(options.output / f"{found.engine.name}.yaml", render(described(found)))
        return report(fitted) + "\n"

    return answer(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
