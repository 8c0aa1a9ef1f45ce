"""Recurrent mixers: state-space models, the gated delta rule, retention and linear attention, RWKV, Hyena.

Each has a state of fixed size per sequence instead of a KV cache. A pass reads and writes the state once. The FLOPs are
the minimum of the recurrence, linear in the tokens, without the intra-chunk terms of chunked kernels; those of Mamba-2
are of its chunks, whose length the checkpoint gives. Outer products run on the matrix unit; decays, gates and
elementwise recurrences run on the vector unit.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, TOKENS, AttentionMask, Convolution, Scan
from roofline.graph.layers.basic import STATE_FORMAT, Formats, Ops, activation, elementwise, linear, normalise, vectors
from roofline.graph.layers.flops import (
    ACTIVATION_FLOPS,
    DECAY_FLOPS,
    GATED_FLOPS,
    MAMBA_FLOPS,
    RWKV4_FLOPS,
    SHIFT_FLOPS,
)
from roofline.graph.op import Kind, Op
from roofline.graph.size import ZERO, Dim, Size
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import FORMATS, Format
from roofline.specs.model import Norm
from roofline.specs.sublayers import DeltaNet, Hyena, KimiDelta, Mamba, Mamba2, Recurrent, Retention, Rwkv, StateSpace


def recurrent(spec: Recurrent, norm: Norm, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """The operators of a recurrent mixer, from the normalised input to the output projection."""
    ops = Ops(formats)
    match spec:
        case Mamba():
            _mamba(spec, source, target, ops)
        case Mamba2():
            _mamba2(spec, source, target, ops)
        case DeltaNet():
            _delta_net(spec, source, target, ops)
        case KimiDelta():
            _kimi_delta(spec, source, target, ops)
        case Retention():
            _retention(spec, norm, source, target, ops)
        case Rwkv():
            (_rwkv4 if spec.version == 4 else _rwkv)(spec, source, target, ops)
        case StateSpace():
            (_h3 if spec.kind == "h3" else _s4)(spec, source, target, ops)
        case Hyena():
            _hyena(spec, source, target, ops)
    return ops


def recurrence(
    name: str,
    reads: tuple[Tensor, ...],
    state: tuple[Dim, ...],
    output: Tensor,
    matrix_flops: Size = ZERO,
    vector_flops: Size = ZERO,
    kind: Kind = Kind.SCAN,
    kept: Format = STATE_FORMAT,
) -> Op:
    """A recurrence over the tokens, which reads and writes its state of shape (batch, *state) once, `kept` so."""
    held = Tensor(f"{name}.state", Role.STATE, (BATCH, *state), kept)
    operands = tuple(tensor for tensor in reads if tensor.role is Role.ACTIVATION) if matrix_flops.terms else ()
    return Op(
        name,
        kind,
        reads=(*reads, held),
        writes=(output, replace(held, stored=(0,))),
        matrix_flops=matrix_flops,
        vector_flops=vector_flops,
        operands=operands,
    )


def _gated_norm(name: str, norm: Norm, source: Tensor, gate: Tensor, target: Tensor, formats: Formats) -> Op:
    """A norm whose output is multiplied by SiLU of `gate`."""
    op = normalise(name, norm, source, target, formats)
    flops = op.vector_flops + GATED_FLOPS * target.elements
    return replace(op, reads=(*op.reads, gate), vector_flops=flops)


def _convolved(name: str, source: Tensor, width: int, length: int, ops: Ops, *, bias: bool) -> Tensor:
    """A causal depthwise convolution over the last `length` tokens, then SiLU; its state is earlier tokens."""
    formats = ops.formats
    target = activation(f"{name}_output", formats.base, width)
    kernel = Tensor(f"{name}.weight", Role.WEIGHT, (width, length), formats.weight("norm"))
    learned = (kernel, *vectors(name, ["bias"] if bias else [], width, formats.weight("bias")))
    flops = target.elements * (2 * length + ACTIVATION_FLOPS["silu"])
    held, kind = (width, length - 1), Kind.CONVOLUTION
    reads = (source, *learned)
    return ops.run(recurrence(name, reads, held, target, vector_flops=flops, kind=kind, kept=formats.base))


def _mamba(spec: Mamba, source: Tensor, target: Tensor, ops: Ops) -> None:
    inner, formats, base = spec.inner, ops.formats, ops.formats.base
    x, z = activation("mamba_x", base, inner), activation("mamba_z", base, inner)
    projected = activation("mamba_projected", base, 2 * inner)
    ops.append(replace(linear("in_proj", source, projected, formats, spec.bias), writes=(x, z)))
    convolved = _convolved("conv1d", x, inner, spec.conv, ops, bias=spec.conv_bias)
    parameters = ops.project("x_proj", convolved, "mamba_parameters", spec.dt_rank + 2 * spec.state)
    for name, width in (("dt", spec.dt_rank), ("b", spec.state), ("c", spec.state)) if spec.norms else ():
        raw, normed = (activation(f"{name}_{part}", base, width) for part in ("raw", "normed"))
        ops.append(normalise(f"{name}_norm", Norm("rmsnorm"), raw, normed, formats))
    dt = ops.project("dt_proj", activation("dt_low", base, spec.dt_rank), "dt", inner, bias=True)
    a_log = Tensor("scan.a_log", Role.WEIGHT, (inner, spec.state), formats.weight("norm"))
    reads = (convolved, dt, parameters, z, a_log, *vectors("scan", ["d"], inner, formats.weight("norm")))
    output, kept = activation("mamba_output", formats.activations, inner), FORMATS[spec.state_format]
    flops = TOKENS * inner * (MAMBA_FLOPS * spec.state + 2 + GATED_FLOPS)  # D skips the state, z gates the output
    ops.append(recurrence("scan", reads, (inner, spec.state), output, vector_flops=flops, kept=kept))
    ops.append(linear("out_proj", output, target, formats, spec.bias))


def _mamba2(spec: Mamba2, source: Tensor, target: Tensor, ops: Ops) -> None:
    """Mamba-2 (Dao and Gu 2024, section 6): per head and token an outer product into the state and a GEMV out of it.

    Within a chunk each pair of tokens has a product C B, shared by the heads of a group, a decay per head, and its part
    of the output; the state decays once a chunk. A single token only updates the state and reads it.
    """
    scan, formats, base = Scan(spec.chunk), ops.formats, ops.formats.base
    inner, shared = spec.heads * spec.head_dim, 2 * spec.groups * spec.state
    xbc, z = activation("mamba_xbc", base, inner + shared), activation("mamba_z", base, inner)
    dt = activation("dt", base, spec.heads)
    projected = activation("mamba_projected", base, 2 * inner + shared + spec.heads)
    ops.append(replace(linear("in_proj", source, projected, formats, spec.bias), writes=(xbc, z, dt)))
    convolved = _convolved("conv1d", xbc, inner + shared, spec.conv, ops, bias=spec.conv_bias)
    output = activation("mamba_output", formats.activations, inner)
    fixed = vectors("scan", ["a_log", "d", "dt_bias"], spec.heads, formats.weight("norm"))
    scanned = ops.run(
        recurrence(
            "scan",
            (convolved, dt, *fixed),
            (spec.heads, spec.head_dim, spec.state),
            activation("mamba_scanned", base, inner),
            matrix_flops=TOKENS * 4 * inner * spec.state + 2 * BATCH * scan.pairs * (spec.groups * spec.state + inner),
            vector_flops=BATCH * scan.updates * inner * spec.state
            + TOKENS * 2 * inner
            + BATCH * scan.pairs * DECAY_FLOPS * spec.heads,
            kind=Kind.MAMBA2,
            kept=FORMATS[spec.state_format],
        )
    )
    if spec.norm:
        ops.append(_gated_norm("mamba_norm", Norm("rmsnorm"), scanned, z, output, formats))
    else:
        ops.append(elementwise("mamba_gating", Kind.ACTIVATION, (scanned, z), output, GATED_FLOPS * output.elements))
    ops.append(linear("out_proj", output, target, formats, spec.bias))


def _delta_rule(
    name: str, reads: tuple[Tensor, ...], heads: int, key: int, value: int, kind: Kind, kept: Format, ops: Ops
) -> Tensor:
    """The delta rule of each head: decay, read the old value, write the difference, read the output."""
    cells = heads * key * value
    read = activation("delta_read", ops.formats.base, heads, value)
    flops = (TOKENS * 6 * cells, TOKENS * cells)
    return ops.run(recurrence(name, reads, (heads, key, value), read, *flops, kind=kind, kept=kept))


def _delta_net(spec: DeltaNet, source: Tensor, target: Tensor, ops: Ops) -> None:
    """Gated DeltaNet (Yang et al. 2024)."""
    formats, base = ops.formats, ops.formats.base
    keys, values, heads = spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim, spec.value_heads
    qkv, z = activation("delta_qkv", base, 2 * keys + values), activation("delta_z", base, values)
    projected = activation("delta_projected", base, 2 * keys + 2 * values)
    ops.append(replace(linear("in_proj", source, projected, formats), writes=(qkv, z)))
    gates = ops.project("gate_in_proj", source, "delta_gates", 2 * heads)
    convolved = _convolved("conv1d", qkv, 2 * keys + values, spec.conv, ops, bias=False)
    rule, kept = "gated_delta_rule", FORMATS[spec.state_format]
    reads = (convolved, gates, *vectors(rule, ["a_log", "dt_bias"], heads, formats.weight("norm")))
    read = _delta_rule(rule, reads, heads, spec.key_dim, spec.value_dim, Kind.GATED_DELTA_RULE, kept, ops)
    output = activation("delta_output", formats.activations, heads, spec.value_dim)
    ops.append(_gated_norm("delta_norm", Norm("rmsnorm"), read, z, output, formats))
    ops.append(linear("out_proj", output, target, formats))


def _kimi_delta(spec: KimiDelta, source: Tensor, target: Tensor, ops: Ops) -> None:
    """Kimi Delta Attention (Kimi Linear, 2025): the delta rule with a decay a channel, and a gate of sigmoids."""
    formats, heads, width, part = ops.formats, spec.heads, spec.heads * spec.head_dim, "gate_in_proj"
    qkv = ops.project("in_proj", source, "delta_qkv", 3 * width)
    convolved = _convolved("qkv_conv1d", qkv, 3 * width, spec.conv, ops, bias=False)
    decaying = gating = source
    if not spec.full_decay:
        decaying = ops.project("decay_in_proj", source, "delta_decay_low", spec.head_dim, component=part)
    decay = ops.project("decay_proj", decaying, "delta_decay", width)
    rates = ops.project("rate_proj", source, "delta_rates", heads, component=part)
    if spec.gate_rank is not None:
        gating = ops.project("output_gate_in_proj", source, "delta_gate_low", spec.gate_rank, component=part)
    gate = ops.project("output_gate_proj", gating, "delta_gate", width)
    of_heads = vectors("kimi_delta", ["a_log"], heads, formats.weight("norm"))
    reads = (convolved, decay, rates, *of_heads, *vectors("kimi_delta", ["dt_bias"], width, formats.weight("norm")))
    read = _delta_rule("kimi_delta", reads, heads, spec.head_dim, spec.head_dim, Kind.KIMI_DELTA, STATE_FORMAT, ops)
    output = activation("delta_output", formats.activations, heads, spec.head_dim)
    ops.append(_gated_norm("delta_norm", Norm("rmsnorm"), read, gate, output, formats))
    ops.append(linear("out_proj", output, target, formats))


def _retention(spec: Retention, norm: Norm, source: Tensor, target: Tensor, ops: Ops) -> None:
    """Retention (Sun et al. 2023) and linear attention: outer products into the state, GEMVs out of it."""
    formats, heads, width = ops.formats, spec.heads, spec.value_dim
    widths = (("query", spec.key_dim), ("key", spec.key_dim), ("value", width))
    reads = tuple(ops.project(f"{name[0]}_proj", source, name, heads, each) for name, each in widths)
    cells = heads * spec.key_dim * width
    output = activation("retention_output", formats.activations, heads, width)
    read = activation("retained", formats.base, heads, width) if spec.gated else output
    ops.append(recurrence("retention", reads, (heads, spec.key_dim, width), read, TOKENS * 4 * cells, TOKENS * cells))
    if spec.gated:
        gate = ops.project("g_proj", source, "retention_gate", heads, width)
        group_norm = replace(norm, weight=spec.norm_weight)
        ops.append(_gated_norm("retention_norm", group_norm, read, gate, output, formats))
    ops.append(linear("o_proj", output, target, formats))


def token_shift(name: str, source: Tensor, target: Tensor, mixes: int, formats: Formats) -> Op:
    """RWKV's token shift: `mixes` learned interpolations between each token and the one before, which is the state."""
    width = source.width
    learned = vectors(name, [f"mix_{index}" for index in range(mixes)], width, formats.weight("norm"))
    flops, kind = source.elements * SHIFT_FLOPS * mixes, Kind.ELEMENTWISE
    shifted = recurrence(name, (source,), (width,), target, vector_flops=flops, kind=kind)
    return replace(shifted, reads=(*shifted.reads, *learned))


