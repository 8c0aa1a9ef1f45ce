"""A placement of several models on a fleet, searched by simulation (AlpaServe, Li et al. 2023, section 4).

The devices are divided into equal groups, each a replica with a tensor and a pipeline parallelism, on which some of the
models are (`roofline.serving.replicas`). Every division, with the fewest models of a group, twice as many, and so on as
it has room for them, serves the load for some requests; the placement with the most requests within their targets is
the best, and of equals the one with the least latency.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.scenario.scenario import Scenario
from roofline.serving.layouts import divisors, laid_out
from roofline.serving.load import Load
from roofline.serving.outcome import Targets, outcome_of
from roofline.serving.policies import simulate
from roofline.serving.replica import ALL_MODELS, replica_of

MOST_STAGES, TRIED = 8, 400
"""Stages of a group's pipeline at most, as in AlpaServe's search, and the requests that each placement serves."""


def best_placement(scenario: Scenario, load: Load, requests: int, seed: int, targets: Targets) -> tuple[Scenario, Load]:
    """The scenario and the load of the best placement of a model for each tenant on the scenario's devices.

    The requests that are tried are others than those of a run with the same seed. Raises RooflineError where no
    placement has room for all models.
    """
    found: list[tuple[tuple[float, float], Scenario, Load]] = []
    for divided, models in _placements(scenario, len(load.tenants)):
        placed = replace(load, policy=ALL_MODELS, models=models)
        try:
            replica = replica_of(divided, placed)
            run = simulate(replica, placed, min(requests, TRIED), seed + 1)
        except RooflineError:  # models or requests do not fit, or the degree does not divide the model
            continue
        outcome = outcome_of(replica, placed, run, targets)
        found.append(((-(outcome.goodput or 0.0), outcome.e2e.mean.mid), divided, placed))
    if not found:
        raise RooflineError(
            f"no placement of {len(load.tenants)} models fits on {scenario.settings.parallel.devices}"
            f" {scenario.hardware.name}: name more devices, as in 8xh100",
            options=["hw", "policy"],
        )
    _, best, placed = min(found, key=lambda each: each[0])
    return best, placed


def _placements(scenario: Scenario, tenants: int) -> Iterator[tuple[Scenario, int]]:
    """The divisions of the devices, each with the numbers of models on a group."""
    devices, node = scenario.settings.parallel.devices, scenario.hardware.node_devices
    for ranks in (count for count in divisors(devices) if count <= node):
        for stages in (count for count in divisors(devices // ranks) if count <= MOST_STAGES):
            groups = devices // (ranks * stages)
            models = -(-tenants // groups)
            while models < 2 * tenants:
                yield laid_out(scenario, tensor=ranks, pipeline=stages, data=groups), min(models, tenants)
                models *= 2
