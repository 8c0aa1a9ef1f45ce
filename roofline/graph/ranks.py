"""The model of one rank: its dimensions divided by tensor, expert and decode context parallelism.

Tensor parallelism divides heads, widths and the vocabulary, expert parallelism the experts. A degree that does not
divide a dimension, or that no kernel is known to run, raises.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.extents import popularity
from roofline.graph.parallel import Parallelism
from roofline.specs.model import Layer, Model
from roofline.specs.sublayers import (
    Attention,
    CompressedAttention,
    DeltaNet,
    Hyena,
    KimiDelta,
    LatentAttention,
    LinearModule,
    Mamba,
    Mamba2,
    MixtureOfExperts,
    Mlp,
    Modules,
    Retention,
    Rwkv,
    StateSpace,
    UNet,
)


def check_stages(model: Model, parallelism: Parallelism) -> None:
    """Raises RooflineError if there are more pipeline stages than layers."""
    if parallelism.pipeline > model.layers:
        layers = f"{model.layers} layers" if model.layers > 1 else "one layer"
        raise RooflineError(f"{parallelism.pipeline} pipeline stages: {model.name} has only {layers}", options=["pp"])


@lru_cache(maxsize=512)
def rank_model(model: Model, parallelism: Parallelism) -> Model:
    """The model of one rank of a stage; raises RooflineError where a degree does not divide a dimension."""
    check_stages(model, parallelism)
    if parallelism.expert > 1 and not model.experts:
        raise RooflineError(
            f"expert parallelism over {parallelism.expert}: {model.name} has no experts", options=["ep"]
        )
    mixers = [group.layer.mixer for group in model.groups]
    if parallelism.sequence > 1 and any(not isinstance(mixer, Attention) or mixer.indexer for mixer in mixers):
        raise UnsupportedError(
            f"sequence parallelism is simulated for softmax attention only; {model.name} has other layers",
            options=["sp"],
        )
    if parallelism.context > 1:
        _check_context(model, parallelism)
    degree = parallelism.tensor
    if degree == 1 and parallelism.expert == 1:
        return model
    groups = tuple(replace(group, layer=_rank_layer(group.layer, model.name, parallelism)) for group in model.groups)
    return replace(
        model,
        name=f"{model.name} (rank of {parallelism.tensor} x {parallelism.expert})",
        groups=groups,
        vocabulary=-(-model.vocabulary // degree),  # padded to divide
        extra_parameters=model.extra_parameters // degree,
    )


def _check_context(model: Model, parallelism: Parallelism) -> None:
    """Raises where tensor ranks have no copies of keys to divide: vLLM asserts dcp <= tp / KV heads, MLA has one."""
    mixers = [group.layer.mixer for group in model.groups]
    if not any(isinstance(mixer, (Attention, LatentAttention, CompressedAttention)) for mixer in mixers):
        raise RooflineError(f"{model.name} has no keys that decode context parallelism divides", options=["dcp"])
    if not all(_copies(mixer, parallelism.tensor) for mixer in mixers):
        raise UnsupportedError(
            f"decode context parallelism is simulated for attention to all keys; {model.name} selects some",
            options=["dcp"],
        )
    copies = key_copies(model, parallelism.tensor)
    if copies % parallelism.context:
        raise RooflineError(
            f"decode context parallelism of {parallelism.context} does not divide the {copies} copies of keys that"
            f" a tensor parallelism of {parallelism.tensor} has of {model.name}",
            options=["dcp", "tp"],
        )


def key_copies(model: Model, tensor: int) -> int:
    """The tensor ranks that hold the same keys, which decode context parallelism divides; 0 where it divides none."""
    copies = [_copies(group.layer.mixer, tensor) for group in model.groups]
    return math.gcd(*copies) if all(copies) else 0


def _copies(mixer: object, tensor: int) -> int:
    if isinstance(mixer, CompressedAttention) or getattr(mixer, "indexer", None) or getattr(mixer, "page", None):
        return 0
    return max(tensor // mixer.kv_heads, 1) if isinstance(mixer, Attention) else tensor


def _divide(value: int, ranks: int, what: str, model: str) -> int:
    if value % ranks:
        raise RooflineError(
            f"tensor parallelism of {ranks} does not divide the {value} {what} of {model}", options=["tp"]
        )
    return value // ranks


def _kv_heads(kv_heads: int, ranks: int, model: str) -> int:
    """KV heads of a rank; with more ranks than KV heads, each rank holds a replica of one."""
    if kv_heads >= ranks:
        return _divide(kv_heads, ranks, "KV heads", model)
    if ranks % kv_heads:
        raise RooflineError(
            f"tensor parallelism of {ranks} is not a multiple of the {kv_heads} KV heads of {model}", options=["tp"]
        )
    return 1


def _rank_layer(layer: Layer, model: str, parallelism: Parallelism) -> Layer:
    ranks = parallelism.tensor

    def attention(spec: Attention) -> Attention:
        heads = _divide(spec.heads, ranks, "attention heads", model)
        index = spec.indexer
        if index is not None:  # each KV head selects keys of its own
            index = replace(index, heads=_kv_heads(index.heads, ranks, model))
        return replace(spec, heads=heads, kv_heads=_kv_heads(spec.kv_heads, ranks, model), indexer=index)

    mixer = layer.mixer
    match mixer:
        case Attention():
            mixer = attention(mixer)
        case CompressedAttention():
            heads = _divide(mixer.heads, ranks, "attention heads", model)
            mixer = replace(mixer, heads=heads, output_groups=max(1, mixer.output_groups // ranks))
        case LatentAttention() | KimiDelta() | Rwkv() | Retention():
            mixer = replace(mixer, heads=_divide(mixer.heads, ranks, "heads", model))
        case Mamba():
            mixer = replace(mixer, inner=_divide(mixer.inner, ranks, "channels", model))
        case Mamba2():
            heads = _divide(mixer.heads, ranks, "heads", model)
            mixer = replace(mixer, heads=heads, groups=max(1, mixer.groups // ranks))
        case DeltaNet():
            keys = _kv_heads(mixer.key_heads, ranks, model)
            values = _divide(mixer.value_heads, ranks, "value heads", model)
            mixer = replace(mixer, key_heads=keys, value_heads=values)
        case Modules():
            mixer = _rank_modules(mixer, ranks, None if mixer.attention is None else attention(mixer.attention))
        case Hyena() | StateSpace() | UNet() if ranks > 1:
            raise UnsupportedError(
                f"tensor parallelism is not simulated for the convolutions and state spaces of {model}", options=["tp"]
            )
    block = layer.feed_forward
    if isinstance(block, Mlp):
        block = replace(block, width=_divide(block.width, ranks, "MLP channels", model))
    elif isinstance(block, MixtureOfExperts):
        block = replace(
            block,
            experts=slots(block, parallelism) // parallelism.expert,
            width=_divide(block.width, parallelism.expert_width_ranks, "channels of an expert", model),
            shared_width=_divide(block.shared_width, ranks, "channels of the shared experts", model),
        )
    cross = attention(layer.cross) if layer.cross else None
    engram = layer.engram and replace(layer.engram, rows=-(-layer.engram.rows // ranks))  # the last rank is padded
    return replace(layer, mixer=mixer, feed_forward=block, cross=cross, engram=engram)


def slots(spec: MixtureOfExperts, parallelism: Parallelism) -> int:
    """The experts that all ranks hold together: with copies, the fewest that divide among them."""
    ranks = parallelism.expert
    return -(-(spec.experts + (parallelism.redundant if ranks > 1 else 0)) // ranks) * ranks


def with_copies(parallelism: Parallelism, model: Model) -> Parallelism:
    """The same with all copies of experts counted in `redundant`, those that fill up the slots of ranks, too."""
    if parallelism.expert == 1 or not model.experts:
        return parallelism
    first = model.experts[0]
    return replace(parallelism, redundant=slots(first, parallelism) - first.experts)


def _rank_modules(spec: Modules, ranks: int, attention: Attention | None) -> Modules:
    """The modules of one rank: of each linear layer a part of its outputs, or of its inputs after the attention.

    A linear layer that neither divides is whole on every rank, as norms are.
    """

    def linear(index: int, part: LinearModule) -> LinearModule:
        sides = ("inputs", "outputs") if index >= spec.before and part.inputs >= part.outputs else ("outputs", "inputs")
        side = next((side for side in sides if getattr(part, side) % ranks == 0), None)
        return part if side is None else replace(part, **{side: getattr(part, side) // ranks})

    return replace(
        spec,
        linears=tuple(linear(index, part) for index, part in enumerate(spec.linears)),
        tables=tuple(replace(table, rows=-(-table.rows // ranks)) for table in spec.tables),
        attention=attention,
        weights=-(-spec.weights // ranks),
        state=-(-spec.state // ranks),
        scan=spec.scan / ranks,
    )


def imbalance(experts: int, top_k: int, ranks: int, skew: float, copies: int = 0) -> float:
    """Load of the busiest of `ranks` expert ranks over the mean.

    Experts are assigned round-robin in order of popularity. With `copies` of experts beside them, the most loaded
    expert gets the next copy, and the loads are placed on the least loaded rank with a free slot, largest first (EPLB,
    deepseek-ai/EPLB).
    """
    if ranks == 1 or not skew:
        return 1.0
    shares = popularity(experts, top_k, skew)
    if not copies:
        loads = [float(shares[rank::ranks].sum()) for rank in range(ranks)]
        return max(loads) * ranks / sum(loads)
    count = np.ones(shares.size)
    for _ in range(copies):
        count[int(np.argmax(shares / count))] += 1
    pieces = sorted(np.repeat(shares / count, count.astype(int)).tolist(), reverse=True)
    filled, held = np.zeros(ranks), np.zeros(ranks, dtype=int)
    for piece in pieces:
        rank = int(np.argmin(np.where(held < (experts + copies) // ranks, filled, np.inf)))
        filled[rank] += piece
        held[rank] += 1
    return float(filled.max() * ranks / filled.sum())
