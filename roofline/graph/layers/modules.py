"""A layer as the modules of its class: linear layers in their order, with attention or a state between them."""

from __future__ import annotations

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, TOKENS
from roofline.graph.layers.attention import attention_ops, cached_attention, mask_of
from roofline.graph.layers.basic import STATE_FORMAT, Formats, activation, elementwise, linear, vectors
from roofline.graph.layers.flops import NORM_FLOPS, ROPE_FLOPS
from roofline.graph.op import Kind, Op, with_tensors
from roofline.graph.size import ZERO, Dim
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import Format
from roofline.specs.sublayers import Attention, LinearModule, Modules


def modules(spec: Modules, rotary: bool, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """The operators of a layer's modules.

    A linear layer as wide as the layer reads its input; any other reads what the outputs before it make, one
    elementwise kernel. Activations, gates and mixing between linear layers are in these kernels, 1 FLOP an element.
    """
    ops = [*_tables(spec, formats), *_norms(spec, formats), *_scan(spec, source, formats)]
    made: list[Tensor] = []
    for index, part in enumerate((*spec.linears, None)):
        if spec.attention is not None and index == min(spec.before, len(spec.linears)):
            ops += _attend(spec.attention, spec.latent, rotary, made or [source], formats)
            made = [_attended(spec.attention, formats)]
        ops += [] if part is None else _linear(part, index, source, made, formats)
    ops.append(elementwise("modules_output", Kind.ELEMENTWISE, tuple(made) or (source,), target, target.elements))
    return ops


def _linear(part: LinearModule, index: int, source: Tensor, made: list[Tensor], formats: Formats) -> list[Op]:
    """A linear layer, after the kernel that makes its input where it is not the layer's; `made` is what waits."""
    ops: list[Op] = []
    own = source
    if part.inputs != source.width or part.rows != 1:
        own = _rows(f"{part.name}_input", part.inputs, part.rows, formats.activations)
        ops.append(elementwise(f"{part.name}_input", Kind.ACTIVATION, tuple(made) or (source,), own, own.elements))
        made.clear()
    output = _rows(f"{part.name}_output", part.outputs, part.rows, formats.base)
    made_by = linear(f"{index}.{part.name}", own, output, formats, part.bias, part.name.rsplit(".", 1)[-1])
    ops.append(with_tensors(made_by, _stored_elsewhere) if part.shared else made_by)
    made.append(output)
    return ops


def _stored_elsewhere(tensor: Tensor) -> Tensor:
    return replace(tensor, stored=(0,)) if tensor.role is Role.WEIGHT else tensor


def _rows(name: str, width: int, rows: float, format: Format) -> Tensor:
    """An activation of so many rows a token."""
    queries: Dim = QUERIES if rows == 1 else QUERIES * rows
    return Tensor(name, Role.ACTIVATION, (BATCH, queries, width), format)


def _attended(spec: Attention, formats: Formats) -> Tensor:
    return activation("attn_output", formats.activations, spec.heads, spec.value_width)


def _attend(spec: Attention, latent: int, rotary: bool, made: list[Tensor], formats: Formats) -> list[Op]:
    """Queries, keys and values from what was projected, and attention of them to the cache.

    Of `latent` elements a token, the cache is read once for keys and values of all heads.
    """
    query = activation("query", formats.attention, spec.heads, spec.head_dim)
    key = Tensor("key", Role.KV, (BATCH, QUERIES, spec.kv_heads, spec.head_dim), formats.kv)
    value = Tensor("value", Role.KV, (BATCH, QUERIES, spec.kv_heads, spec.value_width), formats.kv)
    mask, output = mask_of(spec, decode=formats.decode), _attended(spec, formats)
    if latent:
        new = Tensor("latent", Role.KV, (BATCH, QUERIES, latent), formats.kv)
        cache = Tensor("latent_cache", Role.KV, (BATCH, mask.keys, latent), formats.kv, (BATCH, mask.held, latent))
        made_of = Op("attention_inputs", Kind.ELEMENTWISE, reads=tuple(made), writes=(query, new))
        return [made_of, *attention_ops(mask, query, cache, cache, output, formats)]
    written = (query,) if spec.kv_shared else (query, key, value)
    turned = query.elements if spec.kv_shared else query.elements + key.elements
    kind, flops = (Kind.ROPE, ROPE_FLOPS * turned) if rotary else (Kind.ELEMENTWISE, ZERO)
    return [
        Op("attention_inputs", kind, reads=tuple(made), writes=written, vector_flops=flops),
        *cached_attention(spec, mask, query, output, formats),
    ]


def _norms(spec: Modules, formats: Formats) -> list[Op]:
    ops = []
    for index, norm in enumerate(spec.norms):
        rows = _rows(f"module_norm_{index}", norm.width, norm.rows, formats.base)
        names = [f"vector_{place}" for place in range(norm.vectors)]
        reads = (rows, *vectors(rows.name, names, norm.width, formats.weight("norm")))
        ops.append(elementwise(rows.name, Kind.NORM, reads, rows, rows.elements * NORM_FLOPS["rmsnorm"]))
    return ops


def _tables(spec: Modules, formats: Formats) -> list[Op]:
    ops = []
    for index, table in enumerate(spec.tables):
        taken, weight = (BATCH, QUERIES, table.width), formats.weight("embedding")
        rows = Tensor(f"table_{index}.weight", Role.WEIGHT, taken, weight, (table.rows, table.width))
        target = activation(f"table_{index}", formats.base, table.width)
        ops.append(elementwise(target.name, Kind.GATHER, (rows, target), target))
    return ops


def _scan(spec: Modules, source: Tensor, formats: Formats) -> list[Op]:
    """What is neither a linear layer nor attention: further weights, the state, products of activations."""
    if not (spec.weights or spec.state or spec.scan):
        return []
    weights = (Tensor("scan.weights", Role.WEIGHT, (spec.weights,), formats.weight("norm")),) if spec.weights else ()
    states = (Tensor("scan.state", Role.STATE, (BATCH, spec.state), STATE_FORMAT),) if spec.state else ()
    mixed = activation("scanned", formats.base, source.width)
    reads, writes = (mixed, *weights, *states), (mixed, *(replace(state, stored=(0,)) for state in states))
    operands = (mixed,) if spec.scan else ()
    return [Op("scan", Kind.SCAN, reads, writes, TOKENS * spec.scan, mixed.elements, operands)]
