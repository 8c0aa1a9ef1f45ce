"""Cost: what tokens cost on hardware that is paid for by the hour.

    USD a million generated tokens = devices x USD an hour / 3600 x seconds of the batch / tokens x 10^6

All devices are paid for the whole time. The price is the scenario's (`--price`), else the dated one of the hardware's
spec. A purchase price says nothing about an hour: how long a device is kept is its owner's to know.
"""

from __future__ import annotations

from typing import Any

from roofline.core.errors import UnsupportedError
from roofline.scenario.analysis import Analysis
from roofline.scenario.energy import times
from roofline.specs.hardware import Hardware
from roofline.timing.estimate import Reading

HOUR = 3600.0
MILLION = 1e6


def rent(analysis: Analysis) -> float | None:
    """USD an hour of one device of each pool, together; None where neither the scenario nor a spec says."""
    found = [price(hardware, analysis.scenario.price) for hardware in rented(analysis)]
    return None if None in found else float(sum(each for each in found if each is not None))


def rented(analysis: Analysis) -> tuple[Hardware, ...]:
    """The hardware of every pool that is paid for: that of prefill, and of decode if it has its own."""
    settings = analysis.scenario.settings
    return tuple(pool for pool in (analysis.scenario.hardware, settings.decode_hardware) if pool is not None)


def price(hardware: Hardware, given: float | None) -> float | None:
    """USD an hour of a device: as given, else by its spec."""
    if given is not None:
        return given
    return None if hardware.price is None else hardware.price.rent


def spent(analysis: Analysis, reading: Reading) -> Any:
    """USD for the static batch; an array for a grid. None where the price is unknown."""
    hourly = rent(analysis)
    return None if hourly is None else hourly * analysis.parallel.devices / HOUR * times(analysis, reading).total


def generated_tokens(analysis: Analysis) -> Any:
    """Tokens of all sequences that anyone wants; 0 for a model that only encodes."""
    scenario = analysis.scenario
    return scenario.batch * (scenario.generate if analysis.decode else 0) * scenario.settings.useful


def processed_tokens(analysis: Analysis) -> Any:
    """Tokens of all prompts, cached prefixes aside, and those generated."""
    return analysis.scenario.batch * analysis.scenario.prompt + generated_tokens(analysis)


def explain_missing(hardware: Hardware) -> UnsupportedError:
    """What to tell where a cost is asked for and nobody says the price."""
    return UnsupportedError(
        f"the spec of {hardware.name} has no price for an hour: give one with --price, in USD an hour of a device"
    )
