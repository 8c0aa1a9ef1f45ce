"""Rules about devices: parallelism, mixtures of experts, offloading, hardware fit, and edge devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from roofline.advisor.case import NEGLIGIBLE, Case, link_text
from roofline.advisor.rules import Finding, Told, rule
from roofline.advisor.search.moves import Kind
from roofline.advisor.search.trials import Trial
from roofline.bound.memory import active_parameters, parameters
from roofline.bound.roof import Bound
from roofline.core.errors import RooflineError
from roofline.core.units import amount
from roofline.graph.ranks import imbalance
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


@rule
def tensor_parallelism(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where devices communicate, now or after a move of parallelism."""
    analysis = case.analysis
    if (tensor := analysis.parallel.tensor) > 1:
        prefill = case.time_share(analysis.prefill, _communicates)
        decode = case.time_share(case.decode, _communicates) if case.generates else 0.0
        share = case.prefill_share * prefill + case.decode_share * decode
        facts = {"tensor": tensor, "link": link_text(analysis, _span(analysis)), "prefill": prefill, "decode": decode}
        if share >= NEGLIGIBLE:
            yield from told("collectives", share, share=share, **facts)
    for name, trial in case.trials_of("parallelism"):
        parallel = trial.analysis.parallel
        if parallel.tensor > max(analysis.parallel.tensor, 1):
            yield from _more_tensor_parallelism(case, told, name, trial.analysis)
        if parallel.pipeline > 1:
            yield from _pipeline(case, told, name, trial)


def _communicates(op: OpFigures) -> bool:
    """Whether an operator is a collective other than the all-to-all of experts (`moe-routing`)."""
    return float(op.link_bytes) > 0 and not op.op.is_all_to_all


def _more_tensor_parallelism(case: Case, told: Told, name: str, analysis: Analysis) -> Iterator[Finding]:
    decodes = case.decode_stake >= case.prefill_stake and analysis.decode is not None
    phase = analysis.decode if decodes and analysis.decode is not None else analysis.prefill
    share, whole = case.time_share(phase, _communicates), float(phase.expected.mid)
    facts = {"tensor": analysis.parallel.tensor, "link": link_text(analysis, _span(analysis)), "phase": phase.name}
    nodes, host = _span(analysis).across_nodes, False
    with suppress(RooflineError):
        host = analysis.scenario.hardware.link(_span(analysis)).scope == "host"
    if share < 0.5 and not host:
        yield from told("wider", moves=(name,), own=whole * (1 - share), sent=whole * share, **facts)
    for key in ("no wider", *(["over nodes"] if nodes else ["over host"] if host else [])):
        yield from told(key, moves=(name,), own=whole * (1 - share), sent=whole * share, **facts)


