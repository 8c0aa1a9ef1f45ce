"""Options of a scenario: one table for the command line, studies and axes.

`OPTIONS` has the kind and range of each option's value and the argument of `compose` that it sets. `request_from`
builds a request from option values, `scenario_from` its scenario.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import parse_count
from roofline.graph.convention import Convention
from roofline.graph.fusion import check_fusions
from roofline.graph.offload import parse_offload
from roofline.graph.parallel import MAX_DEVICES, Parallelism
from roofline.scenario.scenario import MAX_BATCH, MAX_LENGTH, MAX_PRICE, Scenario
from roofline.specs.engine import load_engine
from roofline.specs.hardware import load_devices
from roofline.specs.host import load_host
from roofline.specs.images import parse_image_size
from roofline.specs.library import spec_path
from roofline.specs.modelspec import load_model
from roofline.specs.precision import parse_precision, scheme_formats
from roofline.specs.reserve import MEMORY_READINGS, check_memory
from roofline.techniques import check_request
from roofline.whatif import vllm_options
from roofline.whatif.request import Request

NOTHING = "none"
"""Text for an option that is not set."""


class Kind(Enum):
    """The type of an option's value."""

    GRID = auto()  # a count, or an array of them: all values are evaluated at once
    INTEGER = auto()
    NUMBER = auto()
    TEXT = auto()
    LIST = auto()  # several names, joined by +
    SWITCH = auto()

    @property
    def counts(self) -> bool:
        """Whether values are whole numbers."""
        return self in (Kind.GRID, Kind.INTEGER)


