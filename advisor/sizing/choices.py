"""Choices: the best of an aim beside its runner-up, whether the two are tied, and what would change the choice."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import Struct

from roofline.advisor.sizing.deployments import Aim, Setup
from roofline.advisor.sizing.queueing import replicas_for
from roofline.whatif.gain import gain


class Change(Struct, frozen=True):
    """What would change a choice: `what` is rate_above, rate_below, price, price_ratio, tpot or ttft.

    Rates in requests a second: beyond it the runner-up is better. `price` is that of a device of the runner-up below
    which it is, or of the fewest devices costs less; `price_ratio` the same over the price of the chosen device, where
    that is unknown: of two setups of the same hardware neither can be told. `tpot` and `ttft` are targets in seconds
    below which the chosen needs more replicas, or for one user fails.
    """

    what: str
    value: float


APART = 1.01
"""How many times less the runner-up must draw as modelled for it to be told."""


class Choice(Struct, frozen=True):
    """The best of an aim, the runner-up (on other hardware, where there is any), and what would change the choice.

    `tied` is whether what is uncertain about the times could swap the two.
    """

    aim: Aim
    best: Setup
    runner_up: Setup | None
    tied: bool
    changes: tuple[Change, ...]

    @property
    def differs(self) -> tuple[str, ...]:
        """What tells the runner-up from the best, of hardware, parallelism, formats and devices."""
        return () if self.runner_up is None else tuple(_differs(self.best, self.runner_up))

    @property
    def otherwise_modelled(self) -> bool:
        """Whether the runner-up of the most efficient draws less as modelled: upper ends may be in another order."""
        if self.aim.name != "efficient" or self.runner_up is None:
            return False
        first, second = self.best.modelled_energy, self.runner_up.modelled_energy
        return first is not None and second is not None and second * APART < first


def _differs(best: Setup, runner_up: Setup) -> Iterator[str]:
    one, other = best.configuration, runner_up.configuration
    if one.request.hardware_name != other.request.hardware_name:
        yield "hardware"
    if one.split != other.split:
        yield "parallelism"
    if one.formats != other.formats:
        yield "formats"
    if best.devices != runner_up.devices:
        yield "devices"


def _weight(aim: Aim, setup: Setup) -> float:
    """What one replica adds to the aim."""
    key = aim.key(setup.figures)
    assert key is not None
    return key[0] / setup.replicas


def tied(aim: Aim, best: Setup, runner_up: Setup) -> bool:
    """Whether the interval of the gain of one over the other holds both orders."""
    if aim.timed is None:
        return False
    first, second = (setup.simulated.alone(setup.command_batch) for setup in (best, runner_up))
    faster = gain(second, first, aim.timed)
    width = math.sqrt(faster.high / faster.mid)
    rate = best.service.rate
    if not aim.rated or rate is None:
        keys = [aim.key(setup.figures) for setup in (best, runner_up)]
        assert keys[0] is not None
        assert keys[1] is not None
        return keys[1][0] / keys[0][0] < width**2
    worst = _weight(aim, best) * replicas_for(rate, best.most / width)
    return _weight(aim, runner_up) * replicas_for(rate, runner_up.most * width) <= worst


def changes(aim: Aim, best: Setup, runner_up: Setup | None) -> Iterator[Change]:
    """What would change the choice of `best`: rates and prices where there is a runner-up, and targets."""
    rate = best.service.rate
    if runner_up is not None and aim.rated and rate is not None:
        above, below = _crossings(aim, best, runner_up, rate)
        if above is not None:
            yield Change("rate_above", above)
        if below is not None:
            yield Change("rate_below", below)
    if runner_up is not None and runner_up.hardware.name != best.hardware.name:
        first, second = best.figures, runner_up.figures
        if aim.name == "cheapest" and first.cost is not None:
            yield Change("price", first.cost / second.devices)
        elif aim.name == "best value" and first.cost is not None:
            yield Change("price", first.cost * first.tpot / second.tpot / second.devices)
        elif aim.name == "fewest" and first.cost is None and second.cost is None:
            yield Change("price_ratio", first.devices / second.devices)
        elif aim.name == "fewest" and first.cost is not None and second.cost is None:
            yield Change("price", first.cost / second.devices)
    yield Change("tpot", getattr(best.tpot, best.at))
    yield Change("ttft", getattr(best.ttft, best.at))


REPLICAS_AHEAD = 64
"""Numbers of replicas beyond the present ones among which a crossing is looked for."""


def _crossings(aim: Aim, best: Setup, runner_up: Setup, rate: float) -> tuple[float | None, float | None]:
    """The nearest rates above and below at which the runner-up takes less: where a replica comes in or goes."""
    one, other = _weight(aim, best), _weight(aim, runner_up)

    def better(at: float) -> bool:
        return other * replicas_for(at, runner_up.most) < one * replicas_for(at, best.most) * (1 - 1e-12)

    up = (best.most * count for count in range(best.replicas, best.replicas + REPLICAS_AHEAD))
    down = (runner_up.most * count for count in range(min(runner_up.replicas, REPLICAS_AHEAD), 0, -1))
    above = next((edge for edge in up if edge >= rate and better(edge * (1 + 1e-9))), None)
    below = next((edge for edge in down if edge < rate and better(edge)), None)
    return above, below
