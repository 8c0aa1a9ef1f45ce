"""Serving techniques: KV cache allocation, prefix caching, batching, chunked prefill, beam search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roofline.core.errors import UnsupportedError
from roofline.core.units import Dimension, parse_quantity
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Fetch
from roofline.techniques.base import (
    GENERATIVE_SURVEY,
    TABLE_6,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    system_technique,
)
from roofline.techniques.changes import (
    require_causal_prompt,
    require_generation,
    require_kv_cache,
    with_cached_prefix,
    with_settings,
)

_SHAREGPT = "ShareGPT on one A100 80GB; model and precision not stated"
_QUEUE = "A batch is simulated, not the queue of requests before it."


def _setting(
    name: str,
    title: str,
    reference: str,
    effect: str,
    slot: str,
    settings: Callable[[Scenario, Values], dict[str, Any]],
    *parameters: Parameter,
    requires: Callable[[Scenario, str], None] | None = None,
    **rest: Any,
) -> Technique:
    """An entry that changes settings; `requires` raises UnsupportedError for models that it does not apply to."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        if requires is not None:
            requires(scenario, name)
        return with_settings(scenario, **settings(scenario, values))

    return system_technique(name, title, reference, effect, slot, change, *parameters, **rest)


def _reserved(scenario: Scenario, values: Values) -> dict[str, Any]:
    length = values["length"] or scenario.model.max_context
    if length is None:
        raise UnsupportedError(f"contiguous-kv needs length: {scenario.model.name} states no maximum context")
    return {"kv_reserved": length, "kv_block": 1}


def _predicted(scenario: Scenario, values: Values) -> dict[str, Any]:
    """The output is reserved up to the end of the bucket that its predicted length falls into."""
    output = np.ceil(scenario.generate * values["excess"] / values["bucket"]) * values["bucket"]
    return {"kv_reserved": scenario.first_cached + output, "kv_block": 1}


ALLOCATION = (
    _setting(
        "paged-attention",
        "PagedAttention: the KV cache in blocks",
        "Kwon et al. 2023, vLLM",
        "The KV cache of a sequence is rounded up to whole blocks instead of the maximum sequence length.",
        "KV allocation",
        lambda _, values: {"kv_block": values["block"], "kv_reserved": None},
        Parameter("block", 16, "tokens of a block, as in vLLM", 1, 4096),
        requires=require_kv_cache,
        covers=("PagedAttention", "FlashInfer"),
        published=(Published("7.11 requests a second", _SHAREGPT, TABLE_6),),
        caveat="The cost of irregular access in the attention kernel shows in expected times only.",
    ),
    _setting(
        "token-attention",
        "TokenAttention: the KV cache token by token",
        "LightLLM 2023",
        "Memory is allocated for single tokens: no fragmentation.",
        "KV allocation",
        lambda *_: {"kv_block": 1, "kv_reserved": None},
        requires=require_kv_cache,
        covers=("token-wise KV cache",),
        published=(Published("10.29 requests a second, the most of four systems", _SHAREGPT, TABLE_6),),
        caveat="The default.",
    ),
    _setting(
        "contiguous-kv",
        "Contiguous KV cache of maximum length",
        "NVIDIA, FasterTransformer",
        "Every sequence reserves memory for the maximum length, whatever its actual length.",
        "KV allocation",
        _reserved,
        Parameter("length", 0, "tokens reserved (0: the maximum context of the model)", 0, 10**9),
        requires=require_kv_cache,
        covers=("contiguous pre-allocation",),
        caveat="A baseline for comparison.",
    ),
    _setting(
        "s3",
        "S³: KV cache reserved for a predicted length",
        "Jin et al. 2023, S3",
        "Every sequence reserves memory for its predicted length, rounded up to a bucket of lengths.",
        "KV allocation",
        _predicted,
        Parameter("bucket", 100, "output tokens of a bucket (an example: the predictor tells ten apart)", 1, 10**6),
        Parameter("excess", 1.0, "predicted over actual output tokens (1: a perfect prediction)", 1, 1000),
        requires=require_kv_cache,
        covers=("S³",),
        caveat="Paging rounds up to the block of what is cached so far, S³ to the bucket of what will be. The accuracy"
        f" of the predictor is an input. {_QUEUE}",
    ),
)