class Option(Struct, frozen=True):
    """An option: the kind, range and check of its value, and the argument of `compose` that it sets.

    `check` raises RooflineError for text that is invalid in every scenario. `spellings` are further texts for values;
    None is the value of an option that is not set.
    """

    name: str
    kind: Kind
    target: tuple[str, ...]
    low: float = 0
    high: float = math.inf
    check: Callable[[str], object] | None = None
    spellings: Mapping[str, str | None] = MappingProxyType({})

    def read(self, value: object) -> Any:
        """The option's value from text or from a YAML value; raises RooflineError."""
        if value is None or (_is_nothing(value) and self.name not in NEEDED):
            return [] if self.kind is Kind.LIST else None
        if self.kind is Kind.SWITCH:
            return self._switch(value)
        if self.kind is Kind.LIST:
            return self._list(value)
        if self.kind is Kind.TEXT:
            if isinstance(value, (list, dict, tuple, set)):
                raise RooflineError(f"{self.name} takes one value, got {quote(value)[1:-1]}; several are an axis")
            text = value if isinstance(value, str) else repr(value)
            spelled = self.spellings.get(text.strip().lower().replace("-", "_"), text)
            if self.check is not None and spelled is not None:
                self.check(spelled)
            return spelled
        return self.number(value)

    def number(self, value: object) -> int | float:
        """A number within the option's range; an integer if the option counts."""
        what = "a whole number" if self.kind.counts else "a number"
        what += " such as 512, 32k or 128K" if self.kind is Kind.GRID else ""
        try:
            number = self._parsed(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if isinstance(value, bool) or not math.isfinite(number) or (self.kind.counts and number != int(number)):
            raise RooflineError(f"{self.name} takes {what}, got {quote(value)}")
        if not self.low <= number <= self.high:
            raise RooflineError(f"{self.name} must be between {self.low:.0f} and {self.high:.0f}, got {quote(value)}")
        return int(number) if self.kind.counts else number

    def _parsed(self, value: Any) -> float:
        """The number in a value; raises ValueError, TypeError or OverflowError."""
        if not isinstance(value, str):
            return float(value)
        return parse_count(value) if self.kind.counts else float(value.replace("_", ""))

    def _switch(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        switches = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off"), False)}
        key = str(value).lower()
        if key not in switches:
            raise RooflineError(f"{self.name} must be true or false, got {quote(value)}")
        return switches[key]

    def _list(self, value: object) -> list[str]:
        entries = [value] if isinstance(value, str) else value
        if not isinstance(entries, Iterable) or not all(isinstance(entry, str) for entry in entries):
            raise RooflineError(f"{self.name} takes names joined by '+', got {quote(value)}")
        names = [name.strip() for entry in entries for name in entry.split("+")]
        if any(map(_is_nothing, names)):
            if len(names) > 1:
                raise RooflineError(f"{self.name} takes names or {NOTHING}, got {quote(' + '.join(names))}")
            return []
        for name in names if self.check is not None else ():
            assert self.check is not None
            self.check(name)
        return names


def _is_nothing(value: object) -> bool:
    return isinstance(value, str) and value.strip().lower() == NOTHING


def _grid(name: str, low: int, high: int) -> Option:
    return Option(name, Kind.GRID, (name,), low, high)


def _format(name: str, part: str, spellings: Mapping[str, str | None] = MappingProxyType({})) -> Option:
    check = lambda text: parse_precision("bf16", **{part: text})  # noqa: E731
    return Option(name, Kind.TEXT, ("formats", part), check=check, spellings=spellings)


def _degree(name: str, degree: str) -> Option:
    return Option(name, Kind.INTEGER, ("degrees", degree), 1, MAX_DEVICES)


def _convention(name: str) -> Convention:
    try:
        return Convention(name)
    except ValueError:
        raise UnknownNameError("convention", name, map(str, Convention)) from None


NEEDED: Mapping[str, str] = {
    "model": "a model such as llama-3.1-8b, qwen3-32b, gpt-oss-120b or deepseek-v3, or a config.json"
    " ('roofline specs list models' lists all)",
    "hw": "hardware such as h100-sxm, h200-sxm, b200-sxm, mi300x, rtx-4090 or m4-max"
    " ('roofline specs list hardware' lists all)",
}
"""Options without which there is no scenario, and what to name."""


def missing(name: str) -> str:
    """The sentence of an error about a missing option of NEEDED."""
    return f"{'MODEL' if name == 'model' else '--hw'} is missing: name {NEEDED[name]}"


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("model", Kind.TEXT, ("model",), check=load_model),
        Option("hw", Kind.TEXT, ("hw",), check=load_devices),
        _grid("batch", 1, MAX_BATCH),
        _grid("prompt", 1, MAX_LENGTH),
        _grid("generate", 1, MAX_LENGTH),
        _grid("context", 0, 2 * MAX_LENGTH),
        _grid("prefix", 0, MAX_LENGTH),
        _grid("images", 0, MAX_BATCH),
        Option("image_size", Kind.TEXT, ("image_size",), check=parse_image_size),
        _format("quant", "scheme"),
        Option("quantization", Kind.TEXT, ("quantization",), check=scheme_formats, spellings=vllm_options.METHODS),
        Option("dtype", Kind.TEXT, ("formats", "base"), check=vllm_options.check_dtype, spellings=vllm_options.DTYPES),
        _format("weights", "weights"),
        _format("activations", "activations"),
        _format("kv", "kv", vllm_options.CACHE_DTYPES),
        Option("flash", Kind.SWITCH, ("flash",)),
        Option("fuse", Kind.LIST, ("fuse",), check=lambda name: check_fusions([name])),
        _degree("tp", "tensor"),
        _degree("pp", "pipeline"),
        _degree("ep", "expert"),
        _degree("dp", "data"),
        _degree("sp", "sequence"),
        Option("enable_expert_parallel", Kind.SWITCH, ("enable_expert_parallel",)),
        Option("dp_attention", Kind.SWITCH, ("dp_attention",)),
        _degree("nodes", "nodes"),
        _degree("micro_batches", "micro_batches"),
        Option("expert_skew", Kind.NUMBER, ("expert_skew",), 0, 10),
        Option("offload", Kind.TEXT, ("offload",), check=parse_offload),
        Option("with", Kind.LIST, ("techniques",), check=check_request),
        Option("engine", Kind.TEXT, ("engine",), check=load_engine),
        Option("host", Kind.TEXT, ("host",), check=load_host),
        Option("memory_reading", Kind.TEXT, ("memory_reading",), check=check_memory),
        Option("gpu_memory_utilization", Kind.NUMBER, ("gpu_memory_utilization",), 0, 1),
        Option("max_model_len", Kind.INTEGER, ("limits", "max_model_len"), 1, MAX_LENGTH),
        Option("max_num_seqs", Kind.INTEGER, ("limits", "max_num_seqs"), 1, MAX_BATCH),
        Option("price", Kind.NUMBER, ("price",), 0, MAX_PRICE),
        Option("convention", Kind.TEXT, ("convention",), check=_convention),
    )
}
"""Options by name: the command line's, with underscores."""


