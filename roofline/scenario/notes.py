"""Notes: what to know of a scenario beside its figures, a sentence each; first of all what it asks for in vain.

An option that a model has no use for is no mistake, as sweeps over models give all of them the same options: it changes
nothing, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from roofline.core.units import si
from roofline.graph.convention import Convention
from roofline.graph.extents import Convolution, View
from roofline.graph.fusion import FUSIONS
from roofline.graph.network import Network
from roofline.graph.tensor import Role
from roofline.scenario.analysis import Analysis
from roofline.scenario.scenario import DEFAULT_GENERATE

ATTENTION = "attention"
"""The fusion that is FlashAttention."""


def notes(analysis: Analysis) -> tuple[str, ...]:
    """The notes on a single scenario: what it asks for in vain, and whether its sequences grow too long."""
    found = [f"{reason}: {what} nothing" for reason, what in _in_vain(analysis)]
    if analysis.beyond_max_context:
        found.append("the sequences grow beyond the model's maximum context")
    return tuple(found)


def generates(analysis: Analysis) -> bool:
    """Whether tokens are generated, one after another; a model that only encodes has no use for their number."""
    return analysis.decode is not None


def caches(analysis: Analysis) -> bool:
    """Whether keys and values are kept, or at least read, in the format of the cache: by the model, or by a draft."""
    return _reads_cache(_graphs(analysis))


def _reads_cache(graphs: Iterable[Network]) -> bool:
    return any(tensor.role is Role.KV for graph in graphs for op, _, _ in graph.ops for tensor in op.reads)


def fused(analysis: Analysis) -> tuple[str, ...]:
    """The fusions asked for that join operators of this model."""
    names = _operators(analysis)
    return tuple(name for name in analysis.fusions if {FUSIONS[name].name, f"cross_{FUSIONS[name].name}"} & names)


def _in_vain(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """What is asked for in vain: the reason, and what it is that changes (nothing)."""
    yield from _of_workload(analysis)
    scenario, model = analysis.scenario, analysis.scenario.model
    asked, precision = scenario.settings.offload, analysis.precision
    if scenario.settings.expert_skew and not model.experts:
        yield f"{model.name} has no experts", "the expert skew changes"
    for name in analysis.fusions:
        if name != ATTENTION and name not in fused(analysis):
            yield f"{model.name} nowhere runs {', '.join(FUSIONS[name].parts)} in this order", f"fusing {name} changes"
    ranks = analysis.parallel
    if ranks.micro_batches > 1 and ranks.pipeline == 1:
        yield "there is no pipeline", f"cutting the batch into {ranks.micro_batches} micro-batches changes"
    default = scenario.convention is Convention.PHYSICAL
    if (ATTENTION in analysis.fusions) is not default and not _attends(analysis):
        yield f"{model.name} has no softmax attention", "FlashAttention on or off changes"
    if precision.kv != precision.base and not caches(analysis):
        yield f"{model.name} has no KV cache", f"its format {precision.kv.name} changes"
    streams = _reads_cache(analysis.schedule.networks)  # a draft stays on the device
    if asked.kv and not streams:
        yield f"{model.name} has no KV cache", "offloading it changes"
    if asked.bandwidth is not None:
        rate = si(asked.bandwidth, "B/s")
        if not asked.weights and not (asked.kv and streams):
            yield "no weights and no cache are offloaded", f"a bandwidth of {rate} for them changes"
        elif asked.bandwidth >= (link := scenario.hardware.host_bandwidth):
            reason = f"the host's link of {scenario.hardware.name} carries {si(link, 'B/s')}"
            yield reason, f"a bandwidth of {rate} changes"


def _of_workload(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """Counts of the workload that are given in vain."""
    scenario, name = analysis.scenario, analysis.scenario.model.name
    if not generates(analysis):
        if scenario.generate != DEFAULT_GENERATE:
            yield f"{name} only encodes", f"generate {scenario.generate} changes"
        if scenario.context is not None:
            yield f"{name} only encodes", f"a context of {scenario.context} changes"
    elif not _looks_back(analysis):
        reason = f"{name} keeps a state of one size whatever came before"
        if scenario.prefix:
            yield reason, f"a cached prefix of {scenario.prefix} changes"
        if scenario.context is not None:
            yield reason, f"a context of {scenario.context} changes"


def _graphs(analysis: Analysis) -> tuple[Network, ...]:
    """The graphs that run: of the model, of its tower, of a draft."""
    phases = (analysis.prefill, analysis.decode)
    return tuple(dict.fromkeys(run.placement.network for phase in phases if phase is not None for run in phase.passes))


def _operators(analysis: Analysis) -> set[str]:
    return {op.name for graph in _graphs(analysis) for op, _, _ in graph.ops}


def _attends(analysis: Analysis) -> bool:
    """Whether anything is there that FlashAttention computes."""
    parts = (*FUSIONS[ATTENTION].parts, FUSIONS[ATTENTION].name)
    return not _operators(analysis).isdisjoint((*parts, *(f"cross_{part}" for part in parts)))


def _looks_back(analysis: Analysis) -> bool:
    """Whether anything grows with the tokens that came before."""
    return any(isinstance(rule, (View, Convolution)) for graph in _graphs(analysis) for rule in graph.rules)
