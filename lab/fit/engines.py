"""Fit engine profiles to published whole-model values.

    python -m lab.fit.engines FIGURES_DIR [--output FOLDER]

The loss of an engine's parameters is the logarithm of predicted over measured time of its rows, in a robust form,
plus the distance from a prior, PRIORS, in units of STIFFNESS. A model is scored with parameters fitted to other models
(accelerators are held out for an engine that was measured on a single model).

Times come from a table (`lab.fit.pass_times`), which is exact at its centre; the centre moves to the
fitted values, and scores come from the simulator itself. Backends of an engine (`Engine.vendors`) are fitted apart.
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

from lab.command import run_command
from lab.fit.pass_times import Array, Table, changed, passes_of, tabulate
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.files import save_text
from roofline.core.parameters import Parameter
from roofline.specs.engine import DEFAULTS, PARAMETERS, Engine, load_engine
from roofline.specs.engine_written import render
from roofline.timing.intervals.passes import with_spread
from roofline.validate.fit.posterior import mode
from roofline.validate.score.end_to_end import Case, map_rows, predict
from roofline.validate.score.errors import Predicted
from roofline.validate.tables.published import PublishedRow, read_all

PRIORS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "gpt-fast": {"step": 0.2e-3},
        "tensorrt-llm": {"step": 0.3e-3, "sequence": 10e-6, "issue": 3e-6},
        "lmdeploy": {"step": 0.3e-3, "sequence": 10e-6, "issue": 3e-6},
        "vllm": {"step": 0.5e-3, "sequence": 15e-6, "issue": 6e-6},
        "vllm@0.8": {"step": 1.0e-3, "sequence": 18e-6, "issue": 6e-6},
        "vllm@0.4": {"step": 1.0e-3, "sequence": 20e-6, "issue": 6e-6},
        "sglang": {"step": 0.5e-3, "sequence": 15e-6, "issue": 6e-6},
        "llama.cpp": {
            "step": 0.2e-3,
            "sequence": 10e-6,
            "issue": 3e-6,
            "integer_blocks": 4.0,
            "vector_launch": 4.2e-6,
            "vector_latency": 1.13e-6,
            "vector_memory": 0.91,
        },
        "llama.cpp Apple": {"step": 0.2e-3, "sequence": 10e-6, "issue": 3e-6, "gap": 8e-6},
        "deepspeed-mii": {"step": 1.0e-3, "sequence": 20e-6, "issue": 6e-6},
        "hf-eager": {"step": 2e-3, "sequence": 20e-6, "issue": 25e-6},
    }
)
"""Prior parameters of profiles (`Engine.profile`) and of their backends; others have their default.

Orders of magnitude: a step of Python scheduling, sampling and detokenising takes about a millisecond, in C++ a few
tenths; a kernel launch takes the CPU 3 us in C++ and about 6 us in Python (5 to 10 in PyTorch's own profiles). Metal
has no graphs: a token of Llama 2 7B takes 5 ms more than its bytes on every Apple GPU, 8 us for each of its kernels.
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
        "dequantization": 0.7,
        "integer_blocks": 0.4,
        "gap": 0.7e-6,
        "kv_reread": 0.15,
        "kv_conversion": 0.4,
    }
)
"""Standard deviation of a parameter around its prior: of its logarithm, or of its value for LINEAR ones.

Bandwidth is held closest: kernels are calibrated to it, and a loose one would absorb other errors.
"""

LINEAR = frozenset({"gap", "kv_reread"})
"""Parameters fitted on a linear scale, because they may be 0; others on a logarithmic one."""

NEGLIGIBLE = 1e-2
"""Fraction of its stiffness below which a linear parameter is rounded to 0."""

ROW_CORRELATION = 0.03
"""Correlation of the errors of rows of one model."""

RESIDUAL = 0.1
"""Standard deviation of the logarithm of whole-model times around a good prediction; the unit of residuals."""

