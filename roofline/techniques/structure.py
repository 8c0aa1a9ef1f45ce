"""Smaller models: distillation, structured pruning, fewer layers, a smaller vocabulary, shared weights."""

from __future__ import annotations

from msgspec.structs import replace

from roofline.bound.memory import parameters as stored_parameters
from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import Rotation, SharedWeights
from roofline.scenario.scenario import Scenario
from roofline.specs.model import Layer, Model
from roofline.specs.modelspec import load_model
from roofline.specs.sublayers import Attention, FeedForward, LatentAttention, MixtureOfExperts, Mlp
from roofline.techniques.changes import regrouped, scaled, with_rewrite


def student(scenario: Scenario, name: str, *, model: str) -> Scenario:
    """The scenario with a smaller model for the same task."""
    teacher, smaller = scenario.model, load_model(model)
    kinds = [(each.task, each.tower_kind, bool(each.patch)) for each in (teacher, smaller)]
    if kinds[0] != kinds[1]:
        raise RooflineError(f"{name}: {smaller.name} does not do the task of {teacher.name}")
    if stored_parameters(smaller) >= stored_parameters(teacher):
        raise RooflineError(f"{name}: the student {smaller.name} is not smaller than {teacher.name}")
    return scenario.changed(model=smaller)


def prune(
    scenario: Scenario, name: str, *, hidden: float = 1.0, heads: float = 1.0, width: float = 1.0, layers: float = 1.0
) -> Scenario:
    """The scenario with fractions of the hidden size, heads, feed-forward width and layers of its model."""
    return scenario.changed(model=pruned_model(scenario.model, name, hidden, heads, width, layers))


def pruned_model(
    model: Model, name: str, hidden: float = 1.0, heads: float = 1.0, width: float = 1.0, layers: float = 1.0
) -> Model:
    """`model` with these fractions of its hidden size, heads, feed-forward width and layers; also of a text encoder.

    A vision encoder stays. Raises UnsupportedError for layers other than attention.
    """
    if any(not isinstance(group.layer.mixer, Attention | LatentAttention | None) for group in model.groups):
        raise UnsupportedError(f"{name} prunes attention heads, and {model.name} has layers without attention")
    if hidden != 1 and (model.tower_kind == "vision" or model.patch):
        raise UnsupportedError(f"{name} changes the hidden size, which {model.name} shares with its vision encoder")
    tower = model.tower
    if tower is not None and model.tower_kind == "encoder":
        tower = pruned_model(tower, name, hidden, heads, width, layers)
    makes = {group.name: _pruned_layer(group.layer, heads, width) for group in model.groups}
    pruned = regrouped(model, name, makes, list(model.pattern))
    pruned = replace(pruned, hidden=scaled(model.hidden, hidden), tower=tower)
    return pruned if layers == 1 else replace(_with_fewer_layers(pruned, name, layers), name=pruned.name)


def _pruned_layer(layer: Layer, heads: float, width: float) -> Layer:
    mixer, cross = layer.mixer, layer.cross
    if isinstance(mixer, LatentAttention):
        mixer = replace(mixer, heads=scaled(mixer.heads, heads))
    elif isinstance(mixer, Attention):
        mixer = _with_fewer_heads(mixer, heads)
    cross = _with_fewer_heads(cross, heads) if cross else None
    return replace(layer, mixer=mixer, cross=cross, feed_forward=_narrower(layer.feed_forward, width))


def _with_fewer_heads(spec: Attention, fraction: float) -> Attention:
    """KV heads are pruned together with the query heads of their group."""
    kv_heads = scaled(spec.kv_heads, fraction)
    return replace(spec, kv_heads=kv_heads, heads=kv_heads * spec.group)


def _narrower(block: FeedForward | None, fraction: float) -> FeedForward | None:
    match block:
        case Mlp():
            return replace(block, width=scaled(block.width, fraction))
        case MixtureOfExperts():
            shared = scaled(block.shared_width, fraction) if block.shared_width else 0
            return replace(block, width=scaled(block.width, fraction), shared_width=shared)
    return None


def _with_fewer_layers(model: Model, name: str, fraction: float) -> Model:
    """`model` with a fraction of its layers, evenly spread."""
    kept = scaled(model.layers, fraction)
    pattern = [model.pattern[index * model.layers // kept] for index in range(kept)]
    return regrouped(model, name, {group.name: group.layer for group in model.groups}, pattern)


def slice_residual_stream(scenario: Scenario, name: str, *, slice: float) -> Scenario:
    """SliceGPT: a smaller hidden size, and a rotation of the residual stream before each addition."""
    model = scenario.model
    if model.tower is not None or model.task == "encode":
        raise UnsupportedError(f"{name} slices the residual stream of decoder-only models, which {model.name} is not")
    return with_rewrite(prune(scenario, name, hidden=1 - slice), name, Rotation())


def fewer_layers(scenario: Scenario, name: str, *, share: float) -> Scenario:
    """The scenario with a fraction of the layers, evenly spread."""
    return scenario.changed(model=_with_fewer_layers(scenario.model, name, share))


def smaller_vocabulary(scenario: Scenario, name: str, *, share: float) -> Scenario:
    """The scenario with a fraction of the vocabulary."""
    model = scenario.model
    if model.patch or model.vocabulary <= 1:
        raise UnsupportedError(f"{name} needs a vocabulary, and {model.name} has none")
    size, changed = scaled(model.vocabulary, share), f"{model.name}+vocabulary"
    smaller = replace(model, name=changed, vocabulary=size, parameters=None, active_parameters=None)
    return scenario.changed(model=smaller)


def share_weights(scenario: Scenario, name: str, *, repeats: int) -> Scenario:
    """The scenario with weights that each `repeats` neighbouring layers share."""
    if scenario.model.layers < repeats:
        raise UnsupportedError(f"{name}: {scenario.model.name} has only {scenario.model.layers} layers")
    return with_rewrite(scenario, name, SharedWeights(repeats))
