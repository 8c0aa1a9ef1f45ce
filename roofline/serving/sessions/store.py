"""Where the KV cache of a deployment is: the pool of the devices, the tiers below it, and how the engine evicts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.memory import kv_bytes_per_token
from roofline.core.errors import RooflineError
from roofline.serving.replica import UNLIMITED, Replica
from roofline.serving.sessions.cache import Level
from roofline.serving.sessions.tiers import Tier

WHOLE = frozenset({"sglang"})
"""Engines that evict the nodes of their prefix tree whole (sglang/srt/mem_cache/radix_cache.py, `evict`)."""

LEAVING = frozenset({"vllm"})
"""Engines whose blocks of a window, as they leave it, go to the end of the order of eviction with those of other layers
(vllm/v1/core/block_pool.py, `free_blocks`; single_type_kv_cache_manager.py, `remove_skipped_blocks`)."""

PAGES: Mapping[str, int] = {"sglang": 64, "tensorrt-llm": 32}
"""Tokens of a block of the prefix cache, where it is not that of the engine's memory settings: the page size that
SGLang has for MLA and on Blackwell, and TensorRT-LLM's tokens_per_block."""


class Store(Struct, frozen=True):
    """The KV cache of a replica: `tokens` of its pool in blocks of `block`, and `tiers` below.

    A token takes `token_bytes`, of which the devices of a rank hold `copies`: latents are whole on each. `whole` nodes
    are evicted, those of lower `priority` before the shared prefixes. Of a model with recurrent states or windows, a
    snapshot of them takes as much as `snapshot` tokens; there is one at ends of prompts and outputs, and after `every`
    computed tokens (0: none). For each that is computed or generated windows leave as much as `left` tokens, which take
    room until they are the oldest. A running request takes as much as `own` tokens beside its own, unless a pool of
    their own has `states` of them, `slots` for each.
    """

    tokens: float
    block: int
    token_bytes: float
    tiers: tuple[Tier, ...] = ()
    whole: bool = False
    priority: int = 0
    snapshot: float = 0.0
    every: int = 0
    left: float = 0.0
    own: float = 0.0
    states: int | None = None
    slots: int = 1
    copies: float = 1.0

    @property
    def levels(self) -> list[Level]:
        """Each tier, with tokens for blocks."""
        return [
            Level((each.bytes or math.inf) / self.stored(each), each.write, each.outputs, each.full == "refuse")
            for each in self.tiers
        ]

    def stored(self, tier: Tier) -> float:
        """Bytes of a token in a tier."""
        return self.token_bytes * (self.copies if tier.stored == "ranks" else 1)

    def read(self, tier: Tier) -> float:
        """Bytes that a token takes over the link of a tier."""
        return self.token_bytes * (self.copies if tier.read == "ranks" else 1)


def store_of(replica: Replica, tiers: tuple[Tier, ...] = (), pool: float | None = None, length: int = 1) -> Store:
    """The KV cache of a replica; `pool` are the tokens of its devices as the engine prints them, or those that fit.

    A token in a tier is one of sequences of a `length`.

    Raises RooflineError for a model without a KV cache.
    """
    scenario = replica.steps.scenario
    engine, model, formats = scenario.profile, scenario.model, scenario.run_precision
    bytes_ = kv_bytes_per_token(model, formats, length=length)
    if not bytes_ or replica.kv_tokens >= UNLIMITED:
        raise RooflineError(f"{model.name} has no KV cache of which sessions could share a prefix")
    name = engine.name.split()[0].lower()
    block, whole = PAGES.get(name, engine.memory.on(scenario.hardware).block), name in WHOLE
    capacity = replica.capacity
    spread = scenario.settings.parallel
    each = kv_bytes_per_token(model, formats, spread, length=length)
    copies = max(each * spread.devices / replica.data / bytes_, 1.0)
    if capacity is None or capacity.held.even or not capacity.held.tokens:
        tokens = pool or float(replica.kv_tokens)
        sized = tuple(tier.sized(tokens * bytes_ * copies) for tier in tiers)
        return Store(tokens, block, bytes_, sized, whole, copies=copies)
    held = capacity.held
    scale = pool / replica.logged if pool and replica.logged else 1.0
    devices = kv_bytes_per_token(model, formats) / kv_bytes_per_token(model, formats, spread)
    cache, snapshot = capacity.cache * scale * replica.data, held.snapshot / held.tokens
    bytes_ = held.tokens * devices
    sized = tuple(tier.sized(cache * devices * copies) for tier in tiers)
    shared = Store(cache / held.tokens, max(block, held.block), bytes_, sized, whole, snapshot=snapshot, copies=copies)
    if whole:
        shared = replace(shared, every=int(replica.budget))
    if name in LEAVING and held.page:  # of layers in groups that share the blocks
        shared = replace(shared, left=sum(size for _, size in held.windows) / held.tokens)
    if not capacity.apart:
        return replace(shared, own=held.fixed / held.tokens)
    states = int(capacity.apart * cache / held.state)
    return replace(shared, tokens=(1 - capacity.apart) * shared.tokens, states=states, slots=capacity.slots)