MIN_IMPROVEMENT = 0.9
"""A fit is kept if its held-out error is below this fraction of the prior's error."""

MIN_SPREAD = (0.88, 1.14)
"""The least spread of a profile: the difference between versions and benchmark harnesses of one engine."""

KERNEL_ERRORS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Fractions of the error of kernels that were measured with another engine; at least what other models may add."""

ROUNDS = 2
"""Rounds of tabulation: around the prior, and around the first fit."""

PARAMETER: Mapping[str, Parameter] = MappingProxyType({parameter.name: parameter for parameter in PARAMETERS})


def prior(name: str, backend: str = "") -> Engine:
    """The initial profile of an engine's fit: the bundled fusions and graphs, PRIORS, no spread and no backends."""
    parameters = MappingProxyType(dict(PRIORS.get(f"{name} {backend}", PRIORS.get(name, {}))))
    return replace(load_engine(name), parameters=parameters, vendors={}, spread=(1.0, 1.0))


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
    """The fitted parameters: those of STIFFNESS with a prior above 0, and the linear ones; others keep the prior."""
    names = [name for name in DEFAULTS if name in LINEAR or (name in STIFFNESS and engine[name] > 0)]
    if set(engine.graphs) == {"prefill", "decode"}:
        names = [name for name in names if name != "issue"]
    return Space(tuple(names), engine)


def weights_of(models: Sequence[str]) -> Array:
    """The weight of each row: n rows of one model have the weight n / (1 + (n - 1) ROW_CORRELATION) together."""
    counts = Counter(models)
    return np.array([1.0 / (1.0 + (counts[model] - 1) * ROW_CORRELATION) for model in models])


def fit(table: Table, measured: Array, weights: Array, around: Space, start: Array) -> Array:
    """The coordinates of least loss: weighted robust residuals of the rows, and the distance from the prior."""
    logarithms, chosen = np.log(measured), weights > 0
    roots = np.sqrt(weights[chosen])

    def errors(at: Array) -> Array:
        seconds = table.seconds(around.values(at), around.prior, measured.size)
        return np.asarray((np.log(seconds) - logarithms)[chosen])

    low, high = around.bounds()
    inside = np.clip(start, low + 0.3, high - 0.3)
    return mode(
        errors, np.copy, inside, scale=RESIDUAL, knee=2.0, weights=roots, bounds=(low, high), xtol=1e-6, ftol=1e-6
    )


class Fitted(Struct, frozen=True):
    """An engine fitted to all its rows, with the predictions of each row by the prior and by a fit without its model.

    `backend`: the key of `Engine.vendors` whose rows they are, "" for hardware of other vendors. `improves`: the fit
    lowers the held-out error by MIN_IMPROVEMENT; otherwise `engine` is the prior.
    """

    engine: Engine
    cases: tuple[Case, ...]
    unfitted: tuple[Predicted, ...]
    held_out: tuple[Predicted, ...]
    folds: str
    improves: bool
    backend: str = ""

    @property
    def heading(self) -> str:
        """The profile and the backend."""
        return f"{self.engine.profile} {self.backend}".rstrip()


