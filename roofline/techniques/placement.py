"""Placement: what is kept and computed elsewhere, two pools of devices, and many devices for one model."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace

from roofline.bound.memory import stored_tensors
from roofline.core.errors import RooflineError, UnsupportedError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.graph.network import network
from roofline.graph.parallel import NAMES, RESIDENT, SINGLE, Offload, rank_model
from roofline.graph.tensor import Role
from roofline.scenario.scenario import Scenario
from roofline.scenario.schedule import Host, Part
from roofline.specs.hardware import NETWORK, Hardware, load_hardware
from roofline.specs.model import Attention, FeedForward, Mlp
from roofline.specs.precision import Precision
from roofline.techniques.base import (
    Change,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    needs_generation,
    with_blocks,
    with_settings,
)
from roofline.techniques.entries import system_entry

# --- other memories and processors ------------------------------------------------------------------------------------


def _streamed(name: str) -> Change:
    """Shares of weights and cache kept off the device; refused where the scenario keeps something there already."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        if scenario.settings.offload != RESIDENT:
            raise RooflineError(
                f"{name} and an offload of the scenario contradict each other: both place weights and cache"
            )
        bandwidth = parse_quantity(values["bandwidth"], Dimension.BANDWIDTH).value if "bandwidth" in values else None
        scenario.hardware.host_bandwidth  # noqa: B018 - raises where the spec names no host link
        return with_settings(scenario, offload=Offload(values["weights"], values.get("kv", 0.0), bandwidth))

    return change


def _hosted(name: str, scenario: Scenario, hardware: str, **shares: Any) -> Scenario:
    """A processor beside a single device."""
    if scenario.settings.parallel != SINGLE or scenario.settings.host is not None:
        raise UnsupportedError(f"{name} is simulated for one device with one host beside it")
    return with_settings(scenario, host=Host(load_hardware(hardware), **shares))


def _split_layers(scenario: Scenario, values: Values) -> Scenario:
    share = values["share"]
    return _hosted("llama-cpp-split", scenario, values["hardware"], work=share, memory=share)


def _attention_away(scenario: Scenario, values: Values) -> Scenario:
    needs_generation(scenario, "fastdecode")
    if not any(isinstance(group.layer.mixer, Attention) for group in scenario.model.groups):
        raise UnsupportedError(f"fastdecode moves softmax attention, and {scenario.model.name} has none")
    return _hosted("fastdecode", scenario, values["hardware"], work=1.0, memory=0.0, kv=1.0, part=Part.ATTENTION)


def _cold_neurons_away(scenario: Scenario, values: Values) -> Scenario:
    name = "powerinfer"

    def sparse(block: FeedForward) -> FeedForward:
        if not isinstance(block, Mlp) or block.activation not in ("relu", "relu2"):
            raise UnsupportedError(
                f"{name} skips neurons that ReLU sets to zero, and {scenario.model.name} has no such MLP"
            )
        return dataclasses.replace(block, active=values["active"])

    blocks = _block_share(scenario)
    return _hosted(
        name,
        with_blocks(scenario, name, sparse),
        values["hardware"],
        work=1 - values["hits"],
        memory=(1 - values["hot"]) * blocks,
        kv=0.0,
        part=Part.BLOCKS,
    )


def _block_share(scenario: Scenario) -> float:
    """The share of the stored weights that feed-forward blocks have."""
    precision = scenario.precision
    assert isinstance(precision, Precision)
    sizes = [
        (tensor.name.startswith(("up_proj", "down_proj", "gate_proj")), count * tensor.stored_elements.evaluate({}))
        for tensor, count in stored_tensors(network(scenario.model, precision).sections, Role.WEIGHT)
    ]
    return float(sum(size for inside, size in sizes if inside) / sum(size for _, size in sizes))


_PROCESSOR = "the processor beside the device"
_SERIAL = "Device and host work one after the other; what crosses between them, activations only, is left out."

