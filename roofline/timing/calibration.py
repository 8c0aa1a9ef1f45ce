"""Calibrations: the fitted constants of each kind of kernel, by hardware, engine and version, and how to find them.

A kernel belongs to a library, so constants are those of an engine's version on a device. What was not measured inherits
from what was, across one or more levels: another version of the engine, the same engine on another device of the
family, another engine on the device, the engine on all devices, a related number format. Errors of different levels are
independent, so their variances add; the constants that cross the least variance are used, and their interval includes
it (`roofline.timing.intervals.levels`). Kernels that all engines share (16-bit GEMMs of cuBLAS, NCCL) have no engine.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.core.registry import cached
from roofline.specs.hardware import Hardware
from roofline.specs.version import Version
from roofline.timing.intervals.kernels import Residuals, factors, wider
from roofline.timing.intervals.kernels import inside as fitted_range
from roofline.timing.intervals.levels import Level, crossing_spread
from roofline.timing.kernels import Array, Parameters, Row, at_clock, kernel, kernel_bound, shape_of, times
from roofline.timing.kernels.collective import OWN_ALL_REDUCES, UNGRAPHED
from roofline.timing.kernels.formats import FORMATS, MXFP4_TRITON, MXFP4_TRITON_RANKS, MXFP4_TRTLLM, TRITON

Basis = Literal["calibrated", "version", "family", "engine", "pooled", "unmeasured", "bound"]
"""What a time rests on: the engine's version on the device, or the farthest level that its constants crossed."""

SPARSE = "dsa", "csa", "hca", "msa"

RELATIVES: Mapping[str, tuple[str, ...]] = {
    "fp32": ("bf16",),
    "fp16": ("bf16",),
    "int8": ("fp8",),
    "moe int8": ("fp8_block", "fp8", "bf16"),  # public FP8 rows with one scale: kernels that differ by a factor of 3
    "moe int8_wo": ("bf16", "int4_wo"),  # gpt-fast's on A100 (Mixtral 8x7B) take as long as 16-bit ones, not as INT4
    "fp8": ("bf16/fp8", "fp8_block", "bf16"),
    "fp8_static": ("fp8", "bf16"),
    "fp8_untuned": ("fp8",),
    "fp8_block": ("fp8",),
    "fp8_block_ep": ("fp8_block", "fp8"),
    **{own: (name,) for name, own in TRITON.items()},
    "mxfp4": ("nvfp4",),
    "nvfp4": ("fp8",),
    "nvfp4_min_latency": ("nvfp4",),
    "int4_wo": ("w4a16_mxfp4", "bf16"),
    "int8_wo": ("int4_wo", "bf16"),
    "w4a16_mxfp4": ("int4_wo", "bf16"),
    **dict.fromkeys((MXFP4_TRITON, MXFP4_TRTLLM), ("w4a16_mxfp4",)),
    MXFP4_TRITON_RANKS: (MXFP4_TRITON, "w4a16_mxfp4"),
    "w4a8_mxfp4_mxfp8": ("nvfp4", "fp8"),
    "w4afp8": ("fp8", "int4_wo"),
    "tf32": ("bf16",),
    "int4": ("int8", "fp8"),
    "fp32/fp8": ("bf16/fp8", "bf16"),
    "fp16/fp8": ("bf16/fp8",),
    "fp16/int8": ("bf16/fp8",),
    "bf16/int8": ("bf16/fp8",),
    "bf16/fp8": ("fp8", "bf16"),
    "fused": ("chunked",),
    "chunked": ("fused",),
    "separate": ("any",),
    **{f"{one}/64": ("bf16/64",) for one in ("fp32", "fp16", "fp8", "tf32")},
    **{f"{one}/{width}": (f"bf16/{width}", "bf16/64") for one in ("fp32", "fp16", "fp8", "bf16") for width in (72, 80)},
    **{f"{kind}/{one}": (f"{kind}/{other}",) for kind in SPARSE for one, other in (("fp8", "bf16"), ("bf16", "fp8"))},
    "ggml_fp32": ("ggml_fp16",),
    "ggml_fp16": ("ggml_bf16",),
    "ggml_bf16": ("ggml_fp16",),
    **dict.fromkeys(("ggml_q4_1", "ggml_q5_1"), ("ggml_q5_0",)),
    "ggml_mxfp4": ("ggml_iq4_nl",),
    **dict.fromkeys(("ggml_iq1_s", "ggml_iq1_m"), ("ggml_iq2_xxs",)),
}
"""Formats whose constants substitute for those of an unmeasured format, nearest first; also by op and format."""


OTHER_FORMAT = 1.25
"""Factor on the distance of a related format: nearer only if clearly nearer, since its component is of few formats.

INT8 GEMMs of PyTorch on H100 and H200, which no fit saw, are 35% off with it and 40% with 1.05.
"""


