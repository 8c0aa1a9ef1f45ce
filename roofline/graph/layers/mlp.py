"""Feed-forward blocks: dense MLPs, gated or plain, and mixtures of experts."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from itertools import pairwise

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, Pool
from roofline.graph.layers.basic import (
    Formats,
    Ops,
    activation,
    add,
    collective,
    elementwise,
    linear,
    normalise,
    vectors,
)
from roofline.graph.layers.flops import ACTIVATION_FLOPS, SIGMOID_FLOPS, SOFTMAX_FLOPS
from roofline.graph.layers.recurrent import token_shift
from roofline.graph.op import Kind, Op, Routed
from roofline.graph.parallel import Collective, bus_factor
from roofline.graph.ranks import imbalance
from roofline.graph.size import ZERO, Dim, Size, as_size, product
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import Format
from roofline.specs.model import Norm
from roofline.specs.sublayers import MixtureOfExperts, Mlp


def mlp(spec: Mlp, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """The operators of an MLP, from the normalised input to the down projection."""
    up, gate = (activation(name, formats.base, spec.width) for name in ("up", "gate"))
    activated = activation("mlp_activated", formats.activations, spec.width)
    output = activation("mlp_ungated", formats.base, *target.shape[2:]) if spec.receptance else target
    ops = Ops(formats)
    if spec.shift:
        mixed = activation("mlp_mixed", formats.activations, *source.shape[2:])
        source = ops.run(token_shift("mlp_token_shift", source, mixed, spec.shift, formats))
    projections = [
        *([linear("gate_proj", source, gate, formats, spec.bias)] if spec.gated else []),
        linear("up_proj", source, up, formats, spec.bias),
        linear("down_proj", activated, output, formats, spec.bias),
    ]
    if spec.active < 1:
        projections = [_sparse(op, spec) for op in projections]
    ops += [*projections[:-1], _activate("mlp_act", spec, gate, up, activated), projections[-1]]
    if spec.receptance:
        receptance = ops.project("receptance_proj", source, "receptance", *target.shape[2:])
        gated = target.elements * (SIGMOID_FLOPS + 1)
        ops.append(elementwise("mlp_gating", Kind.ACTIVATION, (output, receptance), target, gated))
    return ops


def _activate(name: str, spec: Mlp | MixtureOfExperts, gate: Tensor, up: Tensor, target: Tensor) -> Op:
    flops = ACTIVATION_FLOPS[spec.activation] + spec.gated  # a gate adds one multiplication
    return elementwise(name, Kind.ACTIVATION, (gate, up) if spec.gated else (up,), target, target.elements * flops)


def _sparse(op: Op, spec: Mlp) -> Op:
    """A projection restricted to the active neurons: the union over all tokens of a batch."""
    source, weight = op.operands
    neurons = Pool(spec.width, spec.active * spec.width)
    shape = tuple(neurons.touched if dim == spec.width else dim for dim in weight.shape)
    touched = replace(weight, shape=shape, stored=weight.stored_shape)
    return replace(
        op,
        reads=tuple(touched if tensor is weight else tensor for tensor in op.reads),
        operands=(source, touched),
        matrix_flops=op.matrix_flops * spec.active,
    )


def mixture_of_experts(spec: MixtureOfExperts, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """Router, routed experts, their weighted sum, and the shared experts.

    Each token runs through `top_k` experts; the pass reads the weights of the distinct experts that its tokens touch,
    while all are stored. Every expert's copy of a token is a row: batch * queries * top_k rows in all. Experts of a
    `latent` width compute on a projection of the token, and their sum is projected back (LatentMoE; Nemotron 3, 2025):
    ranks exchange latents, and each has both projections whole.
    """
    ops, parallel = Ops(formats), formats.parallel
    count = spec.experts * parallel.expert - (parallel.redundant if parallel.expert > 1 else 0)
    logits = ops.project("router", source, "router_logits", count)
    bias = vectors("router", ["correction"] if spec.router_bias else [], count, formats.weight("router"))
    routes, flops = activation("routes", formats.base, spec.top_k), SOFTMAX_FLOPS * logits.elements
    ops.append(elementwise("router_topk", Kind.SOFTMAX, (logits, *bias), routes, flops))
    routed = activation("routed", formats.base, source.shape[-1]) if spec.shared_width else target
    inputs, outputs = source, routed
    if spec.latent:
        inputs = activation("expert_latent", formats.activations, spec.latent)
        ops.append(linear("latent_down_proj", source, inputs, formats))
        outputs = activation("expert_latent_sum", formats.activations, spec.latent)
    *gemms, weighted_sum = _routed_experts(spec, inputs, routes, outputs, formats)
    exchanges = _all_to_alls(inputs, spec, formats) if parallel.all_to_all else []
    ops += [*exchanges[:1], *gemms, *exchanges[1:], weighted_sum]
    if spec.latent_norm and spec.latent:
        normed = replace(outputs, name="expert_latent_normed")
        outputs = ops.run(normalise("expert_latent_norm", Norm("rmsnorm"), outputs, normed, formats))
    if spec.latent:
        ops.append(linear("latent_up_proj", outputs, routed, formats))
    return [*ops, *(_shared_experts(spec, source, routed, target, formats) if spec.shared_width else [])]


def _routed_experts(
    spec: MixtureOfExperts, source: Tensor, routes: Tensor, target: Tensor, formats: Formats
) -> list[Op]:
    """The grouped GEMMs of one rank's experts, and the weighted sum of each token's experts."""
    hidden, parallel = source.width, formats.parallel
    # Expert ranks divide the experts and serve the tokens of all data ranks: k rows of a rank for each own token.
    load = spec.top_k * parallel.expert_tokens / parallel.expert
    slots, copies = spec.experts * parallel.expert, parallel.redundant if parallel.expert > 1 else 0
    load *= formats.capacity * imbalance(slots - copies, spec.top_k, parallel.expert, formats.skew, copies)
    k: Dim = int(load) if load == int(load) else as_size(load)
    pool = Pool(spec.experts, spec.top_k / parallel.expert, formats.skew, parallel.expert_tokens, routed=True)
    touched = pool.touched
    # Rows are gathered as they are read: a token's input is read once for each of its experts.
    rows = Tensor(source.name, source.role, (BATCH, QUERIES, k, hidden), source.format)
    up, gate = (activation(f"expert_{name}", formats.base, k, spec.width) for name in ("up", "gate"))
    activated = activation("expert_activated", formats.activations, k, spec.width)
    output = activation("expert_output", formats.base, k, hidden)
    return [
        *([_grouped_gemm("expert_gate_proj", spec, touched, rows, gate, formats)] if spec.gated else []),
        _grouped_gemm("expert_up_proj", spec, touched, rows, up, formats),
        _activate("expert_act", spec, gate, up, activated),
        _grouped_gemm("expert_down_proj", spec, touched, activated, output, formats),
        elementwise("expert_combine", Kind.ELEMENTWISE, (output, routes), target, 2 * output.elements),
    ]


def _grouped_gemm(
    name: str, spec: MixtureOfExperts, touched: Size, source: Tensor, target: Tensor, formats: Formats
) -> Op:
    """A projection of the rows (batch, queries, k, inputs) by the experts that they are routed to.

    An expert alone on a device of experts is a plain GEMM: libraries of devices of experts have kernels of their own.
    """
    *row_dims, inputs = source.shape
    outputs, rows = target.shape[-1], product(tuple(row_dims))
    stored, format = (spec.experts, outputs, inputs), formats.weight(name, source.width)
    weight = Tensor(f"{name}.weight", Role.WEIGHT, (touched, outputs, inputs), format, stored)
    bias = Tensor(f"{name}.bias", Role.WEIGHT, (touched, outputs), formats.weight("bias"), stored[:2])
    return Op(
        name,
        Kind.GEMM if formats.parallel.apart and spec.experts == 1 else Kind.MOE,
        reads=(source, weight, *([bias] if spec.bias else [])),
        writes=(target,),
        matrix_flops=2 * rows * (product((inputs, outputs)) * weight.format.density),
        vector_flops=target.elements if spec.bias else ZERO,
        operands=(source, weight),
    )


def _all_to_alls(source: Tensor, spec: MixtureOfExperts, formats: Formats) -> list[Op]:
    """Dispatch of tokens to the ranks of their experts, and combine, the way back.

    A token is sent once to each rank that has any of its experts, and a sum returns from each (DeepEP's kernels for
    throughput, whose layout is a rank mask per token). Tensor ranks share the sending of the tokens that they all have.
    Across nodes a token is sent once to each node that has any of its experts, and forwarded within the node over the
    faster links; sums return the same way (DeepSeek-V3, 2024, section 3.2.2). Devices of experts alone take a token
    directly from those of attention (M2N; MegaScale-Infer, 2025): the pool with the fewer links has the most to send.
    """
    parallel = formats.parallel
    ranks, reach = parallel.expert, parallel.tensor * parallel.data + parallel.apart
    copies, share, reached = destinations(spec, ranks, ranks), 1 / parallel.tensor, 1.0
    if parallel.apart:
        share = max(share, parallel.data / ranks)
    elif parallel.span(reach).across_nodes:
        nodes = -(-reach // parallel.devices_per_node)
        reached = destinations(spec, ranks, nodes)
        remote = reached * bus_factor(Collective.ALL_TO_ALL, nodes)
        share *= remote / (copies * bus_factor(Collective.ALL_TO_ALL, ranks))
    tokens = product((BATCH, QUERIES)) * (share if parallel.apart else 1 / parallel.tensor)
    share /= bus_factor(Collective.ALL_TO_ALL, ranks) if parallel.apart else 1.0

    def all_to_all(name: str, rows: str, form: Format, returns: bool) -> Op:
        sent = activation(rows, form, as_size(copies), *source.shape[2:])
        received = replace(sent, name=f"{rows}_received")
        routed = Routed(
            tokens,
            source.width * form.bytes,
            source.width * formats.base.bytes,
            spec.top_k,
            spec.experts * ranks,
            copies,
            reached,
            parallel.exchange,
            returns,
        )
        return collective(f"{name}_all_to_all", Collective.ALL_TO_ALL, sent, received, ranks, reach, share, routed)

    sent = all_to_all("dispatch", "dispatched", formats.activations, returns=False)
    return [sent, all_to_all("combine", "combined", formats.base, returns=True)]


@lru_cache(maxsize=1024)
def destinations(spec: MixtureOfExperts, ranks: int, among: int) -> float:
    """Expected number of `among` devices or nodes that hold any of a token's experts, with uniform routing.

    `spec` is that of one of `ranks` expert ranks; each destination holds as many neighbouring experts. A destination
    with m of E experts holds none of k with probability C(E - m, k) / C(E, k). With group-limited routing the k are
    among the T experts of the groups that a token picks, of which the destination has t: C(T - t, k) / C(T, k), over
    all choices of groups.
    """
    experts = spec.experts * ranks
    groups, picked = spec.groups, spec.top_groups
    if experts % groups or picked * (experts // groups) < spec.top_k:  # after a technique changed the experts
        groups = picked = 1
    size = experts // groups
    eligible = picked * size
    choices = math.comb(groups, picked) * math.comb(eligible, spec.top_k)
    cuts = [index * experts // among for index in range(among + 1)]
    missed = 0
    for start, stop in pairwise(cuts):
        shares = [max(0, min(stop, first + size) - max(start, first)) for first in range(0, experts, size)]
        missed += sum(
            ways * math.comb(eligible - held, spec.top_k)
            for (chosen, held), ways in _choices(tuple(shares), picked).items()
            if chosen == picked
        )
    return among - missed / choices


def _choices(shares: tuple[int, ...], most: int) -> Counter[tuple[int, int]]:
    """The number of ways to choose some groups, at most `most`, by their number and the sum of their `shares`."""
    ways = Counter({(0, 0): 1})
    for share in shares:
        ways += Counter({(chosen + 1, held + share): count for (chosen, held), count in ways.items() if chosen < most})
    return ways


def _shared_experts(
    spec: MixtureOfExperts, source: Tensor, routed: Tensor, target: Tensor, formats: Formats
) -> list[Op]:
    """The shared experts and their addition to the routed ones."""
    ops, width, hidden = Ops(formats), spec.shared_width, source.shape[-1]

    def project(part: str, read: Tensor, outputs: Dim) -> Tensor:
        name, component = f"shared_{part}_proj", f"{part}_proj"
        made = "shared_output" if part == "down" else f"shared_{part}"
        return ops.project(name, read, made, outputs, bias=spec.shared_bias, component=component)

    made = [project(part, source, width) for part in (("gate", "up") if spec.gated else ("up",))]
    activated = activation("shared_activated", formats.activations, width)
    ops.append(_activate("shared_act", spec, made[0], made[-1], activated))
    output = project("down", activated, hidden)
    if spec.shared_gate:
        weight = ops.project("shared_expert_gate", source, "shared_weight", 1, component="router")
        weighted = activation("shared_weighted", formats.base, hidden)
        gating = elementwise("shared_gating", Kind.ELEMENTWISE, (output, weight), weighted, output.elements)
        output = ops.run(gating)
    return [*ops, add("shared_add", routed, output, target)]