def _rwkv4(spec: Rwkv, source: Tensor, target: Tensor, ops: Ops) -> None:
    """RWKV-4 (Peng et al. 2023): an elementwise recurrence with numerator, denominator and maximum as state."""
    formats, inner = ops.formats, spec.heads * spec.head_dim
    mixed = activation("attn_mixed", formats.activations, *source.shape[2:])
    ops.append(token_shift("attn_token_shift", source, mixed, 3, formats))
    inputs = [ops.project(f"{name[0]}_proj", mixed, name, inner) for name in ("key", "value", "receptance")]
    reads = (*inputs, *vectors("wkv", ["decay", "first"], inner, formats.weight("norm")))
    output, flops = activation("wkv", formats.activations, inner), TOKENS * inner * RWKV4_FLOPS
    ops.append(recurrence("wkv", reads, (3, inner), output, vector_flops=flops))
    ops.append(linear("o_proj", output, target, formats))


def _low_rank(name: str, source: Tensor, width: int, rank: int, ops: Ops, bias: bool) -> Tensor:
    """A projection through a bottleneck of `rank`."""
    low = ops.project(f"{name}_a", source, f"{name}_low", rank)
    return ops.project(f"{name}_b", low, name, width, bias=bias)


def _rwkv(spec: Rwkv, source: Tensor, target: Tensor, ops: Ops) -> None:
    """RWKV-5 (Eagle), 6 (Finch) and 7 (Goose): a state matrix per head, from 6 on data-dependent mixing and decay.

    Per state element and token, versions 5 and 6 decay, add k v and read with r: 4 matrix and 1 vector FLOPs; version 7
    also applies the rank-one update of its delta rule: 8 and 1.
    """
    formats, base, width = ops.formats, ops.formats.base, source.width
    inner, five, seven = spec.heads * spec.head_dim, spec.version == 5, spec.version == 7
    mixed = activation("attn_mixed", formats.activations, width)
    ops.append(token_shift("attn_token_shift", source, mixed, 4 if five else 6, formats))
    extra: list[Tensor] = []
    if spec.mix_rank:
        # The five mixes are data-dependent.
        low, mixes = ops.project("mix_a", mixed, "mix_low", 5 * spec.mix_rank), activation("mixes", base, 5 * width)
        up = Tensor("mix_b.weight", Role.WEIGHT, (5, spec.mix_rank, width), formats.weight("mix_b"))
        flops = 2 * TOKENS * 5 * spec.mix_rank * width
        extra.append(ops.run(Op("mix_b", Kind.GEMM, (low, up), (mixes,), matrix_flops=flops, operands=(low, up))))
    inputs = [ops.project(f"{name[0]}_proj", mixed, name, inner) for name in ("receptance", "key", "value")]
    if not five:
        extra.append(_low_rank("decay", mixed, inner, spec.decay_rank, ops, bias=seven))
    if seven:
        for name, rank in (("rate", spec.rate_rank), ("value_mix", spec.value_rank)):
            if rank:
                extra.append(_low_rank(name, mixed, inner, rank, ops, bias=True))
        gate = _low_rank("gate", mixed, inner, spec.gate_rank, ops, bias=False)
    else:
        gate = ops.project("g_proj", mixed, "gate", inner)
    fixed = vectors("wkv", ["k_k", "k_a", "r_k"] if seven else ["decay", "first"], inner, formats.weight("norm"))
    cells, read = inner * spec.head_dim, activation("wkv", base, inner)
    state, flops = (spec.heads, spec.head_dim, spec.head_dim), TOKENS * (8 if seven else 4) * cells
    ops.append(recurrence("wkv", (*inputs, *extra, *fixed), state, read, flops, TOKENS * cells))
    output = activation("wkv_output", formats.activations, inner)
    ops.append(_gated_norm("wkv_norm", Norm("layernorm"), read, gate, output, formats))
    ops.append(linear("o_proj", output, target, formats))


