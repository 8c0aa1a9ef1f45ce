"""Changes of a scenario that techniques are composed of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import (
    Adapter,
    Incoherence,
    LowRank,
    Predictor,
    ProjectedKeys,
    Rewrite,
    Rotation,
    SharedCore,
    SharedWeights,
)
from roofline.scenario.scenario import Scenario
from roofline.specs.formats import Format
from roofline.specs.model import Layer, LayerGroup, Model
from roofline.specs.schemes import UNQUANTIZED, WeightScheme
from roofline.specs.sublayers import Attention, FeedForward, Mixer, MixtureOfExperts, Mlp

B = TypeVar("B", Mlp, MixtureOfExperts)


Check = tuple[Callable[[Model], bool], str]
"""Whether a model has something, and what is said of one without, after the technique's name."""

GENERATES: Check = (
    lambda model: model.task == "generate",
    "applies to token generation, and {} is an encoder-only model",
)

REQUIREMENTS: Mapping[str, tuple[Check, ...]] = {
    "generation": (GENERATES,),
    "causal prompt": (
        GENERATES,
        (
            lambda model: model.tower_kind != "encoder",
            "splits causal prefill, and {} encodes prompts without a causal mask",
        ),
    ),
    "KV cache": (
        GENERATES,
        (lambda model: model.uses_mla or bool(model.attentions), "applies to the KV cache, and {} has none"),
    ),
    "softmax attention": (
        (
            lambda model: model.mixes("attention") or not model.mixes("modules"),
            "changes layers, and those of {} are read off its class",
        ),
        (lambda model: model.mixes("attention"), "applies to softmax attention, and {} has none"),
    ),
    "MLP": (
        (
            lambda model: any(isinstance(group.layer.feed_forward, Mlp) for group in model.groups),
            "applies to dense feed-forward blocks, and {} has none",
        ),
    ),
    "MoE": ((lambda model: bool(model.experts), "applies to MoE layers, and {} has none"),),
}
"""What a technique may require of a model."""


def require(scenario: Scenario, name: str, what: str) -> None:
    """Raise UnsupportedError for a model without what a technique of this name requires, of `REQUIREMENTS`."""
    for holds, problem in REQUIREMENTS[what]:
        if not holds(scenario.model):
            raise UnsupportedError(f"{name} {problem.replace('{}', scenario.model.name)}")


def scaled(value: int, factor: float) -> int:
    """A dimension times `factor`, rounded, at least 1."""
    return max(1, round(value * factor))


def scaled_tokens(count: Any, factor: float) -> Any:
    """Token counts (numbers or arrays) times `factor`, rounded up, at least 1."""
    exact = np.round(np.asarray(count) * factor, 6)  # 0.3 of 1000 is 300, although 1 - 0.7 > 0.3 in binary
    result = np.maximum(np.ceil(exact), 1)
    return int(result) if result.ndim == 0 else result


def with_tokens(scenario: Scenario, **counts: Any) -> Scenario:
    """The scenario with other token counts; an explicit context shifts with the prompt and prefix before it."""
    changed = scenario.changed(context=None, **counts)
    if scenario.context is None:
        return changed
    shifted = np.maximum(scenario.context + (changed.first_cached - scenario.first_cached), 1)
    return changed.changed(context=shifted if np.ndim(shifted) else int(shifted))


def with_cached_prefix(scenario: Scenario, fraction: float, replaced_by: int | None = None) -> Scenario:
    """The scenario with a fraction of each prompt in the KV cache at the start; at least one token is computed.

    The cached part has its own length, or `replaced_by` tokens.
    """
    rest = scaled_tokens(scenario.prompt, 1 - fraction)
    cached = scenario.prompt - rest if replaced_by is None else replaced_by
    return with_tokens(scenario, prompt=rest, prefix=scenario.prefix + cached)


_REWRITE_ORDER: tuple[type[Rewrite], ...] = (
    *(LowRank, Adapter, ProjectedKeys, Incoherence, Rotation, Predictor, SharedCore, SharedWeights),
)
"""Rewrites that replace linear layers come before those that add some, so that added layers stay as they are."""

_EXCLUSIVE = (LowRank, Adapter)


def with_settings(scenario: Scenario, **changes: Any) -> Scenario:
    """The scenario with other settings."""
    return scenario.changed(settings=replace(scenario.settings, **changes))


