"""What the scripts of serving benchmarks set of an engine's scheduler, beyond its defaults.

InferenceX (lengths drawn from 0.8 to 1 of those written) gives TensorRT-LLM a budget of a prompt and a token for each
request in flight, but at least 8,192 (Llama: 16,384), and with data-parallel attention 60 steps to wait for a
prompt on every rank. With 1024 to 1024 tokens, prompts of Llama on fewer than 8 devices wait 20 steps to fill one, and
those of DeepSeek in FP8 on Blackwell 40, since 1.2 and from 64 requests in flight.
With drafts, its budget is a prompt and the tokens that a step verifies; that of gpt-oss is 20,000. SGLang has chunks of
32,768 tokens (16,384 of DeepSeek in FP4, of Qwen3.5 and of other models on Hopper, 8,192 of GLM there), and looks on
Blackwell for new requests every 10 steps, from 16 in flight on every 30 (GLM: every 10, in FP8 every one). vLLM has a
budget of two prompts of MiniMax, Kimi in FP4 and DeepSeek-V4 on Blackwell since 0.19, and captures graphs of steps of
up to 2,048 tokens of them and of gpt-oss.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from roofline.scenario.scenario import Scenario
from roofline.serving.load import Load
from roofline.specs.engine import Engine, load_engine
from roofline.specs.precision import Precision
from roofline.specs.scheduler import Scheduler

NEWEST = (1_000_000_000,)
"""Above the numbers of all versions."""

NODE = 8
"""Devices of a node, of which most rows have one."""

BALANCE, GATHER_LLAMA, GATHER_DEEPSEEK = 60, 20, 40
"""Steps that TensorRT-LLM waits for a prompt on every rank (timeout_iters in InferenceX's scripts), and for further
prompts of Llama, and of DeepSeek in FP8 from MANY in flight (batch_wait_timeout_iters)."""

MANY, GATHERS = 64, (1, 2)
"""Requests in flight, and version, from which prompts of DeepSeek in FP8 on Blackwell wait for others."""

STREAM: Mapping[str, int] = MappingProxyType({"deepseek": 10, "gpt-oss": 20})
"""Steps between messages to the client by a model's family (stream_interval in InferenceX's scripts)."""

FIRST_AT_ONCE = (1, 2)
"""Version of TensorRT-LLM from which the first token does not wait for others (from the TTFT of its rows)."""

MARLIN: Mapping[str, str] = MappingProxyType({"w4a16_mxfp4": "w4a16_mxfp4"})
"""vLLM's kernel of MXFP4 experts (VLLM_MXFP4_USE_MARLIN in InferenceX's scripts of gpt-oss on Hopper)."""

CHUNKS, FEWER_CHUNKS, LEAST_CHUNKS, GPT_OSS_BUDGET = 32768, 16384, 8192, 20000
"""Tokens of SGLang's prompts in a step (chunked-prefill-size), and TensorRT-LLM's max_num_tokens of gpt-oss
(InferenceX's scripts)."""

AMD_CHUNKS = 196608
"""Tokens of SGLang's prompts in a step on AMD's devices (chunked-prefill-size in InferenceX's scripts). Their
num-continuous-decode-steps of 4 delay no prompt: TTFT on MI325X errs by 30% without such a delay, by 36% with it."""

TWO_PROMPTS, CAPTURED, SINCE = ("minimax", "kimi", "deepseek-v4"), 2048, (0, 19)
"""Models of which vLLM's budget is two prompts on Blackwell (max-num-batched-tokens) since this version, and the tokens
of a step up to which it captures CUDA graphs then, and of gpt-oss (InferenceX's max-cudagraph-capture-size)."""

AGENTS: Mapping[str, Scheduler] = MappingProxyType(
    {"sglang": Scheduler(tokens=8192, pause=20), "vllm": Scheduler(tokens=8192, pause=7, piece=512)}
)
"""Policies of DeepSeek-V4 with data-parallel attention on Blackwell in AgentX's scripts since August 2026
(benchmarks/single_node/agentic, dsv4_fp4_b300_sglang_mtp.sh: prefill-decode-interval, and dsv4_fp4_b200_vllm_mtp.sh:
prefill-schedule-interval 8, long-prefill-token-threshold). That of GLM with SGLang has CHUNKS for all ranks together
(glm5.2_fp4_b300_sglang.sh)."""

RESERVED = 0.82
"""Fraction of a device's memory for SGLang's weights and KV cache (mem-fraction-static in InferenceX's scripts: 0.82 of
DeepSeek in FP8, 0.8 to 0.85 of others)."""

AGENTS_RESERVED: Mapping[str, tuple[tuple[float, float], tuple[float, float]]] = MappingProxyType(
    {
        "deepseek b200": ((0.9, 0.1), (0.9, 0.02)),
        "deepseek b300": ((0.88, 0.1), (0.93, 0.075)),
        "glm b200": ((0.83, 1.0), (0.83, 1.0)),
        "glm b300": ((0.85, 1.0), (0.85, 1.0)),
    }
)
"""The same in AgentX's scripts by family and device, with the tokens of windows over those of other layers, and both
with attention on data-parallel ranks (mem-fraction-static and swa-full-tokens-ratio in benchmarks/single_node/agentic,
dsv4_fp4_*_sglang_mtp.sh and glm5.2_fp4_*_sglang*.sh)."""

SHORT, LLAMA_BUDGET, LEAST_BUDGET = 1024, 16384, 8192
"""Tokens of prompts and outputs of which prompts of Llama wait for others, and of the budget of Llama and the smallest
of other models (InferenceX's scripts)."""


def profile_of(name: str, precision: Precision) -> Engine:
    """The profile of an engine: vLLM runs Marlin's experts of MXFP4, and SGLang has less memory than by default."""
    engine = load_engine(name)
    if engine.name == "sglang":
        return replace(engine, memory=replace(engine.memory, utilization=RESERVED))
    if engine.name == "vllm" and precision.weights.name == "mxfp4":
        return replace(load_engine("vllm"), expert_kernels=MARLIN)
    return engine


def scheduler_of(policy: Scheduler, scenario: Scenario, load: Load, concurrency: int, version: str) -> Scheduler:
    """The engine's policy, with what a benchmark's scripts set."""
    engine = scenario.profile.name
    if engine == "tensorrt-llm":
        return _tensorrt_llm(policy, scenario, load, concurrency, version)
    return _sglang(policy, scenario, concurrency) if engine == "sglang" else _vllm(policy, scenario, load, version)


def _sglang(policy: Scheduler, scenario: Scenario, concurrency: int) -> Scheduler:
    name, hopper = scenario.model.name, scenario.hardware.family == "hopper"
    if scenario.hardware.vendor == "AMD":
        return replace(policy, tokens=AMD_CHUNKS)
    fp4 = scenario.run_precision.weights.name.startswith("nvfp4")
    poll = 1 if hopper else 10 if concurrency < 16 else 30
    if name.startswith("glm"):
        return replace(policy, tokens=LEAST_CHUNKS if hopper else CHUNKS, poll=10 if fp4 else 1)
    if name.startswith("deepseek"):
        return replace(policy, tokens=FEWER_CHUNKS if fp4 else CHUNKS, poll=poll)
    return replace(policy, tokens=FEWER_CHUNKS if hopper or name.startswith("qwen3.5") else CHUNKS, poll=poll)


def _vllm(policy: Scheduler, scenario: Scenario, load: Load, version: str) -> Scheduler:
    name, weights = scenario.model.name, scenario.run_precision.weights.name
    if name.startswith("gpt-oss"):
        return replace(policy, captured=CAPTURED)
    blackwell = scenario.hardware.family == "blackwell"
    if not name.startswith(TWO_PROMPTS) or not blackwell or "int4" in weights or numbers(version) < SINCE:
        return policy
    return replace(policy, tokens=2 * int(load.prompts.quantile(1.0)), captured=CAPTURED)


def agents_profile_of(scenario: Scenario) -> Engine:
    """The engine's profile, with the memory and the policy that AgentX's scripts set."""
    engine, names = scenario.profile, (scenario.model.name, scenario.hardware.name)
    stated = AGENTS_RESERVED.get(" ".join(name.split("-")[0] for name in names))
    if engine.name == "sglang" and stated is not None:
        part, share = stated[scenario.settings.parallel.data > 1]
        engine = replace(engine, memory=replace(engine.memory, utilization=part, window_shares=(("", share),)))
    return replace(engine, scheduler=_agents_scheduler(engine.scheduler, scenario))


def _agents_scheduler(policy: Scheduler, scenario: Scenario) -> Scheduler:
    """The engine's policy, with what the scripts set with data-parallel attention."""
    name, ranks = scenario.model.name, scenario.settings.parallel.data
    if ranks == 1:
        return policy
    if scenario.profile.name == "sglang" and name.startswith("glm"):
        return replace(policy, tokens=CHUNKS // ranks)
    own = AGENTS.get(scenario.profile.name)
    if own is None or not name.startswith("deepseek-v4") or scenario.hardware.family != "blackwell":
        return policy
    return replace(policy, tokens=own.tokens, pause=own.pause, piece=own.piece)


def numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version; none of a build without one, and NEWEST of one that is not stated."""
    if not version:
        return NEWEST
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version)[:3]) if version[:1].isdigit() else ()


def _tensorrt_llm(policy: Scheduler, scenario: Scenario, load: Load, concurrency: int, version: str) -> Scheduler:
    model, parallel = scenario.model, scenario.settings.parallel
    prompt, output = load.prompts.quantile(1.0), load.outputs.quantile(1.0)
    if model.name.startswith("llama"):
        short = max(prompt, output) <= SHORT and parallel.tensor < NODE
        return replace(policy, tokens=LLAMA_BUDGET, gather=GATHER_LLAMA if short else 0)
    drafts = scenario.settings.speculation
    decoded = concurrency if drafts is None else (drafts.verified + 1) * concurrency / parallel.data
    budget = -(-int(decoded + prompt + 64) // 64) * 64
    if drafts is None:
        budget = GPT_OSS_BUDGET if model.name.startswith("gpt-oss") else max(budget, LEAST_BUDGET)
    stream = next((steps for name, steps in STREAM.items() if model.name.startswith(name)), 1)
    stream = stream if numbers(version) < FIRST_AT_ONCE else 1
    waits = scenario.run_precision.weights.name == "fp8_block" and scenario.hardware.family == "blackwell"
    waits = waits and numbers(version) >= GATHERS and max(prompt, output) <= SHORT and concurrency >= MANY
    gather = BALANCE if parallel.data > 1 else GATHER_DEEPSEEK if waits and drafts is None else 0
    return replace(policy, tokens=budget, stream=stream, gather=gather)
