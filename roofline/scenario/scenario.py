"""A scenario: everything that a prediction depends on. A technique is a function from one scenario to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from roofline.core.errors import RooflineError, quote
from roofline.graph.convention import Convention
from roofline.graph.extents import Step
from roofline.graph.fusion import check_fusions
from roofline.scenario.settings import PLAIN_SETTINGS, Settings
from roofline.specs.checkpoint import precision_of
from roofline.specs.engine import Engine, default_engine, resolve_engine
from roofline.specs.formats import find_format
from roofline.specs.hardware import Hardware, hosted
from roofline.specs.host import load_host
from roofline.specs.images import EncodedImage, encoded_image, parse_image_size
from roofline.specs.model import Model
from roofline.specs.precision import Precision

MAX_LENGTH = 10**9
"""The largest accepted sequence length in tokens."""

WORKLOAD = ("batch", "prompt", "generate", "prefix", "images")
"""The counts of a scenario that may be arrays, besides the context."""

DEFAULT_PROMPT = 512
"""Prompt tokens by default, as in llama.cpp's llama-bench."""

DEFAULT_GENERATE = 128
"""Tokens generated per sequence by default."""

MAX_BATCH = 10**7
"""The largest accepted batch in sequences."""

INTEGER = find_format("int8")
"""The format to which some engines quantize activations that meet integer weights."""

MAX_PRICE = 1e6
"""The highest accepted price in USD per device hour."""


class Applied(tuple[str, ...]):
    """The techniques that a scenario has, in contrast to those that its caller asks for."""

    __slots__ = ()


_apply: Callable[[Scenario, Iterable[str]], Scenario] | None = None


def apply_with(apply: Callable[[Scenario, Iterable[str]], Scenario]) -> None:
    """Set how scenarios apply the techniques that they are asked for; the catalogue, a later room, does so."""
    global _apply
    _apply = apply


