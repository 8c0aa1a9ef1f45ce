"""Notes on a scenario, one sentence each: options without effect, contexts beyond the maximum, the engine's version.

An option without effect is a no-op rather than an error, because sweeps over models give all of them the same options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from roofline.core.units import si
from roofline.graph.convention import Convention
from roofline.graph.extents import AttentionMask, Convolution
from roofline.graph.fusion import FUSIONS
from roofline.graph.network import Network
from roofline.graph.tensor import Role
from roofline.scenario.analysis import Analysis, analyze, filled, longest_context
from roofline.scenario.kv_capacity import startable_sequences
from roofline.scenario.memory import memory_reserve
from roofline.scenario.options import OPTIONS
from roofline.scenario.scenario import Scenario
from roofline.scenario.stored import stored_notes
from roofline.specs.hardware import SERVER_DEVICES
from roofline.specs.host import DEFAULT_HOST, list_hosts
from roofline.timing.calibration import Match
from roofline.timing.exchanges import GATHERED, exchange_choice, other_exchanges

ATTENTION = "attention"
"""The fusion that is FlashAttention."""


SPLIT = "llama.cpp splits layers over devices, which run one after another (--split-mode layer, its default)"


def without_effect(analysis: Analysis, served: bool = False) -> tuple[str, ...]:
    """The options of a scenario that have no effect, a sentence each; `served`: in a load, not in a static batch."""
    return tuple(f"{option} has no effect: {reason}" for option, reason in _no_ops(analysis, served))


def notes(analysis: Analysis, served: bool = False) -> tuple[str, ...]:
    """The notes on a single scenario, `served` under a load."""
    model = analysis.scenario.model
    found = [*stored_notes(model, analysis.scenario.profile)]
    found += [f"{model.name}: {'; '.join(model.rests_on)}"] if model.rests_on else []
    if (stored := analysis.scenario.library_format) is not None:
        found.append(f"{stored} is what {analysis.scenario.profile.title} has of {model.name} by default")
    found += without_effect(analysis, served)
    found += filter(None, [analysis.too_long])
    if analysis.times_are_expected:
        found += [SPLIT] if analysis.scenario.profile.split_layers and analysis.parallel.pipeline > 1 else []
        found += filter(None, [_tables_note(analysis.scenario)])
        links = _host_note(analysis), _network_note(analysis), _exchange_note(analysis)
        found += filter(None, (analysis.scenario.profile.version_note, _kernel_note(analysis), *links))
        found += filter(None, [_states_note(analysis.scenario), _length_note(analysis)])
    return tuple(found)


def _tables_note(scenario: Scenario) -> str:
    """Which tables of n-grams are in CPU memory, where the engine puts them there by itself."""
    engrams = scenario.model.engrams
    if not engrams or scenario.settings.offload.tables != 1 or scenario.profile.memory.tables != "cpu":
        return ""
    held = sum(engram.rows * engram.width for engram in engrams)
    where = f"{si(held, '')} parameters of n-gram tables are in CPU memory"
    return f"{where}, as {scenario.profile.name} keeps them (--offload tables=0: on the devices)"


def _states_note(scenario: Scenario) -> str:
    """With how many sequences the engine starts, where the memory has no room for the states of its own number."""
    most = startable_sequences(scenario)
    if most is None or not analyze(scenario.at(batch=1, prompt=1, generate=1)).memory.fits:
        return ""
    option = f"{OPTIONS['max_num_seqs'].flag} {most}"
    return f"{scenario.profile.name} starts with {option} at most, where each sequence has room for its states"


def _length_note(analysis: Analysis) -> str:
    """The longest sequences with which an engine starts that has no room for one of the model's maximum length."""
    scenario, most = analysis.scenario, analysis.scenario.model.max_context
    if not memory_reserve(scenario).longest or scenario.settings.longest is not None or most is None:
        return ""
    ranks = analysis.parallel.data
    if not np.all(analysis.memory.fits) or filled(scenario, ranks, most).fits:
        return ""
    option = f"{OPTIONS['max_model_len'].flag} {longest_context(scenario, ranks)}"
    return f"{scenario.profile.name} starts with {option} at most: {most:,} tokens, its default, have no room"


def _matches(analysis: Analysis) -> Iterator[Match]:
    """The constants of all kernels that have some."""
    for phase in filter(None, (analysis.prefill, analysis.decode)):
        matches = (entry.match(run.step.queries) for run in phase.passes for entry in phase.timed(run).kernels)
        yield from filter(None, matches)


def unmeasured_kernels(analysis: Analysis) -> dict[str, tuple[float, float]]:
    """The kinds of kernels that run in place of tuned ones and that nobody measured.

    Each with p10 and p90 of its time over that of a tuned one.
    """
    costs = sorted((match.fit.op, match.cost) for match in _matches(analysis) if match.cost[1] != 1.0)
    return {op: (low, high) for op, (low, _, high) in costs}


