"""The settings of a server that runs a scenario, and refusals of what its engine cannot be told.

A setting is a name of `specs/servers.yaml`, that of the scenario's option where there is one. An option or technique
that is neither a setting of the engine nor a part of the workload is refused: a server never runs something else than
what was predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from roofline.core.errors import RooflineError
from roofline.core.units import GIB, Dimension, parse_quantity
from roofline.graph.rewrite import Adapter
from roofline.launch.repository import name_of, released_in
from roofline.scenario.engine_options import ranks_together
from roofline.scenario.memory import memory_reserve
from roofline.scenario.options import OPTIONS
from roofline.scenario.parts import Part
from roofline.scenario.scenario import Scenario
from roofline.serving.sessions.tiers import parse_tiers, settings_of, split_tiers
from roofline.specs.checkpoint import only_cache
from roofline.specs.formats import UNQUANTIZED_FORMATS, find_format
from roofline.specs.precision import SCHEMES
from roofline.specs.schemes import GGUF_SCHEMES
from roofline.specs.servers import SERVERS, Server, server_of
from roofline.techniques import check_request
from roofline.timing.exchanges import exchange_choice

NO_OPTION = ("carbon", "fuse", "micro_batches", "sp")
"""Options of a scenario that no engine can be told. The others are read from the scenario as settings, or are not for a
server: the workload, the machine, and how the prediction counts."""

ALWAYS_ON = frozenset({"continuous-batching", "paged-attention", "flash-attention", "cuda-graphs"})
"""Techniques that every engine here has switched on."""

READ_AS_SETTINGS = frozenset(
    {"tensor-parallelism", "pipeline-parallelism", "data-parallelism", "expert-parallelism", "chunked-prefill"}
    | {"two-batch-overlap", "experts-on-cpu", "fp8-kv", "mixed-devices", "lora", "punica", "s-lora"}
)
"""Techniques that change settings which are read from the scenario."""


class Wanted(NamedTuple):
    """A setting and its value; `pinned` is one that the engine has by default, at least for this device."""

    setting: str
    value: object
    pinned: bool = False


def server_settings(
    scenario: Scenario, server: Server, version: str, slots: int, context: int, limited: bool
) -> list[Wanted]:
    """The settings of a scenario's server with so many `slots`, of `context` tokens each, `limited` below the model's.

    Raises RooflineError for what the engine has no option for.
    """
    check_covered(scenario, server)
    projector = [Wanted("mmproj", f"mmproj-{name_of(scenario)}.gguf")] if has_projector(scenario, server) else []
    return [
        *projector,
        *_formats(scenario, server),
        *_parallel(scenario, server, version),
        *_counts(scenario, server, slots, context, limited),
        *_places(scenario, server),
        *_switches(scenario),
    ]


def tier_settings(text: str, scenario: Scenario, server: Server) -> Iterator[Wanted]:
    """The settings of the tiers of a KV cache, as `--tiers` writes them; raises RooflineError for unknown ones."""
    connector, parts = split_tiers(text, scenario)
    if connector is None:
        raise RooflineError(f"{server.title} is not known to have tiers of its KV cache", options=["tiers"])
    name = connector.name
    if name in server.rows:
        yield Wanted(name, True)
    for part in parts:
        (tier,) = parse_tiers(f"{name}:{part}", scenario)
        known, given = connector.of(tier.name, scenario.profile.version), settings_of(part)[2]
        if "unit" not in known:
            yield Wanted(f"{name}.store", tier.name)
        elif tier.ratio is not None:
            yield Wanted(f"{name}.ratio", tier.ratio)
        elif tier.bytes is None:
            raise RooflineError(f"{server.title} is told the size of {tier.name}: give one", options=["tiers"])
        else:
            parallel = scenario.settings.parallel
            engines = parallel.data if parallel.expert > 1 else 1  # others are copies, each with such tiers
            sizes = engines * parallel.devices // parallel.data if known["per"] == "rank" else engines
            unit = parse_quantity(str(known["unit"]), Dimension.BYTES).value
            yield Wanted(f"{name}.{tier.name}", math.ceil(tier.bytes / unit / sizes))
        for key in ("write", "block", "outputs", "full"):
            if key in given:
                yield Wanted(f"{name}.{key}", getattr(tier, key))


def has_projector(scenario: Scenario, server: Server) -> bool:
    """Whether the server reads the encoder of images from a file of its own."""
    return "mmproj" in server.rows and bool(np.any(scenario.images))


def check_covered(scenario: Scenario, server: Server) -> None:
    """Raise RooflineError for options and techniques that the engine cannot be told."""
    if not scenario.asked:
        raise RooflineError("a scenario whose fields were changed has no command: change its options")
    for name in NO_OPTION:
        if OPTIONS[name].differs(scenario.given(name)):
            raise RooflineError(f"{server.title} has no option for {name}: omit it", options=[name])
    for written in scenario.techniques:
        name, values = check_request(written).name, written.partition(":")[2]
        plain = name in ALWAYS_ON or _scheme_of(name) is not None
        if plain and values:
            raise RooflineError(f"{server.title} cannot be told {written}: omit its parameters", options=["with"])
        if not plain and name not in READ_AS_SETTINGS and name not in server.drafts:
            raise RooflineError(f"{server.title} has no option for the technique {name}: omit it", options=["with"])


def _scheme_of(technique: str) -> str | None:
    """The scheme that a technique quantizes to, where it is that of a checkpoint."""
    return technique if technique in SCHEMES else None


def scheme_of(scenario: Scenario) -> str | None:
    """The scheme that a scenario quantizes its weights to; None for a checkpoint as it was released.

    Raises RooflineError for formats that no name of a scheme stands for.
    """
    if alone := [name for name in ("weights", "activations") if scenario.given(name) is not None]:
        raise RooflineError(
            f"a server reads a scheme, not formats of its own: quant in place of {alone[0]}", options=alone
        )
    for technique in scenario.techniques:
        if (scheme := _scheme_of(technique.partition(":")[0])) is not None:
            return scheme
    given = scenario.given("quant") or scenario.given("quantization")
    if given is None or str(given).lower() in ("kv8", "kv4") or scenario.question.as_released:
        return None
    converted = given in UNQUANTIZED_FORMATS and scenario.model.quantization is None  # as the engine's dtype says
    return None if converted else str(given)


def _formats(scenario: Scenario, server: Server) -> Iterator[Wanted]:
    """The number formats of weights, activations and KV cache; raises RooflineError for what the server cannot read."""
    scheme, precision = scheme_of(scenario), scenario.precision
    if scheme is not None:
        online = any(scheme in (row.values or ()) for row in server.rows.get("quant", ()))
        loads, file = {name.upper() for name in server.loads}, server.reads_file(scheme)
        reads = scheme in GGUF_SCHEMES if file else scheme.upper().split("KV")[0] in loads
        # A listed checkpoint is half as much to download, and calibrated where its maker has done so.
        if online and scenario.model.quantization is None and not (reads and released_in(scenario, scheme)):
            yield Wanted("quant", scheme)
        elif not reads:
            known = ", ".join(server.loads)
            raise RooflineError(f"{server.title} reads no checkpoint in {scheme}: {known}", options=["quant"])
    converted = scenario.given("quant") in UNQUANTIZED_FORMATS and precision.base.name != scenario.model.dtype
    if scenario.given("dtype") is not None or (converted and scheme is None and not server.reads_file(scheme)):
        yield Wanted("dtype", precision.base.name)
    only = only_cache(scenario.model, scenario.profile)
    if only is not None and precision.kv.arithmetic != find_format(only).arithmetic:
        raise RooflineError(f"{server.title} runs {scenario.model.name} with a cache in {only} alone", options=["kv"])
    if scenario.given("kv") is not None or precision.kv.bits != precision.base.bits:
        yield Wanted("kv", precision.kv.name)


def _parallel(scenario: Scenario, server: Server, version: str) -> Iterator[Wanted]:
    """The degrees, in the engine's own reading of them."""
    spread = scenario.settings.parallel.on(scenario.hardware)
    moe = bool(scenario.model.experts)
    if spread.sequence > 1 or spread.grid or scenario.given("micro_batches") is not None:
        raise RooflineError(f"{server.title} has no option for this parallelism: tp, pp, dp and ep are known")
    everywhere = spread.expert == spread.tensor * spread.data > 1
    tensor, data, expert = spread.tensor, spread.data, spread.expert
    match server.name:
        case "vllm":
            if expert > 1 and not everywhere:
                raise RooflineError(
                    f"vLLM divides experts among all {tensor * data} ranks or none, not {expert}", options=["ep"]
                )
            if moe and data > 1 and not everywhere:
                raise RooflineError(
                    "vLLM divides experts among data-parallel ranks", options=["enable_expert_parallel"]
                )
            if everywhere:
                yield Wanted("enable_expert_parallel", True)
        case "sglang" | "tensorrt-llm":
            if everywhere and data > 1:
                if server.name == "tensorrt-llm" and tensor > 1:
                    raise RooflineError(
                        "TensorRT-LLM attends on all ranks or none: dp_attention, or dp of 1", options=["dp"]
                    )
                yield Wanted("dp_attention", data)
                tensor, data = tensor * data, 1
            if expert > 1:
                yield Wanted("ep", expert)
        case _:
            if expert > 1 or (tensor > 1 and spread.pipeline > 1):
                raise RooflineError(f"{server.title} divides layers (pp) or tensors (tp), not both, and no experts")
    several = spread.expert * spread.sequence > spread.devices_per_node
    if spread.all_to_all:
        own = exchange_choice(scenario.profile, scenario.hardware, several, spread.expert)
        if spread.exchange or own == "deepep":  # which is no engine's default
            yield Wanted("all_to_all", spread.exchange or own)
    if spread.redundant:
        yield Wanted("redundant_experts", spread.redundant)
    for setting, degree in (("tp", tensor), ("pp", spread.pipeline), ("dp", data), ("dcp", spread.context)):
        if degree > 1:
            yield Wanted(setting, degree)
    if (nodes := machines_of(scenario)) > 1:
        if spread.data > 1 and server.name == "vllm" and (spread.data % nodes or not server.has("nodes", version)):
            raise RooflineError("vLLM places whole data-parallel ranks on each node", options=["dp", "nodes"])
        yield Wanted("nodes", nodes)