class Scenario(Struct, frozen=True, eq=False, dict=True):
    """A model on hardware with a workload, formats, parallelism and an engine. Errors are RooflineError.

    `batch` (sequences), `prompt`, `generate`, `context` and `prefix` (tokens per sequence) are integers or NumPy
    integer arrays that broadcast. `prefix` tokens are cached before prefill. `context` is the number of cached tokens
    at the reported decode step, by default prefix + prompt, the first step of a generation. `precision` defaults to
    the released checkpoint's, as far as engine and hardware support it (`roofline.specs.checkpoint`). `fusions` are
    names of `roofline.graph.fusion`; the default is FlashAttention, "attention". The `images` of each sequence pass
    through the model's vision encoder and join the prompt; `image_size` is theirs in pixels, "1024x768" (default: that
    of the model's spec). The prompt of an encoder-decoder is its encoder's input.
    `settings`: parallelism, speculative decoding, chunked prefill, ... `engine` is the profile of expected times, a
    name, a path or an `Engine` (`roofline.specs.engine`): by default llama.cpp on CPUs and Apple silicon and of models
    in GGUF, else vLLM. `techniques` are applied, each written NAME or NAME:key=value
    (`roofline.techniques.apply_techniques`). `price` is USD per device hour, by default that of the hardware's spec.
    `host` is the server of PCIe devices, a name or a path (`roofline.specs.host`), by default that of the hardware's
    spec.
    """

    model: Model
    hardware: Hardware
    batch: Any = 1
    prompt: Any = None
    generate: Any = DEFAULT_GENERATE
    context: Any = None
    prefix: Any = 0
    precision: Precision | None = None
    fusions: Iterable[str] | None = None
    convention: Convention | str = Convention.PHYSICAL
    images: Any = 0
    settings: Settings = PLAIN_SETTINGS
    techniques: tuple[str, ...] = ()
    engine: Engine | str | None = None
    price: float | None = None
    image_size: str | None = None
    host: str | None = None

    def __post_init__(self) -> None:
        if self.techniques and not isinstance(self.techniques, Applied):
            self._become(self._with_techniques())
            return
        try:
            convention = Convention(self.convention)
        except ValueError:
            known = ", ".join(Convention)
            raise RooflineError(f"unknown convention {quote(self.convention)}; known: {known}") from None
        default = () if convention is Convention.LLM_VIEWER else ("attention",)
        if isinstance(self.fusions, str):
            raise RooflineError(f"fusions must be a list of names, got {quote(self.fusions)}")
        chosen = default if self.fusions is None else check_fusions(self.fusions)
        settings = {
            "convention": convention,
            "fusions": chosen,
            "batch": _count("batch", self.batch, 1, MAX_BATCH),
            "prompt": _count("prompt", self._default_prompt if self.prompt is None else self.prompt, 1, MAX_LENGTH),
            "generate": _count("generate", self.generate, 1, MAX_LENGTH),
            "prefix": _count("prefix", self.prefix, 0, MAX_LENGTH),
            "images": _count("images", self.images, 0, MAX_BATCH),
            "precision": self.precision or precision_of(self.model, self.hardware, self.profile),
        }
        if self.price is not None and (
            isinstance(self.price, bool) or not isinstance(self.price, (int, float)) or not 0 <= self.price < MAX_PRICE
        ):
            raise RooflineError(f"--price must be USD per device hour, at least 0, got {self.price}")
        if self.host is not None and self.hardware.host != (host := load_host(self.host)):
            settings["hardware"] = hosted(self.hardware, host)
        engine = default_engine(self.hardware, self.model)
        if self.engine is None:
            settings["engine"] = engine
        elif self.engine != engine:
            self.profile  # noqa: B018 - raises for an unknown engine
        least = 1 if convention.context_includes_new_token else 0
        if self.context is not None:
            settings["context"] = _count("context", self.context, least, 2 * MAX_LENGTH)
        self._check_model(settings)
        _check_shapes({name: settings[name] for name in (*WORKLOAD, "context") if name in settings})
        for name, value in settings.items():
            force_setattr(self, name, value)

    def __repr__(self) -> str:
        return f"Scenario({self.described})"

    def _with_techniques(self) -> Scenario:
        """The scenario with the techniques that it is asked for."""
        names = self.techniques
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise RooflineError(f"techniques must be a list of names, got {quote(names)}")
        if _apply is None:
            raise RooflineError("techniques are applied with roofline.techniques.apply_techniques")
        return _apply(replace(self, techniques=()), names)

    def _become(self, other: Scenario) -> None:
        """Take the fields of another scenario."""
        for name in self.__struct_fields__:
            force_setattr(self, name, getattr(other, name))

    @property
    def described(self) -> str:
        """The scenario in a line: model, hardware, workload, formats, devices, techniques and engine."""
        workload = [f"{name} {_shown(getattr(self, name))}" for name in ("batch", "prompt", "generate")]
        assert self.precision is not None
        formats = f"weights {self.precision.weights.name}, KV {self.precision.kv.name}"
        devices = self.settings.parallel.devices
        spread = [f"{devices} devices"] if devices > 1 else []
        changes = [f"with {name}" for name in self.techniques]
        parts = [*workload, formats, *spread, *changes, f"engine {self.profile.name}"]
        return f"{self.model.name} on {self.hardware.name}, {', '.join(parts)}"

    @cached_property
    def profile(self) -> Engine:
        """The engine's profile."""
        return resolve_engine(self.hardware, self.engine, self.model)

    @cached_property
    def technique_cache(self) -> dict[str, Scenario]:
        """The scenarios that techniques made of this one, by the technique as written."""
        return {}

    @cached_property
    def run_precision(self) -> Precision:
        """The formats that the engine computes in: some quantize activations that meet integer weights to 8 bits."""
        precision = self.precision
        assert precision is not None
        linear, hardware = precision.weights.linear, self.hardware
        if linear is None or linear.arithmetic != INTEGER.arithmetic or self.convention is not Convention.PHYSICAL:
            return precision
        requested = precision.activations != precision.base or precision.compute is not None
        if (
            requested
            or not {hardware.vendor, hardware.kind} & set(self.profile.int8_activations)
            or not hardware.supports(INTEGER.arithmetic)
        ):
            return precision
        return replace(precision, activations=INTEGER, queries=precision.attention)

    @property
    def _default_prompt(self) -> int:
        """512 tokens, the maximum context of a shorter encoder or a U-Net, or an encoder's fixed length (Whisper)."""
        if self._encoder and self.model.tower_tokens:
            return self.model.tower_tokens
        longest = self.model.max_context if self.model.task == "encode" else None
        return longest if longest and self.model.unet else min(DEFAULT_PROMPT, longest or DEFAULT_PROMPT)

    def _check_model(self, settings: dict[str, Any]) -> None:
        model = self.model
        self._image  # noqa: B018 - raises for a size that is none, or that the image processor rejects
        if _any(settings["images"]) and model.tower_kind != "vision":
            if model.title.endswith("(text decoder only)"):
                raise RooflineError(f"the spec of {model.name} has no vision encoder: images are not simulated")
            raise RooflineError(f"{model.name} has no vision encoder for images")
        if _any(settings["prefix"]) and (model.tower_kind == "encoder" or model.task == "encode"):
            raise RooflineError(f"{model.name} has an encoder, which cannot start from a cached prefix")

    @property
    def _encoder(self) -> bool:
        return self.model.tower_kind == "encoder"

    @property
    def prompt_tokens(self) -> Any:
        """Tokens of the decoder's prefill: prompt and image tokens, or the start token of an encoder-decoder."""
        return 1 if self._encoder else self.prompt + self.images * self.image_tokens

    @cached_property
    def _image(self) -> EncodedImage:
        return encoded_image(self.model, None if self.image_size is None else parse_image_size(self.image_size))

    @property
    def image_tokens(self) -> int:
        """Prompt tokens of one image."""
        tiles, positions = self._image
        return tiles * self.model.merged(positions)

    @property
    def first_cached(self) -> Any:
        """Cached tokens at the first decode step."""
        return self.prefix + self.prompt_tokens

    @property
    def tower_step(self) -> Step | None:
        """The pass of the model's encoder before prefill, if any."""
        if self._encoder:
            return Step(self.batch, self.prompt, 0)
        if self.model.tower_tokens is None or not _any(self.images):
            return None
        tiles, positions = self._image
        return Step(self.batch * self.images * tiles, positions, 0)

    @property
    def prefill_step(self) -> Step:
        """The forward pass over the prompt."""
        source = self.prompt if self._encoder else 0
        return Step(self.batch, self.prompt_tokens, self.prefix, source, source)

    @property
    def decode_step(self) -> Step:
        """The reported decode step, with `decode_context` cached tokens."""
        return self.step_at(self.decode_context)

    @property
    def decode_context(self) -> Any:
        """Cached tokens at the reported decode step: `context`, or those of the first step of a generation."""
        return self.first_cached if self.context is None else self.context

    @property
    def last_step(self) -> Step:
        """The last decode step, with the largest KV cache."""
        if Convention(self.convention).context_includes_new_token or self.model.task == "encode":
            return self.decode_step
        context = np.maximum(self.first_cached + self.generate - 2, self.decode_context)
        return self.step_at(context if self.shape else int(context))

    def step_at(self, context: Any) -> Step:
        """The decode step at another context."""
        convention = Convention(self.convention)
        cached = context - 1 if convention.context_includes_new_token else context
        return Step(self.batch, 1, cached, self.prompt if self._encoder else 0)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the grid of workloads; () for a single one."""
        values = (self.batch, self.prompt, self.generate, self.decode_context, self.prefix, self.images)
        if all(type(value) is int for value in values):
            return ()
        return np.broadcast_shapes(*(np.shape(value) for value in values))


def _any(value: Any) -> bool:
    """Whether a count, or any of an array of them, is above zero."""
    return bool(value) if type(value) is int else bool(np.any(value))


def _shown(count: Any) -> str:
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


def _count(name: str, value: Any, low: int, high: int) -> Any:
    """`value` checked to be an integer, or an array of integers, between `low` and `high`."""
    if type(value) is int:
        if low <= value <= high:
            return value
    elif isinstance(value, (list, tuple, np.ndarray)):
        try:
            array = np.asarray(value)
        except ValueError:
            raise RooflineError(f"{name} must be integers in a rectangular array") from None
        if (
            array.dtype.kind not in "iuf"
            or not array.size
            or not (np.isfinite(array) & (np.floor(array) == array)).all()
        ):
            raise RooflineError(f"{name} must be integers, got an array of {array.size} values of type {array.dtype}")
        if array.min() >= low and array.max() <= high:
            return array.astype(np.float64)  # exact to 2^53, and products of lengths do not overflow
        value = array.min() if array.min() < low else array.max()
    elif isinstance(value, np.integer):
        return _count(name, int(value), low, high)
    else:
        raise RooflineError(f"{name} must be an integer, got {quote(value)}")
    raise RooflineError(f"{name} must be between {low} and {high}, got {quote(value)[1:-1]}")
