"""What the scripts of serving benchmarks set of an engine: of its scheduler by the rows of harness.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.graph.parallel import Parallelism
from roofline.scenario.scenario import Scenario
from roofline.serving.load import Load
from roofline.specs.engine import Engine, load_engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import Precision
from roofline.specs.records import bundled_record
from roofline.specs.scheduler import Scheduler
from roofline.timing.exchanges import GATHERED

NEWEST = (1_000_000_000,)
"""Above the numbers of all versions."""

SHORT = 1024
"""The most tokens of short prompts and outputs."""

MARLIN: Mapping[str, str] = MappingProxyType({"moe w4a16_mxfp4": "w4a16_mxfp4"})
"""vLLM's kernel of MXFP4 experts on Hopper (VLLM_MXFP4_USE_MARLIN in InferenceX's gptoss_fp4_h100.sh and _h200.sh);
scripts of Blackwell and AMD leave the choice to vLLM."""

FLASHINFER: Mapping[str, str] = MappingProxyType({"gemm fp8_block": "fp8_block_flashinfer"})
"""SGLang's GEMMs of DeepSeek-R1 on Blackwell, whose scripts set SGLANG_ENABLE_JIT_DEEPGEMM=false (dsr1_fp8_b200.sh,
dsr1_fp8_b300.sh and those with drafts; NVIDIA/srt-slurm, recipes/b200-fp8, and of recipes/gb200-fp8 those that are
tensor-parallel): FlashInfer's then (`_dispatch_auto_backend` in its fp8_utils.py)."""

NODE = 8
"""Devices of a node without NVLink between nodes."""

RESERVED = 0.82
"""Fraction of a device's memory for SGLang's weights and KV cache (mem-fraction-static in InferenceX's scripts: 0.82 of
DeepSeek in FP8, 0.8 to 0.85 of others)."""


class Policy(Struct, frozen=True):
    """What scripts `set` of the scheduler of an engine in some deployments, and which: see harness.yaml."""

    engine: str
    set: dict[str, int | dict[str, int] | None]
    model: tuple[str, ...] = ("",)
    vendor: str = ""
    family: str = ""
    weights: str = ""
    since: str = ""
    flight: tuple[int, int] | None = None
    devices: int | None = None
    tensor: int | None = None
    ranks: int = 1
    short: bool = False
    drafts: bool | None = None

    def fits(self, scenario: Scenario, load: Load | None, version: str) -> bool:
        """Whether the row is of a deployment under a load, or under sessions (None)."""
        hardware, parallel = scenario.hardware, scenario.settings.parallel
        flight = load.concurrency or 0 if load is not None else 0
        return (
            scenario.profile.name == self.engine
            and scenario.model.name.startswith(self.model)
            and self.vendor in ("", hardware.vendor)
            and self.family in ("", hardware.family)
            and self.weights in scenario.run_precision.weights.name
            and (not self.since or numbers(version) >= numbers(self.since))
            and (self.flight is None or self.flight[0] <= flight <= self.flight[1])
            and self.devices in (None, parallel.devices)
            and (self.tensor is None or parallel.tensor <= self.tensor)
            and parallel.data >= self.ranks
            and (not self.short or (load is not None and max(_longest(load)) <= SHORT))
            and self.drafts in (None, scenario.settings.speculation is not None)
        )


class Free(Struct, frozen=True):
    """The `share` of the memory beside TensorRT-LLM's weights that scripts give its KV cache, and where."""

    share: float
    model: tuple[str, ...] = ("",)
    family: str = ""


class Policies(Struct, frozen=True):
    """The tables of harness.yaml: of requests, of sessions, and of the memory of some engines."""

    requests: tuple[Policy, ...]
    sessions: tuple[Policy, ...]
    free: tuple[Free, ...]
    reserved: dict[str, tuple[tuple[float, float], tuple[float, float]]]


POLICIES = bundled_record(Policies, "validate/tables/harness.yaml")