def fit_engine(name: str, cases: Sequence[Case], backend: str = "") -> Fitted:
    """The profile of an engine (on a backend) from its rows, with every model scored by a fit to the others."""
    start = prior(name, backend)
    measured = np.array([case.measured for case in cases])
    rows = [passes_of(case) for case in cases]
    around = space(start)
    models = [case.scenario.model.name for case in cases]
    weights = weights_of(models)
    engine, table, at = start, None, np.zeros(len(around.names))
    for _ in range(ROUNDS):
        table = tabulate(rows, engine)
        at = fit(table, measured, weights, around, at)
        engine = changed(start, around.values(at))
    assert table is not None
    folds, key = "model", models
    if len(set(key)) == 1:
        folds, key = "hardware", [case.scenario.hardware.name for case in cases]
    held_out: dict[int, Predicted] = {}
    for left_out in dict.fromkeys(key):
        own = np.array([group == left_out for group in key])
        found = fit(table, measured, np.where(own, 0.0, weights), around, np.zeros(len(around.names)))
        fold = changed(start, around.values(found))
        held_out |= {index: predict(case, fold) for index, case in enumerate(cases) if own[index]}
    ordered = tuple(held_out[index] for index in range(len(cases)))
    unfitted = tuple(predict(case, start) for case in cases)
    before, after = (errors(cases, found).mean() for found in (unfitted, ordered))
    improves = bool(after < MIN_IMPROVEMENT * before)
    chosen, predicted = (engine, ordered) if improves else (start, unfitted)
    low, high = spread(measured, predicted)
    wide = min(low, MIN_SPREAD[0]), max(high, MIN_SPREAD[1])
    chosen = replace(chosen, spread=wide)
    if improves and chosen.kernels_of:
        chosen = changed(chosen, {"kernel_error": kernel_error(measured, predicted, wide)})
    return Fitted(chosen, tuple(cases), unfitted, ordered, folds, improves, backend)


def spread(measured: Array, predicted: Sequence[Predicted]) -> tuple[float, float]:
    """The engine's 10th and 90th percentile of measured over predicted time, besides the kernels' intervals.

    An interval is the root of the sum of squares of both, so a row's error counts less that of its kernels.
    """
    mid = np.array([found.mid for found in predicted])
    below = np.array([found.mid - found.low for found in predicted])
    above = np.array([found.high - found.mid for found in predicted])
    error = measured - mid
    low = np.where(error < 0, np.sqrt(np.maximum(error**2 - below**2, 0.0)) / mid, 0.0)
    high = np.where(error > 0, np.sqrt(np.maximum(error**2 - above**2, 0.0)) / mid, 0.0)
    return 1.0 - min(float(np.quantile(low, 0.9)), 0.95), 1.0 + float(np.quantile(high, 0.9))


def kernel_error(measured: Array, predicted: Sequence[Predicted], wide: tuple[float, float]) -> float:
    """The least of KERNEL_ERRORS with which 80% of held-out rows are inside the interval; 1 where none suffices."""
    for fraction in KERNEL_ERRORS:
        held = [_within(value, found, wide, fraction) for value, found in zip(measured, predicted, strict=True)]
        if np.mean(held) >= 0.8:
            return fraction
    return 1.0


def fit_all(rows: Sequence[PublishedRow], names: Iterable[str] | None = None) -> list[Fitted]:
    """The fits of the engines in `names`, or of all engines of the rows."""
    cases, _ = map_rows(rows)
    by_engine: dict[str, dict[str, list[Case]]] = {}
    for case in cases:
        engine = load_engine(case.engine)
        by_engine.setdefault(engine.profile, {}).setdefault(engine.backend(case.scenario.hardware), []).append(case)
    chosen = list(by_engine if names is None else names)
    for name in chosen:
        if name not in by_engine:
            raise UnknownNameError("engine of the rows", name, by_engine)
    return [
        fit_engine(name, _supported(own), backend)
        for name in chosen
        for backend, own in sorted(by_engine[name].items())
    ]


def _supported(cases: Sequence[Case]) -> list[Case]:
    """The cases that the simulator supports."""
    found = []
    for case in cases:
        try:
            predict(case)
        except RooflineError:
            continue
        found.append(case)
    return found


def errors(cases: Sequence[Case], predicted: Sequence[Predicted]) -> Array:
    """Absolute errors as fractions of the measured time."""
    return np.array([abs(found.mid / case.measured - 1) for case, found in zip(cases, predicted, strict=True)])


