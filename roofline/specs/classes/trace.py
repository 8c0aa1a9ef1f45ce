"""A forward pass of a class on the meta device: which modules run, on how many rows, and what they cache.

Of layers that are alike (modules, shapes, settings) one runs, and the others are taken to do the same.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct, structs

from roofline.specs.classes.build import ATTENTION

TOKENS = 24
"""Tokens of the pass: more than any head or expert count is a divisor of by chance, few enough for any context."""

SOURCE = 40
"""Tokens of an encoder's input, a number apart from `TOKENS`."""


class Core(Struct):
    """One call of softmax attention: heads and widths, keys seen, and the window that was asked for."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    keys: int
    window: int | None = None
    causal: bool = True
    chunk: int | None = None


class Call(Struct):
    """One module's forward: its path, and the rows of its input a token."""

    path: str
    rows: float
    top_k: int = 0
    core: Core | None = None


class Trace(Struct):
    """What a pass of `TOKENS` tokens did.

    `flops`: matrix FLOPs by the module that ran them, without `Core` calls. `cached`: by layer, KV heads and widths of
    key and value in the cache; `states`: elements that do not grow with the tokens. `failed`: why the pass ended early,
    "" if it did not. `entered`: the modules that ran.
    """

    calls: list[Call]
    flops: dict[str, float]
    cached: dict[int, tuple[int, int, int]]
    states: dict[int, int]
    failed: str = ""
    entered: set[str] = set()


def trace(model: Any) -> Trace:
    """Run one pass of the model on the meta device; what the class cannot do there is in `failed`."""
    repeated = _repeated(model)
    made = _traced(model, repeated)
    pair = getattr(model.config, "is_encoder_decoder", False)
    alike = {layer: like for layer, like in repeated.items() if like in made.entered}
    alike = {layer: like for layer, like in alike.items() if not (pair and "encoder" in layer)}
    wrong = made.failed or any(_index(layer) in {**made.cached, **made.states} for layer in alike)
    return _traced(model, {}) if repeated and wrong else _completed(made, repeated, alike)


def _index(layer: str) -> int:
    return int(layer.rpartition(".")[2])


def _repeated(model: Any) -> dict[str, str]:
    """Layers of a list that are like an earlier one of it, which stands for them."""
    from torch.nn import ModuleList

    text = model.config.get_text_config(decoder=True)
    found: dict[str, str] = {}
    for path, layers in model.named_modules():
        if not isinstance(layers, ModuleList) or any(path.startswith(f"{layer}.") for layer in found):
            continue
        named = (
            value for value in vars(text).values() if isinstance(value, (list, tuple)) and len(value) == len(layers)
        )
        listed = [value for value in named if len(set(map(repr, value))) < len(layers)]
        kinds: dict[Any, str] = {}
        for index, layer in enumerate(layers):
            kind = (_signature(layer), repr([value[index] for value in listed]))
            first = kinds.setdefault(kind, f"{path}.{index}")
            if first != f"{path}.{index}":
                found[f"{path}.{index}"] = first
    return found


def _signature(layer: Any) -> Any:
    """What makes a layer do what it does: its modules with their shapes and settings, but for its places."""
    return tuple(
        (
            name,
            type(module),
            tuple((key, tuple(value.shape)) for key, value in module.named_parameters(recurse=False)),
            tuple(
                (key, value)
                for key, value in sorted(vars(module).items())
                if isinstance(value, (bool, int, float, str)) and not key.endswith("_idx")
            ),
        )
        for name, module in layer.named_modules()
    )


def _completed(made: Trace, repeated: Mapping[str, str], alike: Mapping[str, str]) -> Trace:
    """A trace with what the layers that did not run do as those that they are like; `alike` have caches, too."""
    calls, flops, entered = list(made.calls), dict(made.flops), set(made.entered)
    cached, states = dict(made.cached), dict(made.states)
    of_layer: dict[str, list[Call]] = {like: [] for like in set(repeated.values())}
    for call in made.calls:
        if (like := _around(call.path, of_layer)) is not None:
            of_layer[like].append(call)
    for layer, like in repeated.items():
        calls += [structs.replace(call, path=layer + call.path.removeprefix(like)) for call in of_layer[like]]
        for path in [path for path in made.entered if f"{path}.".startswith(f"{like}.")]:
            own = layer + path.removeprefix(like)
            entered.add(own)
            if path in made.flops:
                flops[own] = made.flops[path]
    for layer, like in alike.items():
        if (index := _index(like)) in made.cached:
            cached[_index(layer)] = made.cached[index]
        if index in made.states:
            states[_index(layer)] = made.states[index]
    return structs.replace(made, calls=calls, flops=flops, entered=entered, cached=cached, states=states)


def _around(path: str, layers: Mapping[str, Any]) -> str | None:
    parts = path.split(".")
    return next((name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in layers), None)


@contextlib.contextmanager
def _skipped(model: Any, repeated: Mapping[str, str]) -> Iterator[None]:
    """Layers give what the one that they are like gave; once, as one that runs again does something else."""
    modules, given, ran = dict(model.named_modules()), dict[str, Any](), set[str]()

    def keep(name: str) -> Callable[..., None]:
        return lambda _module, _arguments, output: given.__setitem__(name, output)

    def skip(layer: str, like: str) -> Callable[..., Any]:
        def forward(*_arguments: Any, **_options: Any) -> Any:
            if layer in ran:
                raise RuntimeError(f"{layer} runs twice")
            ran.add(layer)
            return given[like]

        return forward

    handles = [modules[name].register_forward_hook(keep(name)) for name in set(repeated.values())]
    for layer, like in repeated.items():
        modules[layer].forward = skip(layer, like)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer in repeated:
            del modules[layer].forward


