"""From a class on the meta device to a model spec: which modules are its layers, what is around them, an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from roofline.core.errors import UnsupportedError
from roofline.specs.classes.attention import attend, cross
from roofline.specs.classes.block import (
    Block,
    Parameters,
    Spec,
    is_linear,
    is_norm,
    modules_section,
    place,
    section,
    usual_norm,
)
from roofline.specs.classes.experts import experts
from roofline.specs.classes.trace import SOURCE, TOKENS, Trace


class Read(Struct):
    """A model spec, and what it rests on: sentences for the person."""

    spec: Spec
    notes: list[str]


class _Stack(Struct):
    """What the layers of a network are read from; `pair`: of an encoder and a decoder; `blocks`: those read so far."""

    modules: Mapping[str, Any]
    made: Trace
    parameters: Parameters
    hidden: int
    text: Any
    pair: bool
    blocks: list[Block] = []


def read(model: Any, made: Trace) -> Read:
    """The spec of a built model from a pass of it; raises UnsupportedError where its layers are not found."""
    modules, parameters = dict(model.named_modules()), Parameters(model)
    table = _table(model)
    text = model.config.get_text_config(decoder=True)
    embedded, hidden = table.weight.shape
    parameters.take(table.weight)
    head = head_of(model)
    vocabulary = int(head.weight.shape[0])
    top: Spec = {"hidden": hidden, "vocabulary": vocabulary, "tied_embeddings": not parameters.take(head.weight)}
    top["lm_head_bias"] = parameters.take(getattr(head, "bias", None))
    pair = bool(getattr(model.config, "is_encoder_decoder", False))
    stack = _Stack(modules, made, parameters, hidden, text, pair)
    encoders = _lists(stack, "encoder") if pair else []
    layers = next(iter(_lists(stack, "decoder" if pair else "")), None)
    if layers is None:
        raise UnsupportedError("its class has no list of layers that runs on text")
    if len(made.cached) > len(layers):
        raise UnsupportedError("its class keeps more caches than it has layers")
    inside = tuple(f"{name}." for names in (layers, *encoders) for name in names)
    ran = dict.fromkeys(call.path for call in made.calls if call.core is None)
    ends = [name for name in ran if not f"{name}.".startswith(inside) and modules[name] not in (table, head)]
    encoding = [name for name in ends if encoders and _is_of_encoder(name)]
    if encoders:
        top |= _tower(model, stack, encoders[0], encoding, vocabulary)
    top |= _network(stack, layers, [name for name in ends if name not in encoding])
    top["extra_parameters"] = parameters.rest + (embedded - vocabulary) * hidden
    context = getattr(text, "max_position_embeddings", None)
    if isinstance(context, int) and 0 < context <= 10**9:
        top["max_context"] = context
    return Read(top, _notes(made, stack.blocks, parameters.rest))


def _table(model: Any) -> Any:
    """The table of input embeddings; raises UnsupportedError for a class without one."""
    try:
        table = model.get_input_embeddings()
    except NotImplementedError:
        table = None
    if getattr(table, "weight", None) is None or table.weight.dim() != 2:
        raise UnsupportedError("its class has no table of input embeddings")
    return table


def head_of(model: Any) -> Any:
    """The output layer; raises UnsupportedError for a class without one, or with one for more than it embeds."""
    rows, width = _table(model).weight.shape
    head = model.get_output_embeddings()
    if getattr(head, "weight", None) is None:
        linears = (module for module in model.modules() if is_linear(module))
        head = next((module for module in linears if tuple(module.weight.shape) == (rows, width)), None)
    if head is None or head.weight.shape[1] != width or head.weight.shape[0] > rows:
        raise UnsupportedError("its class has no output layer as wide as its embeddings")
    return head


def _network(stack: _Stack, layers: list[str], around: list[str]) -> Spec:
    """The layers of a network and what runs around them, which is part of its first layer."""
    blocks = [_block(stack, name, index) for index, name in enumerate(layers)]
    stack.blocks += blocks
    kind, vectors = usual_norm(blocks)
    sections = [section(block, vectors, stack.hidden) for block in blocks]
    ends = _ends(stack, around)
    usual = (stack.hidden, vectors, 1)
    own = vectors and "norm" not in sections[0]
    final = [norm for norm in ends.norms if own and (norm.width, norm.vectors, norm.rows) == usual]
    if final:
        ends.norms.remove(final[-1])
    norm: Spec = {"kind": kind, **({"bias": False} if kind == "layernorm" and vectors == 1 else {})}
    first = sections[0]["modules"]
    for key, part in modules_section(ends).items():
        first[key] = first[key] + part if key in first else part
    return {"norm": norm if vectors else {**norm, "weight": False}, "final_norm": bool(final), **_named(sections)}


def _block(stack: _Stack, layer: str, index: int) -> Block:
    """One layer: its experts, its other modules in the order they ran, and its attention."""
    modules, made = stack.modules, stack.made
    block = Block(state=made.states.get(index, 0))
    inside = [name for name in modules if name == layer or name.startswith(f"{layer}.")]
    calls = [call for call in made.calls if call.path == layer or call.path.startswith(f"{layer}.")]
    rows: dict[str, float] = {}
    for call in calls:
        if call.core is None:
            rows[call.path] = rows.get(call.path, 0.0) + call.rows
    routed = experts(modules, inside, calls, block, stack.parameters, stack.hidden, stack.text)
    for path in dict.fromkeys([*rows, *inside]):
        if path not in routed:
            name = path.removeprefix(f"{layer}.")
            place(name, modules[path], rows.get(path, 0.0 if made.calls else 1.0), block, stack.parameters)
            if path.rpartition(".")[0] in made.entered:  # the module around it uses its weights without calling it
                block.weights += stack.parameters.take_all(modules[path])
    if stack.pair:
        cross(block, layer, calls, stack.text)
    attend(block, layer, index, calls, made, stack.text)
    own = (path for path in inside if path not in routed and not is_linear(modules[path]))
    matrix = sum(made.flops.get(path, 0.0) for path in own)
    if block.core is not None and not any(call.core is not None for call in calls):
        pairs = 2 * TOKENS * TOKENS * block.core.heads
        matrix -= pairs * (block.core.head_dim + block.core.value_dim)
    block.scan = max(matrix, 0.0) / TOKENS
    return block


def _ends(stack: _Stack, around: list[str]) -> Block:
    """What runs outside of the layers."""
    block = Block()
    rows: dict[str, float] = {}
    for call in stack.made.calls:
        rows[call.path] = rows.get(call.path, 0.0) + call.rows
    for path in around:
        place(path, stack.modules[path], rows.get(path, 1.0), block, stack.parameters)
    return block


def _tower(model: Any, stack: _Stack, layers: list[str], around: list[str], vocabulary: int) -> Spec:
    """The encoder of an encoder-decoder; its table of embeddings is the decoder's."""
    made, share = stack.made, TOKENS / SOURCE
    norms = filter(is_norm, stack.modules[layers[0]].modules())
    hidden = next((int(norm.weight.shape[0]) for norm in norms), stack.hidden)
    ran = any(call.path.startswith(f"{layers[0]}.") for call in made.calls)
    calls = [structs.replace(call, rows=call.rows * share) for call in made.calls] if ran else []
    flops = {path: value * share for path, value in made.flops.items()}
    own = structs.replace(stack, hidden=hidden, pair=False, blocks=[], made=Trace(calls, flops, {}, {}, made.failed))
    own.text = model.config.get_text_config(encoder=True)
    if not ran:  # its modules are placed as they are written
        around = [name for name in stack.modules if _is_of_encoder(name) and not name.startswith(tuple(layers))]
    tower = {"hidden": hidden, "vocabulary": vocabulary, "tied_embeddings": True, "positions": "none"}
    network = _network(own, layers, around)
    for block in network["blocks"].values():
        if "attention" in block["modules"]:
            block["modules"]["attention"]["causal"] = False
    stack.blocks += own.blocks
    return {"tower": {**tower, **network}, "tower_kind": "encoder"}


