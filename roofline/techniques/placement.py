"""Placement: offloading to CPU and disk, disaggregation, and parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from roofline.bound.memory import named_bytes, weight_bytes
from roofline.core.errors import RooflineError, UnsupportedError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.graph.network import network
from roofline.graph.offload import Offload
from roofline.graph.parallel import NAMES, SINGLE, Parallelism
from roofline.graph.ranks import rank_model
from roofline.scenario.parts import Part
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Host, Stage
from roofline.specs.formats import UNQUANTIZED_FORMATS
from roofline.specs.hardware import NETWORK, Hardware, Interconnect, Span, load_devices, load_hardware
from roofline.specs.sublayers import Mlp
from roofline.techniques.changes import with_feed_forward, with_settings


def offload(scenario: Scenario, name: str, *, weights: float, kv: float = 0.0, bandwidth: str = "") -> Scenario:
    """Fractions of weights and KV cache streamed over the host link, or at the `bandwidth` of a disk.

    Raises RooflineError for a scenario that offloads already.
    """
    before = scenario.settings.offload
    if before.weights or before.kv or before.bandwidth is not None:
        raise RooflineError(f"{name} conflicts with the offload of the scenario: both place weights and KV cache")
    rate = parse_quantity(bandwidth, Dimension.BANDWIDTH).value if bandwidth else None
    scenario.hardware.host_bandwidth  # noqa: B018 - raises for a spec without a host link
    return with_settings(scenario, offload=Offload(weights, kv, rate, before.tables))


def _with_host(name: str, scenario: Scenario, hardware: str, **fractions: Any) -> Scenario:
    """The scenario with a CPU beside a device, or beside those that take turns with layers and leave it some."""
    settings, of_attention = scenario.settings, fractions.get("part") is Part.ATTENTION
    parallel = settings.parallel
    if parallel.micro_batches == parallel.pipeline and not _says_micro_batches(scenario):
        parallel = replace(parallel, micro_batches=1)  # the CPU is one for all stages
    divided = parallel if of_attention else replace(parallel, pipeline=1, nodes=None)
    if divided != SINGLE or settings.host is not None or settings.mixed:
        beside = "one device" if of_attention else "one device, or several that divide the layers (--pp),"
        raise UnsupportedError(
            f"{name} is simulated for {beside} with one other beside it, which analyze, serve and the answer take"
        )
    return with_settings(scenario, parallel=parallel, host=Host(load_hardware(hardware), **fractions))


def _says_micro_batches(scenario: Scenario) -> bool:
    return scenario.asked and scenario.given("micro_batches") is not None


def layers_on_cpu(scenario: Scenario, name: str, *, hardware: str, share: float) -> Scenario:
    """A fraction of the layers on the CPU, with their weights and KV cache."""
    return _with_host(name, scenario, hardware, work=share, memory=share)


def _beside(scenario: Scenario, name: str, written: str) -> list[tuple[Hardware, int]]:
    """The devices of other kinds, as in 2xrtx-3090/a6000; raises UnsupportedError where a scenario takes none."""
    settings = scenario.settings
    other = replace(settings.parallel, tensor=1, data=1, nodes=None) != SINGLE
    if other or settings.host or settings.mixed:
        raise UnsupportedError(
            f"{name} is simulated where no other parallelism or technique divides the layers, which analyze, serve and"
            " the answer take"
        )
    found = [load_devices(part) for part in ([written] if Path(written).suffix else written.split("/"))]
    if cpu := next((hardware.name for hardware, _ in found if hardware.kind == "cpu"), None):
        raise UnsupportedError(f"{name} is among GPUs: llama-cpp-split has layers on a CPU such as {cpu}")
    return found


def mixed_devices(scenario: Scenario, name: str, *, hardware: str, share: float) -> Scenario:
    """A fraction of the layers on devices of other kinds, by their memory, which take turns with the scenario's."""
    found = _beside(scenario, name, hardware)
    if scenario.settings.parallel.tensor > 1:
        raise UnsupportedError(f"{name}: these devices take turns; hexgen has tensor-parallel ones of several kinds")
    whole = sum(devices * each.memory_capacity for each, devices in found)
    others = (Stage(each, share * devices * each.memory_capacity / whole, devices) for each, devices in found)
    return with_settings(scenario, mixed=(Stage(scenario.hardware, 1 - share), *others))


FILLED = 0.8
"""The part of a device's memory that weights may take where the layers of stages are chosen."""


