"""Frontiers: what deployments of a study give each user and each device, at every number of requests in flight.

Axes are options of a deployment (hardware, formats, degrees of parallelism, engine); `batch` is the number of requests
in flight of a deployment. Every point is a steady state of `roofline.serving`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import serve
from roofline.serving.load import Load
from roofline.serving.outcome import Outcome
from roofline.whatif.selection import front
from roofline.whatif.study import Study

USERS = tuple(2**power for power in range(11))
"""Requests in flight without an axis `batch`: 1 to 1024."""

MAX_DEPLOYMENTS = 1000
"""The most deployments of a frontier."""

PROMPT, OUTPUT = 1024, 1024
"""Default lengths in tokens."""


class FrontierPoint(Struct, frozen=True):
    """A deployment by its axes' values (as text), with a number of requests in flight; `cost` is USD per million."""

    place: tuple[int, ...]
    concurrency: float
    outcome: Outcome
    cost: float | None


class Frontier(Struct, frozen=True):
    """The points of a study, and how many deployments each reason refused."""

    study: Study
    points: tuple[FrontierPoint, ...]
    refused: Mapping[str, int]

    def values(self, cost: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Tokens/s of a user, and output tokens/s of a device or USD per million output tokens."""
        user = np.array([point.outcome.per_user for point in self.points])
        if cost:
            return user, np.array([math.nan if point.cost is None else point.cost for point in self.points])
        return user, np.array([point.outcome.output_per_device for point in self.points])

    def front(self, chosen: NDArray[np.bool_], cost: bool = False) -> NDArray[np.intp]:
        """The indices of those of the chosen points that no other of them dominates, by tokens/s of a user."""
        user, other = self.values(cost)
        costs = np.stack([-user, other if cost else -other], axis=1)
        costs[~chosen] = np.nan
        found = np.flatnonzero(front(costs))
        return found[np.argsort(user[found], kind="stable")]


def frontier(study: Study) -> Frontier:
    """The frontier of a study. Raises RooflineError if no deployment of it runs."""
    axes = deployment_axes(study)
    if math.prod(map(len, axes)) > MAX_DEPLOYMENTS:
        raise RooflineError(f"a frontier is of {MAX_DEPLOYMENTS} deployments at most: take fewer values of an axis")
    points: list[FrontierPoint] = []
    refused: Counter[str] = Counter()
    for place in itertools.product(*(range(len(axis)) for axis in axes)):
        values = {axis.name: axis.values[index] for axis, index in zip(axes, place, strict=True)}
        try:
            points += _points(study, place, values)
        except RooflineError as error:
            refused[str(error)] += 1
    if not points:
        reasons = "; ".join(itertools.islice(refused, 2))
        raise RooflineError(f"there is no frontier: no deployment of the study runs: {reasons}")
    return Frontier(study, tuple(points), dict(refused))


def deployment_axes(study: Study) -> tuple[Any, ...]:
    """The axes of a study besides the requests in flight. Raises RooflineError for other axes of a workload."""
    for axis in study.axes:
        if axis.grid and axis.name != "batch":
            raise RooflineError(f"a frontier has one workload: {axis.name} must be a single value")
    return tuple(axis for axis in study.axes if axis.name != "batch")


def users_of(study: Study) -> list[float]:
    """The numbers of requests in flight of a study."""
    fixed = study.question.fixed.get("batch")
    if fixed is not None:
        return [float(fixed)]
    given = next((axis.values for axis in study.axes if axis.name == "batch"), USERS)
    return [float(value) for value in given]


def _points(study: Study, place: tuple[int, ...], values: Mapping[str, Any]) -> Iterator[FrontierPoint]:
    options = {name: value for name, value in study.question.fixed.items() if name != "batch"}
    scenario = Scenario(**{"prompt": PROMPT, "generate": OUTPUT, **options, **values})
    if scenario.generate < 2:
        raise RooflineError("a frontier is of TPOT, which needs at least two generated tokens", options=["generate"])
    users = users_of(study)
    curve = serve(scenario, Load(concurrency=1), users, draft_limit=False)
    for number, outcome in zip(users, curve.outcomes, strict=True):
        yield FrontierPoint(place, number, outcome, curve.cost(outcome))