def _traced(model: Any, repeated: Mapping[str, str]) -> Trace:
    import torch

    failed = ""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    for run in (model, *([decoder] if decoder is not None and decoder is not model else [])):
        stack: list[str] = []
        made = Trace([], {}, {}, {}, failed)
        noted, counted = _noted(model, made, stack, repeated), _counted(made, stack)
        with _skipped(model, repeated), noted, counted, torch.no_grad(), torch.device("meta"):
            try:
                _caches(run(**_inputs(run)), made)
            except Exception as error:
                text = str(error).strip()
                failed = f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:200]
                continue
        return made
    return Trace([], {}, {}, {}, failed)


def _inputs(model: Any) -> dict[str, Any]:
    import torch
    from transformers.modeling_outputs import BaseModelOutput

    names = inspect.signature(model.forward).parameters
    ids = torch.zeros((1, TOKENS), dtype=torch.long)
    given: dict[str, Any] = {}
    if "decoder_input_ids" in names and getattr(model.config, "is_encoder_decoder", False):
        main = model.main_input_name
        if main == "input_ids":
            given["input_ids"] = torch.zeros((1, SOURCE), dtype=torch.long)
        elif "encoder_outputs" in names:
            given["encoder_outputs"] = BaseModelOutput(torch.zeros((1, SOURCE, _encoder_width(model))))
            given["encoder_outputs"].attention_mask = torch.ones((1, SOURCE), dtype=torch.bool)
        given["decoder_input_ids"] = ids
    else:
        given["input_ids"] = ids
    if "use_cache" in names:
        given["use_cache"] = True
    return given


def _encoder_width(model: Any) -> int:
    """The width of an encoder's output, by its own configuration or the model's."""
    encoder = model.get_encoder() if hasattr(model, "get_encoder") else None
    configs = (getattr(encoder, "config", None), model.config.get_text_config(encoder=True), model.config)
    widths = (getattr(config, name, None) for config in configs for name in ("hidden_size", "d_model"))
    return next(width for width in widths if isinstance(width, int))


@contextlib.contextmanager
def _noted(model: Any, made: Trace, stack: list[str], repeated: Mapping[str, str]) -> Iterator[None]:
    """Hooks on every module: the rows of linear layers, the experts of routed ones, the calls of attention."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    paths = {id(module): name for name, module in model.named_modules()}

    def attend(module: Any, query: Any, key: Any, value: Any, *_: Any, **options: Any) -> tuple[Any, None]:
        window = options.get("sliding_window") or getattr(module, "sliding_window", None)
        core = Core(
            query.shape[1], key.shape[1], query.shape[3], value.shape[3], key.shape[2],
            window if isinstance(window, int) else None,
            bool(options.get("is_causal", getattr(module, "is_causal", True))),
        )  # fmt: skip
        made.calls.append(Call(paths.get(id(module), stack[-1] if stack else ""), 1.0, core=core))
        return query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[3])), None

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, eager_mask)

    def before(path: str) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            stack.append(path)
            made.entered.add(path)
            given = [value for value in (*args, *options.values()) if hasattr(value, "shape")]
            if not list(module.parameters(recurse=False)):
                return
            rows = given[0].numel() / max(given[0].shape[-1], 1) / TOKENS if given and given[0].dim() else 1.0
            chosen = next(
                (value for value in given[1:] if value.dim() == 2 and value.dtype.is_floating_point is False), None
            )
            made.calls.append(Call(path, rows, 0 if chosen is None else chosen.shape[-1]))

        return hook

    def after(*_: Any) -> None:
        stack.pop()

    handles = []
    for path, module in model.named_modules():
        if path in repeated:
            continue
        handles.append(module.register_forward_pre_hook(before(path), with_kwargs=True))
        handles.append(module.register_forward_hook(after, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _counted(made: Trace, stack: list[str]) -> Iterator[None]:
    """Matrix FLOPs by the module that runs them, by torch's own formulas."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    # Without data a condition is false, and a search finds nothing.
    without_data: dict[Any, Callable[[Any], Any]] = {
        torch.ops.aten._local_scalar_dense.default: lambda tensor: tensor.dtype.is_floating_point and 0.0,
        torch.ops.aten.nonzero.default: lambda tensor: tensor.new_empty((0, tensor.dim()), dtype=torch.long),
    }

    mode: Any = TorchDispatchMode

    class Counter(mode):  # type: ignore[misc] # torch's class is not typed
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in without_data and args[0].device.type == "meta":
                return without_data[function](args[0])
            output = function(*args, **(kwargs or {}))
            if (formula := flop_registry.get(function._overloadpacket)) is not None:
                where = stack[-1] if stack else ""
                made.flops[where] = made.flops.get(where, 0.0) + formula(*args, **(kwargs or {}), out_val=output)
            return output

    with Counter():
        yield


def _caches(output: Any, made: Trace) -> None:
    """What the pass left in the cache of each layer: elements of a token, and of a state."""
    cache = getattr(output, "past_key_values", None) or getattr(output, "cache_params", None)
    cache = getattr(cache, "self_attention_cache", cache)
    for index, layer in enumerate(getattr(cache, "layers", None) or ()):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is not None and values is not None and keys.dim() == values.dim() == 4 and keys.numel():
            made.cached[index] = (keys.shape[1], keys.shape[3], values.shape[3] if values.numel() else 0)
        for name in ("conv_states", "recurrent_states"):
            states = getattr(layer, name, None)
            states = states.values() if isinstance(states, dict) else [states]
            held = sum(state.numel() for state in states if state is not None)
            if held:
                made.states[index] = made.states.get(index, 0) + held
