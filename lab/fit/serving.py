"""Fit the schedulers of engine profiles to serving benchmarks.

    python -m lab.fit.serving FILE... [--rounds N] [--rows N] [--output FOLDER]

A few parameters of each engine are fitted: the front end's latency and its times per request and prompt token, the host
time of kernels in steps with prompts, of a step, and of a sequence in it. The loss is the error of predicted over
measured TTFT and TPOT (its logarithm where they are below) in a robust form, and the distance from priors in units of
STIFFNESS: that of all engines together from PRIORS, and that of each engine from all together. The event simulation
gives residuals and their derivatives at the profiles' parameters; the loss is minimised on the linear model of both,
three times. Scores hold out each model, and each version of an engine, in turn: the errors, and the share of rows
inside the interval whose spread is of the rows that are left. `--rounds 0` scores the shipped profiles.

The spread of a profile leaves TAIL of the rows beyond either end, models held out. Each model of FEW rows counts alike,
and all other engines together as much as OTHERS models of this one: an engine of few models keeps more of the common
spread. Benchmarks (version, model, device, format) that are a factor of UNEXPLAINED off have a cause that no column
states, such as kernels that compile under load; the spread is of the others. Where files have medians of TTFT, means of
TTFT with drawn lengths are left out: they are of the same benchmark, and contain what compiles for its first requests.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from lab.command import run_command
from lab.score.serving import Predictor, read_cases
from lab.tables.closed_loop import DecodeApart
from roofline.core.files import save_text
from roofline.serving.outcome import LEAST
from roofline.specs.engine import Engine, load_engine
from roofline.specs.engine_written import render
from roofline.specs.scheduler import Scheduler
from roofline.validate.fit.posterior import mode
from roofline.validate.score.serving import estimate_of, predict
from roofline.validate.tables.serving import ServingCase

Array = NDArray[np.float64]

PRIORS: Mapping[str, float] = MappingProxyType(
    {"latency": 30e-3, "request": 2e-3, "prompt_token": 1e-6, "dispatch": 40e-6}
)
"""Seconds of all engines: HTTP, queues and detokenisation take tens of milliseconds; a request some Python, a token of
its prompt a microsecond of the tokenizer (1 M tokens/s), a kernel some dispatches of PyTorch's at 10 us."""

HOST = ("step", "sequence")
"""Host times of a server, whose prior is that of the profile."""

FITTED = (*PRIORS, *HOST)

METRICS = ("ttft", "tpot")

BENCHMARK = ("version", "model", "hardware", "format")
"""The labels of rows that were measured together."""

STIFFNESS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "latency": (0.7, 0.35),
        "request": (0.7, 0.25),
        "prompt_token": (0.7, 0.25),
        "step": (0.3, 0.15),
        "sequence": (0.5, 0.2),
        "dispatch": (0.7, 0.25),
    }
)
"""Standard deviations of the logarithm of a parameter: of all engines around the prior, of an engine around all."""

RESIDUAL = 0.15
"""Standard deviation of the logarithm of a time around a good prediction."""

OUTLIER = 2.0
"""Residuals beyond so many deviations count less (Cauchy's loss): some rows err for other reasons than schedulers."""

CORRELATED = 0.05
"""Weight of a row: benchmarks of one engine, model and device err together."""

DIFFERENCE = 0.2
"""Step of the logarithm of a parameter for derivatives."""

ROUNDS = 3
"""Linearisations: each third of what the first leaves is left by the next."""

MOST_ROWS = 500
"""Rows that are simulated for a fit, at even distances; scores are of all."""

TAIL, OTHERS = 0.07, 2.0
"""Part of the rows beyond either end of an interval, and the weight of other engines in models, chosen on every fifth
row; of every fourth, 80% (TTFT) and 84% (TPOT) lie inside with models held out, 80 and 82% with versions held out."""

FEW = 10.0
"""Rows from which a model counts in full."""

UNEXPLAINED = 2.0
"""Factor between prediction and measurement, at a benchmark's median, beyond which its rows are not of the spread."""


class Residuals(NamedTuple):
    """Logarithms of predicted over measured times, their derivatives by the engine's parameters, and labels.

    `place` are the logarithms of the parameters over their priors at which both are. `below` and `above` are the
    relative distances of p10 and p90 of the step times from p50.
    """

    value: Array
    slope: Array
    place: Array
    engine: NDArray[np.str_]
    model: NDArray[np.str_]
    version: NDArray[np.str_]
    metric: NDArray[np.str_]
    benchmark: NDArray[np.str_]
    hardware: NDArray[np.str_]
    below: Array
    above: Array

    def chosen(self, rows: NDArray[np.bool_]) -> Residuals:
        """Some of the rows."""
        chosen: Any = [column[rows] for column in self]
        return Residuals(*chosen)