def _kernel_note(analysis: Analysis) -> str:
    """The kinds of kernels measured with another version or engine than the scenario's; "" where there are none."""
    hardware, label = analysis.scenario.hardware.name, analysis.scenario.profile.label
    found = {each.fit.op: each.place for each in _matches(analysis) if {"version", "engine"} & set(each.crossed)}
    text = ""
    if found:
        kinds, places = ", ".join(sorted(found)), " and ".join(dict.fromkeys(found.values()))
        were = "were" if len(found) > 1 else "was"
        text = (
            f"{kinds} of {label} on {hardware} {were} not measured: times are those of {places}, with wider intervals"
        )
    ends = unmeasured_kernels(analysis).items()
    each = ", ".join(f"of {op} {low:g} to {high:g} times as long" for op, (low, high) in ends)
    instead = f"in place of tuned kernels {label} runs others there that were not measured: {each}" if each else ""
    return "; ".join(filter(None, (text, instead)))


def generates(analysis: Analysis) -> bool:
    """Whether the model generates tokens; False for a model that only encodes."""
    return analysis.decode is not None


def caches(analysis: Analysis) -> bool:
    """Whether the model or a draft reads a KV cache."""
    return _reads_cache(_graphs(analysis))


def _reads_cache(graphs: Iterable[Network]) -> bool:
    return any(tensor.role is Role.KV for graph in graphs for op, _, _ in graph.ops for tensor in op.reads)


def fused(analysis: Analysis) -> tuple[str, ...]:
    """The requested fusions that match operators of this model."""
    names = _operators(analysis)
    return tuple(name for name in analysis.fusions if {FUSIONS[name].name, f"cross_{FUSIONS[name].name}"} & names)


def without_graphs_note(scenario: Scenario) -> str | None:
    """Why switching CUDA graphs off, as the settings ask for, changes nothing; None where it does, or is not asked."""
    if not scenario.settings.eager:
        return None
    engine = scenario.profile
    if not engine.graphs:
        return f"{engine.heading} captures none"
    if not engine.graphs_on(scenario.hardware):
        return f"{scenario.hardware.title or scenario.hardware.name} has none"
    launches = engine.without_graphs()["issue"] > 0
    return None if launches else f"the profile {engine.name} launches kernels in no time"


def _no_ops(analysis: Analysis, served: bool) -> Iterator[tuple[str, str]]:
    """The options that have no effect, each with the reason."""
    yield from _workload_no_ops(analysis)
    scenario, model = analysis.scenario, analysis.scenario.model
    precision, parallel = analysis.precision, analysis.parallel
    if scenario.settings.expert_skew and not model.experts:
        yield "--expert-skew", f"{model.name} has no experts"
    for name in analysis.fusions:
        if name != ATTENTION and name not in fused(analysis):
            yield f"--fuse {name}", f"{model.name} has no sequence of {', '.join(FUSIONS[name].parts)}"
    if parallel.micro_batches > 1 and parallel.pipeline == 1:
        yield f"--micro-batches {parallel.micro_batches}", "there is no pipeline (--pp 1)"
    if parallel.redundant and parallel.expert == 1:
        yield f"--redundant-experts {parallel.redundant}", "no ranks divide experts (--ep 1)"
    if parallel.exchange and not parallel.all_to_all:
        yield f"--all-to-all {parallel.exchange}", "no ranks exchange tokens of experts (--ep 1)"
    if scenario.network is not None and (parallel.on(scenario.hardware).nodes or 1) == 1:
        yield f"--network {scenario.network}", "the devices are of one node"
    if scenario.settings.towers == "data" and (parallel.tensor == 1 or not np.any(scenario.images)):
        lacking = "there are no images" if parallel.tensor > 1 else "there is no tensor parallelism (--tp 1)"
        yield "--mm-encoder-tp-mode data", lacking
    for name in ("enable_expert_parallel", "dp_attention"):
        if scenario.asked and scenario.given(name) and parallel.expert == 1:
            yield OPTIONS[name].flag, "each stage has one device" if parallel.pipeline > 1 else "there is one device"
    for name, steps in () if served else scenario.settings.prompt_steps.items():
        yield f"{OPTIONS[name].flag} {steps}", "a static batch has its prompts in whole steps, one after the other"
    default = scenario.convention is Convention.PHYSICAL
    if (ATTENTION in analysis.fusions) is not default and not _attends(analysis):
        yield "--flash" if ATTENTION in analysis.fusions else "--no-flash", f"{model.name} has no softmax attention"
    if precision.kv != precision.base and not caches(analysis):
        yield f"the KV cache format {precision.kv.name}", f"{model.name} has no KV cache"
    if scenario.host is not None and not _over_host(analysis):
        yield f"--host {scenario.host}", "no devices communicate over PCIe"
    if reason := without_graphs_note(scenario):
        yield "switching CUDA graphs off", reason
    yield from _offload_no_ops(analysis)