def unequal_stages(
    scenario: Scenario, name: str, *, stages: str, layers: str, bandwidth: str, latency: str
) -> Scenario:
    """HexGen: stages of several kinds of devices, each with a tensor parallelism and layers of its own.

    Without `layers` those of a stage are in proportion to its bandwidth, as far as its memory has room for them.
    """
    parallel, number = scenario.settings.parallel, scenario.model.layers
    found = [(scenario.hardware, parallel.tensor), *_beside(scenario, name, stages)]
    if layers:
        counts = [int(part) if part.isdigit() else 0 for part in layers.split("/")]
        if len(counts) != len(found) or sum(counts) != number or not all(counts):
            raise RooflineError(f"{name}: layers are those of each of {len(found)} stages, {number} together: 40/40")
    else:
        counts = _fastest(scenario, found)
    rate, far = parse_quantity(bandwidth, Dimension.BANDWIDTH).value, parse_quantity(latency, Dimension.TIME).value
    link = Interconnect(kind="network of the stages", scope="network", bandwidth=rate, latency=far)
    mixed = list[Stage]()
    for (hardware, devices), count in zip(found, counts, strict=True):
        rank_model(scenario.model, Parallelism(tensor=devices))  # raises where the degree does not divide the model
        if devices > 1:
            hardware.link(Span(devices, across_nodes=False))
        inside = tuple(each for each in hardware.interconnects if each.scope != "network")
        linked = replace(hardware, interconnects=(*inside, link))
        mixed.append(Stage(linked, count / number, devices, tensor=True))
    return with_settings(scenario, parallel=replace(parallel, tensor=1, nodes=None), mixed=tuple(mixed))


def _fastest(scenario: Scenario, found: list[tuple[Hardware, int]]) -> list[int]:
    """Whole layers by the bandwidth of the stages, at most so many as their memory has room for."""
    number = scenario.model.layers
    each = _on_devices(scenario) / number
    room = [int(FILLED * devices * hardware.memory_capacity / each) for hardware, devices in found]
    counts = [0] * len(found)
    for _ in range(number):  # the next layer is where it ends first
        ends = {
            place: (counts[place] + 1) / (devices * hardware.memory_bandwidth)
            for place, (hardware, devices) in enumerate(found)
            if counts[place] < room[place] or sum(room) < number
        }
        counts[min(ends, key=ends.__getitem__)] += 1
    if not all(counts):
        raise RooflineError("a stage has no layers: give those of each, such as layers=40/40")
    return counts


def attention_on_cpu(scenario: Scenario, name: str, *, hardware: str) -> Scenario:
    """The KV cache in CPU memory, and decode attention on the CPU."""
    return _with_host(name, scenario, hardware, work=1.0, memory=0.0, kv=1.0, part=Part.ATTENTION)


def cold_neurons_on_cpu(
    scenario: Scenario, name: str, *, hardware: str, hot: float, hits: float, active: float
) -> Scenario:
    """PowerInfer: the CPU computes the active ones among the neurons that are not `hot`."""
    model = scenario.model
    blocks = [group.layer.feed_forward for group in model.groups if group.layer.feed_forward is not None]
    if not all(isinstance(block, Mlp) and block.activation in ("relu", "relu2") for block in blocks):
        raise UnsupportedError(f"{name} skips neurons that ReLU sets to zero, and {model.name} has other MLPs")

    def sparse(block: Mlp) -> Mlp:
        return replace(block, active=active)

    return _with_host(
        name,
        with_feed_forward(scenario, name, Mlp, sparse),
        hardware,
        work=1 - hits,
        memory=(1 - hot) * _weight_bytes(scenario, "up_proj", "down_proj", "gate_proj") / _on_devices(scenario),
        kv=0.0,
        part=Part.BLOCKS,
    )


def experts_on_cpu(scenario: Scenario, name: str, *, hardware: str, share: float) -> Scenario:
    """KTransformers: the routed experts of a fraction of the MoE layers in CPU memory, computed there."""
    if not scenario.model.experts:
        raise UnsupportedError(f"{name} places routed experts, and {scenario.model.name} has none")
    return _with_host(
        name,
        scenario,
        hardware,
        work=share,
        memory=share * _weight_bytes(scenario, "expert_") / _on_devices(scenario),
        kv=0.0,
        part=Part.EXPERTS,
        compute=_arithmetic_on_cpu(scenario),
    )


def _arithmetic_on_cpu(scenario: Scenario) -> str | None:
    """FP32 for quantized experts: kernels of GGUF formats unpack and multiply them on vector units, not with AMX.

    KTransformers did so up to version 0.2 (its doc/en/AMX.md); llama.cpp has AMX kernels for dense layers alone.
    """
    linear = scenario.precision.weights.linear
    return None if linear is None or linear.name in UNQUANTIZED_FORMATS else "fp32"


def _weight_bytes(scenario: Scenario, *prefixes: str) -> float:
    return named_bytes(network(scenario.model, scenario.precision).sections, *prefixes)


def _on_devices(scenario: Scenario) -> float:
    """The bytes of all weights but the tables of n-grams that are in CPU memory."""
    return weight_bytes(network(scenario.model, scenario.precision), (), scenario.settings.offload.tables_kept)


