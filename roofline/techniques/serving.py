"""Serving: how the cache is allocated and shared, how sequences are batched, how prompts are prefilled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roofline.core.errors import UnsupportedError
from roofline.scenario.scenario import Scenario
from roofline.specs.model import Attention, LatentAttention
from roofline.techniques.base import (
    Change,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    needs_generation,
    with_settings,
)
from roofline.techniques.entries import system_entry
from roofline.techniques.workload import cached_share

TABLE_6 = "Zhou et al. 2024, Table 6"
_SHAREGPT = "ShareGPT on one A100 80GB; model and precision not stated"
_QUEUE = "A batch is simulated, not the queue in front of it."


def _settings(needs: Callable[[Scenario, str], None], name: str, settle: Callable[[Scenario, Values], Any]) -> Change:
    """Other settings, for a model that they concern."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        needs(scenario, name)
        return with_settings(scenario, **settle(scenario, values))

    return change


def _needs_cache(scenario: Scenario, name: str) -> None:
    """Refuse a technique of the cache for a model that keeps none."""
    needs_generation(scenario, name)
    if not any(isinstance(group.layer.mixer, (Attention, LatentAttention)) for group in scenario.model.groups):
        raise UnsupportedError(f"{name} allocates a KV cache, and {scenario.model.name} keeps none")


def _needs_prompt(scenario: Scenario, name: str) -> None:
    """Refuse a technique of causal prefill for a model whose prompt an encoder reads."""
    needs_generation(scenario, name)
    if scenario.model.tower_kind == "encoder":
        raise UnsupportedError(
            f"{name} cuts prompts that are read causally, and {scenario.model.name} encodes them whole"
        )


def _nothing(_: Scenario, __: str) -> None:
    """Every model is concerned."""


def _reserved(scenario: Scenario, values: Values) -> dict[str, Any]:
    length = values["length"] or scenario.model.max_context
    if length is None:
        raise UnsupportedError(f"contiguous-kv needs length: {scenario.model.name} has no longest context")
    return {"kv_reserved": length, "kv_block": 1}


def _predicted(scenario: Scenario, values: Values) -> dict[str, Any]:
    tokens = scenario.first_cached + scenario.generate
    return {"kv_reserved": np.ceil(tokens * values["excess"]), "kv_block": 1}


ALLOCATION = (
    system_entry(
        "paged-attention",
        "The KV cache in blocks",
        "Kwon et al. 2023, vLLM",
        "the cache of a sequence is rounded up to whole blocks instead of the longest sequence possible",
        "KV allocation",
        _settings(
            _needs_cache, "paged-attention", lambda _, values: {"kv_block": values["block"], "kv_reserved": None}
        ),
        covers=("PagedAttention", "FlashInfer"),
        parameters=(Parameter("block", 16, "tokens of a block, as in vLLM", 1, 4096),),
        published=(Published("7.11 requests a second", _SHAREGPT, TABLE_6),),
        caveat="Irregular access, which costs the attention kernel something, shows in calibrated times only.",
    ),
    system_entry(
        "token-attention",
        "The KV cache token by token",
        "LightLLM 2023",
        "memory is allocated for single tokens: no fragmentation at all",
        "KV allocation",
        _settings(_needs_cache, "token-attention", lambda *_: {"kv_block": 1, "kv_reserved": None}),
        covers=("token-wise KV cache",),
        published=(Published("10.29 requests a second, the most of four systems", _SHAREGPT, TABLE_6),),
        caveat="It is what is simulated by default.",
    ),
    system_entry(
        "contiguous-kv",
        "The KV cache reserved for the longest sequence",
        "NVIDIA, FasterTransformer",
        "every sequence takes the memory of the longest one possible, however short it stays",
        "KV allocation",
        _settings(_needs_cache, "contiguous-kv", _reserved),
        covers=("contiguous pre-allocation",),
        parameters=(Parameter("length", 0, "tokens reserved; 0 stands for the model's longest context", 0, 10**9),),
        caveat="A baseline to compare with, and no gain.",
    ),
    system_entry(
        "s3",
        "The KV cache reserved for a predicted length",
        "Jin et al. 2023, S3",
        "every sequence takes the memory of the length that was predicted for it",
        "KV allocation",
        _settings(_needs_cache, "s3", _predicted),
        covers=("S³",),
        parameters=(Parameter("excess", 1.0, "tokens predicted over those needed (1: a perfect prediction)", 1, 1000),),
        caveat=f"How good a predictor is must be given. {_QUEUE}",
    ),
)


def _cached(scenario: Scenario, values: Values) -> Scenario:
    return with_settings(cached_share(scenario, values["hit"]), shared_prefix=True)


_HIT = Parameter("hit", 0.5, "share of the prompt that is cached (SGLang's paper measured 0.5 to 0.99)", 0, 1)
_SAME = "All sequences of the batch are taken to share the same prefix, which is kept once; lookups cost nothing."

