"""Choices: the best deployment by an objective, its runner-up, and what would change the choice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

from msgspec import Struct

from roofline.advisor.sizing.deployments import Deployment, RankingObjective, replicas_for
from roofline.whatif.odds import gain


class Change(Struct, frozen=True):
    """A threshold beyond which a choice changes: `what` is load_above, load_below, price, price_ratio, tpot or ttft.

    Beyond the loads (requests/s, or in flight) the runner-up is better. `price` is the runner-up's device price below
    which it is better, or for `fewest` cheaper; `price_ratio` is the same over the price of the chosen device where
    that is unknown. Prices need different hardware. Below `tpot` and `ttft` (s) the choice needs more replicas, or for
    one user fails.
    """

    what: str
    value: float


NOTABLE_ENERGY_RATIO = 1.01
"""Ratio of modelled energies from which the runner-up's lower one is reported."""


class Choice(Struct, frozen=True, dict=True):
    """The best deployment by an objective, the runner-up (on other hardware if any), and what would change it."""

    objective: RankingObjective
    best: Deployment
    runner_up: Deployment | None

    @cached_property
    def tied(self) -> bool:
        """Whether the interval of the gain of one over the other includes 1: the times could swap the two."""
        objective, best, runner_up = self.objective, self.best, self.runner_up
        if runner_up is None or objective.timed is None:
            return False
        faster = gain(runner_up.static, best.static, objective.timed if best.service.steps else "total")
        width = math.sqrt(faster.high / faster.mid)
        if not _rated(objective, best):
            keys = [objective.key(deployment.figures) for deployment in (best, runner_up)]
            assert keys[0] is not None
            assert keys[1] is not None
            return keys[1][0] / keys[0][0] < width**2
        amount = best.service.amount
        worst = _weight(objective, best) * replicas_for(amount, best.max_load / width)
        return _weight(objective, runner_up) * replicas_for(amount, runner_up.max_load * width) <= worst

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What would change the choice."""
        return tuple(_changes(self.objective, self.best, self.runner_up))

    @property
    def differs(self) -> tuple[str, ...]:
        """The differences of the two: hardware, parallelism, formats, devices."""
        if self.runner_up is None:
            return ()
        one, other = self.best.configuration, self.runner_up.configuration
        differ = {
            "hardware": one.scenario.hardware_name != other.scenario.hardware_name,
            "parallelism": one.split != other.split,
            "formats": one.formats != other.formats,
            "devices": self.best.devices != self.runner_up.devices,
        }
        return tuple(name for name, unlike in differ.items() if unlike)

    @property
    def runner_up_has_lower_modelled_energy(self) -> bool:
        if self.objective.name != "efficient" or self.runner_up is None:
            return False
        first, second = self.best.modelled_energy, self.runner_up.modelled_energy
        return first is not None and second is not None and second * NOTABLE_ENERGY_RATIO < first


def _weight(objective: RankingObjective, deployment: Deployment) -> float:
    key = objective.key(deployment.figures)
    assert key is not None
    return key[0] / deployment.replicas


def _rated(objective: RankingObjective, deployment: Deployment) -> bool:
    """Whether an objective scales with the replicas: energy of a closed loop does not, since they speed it up."""
    service = deployment.service
    return objective.rated and not service.alone and (service.rate is not None or objective.name != "efficient")


def _changes(objective: RankingObjective, best: Deployment, runner_up: Deployment | None) -> Iterator[Change]:
    """Thresholds that would change the choice of `best`: loads and prices of a runner-up, and targets."""
    if runner_up is not None and _rated(objective, best):
        above, below = _crossings(objective, best, runner_up, best.service.amount)
        if above is not None:
            yield Change("load_above", above)
        if below is not None:
            yield Change("load_below", below)
    if runner_up is not None and runner_up.hardware.name != best.hardware.name:
        first, second = best.figures, runner_up.figures
        fewest = objective.name == "fewest"
        if first.cost is not None and (objective.name == "cheapest" or (fewest and second.cost is None)):
            yield Change("price", first.cost / second.devices)
        elif objective.name == "best value" and first.cost is not None:
            yield Change("price", first.cost * first.tpot / second.tpot / second.devices)
        elif fewest and first.cost is None and second.cost is None:
            yield Change("price_ratio", first.devices / second.devices)
    yield Change("tpot", getattr(best.tpot, best.at))
    yield Change("ttft", getattr(best.ttft, best.at))


REPLICAS_AHEAD = 64
"""Replicas beyond the present number that are searched for a crossing."""


def _crossings(
    objective: RankingObjective, best: Deployment, runner_up: Deployment, amount: float
) -> tuple[float | None, float | None]:
    one, other = _weight(objective, best), _weight(objective, runner_up)

    def better(at: float) -> bool:
        return other * replicas_for(at, runner_up.max_load) < one * replicas_for(at, best.max_load) * (1 - 1e-12)

    up = (best.max_load * count for count in range(best.replicas, best.replicas + REPLICAS_AHEAD))
    down = (runner_up.max_load * count for count in range(min(runner_up.replicas, REPLICAS_AHEAD), 0, -1))
    above = next((edge for edge in up if edge >= amount and better(edge * (1 + 1e-9))), None)
    below = next((edge for edge in down if edge < amount and better(edge)), None)
    return above, below
