"""What becomes of attention: fewer keys seen, a bounded cache, fewer key and value heads, other mixers."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import ProjectedKeys
from roofline.scenario.scenario import Scenario
from roofline.specs.model import Attention, Layer, Retention
from roofline.techniques.base import (
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    needs_generation,
    with_mixers,
)
from roofline.techniques.entries import entry as written
from roofline.techniques.rewrites import with_rewrite
from roofline.techniques.structure import split_layers

CAVEAT = "What the tokens left out would have said is not simulated."


entry = partial(written, caveat=CAVEAT)


# --- patterns ---------------------------------------------------------------------------------------------------------


def _limited(spec: Attention, window: int, extra: int) -> Attention:
    """Attention to a window and some other tokens; one that sees less already stays."""
    reach = None if spec.window is None else spec.window + spec.extra
    return (
        spec if reach is not None and reach <= window + extra else dataclasses.replace(spec, window=window, extra=extra)
    )


def _pattern(
    name: str,
    title: str,
    price: Price,
    reference: str,
    window: int,
    extra: int,
    others: str,
    effect: str = "Fewer FLOPs of attention, linear in the context, and a bounded KV cache to keep and read.",
    **rest: Any,
) -> Technique:
    def change(scenario: Scenario, values: Values) -> Scenario:
        return with_mixers(scenario, name, lambda spec: _limited(spec, values["window"], values["extra"]))

    return entry(
        name,
        title,
        price,
        reference,
        effect,
        "attention pattern",
        change,
        Parameter("window", window, "neighbouring tokens that a query sees, its own included", 1, 10**9),
        Parameter("extra", extra, others, 0, 10**9),
        **rest,
    )


def _hash(scenario: Scenario, values: Values) -> Scenario:
    seen = values["keys"]
    return with_mixers(
        scenario, "hash-attention", lambda spec: dataclasses.replace(spec, selected=min(seen, spec.selected or seen))
    )


def _linformer(scenario: Scenario, values: Values) -> Scenario:
    if scenario.model.task != "encode":
        raise UnsupportedError(
            f"linformer projects whole sequences, which {scenario.model.name} does not see: it is causal"
        )
    rank = values["rank"]
    scenario = with_mixers(
        scenario, "linformer", lambda spec: dataclasses.replace(spec, selected=min(rank, spec.selected or rank))
    )
    return with_rewrite(scenario, "linformer", ProjectedKeys())


def _linear(scenario: Scenario, values: Values) -> Scenario:
    features = values["features"]
    return with_mixers(
        scenario,
        "linear-attention",
        lambda spec: Retention(spec.heads, features or spec.head_dim, spec.head_dim, gated=False),
    )


PATTERNS: tuple[Technique, ...] = (
    _pattern(
        "streamingllm",
        "StreamingLLM: attention sinks and a window",
        Price.LOSSY,
        "Xiao et al. 2023, StreamingLLM",
        1020,
        4,
        "first tokens that are always kept (sinks)",
        covers=("StreamingLLM",),
        published=(Published("4 million tokens processed", "", "Zhou et al. 2024, section 5.3"),),
    ),
    _pattern(
        "sliding-window",
        "Sliding-window attention",
        Price.RETRAINING,
        "Jiang et al. 2023, Mistral 7B",
        4096,
        0,
        "other tokens that a query sees",
        covers=("sliding window attention", "sparse attention", "sparsification"),
    ),
    _pattern(
        "longformer",
        "Longformer: a (dilated) window and global tokens",
        Price.RETRAINING,
        "Beltagy et al. 2020, Longformer",
        512,
        1,
        "global tokens (an example: the first one)",
        covers=("Longformer", "dilated attention", "LongNet", "Star Transformer", "GMAT"),
        caveat="Dilation spreads the window and leaves its size; queries of global tokens are counted as the"
        " others. " + CAVEAT,
    ),
    _pattern(
        "bigbird",
        "BigBird: local, global and random blocks",
        Price.RETRAINING,
        "Zaheer et al. 2020, BigBird",
        192,
        320,
        "global tokens (2 blocks of 64) and random ones (3 blocks)",
        covers=("BigBird", "block-sparse attention", "Structured Sparse Attention", "Diffuser"),
        caveat="A cache would have to hold every token that a later one draws at random, and is counted without. "
        + CAVEAT,
    ),
    _pattern(
        "sparse-transformer",
        "Sparse Transformer: local and strided attention",
        Price.RETRAINING,
        "Child et al. 2019, Sparse Transformer",
        128,
        128,
        "strided tokens: the context over the stride (an example: 128 for 16,384)",
        covers=("Sparse Transformer", "SemSA"),
        caveat="The strided keys grow with the context, and their number is given here; a cache would have to hold"
        " those that later queries see. " + CAVEAT,
    ),
    entry(
        "hash-attention",
        "Attention within buckets",
        Price.RETRAINING,
        "Kitaev et al. 2020, Reformer; Roy et al. 2020, Routing Transformer",
        "Fewer FLOPs of attention and fewer keys read in decode; the KV cache is kept whole.",
        "attention pattern",
        _hash,
        Parameter("keys", 128, "keys that a query meets: its bucket of 64 and the one before", 1, 10**9),
        covers=(
            "Reformer",
            "Routing Transformer",
            "Sparse Flash Attention",
            "Sparse Sinkhorn Attention",
            "hash-based attention",
            "sparse hash attention",
            "dynamic attention pruning",
        ),
        caveat="Hashing or clustering and sorting are not counted. " + CAVEAT,
    ),
    entry(
        "linformer",
        "Linformer: keys and values projected along the sequence",
        Price.RETRAINING,
        "Wang et al. 2020, Linformer",
        "FLOPs of attention linear in the sequence, twice those of the keys kept.",
        "attention pattern",
        _linformer,
        Parameter("rank", 256, "keys and values that are left of the sequence", 1, 10**9),
        covers=("Linformer", "LRT", "FLuRKA", "Luna", "Set Transformer", "low-rank attention", "factorization"),
        caveat="The projections' own weights, as long as the sequence, are not counted. " + CAVEAT,
    ),
    entry(
        "linear-attention",
        "Kernel-based (linear) attention",
        Price.RETRAINING,
        "Katharopoulos et al. 2020, Linear Transformer",
        "FLOPs linear in the sequence, and a state of fixed size in the place of the KV cache.",
        "attention pattern",
        _linear,
        Parameter("features", 0, "features of a query or key (0: as many as a head is wide)", 0, 65536),
        covers=(
            "Linear Transformer",
            "Performers",
            "RFA",
            "PolySketchFormer",
            "kernelization",
            "linear attention",
            "kernel-based attention",
        ),
        caveat="Computing the features is not counted; attention biases and rotations are left out.",
    ),
    entry(
        "top-k-attention",
        "Attention to the best keys only",
        Price.LOSSY,
        "Gupta et al. 2021, top-k attention",
        "Fewer values read; every score is still computed.",
        "attention pattern",
        None,
        covers=("Top-k attention", "Sorting attention", "Adaptive attention", "Informer"),
        caveat="all scores are needed to find the best, and how many queries and values are then left out depends on"
        " the text.",
    ),
    entry(
        "funnel-transformer",
        "Funnel-Transformer: queries pooled layer by layer",
        Price.RETRAINING,
        "Dai et al. 2020, Funnel-Transformer",
        "Fewer tokens in later layers.",
        "attention pattern",
        None,
        covers=("Funnel-Transformer",),
        caveat="all layers of a graph run over one number of tokens here, and pooling gives later ones fewer.",
    ),
    entry(
        "token-pruning",
        "Tokens and heads dropped layer by layer",
        Price.LOSSY,
        "Wang et al. 2020, SpAtten",
        "Fewer tokens in later layers.",
        "attention pattern",
        None,
        covers=("Spatten", "SeqBoat", "dynamic token pruning"),
        caveat="all layers of a graph run over one number of tokens here, and how many are dropped depends on the"
        " text.",
    ),
)


# --- eviction ---------------------------------------------------------------------------------------------------------


def _eviction(name: str, title: str, reference: str, budget: int, meaning: str, *covers: str, **rest: Any) -> Technique:
    def change(scenario: Scenario, values: Values) -> Scenario:
        needs_generation(scenario, name)
        kept = values["budget"]
        return with_mixers(scenario, name, lambda spec: dataclasses.replace(spec, kept=min(kept, spec.kept or kept)))

    return entry(
        name,
        title,
        Price.LOSSY,
        reference,
        "Fewer bytes of KV cache to keep and to read in decode; prefill computes as before.",
        "cache budget",
        change,
        Parameter("budget", budget, meaning, 1, 10**9),
        covers=covers,
        caveat="Scoring the tokens is not counted. " + CAVEAT,
        **rest,
    )


FIFTH = "tokens kept of a sequence (20% of a prompt of 2,048)"

EVICTION: tuple[Technique, ...] = (
    _eviction("h2o", "H2O: heavy hitters and recent tokens", "Zhang et al. 2023, H2O", 410, FIFTH, "H2O"),
    _eviction(
        "scissorhands",
        "Scissorhands: persistently important tokens",
        "Liu et al. 2023, Scissorhands",
        410,
        FIFTH,
        "Scissorhands",
    ),
    _eviction(
        "fastgen",
        "FastGen: a policy for each head",
        "Ge et al. 2023, FastGen",
        1024,
        "tokens kept of a sequence, on average over heads (an example: half of 2,048)",
        "FastGen",
    ),
    _eviction(
        "adaptively-sparse-attention",
        "Adaptively sparse attention: learned dropping of context",
        "Anagnostidis et al. 2023",
        410,
        FIFTH,
        "Adaptively Sparse Attention",
    ),
)


# --- key and value heads ----------------------------------------------------------------------------------------------


def _fewer_kv_heads(scenario: Scenario, name: str, kv_heads: int) -> Scenario:
    def changed(spec: Attention) -> Attention:
        if spec.kv_heads <= kv_heads:
            return spec
        if spec.heads % kv_heads:
            raise RooflineError(f"{name}: {spec.heads} heads are not divisible by {kv_heads} key and value heads")
        return dataclasses.replace(spec, kv_heads=kv_heads)

    converted = with_mixers(scenario, name, changed)
    if converted.model.groups == scenario.model.groups:
        raise UnsupportedError(f"{name}: {scenario.model.name} has no more than {kv_heads} key and value heads already")
    return converted


def _sharing(scenario: Scenario, values: Values) -> Scenario:
    every, model = values["every"], scenario.model
    if not any(isinstance(group.layer.mixer, Attention) for group in model.groups):
        raise UnsupportedError(f"attention-sharing shares softmax attention, and {model.name} has none")

    def shared(index: int, layer: Layer) -> Layer:
        if index % every == 0 or not isinstance(layer.mixer, Attention):
            return layer
        return replace(layer, mixer=dataclasses.replace(layer.mixer, kv_shared=True))

    return replace(scenario, model=split_layers(model, "shared", shared))


CONVERTED = "Fewer bytes of KV cache to keep and to read, and smaller key and value projections."

HEADS: tuple[Technique, ...] = (
    entry(
        "gqa",
        "Grouped-query attention",
        Price.RETRAINING,
        "Ainslie et al. 2023, GQA",
        CONVERTED,
        "kv heads",
        lambda scenario, values: _fewer_kv_heads(scenario, "gqa", values["kv_heads"]),
        Parameter("kv_heads", 8, "key and value heads", 1, 65536),
        covers=("grouped-query attention", "GQA"),
        caveat="Accuracy and the training it takes are not simulated.",
        published=(
            Published(
                "a KV cache 8 times smaller",
                "Llama-3 70B, 64 query heads and 8 key and value heads",
                "Park et al. 2024, Inference Optimization on AI Accelerators, section 3.1",
            ),
        ),
    ),
    entry(
        "mqa",
        "Multi-query attention",
        Price.RETRAINING,
        "Shazeer 2019, MQA",
        CONVERTED,
        "kv heads",
        lambda scenario, _: _fewer_kv_heads(scenario, "mqa", 1),
        covers=("multi-query attention", "MQA"),
        caveat="Accuracy and the training it takes are not simulated.",
    ),
    entry(
        "attention-sharing",
        "Attention shared by neighbouring layers",
        Price.RETRAINING,
        "Miao et al. 2023, section 3.1.2, activation sharing",
        "Fewer key and value projections and less KV cache to keep: layers use the keys and values of an earlier one.",
        "kv sharing",
        _sharing,
        Parameter("every", 2, "layers that use one cache (an example)", 1, 1000),
        covers=("attention sharing",),
        caveat="Methods that share the attention matrix itself save the scores as well, which is not counted.",
    ),
)

TECHNIQUES = (*PATTERNS, *EVICTION, *HEADS)
