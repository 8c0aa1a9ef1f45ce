"""Conditional computation: neurons, experts and layers that a token does not run through."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import Predictor
from roofline.scenario.scenario import Scenario
from roofline.specs.model import FeedForward, Layer, MixtureOfExperts, Mlp
from roofline.techniques.base import (
    Change,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    needs_generation,
    scaled,
    with_blocks,
    with_settings,
)
from roofline.techniques.entries import entry
from roofline.techniques.rewrites import with_rewrite
from roofline.techniques.structure import split_layers


def _has(scenario: Scenario, kind: type) -> bool:
    return any(isinstance(group.layer.feed_forward, kind) for group in scenario.model.groups)


def _with_mlps(scenario: Scenario, name: str, change: Callable[[Mlp], FeedForward]) -> Scenario:
    """The scenario with its dense feed-forward blocks changed; refused where it has none."""
    if not _has(scenario, Mlp):
        raise UnsupportedError(f"{name} changes dense feed-forward blocks, and {scenario.model.name} has none")
    return with_blocks(scenario, name, lambda block: change(block) if isinstance(block, Mlp) else block)


def _with_experts(scenario: Scenario, name: str, change: Callable[[MixtureOfExperts], FeedForward]) -> Scenario:
    """The scenario with its mixtures of experts changed; refused where it has none."""
    if not _has(scenario, MixtureOfExperts):
        raise UnsupportedError(f"{name} changes mixtures of experts, and {scenario.model.name} has none")
    return with_blocks(scenario, name, lambda block: change(block) if isinstance(block, MixtureOfExperts) else block)


def _into_experts(name: str, block: Mlp, experts: int, top_k: int, width: int) -> MixtureOfExperts:
    if block.receptance or block.shift:
        raise UnsupportedError(f"{name} makes experts of feed-forward blocks, which RWKV's channel mixing is not")
    if top_k > experts:
        raise RooflineError(f"{name}: {top_k} of {experts} experts cannot be picked")
    return MixtureOfExperts(experts, top_k, width, block.gated, block.activation, bias=block.bias)


# --- neurons ----------------------------------------------------------------------------------------------------------


def _deja_vu(scenario: Scenario, values: Values) -> Scenario:
    share = values["active"]
    sparse = _with_mlps(scenario, "deja-vu", lambda block: dataclasses.replace(block, active=share * block.active))
    return with_rewrite(sparse, "deja-vu", Predictor(values["predictor"]))


def _matformer(scenario: Scenario, values: Values) -> Scenario:
    return _with_mlps(
        scenario, "matformer", lambda block: dataclasses.replace(block, width=scaled(block.width, values["width"]))
    )


def _moefication(scenario: Scenario, values: Values) -> Scenario:
    def split(block: Mlp) -> MixtureOfExperts:
        experts = max(1, block.width // values["neurons"])
        return _into_experts("moefication", block, experts, scaled(experts, values["active"]), block.width // experts)

    return _with_mlps(scenario, "moefication", split)


# --- experts ----------------------------------------------------------------------------------------------------------


def _upcycled(scenario: Scenario, values: Values) -> Scenario:
    """Experts in every second feed-forward block, each a copy of it."""
    if not _has(scenario, Mlp):
        raise UnsupportedError(f"sparse-upcycling copies dense feed-forward blocks, and {scenario.model.name} has none")

    def copied(index: int, layer: Layer) -> Layer:
        block = layer.feed_forward
        if index % values["every"] != values["every"] - 1 or not isinstance(block, Mlp):
            return layer
        experts = _into_experts("sparse-upcycling", block, values["experts"], values["top_k"], block.width)
        return replace(layer, feed_forward=experts)

    return replace(scenario, model=split_layers(scenario.model, "experts", copied))


def _fewer_experts(name: str) -> Change:
    def change(scenario: Scenario, values: Values) -> Scenario:
        def pruned(block: MixtureOfExperts) -> MixtureOfExperts:
            experts = scaled(block.experts, values["kept"])
            return dataclasses.replace(block, experts=experts, top_k=min(block.top_k, experts))

        return _with_experts(scenario, name, pruned)

    return change


def _fewer_picked(scenario: Scenario, values: Values) -> Scenario:
    top_k = values["top_k"]
    if all(block.top_k <= top_k for block in scenario.model.experts) and scenario.model.experts:
        raise UnsupportedError(f"top-k-reduction: {scenario.model.name} picks no more than {top_k} experts already")
    return _with_experts(
        scenario, "top-k-reduction", lambda block: dataclasses.replace(block, top_k=min(block.top_k, top_k))
    )


def _one_task(scenario: Scenario, _: Values) -> Scenario:
    def extracted(block: MixtureOfExperts) -> Mlp:
        width = block.top_k * block.width + block.shared_width
        return Mlp(width, block.gated, block.activation, bias=block.bias)

    return _with_experts(scenario, "task-moe", extracted)


def _balanced(scenario: Scenario, _: Values) -> Scenario:
    _with_experts(scenario, "expert-choice", lambda block: block)
    return with_settings(scenario, expert_skew=0.0, expert_capacity=1.0)


# --- depth ------------------------------------------------------------------------------------------------------------


def _shallower(name: str) -> Change:
    def change(scenario: Scenario, values: Values) -> Scenario:
        needs_generation(scenario, name)
        return with_settings(scenario, depth=scenario.settings.depth * values["depth"])

    return change


def _sample_exit(scenario: Scenario, values: Values) -> Scenario:
    if scenario.model.task != "encode":
        raise UnsupportedError(
            f"sample-early-exit is for models that only encode, and {scenario.model.name} generates:"
            " see calm and skipdecode"
        )
    return with_settings(scenario, depth=values["depth"])


def _mixture_of_depths(scenario: Scenario, values: Values) -> Scenario:
    needs_generation(scenario, "mixture-of-depths")
    skipped = (1 - values["capacity"]) / values["every"]
    return with_settings(scenario, depth=scenario.settings.depth * (1 - skipped))


EXIT_CAVEAT = (
    "Keys and values of the layers left out have to be copied or computed later, the exit classifiers run, and a batch"
    " waits for its deepest token: none of these is counted. Prefill runs whole, and accuracy is not simulated."
)
SHALLOWER = "Fewer FLOPs and bytes in decode, in proportion to the layers that a token skips; memory stays."


def _depth(default: float, note: str) -> Parameter:
    return Parameter("depth", default, f"share of the layers that a token runs through on average ({note})", 0.01, 1)


NEURONS: tuple[Technique, ...] = (
    entry(
        "deja-vu",
        "Deja Vu: contextual sparsity",
        Price.CALIBRATION,
        "Liu et al. 2023, Deja Vu",
        "Fewer FLOPs and bytes of feed-forward blocks, whose active neurons a small predictor picks for each token.",
        "neurons",
        _deja_vu,
        Parameter("active", 0.2, "share of the neurons that a token needs", 0.001, 1),
        Parameter("predictor", 1000, "width of the predictor's bottleneck, as in the authors' code", 1, 65536),
        covers=("Deja Vu", "contextual sparsity"),
        published=(
            Published(
                "up to 80% sparsity, more than twice as fast",
                "OPT-175B",
                "Yuan et al. 2024, LLM Inference Unveiled, section 4.1.2",
            ),
        ),
        caveat="Tokens are taken to need neurons independently, so that less is saved the more of them a pass has;"
        " fewer FLOPs need a kernel that skips neurons token by token, which none does in prefill. The attention heads"
        " that it leaves out are counted whole, and accuracy is not simulated.",
    ),
    entry(
        "matformer",
        "MatFormer: nested feed-forward blocks",
        Price.RETRAINING,
        "Devvrit et al. 2023, MatFormer",
        "Fewer FLOPs and bytes of feed-forward blocks: a nested part of them runs as a model of its own.",
        "neurons",
        _matformer,
        Parameter("width", 0.5, "share of the width that runs: 1/8, 1/4, 1/2 or 1", 0.001, 1),
        covers=("MatFormer",),
        published=(
            Published(
                "feed-forward blocks are 60% of all weights",
                "",
                "Yuan et al. 2024, LLM Inference Unveiled, section 4.1.2; of a 7B block it is 67%",
            ),
        ),
        caveat="Memory is that of the part that runs; accuracy is not simulated.",
    ),
    entry(
        "moefication",
        "MoEfication: neurons grouped into experts",
        Price.CALIBRATION,
        "Zhang et al. 2021, MoEfication",
        "Fewer FLOPs of feed-forward blocks, and fewer bytes as long as a batch leaves experts untouched.",
        "neurons",
        _moefication,
        Parameter("neurons", 32, "neurons of an expert", 1, 10**6),
        Parameter("active", 0.2, "share of the experts that a token runs through", 0.001, 1),
        covers=("MoEfication",),
        caveat="It relies on ReLU, whose zeros tell which neurons matter; other activations need retraining."
        " Accuracy is not simulated.",
    ),
)

EXPERTS: tuple[Technique, ...] = (
    entry(
        "sparse-upcycling",
        "Sparse upcycling: copies of a block as experts",
        Price.RETRAINING,
        "Komatsuzaki et al. 2022, Sparse Upcycling",
        "More weights to store and, with every expert that a batch touches, to read; FLOPs grow with the experts"
        " picked.",
        "experts",
        _upcycled,
        Parameter("experts", 32, "experts made of one block", 1, 10**5),
        Parameter("top_k", 2, "experts that a token runs through", 1, 10**5),
        Parameter("every", 2, "blocks of which one becomes experts", 1, 1000),
        covers=("Sparse Upcycling", "MoE", "Switch Transformers"),
        caveat="It buys accuracy, which is not simulated.",
    ),
    entry(
        "expert-pruning",
        "Expert pruning: experts left out for good",
        Price.CALIBRATION,
        "Lu et al. 2024, ExpertSparsity; Muzio et al. 2024, SEER-MoE",
        "Fewer weights to store, and fewer to read once a batch touches most experts; FLOPs stay.",
        "experts",
        _fewer_experts("expert-pruning"),
        Parameter("kept", 0.75, "share of the experts that is kept (6 of 8)", 0.001, 1),
        covers=("ExpertSparsity", "SEER-MoE", "expert pruning"),
        caveat="Accuracy is not simulated.",
    ),
    entry(
        "top-k-reduction",
        "Fewer experts for each token",
        Price.CALIBRATION,
        "Muzio et al. 2024, SEER-MoE",
        "Fewer FLOPs of experts, and fewer bytes as long as a batch leaves experts untouched; memory stays.",
        "top-k",
        _fewer_picked,
        Parameter("top_k", 1, "experts that a token runs through", 1, 10**5),
        caveat="Accuracy is not simulated.",
    ),
    entry(
        "task-moe",
        "TaskMoE: the experts of one task as a dense model",
        Price.RETRAINING,
        "Kudugunta et al. 2021, TaskMoE",
        "Fewer weights to store and to read: those of the experts that the task is routed to; FLOPs but the router's"
        " stay.",
        "experts",
        _one_task,
        covers=("TaskMoE",),
        caveat="Accuracy is not simulated.",
    ),
    entry(
        "expert-choice",
        "Expert choice: experts pick their tokens",
        Price.RETRAINING,
        "Zhou et al. 2022, Expert Choice",
        "No padding and no imbalance: every expert gets as many tokens as the next.",
        "routing",
        _balanced,
        covers=("Expert Choice",),
        caveat="A token may be left without experts, which is not simulated, and routing looks at later tokens.",
    ),
    entry(
        "mpoe",
        "MPOE: experts as matrix product operators",
        Price.RETRAINING,
        "Gao et al. 2022, MPOE",
        "Fewer weights to store: experts share a central tensor.",
        "experts",
        None,
        covers=("MPOE",),
        caveat="whether a kernel multiplies the factors or rebuilds the experts decides what is read, and the notes"
        " give neither that nor the ranks.",
    ),
)

DEPTH: tuple[Technique, ...] = (
    entry(
        "calm",
        "CALM: a token leaves when the model is confident",
        Price.RETRAINING,
        "Schuster et al. 2022, CALM",
        SHALLOWER,
        "depth",
        _shallower("calm"),
        _depth(0.5, "an example"),
        caveat=EXIT_CAVEAT,
        covers=("CALM", "early exit", "adaptive computation", "ConsistentEE", "EE-LLM", "Bae et al."),
        published=(
            Published(
                "up to twice as fast",
                "Bae et al. 2023, two exit modules, some tasks; beyond CALM",
                "Yuan et al. 2024, LLM Inference Unveiled, section 4.1.1",
            ),
        ),
    ),
    entry(
        "skipdecode",
        "SkipDecode: one exit for the whole batch",
        Price.RETRAINING,
        "Del Corro et al. 2023, SkipDecode",
        SHALLOWER,
        "depth",
        _shallower("skipdecode"),
        _depth(0.5, "an example"),
        covers=("SkipDecode",),
        caveat="Exits that only move down make the cache valid without copies; prefill runs whole, and accuracy is"
        " not simulated.",
    ),
    entry(
        "mixture-of-depths",
        "Mixture-of-Depths: layers with room for some tokens",
        Price.RETRAINING,
        "Raposo et al. 2024, Mixture-of-Depths",
        SHALLOWER,
        "depth",
        _mixture_of_depths,
        Parameter("capacity", 0.125, "share of the tokens that such a layer takes", 0.001, 1),
        Parameter("every", 2, "layers of which one has a limited capacity", 1, 1000),
        covers=("Mixture-of-Depths",),
        caveat="Prefill and the KV cache, which shrink as well, are counted whole; so are weights that some token of a"
        " batch needs, as if the whole batch skipped a layer together. Accuracy is not simulated.",
    ),
    entry(
        "sample-early-exit",
        "Early exit of whole samples",
        Price.RETRAINING,
        "Liu et al. 2020, FastBERT; Xin et al. 2020, DeeBERT",
        "Fewer FLOPs and bytes, in proportion to the layers that a sample skips.",
        "depth",
        _sample_exit,
        _depth(0.5, "an example"),
        covers=("FastBERT", "DeeBERT", "MP", "MPEE", "Global Past-Future", "PABEE", "HASHEE"),
        caveat="The exit classifiers and samples of a batch that wait for others are not counted; accuracy is not"
        " simulated.",
    ),
)

TECHNIQUES = (*NEURONS, *EXPERTS, *DEPTH)
