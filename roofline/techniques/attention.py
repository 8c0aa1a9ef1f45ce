"""Attention techniques: sparse patterns, KV cache eviction, fewer KV heads, linear attention."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import ProjectedKeys
from roofline.scenario.scenario import Scenario
from roofline.specs.model import Attention, Layer, Retention
from roofline.techniques.base import (
    ACCELERATORS,
    GENERATIVE_SURVEY,
    SURVEY,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    model_technique,
)
from roofline.techniques.changes import (
    require_generation,
    require_softmax_attention,
    split_layers,
    with_attention,
    with_rewrite,
    with_settings,
)

CAVEAT = "The quality loss from tokens that are not attended to is not simulated."
TRAINING = "Accuracy and the cost of retraining are not simulated."

_entry = partial(model_technique, price=Price.RETRAINING, caveat=CAVEAT)

# --- patterns ---------------------------------------------------------------------------------------------------------


def _with_window(spec: Attention, window: int, extra: int) -> Attention:
    """Attention to a window and `extra` other tokens, unless it already sees no more."""
    visible = None if spec.window is None else spec.window + spec.extra
    if visible is not None and visible <= window + extra:
        return spec
    return replace(spec, window=window, extra=extra)


def _with_selected(scenario: Scenario, name: str, keys: int) -> Scenario:
    """The scenario with attention to at most `keys` selected keys per query."""
    return with_attention(scenario, name, lambda spec: replace(spec, selected=min(keys, spec.selected or keys)))


def _pattern(name: str, title: str, reference: str, window: int, extra: int, others: str, **rest: Any) -> Technique:
    """An entry that limits attention to a window and `extra` other tokens."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        return with_attention(scenario, name, lambda spec: _with_window(spec, values["window"], values["extra"]))

    return _entry(
        name,
        title,
        reference,
        "Attention FLOPs linear in the context, and a bounded KV cache to store and read.",
        "attention pattern",
        change,
        Parameter("window", window, "neighbouring tokens that a query sees, itself included", 1, 10**9),
        Parameter("extra", extra, others, 0, 10**9),
        same_as="sliding-window",
        **rest,
    )


def _hash(scenario: Scenario, values: Values) -> Scenario:
    return _with_selected(scenario, "hash-attention", values["keys"])


def _linformer(scenario: Scenario, values: Values) -> Scenario:
    if scenario.model.task != "encode":
        raise UnsupportedError(f"linformer projects whole sequences, and attention in {scenario.model.name} is causal")
    return with_rewrite(_with_selected(scenario, "linformer", values["rank"]), "linformer", ProjectedKeys())


def _linear(scenario: Scenario, values: Values) -> Scenario:
    def retention(spec: Attention) -> Retention:
        return Retention(spec.heads, values["features"] or spec.head_dim, spec.head_dim, gated=False)

    return with_attention(scenario, "linear-attention", retention)


def _top_k(scenario: Scenario, values: Values) -> Scenario:
    """Quest with pages of one key: all keys are scored, and attention reads the best."""
    require_generation(scenario, "top-k-attention")
    keys = values["keys"]
    return with_attention(
        *(scenario, "top-k-attention"),
        lambda spec: replace(spec, selected=min(keys, spec.selected or keys), page=1),
    )


def _funnel(scenario: Scenario, values: Values) -> Scenario:
    if scenario.model.task != "encode":
        raise UnsupportedError(f"funnel-transformer pools the tokens of encoders, and {scenario.model.name} is none")
    blocks = values["blocks"]
    return with_settings(scenario, stages=tuple((1 / blocks, 0.5**block) for block in range(blocks)))


PRUNING_STEPS = 4
"""Steps in which token pruning is simulated."""


def _token_pruning(scenario: Scenario, values: Values) -> Scenario:
    """The tokens left fall linearly with depth; a step has those of its middle."""
    require_softmax_attention(scenario, "token-pruning")
    steps = ((index + 0.5) / PRUNING_STEPS for index in range(PRUNING_STEPS))
    stages = tuple((1 / PRUNING_STEPS, 1 - (1 - values["keep"]) * depth) for depth in steps)
    return with_settings(scenario, stages=stages)