Values = dict[str, dict[str, float]]
"""Parameters by engine and name."""


def starting(engines: Iterable[str]) -> Values:
    """The priors of each engine."""
    hosts = {name: {key: max(load_engine(name)[key], 1e-7) for key in HOST} for name in engines}
    return {name: {**PRIORS, **host} for name, host in hosts.items()}


def shipped(engines: Iterable[str]) -> Values:
    """The parameters of each engine's profile, or the priors."""
    schedulers = {name: load_engine(name).scheduler for name in engines}
    return {
        name: {key: getattr(schedulers[name], key) or prior for key, prior in priors.items()}
        for name, priors in starting(schedulers).items()
    }


def applied(case: ServingCase, values: Mapping[str, float]) -> ServingCase:
    """A case with other parameters of its engine."""
    profile = case.scenario.profile
    plain = {**values, "spread_ttft": (1.0, 1.0), "spread_tpot": (1.0, 1.0)}
    engine = replace(profile, scheduler=replace(profile.scheduler, **plain))
    scheduler = replace(case.scheduler, **plain)
    changed = replace(case, scenario=case.scenario.changed(engine=engine), scheduler=scheduler)
    if not isinstance(changed, DecodeApart) or changed.decode is None:
        return changed
    scenario, load = changed.decode
    return replace(changed, decode=(scenario.changed(engine=engine), load))


def logarithms(
    cases: Sequence[ServingCase], values: Values, predictor: Predictor
) -> tuple[Array, list[tuple[ServingCase, str]], Array]:
    """Logarithms of predicted over measured times (NaN where a case cannot be simulated), and the steps' intervals.

    Intervals are the relative distances of p10 and p90 from p50 (rows, 2).
    """
    changed = [applied(case, values[case.scenario.profile.profile]) for case in cases]
    found, _ = predict(changed, predictor)
    outcomes = {_row(case): outcome for case, outcome in found}
    logs, labels, ends = [], [], []
    for case in cases:
        for metric in METRICS:
            measured, outcome = getattr(case, metric), outcomes.get(_row(case))
            if measured is not None:
                low, mid, high = (np.nan,) * 3 if outcome is None else estimate_of(outcome, metric, case.median)
                logs.append(np.log(mid / measured))
                labels.append((case, metric))
                ends.append((1 - low / mid, high / mid - 1))
    return np.array(logs), labels, np.array(ends)


def _row(case: ServingCase) -> tuple[str, int]:
    """Where a case stands: its file and row."""
    return case.line.file, case.line.number


def residuals_of(cases: Sequence[ServingCase], values: Values, predictor: Predictor) -> Residuals:
    """Residuals and derivatives at some parameters."""
    value, labels, ends = logarithms(cases, values, predictor)
    slopes = []
    for name in FITTED:
        moved = {engine: {**given, name: given[name] * float(np.exp(DIFFERENCE))} for engine, given in values.items()}
        slopes.append((logarithms(cases, moved, predictor)[0] - value) / DIFFERENCE)
    rows = [(case.labels, metric) for case, metric in labels]
    engine, model, version = (np.array([label[key] for label, _ in rows]) for key in ("engine", "model", "version"))
    priors = starting(values)
    places = [[np.log(values[name][key] / priors[name][key]) for key in FITTED] for name in engine.tolist()]
    known = np.isfinite(value)
    slope = np.nan_to_num(np.stack(slopes, axis=1))
    metrics = np.array([metric for _, metric in rows])
    benchmarks = np.array(["|".join(label[key] for key in BENCHMARK) for label, _ in rows])
    hardware = np.array([label["hardware"] for label, _ in rows])
    labelled = (engine, model, version, metrics, benchmarks, hardware)
    return Residuals(value, slope, np.array(places), *labelled, ends[:, 0], ends[:, 1]).chosen(known)