def _pipeline(case: Case, told: Told, name: str, trial: Trial) -> Iterator[Finding]:
    parallel = trial.analysis.parallel
    stages = parallel.pipeline
    if trial.analysis.memory.fits and not case.analysis.memory.fits:
        link = link_text(trial.analysis, parallel.span(parallel.devices // stages + 1))
        yield from told("staged", moves=(name,), stages=stages, link=link)
    yield from told("in turn", moves=(name,), stages=stages)
    if case.decode_stake + case.prefill_stake > NEGLIGIBLE and not case.goal.batch_varies:
        yield from told("no faster", moves=(name,), stages=stages)


def _span(analysis: Analysis) -> Span:
    return analysis.parallel.span(analysis.parallel.tensor)


@rule
def offloading(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where the scenario exceeds device memory; otherwise offloading has no benefit."""
    memory = case.analysis.memory
    if memory.total <= memory.budget:
        yield from told("fits")
        return
    best: dict[str, tuple[float, str, str]] = {}
    fitting: list[str] = []
    for move, trial in case.offered(Kind.TECHNIQUE, Kind.PARALLELISM):
        if trial.fits:
            fitting.append(move.name)
            entry = (case.gain(move.name), move.name, amount(float(trial.value), case.goal.metric.unit))
            best[move.slot] = max(best.get(move.slot, entry), entry)
    evidence = {f"with {name}": f"fits, {reached}" for _, name, reached in best.values()}
    yield from told("beyond", 1 - float(memory.budget) / float(memory.total), evidence=evidence)
    if fitting:
        ways = ", ".join(f"{name} ({reached})" for _, name, reached in sorted(best.values(), reverse=True)[:3])
        yield from told("ways", moves=tuple(fitting), ways=ways)


@rule
def hardware_fit(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where the model does not fit, its format is not native, or one bound of one phase dominates."""
    if not case.fits:
        yield from told("beyond", 1.0)
    yield from _native_formats(case, told)
    formats, prefill = case.formats, case.analysis.prefill
    if case.generates and case.decode_share * case.bound_share(case.decode, Bound.MEMORY) >= DECIDING_PHASE:
        if formats is None:
            return
        used = float(case.decode.flops) / float(case.decode.bound_time) / formats.peak
        if used < IDLE:
            yield from told("idle compute", case.decode_share * (1 - used), used=used, formats=formats)
        yield from told("decode")
    elif case.prefill_share * case.bound_share(prefill, Bound.COMPUTE) >= DECIDING_PHASE:
        used = float(prefill.bytes) / float(prefill.bound_time) / case.hardware.memory_bandwidth
        if used < IDLE:
            yield from told("idle memory", case.prefill_share * (1 - used), used=used)
        yield from told("prefill")


def _native_formats(case: Case, told: Told) -> Iterator[Finding]:
    own, base = case.model.dtype, case.precision.base.name
    if not case.hardware.supports(own) and own in ("bf16", "fp16"):
        yield from told("format", own=own, base=base)
    released = case.model.quantization
    if released is None or case.precision.weights.name != released:
        return
    if arithmetic := unsupported_arithmetic(released, case.hardware):
        yield from told("widened", arithmetic=arithmetic, released=released, base=base)


@rule
def edge_devices(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to decode on an SoC or CPU below datacenter bandwidth."""
    hardware = case.hardware
    if hardware.kind not in EDGE_KINDS or hardware.memory_bandwidth >= DATACENTER_BANDWIDTH or not case.generates:
        return
    size = float(active_parameters(case.model))
    weights = sum(float(op.count * op.weight_bytes) for op in case.decode.ops)
    rate, evidence = hardware.memory_bandwidth / weights, dict[str, str]()
    if size > EDGE_PARAMETERS[1]:
        slow, fast = (rate * size / parameters for parameters in reversed(EDGE_PARAMETERS))
        evidence["bound with 1 to 3 G parameters in this format"] = f"{slow:.3g} to {fast:.3g} steps/s"
    yield from told("few", case.decode_share, evidence=evidence, size=size, weights=weights, rate=rate)


IMBALANCE = 1.01
"""Tokens of the busiest expert-parallel device over the mean from which it is reported."""


@rule
def moe_capacity(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to MoE models."""
    if not case.model.experts:
        return
    memory, whole, active = case.analysis.memory, parameters(case.model), active_parameters(case.model)
    held = float(memory.weights / memory.total)
    yield from told("stored", held, held=held, part=active / whole, whole=whole, active=active)
    sequences = case.batch * case.scenario.settings.beams
    if case.generates and sequences > 1:
        block = case.model.experts[0]
        one = block.top_k / block.experts
        yield from told("reached", sequences=sequences, reached=1 - (1 - one) ** sequences, one=one)


@rule
def moe_routing(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to MoE models: unbalanced expert parallelism, all-to-all, and engines without fused experts."""
    if not case.model.experts:
        return
    settings, ranks = case.scenario.settings, case.analysis.parallel.expert
    busiest = max(imbalance(block.experts, block.top_k, ranks, settings.expert_skew) for block in case.model.experts)
    busiest *= settings.expert_capacity
    share = case.kind_share("moe")
    if busiest > IMBALANCE:
        yield from told("unbalanced", share * (1 - 1 / busiest), share=share, ranks=ranks, busiest=busiest)
        yield from told("later")
    else:
        yield from told("alone" if ranks == 1 else "uniform")
    yield from _all_to_all(case, told)
    if "experts" not in case.scenario.profile.fusions and share > NEGLIGIBLE:
        yield from told("unfused", share=share)


def _all_to_all(case: Case, told: Told) -> Iterator[Finding]:
    """The share of all-to-all that two-batch overlap does not hide already."""
    settings, parallel = case.scenario.settings, case.analysis.parallel
    if not parallel.all_to_all:
        return
    phases = {"prefill": (case.prefill_share, case.analysis.prefill)}
    if case.generates:
        phases["decode"] = case.decode_share, case.decode
    exposed = {
        name: (weight, case.time_share(phase, lambda op: op.op.is_all_to_all))
        for name, (weight, phase) in phases.items()
        if name not in settings.two_batch_overlap
    }
    if not exposed:
        return
    share = sum(weight * part for weight, part in exposed.values())
    if share >= NEGLIGIBLE:
        over = link_text(case.analysis, parallel.span(parallel.tensor * parallel.data))
        evidence = {f"of {name}": f"{part:.0%}" for name, (_, part) in exposed.items()}
        yield from told("exchange", share, evidence=evidence, share=share, ranks=parallel.expert, over=over)
    yield from told("halved", share=share)
