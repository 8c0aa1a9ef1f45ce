"""What the parts of a layer in a model file must have in common."""

from __future__ import annotations

from roofline.core.errors import SpecError
from roofline.specs.model import Layer
from roofline.specs.sublayers import Attention, CompressedAttention, MixtureOfExperts


def check_layer(layer: Layer, prefix: str, where: str) -> None:
    """Raise SpecError for parts of a layer that do not go together; `prefix` is the key path of its block."""
    for key, attention in (("attention", layer.mixer), ("cross", layer.cross)):
        if isinstance(attention, Attention) and attention.heads % attention.kv_heads:
            problem = f"{attention.heads} heads are not divisible by {attention.kv_heads} kv_heads"
            raise SpecError(where, f"'{prefix}{key}.kv_heads': {problem}")
        if isinstance(attention, Attention) and attention.chunk and (attention.window or not attention.causal):
            raise SpecError(where, f"'{prefix}{key}.chunk': attention in chunks is causal and has no window")
    experts = layer.feed_forward
    if isinstance(experts, MixtureOfExperts) and experts.top_k > experts.experts:
        problem = f"{experts.top_k} of {experts.experts} experts cannot be selected"
        raise SpecError(where, f"'{prefix}moe.top_k': {problem}")
    if isinstance(experts, MixtureOfExperts):
        _check_groups(experts, f"{prefix}moe", where)
    for key in ("shared_norm", "one_all_reduce"):
        if getattr(layer, key) and layer.residual != "parallel":
            raise SpecError(where, f"'{prefix}{key}' needs residual: parallel")
    if (layer.streams or layer.residual_blocks) and (layer.norm.placement, layer.residual) != ("pre", "sequential"):
        key = "streams" if layer.streams else "residual_blocks"
        raise SpecError(where, f"'{prefix}{key}' needs residual: sequential and pre norms")
    if layer.engram is not None and not layer.streams:
        raise SpecError(where, f"'{prefix}engram' adds to the vectors of a stream: give 'streams'")
    if layer.tail and not isinstance(layer.mixer, CompressedAttention):
        raise SpecError(where, f"'{prefix}tail' is known of layers with compressed_attention alone")
    if isinstance(layer.mixer, CompressedAttention):
        _check_compressed(layer.mixer, f"{prefix}compressed_attention", where)
    if layer.residual == "parallel" and layer.norm.placement != "pre":
        raise SpecError(where, f"'{prefix}norm.placement': a parallel residual takes pre norms only")
    if layer.residual == "parallel" and (layer.mixer is None or layer.feed_forward is None or layer.cross):
        raise SpecError(where, f"'{prefix}residual': parallel needs a mixer and a feed-forward block, and no cross")


def _check_compressed(spec: CompressedAttention, key: str, where: str) -> None:
    """Raises SpecError for an indexer without entries to select, and for groups that do not divide the heads."""
    if spec.indexer is not None and spec.ratio is None:
        raise SpecError(where, f"'{key}.indexer' selects compressed entries: give a ratio")
    if spec.indexer is not None and spec.indexer.shared and not spec.shared:
        raise SpecError(where, f"'{key}.indexer.shared': a selection is of the entries of the same layer: give shared")
    if spec.heads % spec.output_groups:
        raise SpecError(where, f"'{key}.output_groups': {spec.heads} heads are not divisible by {spec.output_groups}")


def _check_groups(spec: MixtureOfExperts, key: str, where: str) -> None:
    """Raises SpecError where the groups of group-limited routing do not divide the experts or hold too few."""
    if spec.experts % spec.groups:
        raise SpecError(where, f"'{key}.groups': {spec.experts} experts are not divisible into {spec.groups} groups")
    if spec.top_groups > spec.groups:
        raise SpecError(where, f"'{key}.top_groups': {spec.top_groups} of {spec.groups} groups cannot be selected")
    if (held := spec.top_groups * spec.experts // spec.groups) < spec.top_k:
        problem = f"{spec.top_groups} groups hold {held} experts, fewer than the {spec.top_k} of top_k"
        raise SpecError(where, f"'{key}.top_groups': {problem}")
