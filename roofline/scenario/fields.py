"""The fields of a scenario: checked, where what no scenario has is refused, compared, and shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from roofline.core.errors import RooflineError, quote
from roofline.core.limits import MAX_PRICE
from roofline.graph.convention import Convention
from roofline.graph.fusion import check_fusions
from roofline.scenario.options import OPTIONS
from roofline.scenario.settings import Settings
from roofline.specs.checkpoint import precision_of
from roofline.specs.engine import default_engine
from roofline.specs.hardware import hosted
from roofline.specs.host import load_host
from roofline.specs.images import EncodedImage, encoded_image, parse_image_size
from roofline.specs.model import Model
from roofline.timing.intervals.estimate import locked

WORKLOAD = ("batch", "prompt", "generate", "prefix", "images")
"""The counts of a scenario that may be arrays, besides the context."""

DEFAULT_PROMPT = 512
"""Prompt tokens by default, as in llama.cpp's llama-bench."""


def checked(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a scenario in their final types; raises RooflineError for what no scenario has."""
    model, hardware = fields["model"], fields["hardware"]
    try:
        convention = Convention(fields["convention"])
    except ValueError:
        known = ", ".join(Convention)
        raise RooflineError(f"unknown convention {quote(fields['convention'])}; known: {known}") from None
    default = () if convention is Convention.LLM_VIEWER else ("attention",)
    price, host = fields["price"], fields["host"]
    if price is not None and (type(price) is bool or not isinstance(price, (int, float)) or not 0 < price < MAX_PRICE):
        raise RooflineError(f"the price must be USD per device hour, above 0, got {price}")
    if host is not None and hardware.host != (found := load_host(host)):
        hardware = hosted(hardware, found)
    engine, precision = fields["engine"], fields["precision"]
    counts = {name: _count(name, fields[name]) for name in WORKLOAD if name != "prompt" or fields[name] is not None}
    if fields["context"] is not None:
        counts["context"] = _count("context", fields["context"], 1 if convention.context_includes_new_token else 0)
    counts.setdefault("prompt", _default_prompt(model, counts))
    _check_model(model, counts, fields["image_size"])
    _check_shapes(counts)
    return {
        **fields,
        **counts,
        "hardware": hardware,
        "convention": convention,
        "fusions": default if fields["fusions"] is None else check_fusions(fields["fusions"]),
        "engine": default_engine(hardware, model) if engine is None else engine,
        "precision": precision_of(model, hardware, engine) if precision is None else precision,
        "techniques": tuple(fields["techniques"]),
    }


def _default_prompt(model: Model, counts: Mapping[str, Any]) -> Any:
    """What fills the KV cache of a decoder up to a stated context, else 512 tokens.

    Of an encoder its fixed length (Whisper), or its maximum context if that is shorter; of a U-Net its maximum context.
    """
    if "context" in counts and model.task != "encode" and model.tower_kind != "encoder":
        held = np.maximum(counts["context"] - counts["prefix"], 1)
        return held if np.ndim(held) else int(held)
    if model.tower_kind == "encoder" and model.tower_tokens:
        return model.tower_tokens
    longest = model.max_context if model.task == "encode" else None
    return longest if longest and model.unet else min(DEFAULT_PROMPT, longest or DEFAULT_PROMPT)


def _check_model(model: Model, counts: Mapping[str, Any], image_size: str | None) -> None:
    """Raise RooflineError for images or a cached prefix that the model cannot have."""
    image_of(model, image_size)  # raises for a size that is none, or that the image processor rejects
    if is_any(counts["images"]) and model.tower_kind != "vision":
        if model.title.endswith("(text decoder only)"):
            raise RooflineError(f"the spec of {model.name} has no vision encoder: images are not simulated")
        raise RooflineError(f"{model.name} has no vision encoder for images")
    if is_any(counts["prefix"]) and not takes_prefix(model):
        raise RooflineError(f"{model.name} has an encoder, which cannot start from a cached prefix")


def takes_prefix(model: Model) -> bool:
    """Whether prompts can start from a cached prefix: an encoder reads all of its input."""
    return model.tower_kind != "encoder" and model.task != "encode"


def image_of(model: Model, size: str | None) -> EncodedImage:
    """The image of a size, or of the model's own, as its encoder takes it."""
    return encoded_image(model, None if size is None else parse_image_size(size))


def is_any(value: Any) -> bool:
    """Whether a count, or any of an array of them, is above zero."""
    return bool(value) if type(value) is int else bool(np.any(value))


def comparable(count: Any) -> object:
    """A count, or the shape and values of an array of them."""
    return (count.shape, tuple(count.reshape(-1).tolist())) if isinstance(count, np.ndarray) else count


def comparable_settings(settings: Settings) -> object:
    """The settings, whose counts may be arrays."""
    arrays = ("useful", "kv_reserved")
    if not any(isinstance(getattr(settings, name), np.ndarray) for name in arrays):
        return settings
    return tuple(comparable(getattr(settings, name)) for name in settings.__struct_fields__)


def shown(count: Any) -> str:
    """A count, or the range of an array of them."""
    if not isinstance(count, np.ndarray):
        return str(count)
    return f"{count.min():g} to {count.max():g}" if count.min() < count.max() else f"{count.min():g}"


def _check_shapes(values: dict[str, Any]) -> None:
    shapes = {name: np.shape(value) for name, value in values.items() if type(value) is not int}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items() if shape)
        raise RooflineError(f"the arrays do not broadcast: {listed}") from None


def _count(name: str, value: Any, least: int | None = None) -> Any:
    """`value` checked to be an integer, or an array of integers, in the option's range, or from `least` on."""
    low, high = int(OPTIONS[name].low) if least is None else least, int(OPTIONS[name].high)
    if isinstance(value, np.integer) or (isinstance(value, np.ndarray) and not value.ndim):
        value = value.item()
    if type(value) is int:
        if low <= value <= high:
            return value
    elif isinstance(value, (list, tuple, np.ndarray)):
        try:
            array = np.asarray(value)
        except ValueError:
            raise RooflineError(f"{name} must be integers in a rectangular array") from None
        whole = array.dtype.kind in "iuf" and (np.isfinite(array) & (np.floor(array) == array)).all()
        if not whole or not array.size:
            raise RooflineError(f"{name} must be integers, got an array of {array.size} values of type {array.dtype}")
        if array.min() >= low and array.max() <= high:
            return locked(array.astype(np.float64))[0]  # exact to 2^53, and products of lengths do not overflow
        value = array.min() if array.min() < low else array.max()
    else:
        raise RooflineError(f"{name} must be an integer, got {quote(value)}")
    raise RooflineError(f"{name} must be between {low} and {high}, got {quote(value)[1:-1]}")
