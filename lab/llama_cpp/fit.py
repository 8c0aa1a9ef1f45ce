"""Constants of llama.cpp's kernels on a CPU, from timed passes of whole models.

A pass is the sum of its kernels, so the constants of one format follow from prefill and decode at a few lengths: the
slope of prefill gives the rate of many rows, decode that of a single row or the bandwidth, and the growth of both with
the context the rate of attention. Constants stay near the prior where the passes say nothing about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.specs.checkpoint import precision_of
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.timing.calibration import Calibration, Fit, Fits
from roofline.timing.chains import Calibrate, engine_calibration, load_calibration
from roofline.timing.intervals import Estimate
from roofline.timing.intervals.kernels import Residuals
from roofline.timing.kernels import Array, kernel
from roofline.timing.kernels.ggml import PREFIX

Phase = Literal["prefill", "decode"]

ENGINE = "llama.cpp"

STEPS = 16
"""Decode steps that are timed behind each prompt."""

NOISE, STIFFNESS = 0.04, 0.7
"""Standard deviations of the logarithm: of a timed pass, and of a constant around the prior."""

FITTED: Mapping[str, tuple[str, ...]] = {
    "gemm": ("compute_efficiency", "row_efficiency", "memory_efficiency"),
    "attention_prefill": ("compute_efficiency",),
    "attention_decode": ("head_slowdown",),
}
"""The constants that passes determine, by kernel; bandwidth is one constant for all formats."""


class Timed(Struct, frozen=True):
    """The measured seconds of the prefill of `prompt` tokens, or of a decode step behind that many.

    `scheme` is the requested format of the weights, None for that of the model's checkpoint. `busy` is the part of the
    time for which the threads ran (`measure.Span`).
    """

    model: Model
    hardware: Hardware
    phase: Phase
    prompt: int
    seconds: float
    scheme: str | None = None
    busy: float = 1.0

    @property
    def scenario(self) -> Scenario:
        """The scenario of the pass; a decode step is the mean of `STEPS`."""
        precision = precision_of(self.model, self.hardware, ENGINE, scheme=self.scheme)
        generate = STEPS + 1
        return Scenario(
            self.model, self.hardware, prompt=self.prompt, generate=generate, precision=precision, engine=ENGINE
        )

    @property
    def format(self) -> str:
        """The format of the matrices, as kernels are named."""
        scheme = precision_of(self.model, self.hardware, ENGINE, scheme=self.scheme).weights
        assert scheme.linear is not None
        return PREFIX + scheme.linear.name

    def expected(self, calibrate: Calibrate = engine_calibration) -> Estimate:
        """The expected seconds."""
        found = analyze(self.scenario, calibrate).expected
        time = found.ttft if self.phase == "prefill" else found.tpot
        assert time is not None
        return time


class _Space(Struct, frozen=True):
    """The fitted constants as one vector of logarithms, 0 at the prior."""

    prior: Mapping[tuple[str, str], Fit]

    @property
    def names(self) -> list[tuple[str, str, str]]:
        """Kernel, format and constant; the format is "" where all share the constant."""
        found = []
        for op, format in self.prior:
            shared = {"memory_efficiency"}
            found += [(op, "" if name in shared else format, name) for name in FITTED[op]]
        return list(dict.fromkeys(found))

    def fits(self, at: Array) -> dict[tuple[str, str], Fit]:
        """The constants at a point, within the bounds of each."""
        change = dict(zip(self.names, np.exp(at * STIFFNESS), strict=True))
        found = {}
        for (op, format), fit in self.prior.items():
            limits = {parameter.name: parameter for parameter in kernel(op).parameters(format)}
            values = dict(fit.parameters)
            for name in FITTED[op]:
                moved = values[name] * float(change.get((op, format, name), change.get((op, "", name), 1.0)))
                values[name] = min(max(moved, limits[name].low), limits[name].high)
            found[op, format] = replace(fit, parameters=MappingProxyType(values))
        return found


def fit(measured: Sequence[Timed]) -> Fits:
    """The constants of the kernels that the measured passes run, around the shipped ones.

    Their residuals are those of whole passes of these models. Raises RooflineError without shipped constants.
    """
    from scipy.optimize import least_squares

    chains = {row.hardware: load_calibration(row.hardware, engine=ENGINE, kind=False) for row in measured}
    formats = dict.fromkeys(row.format for row in measured)
    space = _Space(_prior(next(iter(chains.values())), formats))
    times = np.log([row.seconds for row in measured])

    def errors(at: Array) -> Array:
        calibrate = with_fits(chains, space.fits(at))
        mids = [float(row.expected(calibrate).mid) for row in measured]
        return np.concatenate([(np.log(mids) - times) / NOISE, at])

    # Rates above the bound do not show in times, and have no derivatives: the second start is below it.
    slow = np.array([-float(name == "compute_efficiency") for _, _, name in space.names])
    solution = min(
        (
            least_squares(errors, start, diff_step=[1e-3], xtol=1e-3, ftol=1e-3, max_nfev=40)
            for start in (np.zeros(slow.size), slow)
        ),
        key=lambda found: found.cost,
    )
    ratios = np.exp(-NOISE * errors(solution.x)[: times.size])
    low, mid, high = (float(value) for value in np.quantile(ratios, (0.1, 0.5, 0.9)))
    residuals = {"all": Residuals(min(low, 0.95), mid, max(high, 1.05), times.size)}
    return {key: replace(one, residuals=residuals, rows=times.size) for key, one in space.fits(solution.x).items()}


def with_fits(chains: Mapping[Hardware, Calibration], fits: Fits) -> Calibrate:
    """Finds calibrations in which these constants come before the chains' own."""
    found = {
        hardware: Calibration(hardware.name, "calibrated", fits, parents=tuple(chain.chain), engine=ENGINE)
        for hardware, chain in chains.items()
    }
    return lambda hardware, _: found[hardware]


def _prior(chain: Calibration, formats: Iterable[str]) -> dict[tuple[str, str], Fit]:
    """The shipped constants of the fitted kernels."""
    wanted = [("gemm", format) for format in formats] + [("attention_prefill", "fp32"), ("attention_decode", "fp32")]
    found = {}
    for op, format in wanted:
        match = chain.find(op, format)
        if match is None or match.engine != ENGINE:
            raise RooflineError(f"no constants of {op} in {format} are shipped for {ENGINE} on such a CPU")
        found[op, format] = replace(match.fit, format=format, held_out=False, source="")
    return found