def _diagonal(spec: StateSpace, name: str, source: Tensor, output: Tensor, learned: int, formats: Formats) -> Op:
    """A diagonal state space of each channel, with so many `learned` vectors of state and two of channels.

    A complex element of the state takes as many FLOPs a token as two of Mamba's.
    """
    width = source.width
    weights = _of_channels(name, map(str, range(learned)), width, spec, formats)
    fixed = vectors(name, ["dt", "d"], width, formats.weight("norm"))
    flops = TOKENS * width * (MAMBA_FLOPS * spec.state + 2)
    return recurrence(name, (source, *weights, *fixed), (width, spec.state), output, vector_flops=flops)


def _of_channels(op: str, names: Iterable[str], width: int, spec: StateSpace, formats: Formats) -> tuple[Tensor, ...]:
    """Learned vectors of a state for each channel."""
    return tuple(Tensor(f"{op}.{name}", Role.WEIGHT, (width, spec.state), formats.weight("norm")) for name in names)


def _s4(spec: StateSpace, source: Tensor, target: Tensor, ops: Ops) -> None:
    """S4 (Gu et al. 2021): a state space, GELU, and a linear layer of twice the width whose half gates the other.

    All channels share the transition and the input vector (`n_ssm: 1` of the code): each learns an output vector.
    """
    output = activation("s4_output", ops.formats.activations, source.width)
    ops.append(_diagonal(spec, "state_space", source, output, 1, ops.formats))
    doubled = ops.project("out_proj", output, "s4_doubled", 2 * source.width, bias=True)
    ops.append(elementwise("s4_gating", Kind.ACTIVATION, (doubled,), target, GATED_FLOPS * target.elements))