def disaggregate(scenario: Scenario, name: str, *, decode: str) -> Scenario:
    """Decode on other hardware than prefill; "same": on other devices of the same hardware."""
    if scenario.settings.decode_hardware is not None:
        raise RooflineError(f"{name} is requested twice: the scenario already has other decode hardware")
    decoder: Hardware = scenario.hardware if decode == "same" else load_hardware(decode)
    scenario.hardware.link(NETWORK)
    return with_settings(scenario, decode_hardware=decoder)


def parallelise(scenario: Scenario, name: str, *, kind: str, degree: int) -> Scenario:
    """The scenario with one degree of parallelism; raises RooflineError where the scenario already sets it."""
    parallel = scenario.settings.parallel
    if getattr(parallel, kind) != 1:
        raise RooflineError(f"{name} conflicts with {NAMES[kind]} {getattr(parallel, kind)} of the scenario")
    if scenario.settings.host is not None:
        raise UnsupportedError(f"{name}: a CPU that computes is simulated beside one device only")
    fills = kind == "pipeline" and not _says_micro_batches(scenario) and not scenario.profile.split_layers
    parallel = replace(parallel, **{kind: degree}, **({"micro_batches": degree} if fills else {}))  # as by the option
    rank_model(scenario.model, parallel)  # raises where the degree does not divide the model
    if parallel.devices > 1 and kind != "data":
        scenario.hardware.link(parallel.on(scenario.hardware).span(parallel.devices))
    return with_settings(scenario, parallel=parallel)


def two_dimensional(scenario: Scenario, _: str, *, degree: int) -> Scenario:
    """Tensor parallelism with matrices sharded by rows and columns."""
    return with_settings(scenario, parallel=replace(scenario.settings.parallel, tensor=degree, grid=True))


def two_batch_overlap(scenario: Scenario, name: str, *, phases: str) -> Scenario:
    """Phases in which one half of the batch computes during the all-to-alls of the other."""
    chosen = ("prefill", "decode") if phases == "both" else (phases,)
    if not set(chosen) <= {"prefill", "decode"}:
        raise RooflineError(f"{name}: phases must be prefill, decode or both, got {quote(phases)}")
    if not (scenario.model.experts and scenario.settings.parallel.all_to_all):
        raise UnsupportedError(f"{name} hides the all-to-alls of expert parallelism, and there are none")
    return with_settings(scenario, two_batch_overlap=frozenset(chosen))


def experts_apart(scenario: Scenario, name: str, *, devices: int, micro_batches: int) -> Scenario:
    """The routed experts on `devices` of their own; micro-batches of decode go back and forth between both pools."""
    settings, model = scenario.settings, scenario.model
    spread = settings.parallel
    if not model.experts:
        raise UnsupportedError(f"{name} has experts on devices of their own, and {model.name} has none")
    beside = settings.host or settings.mixed or settings.decode_hardware or settings.two_batch_overlap
    if beside or replace(spread, tensor=1, data=1, nodes=None) != SINGLE:
        raise RooflineError(f"{name} goes with tensor and data parallelism of attention alone (--tp, --dp)")
    # One-sided RDMA, as of M2N and StepMesh; M2N has 68% less latency than NCCL (MegaScale-Infer, abstract).
    parallel = replace(spread, expert=devices, apart=devices, exchange="deepep_low_latency")
    rank_model(model, parallel)
    scenario.hardware.link(parallel.on(scenario.hardware).span(parallel.devices))
    held = _weight_bytes(scenario, "expert_")
    if held / devices > scenario.hardware.memory_capacity:
        raise RooflineError(
            f"{name}: experts of {held / 1e9:,.0f} GB do not fit on {devices} devices of"
            f" {scenario.hardware.memory_capacity / 1e9:.0f} GB"
        )
    return with_settings(scenario, parallel=parallel, ping_pong=micro_batches)


def over_the_internet(
    scenario: Scenario, name: str, *, stages: int, bandwidth: str, rtt: str, server: str, block: str
) -> Scenario:
    """Pipeline stages on machines of their own; raises RooflineError for a scenario with other parallelism.

    A token passes from the client through all stages and back: stages + 1 hops of half a round trip each, and the
    software of each server takes its time, for a step and for each layer, which the stages - 1 transfers carry here.
    """
    if scenario.settings.parallel != SINGLE:
        raise RooflineError(
            f"{name} conflicts with the parallelism of the scenario: each of its machines has one device"
        )
    parallel = replace(SINGLE, pipeline=stages, nodes=stages)
    trip, software, queue = (parse_quantity(time, Dimension.TIME).value for time in (rtt, server, block))
    rank_model(scenario.model, parallel)
    link = Interconnect(
        kind="Internet",
        scope="network",
        bandwidth=parse_quantity(bandwidth, Dimension.BANDWIDTH).value,
        latency=(trip / 2 * (stages + 1) + software * stages + queue * scenario.model.layers) / (stages - 1),
    )
    local = tuple(other for other in scenario.hardware.interconnects if other.scope != "network")
    hardware = replace(scenario.hardware, interconnects=(*local, link))
    return with_settings(scenario.changed(hardware=hardware), parallel=parallel)
