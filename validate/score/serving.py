"""Scores of predictions under load against serving benchmarks: mean TTFT and TPOT, by group.

Each row is a deployment and a load (`roofline.validate.tables.serving`), which the event simulation runs as the
benchmark did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.scenario.scenario import Scenario
from roofline.serving.disaggregated import simulated_outcome
from roofline.serving.load import Load
from roofline.serving.outcome import NO_TARGETS, Latency, Outcome, outcome_of
from roofline.serving.policies import simulate
from roofline.serving.pools import Pools, tandem_of
from roofline.serving.replica import UNLIMITED, DoesNotFitError, Replica, budget_of, replica_of
from roofline.serving.sessions.deployed import Deployed, deployed_of
from roofline.serving.sessions.profiles import profile
from roofline.serving.sessions.served import SessionOutcome, outcome_at
from roofline.serving.steps import StepTimes
from roofline.specs.scheduler import Scheduler
from roofline.timing.intervals import Estimate
from roofline.validate.score.errors import Group, Skipped, attempted, check_keys, counted, grouped
from roofline.validate.tables import disaggregated, inferencex
from roofline.validate.tables.serving import LOAD_COLUMNS, REQUESTS, ServingCase, loaded_cases
from roofline.validate.tables.text import Line, read_lines

KEYS = ("engine", "version", "model", "hardware", "format", "lengths", "deployment", "metric")
"""The keys to group by."""

METRICS = ("ttft", "tpot", "e2e", "throughput")


Table = tuple[tuple[str, ...], Callable[[Line], ServingCase]]
"""The columns of a kind of table, and what makes a case of a row."""

TABLES: tuple[Table, ...] = ((inferencex.COLUMNS, inferencex.to_case), (disaggregated.COLUMNS, disaggregated.to_case))


def read_cases(path: Path, tables: Sequence[Table] = TABLES) -> tuple[list[ServingCase], list[Skipped]]:
    """The rows of a file as cases, and those that cannot be, with the reason.

    A file is one of `tables`, or has rows under a load; raises SpecError for another one.
    """
    lines, convert = _table(path, tables)
    if convert is not None:
        return attempted(lines, convert, lambda line: line)
    found = list(loaded_cases(lines))
    cases = [each for each in found if isinstance(each, ServingCase)]
    return cases, [Skipped(*each) for each in found if not isinstance(each, ServingCase)]


def _table(path: Path, tables: Sequence[Table]) -> tuple[list[Line], Callable[[Line], ServingCase] | None]:
    """The rows of a file, and what makes a case of one, None for rows under a load; raises SpecError for another."""
    for columns, convert in tables:
        with suppress(RooflineError):
            return read_lines(path, columns), convert
    return read_lines(path, (*LOAD_COLUMNS, "value", "unit")), None


def has_loads(path: Path) -> bool:
    """Whether a file has the columns of whole-model rows, of which `batch` may state a load."""
    try:
        read_lines(path, LOAD_COLUMNS)
    except RooflineError:
        return False
    return True


class Predictor:
    """Predicts cases; replicas and runs of equal rows are shared."""

    def __init__(self) -> None:
        self._steps: dict[Any, Replica] = {}
        self._outcomes: dict[Any, Outcome] = {}

    def replica(self, scenario: Scenario, load: Load, scheduler: Scheduler) -> Replica:
        """The replica of a scenario; where the model does not fit, with all of the memory, or any: it has run."""
        key = (_key(scenario), load.longest)
        if key not in self._steps:
            self._steps[key] = _replica(scenario, load, scheduler)
        found = self._steps[key]
        tokens = scheduler.tokens or budget_of(scenario, scheduler)
        return replace(found, steps=found.steps.of(scenario.profile), scheduler=replace(scheduler, tokens=tokens))

    def outcome(self, scenario: Scenario, load: Load, scheduler: Scheduler) -> Outcome:
        replica = self.replica(scenario, load, scheduler)
        lengths = (load.prompts.written, load.outputs.written, load.hits, load.ramp, load.rounds)
        key = (_key(scenario), replica.scheduler, load.concurrency, load.rate, load.offline, *lengths)
        if key not in self._outcomes:
            self._outcomes[key] = outcome_of(replica, load, simulate(replica, load, REQUESTS))
        return self._outcomes[key]

    def __call__(self, case: ServingCase) -> Outcome | SessionOutcome:
        """The outcome of a case; raises RooflineError."""
        if case.agents is not None:
            return outcome_at(self.deployed(case), None, float(case.load.concurrency or 1), is_open=False)
        if case.pools is not None:
            return self._apart(case, case.pools)
        return self.outcome(case.scenario, case.load, case.scheduler)

    def deployed(self, case: ServingCase) -> Deployed:
        """The deployment of a case under sessions of its profile, with the longest context that fits: it has run."""
        agents = case.agents
        assert agents is not None
        asked, work = {"tiers": agents.tiers, "pool": agents.pool}, profile(agents.profile)
        if work.duration is not None:
            work = replace(work, duration=agents.duration or work.duration)
        for changed, longest in product((case.scenario, _all_memory(case.scenario)), CONTEXTS):
            settings = replace(changed.settings, longest=longest)
            with suppress(DoesNotFitError):
                return deployed_of(changed.changed(settings=settings), work, asked, case.pools)
        raise DoesNotFitError(f"{case.scenario.model.name} does not fit with contexts of {CONTEXTS[-1]} tokens")

    def _apart(self, case: ServingCase, pools: Pools) -> Outcome:
        """The outcome of prefill and decode on pools of their own."""
        tokens = case.scheduler.tokens or budget_of(case.scenario, case.scheduler)
        scheduler = replace(case.scheduler, tokens=tokens)
        try:
            tandem = tandem_of(case.scenario, case.load, pools, scheduler)
        except DoesNotFitError:
            tandem = tandem_of(_all_memory(case.scenario), case.load, pools, scheduler)
        return simulated_outcome(tandem, case.load, REQUESTS, 0, NO_TARGETS)


ALL = 0.97
"""Utilization of memory where a model does not fit with the engine's own: benchmarks raise it."""


