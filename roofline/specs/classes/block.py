"""One layer of a class: its modules with every parameter in its place, as the section `modules` of a spec."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from roofline.specs.classes.trace import Core
from roofline.specs.sublayers import Attention, LinearModule, Modules, NormModule, TableModule
from roofline.specs.written import section_spec

Spec = dict[str, Any]


class Parameters:
    """The parameters of a model, each of which is taken once."""

    def __init__(self, model: Any) -> None:
        self.left = {id(parameter): parameter.numel() for parameter in model.parameters()}

    def take(self, parameter: Any) -> bool:
        """Whether the parameter was still there."""
        return parameter is not None and self.left.pop(id(parameter), None) is not None

    def take_all(self, module: Any) -> int:
        """The elements of a module's own parameters that were still there."""
        return sum(value.numel() for value in module.parameters(recurse=False) if self.take(value))

    def has(self, parameter: Any) -> bool:
        return id(parameter) in self.left

    @property
    def rest(self) -> int:
        """The number of elements that nothing has taken."""
        return sum(self.left.values())


class Norm(Struct):
    """A norm with so many learned vectors; `centred`: a LayerNorm."""

    width: int
    vectors: int
    rows: float
    centred: bool = False


class Block(Struct):
    """What one layer consists of, in the order in which it ran; `before`: linear layers before the attention."""

    linears: list[LinearModule] = []
    norms: list[Norm] = []
    tables: list[TableModule] = []
    core: Core | None = None
    before: int = 0
    latent: int = 0
    shared: bool = False
    weights: int = 0
    whole: int = 0
    state: int = 0
    scan: float = 0.0
    moe: Spec | None = None
    cross: Spec | None = None


def is_linear(module: Any) -> bool:
    """Whether a module is a linear layer, in either of the two ways that Transformers stores one."""
    from torch.nn import Linear as Plain
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, (Plain, Conv1D))


def sides(module: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    first, second = module.weight.shape
    return (second, first) if hasattr(module, "out_features") else (first, second)


def is_norm(module: Any) -> bool:
    """Whether a module is a norm over its last dimension."""
    weight = getattr(module, "weight", None)
    return "norm" in type(module).__name__.lower() and weight is not None and weight.dim() == 1


def place(name: str, module: Any, rows: float, block: Block, parameters: Parameters) -> None:
    """Put the own parameters of a module into the block; what did not run (no `rows`) is left."""
    from torch.nn import Embedding

    own = dict(module.named_parameters(recurse=False))
    if not own or not rows:
        return
    weight = getattr(module, "weight", None)
    if is_linear(module):
        shared = not parameters.take(weight)
        biased = parameters.take(own.get("bias")) or (shared and "bias" in own)
        block.linears.append(LinearModule(name[-100:], *sides(module), biased, rows, shared))
    elif isinstance(module, Embedding) and parameters.take(weight):
        block.tables.append(TableModule(*module.weight.shape))
    elif is_norm(module) and parameters.take(weight):
        vectors = 1 + parameters.take(own.get("bias"))
        centred = vectors == 2 or "LayerNorm" in type(module).__name__
        block.norms.append(Norm(module.weight.shape[0], vectors, rows, centred))
    for value in own.values():
        if parameters.take(value):
            block.weights += value.numel()
            block.whole += value.numel() * (value.dim() == 3 and "Conv" not in type(module).__name__)


def usual_norm(blocks: list[Block]) -> tuple[str, int]:
    """The kind of norm that every layer begins with, and its learned vectors; 0 where layers differ."""
    first = [block.norms[0] for block in blocks if block.norms]
    if len(first) < len(blocks) or len({(norm.width, norm.vectors, norm.centred) for norm in first}) != 1:
        return "rmsnorm", 0
    return ("layernorm" if first[0].centred else "rmsnorm"), first[0].vectors


def section(block: Block, vectors: int, hidden: int) -> Spec:
    """A layer's section; the norms before its parts, of so many `vectors`, are those that a spec gives each layer."""
    norms = list(block.norms)
    fits = [norm for norm in norms if (norm.width, norm.vectors, norm.rows) == (hidden, vectors, 1)]
    needed = 1 + (block.moe is not None) + (block.cross is not None)
    made: Spec = {}
    if vectors and len(fits) >= needed:
        for norm in fits[:needed]:
            norms.remove(norm)
    elif vectors:
        made["norm"] = {"kind": "rmsnorm", "weight": False}
    made["modules"] = modules_section(structs.replace(block, norms=norms))
    return made | {key: part for key, part in (("moe", block.moe), ("cross", block.cross)) if part}


def modules_section(block: Block) -> Spec:
    """The section `modules` of a block."""
    modules = Modules(
        linears=tuple(structs.replace(linear, rows=round(linear.rows, 6)) for linear in block.linears),
        norms=tuple(NormModule(norm.width, norm.vectors, round(norm.rows, 6)) for norm in block.norms),
        tables=tuple(block.tables),
        attention=None if block.core is None else _attention(block.core, block.shared),
        before=block.before,
        latent=block.latent,
        weights=block.weights,
        state=block.state,
        scan=round(block.scan, 3),
    )
    return section_spec(modules)


def _attention(core: Core, shared: bool) -> Attention:
    window = core.window if core.causal or core.window is None else 2 * core.window - 1  # on both sides
    return Attention(
        *(core.heads, core.kv_heads, core.head_dim, window),
        chunk=core.chunk,
        causal=core.causal,
        kv_shared=shared,
        value_dim=core.value_dim if core.value_dim != core.head_dim else None,
    )
