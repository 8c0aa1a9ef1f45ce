"""The two ends of a network: the embedding of tokens, patches or audio frames, and the head."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES
from roofline.graph.layers.basic import (
    Formats,
    Ops,
    activation,
    collective,
    convolution,
    elementwise,
    linear,
    normalise,
)
from roofline.graph.layers.flops import ACTIVATION_FLOPS
from roofline.graph.layers.layer import modulated
from roofline.graph.layers.residual import averaged, collapsed
from roofline.graph.op import Kind, Op
from roofline.graph.parallel import Collective
from roofline.graph.size import ZERO, Dim, as_size
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import Format
from roofline.specs.model import Conditioning, Model


def _table(model: Model, formats: Formats) -> Tensor:
    """The embedding table: one row per token is touched; a table tied to lm_head is stored once.

    An encoder's table is tied to its decoder's (T5), which stores it.
    """
    width = model.embedding_width or model.hidden
    component = "lm_head" if model.tied_embeddings else "embedding"
    shape, shared = (BATCH, QUERIES, width), model.tied_embeddings and not model.lm_head
    stored = (0,) if shared else (model.vocabulary, width)
    return Tensor("embedding.weight", Role.WEIGHT, shape, formats.weight(component, width), stored)


def _rows(name: str, model: Model, count: int, formats: Formats) -> Tensor:
    """A learned table that is added to the embedding (positions, token types), read once for all sequences."""
    touched: Dim = QUERIES if name == "positions" else 1
    weight = formats.weight("positions")
    return Tensor(f"{name}.weight", Role.WEIGHT, (touched, model.hidden), weight, (count, model.hidden))


def _relative(model: Model, formats: Formats) -> tuple[Tensor, ...]:
    """The relative position bias: one table for all layers, with a column per head."""
    positions = model.positions
    if positions.kind != "relative" or positions.count is None:
        return ()
    shape = (positions.count, model.attentions[0].heads)
    return (Tensor("positions.weight", Role.WEIGHT, shape, formats.weight("positions")),)


def embedding(model: Model, target: Tensor, formats: Formats) -> list[Op]:
    """To the residual stream: from token ids by a gather, patches by a projection, audio frames by convolutions."""
    tables = []
    if model.positions.kind == "learned" and model.positions.count is not None:
        tables.append(_rows("positions", model, model.positions.count, formats))
    if model.token_types:
        tables.append(_rows("token_types", model, model.token_types, formats))
    width = model.embedding_width or model.hidden
    projected, normed = width != model.hidden, model.embedding_norm
    looked_up = activation("embedded", formats.base, width) if projected or normed else target
    added = len(tables) * looked_up.elements if tables else ZERO
    ops = Ops(formats)
    if model.convolutions:
        ops += _convolved(model, looked_up, formats)
    elif model.patch:
        patches = activation("patches", formats.base, model.patch)
        ops.append(linear("patch_embedding", patches, looked_up, formats, model.patch_bias, "embedding"))
    else:
        table, more = _table(model, formats), _relative(model, formats)
        ops.append(Op("embedding", Kind.GATHER, (table, *tables, *more), (looked_up,), vector_flops=added))
    if model.convolutions or model.patch:  # the operator that makes the embeddings adds those of positions and types
        ops[-1] = replace(ops[-1], reads=(*ops[-1].reads, *tables), vector_flops=ops[-1].vector_flops + added)
    if model.conditioning is not None:
        ops += _condition(model, model.conditioning, formats)
    if projected:
        output = activation("embedding_projected", formats.base, model.hidden) if normed else target
        looked_up = ops.run(linear("embedding_in", looked_up, output, formats))
    if normed:
        ops.append(normalise("embedding_norm", model.norm, looked_up, target, formats))
    ranks = formats.parallel.tensor
    if ranks > 1 and not model.patch and not model.convolutions:
        # Vocabulary parallelism: each tensor rank contributes zeros for tokens outside its part.
        ops.append(collective("embedding_all_reduce", Collective.ALL_REDUCE, target, target, ranks, ranks))
    return ops


def _convolved(model: Model, target: Tensor, formats: Formats) -> list[Op]:
    """Convolutions over time: a position of `target` stands for as many input frames as the product of the strides."""
    ops: list[Op] = []
    for index, part in enumerate(model.convolutions):
        after = math.prod(later.stride for later in model.convolutions[index + 1 :])
        shape = (BATCH, QUERIES * after)
        name, last = f"convolution_{index}", index == len(model.convolutions) - 1
        read = ops[-1].writes[0].name if ops else "audio_frames"
        frames = Tensor(read, Role.ACTIVATION, (BATCH, QUERIES * (after * part.stride), part.channels), formats.base)
        output = Tensor(name, Role.ACTIVATION, (*shape, model.hidden), formats.base)
        acted = target if last else replace(output, name=f"{name}_activated")
        flops = ACTIVATION_FLOPS["gelu"] * output.elements
        ops.append(convolution(name, frames, output, part.kernel, formats))
        ops.append(elementwise(f"{name}_act", Kind.ACTIVATION, (output,), acted, flops))
    return ops


def _condition(model: Model, spec: Conditioning, formats: Formats) -> list[Op]:
    """The conditioning vector of a diffusion transformer: the sum of its timestep and class embeddings."""

    def vector(name: str, width: int) -> Tensor:
        return Tensor(name, Role.ACTIVATION, (BATCH, width), formats.base)

    ops, hidden = Ops(formats), model.hidden
    time, first, embedded = vector("timestep", spec.frequencies), vector("time_hidden", hidden), vector("time", hidden)
    ops.append(linear("time_proj", time, first, formats, bias=True, component="embedding"))
    ops.append(linear("time_out_proj", first, embedded, formats, bias=True, component="embedding"))
    table = Tensor("classes.weight", Role.WEIGHT, (BATCH, hidden), formats.weight("embedding"), (spec.classes, hidden))
    condition = vector("condition", hidden)
    return [*ops, elementwise("class_embedding", Kind.GATHER, (table, embedded), condition, condition.elements)]


def head(model: Model, source: Tensor, formats: Formats, every: bool = False) -> list[Op]:
    """From the residual stream to logits, of the last position of each sequence or of `every` position.

    An encoder ends with its final norm over all positions and, for a vision encoder, the projector.
    """
    if model.task == "encode":
        return _encoded(model, source, formats)
    ops, rows = Ops(formats), (BATCH, QUERIES) if every else (BATCH,)

    def made(name: str, width: int, format: Format = formats.base) -> Tensor:
        return Tensor(name, Role.ACTIVATION, (*rows, width), format)

    last, joined = (made(name, source.width, source.format) for name in (source.name, "final_joined"))
    if model.streams > 1:
        joined = made("final_joined", model.hidden, source.format)
        last = ops.run(collapsed(model.streams, last, joined, formats))
    elif model.residual_blocks:
        last = ops.run(averaged("final", model.residual_blocks, last, joined, formats))
    if model.final_norm:
        last = ops.run(normalise("final_norm", model.norm, last, made("final_normed", last.width), formats))
    if (width := model.embedding_width or model.hidden) != model.hidden:
        last = ops.run(linear("embedding_out", last, made("embedding_out", width), formats))
    logits = made("logits", model.vocabulary)
    output = linear("lm_head", last, logits, formats, model.lm_head_bias)
    if model.tied_embeddings:
        shared = replace(output.operands[1], name="embedding.weight")
        output = replace(
            output,
            reads=tuple(shared if tensor is output.operands[1] else tensor for tensor in output.reads),
            operands=(last, shared),
        )
    return [*ops, output, *_gathered(logits, formats)]


def _gathered(logits: Tensor, formats: Formats) -> list[Op]:
    """The all-gather of logits over the vocabulary parts of the tensor ranks."""
    ranks = formats.parallel.tensor
    if ranks == 1:
        return []
    *rows, part = logits.shape
    assert isinstance(part, int)
    whole = replace(logits, name="all_logits", shape=(*rows, ranks * part))
    gather = collective("logits_all_gather", Collective.ALL_GATHER, whole, whole, ranks, ranks)
    return [replace(gather, reads=(logits,))]


def _encoded(model: Model, source: Tensor, formats: Formats) -> list[Op]:
    ops: list[Op] = []
    if model.final_norm:
        normed = activation("final_normed", formats.base, model.hidden)
        norm = [normalise("final_norm", model.norm, source, normed, formats)]
        # A diffusion transformer's final norm is modulated, without a gate.
        ops += modulated(norm, model.hidden, 2, formats) if formats.conditioned else norm
        source = normed
    for prefix in ("", *(f"deepstack_{tap}_" for tap in range(model.deepstack))):
        ops += _projected(model, source, formats, prefix)
    return ops


def _projected(model: Model, source: Tensor, formats: Formats, prefix: str) -> list[Op]:
    """The projector of a vision encoder, or one of its copies for the output of an earlier layer (DeepStack)."""
    given = model.projector_bias
    biased = given if isinstance(given, tuple) else (given,) * (len(model.projector) + len(model.merger))
    ops = _projections(model.projector, biased, model.hidden / model.pool, source, formats, prefix)
    if model.merger:
        joined = ops[-1].writes[0]
        rest = biased[len(model.projector) - 1 :]
        ops += _projections(model.merger, rest, model.projector[-1], joined, formats, f"{prefix}merger_")
    return ops


def _projections(
    widths: Sequence[int], biased: Sequence[bool], hidden: float, source: Tensor, formats: Formats, prefix: str
) -> list[Op]:
    """Linear layers with GELU between them; `hidden` is the width of a position before it is merged with others."""
    ops = Ops(formats)
    if widths:  # the first is the projector's input: positions are merged where it exceeds the hidden size
        rows = as_size(source.shape[-2]) / (widths[0] / hidden)
        source = replace(source, role=Role.ACTIVATION, shape=(*source.shape[:-2], rows, widths[0]))
    for index, width in enumerate(widths[1:], 1):
        target = Tensor(f"{prefix}projected_{index}", Role.ACTIVATION, (*source.shape[:-1], width), formats.base)
        name = f"{prefix}projector_{index}"
        source = ops.run(linear(name, source, target, formats, biased[index - 1], "projector"))
        if index < len(widths) - 1:
            acted, flops = replace(target, name=f"{prefix}projector_activated_{index}"), ACTIVATION_FLOPS["gelu"]
            act = f"{prefix}projector_act_{index}"
            source = ops.run(elementwise(act, Kind.ACTIVATION, (target,), acted, flops * acted.elements))
    return ops