PATTERNS: tuple[Technique, ...] = (
    _pattern(
        "streamingllm",
        "StreamingLLM: attention sinks and a sliding window",
        "Xiao et al. 2023, StreamingLLM",
        1020,
        4,
        "attention sinks: first tokens that are always kept",
        price=Price.LOSSY,
        covers=("StreamingLLM",),
        published=(Published("4 million tokens processed", "", f"{SURVEY}, section 5.3"),),
    ),
    _pattern(
        "sliding-window",
        "Sliding-window attention",
        "Jiang et al. 2023, Mistral 7B",
        4096,
        0,
        "other tokens that a query sees",
        covers=("sliding window attention", "sparse attention", "sparsification"),
    ),
    _pattern(
        "longformer",
        "Longformer: a (dilated) window and global tokens",
        "Beltagy et al. 2020, Longformer",
        512,
        1,
        "global tokens (an example: the first one)",
        covers=("Longformer", "dilated attention", "LongNet", "Star Transformer", "GMAT"),
        caveat="Dilation does not change the number of keys; the queries of global tokens are counted like all others. "
        + CAVEAT,
    ),
    _pattern(
        "bigbird",
        "BigBird: local, global and random blocks",
        "Zaheer et al. 2020, BigBird",
        192,
        320,
        "global tokens (2 blocks of 64) and random ones (3 blocks)",
        covers=("BigBird", "block-sparse attention", "Structured Sparse Attention", "Diffuser"),
        caveat="A KV cache would also hold every token that later queries select at random, which is not counted. "
        + CAVEAT,
    ),
    _pattern(
        "sparse-transformer",
        "Sparse Transformer: local and strided attention",
        "Child et al. 2019, Sparse Transformer",
        128,
        128,
        "strided tokens: the context over the stride (an example: 128 for 16,384)",
        covers=("Sparse Transformer", "SemSA"),
        caveat="The number of strided keys is fixed here, but grows with the context; the KV cache of those that later"
        " queries see is not counted. " + CAVEAT,
    ),
    _entry(
        "hash-attention",
        "Attention within hash buckets",
        "Kitaev et al. 2020, Reformer; Roy et al. 2020, Routing Transformer",
        "Fewer FLOPs of attention and fewer keys read in decode; the whole KV cache is kept.",
        "attention pattern",
        _hash,
        Parameter("keys", 128, "keys that a query sees: its bucket of 64 and the previous one", 1, 10**9),
        covers=(
            *("Reformer", "Routing Transformer", "Sparse Flash Attention", "Sparse Sinkhorn Attention"),
            *("hash-based attention", "sparse hash attention", "dynamic attention pruning"),
        ),
        caveat="Hashing or clustering and sorting are not counted. " + CAVEAT,
    ),
    _entry(
        "linformer",
        "Linformer: keys and values projected along the sequence",
        "Wang et al. 2020, Linformer",
        "Attention FLOPs linear in the sequence, twice those over the projected keys.",
        "attention pattern",
        _linformer,
        Parameter("rank", 256, "projected keys and values of a sequence", 1, 10**9),
        covers=("Linformer", "LRT", "FLuRKA", "Luna", "Set Transformer", "low-rank attention", "factorization"),
        caveat="The weights of the projections, which grow with the sequence, are not counted. " + CAVEAT,
    ),
    _entry(
        "linear-attention",
        "Kernel-based (linear) attention",
        "Katharopoulos et al. 2020, Linear Transformer",
        "FLOPs linear in the sequence, and a state of fixed size instead of the KV cache.",
        "attention pattern",
        _linear,
        Parameter("features", 0, "features of a query or key (0: the head dimension)", 0, 65536),
        covers=(
            *("Linear Transformer", "Performers", "RFA", "PolySketchFormer", "kernelization", "linear attention"),
            "kernel-based attention",
        ),
        caveat="The feature map, attention biases and rotary embeddings are not counted.",
    ),
    _entry(
        "top-k-attention",
        "Attention to the top-k keys",
        "Gupta et al. 2021, top-k attention",
        "Fewer values read in decode; all keys are read and scored first.",
        "attention pattern",
        _top_k,
        Parameter("keys", 128, "keys that a query attends to (an example)", 1, 10**9),
        price=Price.LOSSY,
        covers=("Top-k attention", "Sorting attention", "Adaptive attention", "Informer"),
        caveat="Prefill computes all scores and is unchanged; the keys of the chosen tokens are counted a second time,"
        " and the top-k itself is not counted. " + CAVEAT,
    ),
    _entry(
        "funnel-transformer",
        "Funnel-Transformer: tokens pooled from block to block",
        "Dai et al. 2020, Funnel-Transformer",
        "Fewer tokens in later layers: each block of layers runs over half of the tokens of the one before.",
        "tokens by layer",
        _funnel,
        Parameter("blocks", 3, "blocks of layers (the paper's B4-4-4 has 3)", 1, 16),
        covers=("Funnel-Transformer",),
        caveat="The decoder that restores the length for tasks on single tokens is not counted. " + CAVEAT,
    ),
    _entry(
        "token-pruning",
        "Tokens pruned layer by layer",
        "Wang et al. 2020, SpAtten",
        "Fewer tokens in later layers, in prefill and in the KV cache.",
        "tokens by layer",
        _token_pruning,
        Parameter("keep", 0.5, "fraction of the tokens left in the last layers (an example)", 0.01, 1),
        price=Price.LOSSY,
        covers=("Spatten", "SeqBoat", "dynamic token pruning"),
        caveat="Tokens are pruned in four equal steps; scoring them, and pruning heads, is not counted. " + CAVEAT,
    ),
)


# --- KV cache eviction ------------------------------------------------------------------------------------------------

FIFTH = "tokens kept of a sequence (20% of a prompt of 2,048)"