def _counts(scenario: Scenario, server: Server, slots: int, context: int, limited: bool) -> Iterator[Wanted]:
    """The context, the slots, the step budget and the memory fraction, those that the engine has already as pinned."""
    settings, reserve = scenario.plain.settings, memory_reserve(scenario)
    allots = server.allots
    if "ctx_size" in server.rows:
        yield Wanted("ctx_size", slots * context)
    elif "max_model_len" in server.rows or settings.longest is not None:
        yield Wanted("max_model_len", context, pinned=not (limited or allots))
    told = settings.sequences is not None or allots
    if told or reserve.sequences:
        ranks = ranks_together(server.profile, "max_num_seqs", settings.parallel)
        most = slots if allots else (settings.sequences or reserve.sequences) * ranks
        yield Wanted("max_num_seqs", most, pinned=not told)
    tokens, told = scenario.settings.pass_tokens, scenario.settings.pass_tokens is not None
    if told or (reserve.tokens and not allots):
        least = context if scenario.model.task == "encode" else 0  # which takes its prompts whole
        ranks = ranks_together(server.profile, "max_num_batched_tokens", settings.parallel)
        most = (tokens or max(reserve.tokens or 0, least)) * ranks
        yield Wanted("max_num_batched_tokens", most, pinned=not told and ranks == 1)  # its default is of all ranks
    yield from (Wanted(setting, value) for setting, value in settings.prompt_steps.items())
    if settings.utilization is not None or (reserve.utilization < 1 and not allots):
        yield Wanted("gpu_memory_utilization", float(reserve.utilization), pinned=settings.utilization is None)


