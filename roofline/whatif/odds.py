"""Gains and odds: how many times faster one scenario is than another, and how surely it is better.

Two predictions share most of their errors: the same kernel has the same error in both. With the signed relative errors
of all kernels of both,

    c_k = n_k e_k / t_after - n_k e_k / t_before        (e_k: half the 80% interval; one k where a kernel runs in both)
    gain      ln(gain) +- E,  E of c_k as the error of a pass of its kernels (`roofline.timing.intervals`)

Errors of kernels on different hardware, and of the host time of different engines, are independent; the error of a
shared engine cancels. The logarithm of a gain is normal. Beyond kernels, predictions err in classes: a pipeline, a
network or a draft is modelled with few measurements. Two scenarios share such an error unless they differ in that part;
then it widens the interval:

    P(better) = Phi( ln(gain) / S ),   S^2 = s^2 + sum over the doubts of (ln(1 + m) / z)^2

with s = ln(p90 / p50) / 1.28 of the gain and m the median error of the class (z = 0.67 standard deviations).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.graph.extents import Step
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.breakdown import steps
from roofline.scenario.generation import NODES as QUADRATURE
from roofline.scenario.phase import Phase
from roofline.scenario.scenario import Scenario
from roofline.specs.engine import Engine
from roofline.specs.formats import UNQUANTIZED_FORMATS
from roofline.specs.weight_only import kernel_of
from roofline.timing.calibration import Basis
from roofline.timing.chains import ENGINES
from roofline.timing.intervals import Estimate
from roofline.timing.intervals.passes import ratio_error
from roofline.timing.intervals.releases import support, young_error

Timed = Literal["ttft", "tpot", "total"]


class _Part(NamedTuple):
    """Kernels of a pass: kind, weight-only kernel and hardware, key of their shape, error and time (s), their basis."""

    kind: tuple[str, str, str]
    shape: float
    error: float
    time: float
    basis: Basis


def gain(before: Analysis, after: Analysis, metric: Timed = "total") -> Estimate:
    """The speedup of `after` over `before`, each a single workload: p10, p50 and p90.

    The p50 is the ratio of p50 times. Raises RooflineError as expected times do.
    """
    first, second = (_time(analysis, metric) for analysis in (before, after))
    errors: dict[tuple[str, str, str], dict[float, float]] = defaultdict(lambda: defaultdict(float))
    inherited = False
    for analysis, sign, time in ((before, -1, first), (after, 1, second)):
        for part in _parts(analysis, metric):
            errors[part.kind][part.shape] += sign * part.error / time
            inherited |= part.basis != "calibrated"
    kinds = {kind: shapes.values() for kind, shapes in errors.items()}
    square = ratio_error(kinds, inherited) + _hosts(before, after)
    middle, width = first / second, math.exp(math.sqrt(square))
    return Estimate(middle / width, middle, middle * width)


def _time(analysis: Analysis, metric: Timed) -> float:
    value = getattr(analysis.expected, metric)
    return math.nan if value is None else float(value.mid)


def _hosts(before: Analysis, after: Analysis) -> float:
    """The squared relative error of two different engines; 0 for one engine."""
    engines, hosts = (before.scenario.profile, after.scenario.profile), list[Engine]()
    for engine in engines:  # without what is of its kernels, which techniques change
        parameters = {name: value for name, value in engine.parameters.items() if name != "split_kv"}
        hosts.append(replace(engine, graphs=(), fusions=(), parameters=parameters))
    return 0.0 if hosts[0] == hosts[1] else sum(((high - low) / 2) ** 2 for low, high in (e.spread for e in engines))


@lru_cache(maxsize=16)
def _parts(analysis: Analysis, metric: Timed) -> tuple[_Part, ...]:
    """The kernels in the metric's time; cached, since one scenario is compared with many."""
    found: list[_Part] = []
    if metric != "tpot":
        found += _of_phase(analysis.prefill, 1.0)
    if metric != "ttft" and steps(analysis):
        count = steps(analysis) if metric == "total" else 1
        scenario = analysis.scenario
        # The step halfway through the generation represents the errors of all.
        context = float(scenario.first_cached) + (steps(analysis) - 1) / 2 * (1 + QUADRATURE[len(QUADRATURE) // 2])
        middle = Step(float(scenario.batch), 1.0, context, float(scenario.decode_step.source))
        found += _of_phase(analysis.decode_phase(middle), count / analysis.kept_per_iteration)
    return tuple(found)


def _of_phase(phase: Phase, times: float) -> Iterator[_Part]:
    slower = phase.engine.kernel_slowdown(phase.name)
    for run in phase.passes:
        kernels = phase.timed(run)
        detail = kernels.detail(run.step)
        half = (detail.times[2, :, 0] - detail.times[0, :, 0]) / 2
        for kernel, error, middle in zip(kernels.kernels, half.tolist(), detail.mid[:, 0].tolist(), strict=True):
            variant = "" if kernel.shape is None else kernel.shape.texts.get("weight_only", "")
            kind = (kernel.kind, str(variant), run.placement.hardware.name)
            weight = times * slower * kernel.count * float(np.mean(run.repeat))
            # Equal times to many digits identify the same kernel.
            shape, basis = float(f"{middle:.9e}"), kernel.basis(run.step.queries)
            yield _Part(kind, shape, weight * error, weight * middle, basis)


NORMAL = NormalDist()
P90, MEDIAN = NORMAL.inv_cdf(0.9), NORMAL.inv_cdf(0.75)
"""Standard deviations of p90 above p50, and of the median absolute error."""

SURE, HEDGED = 0.9, 0.7
"""Probabilities from which a verdict is sure, and likely; below it is open."""


class Doubt(Struct, frozen=True):
    """A part of scenarios whose prediction errs beyond the kernels' intervals: a median error of `error`.

    `part` is what has to be equal for two scenarios to share the error.
    """

    name: str
    error: float
    source: str
    part: Callable[[Scenario], object]


def _nodes(scenario: Scenario) -> object:
    """Nodes, and experts over more devices than a node has."""
    parallel = scenario.settings.parallel
    return (scenario.hardware.nodes(parallel.devices), parallel.expert > scenario.hardware.node_devices)


def _expert_layout(scenario: Scenario) -> object:
    parallel = scenario.settings.parallel
    return (parallel.tensor, parallel.expert, parallel.data) if scenario.model.experts else None


def _unfitted_kernel(scenario: Scenario) -> object:
    """The weight-only kernel whose constants were fitted to no hardware of the family; None for others."""
    precision, family = scenario.run_precision, scenario.hardware.family
    linear, kernels = precision.weights.linear, scenario.profile.weight_only
    weight_only = precision.activations.name in UNQUANTIZED_FORMATS and linear not in (None, precision.base)
    if linear is None or not kernels or not weight_only:
        return None
    kernel = kernel_of(linear.name, kernels, family)
    return None if family in kernel.fitted else kernel.name


def _unmeasured_engine(scenario: Scenario) -> str | None:
    """The engine, where most of its time is in kernels that no constants of the family of devices describe.

    None for an engine whose kernels nobody measures apart: its profile has its published speeds on such devices.
    """
    if scenario.profile.measured_as(scenario.hardware)[0] not in ENGINES:
        return None
    parts = _parts(analyze(scenario.plain.at(batch=1)), "total")
    far = sum(part.time for part in parts if part.basis in ("pooled", "engine"))
    return scenario.profile.name if far > sum(part.time for part in parts) / 2 else None


def borrowed_acceptance(scenario: Scenario) -> str | None:
    """Where an acceptance was measured with another model; None for a model's own."""
    drafts = scenario.settings.speculation
    return drafts.measured if drafts is not None and drafts.borrowed else None


RUNS = "median error of TPOT of InferenceX's runs (`roofline validate serving`)"

NODES = 0.3
"""The median error over several nodes, and of pipelines, of which none is measured."""

UNMEASURED = "these engines on this family of devices"

DOUBTS = (
    Doubt(
        UNMEASURED,
        0.4,
        "the components 'engine' and 'pooled' of GEMMs and of attention (hwspecs/calibration/levels.yaml)",
        _unmeasured_engine,
    ),
    Doubt("pipelines", NODES, "no measured pipeline: as several nodes", lambda found: found.settings.parallel.pipeline),
    Doubt("several nodes", NODES, f"{RUNS} with wide expert parallelism, and of public speeds of 2 to 8 nodes", _nodes),
    Doubt("decode context parallelism", NODES, "none measured", lambda found: found.settings.parallel.context),
    Doubt("drafts", 0.12, f"{RUNS} with multi-token prediction", lambda found: found.settings.speculation),
    Doubt(
        "an acceptance measured with another model",
        0.11,
        "BORROWED beside TASKS (roofline.scenario.speculation)",
        borrowed_acceptance,
    ),
    Doubt("the layout of experts", 0.1, f"{RUNS} with experts or attention divided among 4 or 8", _expert_layout),
    Doubt(
        "this weight-only kernel",
        0.2,
        "Marlin on B200, with constants of other GPUs (flashinfer-ai/flashinfer, pull request 4466; docs/limits.md)",
        _unfitted_kernel,
    ),
    Doubt(
        "launches by the host",
        0.27,
        "the median error of HOSTS (roofline.specs.engine)",
        lambda found: found.settings.eager,
    ),
    Doubt(
        "offloading",
        0.40,
        "no measured offload under load: as Xeon, whose memory is read likewise",
        lambda found: (found.settings.offload.weights > 0, found.settings.offload.kv > 0, found.settings.host is None),
    ),
)
"""What is known to err; in the order in which it is told."""


class Odds(Struct, frozen=True):
    """One scenario against another: `gain` is how many times better the first is, `probability` that it is at all.

    `doubts` are the names of the parts that widen the interval of the gain.
    """

    gain: Estimate
    probability: float
    doubts: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether engines that differ were measured on the family of the devices."""
        return UNMEASURED not in self.doubts

    @property
    def confidence(self) -> str:
        """The probability in words: sure, likely or open. Nothing is sure of an engine where it was not measured."""
        if self.probability >= SURE and self.measured:
            return "sure"
        return "likely" if self.probability >= HEDGED else "open"


def doubts(one: Scenario, other: Scenario) -> Iterator[Doubt]:
    """The parts in which two scenarios differ, and whose predictions err beyond kernels.

    Intervals of kernels on different devices are independent already: engines are compared on the same ones.
    """
    apart = one.profile.name != other.profile.name and one.hardware.name == other.hardware.name
    asked = (doubt for doubt in DOUBTS if apart or doubt.name != UNMEASURED)
    return (doubt for doubt in asked if doubt.part(one) != doubt.part(other))


def odds(
    better: Analysis, other: Analysis, metric: Timed = "total", ratio: float | None = None, extra: float = 0.0
) -> Odds:
    """The odds of two analyses of a single workload; raises RooflineError as expected times do.

    `ratio` is how many times better the first is where that is not the gain of `metric`: under load, or of costs.
    `extra` is a further error that they do not share, as a fraction.
    """
    found = gain(other, better, metric)
    middle = float(found.mid) if ratio is None else ratio
    return widened(middle, found.high / found.mid, other.scenario, better.scenario, extra)


YOUNG = "releases so early in an engine's support"


def early_error(one: Scenario, other: Scenario) -> float:
    """The logarithm of p90 that two scenarios do not share where a release is older than those that were fitted.

    What slows a young support (no CUDA graphs, other kernels) need not scale with the device's work: gpt-oss-120b on
    A100 with vLLM 0.10 has 90, 77.5 and 77.5 tokens/s on 1, 2 and 4 devices (vllm-project/vllm, issue 22331). As many
    equal devices with equal formats and engines share it.
    """
    if all(part(one) == part(other) for part in PATHS):
        return 0.0
    found = ((each, support(each.profile, each.model, each.hardware)) for each in (one, other))
    return max(
        (
            young_error(each.profile, each.model, each.hardware)
            for each, known in found
            if known is not None and known.before
        ),
        default=0.0,
    )


PATHS: tuple[Callable[[Scenario], object], ...] = (
    lambda found: found.settings.parallel.devices,
    lambda found: found.hardware.name,
    lambda found: found.run_precision,
    lambda found: (found.profile.name, found.profile.version),
)
"""What decides which kernels run, and how much of a step is the host's."""


def widened(ratio: float, spread: float, one: Scenario, other: Scenario, extra: float = 0.0) -> Odds:
    """The odds of a ratio whose p90 is `spread` times its p50, with the errors that two scenarios do not share."""
    known, early = list(doubts(one, other)), early_error(one, other)
    errors = (*(doubt.error for doubt in known), extra)
    square = (math.log(spread) ** 2 + early**2) / P90**2 + sum((math.log1p(error) / MEDIAN) ** 2 for error in errors)
    names = (*(doubt.name for doubt in known), *([YOUNG] if early else []))
    return of_ratio(ratio, math.sqrt(square), names)


def of_ratio(ratio: float, deviation: float, names: tuple[str, ...] = ()) -> Odds:
    """The odds of a ratio whose logarithm has a standard deviation."""
    width = math.exp(P90 * deviation)
    sure = 0.5 if ratio == 1 else float(ratio > 1)
    probability = NORMAL.cdf(math.log(ratio) / deviation) if deviation else sure
    return Odds(Estimate(ratio / width, ratio, ratio * width), probability, names)


BATCHES = 1024
"""The largest batch at which a flip is searched, in powers of two."""


def flip_batch(better: Scenario, other: Scenario, metric: Timed) -> int | None:
    """The first larger batch, by doubling, at which the other is faster; None up to the largest that fits both."""
    start = int(better.batch)
    batches = start * 2 ** np.arange(1, max(2, (BATCHES // start).bit_length()))
    first, second = (analyze(each.at(batch=batches)) for each in (better, other))
    times = [getattr(found.expected, metric).mid for found in (first, second)]
    fits = np.logical_and.accumulate(first.memory.fits & second.memory.fits)
    slower = np.flatnonzero(fits & (times[0] > times[1]))
    return int(batches[slower[0]]) if slower.size else None