def _eviction(
    name: str,
    title: str,
    reference: str,
    covers: str,
    differs: str,
    budget: int = 410,
    meaning: str = FIFTH,
    *more: Parameter,
) -> Technique:
    """An entry with a budget of tokens in the KV cache, of which a buffer drops the fraction `drop` when it is full."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        require_generation(scenario, name)
        kept = max(1, round(values["budget"] * (1 - values.get("drop", 0.0) / 2)))
        return with_attention(scenario, name, lambda spec: replace(spec, kept=min(kept, spec.kept or kept)))

    return _entry(
        name,
        title,
        reference,
        "Fewer bytes of KV cache to store and read in decode; prefill is unchanged.",
        "KV cache eviction",
        change,
        Parameter("budget", budget, meaning, 1, 10**9),
        *more,
        price=Price.LOSSY,
        covers=(covers,),
        caveat=f"{differs} Scoring the tokens is not counted. " + CAVEAT,
        same_as="h2o",
    )


EVICTION: tuple[Technique, ...] = (
    _eviction(
        "h2o",
        "H2O: KV cache eviction except heavy hitters and recent tokens",
        "Zhang et al. 2023, H2O",
        "H2O",
        "A full cache evicts one token a step, so that the budget is always full.",
    ),
    _eviction(
        "scissorhands",
        "Scissorhands: KV cache eviction except persistently important tokens",
        "Liu et al. 2023, Scissorhands",
        "Scissorhands",
        "A full buffer drops half of its tokens at once; sequences do so at different times, and the mean is counted.",
        410,
        FIFTH,
        Parameter("drop", 0.5, "fraction of a full buffer that is dropped (an example)", 0, 1),
    ),
    _eviction(
        "fastgen",
        "FastGen: a KV cache eviction policy for each head",
        "Ge et al. 2023, FastGen",
        "FastGen",
        "Heads with a local policy keep less than others; the mean is counted.",
        1024,
        "tokens kept of a sequence, mean over heads (an example: half of 2,048)",
    ),
    _eviction(
        "adaptively-sparse-attention",
        "Adaptively sparse attention: learned KV cache eviction",
        "Anagnostidis et al. 2023",
        "Adaptively Sparse Attention",
        "What is kept is learned and depends on the text: the budget is an input.",
    ),
)


# --- KV heads ---------------------------------------------------------------------------------------------------------


def _with_kv_heads(scenario: Scenario, name: str, kv_heads: int) -> Scenario:
    def changed(spec: Attention) -> Attention:
        if spec.kv_heads <= kv_heads:
            return spec
        if spec.heads % kv_heads:
            raise RooflineError(f"{name}: {spec.heads} heads are not divisible by {kv_heads} KV heads")
        return replace(spec, kv_heads=kv_heads)

    converted = with_attention(scenario, name, changed)
    if converted.model.groups == scenario.model.groups:
        raise UnsupportedError(f"{name}: {scenario.model.name} already has no more than {kv_heads} KV heads")
    return converted


def _sharing(scenario: Scenario, values: Values) -> Scenario:
    require_softmax_attention(scenario, "attention-sharing")

    def shared(index: int, layer: Layer) -> Layer:
        if index % values["every"] == 0 or not isinstance(layer.mixer, Attention):
            return layer
        return replace(layer, mixer=replace(layer.mixer, kv_shared=True))

    return replace(scenario, model=split_layers(scenario.model, "shared", shared))


_FEWER_KV_HEADS = "Fewer bytes of KV cache to store and read, and smaller key and value projections."

HEADS: tuple[Technique, ...] = (
    _entry(
        "gqa",
        "Grouped-query attention (GQA)",
        "Ainslie et al. 2023, GQA",
        _FEWER_KV_HEADS,
        "KV heads",
        lambda scenario, values: _with_kv_heads(scenario, "gqa", values["kv_heads"]),
        Parameter("kv_heads", 8, "KV heads", 1, 65536),
        covers=("grouped-query attention", "GQA"),
        caveat=TRAINING,
        published=(
            Published(
                "a KV cache 8 times smaller",
                "Llama-3 70B, 64 query heads and 8 key and value heads",
                f"{ACCELERATORS}, section 3.1",
            ),
        ),
    ),
    _entry(
        "mqa",
        "Multi-query attention (MQA)",
        "Shazeer 2019, MQA",
        _FEWER_KV_HEADS,
        "KV heads",
        lambda scenario, _: _with_kv_heads(scenario, "mqa", 1),
        covers=("multi-query attention", "MQA"),
        caveat=TRAINING,
    ),
    _entry(
        "attention-sharing",
        "KV cache shared across layers",
        f"{GENERATIVE_SURVEY}, section 3.1.2, activation sharing",
        "Fewer key and value projections and a smaller KV cache: layers use the keys and values of an earlier layer.",
        "KV sharing",
        _sharing,
        Parameter("every", 2, "layers that share one KV cache (an example)", 1, 1000),
        covers=("attention sharing",),
        caveat="Methods that share the attention matrix save the scores too, which is not counted.",
    ),
)

TECHNIQUES = (*PATTERNS, *EVICTION, *HEADS)