def solve(found: Residuals, engines: Sequence[str]) -> dict[str, Array]:
    """The logarithms of each engine's parameters over their priors that minimise the loss of these rows."""
    size = len(FITTED)
    place = np.array([list(engines).index(name) for name in found.engine])
    counts = dict(zip(*np.unique(place, return_counts=True), strict=True))
    weight = np.array([(1 + CORRELATED * (counts[index] - 1)) ** -0.5 for index in place])
    wide, narrow = (np.array([STIFFNESS[name][which] for name in FITTED]) for which in (0, 1))

    def changes(vector: Array) -> Array:
        return vector[:size] + vector[size:].reshape(len(engines), size)

    def errors(vector: Array) -> Array:
        moved = found.value + (found.slope * (changes(vector)[place] - found.place)).sum(axis=1)
        return np.asarray(np.where(moved > 0, np.expm1(np.minimum(moved, 3.0)), moved))

    deviations = np.concatenate([wide, np.tile(narrow, len(engines))])
    solution = mode(
        errors,
        lambda vector: vector / deviations,
        np.zeros(deviations.size),
        scale=RESIDUAL,
        knee=OUTLIER,
        outliers=True,
        weights=weight,
    )
    return dict(zip(engines, changes(solution), strict=True))


def moved(by: Mapping[str, Array]) -> Values:
    """The parameters of each engine at these logarithms over their priors."""
    return {
        engine: {name: value * float(np.exp(by[engine][FITTED.index(name)])) for name, value in given.items()}
        for engine, given in starting(by).items()
    }


def fitted(cases: Sequence[ServingCase], rounds: int = ROUNDS) -> tuple[Values, Residuals]:
    """The parameters of every engine (no round: those shipped), and the residuals at the last linearisation."""
    engines = sorted({case.scenario.profile.profile for case in cases})
    values, predictor = shipped(engines), Predictor()
    for _ in range(rounds):
        found = residuals_of(cases, values, predictor)
        values = moved(solve(found, engines))
    return values, residuals_of(cases, values, predictor)


def held_out(found: Residuals, by: NDArray[np.str_]) -> Array:
    """Residuals of each group of `by` with parameters that were fitted without it."""
    engines = sorted(set(found.engine.tolist()))
    left = np.zeros(found.value.size)
    for name in np.unique(by):
        inside = by == name
        change = solve(found.chosen(~inside), engines) if (~inside).any() else dict.fromkeys(engines, 0.0)
        moves = np.stack([np.broadcast_to(change[engine], len(FITTED)) for engine in found.engine[inside]])
        left[inside] = found.value[inside] + (found.slope[inside] * (moves - found.place[inside])).sum(axis=1)
    return left


def errors(logs: Array) -> str:
    """MAPE and median of the errors, in percent."""
    error = np.abs(np.exp(logs) - 1)
    return f"{100 * error.mean():5.1f} / {100 * np.median(error):4.1f}"


def report(found: Residuals) -> Iterable[str]:
    """Lines with errors: as fitted, and with models, versions and devices held out."""
    groups = (found.model, found.version, found.hardware)
    left = [held_out(found, by) for by in groups]
    inside = [covered(found, logs, by) for logs, by in zip(left, groups, strict=True)]
    titles = "".join(f"{title:22s}" for title in ("models out", "versions out", "devices out"))
    yield f"{'engine':14s} {'metric':6s} {'rows':>5s}  {'fitted':13s}{titles}".rstrip()
    for engine in (*sorted(set(found.engine.tolist())), "all"):
        for metric in METRICS:
            rows = (found.metric == metric) & ((found.engine == engine) | (engine == "all"))
            parts = [
                f"{errors(logs[rows])} {100 * within[rows].mean():3.0f}%"
                for logs, within in zip(left, inside, strict=True)
            ]
            yield f"{engine:14s} {metric:6s} {rows.sum():5d}  {errors(found.value[rows])}  {'   '.join(parts)}"
    yield "MAPE / median in percent, and the rows inside the interval."


