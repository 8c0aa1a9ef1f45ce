"""Where the KV cache of a deployment is: the pool of the devices, the tiers below it, and how the engine evicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from roofline.bound.memory import kv_bytes_per_token
from roofline.core.errors import RooflineError
from roofline.serving.replica import UNLIMITED, Replica
from roofline.serving.sessions.tiers import Tier

WHOLE = frozenset({"sglang"})
"""Engines that evict the nodes of their prefix tree whole (sglang/srt/mem_cache/radix_cache.py, `evict`)."""

PAGES: Mapping[str, int] = {"sglang": 64, "tensorrt-llm": 32}
"""Tokens of a block of the prefix cache, where it is not that of the engine's memory settings: the page size that
SGLang has for MLA and on Blackwell, and TensorRT-LLM's tokens_per_block."""


class _Level(NamedTuple):
    tokens: float
    through: bool


class Store(Struct, frozen=True):
    """The KV cache of a replica: `tokens` of its pool in blocks of `block`, and `tiers` below.

    A token takes `token_bytes` in a tier, of all devices together. `whole` nodes are evicted, those of lower `priority`
    before the shared prefixes.
    """

    tokens: float
    block: int
    token_bytes: float
    tiers: tuple[Tier, ...] = ()
    whole: bool = False
    priority: int = 0

    @property
    def levels(self) -> list[_Level]:
        """Tokens of each tier, and whether it takes copies."""
        return [
            _Level(float("inf") if tier.bytes is None else tier.bytes / self.token_bytes, tier.write == "through")
            for tier in self.tiers
        ]


def store_of(replica: Replica, tiers: tuple[Tier, ...] = (), pool: float | None = None, length: int = 1) -> Store:
    """The KV cache of a replica; `pool` are the tokens of its devices, by default those that fit.

    A token in a tier is one of sequences of a `length`: of more than a window those layers hold no more.

    Raises RooflineError for a model without a KV cache.
    """
    scenario = replica.steps.scenario
    engine = scenario.profile
    bytes_ = kv_bytes_per_token(scenario.model, scenario.run_precision, length=length)
    if not bytes_ or replica.kv_tokens >= UNLIMITED:
        raise RooflineError(f"{scenario.model.name} has no KV cache of which sessions could share a prefix")
    name = engine.name.split()[0].lower()
    block = PAGES.get(name, engine.memory.on(scenario.hardware).block)
    return Store(pool or float(replica.kv_tokens), block, bytes_, tiers, name in WHOLE)