class Fit(Struct, frozen=True):
    """The constants of one kind of kernel in one format, in SI units, with residuals and fitted ranges.

    `residuals` are by regime, and under `all`; `ranges` gives the smallest and largest value of each fitted column.
    `source` is the origin of its measurements where it differs from the calibration's, `version` the engine's version.
    `held_out`: the residuals are those of devices that the fit did not see, so they include crossing to another device.
    `observed` are constants of how the measurements were taken, which a step of a served model does not have.
    """

    op: str
    format: str
    parameters: Mapping[str, float]
    residuals: Mapping[str, Residuals] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rows: int = 0
    source: str = ""
    version: str = ""
    held_out: bool = False
    observed: Mapping[str, float] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.op, self.format, self.rows, self.version))


class Source(Struct, frozen=True):
    """The origin of measurements, and the command that fitted constants to them."""

    repository: str = ""
    commit: str = ""
    software: tuple[str, ...] = ()
    date: datetime.date | None = None
    command: str = ""

    def __str__(self) -> str:
        where = f"{self.repository} at {self.commit}" if self.commit else self.repository
        versions: dict[str, list[str]] = {}
        for name, _, version in (text.rpartition(" ") for text in self.software):
            versions.setdefault(name, []).append(version)
        listed = (f"{name} {_range_of(known)}".strip() for name, known in versions.items())
        return "; ".join(filter(None, (where, ", ".join(listed))))


def _range_of(versions: list[str]) -> str:
    """The oldest and the newest of some versions."""
    first, *_, last = sorted(versions, key=lambda text: [int(number) for number in re.findall(r"\d{1,9}", text)]) * 2
    return first if len(versions) == 1 else f"{first} to {last}"


class Match(Struct, frozen=True, dict=True):
    """The constants found for a kind and a format, and what their use here adds to the interval.

    `calibration` and `engine` name where they were measured, `crossed` the levels between there and here. `widening`
    multiplies the logarithm of the fit's interval; `spread` is the standard deviation of the logarithm that `crossed`
    adds to it. `cost` is p10, p50 and p90 of the kernel's time over that of the one whose constants these are.
    """

    fit: Fit
    basis: Basis
    calibration: str
    source: str
    widening: float = 1.0
    engine: str = ""
    crossed: tuple[Level, ...] = ()
    spread: float = 0.0
    cost: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @classmethod
    def of(cls, match: Match, **own: Any) -> Self:
        """Such constants with the fields of others, but for its `own`."""
        return cls(**{name: getattr(match, name) for name in Match.__struct_fields__} | own)

    def expected(self, row: Row, hardware: Hardware) -> Expected:
        """Expected seconds of kernels of this kind and format; see `Calibration.expected`."""
        shape, constants = shape_of(self.fit.op, row), _constants(self.fit, hardware)
        return self.interval(shape, *times(kernel(self.fit.op), shape, hardware, constants))

    def chosen(self, row: Row) -> Match:
        """The constants of one kernel of a single row, where they depend on the shape."""
        del row
        return self

    def interval(self, shape: Any, bound: Array, mid: Array) -> Expected:
        """The expected seconds `mid` of kernels of a shape with their interval, none below the bound."""
        inside = fitted_range(self.fit.ranges, shape, np.shape(mid))
        regimes, choices = kernel(self.fit.op).regimes, self._choices
        which = inside * len(regimes.labels) + regimes(shape)
        times = mid * choices.take(which, axis=1, mode="clip")
        times[0] = np.maximum(times[0], bound)
        return Expected(times, inside, self.basis, self.origin)

    @property
    def late(self) -> float:
        """Seconds that such a kernel takes in a step beyond what its constants say."""
        return 0.0

    @property
    def place(self) -> str:
        """The engine's version and the hardware that the constants were measured on."""
        hardware = "all devices" if self.calibration == "pooled" else self.calibration
        measured = f"{self.engine} {self.fit.version}".strip()
        return f"{measured} on {hardware}" if measured else hardware

    @cached_property
    def _choices(self) -> Array:
        """The factors from p50 to p10, p50 and p90 (first axis) by regime: outside the fitted range, then inside."""
        labels, (low, mid, high) = kernel(self.fit.op).regimes.labels, self.cost
        own = factors(self.fit.residuals, labels, self.widening, self.spread).reshape(3, -1)
        return own if low == high else wider(own, (low / mid, high / mid))

    @cached_property
    def origin(self) -> str:
        """Where the constants were measured, and by whom."""
        return f"{self.place}: {self.source}"


@cached(maxsize=4096)
def _constants(fit: Fit, hardware: Hardware) -> Parameters:
    return at_clock(fit.parameters, hardware)