def covered(found: Residuals, left: Array, by: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Whether the rows of each group of `by` lie inside the interval whose spread is that of the other groups."""
    inside = np.zeros(left.size, bool)
    measured = np.exp(-left)
    for engine in set(found.engine.tolist()):
        for name in np.unique(by[found.engine == engine]):
            rest = by != name if (by != name).any() else by == name
            ends = spreads(found.chosen(rest), left[rest], engine)
            for metric in METRICS:
                rows = (found.engine == engine) & (by == name) & (found.metric == metric)
                low, high = ends[f"spread_{metric}"]
                least = np.maximum(1 - low * found.below[rows], LEAST)
                inside[rows] = (measured[rows] >= least) & (measured[rows] <= 1 + high * found.above[rows])
    return inside


def spreads(found: Residuals, left: Array, engine: str) -> dict[str, tuple[float, float]]:
    """The intervals over those of the step times with which TAIL of the times lie beyond either end.

    `left` are the residuals of held-out models. Rows of superseded versions (`vllm@0.8`) count for these alone.
    """
    ends, known = {}, explained(found, left)
    for metric in METRICS:
        newest = np.array(["@" not in name or name == engine for name in found.engine])
        rows = (found.metric == metric) & newest & known
        measured, weight = np.exp(-left[rows]), _weights(found.chosen(rows), engine)
        parts = ((1 - measured) / found.below[rows], (measured - 1) / found.above[rows])
        low, high = (max(_quantile(part, weight, 1 - TAIL), 0.0) for part in parts)
        ends[f"spread_{metric}"] = (low, high)
    return ends


def explained(found: Residuals, left: Array) -> NDArray[np.bool_]:
    """Whether the median of a row's benchmark is less than a factor of UNEXPLAINED off."""
    inside = np.ones(left.size, bool)
    for name in np.unique(found.benchmark):
        for metric in METRICS:
            rows = (found.benchmark == name) & (found.metric == metric)
            inside[rows] = not rows.any() or abs(np.median(left[rows])) < np.log(UNEXPLAINED)
    return inside


def _weights(found: Residuals, engine: str) -> Array:
    """Weights of rows: 1 for each model of an engine with FEW rows, OTHERS for all models of all others."""
    weight = np.zeros(found.engine.size)
    own = found.engine == engine
    pairs = np.char.add(found.engine, found.model)
    for rows in (own, ~own):
        if rows.any():
            names, place, counts = np.unique(pairs[rows], return_inverse=True, return_counts=True)
            weight[rows] = (1.0 if rows is own else OTHERS / names.size) / np.maximum(counts, FEW)[place]
    return weight


def _quantile(values: Array, weight: Array, share: float) -> float:
    """The least value up to which that share of the weight lies."""
    order = np.argsort(values)
    place = int(np.searchsorted(np.cumsum(weight[order]), share * weight.sum()))
    return float(values[order][min(place, values.size - 1)])


def profile(engine: Engine, values: Mapping[str, float], found: Residuals, file: str) -> Engine:
    """A profile with the fitted parameters, and the source."""
    left = held_out(found, found.model)
    scheduler: Scheduler = replace(engine.scheduler, **values, **spreads(found, left, engine.profile))
    rows = int((found.engine == engine.profile).sum() // 2)
    source = f"Times of the scheduler: lab.fit.serving, {rows} rows of {file}; spread of models held out"
    kept = tuple(text for text in engine.sources if "lab.fit.serving" not in text)
    return replace(engine, scheduler=scheduler, sources=(*kept, source))


def chosen(cases: Sequence[ServingCase]) -> list[ServingCase]:
    """The cases of one deployment without stated drafts; means of TTFT with drawn lengths where no case has medians."""
    medians = any(case.median for case in cases)
    plain = [case for case in cases if case.pools is None and not (case.median and case.scenario.settings.speculation)]
    return [
        replace(case, ttft=None) if medians and not case.median and case.load.prompts.varies else case for case in plain
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print the scores, and write the profiles to `--output`; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.fit.serving", description="Schedulers of engine profiles and their errors."
    )
    parser.add_argument("files", type=Path, nargs="+", help="CSV files of serving benchmarks")
    parser.add_argument("--output", type=Path, help="write one YAML file for each engine to this folder")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="linearisations; 0 scores the shipped profiles")
    parser.add_argument("--rows", type=int, default=MOST_ROWS, help="rows that are simulated")

    def work(options: argparse.Namespace) -> str:
        cases = [case for file in options.files for case in read_cases(file)[0]]
        # Rows of the same benchmark are stated up to four times.
        distinct = list({(case.load.concurrency, case.ttft, case.tpot): case for case in chosen(cases)}.values())
        every = max(1, len(distinct) // options.rows)
        values, found = fitted(distinct[::every], options.rounds)
        for engine in values if options.output is not None else ():
            text = render(
                profile(load_engine(engine), values[engine], found, ", ".join(file.name for file in options.files))
            )
            save_text(options.output / f"{engine}.yaml", text)
        named = (
            f"{engine}: " + ", ".join(f"{name} {value * 1e6:.4g} us" for name, value in own.items())
            for engine, own in values.items()
        )
        return "\n".join([*named, *report(found)]) + "\n"

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
