"""Cost of tokens on hardware that is rented by the hour.

    USD per million generated tokens = devices x USD per hour / 3600 x seconds of the batch / tokens x 10^6

All devices are billed for the whole time. The price is the scenario's (`--price`), else the dated rent of the
hardware's spec. A purchase price is not converted to an hourly rate, which would need the owner's depreciation time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from roofline.core.errors import UnsupportedError
from roofline.scenario.analysis import Analysis
from roofline.scenario.energy import device_pools, times
from roofline.specs.hardware import Hardware
from roofline.timing.intervals import Reading

HOUR, MILLION = 3600.0, 1e6
"""Seconds of an hour, and the tokens that a cost or an emission is stated for."""


def hourly_rent(analysis: Analysis) -> float | None:
    """USD per hour of one device of each pool, summed; None where neither the scenario nor a spec has a price."""
    found = [price(hardware, analysis.scenario.price) for hardware in billed_pools(analysis)]
    return None if None in found else float(sum(each for each in found if each is not None))


def billed_pools(analysis: Analysis) -> tuple[Hardware, ...]:
    """The hardware of every billed pool, without a CPU: that of prefill, that of decode where it is apart.

    Of devices of several kinds each is a pool.
    """
    host = analysis.scenario.settings.host
    return tuple(pool for pool in device_pools(analysis) if host is None or pool is not host.hardware)


def rent(pools: Iterable[tuple[Hardware, int]], given: float | None) -> float | None:
    """USD per hour of all devices of some pools; None where one has no price."""
    rents = [(price(hardware, given), devices) for hardware, devices in pools]
    return None if any(each is None for each, _ in rents) else sum(each * count for each, count in rents if each)


def price(hardware: Hardware, given: float | None) -> float | None:
    """USD per hour of a device: the given price, else that of its spec."""
    if given is not None:
        return given
    return None if hardware.price is None else hardware.price.rent


def batch_cost(analysis: Analysis, reading: Reading) -> Any:
    """USD of the static batch; an array for a grid, None where the price is unknown."""
    hourly = hourly_rent(analysis)
    return None if hourly is None else hourly * analysis.parallel.devices / HOUR * times(analysis, reading).total


def generated_tokens(analysis: Analysis) -> Any:
    """Useful generated tokens of all sequences; 0 for a model that only encodes."""
    scenario = analysis.scenario
    return scenario.batch * (scenario.generate if analysis.decode else 0) * scenario.settings.useful


def processed_tokens(analysis: Analysis) -> Any:
    """Prompt tokens, without cached prefixes, plus generated tokens."""
    return analysis.scenario.batch * analysis.scenario.prompt + generated_tokens(analysis)


def explain_missing(hardware: Hardware) -> UnsupportedError:
    """The error for a cost without a price."""
    return UnsupportedError(
        f"the spec of {hardware.name} has no hourly price; give one, in USD per device hour", options=["price"]
    )
