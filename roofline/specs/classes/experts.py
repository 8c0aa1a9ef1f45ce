"""The routed experts of a layer: as one tensor for all of them, or as a list of modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from roofline.specs.classes.attention import first_of
from roofline.specs.classes.block import Block, Parameters, is_linear, sides
from roofline.specs.classes.trace import Call

CHOSEN = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_top_k", "moe_k", "experts_per_token", "top_k")


MORE = 8
"""Most rows of a router beside those of its routed experts: of shared ones, or of experts that do nothing."""


ROUTERS = ("gate", "router", "topk", "switch")
"""Words in the names of routers, and of linear layers that are routers, in lower case."""


class _Experts(Struct):
    """Alike experts: their number, widths, whether they are gated and have biases, and their parameters."""

    count: int
    width: int
    inputs: int
    gated: bool
    biased: bool
    parameters: list[Any]
    paths: list[str]


def experts(
    modules: Mapping[str, Any], inside: list[str], calls: list[Call], block: Block, parameters: Parameters,
    hidden: int, text: Any,
) -> set[str]:  # fmt: skip
    """Put the routed experts of a layer into its block; the paths of the modules that they consist of.

    Experts that a spec cannot express stay among the modules: a router that is not found, other biases.
    """
    for path in inside:
        found = _packed(path, modules[path], hidden) or _listed(path, modules[path])
        if found is None:
            continue
        router = _router(modules, inside, found, hidden, parameters)
        chosen = next((call.top_k for call in calls if call.path == path and call.top_k), 0)
        top_k = chosen or first_of(text, CHOSEN)
        around = [] if found.inputs == hidden else _latent(modules, inside, hidden, found.inputs)
        if router is None or not 1 <= top_k <= found.count or (found.inputs != hidden and len(around) != 2):
            return set()
        for value in found.parameters:
            parameters.take(value)
        for name in around:
            parameters.take(modules[name].weight)
        extra, rest = _take_router(modules[router], parameters, found.count, hidden)
        block.weights += rest
        block.moe = {
            "experts": found.count, "top_k": top_k, "width": found.width, "gated": found.gated, "activation": "silu",
            **({"bias": True} if found.biased else {}), **({"router_bias": True} if extra else {}),
            **({"latent": found.inputs} if around else {}),
        }  # fmt: skip
        return {router, *around, *found.paths}
    return set()


def _packed(path: str, module: Any, hidden: int) -> _Experts | None:
    """Experts in tensors with one matrix for each, as Transformers 5 stores them."""
    own = dict(module.named_parameters(recurse=False))
    ups = [own[name] for name in ("gate_up_proj", "gate_proj", "up_proj") if name in own]
    down = own.get("down_proj")
    if not ups or down is None or any(value.dim() != 3 for value in (*ups, down)):
        return None
    count, biases = down.shape[0], [value for name, value in own.items() if name.endswith("bias")]
    ways = [tuple(down.shape[:0:-1]), tuple(down.shape[1:])]  # down projections as linear layers have them, or not
    for width, inputs in sorted(ways, key=lambda way: way[1] != hidden):
        for gated, shape in ((True, {2 * width, inputs}), (False, {width, inputs})):
            joined = "gate_up_proj" in own
            if set(ups[0].shape[1:]) == shape and joined == (gated and len(ups) == 1):
                gated = gated or len(ups) == 2
                expected = count * ((2 if gated else 1) * width + inputs)
                biased = bool(biases)
                if biased and sum(value.numel() for value in biases) != expected:
                    return None
                return _Experts(count, width, inputs, gated, biased, [*ups, down, *biases], [path])
    return None


def _listed(path: str, module: Any) -> _Experts | None:
    """Experts in a list of modules, each of two or three linear layers."""
    from torch.nn import ModuleDict, ModuleList

    if "expert" not in path.rsplit(".", 1)[-1] or not isinstance(module, (ModuleDict, ModuleList)) or len(module) < 2:
        return None
    each = [[part for part in one.modules() if is_linear(part)] for one in module.children()]
    shapes = {tuple(map(sides, parts)) for parts in each}
    if len(shapes) != 1 or len(each[0]) not in (2, 3):
        return None
    found = next(iter(shapes))
    inputs, width = found[0]
    if sorted(found) != sorted([(inputs, width)] * (len(found) - 1) + [(width, inputs)]):
        return None
    biased = [part.bias is not None for parts in each for part in parts]
    if any(biased) != all(biased):
        return None
    names = [f"{path}.{name}" for name, _ in module.named_modules() if name]
    return _Experts(len(each), width, inputs, len(found) == 3, all(biased), list(module.parameters()), [path, *names])


def _router(
    modules: Mapping[str, Any], inside: Iterable[str], found: _Experts, hidden: int, parameters: Parameters
) -> str | None:
    """The module of a layer whose weight has one row for each expert, and perhaps some for shared ones."""
    own = {id(value) for value in found.parameters}
    fitting: list[tuple[bool, int, str]] = []
    for path in inside:
        named = any(word in f"{path.rsplit('.', 1)[-1]} {type(modules[path]).__name__}".lower() for word in ROUTERS)
        for value in modules[path].parameters(recurse=False):
            if value.dim() == 2 and hidden in value.shape and parameters.has(value) and id(value) not in own:
                more = value.numel() // hidden - found.count
                fitting += [(not named, more, path)] if 0 <= more <= MORE else []
    return min(fitting, default=(False, 0, None))[2]


def _latent(modules: Mapping[str, Any], inside: Iterable[str], hidden: int, latent: int) -> list[str]:
    """The projections into and out of what the experts compute on, where that is not the layer's width."""
    linears = [path for path in inside if is_linear(modules[path]) and modules[path].bias is None]
    return [path for path in linears if sides(modules[path]) in ((hidden, latent), (latent, hidden))]


def _take_router(module: Any, parameters: Parameters, count: int, hidden: int) -> tuple[bool, int]:
    """Whether the router has, beside its weight, one number for each expert, and what else it has."""
    extra, rest = False, 0
    for value in module.parameters(recurse=False):
        if parameters.take(value):
            alone = value.numel() == count and not extra
            extra = extra or alone
            rest += 0 if alone else value.numel() - count * hidden * (value.dim() == 2)
    return extra, rest
