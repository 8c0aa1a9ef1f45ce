"""Placement: offloading to CPU and disk, disaggregation, and parallelism."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from roofline.bound.memory import stored_tensors
from roofline.core.errors import RooflineError, UnsupportedError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.graph.network import network
from roofline.graph.parallel import NAMES, RESIDENT, SINGLE, Offload, rank_model
from roofline.graph.tensor import Role
from roofline.scenario.parts import Part
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Host
from roofline.specs.hardware import NETWORK, Hardware, load_hardware
from roofline.specs.model import Mlp
from roofline.techniques.base import (
    GENERATIVE_SURVEY,
    SURVEY,
    Change,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    system_technique,
)
from roofline.techniques.changes import (
    precision_of,
    require_generation,
    require_softmax_attention,
    with_feed_forward,
    with_settings,
)

# --- CPU and disk -----------------------------------------------------------------------------------------------------


def _offload(name: str) -> Change:
    """Weights and KV cache offloaded; raises RooflineError for a scenario that offloads already."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        if scenario.settings.offload != RESIDENT:
            raise RooflineError(f"{name} conflicts with the offload of the scenario: both place weights and KV cache")
        bandwidth = parse_quantity(values["bandwidth"], Dimension.BANDWIDTH).value if "bandwidth" in values else None
        scenario.hardware.host_bandwidth  # noqa: B018 - raises for a spec without a host link
        return with_settings(scenario, offload=Offload(values["weights"], values.get("kv", 0.0), bandwidth))

    return change


def _with_host(name: str, scenario: Scenario, hardware: str, **fractions: Any) -> Scenario:
    """The scenario with a CPU beside a single device."""
    if scenario.settings.parallel != SINGLE or scenario.settings.host is not None:
        raise UnsupportedError(f"{name} is simulated for one device with one CPU beside it")
    return with_settings(scenario, host=Host(load_hardware(hardware), **fractions))


def _layers_on_cpu(scenario: Scenario, values: Values) -> Scenario:
    share = values["share"]
    return _with_host("llama-cpp-split", scenario, values["hardware"], work=share, memory=share)


def _attention_on_cpu(scenario: Scenario, values: Values) -> Scenario:
    require_generation(scenario, "fastdecode")
    require_softmax_attention(scenario, "fastdecode")
    return _with_host("fastdecode", scenario, values["hardware"], work=1.0, memory=0.0, kv=1.0, part=Part.ATTENTION)


def _cold_neurons_on_cpu(scenario: Scenario, values: Values) -> Scenario:
    name, model = "powerinfer", scenario.model
    blocks = [group.layer.feed_forward for group in model.groups if group.layer.feed_forward is not None]
    if not all(isinstance(block, Mlp) and block.activation in ("relu", "relu2") for block in blocks):
        raise UnsupportedError(f"{name} skips neurons that ReLU sets to zero, and {model.name} has other MLPs")

    def sparse(block: Mlp) -> Mlp:
        return replace(block, active=values["active"])

    return _with_host(
        name,
        with_feed_forward(scenario, name, Mlp, sparse),
        values["hardware"],
        work=1 - values["hits"],
        memory=(1 - values["hot"]) * _feed_forward_fraction(scenario),
        kv=0.0,
        part=Part.BLOCKS,
    )


def _feed_forward_fraction(scenario: Scenario) -> float:
    """The fraction of the stored weights in feed-forward blocks."""
    sections = network(scenario.model, precision_of(scenario)).sections
    sizes = [
        (tensor.name.startswith(("up_proj", "down_proj", "gate_proj")), count * tensor.stored_elements.evaluate({}))
        for tensor, count in stored_tensors(sections, Role.WEIGHT)
    ]
    return float(sum(size for inside, size in sizes if inside) / sum(size for _, size in sizes))


def _cpu(default: str) -> Parameter:
    return Parameter("hardware", default, "the CPU beside the device")


_SERIAL = "Device and CPU do not overlap; the transfer of activations between them is not counted."

