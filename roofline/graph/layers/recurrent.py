"""Recurrent mixers: state-space models, the gated delta rule, retention and linear attention, RWKV, Hyena.

Each has a state of fixed size per sequence instead of a KV cache. A pass reads and writes the state once. The FLOPs are
the minimum of the recurrence, linear in the tokens, without the intra-chunk terms of chunked kernels; those of Mamba-2
are of its chunks, whose length the checkpoint gives. Outer products run on the matrix unit; decays, gates and
elementwise recurrences run on the vector unit.
"""

from __future__ import annotations

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, AttentionMask, Convolution, Scan
from roofline.graph.layers.basic import STATE_FORMAT, Formats, activation, elementwise, linear, normalise, vectors
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

TOKENS = BATCH * QUERIES


def recurrent(spec: Recurrent, norm: Norm, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """The operators of a recurrent mixer, from the normalised input to the output projection."""
    match spec:
        case Mamba():
            return _mamba(spec, source, target, formats)
        case Mamba2():
            return _mamba2(spec, source, target, formats)
        case DeltaNet():
            return _delta_net(spec, source, target, formats)
        case KimiDelta():
            return _kimi_delta(spec, source, target, formats)
        case Retention():
            return _retention(spec, norm, source, target, formats)
        case Rwkv():
            return _rwkv4(spec, source, target, formats) if spec.version == 4 else _rwkv(spec, source, target, formats)
        case StateSpace():
            return _h3(spec, source, target, formats) if spec.kind == "h3" else _s4(spec, source, target, formats)
        case Hyena():
            return _hyena(spec, source, target, formats)


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


def _convolution(name: str, source: Tensor, width: int, length: int, bias: bool, formats: Formats) -> tuple[Op, Tensor]:
    """A causal depthwise convolution over the last `length` tokens, then SiLU; its state is earlier tokens."""
    target = activation(f"{name}_output", formats.base, width)
    kernel = Tensor(f"{name}.weight", Role.WEIGHT, (width, length), formats.weight("norm"))
    learned = (kernel, *vectors(name, ["bias"] if bias else [], width, formats.weight("bias")))
    flops = target.elements * (2 * length + ACTIVATION_FLOPS["silu"])
    held, kind = (width, length - 1), Kind.CONVOLUTION
    return recurrence(name, (source, *learned), held, target, vector_flops=flops, kind=kind, kept=formats.base), target


def _mamba(spec: Mamba, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    inner, base = spec.inner, formats.base
    x = activation("mamba_x", base, inner)
    z = activation("mamba_z", base, inner)
    projected = activation("mamba_projected", base, 2 * inner)
    convolution, convolved = _convolution("conv1d", x, inner, spec.conv, spec.conv_bias, formats)
    parameters = activation("mamba_parameters", base, spec.dt_rank + 2 * spec.state)
    low = activation("dt_low", base, spec.dt_rank)
    dt = activation("dt", base, inner)
    output = activation("mamba_output", formats.activations, inner)
    fixed = (
        Tensor("scan.a_log", Role.WEIGHT, (inner, spec.state), formats.weight("norm")),
        *vectors("scan", ["d"], inner, formats.weight("norm")),
    )
    normed = [
        normalise(f"{name}_norm", Norm("rmsnorm"), activation(f"{name}_raw", base, width),
                  activation(f"{name}_normed", base, width), formats)
        for name, width in (("dt", spec.dt_rank), ("b", spec.state), ("c", spec.state))
    ]  # fmt: skip
    kept = FORMATS[spec.state_format]
    flops = TOKENS * inner * (MAMBA_FLOPS * spec.state + 2 + GATED_FLOPS)  # D skips the state, z gates the output
    in_proj = replace(linear("in_proj", source, projected, formats, spec.bias), writes=(x, z))
    return [
        in_proj,
        convolution,
        linear("x_proj", convolved, parameters, formats),
        *(normed if spec.norms else []),
        linear("dt_proj", low, dt, formats, bias=True),
        recurrence(
            "scan", (convolved, dt, parameters, z, *fixed), (inner, spec.state), output, vector_flops=flops, kept=kept
        ),
        linear("out_proj", output, target, formats, spec.bias),
    ]


def _mamba2(spec: Mamba2, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """Mamba-2 (Dao and Gu 2024, section 6): per head and token an outer product into the state and a GEMV out of it.

    Within a chunk each pair of tokens has a product C B, shared by the heads of a group, a decay per head, and its part
    of the output; the state decays once a chunk. A single token only updates the state and reads it.
    """
    scan = Scan(spec.chunk)
    inner, shared, base = spec.heads * spec.head_dim, 2 * spec.groups * spec.state, formats.base
    xbc, z = activation("mamba_xbc", base, inner + shared), activation("mamba_z", base, inner)
    dt = activation("dt", base, spec.heads)
    projected = activation("mamba_projected", base, 2 * inner + shared + spec.heads)
    convolution, convolved = _convolution("conv1d", xbc, inner + shared, spec.conv, spec.conv_bias, formats)
    scanned = activation("mamba_scanned", base, inner)
    output = activation("mamba_output", formats.activations, inner)
    fixed = vectors("scan", ["a_log", "d", "dt_bias"], spec.heads, formats.weight("norm"))
    gated = elementwise("mamba_gating", Kind.ACTIVATION, (scanned, z), output, GATED_FLOPS * output.elements)
    if spec.norm:
        gated = _gated_norm("mamba_norm", Norm("rmsnorm"), scanned, z, output, formats)
    return [
        replace(linear("in_proj", source, projected, formats, spec.bias), writes=(xbc, z, dt)),
        convolution,
        recurrence(
            "scan",
            (convolved, dt, *fixed),
            (spec.heads, spec.head_dim, spec.state),
            scanned,
            matrix_flops=TOKENS * 4 * inner * spec.state + 2 * BATCH * scan.pairs * (spec.groups * spec.state + inner),
            vector_flops=BATCH * scan.updates * inner * spec.state
            + TOKENS * 2 * inner
            + BATCH * scan.pairs * DECAY_FLOPS * spec.heads,
            kind=Kind.MAMBA2,
            kept=FORMATS[spec.state_format],
        ),
        gated,
        linear("out_proj", output, target, formats, spec.bias),
    ]


def _delta_net(spec: DeltaNet, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """Gated DeltaNet (Yang et al. 2024): decay, read the old value, write the difference, read the output."""
    keys, values, base = spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim, formats.base
    qkv, z = activation("delta_qkv", base, 2 * keys + values), activation("delta_z", base, values)
    gates = activation("delta_gates", base, 2 * spec.value_heads)
    convolution, convolved = _convolution("conv1d", qkv, 2 * keys + values, spec.conv, False, formats)
    read = activation("delta_read", base, spec.value_heads, spec.value_dim)
    output = activation("delta_output", formats.activations, spec.value_heads, spec.value_dim)
    fixed = vectors("gated_delta_rule", ["a_log", "dt_bias"], spec.value_heads, formats.weight("norm"))
    cells = spec.value_heads * spec.key_dim * spec.value_dim
    projected = activation("delta_projected", base, 2 * keys + 2 * values)
    return [
        replace(linear("in_proj", source, projected, formats), writes=(qkv, z)),
        linear("gate_in_proj", source, gates, formats),
        convolution,
        recurrence(
            "gated_delta_rule",
            (convolved, gates, *fixed),
            (spec.value_heads, spec.key_dim, spec.value_dim),
            read,
            matrix_flops=TOKENS * 6 * cells,
            vector_flops=TOKENS * cells,
            kind=Kind.GATED_DELTA_RULE,
            kept=FORMATS[spec.state_format],
        ),
        _gated_norm("delta_norm", Norm("rmsnorm"), read, z, output, formats),
        linear("out_proj", output, target, formats),
    ]


def _kimi_delta(spec: KimiDelta, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """Kimi Delta Attention (Kimi Linear, 2025): the delta rule with a decay a channel, and a gate of sigmoids."""
    width, base, heads = spec.heads * spec.head_dim, formats.base, spec.heads
    qkv, gate = activation("delta_qkv", base, 3 * width), activation("delta_gate", base, width)
    low, decay = activation("delta_decay_low", base, spec.head_dim), activation("delta_decay", base, width)
    rates, read = activation("delta_rates", base, heads), activation("delta_read", base, heads, spec.head_dim)
    output = activation("delta_output", formats.activations, heads, spec.head_dim)
    convolution, convolved = _convolution("qkv_conv1d", qkv, 3 * width, spec.conv, False, formats)
    fixed = (
        *vectors("kimi_delta", ["a_log"], heads, formats.weight("norm")),
        *vectors("kimi_delta", ["dt_bias"], width, formats.weight("norm")),
    )
    cells = heads * spec.head_dim * spec.head_dim
    low_gate = activation("delta_gate_low", base, spec.gate_rank or 1)
    gated = [linear("output_gate_proj", source, gate, formats)]
    if spec.gate_rank is not None:
        down = linear("output_gate_in_proj", source, low_gate, formats, component="gate_in_proj")
        gated = [down, linear("output_gate_proj", low_gate, gate, formats)]
    decayed = [linear("decay_proj", source, decay, formats)]
    if not spec.full_decay:
        first = linear("decay_in_proj", source, low, formats, component="gate_in_proj")
        decayed = [first, linear("decay_proj", low, decay, formats)]
    return [
        linear("in_proj", source, qkv, formats),
        convolution,
        *decayed,
        linear("rate_proj", source, rates, formats, component="gate_in_proj"),
        *gated,
        recurrence(
            "kimi_delta",
            (convolved, decay, rates, *fixed),
            (heads, spec.head_dim, spec.head_dim),
            read,
            matrix_flops=TOKENS * 6 * cells,
            vector_flops=TOKENS * cells,
            kind=Kind.KIMI_DELTA,
        ),
        _gated_norm("delta_norm", Norm("rmsnorm"), read, gate, output, formats),
        linear("out_proj", output, target, formats),
    ]


def _retention(spec: Retention, norm: Norm, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """Retention (Sun et al. 2023) and linear attention: outer products into the state, GEMVs out of it."""
    heads, base = spec.heads, formats.base
    query, key = (activation(name, base, heads, spec.key_dim) for name in ("query", "key"))
    value = activation("value", base, heads, spec.value_dim)
    read = activation("retained", base, heads, spec.value_dim)
    output = activation("retention_output", formats.activations, heads, spec.value_dim)
    cells = heads * spec.key_dim * spec.value_dim
    ops = [
        linear("q_proj", source, query, formats),
        linear("k_proj", source, key, formats),
        linear("v_proj", source, value, formats),
        recurrence(
            "retention",
            (query, key, value),
            (heads, spec.key_dim, spec.value_dim),
            read if spec.gated else output,
            matrix_flops=TOKENS * 4 * cells,
            vector_flops=TOKENS * cells,
        ),
    ]
    if spec.gated:
        gate = activation("retention_gate", base, heads, spec.value_dim)
        group_norm = replace(norm, weight=spec.norm_weight)
        ops.append(linear("g_proj", source, gate, formats))
        ops.append(_gated_norm("retention_norm", group_norm, read, gate, output, formats))
    return [*ops, linear("o_proj", output, target, formats)]


def token_shift(name: str, source: Tensor, target: Tensor, mixes: int, formats: Formats) -> Op:
    """RWKV's token shift: `mixes` learned interpolations between each token and the one before, which is the state."""
    width = source.width
    state = Tensor(f"{name}.state", Role.STATE, (BATCH, width), STATE_FORMAT)
    learned = vectors(name, [f"mix_{index}" for index in range(mixes)], width, formats.weight("norm"))
    return Op(
        name,
        Kind.ELEMENTWISE,
        reads=(source, state, *learned),
        writes=(target, replace(state, stored=(0,))),
        vector_flops=source.elements * SHIFT_FLOPS * mixes,
    )


def _rwkv4(spec: Rwkv, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """RWKV-4 (Peng et al. 2023): an elementwise recurrence with numerator, denominator and maximum as state."""
    inner, base = spec.heads * spec.head_dim, formats.base
    mixed = activation("attn_mixed", formats.activations, *source.shape[2:])
    inputs = [activation(name, base, inner) for name in ("key", "value", "receptance")]
    output = activation("wkv", formats.activations, inner)
    fixed = vectors("wkv", ["decay", "first"], inner, formats.weight("norm"))
    return [
        token_shift("attn_token_shift", source, mixed, 3, formats),
        *(linear(f"{each.name[0]}_proj", mixed, each, formats) for each in inputs),
        recurrence("wkv", (*inputs, *fixed), (3, inner), output, vector_flops=TOKENS * inner * RWKV4_FLOPS),
        linear("o_proj", output, target, formats),
    ]


def _low_rank(name: str, source: Tensor, target: Tensor, rank: int, formats: Formats, bias: bool) -> list[Op]:
    """A projection through a bottleneck of `rank`."""
    low = activation(f"{name}_low", formats.base, rank)
    return [linear(f"{name}_a", source, low, formats), linear(f"{name}_b", low, target, formats, bias)]


def _rwkv(spec: Rwkv, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """RWKV-5 (Eagle), 6 (Finch) and 7 (Goose): a state matrix per head, from 6 on data-dependent mixing and decay.

    Per state element and token, versions 5 and 6 decay, add k v and read with r: 4 matrix and 1 vector FLOPs; version 7
    also applies the rank-one update of its delta rule: 8 and 1.
    """
    width = source.width
    inner, base, seven = spec.heads * spec.head_dim, formats.base, spec.version == 7
    mixed = activation("attn_mixed", formats.activations, width)
    names = ("receptance", "key", "value")
    inputs = {name: activation(name, base, inner) for name in names}
    gate, decay = activation("gate", base, inner), activation("decay", base, inner)
    five = spec.version == 5
    read = activation("wkv", base, inner)
    output = activation("wkv_output", formats.activations, inner)
    ops = [token_shift("attn_token_shift", source, mixed, 4 if five else 6, formats)]
    extra: list[Tensor] = []
    if spec.mix_rank:
        # The five mixes are data-dependent.
        low, mixes = activation("mix_low", base, 5 * spec.mix_rank), activation("mixes", base, 5 * width)
        down = linear("mix_a", mixed, low, formats)
        up = Tensor("mix_b.weight", Role.WEIGHT, (5, spec.mix_rank, width), formats.weight("mix_b"))
        flops = 2 * TOKENS * 5 * spec.mix_rank * width
        ops += [down, Op("mix_b", Kind.GEMM, (low, up), (mixes,), matrix_flops=flops, operands=(low, up))]
        extra.append(mixes)
    ops += [linear(f"{name[0]}_proj", mixed, inputs[name], formats) for name in names]
    if not five:
        ops += _low_rank("decay", mixed, decay, spec.decay_rank, formats, bias=seven)
        extra.append(decay)
    if seven:
        for name, rank in (("rate", spec.rate_rank), ("value_mix", spec.value_rank)):
            if rank:
                extra.append(activation(name, base, inner))
                ops += _low_rank(name, mixed, extra[-1], rank, formats, bias=True)
        ops += _low_rank("gate", mixed, gate, spec.gate_rank, formats, bias=False)
    else:
        ops.append(linear("g_proj", mixed, gate, formats))
    learned = ["k_k", "k_a", "r_k"] if seven else ["decay", "first"]
    fixed = vectors("wkv", learned, inner, formats.weight("norm"))
    cells = inner * spec.head_dim
    ops.append(
        recurrence(
            "wkv",
            (*inputs.values(), *extra, *fixed),
            (spec.heads, spec.head_dim, spec.head_dim),
            read,
            matrix_flops=TOKENS * (8 if seven else 4) * cells,
            vector_flops=TOKENS * cells,
        )
    )
    ops.append(_gated_norm("wkv_norm", Norm("layernorm"), read, gate, output, formats))
    return [*ops, linear("o_proj", output, target, formats)]


def _diagonal(spec: StateSpace, name: str, source: Tensor, output: Tensor, learned: int, formats: Formats) -> Op:
    """A diagonal state space of each channel, with so many `learned` vectors of state and two of channels.

    A complex element of the state takes as many FLOPs a token as two of Mamba's.
    """
    width = source.width
    weights = tuple(
        Tensor(f"{name}.{index}", Role.WEIGHT, (width, spec.state), formats.weight("norm")) for index in range(learned)
    )
    fixed = vectors(name, ["dt", "d"], width, formats.weight("norm"))
    flops = TOKENS * width * (MAMBA_FLOPS * spec.state + 2)
    return recurrence(name, (source, *weights, *fixed), (width, spec.state), output, vector_flops=flops)


def _s4(spec: StateSpace, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """S4 (Gu et al. 2021): a state space, GELU, and a linear layer of twice the width whose half gates the other.

    All channels share the transition and the input vector (`n_ssm: 1` of the code): each learns an output vector.
    """
    width, base = source.width, formats.base
    output = activation("s4_output", formats.activations, width)
    doubled = activation("s4_doubled", base, 2 * width)
    return [
        _diagonal(spec, "state_space", source, output, 1, formats),
        linear("out_proj", output, doubled, formats, bias=True),
        elementwise("s4_gating", Kind.ACTIVATION, (doubled,), target, GATED_FLOPS * target.elements),
    ]


def _h3(spec: StateSpace, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """H3 (Fu et al. 2023): q * diagonal(shift(k) * v); a shift is a convolution as long as its state."""
    width, base = source.width, formats.base
    query, key, value = (activation(name, base, width) for name in ("query", "key", "value"))
    product, output = activation("h3_product", base, width), activation("h3_output", formats.activations, width)
    taps = tuple(
        Tensor(f"shift.{name}", Role.WEIGHT, (width, spec.state), formats.weight("norm")) for name in ("b", "c")
    )
    shift = (*taps, *vectors("shift", ["d"], width, formats.weight("norm")))
    flops = TOKENS * width * (2 * spec.state + 3)
    diagonal = _diagonal(spec, "diagonal", product, output, 3, formats)
    gated = replace(diagonal, reads=(query, *diagonal.reads), vector_flops=diagonal.vector_flops + TOKENS * width)
    return [
        *(linear(f"{each.name[0]}_proj", source, each, formats, bias=True) for each in (query, key, value)),
        recurrence("shift", (key, value, *shift), (width, spec.state), product, vector_flops=flops),
        gated,
        linear("o_proj", output, target, formats, bias=True),
    ]


def _hyena(spec: Hyena, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """Hyena (Poli et al. 2023): `order` gated convolutions as long as the sequence.

    Each takes three FFTs of twice the length, 5 N log2 N FLOPs for N real points, or the direct sum where that is less
    (decode), and a gate. A small network over positions generates the filters. The state is the sequence itself.
    """
    width = source.width
    base, streams = formats.base, spec.order + 1
    projected = activation("hyena_projected", base, streams * width)
    convolution, convolved = _convolution("short_filter", projected, streams * width, spec.conv, True, formats)
    output = activation("hyena_output", formats.activations, width)
    filters, inner = spec.order - 1, spec.filter_width
    # The filter network: embedding, hidden layers, one output per channel and filter.
    shapes = [(inner, spec.filter_embedding), *[(inner, inner)] * spec.filter_layers, (filters * width, inner)]
    weights = [
        Tensor(f"filter.{index}", Role.WEIGHT, shape, formats.weight("norm")) for index, shape in enumerate(shapes)
    ]
    biases = vectors("filter", ["bias"], filters * width, formats.weight("bias"))
    generated = Tensor("filters", Role.ACTIVATION, (QUERIES, filters * width), base)
    generate_flops = 2 * QUERIES * sum(rows * columns for rows, columns in shapes)
    before, held = ((BATCH, tokens, filters * width) for tokens in (Convolution().past, AttentionMask().held))
    past = Tensor("past", Role.STATE, before, base, held)
    return [
        linear("in_proj", source, projected, formats, bias=True),
        convolution,
        Op("filter", Kind.ELEMENTWISE, reads=(*weights, *biases), writes=(generated,), vector_flops=generate_flops),
        Op(
            "long_conv",
            Kind.SCAN,
            reads=(convolved, generated, past),
            writes=(output,),
            vector_flops=TOKENS * width * filters * (Convolution().flops + 1),
        ),
        linear("out_proj", output, target, formats, bias=True),
    ]