def _h3(spec: StateSpace, source: Tensor, target: Tensor, ops: Ops) -> None:
    """H3 (Fu et al. 2023): q * diagonal(shift(k) * v); a shift is a convolution as long as its state."""
    formats, width = ops.formats, source.width
    names = ("query", "key", "value")
    query, key, value = (ops.project(f"{name[0]}_proj", source, name, width, bias=True) for name in names)
    taps = _of_channels("shift", ("b", "c"), width, spec, formats)
    reads = (key, value, *taps, *vectors("shift", ["d"], width, formats.weight("norm")))
    product, flops = activation("h3_product", formats.base, width), TOKENS * width * (2 * spec.state + 3)
    ops.append(recurrence("shift", reads, (width, spec.state), product, vector_flops=flops))
    output = activation("h3_output", formats.activations, width)
    diagonal = _diagonal(spec, "diagonal", product, output, 3, formats)
    gated = replace(diagonal, reads=(query, *diagonal.reads), vector_flops=diagonal.vector_flops + TOKENS * width)
    ops += [gated, linear("o_proj", output, target, formats, bias=True)]


def _hyena(spec: Hyena, source: Tensor, target: Tensor, ops: Ops) -> None:
    """Hyena (Poli et al. 2023): `order` gated convolutions as long as the sequence.

    Each takes three FFTs of twice the length, 5 N log2 N FLOPs for N real points, or the direct sum where that is less
    (decode), and a gate. A small network over positions generates the filters. The state is the sequence itself.
    """
    formats, base, width, streams = ops.formats, ops.formats.base, source.width, spec.order + 1
    projected = ops.project("in_proj", source, "hyena_projected", streams * width, bias=True)
    convolved = _convolved("short_filter", projected, streams * width, spec.conv, ops, bias=True)
    filters, inner = spec.order - 1, spec.filter_width
    # The filter network: embedding, hidden layers, one output per channel and filter.
    shapes = [(inner, spec.filter_embedding), *[(inner, inner)] * spec.filter_layers, (filters * width, inner)]
    weights = [
        Tensor(f"filter.{index}", Role.WEIGHT, shape, formats.weight("norm")) for index, shape in enumerate(shapes)
    ]
    learned = (*weights, *vectors("filter", ["bias"], filters * width, formats.weight("bias")))
    generated = Tensor("filters", Role.ACTIVATION, (QUERIES, filters * width), base)
    generate_flops = 2 * QUERIES * sum(rows * columns for rows, columns in shapes)
    ops.append(elementwise("filter", Kind.ELEMENTWISE, learned, generated, generate_flops))
    before, held = ((BATCH, tokens, filters * width) for tokens in (Convolution().past, AttentionMask().held))
    reads = (convolved, generated, Tensor("past", Role.STATE, before, base, held))
    output = activation("hyena_output", formats.activations, width)
    flops = TOKENS * width * filters * (Convolution().flops + 1)
    ops.append(elementwise("long_conv", Kind.SCAN, reads, output, flops))
    ops.append(linear("out_proj", output, target, formats, bias=True))