def _places(scenario: Scenario, server: Server) -> Iterator[Wanted]:
    """Weights, tables and layers that are kept or computed outside of the devices, and unequal shares of devices."""
    settings, model = scenario.settings, scenario.model
    if settings.offload.kv:
        raise RooflineError(
            f"{server.title} does not stream the KV cache from CPU memory: omit kv", options=["offload"]
        )
    if settings.offload.weights:
        if "offload" not in server.rows:
            raise RooflineError(f"{server.title} does not stream weights from CPU memory", options=["offload"])
        from roofline.scenario.analysis import analyze

        left = analyze(scenario).memory.weights
        share = settings.offload.weights
        if share == 1:
            raise RooflineError(
                "an engine keeps some of the weights on its device: weights below 1", options=["offload"]
            )
        yield Wanted("offload", round(left * share / (1 - share) / GIB, 1))
    usual = 1.0 if scenario.profile.memory.tables == "cpu" else 0.0
    if settings.offload.tables not in (None, usual):
        if settings.offload.tables not in (0, 1) or "tables" not in server.rows:
            raise RooflineError(f"{server.title} has no option for this place of n-gram tables", options=["offload"])
        yield Wanted("tables", f"{settings.offload.tables:g}")
    if settings.mixed:
        shares = [stage.held for stage in settings.mixed for _ in range(stage.devices)]
        if any(stage.tensor for stage in settings.mixed):
            raise RooflineError(f"{server.title} has no stages of unequal tensor parallelism: HexGen's own engine does")
        yield Wanted("tensor_split", ",".join(f"{share:.3g}" for share in shares))
    elif settings.host is not None:
        on_cpu = round(settings.host.work * model.layers)
        if settings.host.part is Part.ALL:
            yield Wanted("n_gpu_layers", model.layers - on_cpu)
        else:
            yield Wanted("experts_on_cpu", on_cpu)
    elif server.name == "llama.cpp" and scenario.hardware.kind == "gpu":
        yield Wanted("n_gpu_layers", model.layers + 1, pinned=True)  # it counts the output head as a layer
    if server.name == "llama.cpp" and scenario.hardware.kind == "cpu" and scenario.hardware.units:
        yield Wanted("threads", int(scenario.hardware.units))


