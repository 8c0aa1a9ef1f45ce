"""Rules about parallelism and devices: tensor and pipeline parallelism, offloading, hardware fit, edge devices."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case, link_text
from roofline.advisor.rules import Bottleneck, Caution, Finding, Hint, NoBenefit, rule
from roofline.advisor.search.moves import Kind
from roofline.advisor.search.trials import Trial
from roofline.bound.memory import active_parameters
from roofline.bound.roof import Bound
from roofline.core.errors import RooflineError
from roofline.core.units import amount, seconds, si
from roofline.scenario.analysis import Analysis
from roofline.scenario.phase import OpFigures
from roofline.specs.checkpoint import unsupported_arithmetic
from roofline.specs.hardware import Span

IDLE = 0.1
"""Utilization of compute or bandwidth below which it is reported as idle."""

DECIDING_PHASE = 2 / 3
"""Share of the time that one bound of one phase must take to decide which hardware suits."""

EDGE_KINDS = ("soc", "cpu")
DATACENTER_BANDWIDTH = 1e12
"""B/s from which an SoC or CPU counts as a datacenter device."""

EDGE_PARAMETERS = (1e9, 3e9)
"""Parameters of models made for edge devices (Zhou et al. 2024, section 7)."""


@rule(
    "Use tensor parallelism within a node and over fast links, not over PCIe and not where little work is left per"
    " device; pipeline stages are for models larger than a node and do not lower TPOT.",
    "yuan R23, miao D4",
)
def tensor_parallelism(case: Case) -> Iterator[Finding]:
    """Applies where devices communicate, now or after a move of parallelism."""
    analysis = case.analysis
    if analysis.parallel.tensor > 1:
        prefill = case.time_share(analysis.prefill, _communicates)
        decode = case.time_share(case.decode, _communicates) if case.generates else 0.0
        share = case.prefill_share * prefill + case.decode_share * decode
        if share >= NEGLIGIBLE:
            yield Bottleneck(
                f"collectives of {analysis.parallel.tensor} tensor-parallel devices over"
                f" {link_text(analysis, _span(analysis))} take {share:.0%} of the time",
                share,
                {"of prefill": f"{prefill:.0%}", "of a decode step": f"{decode:.0%}"},
            )
    for name, trial in case.trials_of("parallelism"):
        parallel = trial.analysis.parallel
        if parallel.tensor > max(analysis.parallel.tensor, 1):
            yield from _more_tensor_parallelism(case, name, trial.analysis)
        if parallel.pipeline > 1:
            yield from _pipeline(case, name, trial)


def _communicates(op: OpFigures) -> bool:
    """Whether an operator is a collective other than the all-to-all of experts (`moe-routing`)."""
    return float(op.link_bytes) > 0 and not op.op.is_all_to_all


def _more_tensor_parallelism(case: Case, name: str, analysis: Analysis) -> Iterator[Finding]:
    decodes = case.decode_stake >= case.prefill_stake and analysis.decode is not None
    phase = analysis.decode if decodes and analysis.decode is not None else analysis.prefill
    share = case.time_share(phase, _communicates)
    whole = float(phase.expected.mid)
    text = (
        f"each of {analysis.parallel.tensor} devices computes for {seconds(whole * (1 - share))} and communicates for"
        f" {seconds(whole * share)} per {phase.name} pass over {link_text(analysis, _span(analysis))}"
    )
    if share < 0.5 and not _over_host(analysis):
        yield Hint((name,), text)
    yield NoBenefit((name,), text)
    if _span(analysis).across_nodes:
        yield Caution(f"tensor parallelism spans nodes here: {text}", (name,))
    elif _over_host(analysis):
        yield Caution(f"no direct link joins these {analysis.parallel.tensor} devices: {text}", (name,))


def _pipeline(case: Case, name: str, trial: Trial) -> Iterator[Finding]:
    parallel = trial.analysis.parallel
    stages = parallel.pipeline
    link = link_text(trial.analysis, parallel.span(parallel.devices // stages + 1))
    if trial.analysis.memory.fits and not case.analysis.memory.fits:
        yield Hint((name,), f"with {stages} pipeline stages the model fits; each token crosses {link} once per stage")
    text = f"a token passes all {stages} pipeline stages in sequence: its latency does not fall"
    yield NoBenefit((name,), text)
    if case.decode_stake + case.prefill_stake > NEGLIGIBLE and not case.goal.batch_varies:
        yield Caution(text, (name,))


def _span(analysis: Analysis) -> Span:
    return analysis.parallel.span(analysis.parallel.tensor)


def _over_host(analysis: Analysis) -> bool:
    try:
        return analysis.scenario.hardware.link(_span(analysis)).scope == "host"
    except RooflineError:
        return False


@rule("If the model does not fit, offload, quantize or use more devices: simulate each.", "zhou 23, miao D6")
def offloading(case: Case) -> Iterator[Finding]:
    """Applies where the scenario exceeds device memory; otherwise offloading has no benefit."""
    memory = case.analysis.memory
    total, capacity = float(memory.total), float(memory.budget)
    if total <= capacity:
        yield NoBenefit(
            ("placement",), f"everything fits, {si(total, 'B')} of {si(capacity, 'B')}: no offloading needed"
        )
        return
    best: dict[str, tuple[float, str, str]] = {}
    fitting: list[str] = []
    for move, trial in case.offered(Kind.TECHNIQUE, Kind.PARALLELISM):
        if trial.fits:
            fitting.append(move.name)
            entry = (case.gain(move.name), move.name, amount(float(trial.value), case.goal.metric.unit))
            best[move.slot] = max(best.get(move.slot, entry), entry)
    yield Bottleneck(
        f"the scenario needs {si(total, 'B')} on a device of {si(capacity, 'B')}",
        1 - capacity / total,
        {
            "weights": si(float(memory.weights), "B"),
            "KV cache": si(float(memory.kv_cache), "B"),
            **{f"with {name}": f"fits, {reached}" for _, name, reached in best.values()},
        },
        of="memory",
    )
    if fitting:
        ways = ", ".join(f"{name} ({reached})" for _, name, reached in sorted(best.values(), reverse=True)[:3])
        yield Hint(
            tuple(fitting), f"makes {si(total, 'B')} fit on devices of {si(capacity, 'B')}; best of each kind: {ways}"
        )


@rule(
    "Exclude hardware that lacks the format or the memory; of the rest, decode needs bandwidth and prefill compute.",
    "yuan R8, miao D26",
)
def hardware_fit(case: Case) -> Iterator[Finding]:
    """Applies where the model does not fit, its format is not native, or one bound of one phase dominates."""
    memory = case.analysis.memory
    if not case.fits:
        yield Bottleneck(
            f"the model does not fit: {si(float(memory.total), 'B')} needed, {si(float(memory.budget), 'B')} present",
            1.0,
            {
                "weights": si(float(memory.weights), "B"),
                "KV cache": si(float(memory.kv_cache), "B"),
                "activations": si(float(memory.activation_peak), "B"),
            },
            of="memory",
        )
    yield from _native_formats(case)
    formats = case.formats
    if case.generates and case.decode_share * case.bound_share(case.decode, Bound.MEMORY) >= DECIDING_PHASE:
        if formats is None:
            return
        used = float(case.decode.flops) / float(case.decode.bound_time) / formats.peak
        if used < IDLE:
            yield Bottleneck(
                f"decode takes {case.decode_share:.0%} of the time at {used:.1%} MFU even at the bound: choose devices"
                " by bandwidth",
                case.decode_share * (1 - used),
                {
                    "bandwidth": si(case.hardware.memory_bandwidth, "B/s"),
                    "peak": f"{si(formats.peak, 'FLOP/s')} in {formats.arithmetic}",
                },
            )
        yield Hint(("hardware",), "decode takes most of the time and is bound by memory bandwidth")
    elif case.prefill_share * case.bound_share(case.analysis.prefill, Bound.COMPUTE) >= DECIDING_PHASE:
        phase = case.analysis.prefill
        used = float(phase.bytes) / float(phase.bound_time) / case.hardware.memory_bandwidth
        if used < IDLE:
            yield Bottleneck(
                f"prefill takes {case.prefill_share:.0%} of the time at {used:.1%} MBU even at the bound: choose"
                " devices by compute",
                case.prefill_share * (1 - used),
                {"bandwidth": si(case.hardware.memory_bandwidth, "B/s")},
            )
        yield Hint(("hardware",), "prefill takes most of the time and is compute-bound")


def _native_formats(case: Case) -> Iterator[Finding]:
    own, base = case.model.dtype, case.precision.base.name
    if not case.hardware.supports(own) and own in ("bf16", "fp16"):
        yield Caution(f"{case.hardware.title} does not compute in {own}, the model's format: {base} is used instead")
    released = case.model.quantization
    if released is None or case.precision.weights.name != released:
        return
    if arithmetic := unsupported_arithmetic(released, case.hardware):
        yield Caution(
            f"{case.hardware.title} has no {arithmetic} arithmetic: the model's {released} weights are dequantized to"
            f" {base} as they are read"
        )


@rule(
    "Edge devices serve one user within tight limits: models of 1 to 3 billion parameters, few bits, fused kernels.",
    "zhou 29, miao D24",
)
def edge_devices(case: Case) -> Iterator[Finding]:
    """Applies to decode on an SoC or CPU below datacenter bandwidth."""
    hardware = case.hardware
    if hardware.kind not in EDGE_KINDS or hardware.memory_bandwidth >= DATACENTER_BANDWIDTH or not case.generates:
        return
    size = float(active_parameters(case.model))
    weights = sum(float(op.count * op.weight_bytes) for op in case.decode.ops)
    rate = hardware.memory_bandwidth / weights
    evidence = {"active parameters": si(size), "weight bytes per token": si(weights, "B")}
    if size > EDGE_PARAMETERS[1]:
        slow, fast = (rate * size / parameters for parameters in reversed(EDGE_PARAMETERS))
        evidence["bound with 1 to 3 G parameters in this format"] = f"{slow:.3g} to {fast:.3g} steps/s"
    yield Bottleneck(
        f"{hardware.title} reads {si(hardware.memory_bandwidth, 'B/s')}: at most {rate:.3g} decode steps per second"
        f" with {si(weights, 'B')} of weights",
        case.decode_share,
        evidence,
    )
    yield Hint(
        ("weight format", "layer kernel", "norm kernel", "engine", "speculative decoding", "model size"),
        f"few bits, fused kernels and small models suit a device with {si(hardware.memory_bandwidth, 'B/s')} and"
        f" {si(hardware.memory_capacity, 'B')}",
    )
