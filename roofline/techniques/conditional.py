"""Conditional computation: each token skips neurons, experts or layers."""

from __future__ import annotations

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import Predictor, SharedCore
from roofline.scenario.scenario import Scenario
from roofline.specs.model import Layer
from roofline.specs.sublayers import MixtureOfExperts, Mlp
from roofline.techniques.changes import scaled, split_layers, with_feed_forward, with_rewrite, with_settings


def active_neurons(scenario: Scenario, name: str, *, active: float, predictor: int) -> Scenario:
    """Deja Vu: MLPs of which a token activates a fraction, behind a predictor with this bottleneck."""

    def sparse(block: Mlp) -> Mlp:
        return replace(block, active=active * block.active)

    return with_rewrite(with_feed_forward(scenario, name, Mlp, sparse), name, Predictor(predictor))


def nested_blocks(scenario: Scenario, name: str, *, width: float) -> Scenario:
    """MatFormer: MLPs with a fraction of their width."""
    return with_feed_forward(scenario, name, Mlp, lambda block: replace(block, width=scaled(block.width, width)))


def neurons_as_experts(scenario: Scenario, name: str, *, neurons: int, active: float) -> Scenario:
    """MoEfication: MLPs split into experts of `neurons` neurons, of which a token is routed to a fraction."""

    def split(block: Mlp) -> MixtureOfExperts:
        experts = max(1, block.width // neurons)
        return _into_experts(name, block, experts, scaled(experts, active), block.width // experts)

    return with_feed_forward(scenario, name, Mlp, split)


def _into_experts(name: str, block: Mlp, experts: int, top_k: int, width: int) -> MixtureOfExperts:
    if block.receptance or block.shift:
        raise UnsupportedError(f"{name} turns MLPs into experts, which RWKV's channel mixing does not allow")
    if top_k > experts:
        raise RooflineError(f"{name}: top-k {top_k} exceeds the {experts} experts")
    return MixtureOfExperts(experts, top_k, width, block.gated, block.activation, bias=block.bias)


def copies_as_experts(scenario: Scenario, name: str, *, experts: int, top_k: int, every: int) -> Scenario:
    """Sparse upcycling: one of `every` MLPs becomes experts, each a copy of it."""

    def copied(index: int, layer: Layer) -> Layer:
        block = layer.feed_forward
        if index % every != every - 1 or not isinstance(block, Mlp):
            return layer
        return replace(layer, feed_forward=_into_experts(name, block, experts, top_k, block.width))

    return scenario.changed(model=split_layers(scenario.model, "experts", copied))


def experts_of_products(scenario: Scenario, name: str, *, experts: int, bond: int) -> Scenario:
    """MPOE: the experts of a mixture, or so many top-1 ones made of each MLP, share the core of their matrices."""
    if not scenario.model.experts:
        scenario = copies_as_experts(scenario, name, experts=experts, top_k=1, every=1)
    return with_rewrite(scenario, name, SharedCore(bond))


def fewer_experts(scenario: Scenario, name: str, *, kept: float) -> Scenario:
    """The scenario with a fraction of the experts."""

    def pruned(block: MixtureOfExperts) -> MixtureOfExperts:
        experts = scaled(block.experts, kept)
        return replace(block, experts=experts, top_k=min(block.top_k, experts))

    return with_feed_forward(scenario, name, MixtureOfExperts, pruned)


def smaller_top_k(scenario: Scenario, name: str, *, top_k: int) -> Scenario:
    """The scenario with tokens routed to at most `top_k` experts; raises UnsupportedError where they already are."""
    model = scenario.model
    if model.experts and all(block.top_k <= top_k for block in model.experts):
        raise UnsupportedError(f"{name}: {model.name} already routes each token to no more than {top_k} experts")

    def reduced(block: MixtureOfExperts) -> MixtureOfExperts:
        return replace(block, top_k=min(block.top_k, top_k))

    return with_feed_forward(scenario, name, MixtureOfExperts, reduced)


def experts_of_one_task(scenario: Scenario, name: str) -> Scenario:
    """TaskMoE: the experts that a token of one task is routed to, as an MLP."""

    def extracted(block: MixtureOfExperts) -> Mlp:
        width = block.top_k * block.width + block.shared_width
        return Mlp(width, block.gated, block.activation, bias=block.bias)

    return with_feed_forward(scenario, name, MixtureOfExperts, extracted)


def early_exit(scenario: Scenario, _: str, *, depth: float, propagate_keys: bool) -> Scenario:
    """Tokens run through a fraction of the layers; skipped ones still compute keys and values if `propagate_keys`."""
    return with_settings(scenario, depth=scenario.settings.depth * depth, propagate_keys=propagate_keys)


def sample_exit(scenario: Scenario, name: str, *, depth: float) -> Scenario:
    """Whole samples of an encoder run through a fraction of the layers."""
    if scenario.model.task != "encode":
        raise UnsupportedError(f"{name} needs an encoder-only model, not {scenario.model.name}: use calm or skipdecode")
    return with_settings(scenario, depth=depth)


def limited_capacity(scenario: Scenario, _: str, *, capacity: float, every: int) -> Scenario:
    """Mixture-of-Depths: one of `every` layers processes a fraction of the tokens."""
    return with_settings(scenario, depth=scenario.settings.depth * (1 - (1 - capacity) / every))
