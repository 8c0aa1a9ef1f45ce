"""KV cache capacity: the tokens that fit in a serving engine's KV cache.

    KV cache = utilisation * visible memory - weights - activations of a profiling pass - CUDA context

and tokens = KV cache / bytes per token, in whole blocks, all on one rank. The engine's settings are a `Reserve`.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.memory import kv_bytes_per_token
from roofline.core.errors import RooflineError
from roofline.graph.parallel import SINGLE, Parallelism
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.scenario.schedule import Settings
from roofline.specs.checkpoint import precision_of
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import Precision

GIB = 2.0**30

NOMINAL_SHARE = 0.99
"""CUDA reports 0.99 n GiB for a card of nominally n GB: 79.15 to 79.22 of 80, 47.54 of 48, 23.58 to 23.69 of 24.

Source: `total_gpu_memory` in vLLM's profiling logs (vLLM pull requests 10511, 10909, 12126 and 14447).
"""

ECC_SHARE = 15 / 16
"""Usable fraction of GDDR6 with in-band ECC (44.5 of an L40S's 48 GiB)."""

ECC_CARDS = frozenset({"a10", "a40", "l4", "l40", "l40s", "t4"})
"""GDDR6 cards with ECC on by default."""

SAMPLER_BYTES = 41.0
"""Bytes per logit while vLLM profiles sampling: logits, sorted logits, probabilities, their cumulative sums,
log-probabilities, noise and the scattered result (fp32), indices and their copy (int64), a mask.

vLLM pull request 10511: a peak of 1.26 GiB for 256 sequences of 128,256 logits.
"""


class Reserve(Struct, frozen=True):
    """A serving engine's memory settings, which determine the size of its KV cache.

    `utilisation`: usable fraction of device memory (gpu_memory_utilization). `block`: tokens per KV cache block.
    `tokens`, `sequences`: tokens (None: the maximum context, at least 2048) and sampled sequences of the profiling
    pass. `context`: bytes of CUDA context and library workspaces on a single device; `group_context`: the same with
    NCCL buffers. `profiles`: whether activations count against `utilisation`. `of_rest`: whether `utilisation` is a
    fraction of the memory left beside weights, activations and context. The defaults of both contexts are from vLLM's
    logs, which report 0.2 to 1.8 GiB on one device and 2 to 3.6 GiB on several.
    """

    utilisation: float = 0.9
    block: int = 16
    tokens: int | None = None
    sequences: int = 256
    context: float = 0.6 * GIB
    group_context: float = 2.0 * GIB
    profiles: bool = True
    of_rest: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.utilisation <= 1:
            raise RooflineError(f"the memory utilisation must be above 0 and at most 1, got {self.utilisation}")
        for name in ("block", "sequences", *(() if self.tokens is None else ("tokens",))):
            if getattr(self, name) < 1:
                raise RooflineError(f"{name} must be at least 1, got {getattr(self, name)}")


VLLM_V0 = Reserve()
"""vLLM V0 (2023 to early 2025): gpu_memory_utilization 0.9, blocks of 16, 256 sequences (EngineArgs)."""

SGLANG = Reserve(utilisation=0.88, block=1, profiles=False)
"""SGLang: mem_fraction_static holds weights and KV cache, activations use the rest (its server arguments, 2025)."""

TENSORRT_LLM = Reserve(block=64, tokens=8192, sequences=1, of_rest=True)
"""TensorRT-LLM: 0.9 of the free memory after the model is loaded (kv_cache_free_gpu_mem_fraction, 2024)."""

LONGEST_WHOLE = 32768
"""The longest context that vLLM V0 profiled as one prompt, in tokens; beyond, it profiled chunks of 2048."""

LARGE_DEVICE = 70 * GIB


def vllm_v1(hardware: Hardware) -> Reserve:
    """vLLM V1 as a server: 8192 tokens and 1024 sequences on large devices except A100, else 2048 and 256.

    Source: `EngineArgs.get_batch_defaults` of vLLM 0.10 and later.
    """
    if visible_memory(hardware) >= LARGE_DEVICE and not hardware.name.startswith("a100"):
        return Reserve(tokens=8192, sequences=1024)
    return Reserve(tokens=2048, sequences=256)


class Capacity(Struct, frozen=True):
    """The memory of one rank in bytes, and the tokens that fit in its KV cache.

    The engine may use `budget` of the `visible` memory, and gives the fraction `share` of the remainder to the KV
    cache. A negative `cache` is the missing memory; `tokens` is then 0. For a model without KV cache `bytes_per_token`
    is 0 and `tokens` None.
    """

    visible: float
    budget: float
    weights: float
    activations: float
    context: float
    bytes_per_token: float
    block: int
    share: float = 1.0

    @property
    def cache(self) -> float:
        """Bytes left for the KV cache."""
        return self.share * (self.budget - self.weights - self.activations - self.context)

    @property
    def tokens(self) -> int | None:
        """Tokens that fit, in whole blocks."""
        if self.bytes_per_token == 0:
            return None
        return max(0, int(self.cache / (self.bytes_per_token * self.block))) * self.block


def visible_memory(hardware: Hardware) -> float:
    """Device memory that a program can allocate, in bytes: from the spec, or the usual fraction of nominal memory."""
    if hardware.memory_visible is not None:
        return hardware.memory_visible
    if hardware.vendor != "NVIDIA" or hardware.kind != "gpu":
        return hardware.memory_capacity
    share = NOMINAL_SHARE * (ECC_SHARE if hardware.name in ECC_CARDS else 1.0)
    return share * hardware.memory_capacity / 1e9 * GIB


def profiling_tokens(model: Model, reserve: Reserve) -> int:
    """Tokens of the engine's profiling pass."""
    if reserve.tokens is not None:
        return reserve.tokens
    longest = max(model.max_context or 2048, 2048)
    return longest if longest <= LONGEST_WHOLE else 2048


@lru_cache(maxsize=256)
def kv_capacity(
    model: Model,
    hardware: Hardware,
    precision: Precision | None = None,
    parallel: Parallelism = SINGLE,
    reserve: Reserve = VLLM_V0,
) -> Capacity:
    """The KV cache capacity of each rank, and the use of the rest of its memory.

    Activations are the larger peak of the profiling pass and of its sampler over the whole vocabulary. Raises
    RooflineError where the parallelism does not divide the model.

    >>> from roofline import load_hardware, load_model
    >>> kv_capacity(load_model("llama-3-8b"), load_hardware("h100-sxm")).tokens
    446192
    """
    chosen = precision or precision_of(model, hardware)
    tokens = profiling_tokens(model, reserve)
    settings = Settings(parallel=replace(parallel, micro_batches=1))
    scenario = Scenario(
        model, hardware, batch=parallel.data, prompt=tokens, generate=1, precision=chosen, settings=settings
    )
    memory = analyze(scenario).memory
    sampled = reserve.sequences * model.vocabulary * SAMPLER_BYTES
    activations = max(float(memory.activation_peak), sampled) if reserve.profiles else 0.0
    visible = visible_memory(hardware)
    return Capacity(
        visible=visible,
        budget=visible if reserve.of_rest else reserve.utilisation * visible,
        weights=memory.weights,
        activations=activations,
        context=reserve.group_context if parallel.devices > 1 else reserve.context,
        bytes_per_token=kv_bytes_per_token(model, chosen, parallel),
        block=reserve.block,
        share=reserve.utilisation if reserve.of_rest else 1.0,
    )


def waves(batch: int, length: int, capacity: Capacity) -> tuple[int, ...]:
    """The consecutive batch sizes of `batch` sequences of `length` tokens, limited by the KV cache capacity.

    Sequences of one length end together and free the whole cache. Raises RooflineError where not even one fits.

    >>> waves(10, 100, Capacity(0, 1024, 0, 0, 0, 2.0, 16))
    (4, 4, 2)
    """
    if capacity.tokens is None:
        return (batch,)
    blocks = -(-length // capacity.block)
    at_once = capacity.tokens // (blocks * capacity.block)
    if at_once < 1:
        raise RooflineError(
            f"no sequence of {length} tokens fits beside the model: the KV cache has room for {capacity.tokens} tokens"
        )
    full, rest = divmod(batch, at_once)
    return (at_once,) * full + ((rest,) if rest else ())