FORMAT: Level = "format"


class Expected(NamedTuple):
    """Expected seconds: 10th, 50th and 90th percentile (first axis) of each row.

    `inside`: the shape is in the fitted range.
    """

    times: Array
    inside: NDArray[np.bool_]
    basis: Basis
    source: str

    @property
    def low(self) -> Array:
        """The 10th percentile of each row."""
        return np.asarray(self.times[0])

    @property
    def mid(self) -> Array:
        """The 50th percentile of each row."""
        return np.asarray(self.times[1])

    @property
    def high(self) -> Array:
        """The 90th percentile of each row."""
        return np.asarray(self.times[2])


Fits = Mapping[tuple[str, str], Fit]
"""Fits by op and format."""


class Calibration(Struct, frozen=True, eq=False):
    """The constants measured in one place, and the places to look at next (`parents`, nearest first).

    `version` is the one asked for, `crossed` are the levels between this place and what is asked for, `unit_peaks` the
    FLOP in a clock cycle of a multiprocessor there and here, by arithmetic, where they differ (`on_units`), `launch` is
    the launch of a kernel here over that there.
    """

    name: str
    basis: Basis
    fits: Fits = field(default_factory=lambda: MappingProxyType({}))
    source: Source = field(default_factory=Source)
    parents: tuple[Calibration, ...] = ()
    engine: str = ""
    version: str = ""
    crossed: tuple[Level, ...] = ()
    unit_peaks: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))
    launch: float = 1.0

    @property
    def chain(self) -> Iterator[Calibration]:
        """The calibration itself, then its fallbacks."""
        yield self
        yield from self.parents

    def of_engine(self, engine: str) -> Calibration:
        """The same for kernels that were measured with another engine, but that this one has, too: no level between."""
        return _of_engine(self, engine)

    def find(self, op: str, format: str) -> Match | None:
        """The constants that cross the least variance, of this format or a related one; None without any."""
        return _find(self, op, format)

    def find_for(self, op: str, format: str, hardware: Hardware) -> Match | None:
        """The constants on `hardware`: for prefill those of a 16-bit cache where it lacks arithmetic in the cache's.

        GPUs that have it multiply in FP8, so that their constants are fractions of another peak; the others convert.
        Kernels of a related format on hardware of the vendor come before those of all devices, which are NVIDIA's.
        """
        match, (computed, _, stored) = self.find(op, format), format.partition("/")
        if match is not None and "pooled" in match.crossed and hardware.vendor != POOLED_VENDOR:
            match = _of_family(self).find(op, format) or match
        if not stored or match is None or "pooled" not in match.crossed or not op.endswith("_prefill"):
            return match
        convert = not hardware.supports(FORMATS[stored].arithmetic)
        return (self.find(op, computed) or match) if convert else match

    def expected(self, op: str, row: Row, hardware: Hardware) -> Expected:
        """Expected seconds with their interval, for kernels of the measurement schema in one format.

        `mid` is the model's time; `low` and `high` multiply it by the 10th and 90th percentile of measured over
        predicted time in the regime of each row, wider by the levels that the constants crossed, and outside the fitted
        range. None is below the bound; without constants all are the bound, and so is `basis`.
        """
        match = self.find_for(op, kernel(op).format(row), hardware)
        if match is not None:
            return match.expected(row, hardware)
        return unknown(kernel_bound(op, row, hardware))


def unknown(bound: Array) -> Expected:
    """What is expected of kernels without constants: their bound."""
    return Expected(np.stack([bound] * 3), np.zeros(np.shape(bound), dtype=bool), "bound", "no measurements")


POOLED_VENDOR = "NVIDIA"
"""The vendor of the devices that engines' kernels were measured on, of which pooled constants are."""


@cached(maxsize=256)
def _of_family(calibration: Calibration) -> Calibration:
    """The constants of the device and its families alone."""
    return chained([link for link in calibration.chain if "pooled" not in link.crossed], calibration.name)


@cached(maxsize=256)
def _of_engine(calibration: Calibration, engine: str) -> Calibration:
    links = [link for link in calibration.chain if link.engine == engine]
    own = (replace(one, crossed=tuple(level for level in one.crossed if level != "engine")) for one in links)
    return chained(list(own), calibration.name)


def chained(links: Sequence[Calibration], name: str) -> Calibration:
    """The first of some links with the others as its fallbacks; an empty calibration of this name without any."""
    return replace(links[0], parents=tuple(links[1:])) if links else Calibration(name, "bound")


