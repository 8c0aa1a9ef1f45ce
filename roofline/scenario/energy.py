"""Energy of a static batch, from the energy figures of the hardware's spec.

    energy = static power x time + J/FLOP x FLOPs + J/byte x bytes + J/byte sent x bytes over links

The first three terms are those of Choi et al., A roofline model of energy, IPDPS 2013. J/FLOP depends on the number
format. A format without a figure is assumed to draw the same peak power as the format that has one, and where none has,
the TDP less the static power. Links without a figure are not counted. No phase draws more than the TDP: the device
would throttle.

All devices are counted for the whole time; with disaggregated phases, each pool idles during the other's phase. Hosts,
switches, cooling and power supplies are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.bound.roof import Placement, Row
from roofline.core.documents import bundled
from roofline.core.errors import UnknownNameError, UnsupportedError
from roofline.scenario.analysis import Analysis
from roofline.scenario.passes import Pass
from roofline.specs.hardware import EnergyFigures, Hardware
from roofline.specs.power import static_power
from roofline.timing.intervals import Reading

KWH = 3.6e6
"""Joules of a kWh."""


def carbon_of(region: str) -> float:
    """The carbon intensity of a region's electricity in g CO2e/kWh; raises RooflineError for one without data."""
    known = bundled("specs/carbon.yaml")
    if (name := str(region).lower()) not in known:
        raise UnknownNameError("region", region, known)
    return float(known[name])


class Times(Struct, frozen=True):
    """Seconds of prefill, of all decode steps, and their sum; arrays for a grid."""

    prefill: Any
    decode: Any
    total: Any


def times(analysis: Analysis, reading: Reading) -> Times:
    """The times of a static batch at the bound or at a percentile of the expected times."""
    prefill, total = analysis.figure("ttft", reading), analysis.figure("total", reading)
    return Times(prefill, total - prefill if reading == "bound" else analysis.figure("decode", reading), total)


def device_pools(analysis: Analysis) -> tuple[Hardware, ...]:
    """The hardware of every pool of devices: prefill, disaggregated decode, and a CPU that computes.

    Of devices of several kinds each is a pool.
    """
    settings = analysis.scenario.settings
    if settings.mixed:
        return tuple(stage.hardware for stage in settings.mixed for _ in range(stage.devices))
    host = None if settings.host is None else settings.host.hardware
    found = [analysis.scenario.hardware, settings.decode_hardware, host]
    return tuple(hardware for hardware in found if hardware is not None)


class PhaseEnergy(Struct, frozen=True):
    """Joules of all devices during a phase by component; arrays for a grid.

    `limit` is the energy at TDP for the same time, infinite where a TDP is unknown.
    """

    static: Any
    compute: Any
    memory: Any
    link: Any
    limit: Any

    @property
    def total(self) -> Any:
        found = np.minimum(self.static + self.compute + self.memory + self.link, self.limit)
        return found if np.shape(found) else float(found)


class BatchEnergy(Struct, frozen=True):
    """Joules of all devices for a static batch by phase, and the mean power of a device in watts."""

    prefill: PhaseEnergy
    decode: PhaseEnergy
    power: Any

    @property
    def total(self) -> Any:
        return self.prefill.total + self.decode.total


def batch_energy(analysis: Analysis, reading: Reading) -> BatchEnergy | None:
    """The modelled energy of a static batch; None where a spec gives no energy figures, or devices differ in work."""
    hardware = device_pools(analysis)
    if analysis.parallel.apart or any(pool.energy is None for pool in hardware):
        return None
    spent, devices = times(analysis, reading), analysis.parallel.devices
    static, tdp = devices * sum(map(static_power, hardware)), tdp_power(hardware)
    prefill, decode = (
        PhaseEnergy(static * time, compute, memory, link, np.inf if tdp is None else tdp * devices * time)
        for time, (compute, memory, link) in zip((spent.prefill, spent.decode), _work(analysis), strict=True)
    )
    power = (prefill.total + decode.total) / (spent.total * devices * len(hardware))
    return BatchEnergy(prefill, decode, power)


