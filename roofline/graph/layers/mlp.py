"""Feed-forward blocks: dense, gated or plain, and mixtures of experts."""

from __future__ import annotations

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, Pool
from roofline.graph.layers.basic import (
    Formats,
    activation,
    add,
    collective,
    elementwise,
    linear,
    token_shift,
    vectors,
)
from roofline.graph.op import Kind, Op
from roofline.graph.parallel import Collective, Parallelism, imbalance, link_share
from roofline.graph.size import Dim, as_size
from roofline.graph.tensor import Role, Tensor
from roofline.specs.model import MixtureOfExperts, Mlp

ACTIVATION_FLOPS = {
    "relu": 1,  # maximum
    "relu2": 2,  # maximum, square
    "silu": 4,  # negate, exponential, add, divide
    "gelu": 8,  # tanh form: three multiplications for the cubic, add, scale, tanh, add, multiply
}
SOFTMAX_FLOPS = 5  # of the router: maximum, subtract, exponential, sum, divide
SIGMOID_FLOPS = 4  # negate, exponential, add, divide


def mlp(spec: Mlp, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """The operators from the normalised input to the down projection."""
    up = activation("up", formats.base, spec.width)
    gate = activation("gate", formats.base, spec.width)
    activated = activation("mlp_activated", formats.activations, spec.width)
    inputs = (gate, up) if spec.gated else (up,)
    flops = ACTIVATION_FLOPS[spec.activation] + spec.gated  # a gate costs one multiplication more
    output = activation("mlp_ungated", formats.base, *target.shape[2:]) if spec.receptance else target
    ops: list[Op] = []
    if spec.shift:
        mixed = activation("mlp_mixed", formats.activations, *source.shape[2:])
        ops.append(token_shift("mlp_shift", source, mixed, spec.shift, formats))
        source = mixed
    projections = [
        *([linear("gate_proj", source, gate, formats, spec.bias)] if spec.gated else []),
        linear("up_proj", source, up, formats, spec.bias),
        linear("down_proj", activated, output, formats, spec.bias),
    ]
    if spec.active < 1:
        projections = [_sparse(op, spec) for op in projections]
    act = elementwise("mlp_act", Kind.ACTIVATION, inputs, activated, activated.elements * flops)
    ops += [*projections[:-1], act, projections[-1]]
    if spec.receptance:
        receptance = activation("receptance", formats.base, *target.shape[2:])
        ops.append(linear("receptance_proj", source, receptance, formats))
        gated = target.elements * (SIGMOID_FLOPS + 1)
        ops.append(elementwise("mlp_gating", Kind.ACTIVATION, (output, receptance), target, gated))
    return ops


def neurons_of(spec: Mlp) -> Pool:
    """The neurons of a block with contextual sparsity: a batch needs all that any of its tokens needs."""
    return Pool(spec.width, spec.active * spec.width)


def _sparse(op: Op, spec: Mlp) -> Op:
    """A projection that reads and multiplies the neurons its tokens need only."""
    source, weight = op.operands
    shape = tuple(neurons_of(spec).touched if dim == spec.width else dim for dim in weight.shape)
    touched = replace(weight, shape=shape, stored=weight.stored_shape)
    return replace(
        op,
        reads=tuple(touched if tensor is weight else tensor for tensor in op.reads),
        operands=(source, touched),
        matrix_flops=op.matrix_flops * spec.active,
    )


def mixture_of_experts(spec: MixtureOfExperts, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """Router, routed experts, combination, and the shared experts beside them.

    Each token runs through `top_k` experts; the pass reads the weights of the distinct experts that its tokens touch,
    while all are stored. Every expert's copy of a token is a row: batch * queries * top_k rows in all.
    """
    hidden, parallel = source.shape[-1], formats.parallel
    assert isinstance(hidden, int)
    # Expert ranks divide the experts and serve the tokens of all data ranks: the rows of a rank for each own token.
    share = spec.top_k * parallel.expert_tokens / parallel.expert
    load = share * formats.capacity * imbalance(spec, parallel.expert, formats.skew)
    k: Dim = int(load) if load == int(load) else as_size(load)
    pool = pool_of(spec, parallel, formats.skew)
    tokens = BATCH * QUERIES

    logits = activation("router_logits", formats.base, spec.experts * parallel.expert)
    routes = activation("routes", formats.base, spec.top_k)
    up = activation("expert_up", formats.base, k, spec.width)
    gate = activation("expert_gate", formats.base, k, spec.width)
    activated = activation("expert_activated", formats.activations, k, spec.width)
    output = activation("expert_output", formats.base, k, hidden)
    routed = activation("routed", formats.base, hidden) if spec.shared_width else target

    def experts(name: str, rows: Tensor, written: Tensor, inputs: int, outputs: int, gathered: bool) -> Op:
        # Rows are gathered as they are read: a token's input is read once for each of its experts.
        read = Tensor(rows.name, rows.role, (BATCH, QUERIES, k, inputs), rows.format) if gathered else rows
        shape: tuple[Dim, ...] = (pool.touched, outputs, inputs)
        stored = (spec.experts, outputs, inputs)
        weight = Tensor(f"{name}.weight", Role.WEIGHT, shape, formats.weight(name), stored)
        biases = (
            (Tensor(f"{name}.bias", Role.WEIGHT, (pool.touched, outputs), formats.weight("bias"), stored[:2]),)
            if spec.bias
            else ()
        )
        return Op(
            name,
            Kind.MOE,
            reads=(read, weight, *biases),
            writes=(written,),
            matrix_flops=2 * tokens * k * (inputs * outputs * weight.format.density),
            vector_flops=tokens * k * (outputs if spec.bias else 0),
            operands=(read, weight),
        )

    inputs = (gate, up) if spec.gated else (up,)
    flops = ACTIVATION_FLOPS[spec.activation] + spec.gated
    router = linear("router", source, logits, formats)
    choosing = vectors(
        "router", ["correction"] if spec.router_bias else [], spec.experts * parallel.expert, formats.weight("router")
    )
    ops = [
        router,
        elementwise("routing", Kind.SOFTMAX, (logits, *choosing), routes, SOFTMAX_FLOPS * logits.elements),
        *([experts("expert_gate_proj", source, gate, hidden, spec.width, True)] if spec.gated else []),
        experts("expert_up_proj", source, up, hidden, spec.width, True),
        elementwise("expert_act", Kind.ACTIVATION, inputs, activated, activated.elements * flops),
        experts("expert_down_proj", activated, output, spec.width, hidden, False),
        # The weighted sum of a token's experts: a multiplication and an addition each.
        elementwise("expert_combine", Kind.ELEMENTWISE, (output, routes), routed, 2 * output.elements),
    ]
    if parallel.exchanging:
        ops = _exchange(ops, source, spec, formats)
    return [*ops, *_shared(spec, source, routed, target, formats)] if spec.shared_width else ops


def pool_of(spec: MixtureOfExperts, parallel: Parallelism, skew: float) -> Pool:
    """The experts of one rank, and the tokens they serve."""
    return Pool(spec.experts, spec.top_k / parallel.expert, skew, parallel.expert_tokens)


def _exchange(ops: list[Op], source: Tensor, spec: MixtureOfExperts, formats: Formats) -> list[Op]:
    """All-to-all around the experts: rows go to the ranks of their experts and come back.

    Tensor ranks share the sending of the tokens that they all have. Across nodes a token is sent once to each node that
    has any of its experts, and passed on within the node, whose links are the faster ones; sums come back the same way
    (DeepSeek-V3, 2024, section 3.2.2).
    """
    parallel = formats.parallel
    ranks, reach = parallel.expert, parallel.tensor * parallel.data
    share = 1 / parallel.tensor
    if parallel.span(reach).across_nodes:
        share *= remote_nodes(-(-reach // parallel.devices_per_node), spec.top_k) / (
            spec.top_k * link_share(Collective.ALL_TO_ALL, ranks)
        )
    before, after = (
        activation(name, form, spec.top_k, *source.shape[2:])
        for name, form in (("dispatched", formats.activations), ("returned", formats.base))
    )
    exchanges = [
        collective(f"expert_{name}", Collective.ALL_TO_ALL, rows, replace(rows, name=f"{rows.name}_there"), ranks,
                   reach, share)
        for name, rows in (("dispatch", before), ("return", after))
    ]  # fmt: skip
    first = next(index for index, op in enumerate(ops) if op.kind is Kind.MOE)
    last = next(index for index, op in enumerate(ops) if op.name == "expert_combine")
    return [*ops[:first], exchanges[0], *ops[first:last], exchanges[1], *ops[last:]]


def remote_nodes(nodes: int, top_k: int) -> float:
    """Expected number of other nodes among `nodes` that hold any of a token's `top_k` experts, routed uniformly."""
    return (nodes - 1) * (1 - (1 - 1 / nodes) ** top_k)


def _shared(spec: MixtureOfExperts, source: Tensor, routed: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """The experts that every token runs through, and their addition to the routed ones."""
    hidden = source.shape[-1]
    up = activation("shared_up", formats.base, spec.shared_width)
    gate = activation("shared_gate", formats.base, spec.shared_width)
    activated = activation("shared_activated", formats.activations, spec.shared_width)
    output = activation("shared_output", formats.base, hidden)
    inputs = (gate, up) if spec.gated else (up,)
    flops = ACTIVATION_FLOPS[spec.activation] + spec.gated
    ops = [
        *([linear("shared_gate_proj", source, gate, formats, component="gate_proj")] if spec.gated else []),
        linear("shared_up_proj", source, up, formats, component="up_proj"),
        elementwise("shared_act", Kind.ACTIVATION, inputs, activated, activated.elements * flops),
        linear("shared_down_proj", activated, output, formats, component="down_proj"),
    ]
    if spec.shared_gate:
        weight = activation("shared_weight", formats.base, 1)
        weighted = activation("shared_weighted", formats.base, hidden)
        ops.append(linear("shared_expert_gate", source, weight, formats, component="router"))
        ops.append(elementwise("shared_gating", Kind.ELEMENTWISE, (output, weight), weighted, output.elements))
        output = weighted
    return [*ops, add("shared_add", routed, output, target)]