def report(fitted: Sequence[Fitted]) -> str:
    """Errors by file and engine, of the prior and held out, and the fitted profiles."""
    head = f"{'file':38} {'engine':14} {'rows':>4}  {'prior':>13}  {'held out':>13}  {'in interval':>11}"
    lines = [f"{head}\n{'':38} {'':14} {'':4}  {'MAPE':>6} {'median':>6}  {'MAPE':>6} {'median':>6}"]
    for found in fitted:
        files = np.array([case.row.line.file for case in found.cases])
        before, after = errors(found.cases, found.unfitted), errors(found.cases, found.held_out)
        inside = np.array(
            [
                _within(case.measured, one, found.engine.spread, found.engine["kernel_error"])
                for case, one in zip(found.cases, found.held_out, strict=True)
            ]
        )
        for file in dict.fromkeys(files):
            own = files == file
            lines.append(
                f"{file:38.38} {found.heading:14} {own.sum():4d}"
                f"  {before[own].mean():6.1%} {np.median(before[own]):6.1%}"
                f"  {after[own].mean():6.1%} {np.median(after[own]):6.1%}  {inside[own].mean():11.0%}"
            )
    lines += ["", "Held out: every model predicted with parameters fitted to the others."]
    lines += [f"{found.heading}: by {found.folds}" for found in fitted if found.folds != "model"]
    return "\n".join([*lines, "", *(render(engine) for engine in profiles(fitted))])


def _within(measured: float, found: Predicted, spread: tuple[float, float], fraction: float) -> bool:
    """Whether a value is inside a prediction's interval, in which a fraction of its kernels' error counts."""
    ends = fraction * (found.mid - found.low), fraction * (found.high - found.mid)
    interval = with_spread(found.mid, *ends, spread)
    return bool(interval.low <= measured <= interval.high)


def profiles(fitted: Sequence[Fitted]) -> list[Engine]:
    """The profile of each engine with the parameters of its backends, the widest spread and the fits' sources."""
    found: dict[str, Engine] = {}
    for one in fitted:
        engine = described(one)
        if (whole := found.setdefault(engine.profile, engine)) is not engine:
            names = [name for name in DEFAULTS if engine[name] != whole[name]]
            own = MappingProxyType({name: engine[name] for name in names})
            (low, high), (least, most) = engine.spread, whole.spread
            found[engine.profile] = replace(
                whole,
                vendors=MappingProxyType({**whole.vendors, one.backend: own}),
                spread=(min(low, least), max(high, most)),
                sources=(*whole.sources, *engine.sources),
            )
    return list(found.values())


def described(found: Fitted) -> Engine:
    """The profile with the source of its fit."""
    files = ", ".join(dict.fromkeys(case.row.line.file for case in found.cases))
    before, after = (errors(found.cases, predicted) for predicted in (found.unfitted, found.held_out))
    on = f" on {found.backend}" if found.backend else ""
    rows = f"lab.fit.engines: {len(found.cases)} rows of {files}{on}"
    if found.improves:
        source = (
            f"{rows}; fitted, held out by {found.folds}: MAPE {after.mean():.1%}, median {np.median(after):.1%}"
            f" (before {before.mean():.1%})"
        )
    else:
        source = (
            f"{rows}; not fitted, since a fit does not lower the error (MAPE held out by {found.folds}"
            f" {after.mean():.1%}): MAPE {before.mean():.1%}, median {np.median(before):.1%}; only the spread is from"
            " these rows"
        )
    return replace(found.engine, sources=(source,))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print the held-out errors, and write the profiles to `--output`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.fit.engines", description="Engine profiles and their errors.")
    parser.add_argument("figures", type=Path, help="CSV file of published whole-model values, or a folder of them")
    parser.add_argument("--engine", action="append", help="fit this engine only; may be repeated")
    parser.add_argument("--output", type=Path, help="write one YAML file for each engine to this folder")

    def work(options: argparse.Namespace) -> str:
        fitted = fit_all(read_all(options.figures)[0], options.engine)
        for engine in profiles(fitted) if options.output is not None else ():
            save_text(options.output / f"{engine.profile}.yaml", render(engine))
        return report(fitted) + "\n"

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
