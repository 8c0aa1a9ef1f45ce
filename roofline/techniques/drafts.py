"""The small networks that draft: heads on the target's last hidden state, and single layers like the target's own."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

from msgspec.structs import replace

from roofline.bound.memory import parameters
from roofline.core.errors import UnsupportedError
from roofline.specs.model import (
    Attention,
    LatentAttention,
    Layer,
    LayerGroup,
    MixtureOfExperts,
    Mlp,
    Model,
    Norm,
    Positions,
)
from roofline.specs.modelspec import load_model

_PLAIN = Norm("rmsnorm", weight=False)


def draft_model(name: str, target: Model, technique: str) -> Model:
    """The bundled or given model that drafts for, or answers before, a larger one."""
    model = load_model(name)
    for network in (target, model):
        if network.task != "generate" or network.tower_kind == "encoder":
            raise UnsupportedError(f"{technique} takes decoder-only models, and {network.name} has an encoder")
    if parameters(model) >= parameters(target):
        raise UnsupportedError(f"{technique}: the model {model.name} is no smaller than {target.name} itself")
    return model


@lru_cache(maxsize=128)
def medusa_heads(target: Model, heads: int) -> Model:
    """Medusa's heads: each a residual layer of hidden x hidden and an output matrix of its own.

    All read the same hidden state, so that they are one network that is run once: as many residual layers as heads,
    and one output matrix as wide as all of theirs.
    """
    return Model(
        name=f"{target.name}-medusa-{heads}",
        hidden=target.hidden,
        vocabulary=heads * target.vocabulary,
        groups=(LayerGroup("residual", heads, _products(target, 1)),),
        pattern=("residual",) * heads,
        norm=_PLAIN,
        positions=Positions("none"),
        tied_embeddings=True,  # it is given hidden states, so that there is no table beside the output matrices
        final_norm=False,
        dtype=target.dtype,
    )


@lru_cache(maxsize=128)
def eagle_layer(target: Model) -> Model:
    """EAGLE's draft: the product that fuses hidden state and embedding (2h x h), and a dense decoder layer."""
    layer = _attention_layer(target, "eagle")
    block = layer.feed_forward
    if isinstance(block, MixtureOfExperts):
        layer = replace(layer, feed_forward=Mlp(block.width, block.gated, block.activation))
    return _after_fusing(target, "eagle", layer)


@lru_cache(maxsize=128)
def prediction_module(target: Model) -> Model:
    """A multi-token-prediction module (DeepSeek-V3): the fusing product, and a layer like the target's last one."""
    return _after_fusing(target, "mtp", _attention_layer(target, "multi-token-prediction"))


def _products(target: Model, matrices: int) -> Layer:
    """A residual layer of so many hidden x hidden matrices: an MLP with as many weights."""
    return Layer(_PLAIN, None, Mlp(target.hidden * matrices // 2, gated=False, activation="silu"))


def _attention_layer(target: Model, technique: str) -> Layer:
    """The last layer of the target that attends."""
    layers = {group.name: group.layer for group in target.groups}
    found = (layers[name] for name in reversed(target.pattern))
    layer = next((layer for layer in found if isinstance(layer.mixer, (Attention, LatentAttention))), None)
    if layer is None or layer.cross is not None:
        raise UnsupportedError(f"{technique} drafts with a decoder layer of attention, and {target.name} has none")
    if isinstance(layer.mixer, Attention):
        return replace(layer, mixer=dataclasses.replace(layer.mixer, kv_shared=False))
    if isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer is not None:
        own = dataclasses.replace(layer.mixer.indexer, shared=False)
        return replace(layer, mixer=dataclasses.replace(layer.mixer, indexer=own))
    return layer


def _after_fusing(target: Model, suffix: str, layer: Layer) -> Model:
    return replace(
        target,
        name=f"{target.name}-{suffix}",
        groups=(LayerGroup("fusing", 1, _products(target, 2)), LayerGroup("decoder", 1, layer)),
        pattern=("fusing", "decoder"),
        embedding_width=None,
        tower=None,
        tower_kind=None,
        tower_tokens=None,
        extra_parameters=0,
        mtp=0,
        parameters=None,
        active_parameters=None,
    )
