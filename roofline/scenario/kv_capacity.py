"""KV cache capacity: how many tokens of cache a serving engine finds room for.

    cache = utilisation * visible memory - weights - activations of a profiling pass - runtime context

and tokens = cache / bytes a token, in whole blocks. Weights, activations and bytes a token are those of one rank. What
the engine sets is a `Reserve`, each of its numbers with its source.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.memory import kept_bytes
from roofline.core.errors import RooflineError
from roofline.graph.extents import Step
from roofline.graph.network import Build, network
from roofline.graph.parallel import SINGLE, Parallelism, stages
from roofline.graph.tensor import Role
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.scenario.schedule import Settings
from roofline.specs.checkpoint import precision_of
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import Precision

GIB = 2.0**30

NOMINAL_SHARE = 0.99
"""Of a card sold as n GB, CUDA reports 0.99 n GiB: 79.15 to 79.22 of 80, 47.54 of 48, 23.58 to 23.69 of 24.

As vLLM prints them when it profiles (`total_gpu_memory`; vLLM pull requests 10511, 10909, 12126 and 14447).
"""

ECC_SHARE = 15 / 16
"""What error correction leaves of GDDR6, which keeps its check bits in the memory itself (44.5 of an L40S's 48)."""

ECC_CARDS = frozenset({"a10", "a40", "l4", "l40", "l40s", "t4"})
"""Cards of GDDR6 that come with error correction on."""

SAMPLER_BYTES = 41.0
"""Bytes of an entry of the logits while vLLM profiles sampling: logits, sorted logits, probabilities, their sums,
log-probabilities, noise and what is scattered back (fp32), positions and their copy (int64), a mask.

vLLM pull request 10511: a peak of 1.26 GiB for 256 sequences of 128,256 entries.
"""


class Reserve(Struct, frozen=True):
    """What a serving engine sets before it gives the rest of the memory to the cache.

    `utilisation`: share of the device's memory it may use. `block`: tokens that are allocated at a time. `tokens`: of
    the profiling pass (None: the longest context, at least 2048). `sequences`: sampled at once there. `context`: bytes
    of the runtime on one device (the CUDA context and the libraries' workspaces), and `group_context` where ranks
    communicate (NCCL's buffers beside them). `profiles`: whether activations are taken from the share, or from what it
    leaves. `of_rest`: whether `utilisation` is a share of what is left beside weights, activations and context, and not
    of the device. The defaults of both contexts are read from vLLM's own reports, which lie at 0.2 to 1.8 GiB on one
    device and 2 to 3.6 GiB on several.
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
            raise RooflineError(f"the share of memory to use must be above 0 and at most 1, got {self.utilisation}")
        for name in ("block", "sequences", *(() if self.tokens is None else ("tokens",))):
            if getattr(self, name) < 1:
                raise RooflineError(f"{name} must be at least 1, got {getattr(self, name)}")


VLLM_0 = Reserve()
"""vLLM's first engine (2023 to early 2025): gpu_memory_utilization 0.9, blocks of 16, 256 sequences (EngineArgs)."""

SGLANG = Reserve(utilisation=0.88, block=1, profiles=False)
"""SGLang: mem_fraction_static holds weights and cache, activations live in the rest (its server arguments, 2025)."""

TENSORRT_LLM = Reserve(block=64, tokens=8192, sequences=1, of_rest=True)
"""TensorRT-LLM: the cache takes 0.9 of what is free once the model is loaded (kv_cache_free_gpu_mem_fraction, 2024)."""

LONGEST_WHOLE = 32768
"""Tokens of context up to which vLLM's first engine profiled a whole prompt; longer ones it cut into chunks of 2048."""

LARGE_DEVICE = 70 * GIB


def vllm_1(hardware: Hardware) -> Reserve:
    """vLLM's second engine as a server: 8192 tokens and 1024 sequences on large devices but A100, else 2048 and 256.

    Source: `EngineArgs.get_batch_defaults` of vLLM 0.10 and later.
    """
    if visible_memory(hardware) >= LARGE_DEVICE and not hardware.name.startswith("a100"):
        return Reserve(tokens=8192, sequences=1024)
    return Reserve(tokens=2048, sequences=256)


class Capacity(Struct, frozen=True):
    """Where the memory of one rank goes, in bytes, and the tokens of cache that fit.

    The engine may use `budget` of the `visible` memory, and give the cache `share` of what is left. `cache` is negative
    by what is missing where nothing is left; `tokens` is then 0. `bytes_per_token` is 0 for a model
    that keeps no cache, and `tokens` None.
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
        """Bytes left for the cache."""
        return self.share * (self.budget - self.weights - self.activations - self.context)

    @property
    def tokens(self) -> int | None:
        """Tokens of cache that fit, in whole blocks."""
        if self.bytes_per_token == 0:
            return None
        return max(0, int(self.cache / (self.bytes_per_token * self.block))) * self.block


def visible_memory(hardware: Hardware) -> float:
    """Bytes that a program finds on the device: what its spec says, or the usual share of what it is sold as."""
    if hardware.memory_visible is not None:
        return hardware.memory_visible
    if hardware.vendor != "NVIDIA" or hardware.kind != "gpu":
        return hardware.memory_capacity
    share = NOMINAL_SHARE * (ECC_SHARE if hardware.name in ECC_CARDS else 1.0)
    return share * hardware.memory_capacity / 1e9 * GIB


def token_bytes(model: Model, precision: Precision, parallel: Parallelism = SINGLE) -> float:
    """Bytes that a token of a sequence adds to the cache of the fullest rank, as long as no window drops older ones."""
    layers = stages(model, parallel.pipeline) if parallel.pipeline > 1 else ()
    graph = network(model, precision, Build(("attention",), parallel=parallel, decode=model.latent))
    return float(kept_bytes(graph, Role.KV, Step(1, 1, 0), layers)[0])


def profiling_tokens(model: Model, reserve: Reserve) -> int:
    """Tokens of the pass that an engine measures its activations with."""
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
    reserve: Reserve = VLLM_0,
) -> Capacity:
    """The tokens of KV cache that fit on each rank beside the model, and where the rest of the memory goes.

    Activations are the larger of two peaks: a forward pass over the profiling tokens, and the sampler's over the whole
    vocabulary. Raises RooflineError where the parallelism does not divide the model.

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
        bytes_per_token=token_bytes(model, chosen, parallel),
        block=reserve.block,
        share=reserve.utilisation if reserve.of_rest else 1.0,
    )


def waves(batch: int, length: int, found: Capacity) -> tuple[int, ...]:
    """The sizes in which a batch of sequences that grow to `length` tokens is served where it does not fit at once.

    Sequences of one length end together, so that the next ones find the whole cache free. Raises RooflineError where
    not even one fits.

    >>> waves(10, 100, Capacity(0, 1024, 0, 0, 0, 2.0, 16))
    (4, 4, 2)
    """
    if found.tokens is None:
        return (batch,)
    blocks = -(-length // found.block)
    at_once = found.tokens // (blocks * found.block)
    if at_once < 1:
        raise RooflineError(
            f"not one sequence of {length} tokens fits beside the model: {found.tokens} tokens of cache"
        )
    full, rest = divmod(batch, at_once)
    return (at_once,) * full + ((rest,) if rest else ())