def with_rewrite(scenario: Scenario, name: str, rewrite: Rewrite) -> Scenario:
    """The scenario with one more rewrite of linear layers; raises RooflineError where two exclude each other."""
    rewrites = scenario.settings.rewrites
    rivals = _EXCLUSIVE if isinstance(rewrite, _EXCLUSIVE) else (type(rewrite),)
    if any(isinstance(other, rivals) for other in rewrites):
        raise RooflineError(f"{name} rewrites linear layers that another technique has already rewritten")
    ordered = sorted((*rewrites, rewrite), key=lambda each: _REWRITE_ORDER.index(type(each)))
    return with_settings(scenario, rewrites=tuple(ordered))


def with_precision(
    scenario: Scenario, weights: WeightScheme | None = None, activations: Format | None = None, kv: Format | None = None
) -> Scenario:
    """The scenario with other formats; None keeps a format."""
    formats = {"weights": weights, "activations": activations, "kv": kv}
    changes: dict[str, Any] = {part: format for part, format in formats.items() if format is not None}
    return scenario.changed(precision=replace(scenario.precision, **changes))


def with_weight_format(scenario: Scenario, change: Callable[[Format], Format]) -> Scenario:
    """The scenario with the format of its linear layers changed; raises UnsupportedError for mixed formats."""
    precision = scenario.precision
    scheme = precision.weights
    if scheme.special:
        raise UnsupportedError(f"changing the mixed weight formats of {scheme.name} is not simulated")
    changed = change(scheme.format_of("up_proj", precision.base, scenario.model.layers))
    kept = UNQUANTIZED | frozenset(scheme.of_model(bool(scenario.model.experts)).unquantized)
    return with_precision(scenario, weights=WeightScheme(changed.name, changed, unquantized=kept))


def _with_layers(scenario: Scenario, name: str, change: Callable[[Layer], Layer]) -> Scenario:
    """The scenario with every layer changed; `name` is appended to the model's name, its published sizes removed."""
    model = scenario.model
    groups = tuple(LayerGroup(group.name, group.count, change(group.layer)) for group in model.groups)
    changed = replace(model, name=f"{model.name}+{name}", groups=groups, parameters=None, active_parameters=None)
    return scenario.changed(model=changed)


def with_attention(scenario: Scenario, name: str, change: Callable[[Attention], Mixer]) -> Scenario:
    """The scenario with its softmax attention changed; raises UnsupportedError for a model without."""
    require(scenario, name, "softmax attention")

    def changed(layer: Layer) -> Layer:
        return replace(layer, mixer=change(layer.mixer)) if isinstance(layer.mixer, Attention) else layer

    return _with_layers(scenario, name, changed)


def with_feed_forward(scenario: Scenario, name: str, kind: type[B], change: Callable[[B], FeedForward]) -> Scenario:
    """The scenario with its feed-forward blocks of one kind changed; raises UnsupportedError for a model without."""
    require(scenario, name, "MLP" if kind is Mlp else "MoE")

    def changed(layer: Layer) -> Layer:
        block = layer.feed_forward
        return replace(layer, feed_forward=change(block)) if isinstance(block, kind) else layer

    return _with_layers(scenario, name, changed)


def split_layers(model: Model, name: str, change: Callable[[int, Layer], Layer]) -> Model:
    """`model` with layers changed one by one; `change` gets the index of a layer within its group."""
    groups = {group.name: group.layer for group in model.groups}
    seen: Counter[str] = Counter()
    layers: dict[str, Layer] = {}
    pattern: list[str] = []
    for group in model.pattern:
        layer = change(seen[group], groups[group])
        seen[group] += 1
        pattern.append(group if layer == groups[group] else f"{group}+{name}")
        layers[pattern[-1]] = layer
    return regrouped(model, name, layers, pattern)


def regrouped(model: Model, name: str, layers: dict[str, Layer], pattern: list[str]) -> Model:
    """`model` with these layers in this pattern, its published sizes removed."""
    counts = Counter(pattern)
    return replace(
        model,
        name=f"{model.name}+{name}",
        groups=tuple(LayerGroup(group, counts[group], layer) for group, layer in layers.items() if counts[group]),
        pattern=tuple(pattern),
        parameters=None,
        active_parameters=None,
    )
