"""Conditional computation: each token skips neurons, experts or layers."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import Predictor
from roofline.scenario.scenario import Scenario
from roofline.specs.model import Layer, MixtureOfExperts, Mlp
from roofline.techniques.base import UNVEILED, Change, Parameter, Price, Published, Technique, Values, model_technique
from roofline.techniques.changes import (
    require_feed_forward,
    require_generation,
    scaled,
    split_layers,
    with_feed_forward,
    with_rewrite,
    with_settings,
)

_entry = partial(model_technique, price=Price.RETRAINING, caveat="Accuracy is not simulated.")


def _into_experts(name: str, block: Mlp, experts: int, top_k: int, width: int) -> MixtureOfExperts:
    if block.receptance or block.shift:
        raise UnsupportedError(f"{name} turns MLPs into experts, which RWKV's channel mixing does not allow")
    if top_k > experts:
        raise RooflineError(f"{name}: top-k {top_k} exceeds the {experts} experts")
    return MixtureOfExperts(experts, top_k, width, block.gated, block.activation, bias=block.bias)


# --- neurons ----------------------------------------------------------------------------------------------------------


def _deja_vu(scenario: Scenario, values: Values) -> Scenario:
    def sparse(block: Mlp) -> Mlp:
        return replace(block, active=values["active"] * block.active)

    return with_rewrite(with_feed_forward(scenario, "deja-vu", Mlp, sparse), "deja-vu", Predictor(values["predictor"]))


def _matformer(scenario: Scenario, values: Values) -> Scenario:
    def nested(block: Mlp) -> Mlp:
        return replace(block, width=scaled(block.width, values["width"]))

    return with_feed_forward(scenario, "matformer", Mlp, nested)


def _moefication(scenario: Scenario, values: Values) -> Scenario:
    def split(block: Mlp) -> MixtureOfExperts:
        experts = max(1, block.width // values["neurons"])
        return _into_experts("moefication", block, experts, scaled(experts, values["active"]), block.width // experts)

    return with_feed_forward(scenario, "moefication", Mlp, split)


NEURONS: tuple[Technique, ...] = (
    _entry(
        "deja-vu",
        "Deja Vu: contextual sparsity",
        "Liu et al. 2023, Deja Vu",
        "Fewer FLOPs and bytes of feed-forward blocks: a small predictor selects the active neurons of each token.",
        "neurons",
        _deja_vu,
        Parameter("active", 0.2, "fraction of the neurons that a token activates", 0.001, 1),
        Parameter("predictor", 1000, "width of the predictor's bottleneck, as in the authors' code", 1, 65536),
        price=Price.CALIBRATION,
        covers=("Deja Vu", "contextual sparsity"),
        published=(Published("up to 80% sparsity, more than twice as fast", "OPT-175B", f"{UNVEILED}, section 4.1.2"),),
        caveat="Tokens are assumed to activate neurons independently, so that savings fall with the tokens of a pass;"
        " fewer FLOPs need a kernel that skips neurons token by token, and none does so in prefill. Skipped attention"
        " heads are counted as computed, and accuracy is not simulated.",
    ),
    _entry(
        "matformer",
        "MatFormer: nested feed-forward blocks",
        "Devvrit et al. 2023, MatFormer",
        "Fewer FLOPs and bytes of feed-forward blocks: a nested part of them runs as a smaller model.",
        "neurons",
        _matformer,
        Parameter("width", 0.5, "fraction of the width that runs: 1/8, 1/4, 1/2 or 1", 0.001, 1),
        covers=("MatFormer",),
        published=(
            Published(
                "feed-forward blocks are 60% of all weights",
                "",
                f"{UNVEILED}, section 4.1.2; of a 7B block it is 67%",
            ),
        ),
        caveat="Memory is that of the nested part; accuracy is not simulated.",
    ),
    _entry(
        "moefication",
        "MoEfication: neurons grouped into experts",
        "Zhang et al. 2021, MoEfication",
        "Fewer FLOPs of feed-forward blocks, and fewer bytes while a batch does not route to every expert.",
        "neurons",
        _moefication,
        Parameter("neurons", 32, "neurons of an expert", 1, 10**6),
        Parameter("active", 0.2, "fraction of the experts that a token is routed to", 0.001, 1),
        price=Price.CALIBRATION,
        covers=("MoEfication",),
        caveat="The method relies on the zeros of ReLU; other activations need retraining. Accuracy is not simulated.",
    ),
)


# --- experts ----------------------------------------------------------------------------------------------------------


def _upcycled(scenario: Scenario, values: Values) -> Scenario:
    """Experts in every n-th feed-forward block, each a copy of the block."""
    require_feed_forward(scenario, "sparse-upcycling", Mlp)

    def copied(index: int, layer: Layer) -> Layer:
        block = layer.feed_forward
        if index % values["every"] != values["every"] - 1 or not isinstance(block, Mlp):
            return layer
        experts = _into_experts("sparse-upcycling", block, values["experts"], values["top_k"], block.width)
        return replace(layer, feed_forward=experts)

    return replace(scenario, model=split_layers(scenario.model, "experts", copied))


def _expert_pruning(scenario: Scenario, values: Values) -> Scenario:
    def pruned(block: MixtureOfExperts) -> MixtureOfExperts:
        experts = scaled(block.experts, values["kept"])
        return replace(block, experts=experts, top_k=min(block.top_k, experts))

    return with_feed_forward(scenario, "expert-pruning", MixtureOfExperts, pruned)


def _smaller_top_k(scenario: Scenario, values: Values) -> Scenario:
    name, top_k, model = "top-k-reduction", values["top_k"], scenario.model
    if all(block.top_k <= top_k for block in model.experts) and model.experts:
        raise UnsupportedError(f"{name}: {model.name} already routes each token to no more than {top_k} experts")

    def reduced(block: MixtureOfExperts) -> MixtureOfExperts:
        return replace(block, top_k=min(block.top_k, top_k))

    return with_feed_forward(scenario, name, MixtureOfExperts, reduced)


def _one_task(scenario: Scenario, _: Values) -> Scenario:
    def extracted(block: MixtureOfExperts) -> Mlp:
        width = block.top_k * block.width + block.shared_width
        return Mlp(width, block.gated, block.activation, bias=block.bias)

    return with_feed_forward(scenario, "task-moe", MixtureOfExperts, extracted)


def _balanced(scenario: Scenario, _: Values) -> Scenario:
    require_feed_forward(scenario, "expert-choice", MixtureOfExperts)
    return with_settings(scenario, expert_skew=0.0, expert_capacity=1.0)


EXPERTS: tuple[Technique, ...] = (
    _entry(
        "sparse-upcycling",
        "Sparse upcycling: copies of an MLP as experts",
        "Komatsuzaki et al. 2022, Sparse Upcycling",
        "More weights to store, and to read with every expert that a batch routes to; FLOPs grow with top-k.",
        "experts",
        _upcycled,
        Parameter("experts", 32, "experts made of one block", 1, 10**5),
        Parameter("top_k", 2, "experts that a token is routed to", 1, 10**5),
        Parameter("every", 2, "blocks of which one becomes experts", 1, 1000),
        covers=("Sparse Upcycling", "MoE", "Switch Transformers"),
        caveat="The gain in accuracy is not simulated.",
    ),
    _entry(
        "expert-pruning",
        "Expert pruning",
        "Lu et al. 2024, ExpertSparsity; Muzio et al. 2024, SEER-MoE",
        "Fewer weights to store, and fewer to read once a batch routes to most experts; FLOPs stay.",
        "experts",
        _expert_pruning,
        Parameter("kept", 0.75, "fraction of the experts kept (6 of 8)", 0.001, 1),
        price=Price.CALIBRATION,
        covers=("ExpertSparsity", "SEER-MoE", "expert pruning"),
    ),
    _entry(
        "top-k-reduction",
        "Fewer experts per token",
        "Muzio et al. 2024, SEER-MoE",
        "Fewer FLOPs of experts, and fewer bytes while a batch does not route to every expert; memory stays.",
        "top-k",
        _smaller_top_k,
        Parameter("top_k", 1, "experts that a token is routed to", 1, 10**5),
        price=Price.CALIBRATION,
    ),
    _entry(
        "task-moe",
        "TaskMoE: the experts of one task as a dense model",
        "Kudugunta et al. 2021, TaskMoE",
        "Fewer weights to store and read: those of the task's experts; FLOPs stay, except the router's.",
        "experts",
        _one_task,
        covers=("TaskMoE",),
    ),
    _entry(
        "expert-choice",
        "Expert choice: experts select their tokens",
        "Zhou et al. 2022, Expert Choice",
        "No padding and no imbalance: all experts get the same number of tokens.",
        "routing",
        _balanced,
        covers=("Expert Choice",),
        caveat="A token may get no expert, which is not simulated, and routing uses later tokens.",
    ),
    _entry(
        "mpoe",
        "MPOE: experts as matrix product operators",
        "Gao et al. 2022, MPOE",
        "Fewer weights to store: experts share a central tensor.",
        "experts",
        None,
        covers=("MPOE",),
        caveat="the bytes read depend on whether a kernel multiplies the factors or rebuilds the experts, and neither"
        " that nor the ranks are published",
    ),
)


# --- depth ------------------------------------------------------------------------------------------------------------


def _early_exit(name: str, propagate_keys: bool) -> Change:
    def change(scenario: Scenario, values: Values) -> Scenario:
        require_generation(scenario, name)
        depth = scenario.settings.depth * values["depth"]
        return with_settings(scenario, depth=depth, propagate_keys=propagate_keys)

    return change


def _sample_exit(scenario: Scenario, values: Values) -> Scenario:
    if scenario.model.task != "encode":
        raise UnsupportedError(
            f"sample-early-exit needs an encoder-only model, not {scenario.model.name}: use calm or skipdecode"
        )
    return with_settings(scenario, depth=values["depth"])


def _mixture_of_depths(scenario: Scenario, values: Values) -> Scenario:
    require_generation(scenario, "mixture-of-depths")
    skipped = (1 - values["capacity"]) / values["every"]
    return with_settings(scenario, depth=scenario.settings.depth * (1 - skipped))


_SHALLOWER = "Fewer FLOPs and bytes in decode, in proportion to the layers that a token skips; memory stays."
_DEPTH = Parameter("depth", 0.5, "fraction of the layers that a token runs through on average (an example)", 0.01, 1)

DEPTH: tuple[Technique, ...] = (
    _entry(
        "calm",
        "CALM: early exit by confidence",
        "Schuster et al. 2022, CALM",
        _SHALLOWER,
        "depth",
        _early_exit("calm", propagate_keys=True),
        _DEPTH,
        covers=("CALM", "early exit", "adaptive computation", "ConsistentEE", "EE-LLM", "Bae et al."),
        published=(
            Published(
                "up to twice as fast",
                "Bae et al. 2023, two exit modules, some tasks; beyond CALM",
                f"{UNVEILED}, section 4.1.1",
            ),
        ),
        caveat="Skipped layers compute the keys and values of a token from its last hidden state. Not counted: the exit"
        " classifiers, and waiting for the deepest token of a batch, which skipdecode avoids. Prefill runs all layers,"
        " and accuracy is not simulated.",
    ),
    _entry(
        "skipdecode",
        "SkipDecode: one exit layer for the whole batch",
        "Del Corro et al. 2023, SkipDecode",
        _SHALLOWER,
        "depth",
        _early_exit("skipdecode", propagate_keys=False),
        _DEPTH,
        covers=("SkipDecode",),
        caveat="Skipped layers need no keys and values, since the exit layer never rises with the position, and a batch"
        " exits together; prefill runs all layers, and accuracy is not simulated.",
    ),
    _entry(
        "mixture-of-depths",
        "Mixture-of-Depths: layers with a capacity in tokens",
        "Raposo et al. 2024, Mixture-of-Depths",
        _SHALLOWER,
        "depth",
        _mixture_of_depths,
        Parameter("capacity", 0.125, "fraction of the tokens that such a layer processes", 0.001, 1),
        Parameter("every", 2, "layers of which one has a limited capacity", 1, 1000),
        covers=("Mixture-of-Depths",),
        caveat="Prefill and the KV cache, which shrink too, are counted in full; weights are counted as if the whole"
        " batch skipped a layer together. Accuracy is not simulated.",
    ),
    _entry(
        "sample-early-exit",
        "Early exit of whole samples",
        "Liu et al. 2020, FastBERT; Xin et al. 2020, DeeBERT",
        "Fewer FLOPs and bytes, in proportion to the layers that a sample skips.",
        "depth",
        _sample_exit,
        _DEPTH,
        covers=("FastBERT", "DeeBERT", "MP", "MPEE", "Global Past-Future", "PABEE", "HASHEE"),
        caveat="The exit classifiers and waiting for other samples of a batch are not counted; accuracy is not"
        " simulated.",
    ),
)

TECHNIQUES = (*NEURONS, *EXPERTS, *DEPTH)
