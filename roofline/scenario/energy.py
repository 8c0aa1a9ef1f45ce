"""Energy: what a static batch draws, from the figures of the hardware's spec.

The energy of a pass on a device is what it draws while it is on, and what its work adds:

    energy = static x time + joules a FLOP x FLOPs + joules a byte x bytes + joules a byte sent x bytes over links

FLOPs cost what their format does. Where a document gives no joules for a format, the unit is taken to draw the same
power at its peak as in the format that is given, and where none is given, what the TDP leaves: a chip is cooled for
what it draws at its peak. The first three terms are those of Choi et al., A roofline model of energy, IPDPS 2013. Links
that have no figure are not counted. No phase draws more than the TDP: a device that would is throttled.

All devices are counted, and are on for the whole time: where prefill and decode have devices of their own, each waits
for the other. Hosts, switches, cooling and power supplies are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.bound.roof import Placement, Row
from roofline.core.errors import UnsupportedError
from roofline.scenario.analysis import Analysis
from roofline.scenario.schedule import Pass
from roofline.specs.hardware import EnergyFigures, Hardware
from roofline.timing.estimate import Reading


class Times(Struct, frozen=True):
    """Seconds of prefill, of all decode steps, and of both; arrays for a grid."""

    prefill: Any
    decode: Any
    total: Any


def times(analysis: Analysis, reading: Reading) -> Times:
    """The times of a static batch at a reading: the bound, or a percentile of expected times."""
    if reading == "bound":
        prefill, total = analysis.generation.ttft, analysis.generation.total
    elif not analysis.times_are_expected:
        raise UnsupportedError("the llm-viewer convention has no expected times: use --at bound")
    else:
        prefill, total = getattr(analysis.expected.ttft, reading), getattr(analysis.expected.total, reading)
    return Times(prefill, total - prefill, total)


def pools(analysis: Analysis) -> tuple[Hardware, ...]:
    """The hardware of every pool of devices: that of prefill, of decode if it has its own, a host that computes."""
    settings = analysis.scenario.settings
    found = [analysis.scenario.hardware, settings.decode_hardware, settings.host.hardware if settings.host else None]
    return tuple(hardware for hardware in found if hardware is not None)


class Draw(Struct, frozen=True):
    """Joules of all devices during a phase, by what draws them; arrays for a grid.

    `limit` is what they draw at their TDP for as long; infinite where a TDP is unknown.
    """

    static: Any
    compute: Any
    memory: Any
    link: Any
    limit: Any

    @property
    def total(self) -> Any:
        """The sum of the parts, at most the limit: a device that would draw more is throttled."""
        found = np.minimum(self.static + self.compute + self.memory + self.link, self.limit)
        return found if np.shape(found) else float(found)


class Consumption(Struct, frozen=True):
    """Joules of all devices for a static batch by phase; `power` is the mean draw of a device in watts."""

    prefill: Draw
    decode: Draw
    power: Any

    @property
    def total(self) -> Any:
        """Joules of both phases."""
        return self.prefill.total + self.decode.total


def known(hardware: Iterable[Hardware]) -> bool:
    """Whether the specs have the figures that energy is modelled from."""
    return all(pool.energy is not None for pool in hardware)


def consumption(analysis: Analysis, reading: Reading) -> Consumption | None:
    """The modelled energy of a static batch; None where a spec gives no energy figures."""
    hardware = pools(analysis)
    if not known(hardware):
        return None
    spent, devices = times(analysis, reading), analysis.parallel.devices
    static = devices * static_power(hardware)
    prefill, decode = (
        Draw(static * time, compute, memory, link, _limit(hardware, devices, time))
        for time, (compute, memory, link) in zip((spent.prefill, spent.decode), _work(analysis), strict=True)
    )
    power = (prefill.total + decode.total) / (spent.total * devices * len(hardware))
    return Consumption(prefill, decode, power)


def most(hardware: Iterable[Hardware]) -> float | None:
    """Watts that one device of each pool draws at most, together; None where a TDP is unknown."""
    limits = [pool.tdp for pool in hardware]
    return None if None in limits else float(sum(limit for limit in limits if limit is not None))


def most_joules(hardware: Iterable[Hardware], devices: int, spent: Any) -> Any:
    """Joules of so many devices of each pool at their TDP for `spent` seconds; None where a TDP is unknown."""
    limit = most(hardware)
    return None if limit is None else limit * devices * spent


def at_most(analysis: Analysis, reading: Reading) -> Any:
    """Joules of all devices at their TDP for the whole time; None where a TDP is unknown."""
    return most_joules(pools(analysis), analysis.parallel.devices, times(analysis, reading).total)


def _limit(hardware: Iterable[Hardware], devices: int, spent: Any) -> Any:
    limit = most_joules(hardware, devices, spent)
    return np.inf if limit is None else limit


def static_power(hardware: Iterable[Hardware]) -> float:
    """Watts that one device of each pool draws while it is on and does nothing, together."""
    return sum(_figures(pool).static for pool in hardware)


def _figures(hardware: Hardware) -> EnergyFigures:
    assert hardware.energy is not None
    return hardware.energy


Work: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...]]
_WORK: WeakKeyDictionary[Analysis, Work] = WeakKeyDictionary()


def _work(analysis: Analysis) -> Work:
    """Joules of compute, memory and links of all devices, the same however long it takes: of prefill, and of decode."""
    if analysis not in _WORK:
        prefill, decode = zip(*(_part(analysis, part) for part in range(3)), strict=True)
        _WORK[analysis] = prefill, decode
    return _WORK[analysis]


def _part(analysis: Analysis, part: int) -> tuple[Any, Any]:
    """Joules of compute, memory or links of all devices: of prefill, and of all decode steps."""
    parallel = analysis.parallel

    def weigh(run: Pass) -> NDArray[np.float64]:
        row: NDArray[np.float64] = _rows(run.placement)[part] * parallel.devices
        return row

    return analysis.prefill.summed(weigh), analysis.decode_summed(weigh)


def _rows(placement: Placement) -> NDArray[np.float64]:
    """Joules of compute, memory and links of a whole pass on one device, as coefficients of its monomials."""
    hardware, rows, counts = placement.hardware, placement.coefficients, placement.counts
    energy = _figures(hardware)
    matrix = np.array([0.0 if name is None else matrix_power(hardware, name) for name in placement.arithmetic])
    computed = (counts * matrix) @ rows[Row.MATRIX_TIME]
    if hardware.vector_peak:
        computed = computed + vector_power(hardware) * (counts @ rows[Row.VECTOR_TIME])
    moved = energy.memory * (counts @ rows[Row.BYTES])
    sent = (energy.link or 0.0) * (counts @ rows[Row.LINK_BYTES])
    return np.stack([computed, moved, sent])


def matrix_power(hardware: Hardware, arithmetic: str) -> float:
    """Watts on top of the static ones that matrix products in `arithmetic` draw at their peak."""
    energy = _figures(hardware)
    if arithmetic in energy.compute:
        return energy.compute[arithmetic] * hardware.matrix_peak(arithmetic)
    return _peak_power(hardware)


def vector_power(hardware: Hardware) -> float:
    """Watts on top of the static ones that ordinary arithmetic draws at its peak."""
    return _peak_power(hardware)


def _peak_power(hardware: Hardware) -> float:
    """Watts at the peak of a format without a figure: as in the formats that have one, else what the TDP leaves."""
    energy = _figures(hardware)
    given = [joules * hardware.matrix_peak(name) for name, joules in energy.compute.items() if hardware.supports(name)]
    if given:
        return max(given)
    return 0.0 if hardware.tdp is None else max(hardware.tdp - energy.static, 0.0)


def explain_missing(hardware: Hardware) -> UnsupportedError:
    """What to tell where energy is asked for and the spec has no figures."""
    return UnsupportedError(
        f"the spec of {hardware.name} has no energy figures (energy: static and memory); energy.tdp is an upper end"
    )


def explain_missing_tdp(hardware: Hardware) -> UnsupportedError:
    """What to tell where the energy at the TDP is asked for and the spec has none."""
    return UnsupportedError(f"the spec of {hardware.name} has no TDP (power: tdp)")