OFFLOADING = (
    system_technique(
        "flexgen",
        "FlexGen: weights and KV cache offloaded to CPU memory",
        "Sheng et al. 2023, FlexGen",
        "Fractions of weights and KV cache are in CPU memory and stream over the host link during computation.",
        "placement",
        _offload("flexgen"),
        Parameter("weights", 1.0, "fraction of the weights in CPU memory (FlexGen's policy for OPT-175B)", 0, 1),
        Parameter("kv", 1.0, "fraction of the KV cache in CPU memory (the same policy)", 0, 1),
        covers=("offloading",),
        caveat="Transfers overlap fully with computation; for attention on the CPU use fastdecode.",
    ),
    system_technique(
        "zero-inference",
        "ZeRO-Inference: weights streamed from disk",
        "Aminabadi et al. 2022, ZeRO-Inference",
        "Weights are on an NVMe disk and stream layer by layer at the bandwidth of the disk.",
        "placement",
        _offload("zero-inference"),
        Parameter("weights", 1.0, "fraction of the weights on disk", 0, 1),
        Parameter("bandwidth", "7GB/s", "bandwidth of the disk (an example: one PCIe 4.0 NVMe)"),
    ),
    system_technique(
        "llama-cpp-split",
        "llama.cpp layer split between GPU and CPU",
        f"llama.cpp; {SURVEY}, section 6.1.3",
        "The CPU stores and computes a fraction of the layers, with their weights and KV cache.",
        "placement",
        _layers_on_cpu,
        _cpu("core-i9-13900k"),
        Parameter("share", 0.5, "fraction of the layers on the CPU (an example)", 0, 1),
        covers=("llama.cpp layer split",),
        caveat=_SERIAL,
    ),
    system_technique(
        "powerinfer",
        "PowerInfer: hot neurons on the GPU, cold neurons on the CPU",
        "Song et al. 2023, PowerInfer",
        "Frequently active neurons are on the GPU, and the CPU computes the active ones among the others.",
        "placement",
        _cold_neurons_on_cpu,
        _cpu("core-i9-13900k"),
        Parameter("hot", 0.26, "fraction of the neurons on the GPU (OPT-30B; 0.43 for LLaMA ReGLU 70B)", 0, 1),
        Parameter("hits", 0.8, "fraction of activations from hot neurons (the same source)", 0, 1),
        Parameter("active", 0.2, "fraction of neurons active for a token (Deja Vu: sparsity up to 80%)", 0.001, 1),
        price=Price.LOSSY,
        caveat=f"{_SERIAL} Predictors cost nothing; a batch reads the neurons that any of its tokens activates.",
    ),
    system_technique(
        "fastdecode",
        "FastDecode: decode attention on the CPU",
        "He and Zhai 2024, FastDecode",
        "The KV cache is in CPU memory and the CPU computes attention; only activations cross the host link.",
        "placement",
        _attention_on_cpu,
        _cpu("epyc-9654"),
        caveat=_SERIAL,
    ),
)


# --- disaggregation ---------------------------------------------------------------------------------------------------


def _disaggregated(scenario: Scenario, values: Values) -> Scenario:
    require_generation(scenario, "disaggregation")
    if scenario.settings.decode_hardware is not None:
        raise RooflineError("disaggregation is requested twice: the scenario already has other decode hardware")
    hardware = values["decode"]
    decoder: Hardware = scenario.hardware if hardware == "same" else load_hardware(hardware)
    scenario.hardware.link(NETWORK)
    return with_settings(scenario, decode_hardware=decoder)


DISAGGREGATION = (
    system_technique(
        "disaggregation",
        "Disaggregated prefill and decode",
        "Patel et al. 2023, Splitwise; Zhong et al. 2024, DistServe",
        "Prefill and decode run on separate devices; the KV cache of every prompt is sent over the network once.",
        "disaggregation",
        _disaggregated,
        Parameter("decode", "same", "decode hardware; `same`: that of prefill"),
        covers=("Splitwise", "TetriInfer", "DistServe", "ExeGPT", "disaggregated inference"),
        caveat="The main benefit, no interference between the phases, depends on the queue; the transfer does not"
        " overlap.",
    ),
)


# --- parallelism ------------------------------------------------------------------------------------------------------