ELSEWHERE = (
    system_entry(
        "flexgen",
        "Weights and cache streamed from host memory",
        "Sheng et al. 2023, FlexGen",
        "shares of weights and cache are kept in host memory and come over the link while the device computes",
        "placement",
        _streamed("flexgen"),
        covers=("offloading",),
        parameters=(
            Parameter("weights", 1.0, "share of the weights in host memory (FlexGen's policy for OPT-175B)", 0, 1),
            Parameter("kv", 1.0, "share of the cache in host memory (the same policy)", 0, 1),
        ),
        caveat="Transfers overlap with computation in full; attention on the CPU is fastdecode.",
    ),
    system_entry(
        "zero-inference",
        "Weights streamed from disk",
        "Aminabadi et al. 2022, ZeRO-Inference",
        "weights are kept on NVMe and streamed layer by layer, at the disk's bandwidth",
        "placement",
        _streamed("zero-inference"),
        parameters=(
            Parameter("weights", 1.0, "share of the weights on disk", 0, 1),
            Parameter("bandwidth", "7GB/s", "bandwidth of the disk (an example: one PCIe 4.0 NVMe)"),
        ),
    ),
    system_entry(
        "llama-cpp-split",
        "Layers shared with the CPU",
        "llama.cpp; Zhou et al. 2024, section 6.1.3",
        "a share of the layers, with their weights and cache, stays on the CPU, which computes them",
        "placement",
        _split_layers,
        covers=("llama.cpp layer split",),
        parameters=(
            Parameter("hardware", "core-i9-13900k", _PROCESSOR),
            Parameter("share", 0.5, "share of the layers on it (an example)", 0, 1),
        ),
        caveat=_SERIAL,
    ),
    system_entry(
        "powerinfer",
        "Hot neurons on the device, cold ones on the CPU",
        "Song et al. 2023, PowerInfer",
        "neurons that are often active stay on the device, and the CPU computes the others as far as they are active",
        "placement",
        _cold_neurons_away,
        price=Price.LOSSY,
        parameters=(
            Parameter("hardware", "core-i9-13900k", _PROCESSOR),
            Parameter("hot", 0.26, "share of neurons on the device (OPT-30B; 0.43 for LLaMA ReGLU 70B)", 0, 1),
            Parameter("hits", 0.8, "share of activations that they make up (the same source)", 0, 1),
            Parameter("active", 0.2, "share of neurons active for a token (Deja Vu: sparsity up to 80%)", 0.001, 1),
        ),
        caveat=f"{_SERIAL} Predictors cost nothing; a batch touches what any of its tokens needs.",
    ),
    system_entry(
        "fastdecode",
        "Decode attention on the CPU",
        "He and Zhai 2024, FastDecode",
        "the cache stays in the CPU's memory, where attention is computed; only activations cross the link",
        "placement",
        _attention_away,
        parameters=(Parameter("hardware", "epyc-9654", _PROCESSOR),),
        caveat=_SERIAL,
    ),
)


# --- two pools --------------------------------------------------------------------------------------------------------


def _disaggregated(scenario: Scenario, values: Values) -> Scenario:
    needs_generation(scenario, "disaggregation")
    if scenario.settings.decode_hardware is not None:
        raise RooflineError("disaggregation is asked for twice: the scenario decodes on other hardware already")
    hardware = values["decode"]
    decoder: Hardware = scenario.hardware if hardware == "same" else load_hardware(hardware)
    scenario.hardware.link(NETWORK)
    return with_settings(scenario, decode_hardware=decoder)


POOLS = (
    system_entry(
        "disaggregation",
        "Prefill and decode on different devices",
        "Patel et al. 2023, Splitwise; Zhong et al. 2024, DistServe",
        "prefill and decode run in pools of their own; the cache of every prompt is sent over the network once",
        "pools",
        _disaggregated,
        covers=("Splitwise", "TetriInfer", "DistServe", "ExeGPT", "disaggregated inference"),
        parameters=(Parameter("decode", "same", "hardware that decodes; `same` for another pool of the first"),),
        caveat="That the phases no longer disturb each other, its point, belongs to a queue; sending does not overlap.",
    ),
)


# --- many devices -----------------------------------------------------------------------------------------------------