def tdp_power(hardware: Iterable[Hardware]) -> float | None:
    """The summed TDP of one device of each pool in watts; None where one is unknown."""
    limits = [pool.tdp for pool in hardware]
    return None if None in limits else float(sum(limit for limit in limits if limit is not None))


def tdp_energy(hardware: Iterable[Hardware], devices: int, spent: Any) -> Any:
    """Joules of `devices` devices of each pool at TDP for `spent` seconds; None where a TDP is unknown."""
    limit = tdp_power(hardware)
    return None if limit is None else limit * devices * spent


def energy_at_tdp(analysis: Analysis, reading: Reading) -> Any:
    """Joules of all devices at TDP for the whole batch; None where a TDP is unknown."""
    return tdp_energy(device_pools(analysis), analysis.parallel.devices, times(analysis, reading).total)


def _figures(hardware: Hardware) -> EnergyFigures:
    assert hardware.energy is not None
    return hardware.energy


Work: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...]]
_WORK: WeakKeyDictionary[Analysis, Work] = WeakKeyDictionary()


def _work(analysis: Analysis) -> Work:
    """Joules of compute, memory and links on all devices, which do not depend on time: of prefill, and of decode."""
    if analysis not in _WORK:
        parts = [partial(_joules, part=part, devices=analysis.parallel.devices) for part in range(3)]
        _WORK[analysis] = tuple(map(analysis.prefill.summed, parts)), tuple(map(analysis.decode_summed, parts))
    return _WORK[analysis]


def _joules(run: Pass, part: int, devices: int) -> NDArray[np.float64]:
    return np.asarray(_rows(run.placement)[part] * devices * run.ranks)


def _rows(placement: Placement) -> NDArray[np.float64]:
    """Joules of compute, memory and links of a pass on one device, as coefficients of its monomials."""
    hardware, rows, counts = placement.hardware, placement.coefficients, placement.counts
    energy = _figures(hardware)
    matrix = np.array([0.0 if name is None else matrix_power(hardware, name) for name in placement.arithmetic])
    computed = (counts * matrix) @ rows[Row.MATRIX_TIME]
    if hardware.vector_peak:
        computed = computed + _peak_power(hardware) * (counts @ rows[Row.VECTOR_TIME])
    moved = energy.memory * (counts @ rows[Row.BYTES])
    sent = (energy.link or 0.0) * (counts @ rows[Row.LINK_BYTES])
    return np.stack([computed, moved, sent])


def matrix_power(hardware: Hardware, arithmetic: str) -> float:
    """Dynamic power in watts of GEMMs in `arithmetic` at peak throughput."""
    energy = _figures(hardware)
    if arithmetic in energy.compute:
        return energy.compute[arithmetic] * hardware.matrix_peak(arithmetic)
    return _peak_power(hardware)


def _peak_power(hardware: Hardware) -> float:
    """Dynamic power in watts at the peak of formats without a figure, and of vector arithmetic."""
    energy = _figures(hardware)
    given = [joules * hardware.matrix_peak(name) for name, joules in energy.compute.items() if hardware.supports(name)]
    if given:
        return max(given)
    return 0.0 if hardware.tdp is None else max(hardware.tdp - energy.static, 0.0)


def explain_missing(hardware: Hardware) -> UnsupportedError:
    """The error for energy without figures."""
    return UnsupportedError(
        f"the spec of {hardware.name} has no energy figures (energy: static and memory); energy.tdp is an upper bound"
    )


def explain_missing_carbon(_: Hardware) -> UnsupportedError:
    """The error for emissions without a carbon intensity."""
    return UnsupportedError("emissions are those of some electricity: give its carbon intensity", options=["carbon"])


def explain_missing_tdp(hardware: Hardware) -> UnsupportedError:
    """The error for energy at TDP without a TDP."""
    return UnsupportedError(f"the spec of {hardware.name} has no TDP (power: tdp)")