def _parallel(
    name: str, degree: str, title: str, reference: str, effect: str, slot: str | None = None, **rest: Any
) -> Technique:
    """An entry that sets one degree of parallelism; raises RooflineError where the scenario already sets it."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        parallel = scenario.settings.parallel
        if getattr(parallel, degree) != 1:
            raise RooflineError(f"{name} conflicts with {NAMES[degree]} {getattr(parallel, degree)} of the scenario")
        if scenario.settings.host is not None:
            raise UnsupportedError(f"{name}: a CPU that computes is simulated beside one device only")
        parallel = replace(parallel, **{degree: values["degree"]})
        rank_model(scenario.model, parallel)  # raises where the degree does not divide the model
        if parallel.devices > 1 and degree != "data":
            scenario.hardware.link(parallel.on(scenario.hardware).span(parallel.devices))
        return with_settings(scenario, parallel=parallel)

    devices = Parameter("degree", 2, "devices", 1, 1_000_000)
    return system_technique(name, title, reference, effect, slot or name, change, devices, **rest)


def _grid(scenario: Scenario, values: Values) -> Scenario:
    parallel = replace(scenario.settings.parallel, tensor=values["degree"], grid=True)
    return with_settings(scenario, parallel=parallel)


def _two_batch_overlap(scenario: Scenario, values: Values) -> Scenario:
    parallel, requested = scenario.settings.parallel, values["phases"]
    phases = ("prefill", "decode") if requested == "both" else (requested,)
    if not set(phases) <= {"prefill", "decode"}:
        raise RooflineError(f"two-batch-overlap: phases must be prefill, decode or both, got {quote(requested)}")
    if not (scenario.model.experts and parallel.all_to_all):
        raise UnsupportedError("two-batch-overlap hides the all-to-alls of expert parallelism, and there are none")
    return with_settings(scenario, two_batch_overlap=frozenset(phases))


PARALLELISM = (
    _parallel(
        "tensor-parallelism",
        "tensor",
        "Tensor parallelism (TP)",
        "Shoeybi et al. 2019, Megatron-LM",
        "Every device holds a slice of each matrix; two all-reduces per layer add up the partial sums.",
        covers=("tensor parallelism", "KV-head sharding", "KV-head replication"),
        caveat="KV heads are replicated when TP exceeds their number, and the KV cache per device stops shrinking.",
    ),
    _parallel(
        "pipeline-parallelism",
        "pipeline",
        "Pipeline parallelism (PP)",
        "Narayanan et al. 2021",
        "Every stage holds consecutive layers; stages send the residual stream, with pipeline bubbles at both ends.",
        covers=("pipeline parallelism",),
    ),
    _parallel(
        "data-parallelism",
        "data",
        "Data parallelism (DP)",
        f"{GENERATIVE_SURVEY}, section 3.2.2",
        "Every replica holds all weights and serves its part of the batch.",
        covers=("data parallelism",),
    ),
    _parallel(
        "ring-attention",
        "sequence",
        "Ring attention",
        "Liu et al. 2023, Ring Attention; Brandon et al. 2023, Striped Attention",
        "Every device holds a part of the sequence; keys and values circulate in a ring during attention.",
        "sequence parallelism",
        covers=("Ring Attention", "Striped Attention"),
        caveat="Causal attention is assumed to be balanced over the devices, as with striping.",
    ),
    _parallel(
        "sequence-parallelism",
        "sequence",
        "Sequence parallelism (SP)",
        "Li et al. 2023; Wu et al. 2024, LoongServe; Lin et al. 2024, Infinite-LLM",
        "Every device holds the KV cache of a part of the sequence; decode merges partial attention outputs.",
        "sequence parallelism",
        covers=("sequence parallelism", "elastic sequence parallelism", "LoongServe", "Infinite-LLM"),
        same_as="ring-attention",
        caveat="In decode the same as ring attention. A degree that differs between prefill and decode, as in"
        " LoongServe, takes two scenarios.",
    ),
    _parallel(
        "expert-parallelism",
        "expert",
        "Expert parallelism (EP)",
        "Lepikhin et al. 2020, GShard",
        "Every device holds some of the experts; two all-to-alls per layer dispatch and combine tokens.",
        covers=("expert parallelism",),
    ),
    system_technique(
        "2d-tensor-parallelism",
        "2D tensor parallelism",
        "Pope et al. 2022; Wang et al. 2022, 2-D tensor parallelism",
        "Matrices are sharded by rows and columns: the bytes that a device sends fall with the number of devices.",
        "tensor-parallelism",
        _grid,
        Parameter("degree", 16, "devices, a square number", 1, 1_000_000),
        covers=("2D tensor parallelism", "PaLM inference"),
        published=(
            Published("lower communication complexity", "more than 256 devices", f"{GENERATIVE_SURVEY}, 3.2.2"),
        ),
        caveat="Attention is sharded by heads, which limits the devices to the number of heads.",
    ),
    system_technique(
        "two-batch-overlap",
        "Two-batch overlap (TBO) of all-to-alls and computation",
        "DeepSeek-AI 2024, DeepSeek-V3, section 3.4; DeepSeek-AI 2025, inference system overview",
        "The batch is split in two: the all-to-alls of one half overlap with the computation of the other.",
        "overlap",
        _two_batch_overlap,
        Parameter("phases", "both", "phases that are split: prefill, decode or both"),
        covers=("dual-batch overlap", "TBO", "DBO"),
        published=(
            Published(
                "27 to 35% more prefill throughput",
                "DeepSeek-V3, 32 H100 with expert parallelism",
                "The SGLang Team 2025-05-05, Deploying DeepSeek on 96 H100 GPUs",
            ),
        ),
        caveat="All-to-alls are assumed to take no SMs and to overlap fully, also in the first and last layer; each"
        " half reads the weights, so that small batches lose.",
    ),
)

TECHNIQUES: tuple[Technique, ...] = (*OFFLOADING, *DISAGGREGATION, *PARALLELISM)
