"""Attention techniques: sparse patterns, KV cache eviction, selection of keys, fewer KV heads, linear attention."""

from __future__ import annotations

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import ProjectedKeys
from roofline.scenario.scenario import Scenario
from roofline.specs.model import Layer
from roofline.specs.sublayers import Attention, Retention
from roofline.techniques.changes import split_layers, with_attention, with_rewrite, with_settings


def limit_to_window(scenario: Scenario, name: str, *, window: int, extra: int) -> Scenario:
    """The scenario with attention to a window and `extra` other tokens, where it does not already see fewer."""

    def limited(spec: Attention) -> Attention:
        visible = None if spec.window is None else spec.window + spec.extra
        narrow = visible is not None and visible <= window + extra
        return spec if narrow else replace(spec, window=window, extra=extra)

    return with_attention(scenario, name, limited)


def select_keys(scenario: Scenario, name: str, *, keys: int, page: int | None = None) -> Scenario:
    """The scenario with attention to at most `keys` keys per query.

    With pages, all pages are scored and those of the best `keys` keys are read (Quest); a page of one key is top-k
    attention.
    """
    return with_attention(
        scenario, name, lambda spec: replace(spec, selected=min(keys, spec.selected or keys), page=page)
    )


def read_pages(scenario: Scenario, name: str, *, budget: int, page: int) -> Scenario:
    """Quest: each query reads the pages of `budget` keys."""
    return select_keys(scenario, name, keys=budget, page=page)


def project_keys(scenario: Scenario, name: str, *, rank: int) -> Scenario:
    """Linformer: attention to `rank` projections of the keys and values of a whole sequence."""
    if scenario.model.task != "encode":
        raise UnsupportedError(f"{name} projects whole sequences, and attention in {scenario.model.name} is causal")
    return with_rewrite(select_keys(scenario, name, keys=rank), name, ProjectedKeys())


def linear(scenario: Scenario, name: str, *, features: int) -> Scenario:
    """Kernel-based attention: a state of `features` (0: the head dimension) by head dimension in place of a cache."""

    def retention(spec: Attention) -> Retention:
        return Retention(spec.heads, features or spec.head_dim, spec.head_dim, gated=False)

    return with_attention(scenario, name, retention)


def pool_tokens(scenario: Scenario, name: str, *, blocks: int) -> Scenario:
    """Funnel-Transformer: each of `blocks` blocks of layers has half of the tokens of the one before."""
    if scenario.model.task != "encode":
        raise UnsupportedError(f"{name} pools the tokens of encoders, and {scenario.model.name} is none")
    return with_settings(scenario, stages=tuple((1 / blocks, 0.5**block) for block in range(blocks)))


PRUNING_STEPS = 4
"""Steps in which token pruning is simulated."""


def prune_tokens(scenario: Scenario, _: str, *, keep: float) -> Scenario:
    """The tokens left fall linearly with depth to the fraction `keep`; a step has those of its middle."""
    steps = ((index + 0.5) / PRUNING_STEPS for index in range(PRUNING_STEPS))
    return with_settings(scenario, stages=tuple((1 / PRUNING_STEPS, 1 - (1 - keep) * depth) for depth in steps))


def evict(scenario: Scenario, name: str, *, budget: int, drop: float = 0.0) -> Scenario:
    """A KV cache of at most `budget` tokens a sequence, of which a full buffer drops the fraction `drop` at once."""
    kept = max(1, round(budget * (1 - drop / 2)))
    return with_attention(scenario, name, lambda spec: replace(spec, kept=min(kept, spec.kept or kept)))


def fewer_kv_heads(scenario: Scenario, name: str, *, kv_heads: int) -> Scenario:
    """The scenario with at most `kv_heads` KV heads; raises UnsupportedError where there are no more."""

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


def share_kv_cache(scenario: Scenario, _: str, *, every: int) -> Scenario:
    """The scenario in which `every` consecutive layers use the keys and values of the first of them."""

    def shared(index: int, layer: Layer) -> Layer:
        if index % every == 0 or not isinstance(layer.mixer, Attention):
            return layer
        return replace(layer, mixer=replace(layer.mixer, kv_shared=True))

    return scenario.changed(model=split_layers(scenario.model, "shared", shared))