PREFIX = (
    system_entry(
        "radix-attention",
        "Prefixes kept and found again",
        "Zheng et al. 2023, SGLang",
        "what a request shares with earlier ones is neither computed nor stored again: less prefill, less cache",
        "prefix",
        _cached,
        covers=("RadixAttention", "prefix caching", "prefix sharing", "prefix-caching"),
        parameters=(_HIT,),
        caveat=f"{_SAME} Which share is hit depends on the requests and is given.",
    ),
    system_entry(
        "prompt-cache",
        "Parts of prompts kept by a schema",
        "Gim et al. 2023, Prompt Cache",
        "marked parts of prompts, wherever they stand, are computed once and reused",
        "prefix",
        _cached,
        covers=("Prompt Cache",),
        parameters=(_HIT,),
        caveat=f"{_SAME} A reused part does not see what stands before it, so that outputs may differ slightly.",
    ),
    system_entry(
        "cachegen",
        "A compressed cache loaded over the network",
        "Liu et al. 2023, CacheGen",
        "the cache of a long context comes compressed over a network instead of being computed",
        "prefix",
        None,
        price=Price.LOSSY,
        caveat="its codec's ratio and the storage behind the network stand in no spec of hardware or model",
    ),
)

BATCHING = (
    system_entry(
        "continuous-batching",
        "Sequences join and leave between iterations",
        "Yu et al. 2022, Orca",
        "a finished sequence makes room for the next at once: no iteration is spent on ended sequences",
        "batching",
        _settings(needs_generation, "continuous-batching", lambda *_: {"useful": 1.0}),
        covers=(
            *("continuous batching", "ORCA", "iteration-level scheduling", "selective-batching"),
            "in-flight batching",
        ),
        caveat=f"It is what is simulated by default: a batch that stays full. {_QUEUE}",
    ),
    system_entry(
        "static-batching",
        "A batch runs until its longest sequence ends",
        "Yu et al. 2022, Orca (the baseline there)",
        "sequences that have ended still take part, so that a share of the tokens generated is of no use",
        "batching",
        _settings(
            needs_generation,
            "static-batching",
            lambda scenario, values: {"useful": scenario.settings.useful * values["utilisation"]},
        ),
        covers=("static batching", "request-level scheduling"),
        parameters=(
            Parameter("utilisation", 0.5, "mean over longest output of a batch (an example: 1 is no loss)", 1e-6, 1),
        ),
        caveat="`generate` is the longest sequence's length. A baseline to compare with, and no gain.",
    ),
    system_entry(
        "packed-batching",
        "Prompts one after the other, without padding",
        "Zhai et al. 2023, ByteTransformer",
        "prompts of different lengths are laid end to end under a block-diagonal mask: no padded tokens",
        "prompt batching",
        _settings(_nothing, "packed-batching", lambda *_: {"padding": 1.0}),
        covers=("packing", "packed prefill", "Effective Transformer", "Ragged tensor"),
        caveat="It is what is simulated by default.",
    ),
    system_entry(
        "padded-batching",
        "Prompts filled up to the longest",
        "Miao et al. 2023, section 3.2.5",
        "every prompt of a batch is computed at the longest one's length",
        "prompt batching",
        _settings(_nothing, "padded-batching", lambda _, values: {"padding": values["padding"]}),
        covers=("padding",),
        parameters=(Parameter("padding", 1.5, "longest over mean prompt of a batch (an example)", 1, 1000),),
        caveat="`prompt` is the mean length. A baseline to compare with, and no gain.",
    ),
    system_entry(
        "bucketing",
        "Batches of prompts of similar length",
        "Miao et al. 2023, section 3.2.5",
        "prompts are filled up to the end of their bucket only",
        "prompt batching",
        _settings(_nothing, "bucketing", lambda _, values: {"padding": values["padding"]}),
        parameters=(Parameter("padding", 1.1, "end of the bucket over mean prompt in it (an example)", 1, 1000),),
        caveat=f"`prompt` is the mean length. {_QUEUE}",
    ),
)

PREFILL = (
    system_entry(
        "chunked-prefill",
        "Prompts prefilled in chunks",
        "Agrawal et al. 2024, Sarathi-Serve",
        "a prompt is cut along the sequence: the same FLOPs, but every chunk reads weights and the earlier cache again",
        "prefill schedule",
        _settings(_needs_prompt, "chunked-prefill", lambda _, values: {"chunk": values["chunk"]}),
        covers=(
            *("chunked prefill", "Sarathi", "Sarathi-Serve", "split-and-fuse", "DeepSpeed-FastGen"),
            "Dynamic SplitFuse",
        ),
        parameters=(Parameter("chunk", 512, "tokens of a chunk (Sarathi-Serve uses 512 to 2048)", 1, 10**9),),
        published=(
            Published("up to 1.33 times the throughput", "not stated", "accelerator tutorial (Yuan et al. notes), 2.4"),
            Published("DeepSpeed 6.78, LightLLM 10.29 requests a second", _SHAREGPT, TABLE_6),
        ),
        caveat=(
            "Its cost is simulated, its use is not: decode steps that ride along with a chunk, and the tail latency "
            "that they are spared, belong to a queue."
        ),
    ),
    system_entry(
        "beam-search",
        "Several sequences a request",
        "Miao et al. 2023, section 3.2.5",
        "every request is decoded as several beams: as many more sequences a step, and as much more cache",
        "output",
        _settings(
            needs_generation,
            "beam-search",
            lambda scenario, values: {"beams": scenario.settings.beams * values["beams"]},
        ),
        covers=("beam search",),
        parameters=(Parameter("beams", 4, "beams (an example)", 1, 1000),),
        caveat="Beams keep copies of the whole cache; sorting them and reordering the cache cost nothing.",
    ),
)

TECHNIQUES: tuple[Technique, ...] = (*ALLOCATION, *PREFIX, *BATCHING, *PREFILL)