SHARED: Mapping[tuple[str, str], str] = {
    ("gemm", "bf16"): "cuBLAS",
    **{("collective", name): "NCCL" for name in ("all_reduce", "all_gather", "reduce_scatter", "alltoall")},
    **{("collective", name): "all versions" for name in (*OWN_ALL_REDUCES, UNGRAPHED)},
}
"""Libraries whose kernels every engine runs, and kernels that do not change from version to version, by op and format.

SGLang's all-reduce is that of vLLM: on every device their times are equal.
"""


RELEASES = 8
"""Minor releases between versions such as vLLM 0.14 and 0.22, of which the level of far ones was estimated.

Kernels change from release to release, so that the variance between nearer ones is a part of it.
"""


@cached(maxsize=4096)
def _find(calibration: Calibration, op: str, format: str) -> Match | None:
    best: tuple[tuple[float, bool], Calibration, Fit, tuple[Level, ...]] | None = None
    relatives = (format, *(RELATIVES.get(f"{op} {format}") or RELATIVES.get(format, ())))
    # Matrix units multiply FP16 as fast as BF16: the same kernels.
    steps_to = (0 if name == format.replace("fp16", "bf16") else index for index, name in enumerate(relatives))
    candidates = [(name, steps, (op, name) in SHARED) for name, steps in zip(relatives, steps_to, strict=True)]
    spreads: dict[tuple[Level, ...], float] = {}
    for link in calibration.chain:
        untabled = tuple(level for level in link.crossed if level != "table")
        for candidate, steps, shared in candidates:
            crossed: tuple[Level, ...] = (link.crossed if shared else untabled) + (FORMAT,) * steps
            # The kind's components decide: those of a format are of few places. Fits of files are read at first use.
            # Of constants as far away, those of the format come before a relative's, an engine's own before another's.
            if crossed not in spreads:
                spreads[crossed] = crossing_spread(op, "", crossed)
            far = spreads[crossed] * (OTHER_FORMAT if steps else 1.0), "engine" in crossed
            if (best is not None and far >= best[0]) or (fit := link.fits.get((op, candidate))) is None:
                continue
            if "version" in crossed and fit.version and (asked := Version(link.version)).is_far(Version(fit.version)):
                crossed = tuple("release" if level == "version" else level for level in crossed)
                part = min(1.0, (asked.apart(Version(fit.version))[1] or RELEASES) / RELEASES)
                far = crossing_spread(op, "", crossed) * part**0.5 * (OTHER_FORMAT if steps else 1.0), far[1]
            if best is None or far < best[0]:
                best = far, link, fit, crossed
    if best is None:
        return None
    _, link, fit, crossed = best
    if fit.held_out:
        crossed = tuple(level for level in crossed if level not in ("family", "pooled"))
    if "engine" in crossed:
        fit = for_other_engine(fit)
    fit = launched(on_units(fit, format, link.unit_peaks), link.launch)
    spread = crossing_spread(op, format, crossed)
    return Match(fit, link.basis, link.name, fit.source or str(link.source), 1.0, link.engine, link.crossed, spread)


def for_other_engine(fit: Fit) -> Fit:
    """The fit without the kernels of its engine's library, which another one lacks."""
    own = {one.name for one in kernel(fit.op).parameters(fit.format) if one.local}
    if own.isdisjoint(fit.parameters):
        return fit
    return replace(fit, parameters={key: value for key, value in fit.parameters.items() if key not in own})


def launched(fit: Fit, factor: float) -> Fit:
    """The fit with another launch, where its kernel has one."""
    if factor == 1.0 or "launch" not in fit.parameters:
        return fit
    return replace(fit, parameters={**fit.parameters, "launch": factor * fit.parameters["launch"]})


def on_units(fit: Fit, format: str, unit_peaks: Mapping[str, tuple[float, float]]) -> Fit:
    """The fit for another device of the family, whose multiprocessors are the same but for the FLOP in a cycle.

    `format` is what is computed there, in the fit's format or a related one. What a multiprocessor does beside
    multiplying takes as long there: of fewer FLOP a larger fraction e is achieved (`carried`: e' / e).

        1 / e' = 1 + (1 / e - 1) / r        r: FLOP in a cycle of the measured multiprocessor over those of this one,
                                               both at most those of the kernel's instructions
    """
    stored = FORMATS.get(format.rpartition("/")[2])
    there, here = unit_peaks.get(stored.arithmetic if stored else "", (1.0, 1.0))
    most = kernel(fit.op).instructions
    ratio = min(there, most(fit.format)) / min(here, most(format))
    efficiency = fit.parameters.get("compute_efficiency")
    if ratio == 1.0 or efficiency is None:
        return fit
    carried = 1.0 / (1.0 + (1.0 / efficiency - 1.0) / ratio)
    changed = {"compute_efficiency": carried, "carried": carried / efficiency}
    return replace(fit, parameters={**fit.parameters, **changed})
