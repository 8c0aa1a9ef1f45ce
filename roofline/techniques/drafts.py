"""Draft networks of speculative decoding: output heads on the last hidden state, and single decoder layers."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from roofline.bound.memory import parameters
from roofline.core.errors import UnsupportedError
from roofline.specs.model import Layer, LayerGroup, Model, Norm, Positions
from roofline.specs.modelspec import load_model
from roofline.specs.sublayers import Attention, CompressedAttention, LatentAttention, MixtureOfExperts, Mlp

_PLAIN = Norm("rmsnorm", weight=False)


def draft_model(name: str, target: Model, technique: str) -> Model:
    """The model of this name, smaller than `target`, for drafts or a cascade; raises UnsupportedError if unsuitable."""
    model = load_model(name)
    for network in (target, model):
        if network.task != "generate" or network.tower_kind == "encoder":
            raise UnsupportedError(f"{technique} needs decoder-only models, and {network.name} has an encoder")
    if parameters(model) >= parameters(target):
        raise UnsupportedError(f"{technique}: the model {model.name} is no smaller than {target.name} itself")
    return model


@lru_cache(maxsize=128)
def medusa_heads(target: Model, heads: int) -> Model:
    """Medusa's heads as one network: each head is a residual layer of hidden x hidden and an output matrix.

    All heads read the same hidden state, so that the network has as many residual layers as heads, and one output
    matrix of heads x vocabulary.
    """
    return Model(
        name=f"{target.name}-medusa-{heads}",
        hidden=target.hidden,
        vocabulary=heads * target.vocabulary,
        groups=(LayerGroup("residual", heads, _residual_layer(target, 1)),),
        pattern=("residual",) * heads,
        norm=_PLAIN,
        positions=Positions("none"),
        tied_embeddings=True,  # its input is hidden states, so that there is no embedding beside the output matrices
        final_norm=False,
        dtype=target.dtype,
    )


@lru_cache(maxsize=128)
def eagle_layer(target: Model) -> Model:
    """EAGLE's draft network: the GEMM that fuses hidden state and embedding (2h x h), and a dense decoder layer."""
    return _fused_input_model(target, "eagle", _dense(_attention_layer(target, "eagle")))


EAGLE_3_VOCABULARY = 32_000
"""Tokens of EAGLE-3's lm_head: the most frequent (`draft_vocab_size` of the released checkpoints of Llama 3.1)."""


@lru_cache(maxsize=128)
def eagle_3_layer(target: Model) -> Model:
    """EAGLE-3's draft network: hidden states of three layers fused (3h x h), and a layer that also reads the embedding.

    Queries, keys and values have the embedding as a second input, whose matrices are counted with the fusing one.
    """
    layer = _dense(_attention_layer(target, "eagle-3"))
    mixer = layer.mixer
    second = 1.0
    if isinstance(mixer, Attention):
        keys_and_values = mixer.kv_heads * (mixer.head_dim + mixer.value_width)
        second = (mixer.heads * mixer.head_dim + keys_and_values) / target.hidden
    model = _fused_input_model(target, "eagle-3", layer, matrices=3 + second)
    return replace(model, vocabulary=min(EAGLE_3_VOCABULARY, target.vocabulary))


@lru_cache(maxsize=128)
def prediction_module(target: Model) -> Model:
    """An MTP module (DeepSeek-V3): the fusing GEMM (2h x h), and a layer like the target's last one.

    Where layers are attention or a feed-forward block, the module has both (Nemotron 3, as its checkpoints hold them).
    """
    layer = _attention_layer(target, "multi-token-prediction")
    if layer.feed_forward is None:
        blocks = (group.layer.feed_forward for group in reversed(target.groups) if group.layer.mixer is None)
        layer = replace(layer, feed_forward=next(blocks, None))
    return _fused_input_model(target, "mtp", layer)


@lru_cache(maxsize=128)
def block_layers(target: Model, layers: int, experts: bool) -> Model:
    """The layers of a draft of blocks (DFlash, DSpark) behind the GEMM that fuses hidden states (2h x h)."""
    layer = _attention_layer(target, "a draft of blocks")
    block, own = layer.feed_forward, target.draft_experts
    if own is not None and isinstance(block, MixtureOfExperts):
        layer = replace(layer, feed_forward=replace(block, experts=own.experts, top_k=own.top_k))
    return _fused_input_model(target, "block", layer if experts else _dense(layer), layers=layers)


def _residual_layer(target: Model, matrices: float) -> Layer:
    """A residual layer of `matrices` hidden x hidden matrices: an MLP with as many weights."""
    return Layer(_PLAIN, None, Mlp(int(target.hidden * matrices) // 2, gated=False, activation="silu"))


def _dense(layer: Layer) -> Layer:
    block = layer.feed_forward
    if not isinstance(block, MixtureOfExperts):
        return layer
    return replace(layer, feed_forward=Mlp(block.width, block.gated, block.activation))


DRAFTING = (Attention, LatentAttention, CompressedAttention)
"""Mixers of the layers that drafts are like."""


def _attention_layer(target: Model, technique: str) -> Layer:
    """The target's last layer with attention, with its own KV cache and indexer."""
    layers = {group.name: group.layer for group in target.groups}
    found = (layers[name] for name in reversed(target.pattern))
    layer = next((layer for layer in found if isinstance(layer.mixer, DRAFTING)), None)
    if layer is None or layer.cross is not None:
        raise UnsupportedError(f"{technique} drafts with a decoder-only attention layer, and {target.name} has none")
    if isinstance(layer.mixer, CompressedAttention):  # the module of DeepSeek-V4 sees its window alone
        window = replace(layer.mixer, ratio=None, indexer=None, shared=False)
        return replace(layer, mixer=window, engram=None, tail=0)
    if isinstance(layer.mixer, Attention):
        return replace(layer, mixer=replace(layer.mixer, kv_shared=False))
    if isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer is not None:
        own = replace(layer.mixer.indexer, shared=False)
        return replace(layer, mixer=replace(layer.mixer, indexer=own))
    return layer


def _fused_input_model(target: Model, suffix: str, layer: Layer, matrices: float = 2, layers: int = 1) -> Model:
    """A model of the fusing GEMM, of `matrices` hidden x hidden matrices, and decoder layers."""
    return replace(
        target,
        name=f"{target.name}-{suffix}",
        groups=(LayerGroup("fusing", 1, _residual_layer(target, matrices)), LayerGroup("decoder", layers, layer)),
        pattern=("fusing", *("decoder",) * layers),
        embedding_width=None,
        tower=None,
        tower_kind=None,
        tower_tokens=None,
        extra_parameters=0,
        mtp=0,
        parameters=None,
        active_parameters=None,
    )