def _lists(stack: _Stack, side: str) -> list[list[str]]:
    """The lists of layers of one side, those that ran first, then those with the most parameters."""
    from torch.nn import ModuleList

    ran = {call.path for call in stack.made.calls}
    found: list[tuple[bool, int, list[str]]] = []
    for path, module in stack.modules.items():
        around = (path[:at] for at, letter in enumerate(path) if letter == ".")
        inner = any(isinstance(stack.modules[other], ModuleList) for other in around)
        if not isinstance(module, ModuleList) or inner or "expert" in path or side not in path:
            continue
        ends = ("_encoder", "_tower")
        if side != "encoder" and any(part.startswith(ENCODERS) or part.endswith(ends) for part in path.split(".")):
            continue
        names = [f"{path}.{index}" for index in range(len(module))]
        called = any(call.startswith(f"{name}.") for name in names for call in ran)
        size = sum(parameter.numel() for parameter in module.parameters())
        if size and (called or not ran or side == "encoder"):
            found.append((called, size, names))
    return [names for _, _, names in sorted(found, reverse=True)]


ENCODERS = ("vision", "visual", "audio", "image", "speech", "vit", "tower", "patch", "qformer", "depth_decoder")


def _is_of_encoder(path: str) -> bool:
    parts = path.split(".")
    return not any(part.startswith("decoder") for part in parts) and any(part.startswith("encoder") for part in parts)


def _named(sections: list[Spec]) -> Spec:
    """Equal layers under one name, and the pattern of names."""
    kinds: list[Spec] = []
    pattern: list[str] = []
    for part in sections:
        if part not in kinds:
            kinds.append(part)
        pattern.append(f"layer_{kinds.index(part) + 1}")
    blocks = {f"layer_{index + 1}": kind for index, kind in enumerate(kinds)}
    return {"layers": {"count": len(sections), "pattern": pattern}, "blocks": blocks}


def _notes(made: Trace, blocks: list[Block], rest: int) -> list[str]:
    """What was not seen, for the person."""
    notes: list[str] = []
    if made.failed:
        notes.append(f"no pass ran without data ({made.failed}), so each linear layer counts once a token")
    if any(block.scan for block in blocks):
        notes.append(f"matrix products beside linear layers are counted as in a prompt of {TOKENS} tokens")
    if any(block.state and not block.scan for block in blocks):
        notes.append("a recurrence is a lower bound: its state is read and written, its own arithmetic left out")
    if any(block.whole and block.moe is None for block in blocks):
        notes.append("tensors that look like experts without a known router are read whole in each pass")
    if rest:
        notes.append(f"{rest:,} parameters that no text runs through (towers, unused modules) are stored only")
    return notes