def _switches(scenario: Scenario) -> Iterator[Wanted]:
    """Modes of execution that a scenario switches on, and the room for its adapters."""
    settings = scenario.settings
    if settings.eager:
        yield Wanted("enforce_eager", True)
    if scenario.given("flash") is not None:
        yield Wanted("flash", scenario.given("flash"))
    if scenario.model.task == "encode" and scenario.model.vocabulary:
        yield Wanted("pooling", True)
    if settings.towers == "data":
        yield Wanted("mm_encoder_tp_mode", "data")
    for adapter in (each for each in settings.rewrites if isinstance(each, Adapter)):
        yield Wanted("lora_rank", adapter.allotted or adapter.rank)
        yield Wanted("lora_slots", adapter.slots or adapter.adapters)
    if settings.two_batch_overlap:
        yield Wanted("two_batch_overlap", True)
    if settings.chunk is not None:
        yield Wanted("chunked_prefill", True, pinned=True)


def machines_of(scenario: Scenario) -> int:
    """The machines of a server, each of which is told its rank: nodes, and the trays of a rack that is one node.

    Engines place equally many ranks on each, so that of 12 devices in nodes of 8 three machines have 4: on two, a group
    of 4 tensor-parallel ranks would be cut. Trays of one rack have its links between them: there groups may be cut, and
    replicas of 12 devices take three trays of 4, not four of 3.
    """
    spread = scenario.settings.parallel.on(scenario.hardware)
    fewest, devices = max(spread.nodes or 1, scenario.hardware.machines(spread.devices)), spread.devices
    shares = ((count, devices // count) for count in range(fewest, devices + 1) if devices % count == 0)
    rack = (spread.nodes or 1) == 1
    whole = (count for count, each in shares if rack or each % spread.tensor == 0 or spread.tensor % each == 0)
    return next(whole, fewest)


def servers_of(scenario: Scenario) -> tuple[Scenario, int]:
    """The scenario of one server, and how many there are.

    Replicas are servers of their own on several machines, where each has all experts, and where the engine has no
    option for data parallelism; dense replicas of one machine are otherwise the data-parallel ranks of one server.
    """
    name = scenario.profile.name
    ranks = name not in SERVERS or "dp" in server_of(name).rows
    if ranks and not scenario.model.experts and machines_of(scenario) == 1:
        return scenario, 1
    found = one_replica(scenario)
    return found, scenario.settings.parallel.data // found.settings.parallel.data


def one_replica(scenario: Scenario) -> Scenario:
    """One of the replicas that share no experts."""
    parallel = scenario.settings.parallel
    if parallel.data == 1 or parallel.expert > 1 or not scenario.asked:
        return scenario
    degrees: dict[str, Any] = {"tp": parallel.tensor, "pp": parallel.pipeline, "dp": None, "ep": None}
    return scenario.with_(hw=scenario.hardware_name, network=scenario.given("network"), **degrees)  # with its servers