def _prefix_hit(scenario: Scenario, values: Values) -> Scenario:
    return with_settings(with_cached_prefix(scenario, values["hit"]), shared_prefix=True)


def _fetched(scenario: Scenario, values: Values) -> Scenario:
    require_kv_cache(scenario, "cachegen")
    bandwidth = parse_quantity(values["bandwidth"], Dimension.BANDWIDTH).value
    hit = with_cached_prefix(scenario, values["hit"])
    tokens = scenario.prompt - hit.prompt
    return with_settings(hit, fetch=Fetch(tokens, values["ratio"], bandwidth))


_HIT = Parameter("hit", 0.5, "fraction of the prompt that is cached (SGLang's paper measured 0.5 to 0.99)", 0, 1)
_ONE_PREFIX = "All sequences of the batch are assumed to share one prefix, stored once; lookups cost nothing."

PREFIX = (
    system_technique(
        "radix-attention",
        "RadixAttention: prefix caching",
        "Zheng et al. 2023, SGLang",
        "A prefix shared with earlier requests is neither computed nor stored again: less prefill, less KV cache.",
        "prefix",
        _prefix_hit,
        _HIT,
        covers=("RadixAttention", "prefix caching", "prefix sharing", "prefix-caching"),
        caveat=f"{_ONE_PREFIX} The hit rate depends on the requests and is an input.",
    ),
    system_technique(
        "prompt-cache",
        "Prompt Cache: marked prompt modules cached anywhere in a prompt",
        "Gim et al. 2023, Prompt Cache",
        "Marked parts of prompts, at any position, are computed once and reused.",
        "prefix",
        _prefix_hit,
        _HIT,
        covers=("Prompt Cache",),
        same_as="radix-attention",
        caveat=f"{_ONE_PREFIX} A reused part does not attend to the text before it, so that outputs may differ"
        " slightly.",
    ),
    system_technique(
        "cachegen",
        "CacheGen: a compressed KV cache loaded over the network",
        "Liu et al. 2023, CacheGen",
        "The KV cache of a long context is loaded in compressed form over a network instead of computed.",
        "prefix",
        _fetched,
        Parameter("hit", 0.9, "fraction of the prompt whose KV cache is in storage (an example)", 0, 1),
        Parameter("ratio", 3.5, "size of the KV cache over what is sent (the lowest published)", 1, 1000),
        Parameter("bandwidth", "0.375GB/s", "bandwidth of the storage (3 Gbit/s in the paper)"),
        price=Price.LOSSY,
        published=(
            Published(
                "3.2 to 3.7 times less delay, a KV cache 3.5 to 4.3 times smaller",
                "against a KV cache quantised to 8 bits; models and contexts vary",
                "Liu et al. 2023, CacheGen, abstract",
            ),
        ),
        caveat="Decoding the stream on the device overlaps with loading and is not counted; loading does not overlap"
        " with the prefill of the rest.",
    ),
)