CONTEXTS = (None, 1 << 18, 1 << 17)
"""The engine's max_model_len of agents: the model's, and those of benchmarks where it does not fit."""


def _replica(scenario: Scenario, load: Load, scheduler: Scheduler) -> Replica:
    for changed in (scenario, _all_memory(scenario)):
        with suppress(DoesNotFitError):
            return replica_of(changed, load, scheduler)
    return Replica(StepTimes(scenario, context=load.longest, chunk=load.longest), scheduler, UNLIMITED)


def _all_memory(scenario: Scenario) -> Scenario:
    profile = scenario.profile
    memory = replace(profile.memory, utilization=ALL, of="device", profiles=False, group_context=0.0)
    return scenario.changed(engine=replace(profile, memory=memory))


def _key(scenario: Scenario) -> tuple[Any, ...]:
    """What the step times of a scenario depend on."""
    settings = scenario.settings
    return (
        scenario.model.name,
        scenario.hardware.name,
        scenario.precision,
        settings.parallel,
        scenario.techniques,
        scenario.profile.profile,
        scenario.profile.version,
        scenario.profile.fusions,
        scenario.profile.serial_drafts,
        tuple(scenario.profile.told.items()),
        scenario.profile.memory,
    )


def predict(
    cases: Iterable[ServingCase], predictor: Predictor
) -> tuple[list[tuple[ServingCase, Outcome | SessionOutcome]], list[Skipped]]:
    """The cases with their outcomes, and those that cannot be simulated."""
    return attempted(cases, lambda case: (case, predictor(case)), lambda case: case.line)


def estimate_of(outcome: Outcome | SessionOutcome, metric: str, median: bool = False) -> Estimate:
    """The predicted mean, or median, of a metric in seconds; throughput has the relative interval of E2E latency."""
    latency: Latency = outcome.e2e if metric == "throughput" else getattr(outcome, metric)
    found = latency.p50 if median else latency.mean
    each: float = 1 / (outcome.output_tokens_per_second * found.mid) if metric == "throughput" else 1.0
    return found * each


def rows_of(predicted: Iterable[tuple[ServingCase, Outcome | SessionOutcome]]) -> list[dict[str, Any]]:
    """A row for each measured time: labels, seconds measured and predicted with their interval."""
    rows = []
    for case, outcome in predicted:
        for metric in METRICS:
            measured = getattr(case, metric)
            if measured is not None:
                estimate = estimate_of(outcome, metric, case.median)
                rows.append(
                    {
                        **case.labels,
                        "metric": metric,
                        "row": case.line.number,
                        "concurrency": case.load.concurrency,
                        "rate": case.load.rate,
                        "measured_s": measured,
                        "low_s": estimate.low,
                        "mid_s": estimate.mid,
                        "high_s": estimate.high,
                    }
                )
    return rows


def summarise(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> list[Group]:
    """The errors of each group, in order of first appearance; a load has no bound."""

    def times(found: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [np.array([row[f"{name}_s"] for row in found]) for name in ("measured", "low", "mid", "high")]

    return grouped(((row, row) for row in rows), by, KEYS, times)


def score_serving(path: Path, by: Sequence[str] = ("engine", "metric")) -> Mapping[str, Any]:
    """The JSON document of `roofline validate serving`."""
    return scores(*read_cases(path), by, Predictor())


def scores(
    cases: Sequence[ServingCase], skipped: Sequence[Skipped], by: Sequence[str], predictor: Predictor
) -> Mapping[str, Any]:
    """The errors of predictions of cases as a document; raises RooflineError where none can be simulated."""
    check_keys(by, KEYS)
    predicted, more = predict(cases, predictor)
    everything = [*skipped, *more]
    rows = rows_of(predicted)
    if not rows:
        common = Counter(entry.reason for entry in everything).most_common(1)
        raise RooflineError(f"none of the rows can be simulated; mostly: {common[0][0] if common else 'no times'}")
    return {
        "schema": "roofline.serving-score/1",
        "rows": len(cases) + len(skipped),
        "scored": len(predicted),
        "groups": [group.document for group in summarise(rows, by)],
        "totals": [group.document for group in summarise(rows, ("metric",))],
        "predictions": rows,
        "reasons": counted((entry.reason for entry in everything), "reason"),
        "assumptions": counted((case.assumed for case, _ in predicted if case.assumed), "assumed"),
        "other_files": [],
    }