def _divided(name: str, degree: str) -> Change:
    """More devices of one sort; refused where the scenario has that sort of parallelism already."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        parallel = scenario.settings.parallel
        if getattr(parallel, degree) != 1:
            flag = f"{NAMES[degree]} {getattr(parallel, degree)}"
            raise RooflineError(f"{name} and {flag} contradict each other: both settle the same parallelism")
        if scenario.settings.host is not None:
            raise UnsupportedError(f"{name}: a host that computes is simulated beside one device only")
        parallel = replace(parallel, **{degree: values["degree"]})
        rank_model(scenario.model, parallel)  # raises where the model cannot be divided so
        if parallel.devices > 1 and degree != "data":
            scenario.hardware.link(parallel.on(scenario.hardware).span(parallel.devices))
        return with_settings(scenario, parallel=parallel)

    return change


def _parallel(
    name: str,
    degree: str,
    title: str,
    reference: str,
    effect: str,
    **more: Any,
) -> Technique:
    parameters = (Parameter("degree", 2, "devices", 1, 1_000_000),)
    return system_entry(
        name, title, reference, effect, more.pop("slot", name), _divided(name, degree), parameters=parameters, **more
    )


def _grid(scenario: Scenario, values: Values) -> Scenario:
    parallel = replace(scenario.settings.parallel, tensor=values["degree"], grid=True)
    return with_settings(scenario, parallel=parallel)


def _two_batches(scenario: Scenario, values: Values) -> Scenario:
    parallel, asked = scenario.settings.parallel, values["phases"]
    phases = ("prefill", "decode") if asked == "both" else (asked,)
    if not set(phases) <= {"prefill", "decode"}:
        raise RooflineError(f"two-batch-overlap: phases must be prefill, decode or both, got {quote(asked)}")
    if not (scenario.model.experts and parallel.exchanging):
        raise UnsupportedError(
            "two-batch-overlap hides what experts on different devices exchange: nothing is exchanged"
        )
    return with_settings(scenario, overlapped=frozenset(phases))


DEVICES = (
    _parallel(
        "tensor-parallelism",
        "tensor",
        "Heads and widths divided",
        "Shoeybi et al. 2019, Megatron-LM",
        "every device holds a part of each matrix; two all-reduces a layer put the sums together",
        covers=("tensor parallelism", "KV-head sharding", "KV-head replication"),
        caveat="Past their number, key and value heads are replicated, and the cache of a device no longer shrinks.",
    ),
    _parallel(
        "pipeline-parallelism",
        "pipeline",
        "Layers divided",
        "Narayanan et al. 2021",
        "every stage holds a run of layers; only the residual stream crosses, and bubbles stay at both ends",
        covers=("pipeline parallelism",),
    ),
    _parallel(
        "data-parallelism",
        "data",
        "The batch divided",
        "Miao et al. 2023, section 3.2.2",
        "every replica holds all weights and serves its share of the batch",
        covers=("data parallelism",),
    ),
    _parallel(
        "ring-attention",
        "sequence",
        "The sequence divided, keys going round",
        "Liu et al. 2023, Ring Attention; Brandon et al. 2023, Striped Attention",
        "every device holds a part of the sequence; keys and values go round a ring while they are multiplied",
        slot="parallelism of sequences",
        covers=("Ring Attention", "Striped Attention"),
        caveat="The causal mask's work is taken to be even over the devices, as stripes make it.",
    ),
    _parallel(
        "sequence-parallelism",
        "sequence",
        "Computation and cache divided along the sequence",
        "Li et al. 2023; Wu et al. 2024, LoongServe; Lin et al. 2024, Infinite-LLM",
        "every device holds a part of the sequence's cache; in decode partial outputs are merged",
        slot="parallelism of sequences",
        covers=("sequence parallelism", "elastic sequence parallelism", "LoongServe", "Infinite-LLM"),
        caveat="A degree that changes from phase to phase, as LoongServe's, is two scenarios.",
    ),
    _parallel(
        "expert-parallelism",
        "expert",
        "Experts divided",
        "Lepikhin et al. 2020, GShard",
        "every device holds some of the experts; tokens go to them and back in two all-to-alls a layer",
        covers=("expert parallelism",),
    ),
    system_entry(
        "2d-tensor-parallelism",
        "Matrices divided both ways",
        "Pope et al. 2022; Wang et al. 2022, 2-D tensor parallelism",
        "matrices are cut along rows and columns, so that a device sends less the more devices there are",
        "tensor-parallelism",
        _grid,
        covers=("2D tensor parallelism", "PaLM inference"),
        parameters=(Parameter("degree", 16, "devices, a square number", 1, 1_000_000),),
        published=(Published("lower communication complexity", "more than 256 devices", "Miao et al. 2023, 3.2.2"),),
        caveat="Attention is divided by heads all the same, so that there are no more devices than heads.",
    ),
    system_entry(
        "two-batch-overlap",
        "Exchanges of one half of the batch behind the work of the other",
        "DeepSeek-AI 2024, DeepSeek-V3, section 3.4; DeepSeek-AI 2025, inference system overview",
        "the batch is cut in two: while experts' rows of one half are exchanged, the device computes on the other",
        "overlap",
        _two_batches,
        covers=("dual-batch overlap", "TBO", "DBO"),
        parameters=(Parameter("phases", "both", "what is cut in two: prefill, decode or both"),),
        published=(
            Published(
                "27 to 35% more prefill throughput",
                "DeepSeek-V3, 32 H100 with expert parallelism",
                "The SGLang Team 2025-05-05, Deploying DeepSeek on 96 H100 GPUs",
            ),
        ),
        caveat="Exchanges take none of the device's units, and nothing stays uncovered at either end; weights are read"
        " for each half, so that a small batch loses.",
    ),
)

TECHNIQUES: tuple[Technique, ...] = (*ELSEWHERE, *POOLS, *DEVICES)