def _offload_no_ops(analysis: Analysis) -> Iterator[tuple[str, str]]:
    offload, hardware = analysis.scenario.settings.offload, analysis.scenario.hardware
    streams = _reads_cache(analysis.schedule.networks)  # a draft stays on the device
    if offload.kv and not streams:
        yield f"--offload kv={offload.kv:g}", f"{analysis.scenario.model.name} has no KV cache"
    remembers = bool(analysis.scenario.model.engrams)
    if offload.tables is not None and not remembers:
        yield f"--offload tables={offload.tables:g}", f"{analysis.scenario.model.name} has no tables of n-grams"
    if offload.bandwidth is not None:
        option = f"an offload bandwidth of {si(offload.bandwidth, 'B/s')}"
        if not offload.weights and not (offload.kv and streams) and not (offload.tables and remembers):
            yield option, "neither weights nor KV cache are offloaded"
        elif offload.bandwidth >= (link := hardware.host_bandwidth):
            yield option, f"the host link of {hardware.name} is limited to {si(link, 'B/s')}"


def _workload_no_ops(analysis: Analysis) -> Iterator[tuple[str, str]]:
    scenario, name = analysis.scenario, analysis.scenario.model.name
    if scenario.image_size is not None:
        option = f"--image-size {scenario.image_size}"
        if not np.any(scenario.images):
            yield option, "there are no images"
        elif scenario.model.image is None:
            yield option, f"{name} resizes every image to the same size"
    context = [] if scenario.context is None else [f"--context {scenario.context}"]
    if not generates(analysis):
        generate = [] if scenario.generate == OPTIONS["generate"].usual else [f"--generate {scenario.generate}"]
        yield from ((option, f"{name} only encodes") for option in (*generate, *context))
    elif not any(isinstance(rule, AttentionMask | Convolution) for graph in _graphs(analysis) for rule in graph.rules):
        prefix = [f"--prefix {scenario.prefix}"] if scenario.prefix else []
        context = [] if np.array_equal(scenario.context, scenario.first_cached) else context  # the prompt is as long
        yield from ((option, f"{name} keeps a state of fixed size") for option in (*prefix, *context))


def _over_host(analysis: Analysis) -> bool:
    phases = (phase for phase in (analysis.prefill, analysis.decode) if phase is not None)
    runs = [run.placement for phase in phases for run in phase.passes]
    return any(op.link and run.hardware.over_host(op.link.reach) for run in runs for op, _, _ in run.network.ops)


def _host_note(analysis: Analysis) -> str:
    if analysis.scenario.hardware.host is not None or not _over_host(analysis):
        return ""
    others = ", ".join(name for name in list_hosts() if name != DEFAULT_HOST)
    return (
        f"collectives over PCIe are those of the host {DEFAULT_HOST}, with an interval that covers {others} as well;"
        " name one with --host"
    )


def _exchange_note(analysis: Analysis) -> str:
    """What else the engine runs, where its own exchange gathers the tokens of the ranks of several nodes on each."""
    profile, hardware, parallel = analysis.scenario.profile, analysis.scenario.hardware, analysis.parallel
    if parallel.exchange or not parallel.all_to_all or parallel.expert <= SERVER_DEVICES:  # as is usual within one
        return ""
    several = parallel.span(parallel.tensor * parallel.data).across_nodes
    others = other_exchanges(profile, hardware, parallel)
    if not others or exchange_choice(profile, hardware, several, parallel.expert) != GATHERED:
        return ""
    return (
        f"{profile.heading} by default gathers the tokens of all {parallel.expert} expert ranks on each: "
        f"--all-to-all {others[0]} sends each to its experts alone"
    )


def _network_note(analysis: Analysis) -> str:
    hardware, parallel = analysis.scenario.hardware, analysis.scenario.settings.parallel
    apart = parallel.expert == parallel.sequence == 1  # replicas, which exchange nothing
    joined = parallel.devices // parallel.data if apart else parallel.devices
    spread = parallel.on(hardware)
    if hardware.network is not None or spread.nodes in (None, 1) or joined <= spread.devices_per_node:
        return ""
    found = next((link for link in hardware.interconnects if link.scope == "network"), None)
    if found is None:
        return ""
    speed = f"{si(found.bandwidth, 'B/s')} a device"
    return f"exchanges between nodes are those of {found.kind} at {speed}; name another network with --network"


def _graphs(analysis: Analysis) -> tuple[Network, ...]:
    phases = (analysis.prefill, analysis.decode)
    return tuple(dict.fromkeys(run.placement.network for phase in phases if phase is not None for run in phase.passes))


def _operators(analysis: Analysis) -> set[str]:
    return {op.name for graph in _graphs(analysis) for op, _, _ in graph.ops}


def _attends(analysis: Analysis) -> bool:
    parts = (*FUSIONS[ATTENTION].parts, FUSIONS[ATTENTION].name)
    return not _operators(analysis).isdisjoint((*parts, *(f"cross_{part}" for part in parts)))