BATCHING = (
    _setting(
        "continuous-batching",
        "Continuous batching",
        "Yu et al. 2022, Orca",
        "A finished sequence is replaced by a waiting one at once: no iteration is spent on finished sequences.",
        "batching",
        lambda *_: {"useful": 1.0},
        requires=require_generation,
        covers=(
            *("continuous batching", "ORCA", "iteration-level scheduling", "selective-batching"),
            "in-flight batching",
        ),
        caveat=f"The default: a batch that stays full. {_QUEUE}",
    ),
    _setting(
        "static-batching",
        "Static batching: a batch runs until its longest sequence ends",
        "Yu et al. 2022, Orca (the baseline there)",
        "Finished sequences stay in the batch, so that a fraction of the generated tokens is wasted.",
        "batching",
        lambda scenario, values: {"useful": scenario.settings.useful * values["utilisation"]},
        Parameter("utilisation", 0.5, "mean over longest output of a batch (an example; 1: no loss)", 1e-6, 1),
        requires=require_generation,
        covers=("static batching", "request-level scheduling"),
        caveat="`generate` is the length of the longest sequence. A baseline for comparison.",
    ),
    _setting(
        "packed-batching",
        "Packed prompts without padding",
        "Zhai et al. 2023, ByteTransformer",
        "Prompts of different lengths are concatenated under a block-diagonal mask: no padded tokens.",
        "prompt batching",
        lambda *_: {"padding": 1.0},
        covers=("packing", "packed prefill", "Effective Transformer", "Ragged tensor"),
        caveat="The default.",
    ),
    _setting(
        "padded-batching",
        "Prompts padded to the longest",
        f"{GENERATIVE_SURVEY}, section 3.2.5",
        "Every prompt of a batch is computed at the length of the longest.",
        "prompt batching",
        lambda _, values: {"padding": values["padding"]},
        Parameter("padding", 1.5, "longest over mean prompt of a batch (an example)", 1, 1000),
        covers=("padding",),
        caveat="`prompt` is the mean length. A baseline for comparison.",
    ),
    _setting(
        "bucketing",
        "Bucketing: batches of prompts of similar length",
        f"{GENERATIVE_SURVEY}, section 3.2.5",
        "Prompts are padded to the upper end of their bucket only.",
        "prompt batching",
        lambda _, values: {"padding": values["padding"]},
        Parameter("padding", 1.1, "upper end of a bucket over its mean prompt (an example)", 1, 1000),
        caveat=f"`prompt` is the mean length. {_QUEUE}",
    ),
)

PREFILL = (
    _setting(
        "chunked-prefill",
        "Chunked prefill",
        "Agrawal et al. 2024, Sarathi-Serve",
        "A pass computes a budget of tokens of all sequences together, prompts in turn: the same FLOPs, but every pass"
        " reads the weights, and the earlier KV cache of its sequences, again.",
        "prefill schedule",
        lambda _, values: {"chunk": values["chunk"]},
        Parameter("chunk", 512, "tokens of a pass, of all sequences (Sarathi-Serve uses 512 to 2048)", 1, 10**9),
        requires=require_causal_prompt,
        covers=(
            *("chunked prefill", "Sarathi", "Sarathi-Serve", "split-and-fuse", "DeepSpeed-FastGen"),
            "Dynamic SplitFuse",
        ),
        published=(
            Published("up to 1.33 times the throughput", "not stated", "accelerator tutorial (Yuan et al. notes), 2.4"),
            Published("DeepSpeed 6.78, LightLLM 10.29 requests a second", _SHAREGPT, TABLE_6),
        ),
        caveat="TTFT is that of the last sequence of the static batch; the others have theirs when their prompt is"
        " computed. Only the cost is simulated: decode steps that share a pass with a chunk, and the lower tail TPOT,"
        " depend on the queue.",
    ),
    _setting(
        "beam-search",
        "Beam search",
        f"{GENERATIVE_SURVEY}, section 3.2.5",
        "Every request decodes several beams, each with its own sequence in the step and in the KV cache.",
        "output",
        lambda scenario, values: {"beams": scenario.settings.beams * values["beams"]},
        Parameter("beams", 4, "beams (an example)", 1, 1000),
        requires=require_generation,
        covers=("beam search",),
        caveat="Each beam has its own copy of the KV cache; sorting beams and reordering the cache cost nothing.",
    ),
)

TECHNIQUES: tuple[Technique, ...] = (*ALLOCATION, *PREFIX, *BATCHING, *PREFILL)