def profile_of(
    name: str, precision: Precision, hardware: Hardware, model: Model, ranks: int, together: bool = True
) -> Engine:
    """The profile of an engine with the kernels and the memory that scripts ask for.

    `ranks` are those of data-parallel attention, which run DeepGEMM behind DeepEP where NVLink joins several nodes.
    `together`: the same devices prefill and decode.
    """
    engine = load_engine(name)
    if engine.name == "tensorrt-llm" and together:
        rows = (row for row in POLICIES.free if row.family in ("", hardware.family))
        share = next(row.share for row in rows if model.name.startswith(row.model))
        return replace(engine, memory=replace(engine.memory, utilization=share))
    if engine.name == "sglang":
        alone = ranks == 1 or hardware.node_devices <= NODE
        flashinfer = alone and hardware.family == "blackwell" and model.name in ("deepseek-r1", "deepseek-v3")
        told = FLASHINFER if flashinfer else engine.told
        return replace(engine, memory=replace(engine.memory, utilization=RESERVED), told=told)
    if engine.name == "vllm" and precision.weights.name == "mxfp4":
        engine = load_engine("vllm")
        return replace(engine, told=MARLIN) if hardware.family == "hopper" else engine
    return engine


def as_scripted(parallel: Parallelism, engine: str, hardware: Hardware, precision: Precision) -> Parallelism:
    """The layout of a worker, with the exchange of the experts that benchmarks set for TensorRT-LLM.

    With attention on the ranks of a node, those in FP8 on Blackwell are DeepGEMM's (InferenceX, benchmarks/single_node;
    examples/serve/deepseek_r1_reasoning_parser.sh), which gather the tokens of all ranks whatever link joins these.
    """
    within = hardware.family == "blackwell" and 1 < parallel.data <= NODE
    deepgemm = within and engine.startswith("tensorrt-llm") and precision.weights.name == "fp8_block"
    return replace(parallel, exchange=GATHERED) if deepgemm else parallel


def scheduler_of(policy: Scheduler, scenario: Scenario, load: Load | None, version: str) -> Scheduler:
    """The engine's policy, with what a benchmark's scripts set for a load of requests, or for sessions (None)."""
    found: dict[str, Any] = {}
    for row in POLICIES.sessions if load is None else POLICIES.requests:
        if row.fits(scenario, load, version):
            found = {**row.set, **found}
    if isinstance(tokens := found.get("tokens"), Mapping):
        ((kind, number),) = tokens.items()
        found["tokens"] = (
            number // scenario.settings.parallel.data if load is None else _tokens(kind, number, scenario, load)
        )
    return replace(policy, **{name: value for name, value in found.items() if value is not None})


def agents_profile_of(scenario: Scenario, version: str, other: str = "") -> Engine:
    """The engine's profile, with the memory and the policy that AgentX's scripts set, or those of an `other` engine."""
    engine, names = scenario.profile, (other, scenario.model.name, scenario.hardware.name)
    stated = POLICIES.reserved.get(" ".join(name.split("-")[0] for name in names if name))
    if engine.name == "sglang" and stated is not None:
        part, share = stated[scenario.settings.parallel.data > 1]
        engine = replace(engine, memory=replace(engine.memory, utilization=part, window_shares=(("", share),)))
    return replace(engine, scheduler=scheduler_of(engine.scheduler, scenario, None, version))


def _tokens(kind: str, number: int, scenario: Scenario, load: Load) -> int:
    """Tokens of a step: of so many prompts, or a prompt and a token for each request in flight, at least so many."""
    prompt, drafts = _longest(load)[0], scenario.settings.speculation
    if kind == "prompts":
        return number * int(prompt)
    flight = load.concurrency or 0
    decoded = flight if drafts is None else (drafts.verified + 1) * flight / scenario.settings.parallel.data
    return max(-(-int(decoded + prompt + 64) // 64) * 64, number)


def _longest(load: Load) -> tuple[float, float]:
    """The longest prompt and output."""
    return load.prompts.quantile(1.0), load.outputs.quantile(1.0)


def numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version; none of a build without one, and NEWEST of one that is not stated."""
    if not version:
        return NEWEST
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version)[:3]) if version[:1].isdigit() else ()
