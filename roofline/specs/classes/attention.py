"""The attention of a layer: as its class called it, else as its cache holds it, else as the configuration says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from roofline.core.errors import UnsupportedError
from roofline.specs.classes.block import Block
from roofline.specs.classes.trace import SOURCE, TOKENS, Call, Core, Trace

Spec = dict[str, Any]
OUT = ("o_proj", "out_proj", "c_proj", "dense", "wo", "o", "out_lin")


def attend(block: Block, layer: str, index: int, calls: list[Call], made: Trace, text: Any) -> None:
    """Put the attention of layer `index`, whose modules `calls` ran, into its block.

    Several calls alike are one with the heads of all (differential attention). Fewer keys than tokens are not of the
    sequence (residuals of blocks, Inkling 2). Raises UnsupportedError for others.
    """
    names, begun = {linear.name for linear in block.linears}, set[str]()
    found: list[tuple[int, Core]] = []
    for call in calls:
        if call.core is None:
            begun.add(call.path.removeprefix(f"{layer}."))
        elif call.core.keys >= TOKENS and (block.cross is None or call.core.keys != SOURCE):
            found.append((len(begun & names), call.core))
    if found:
        block.before, block.core = found[0][0], _joined([core for _, core in found])
        held = made.cached.get(index)
        block.shared = bool(made.cached) and held is None
        elements = 0 if held is None else held[0] * (held[1] + held[2])
        if elements != block.core.kv_heads * (block.core.head_dim + block.core.value_dim):
            block.latent = elements
    elif not made.states.get(index):
        block.core = _cached(made, index, text) if made.calls else _configured(block, text)
        block.before = next(
            (at for at, linear in enumerate(block.linears) if linear.name.rsplit(".", 1)[-1] in OUT), len(block.linears)
        )
    if block.core is not None:
        _limit(block.core, text, index)


def _joined(cores: list[Core]) -> Core:
    """One attention in place of several alike."""
    first = cores[0]
    count = len(cores)
    same = structs.replace(first, heads=0, kv_heads=0)
    if any(structs.replace(core, heads=0, kv_heads=0) != same for core in cores):
        raise UnsupportedError(f"a layer of its class attends in {count} different ways")
    return structs.replace(
        first, heads=sum(core.heads for core in cores), kv_heads=sum(core.kv_heads for core in cores)
    )


def _cached(made: Trace, index: int, text: Any) -> Core | None:
    """The attention of a class that computes it itself, by its cache and the number of its heads."""
    if index not in made.cached:
        return None
    kv_heads, width, value = made.cached[index]
    heads = first_of(text, HEADS)
    return Core(heads, kv_heads, width, value or width, TOKENS) if heads and heads % kv_heads == 0 else None


HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")


def _configured(block: Block, text: Any) -> Core | None:
    """The attention of a class that no pass was made of."""
    heads, hidden = first_of(text, HEADS), first_of(text, ("hidden_size", "d_model", "n_embd"))
    if (
        not heads
        or not hidden
        or not any("attn" in linear.name.lower() or "attention" in linear.name.lower() for linear in block.linears)
    ):
        return None
    kv_heads = first_of(text, ("num_key_value_heads",)) or heads
    width = first_of(text, ("head_dim",)) or hidden // heads
    return Core(heads, kv_heads, width, width, TOKENS) if width and heads % kv_heads == 0 else None


def first_of(config: Any, names: Iterable[str]) -> int:
    """The first of these keys of a configuration that has a number; 0 where none has."""
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if type(value) is int and value > 0), 0)


def _limit(core: Core, text: Any, index: int) -> None:
    """The window or chunk of a layer that its configuration names by kind, where the class passes none."""
    kinds = getattr(text, "layer_types", None)
    kind = kinds[index] if isinstance(kinds, (list, tuple)) and index < len(kinds) else None
    if kind == "sliding_attention" and core.window is None:
        core.window = first_of(text, ("sliding_window",)) or None
    if kind == "full_attention":
        core.window = None
    if kind == "chunked_attention":
        core.window, core.chunk = None, first_of(text, ("attention_chunk_size",)) or None


def cross(block: Block, layer: str, calls: list[Call], text: Any) -> None:
    """Take the attention to the encoder out of a block, as the section of its own that specs have for it.

    It is that of a call with the encoder's keys, or whose projections ran on the encoder's output. Raises
    UnsupportedError for one that such a section cannot express.
    """
    found = [call for call in calls if call.core is not None and call.core.keys == SOURCE]
    encoded = [linear for linear in block.linears if linear.rows == SOURCE / TOKENS]
    if found or encoded:
        path = found[0].path.removeprefix(f"{layer}.") if found else encoded[0].name.rpartition(".")[0]
        prefix = f"{path}."
        parts = [linear for linear in block.linears if linear.name.startswith(prefix)]
        heads = first_of(text, ("decoder_attention_heads", *HEADS))
        if len(parts) != 4 or not heads:
            raise UnsupportedError("its attention to the encoder is not made of four projections")
        width = parts[0].outputs // heads
        core = (found[0].core if found else None) or Core(heads, heads, width, width, SOURCE)
        if core.head_dim != core.value_dim or core.kv_heads * core.head_dim != parts[1].outputs:
            raise UnsupportedError("its attention to the encoder has keys and values of different widths")
        query, keys, values, out = parts
        if values.bias != query.bias or (keys.bias and not query.bias):
            raise UnsupportedError("the biases of its attention to the encoder are not those that specs express")
        block.linears = [linear for linear in block.linears if linear not in parts]
        block.cross = {
            "heads": core.heads, "kv_heads": core.kv_heads, "head_dim": core.head_dim,
            "qkv_bias": query.bias if keys.bias == query.bias else "query_value", "output_bias": out.bias,
            **({"source_width": keys.inputs} if keys.inputs != query.inputs else {}),
        }  # fmt: skip
    if any(linear.rows == SOURCE / TOKENS for linear in block.linears):
        raise UnsupportedError("its attention to the encoder is not made of four projections")