def find_option(name: str) -> Option:
    """The option called `name`; raises UnknownNameError with the nearest name.

    Dashes and underscores are alike; `with_` is `with`, which Python reserves. vLLM's names are known, too.
    """
    key = str(name).strip().removeprefix("--").replace("-", "_").removesuffix("_")
    key = vllm_options.ALIASES.get(key, key)
    if key not in OPTIONS:
        raise UnknownNameError("option of a scenario", name, OPTIONS)
    return OPTIONS[key]


def names_in(text: str | None) -> tuple[str, ...]:
    """The names in a comma-separated list, none for None; raises RooflineError if the list has no name."""
    names = tuple(filter(None, (name.strip() for name in (text or "").split(","))))
    if text is not None and not names:
        raise RooflineError(f"expected names separated by commas, got {quote(text)}")
    return names


def read_options(values: Mapping[str, object]) -> dict[str, Any]:
    """Option values from text or YAML values, by option name, without those that are not set. Raises RooflineError."""
    read = {(option := find_option(name)).name: option.read(value) for name, value in values.items()}
    return {name: value for name, value in read.items() if value not in (None, [])}


def scenario_from(values: Mapping[str, Any]) -> Scenario:
    """The scenario with these option values. Raises RooflineError."""
    return request_from(values).scenario()


def request_from(values: Mapping[str, Any]) -> Request:
    """The request with these option values; the default stands for a missing or None value.

    Values are as `Option.read` returns them; a GRID option may hold an array. Raises RooflineError.
    """
    arguments: dict[str, Any] = {"formats": {}, "degrees": {}, "limits": {}}
    for name, value in values.items():
        if value is None:
            continue
        target = find_option(name).target
        inner = arguments if len(target) == 1 else arguments[target[0]]
        inner[target[-1]] = value
    for needed in NEEDED:
        if needed not in arguments:
            raise RooflineError(missing(needed))
    return compose(**arguments)


def compose(
    model: str,
    hw: str,
    formats: Mapping[str, str | None],
    degrees: Mapping[str, Any],
    limits: Mapping[str, int] = MappingProxyType({}),
    quantization: str | None = None,
    enable_expert_parallel: bool | None = None,
    dp_attention: bool | None = None,
    flash: bool | None = None,
    fuse: Iterable[str] = (),
    expert_skew: float = 0.0,
    offload: str | None = None,
    techniques: Iterable[str] = (),
    convention: str = Convention.PHYSICAL,
    memory_reading: str = MEMORY_READINGS[0],
    gpu_memory_utilization: float | None = None,
    **settings: Any,
) -> Request:
    """The request with `formats` as arguments of `parse_precision` and `degrees` as arguments of `Parallelism`.

    A degree of None is the default. `limits` are vLLM's `max_model_len` and `max_num_seqs`. `settings` are further
    fields of `Scenario`. Raises RooflineError.
    """
    network, (hardware, devices) = load_model(model), load_devices(hw)
    ranks = _spread({name: value for name, value in degrees.items() if value is not None}, devices, hw)
    if enable_expert_parallel:
        ranks = vllm_options.expert_parallel(ranks, network)
    if dp_attention:
        ranks = vllm_options.attention_parallel(ranks, network)
    if quantization is not None:
        formats = {**formats, "scheme": vllm_options.chosen_scheme(quantization, formats.get("scheme"), network)}
    if "max_model_len" in limits:
        network = replace(network, max_context=vllm_options.limited_context(network, limits["max_model_len"]))
    with_flash = flash if flash is not None else convention == Convention.PHYSICAL
    fusions = (*(("attention",) if with_flash else ()), *fuse)
    return Request(
        network,
        hardware,
        formats=formats,
        degrees=ranks,
        settings={
            "offload": parse_offload(offload),
            "expert_skew": expert_skew,
            "memory": memory_reading,
            "utilization": gpu_memory_utilization,
        },
        techniques=tuple(techniques),
        options={"fusions": fusions, "convention": convention, **settings},
        written={"model": model, "hardware": hardware.name if spec_path(hw, "hwspecs") is None else hw},
        limits=limits,
    )


def _spread(degrees: dict[str, Any], devices: int, hw: str) -> dict[str, Any]:
    """The degrees of parallelism on hardware named with its count, as in 8xH200: by default tensor parallelism."""
    needed = Parallelism(**{**degrees, "nodes": None}).devices if devices > 1 else 1
    if needed not in (1, devices):
        raise RooflineError(f"{quote(hw)} is {devices} devices, and the degrees of parallelism need {needed}")
    return {**degrees, "tensor": devices} if needed < devices else degrees
