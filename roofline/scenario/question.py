"""What was asked: option values as given, and the parts of a scenario, before techniques, that they stand for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from roofline.core.errors import RooflineError, quote
from roofline.core.options import Kind, Option
from roofline.graph.blocks import cut_blocks
from roofline.graph.convention import Convention
from roofline.graph.offload import Offload
from roofline.graph.parallel import SINGLE, Parallelism
from roofline.scenario.catalogue import catalogue
from roofline.scenario.engine_options import attention_parallel, chosen_scheme, expert_parallel
from roofline.scenario.layout import OVER_NODES, default_layout
from roofline.scenario.lengths import Lengths
from roofline.scenario.options import DEGREES, OPTIONS, by_name
from roofline.scenario.settings import Settings
from roofline.specs.checkpoint import RELEASED_OVERRIDES, precision_of
from roofline.specs.engine import GGUF_ENGINE, LIBRARY, Engine, default_engine, load_engine, resolve_engine
from roofline.specs.formats import UNQUANTIZED_FORMATS
from roofline.specs.hardware import Hardware, load_devices, load_mixed, networked
from roofline.specs.hardware_names import joined_devices, server_devices
from roofline.specs.library import spec_path, written
from roofline.specs.model import Model
from roofline.specs.model_names import library_format
from roofline.specs.modelspec import load_model
from roofline.specs.network import load_fabric
from roofline.specs.precision import PLAIN, Precision, scheme_formats
from roofline.specs.schemes import GGUF_SCHEMES

OBJECTS: Mapping[str, type] = {"precision": Precision, "settings": Settings, "fusions": object, "drawn": object}
"""Keywords without text: objects of the library that stand for several options."""

_OF_TYPE: Mapping[str, type] = {"engine": Engine, "offload": Offload, "convention": Convention}
"""Options that also take an object of the library."""

MIXED, UNEQUAL = "mixed-devices", "hexgen"
"""The techniques of layers on devices of several kinds: those that take turns, and tensor-parallel stages."""

CPU = "core-i9-13900k"
"""The CPU beside a GPU, as of the technique that puts layers on it."""

TARGETS = {name: option.target for name, option in OPTIONS.items() if len(option.target) == 2}
"""The group and the part of it that an option sets."""

INSTEAD: Mapping[str, str] = {
    "quant": "quantization",
    "quantization": "quant",
    "max_model_len": "ctx_size",
    "ctx_size": "max_model_len",
}
"""The option that a new value of another one replaces."""

_FUSIONS = replace(OPTIONS["fuse"], keyword="fusions")


class Question(Struct, frozen=True, dict=True):
    """Option values as given, by name; of model and hardware the objects.

    * `written`: the names or paths of these objects.
    * `counted`: the devices of hardware named with its count, as in 8xH200, on which the model is laid out; else 1.
      Degrees that take a part of them are those of one replica, and further replicas (`dp`) fill the others.
    * `layout_options`: the options that this layout has set. Other hardware, or another `tp` or `pp`, replace them.
    * `in_flight`: the sequences of a load at once, where they are more than the batch.
    * `server`: the devices of each server of hardware named as 4x4xH100, where its own has others; else 0.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    counted: int = 1
    layout_options: frozenset[str] = frozenset()
    in_flight: float = 1
    server: int = 0

    def with_(self, changes: Mapping[str, Any]) -> Question:
        """The question with other values; None takes a value back. Raises RooflineError."""
        new = by_name(changes, OBJECTS)
        if isinstance(new.get("precision"), str):  # "fp8" names a scheme
            if "quant" in new:
                raise RooflineError("precision and quant name the same: give one of them")
            new["quant"] = new.pop("precision")
        values, names, counted, server = self._kept(new), dict(self.written), self.counted, self.server
        if not new.keys().isdisjoint(("hw", *self.layout_options & {"tp", "pp"})):
            counted = 1
        if isinstance(new.get("hw"), str) and len(joined_devices(new["hw"])) > 1:
            new = _mixed(new, values)
        for name, value in sorted(new.items(), key=lambda change: change[0] == "hw"):
            if (other := INSTEAD.get(name)) is not None and other not in new:
                values.pop(other, None)
            read, text = _read(name, value)
            names.pop(name, None)
            if text is not None:
                names[name] = text
            if read is None or (name in OPTIONS and OPTIONS[name].kind is Kind.LIST and not read):
                values.pop(name, None)
                continue
            if name == "hw":
                read, devices = read
                counted = devices if devices > 1 and _needed(values, devices, str(value)) < devices else 1
                server = server_devices(value)
                server = 0 if server in (devices, read.node_devices, read.machine_devices) else server
            values[name] = read
        if server:
            values["network"] = _in_servers(server, values.get("network"))
        found = Question(values, names, counted, in_flight=self.in_flight, server=server)
        if counted > 1:
            needed = _needed(values, counted, f"{counted}x{values['hw'].name}")
            if needed == counted:  # degrees of their own, which were given since
                return replace(found, counted=1)
            layout = {"dp": counted // needed} if needed else default_layout(found, counted)
            return replace(found, values={**values, **layout}, layout_options=frozenset(layout))
        return found

    def _kept(self, new: Mapping[str, Any]) -> dict[str, Any]:
        """The values that stay beside new ones: without a layout, and of new hardware without what the old one set."""
        values = {name: value for name, value in self.values.items() if name not in self.layout_options}
        if "hw" not in new:
            return values
        if self.server and "network" in values:
            values["network"] = values["network"].removeprefix(f"nvl{self.server}").removeprefix(",")
        if "with" not in new and "with" in values:
            values["with"] = tuple(name for name in values["with"] if name.partition(":")[0] not in (MIXED, UNEQUAL))
        return {name: value for name, value in values.items() if name not in ("network", "with") or value}

    def with_degrees(self, degrees: Mapping[str, Any]) -> Question:
        """The question with these degrees of parallelism in place of a layout of its count."""
        return Question({**self.values, **degrees}, self.written, in_flight=self.in_flight, server=self.server)

    def cut(self, parallelism: Parallelism) -> list[tuple[str, int]]:
        """What the degrees cut inside blocks of the weights, and how wide it is."""
        return list(cut_blocks(self.values["model"], precision(self), self.profile.name, parallelism))

    @cached_property
    def formats(self) -> dict[str, str | None]:
        """The formats as arguments of `parse_precision`, with the scheme that a `quantization` method stands for."""
        given, method = self.groups["formats"], self.values.get("quantization")
        scheme = str(given.get("scheme") or UNQUANTIZED_FORMATS[0]).strip().lower()  # others say all three formats
        if given.get("weights") and scheme not in UNQUANTIZED_FORMATS and scheme_formats(scheme)[0] is not None:
            raise RooflineError("quant says the format of the weights, too: give one of both", options=["weights"])
        if method is None:
            stored = self.library_format
            return given if stored is None else {**given, "scheme": stored}
        return {**given, "scheme": chosen_scheme(method, given.get("scheme"), self.values["model"])}

    @cached_property
    def library_format(self) -> str | None:
        """The scheme of an Ollama engine's weights, which its library has where nothing says a format; else None."""
        engine, given = self.values.get("engine"), self.groups["formats"]
        named = engine is not None and (engine if isinstance(engine, Engine) else load_engine(engine)).name == LIBRARY
        if not named or "model" not in self.written or "precision" in self.values or self.sets_weights:
            return None
        if any(given.get(part) for part in (*RELEASED_OVERRIDES, "base")) or "quantization" in self.values:
            return None
        return library_format(self.written["model"])

    @property
    def sets_weights(self) -> bool:
        """Whether a technique sets the format of the weights."""
        return any(catalogue().slot(name) == "weight format" for name in self.values.get("with", ()))

    @cached_property
    def as_released(self) -> bool:
        """Whether a quantized checkpoint keeps its released format: no option or technique sets another."""
        if self.values["model"].quantization is None or "precision" in self.values:
            return False
        if any(self.formats.get(part) for part in RELEASED_OVERRIDES):
            return False
        return not self.sets_weights

    @cached_property
    def groups(self) -> dict[str, dict[str, Any]]:
        """The values of options that set a part of a group (formats, degrees, settings), by group and part."""
        found: dict[str, dict[str, Any]] = {"formats": {}, "degrees": {}, "settings": {}}
        for name, value in self.values.items():
            if (target := TARGETS.get(name)) is not None:
                found[target[0]][target[1]] = value
        return found

    @property
    def hardware(self) -> Hardware:
        """The hardware on its network, with the devices that a node of it has."""
        network = self.values.get("network")
        return self.values["hw"] if network is None else networked(self.values["hw"], load_fabric(network))

    @cached_property
    def profile(self) -> Engine:
        """The engine's profile."""
        return resolve_engine(self.values["hw"], self.engine, self.values["model"])

    @property
    def engine(self) -> Engine | str | None:
        """The engine as given; llama.cpp of what it alone has: formats of GGUF, devices of two kinds, its options."""
        return self.values.get("engine") or (GGUF_ENGINE if self._of_gguf else None)

    @property
    def default_engine(self) -> str:
        return GGUF_ENGINE if self._of_gguf else default_engine(self.values["hw"], self.values["model"])

    @property
    def _of_gguf(self) -> bool:
        written = (self.values.get("quant"), self.values.get("weights"))
        mixed = any(name.partition(":")[0] == MIXED for name in self.values.get("with", ()))
        own = any(self.values.get(name) is not None for name in ("n_gpu_layers", "ctx_size"))
        return own or mixed or not GGUF_SCHEMES.isdisjoint(written)

    @cached_property
    def degrees(self) -> dict[str, Any]:
        """The degrees of parallelism by field, with those that the switches of engines set."""
        settings: Settings | None = self.values.get("settings")
        given = {} if settings is None else asdict(settings.parallel)
        parallel = {name: value for name, value in given.items() if value != getattr(SINGLE, name)}
        ranks = {**parallel, **self.groups["degrees"]}
        if self.values.get("enable_expert_parallel"):
            ranks = expert_parallel(ranks, self.values["model"])
        elif (
            self.counted > 1
            and OVER_NODES.isdisjoint(self.values)
            and self.cut(Parallelism(tensor=ranks.get("tensor", 1)))
        ):
            ranks = expert_parallel(ranks, self.values["model"])  # as engines start with such experts
        if self.values.get("dp_attention"):
            ranks = attention_parallel(ranks, self.values["model"])
        return ranks

    def longest(self, limit: int) -> str:
        """The limit of a sequence's length, in the words of the option that set it."""
        return f"the {limit} of ctx_size" if "ctx_size" in self.values else f"max_model_len {limit}"

    @property
    def named(self) -> dict[str, Any]:
        """The values as they were given: names and paths, and hardware with its count."""
        if self.counted == 1:
            return {**self.values, **self.written}
        values = {name: value for name, value in self.values.items() if name not in self.layout_options}
        return {**values, **self.written, "hw": f"{self.counted}x{self.values['hw'].name}"}

    @property
    def options(self) -> dict[str, Any]:
        """The values that differ from the options' defaults, by name and in the table's order. Raises RooflineError."""
        found: dict[str, Any] = {}
        for name in self.values.keys() & OBJECTS.keys():
            if name != "drawn":
                raise RooflineError(f"the {name} of the scenario is an object, for which no option stands")
        for name, option in OPTIONS.items():
            if name not in self.values:
                continue
            if option.differs(value := self._named(option)):
                found[name] = value
        return found

    def _named(self, option: Option) -> Any:
        """The value of an option as a text, a number or a list."""
        name, value = option.name, self.values[option.name]
        if isinstance(value, (Model, Hardware)):
            written = self.written.get(name, value.name)
            same = load_model(written) if isinstance(value, Model) else load_devices(written)[0]
            if same != value:
                raise RooflineError(
                    f"the {'model' if name == 'model' else 'hardware'} was made in Python: no name is its"
                )
            return written
        if isinstance(value, Engine):
            raise RooflineError("an engine made in Python has no name for a command")
        if isinstance(value, (Offload, Lengths)):
            return value.written
        return str(value) if isinstance(value, Convention) else value


def _read(name: str, value: Any) -> tuple[Any, str | None]:
    """The value of an option or object as it is kept, and its text where that is a name or a path."""
    if name in OBJECTS:
        if value is not None and not isinstance(value, OBJECTS[name]):
            raise RooflineError(f"{name} takes a {OBJECTS[name].__name__}, got {quote(value)}")
        return (value if name != "fusions" or value is None else tuple(_FUSIONS.read(value))), None
    option = OPTIONS[name]
    if value is None or isinstance(value, (_OF_TYPE.get(name) or Lengths)):
        return value, None
    if name == "model":
        return load_model(value), None if isinstance(value, Model) else written(value, name)
    if name == "hw":
        hardware, devices = load_devices(value)
        if isinstance(value, Hardware):
            return (hardware, devices), None
        text = written(value, name)
        return (hardware, devices), hardware.name if spec_path(text, "hwspecs") is None else text
    if isinstance(value, os.PathLike):
        value = written(value, name)
    if option.kind is Kind.GRID and not isinstance(value, str):
        several = isinstance(value, Iterable) and not isinstance(value, (list, tuple, bytes, Mapping, Set))
        return (np.asarray(value if hasattr(value, "__array__") else list(value)) if several else value), None
    return option.read(value), None


def _mixed(new: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of devices of several kinds, as in rtx-4090+2xrtx-3090, with layers by their part of the memory.

    With HexGen the kinds are its stages, in the order given.
    """
    loaded = load_mixed(new["hw"])
    if len(loaded) == 1:
        return dict(new)
    asked = new.get("with", values.get("with", ()))
    techniques = [asked] if isinstance(asked, str) else list(asked)
    for place, name in enumerate(techniques):
        if name.partition(":")[0].lower() == UNEQUAL:
            (whose, ranks), *stages = loaded
            if new.get("tp", ranks) != ranks:
                raise RooflineError(f"{quote(new['hw'])} has {ranks} devices in its first stage", options=["tp"])
            parameters = filter(None, (f"stages={'/'.join(map(_counted, stages))}", name.partition(":")[2]))
            techniques[place] = f"{UNEQUAL}:{','.join(parameters)}"
            return {**new, "hw": whose.name, "tp": ranks, "with": techniques}
    (one, first), *beside = sorted(loaded, key=lambda each: each[1] > 1)
    beside = [*([(one, first - 1)] if first > 1 else []), *beside]
    there = sum(count * each.memory_capacity for each, count in beside)
    share = there / (one.memory_capacity + there)
    added = f"{MIXED}:hardware={'/'.join(map(_counted, beside))},share={share:.3g}"
    return {**new, "hw": one.name, "with": [*techniques, added]}


def _counted(devices: tuple[Hardware, int]) -> str:
    hardware, count = devices
    return f"{count}x{hardware.name}" if count > 1 else hardware.name


def _in_servers(server: int, network: str | None) -> str:
    """The network with so many devices in a server, unless it says them itself."""
    if network is None:
        return f"nvl{server}"
    return network if load_fabric(network).domain else f"nvl{server},{network}"


def _needed(values: Mapping[str, Any], devices: int, name: str) -> int:
    """The devices that degrees of parallelism need, of hardware named with its count; raises RooflineError for others.

    0 where no degree is given; where degrees fill a part of the devices, replicas fill the rest. Nodes and decode
    context parallelism take no devices more.
    """
    taking = ((part, key) for part, key in DEGREES.items() if key not in ("nodes", "dcp"))
    asked: dict[str, Any] = {part: values[key] for part, key in taking if key in values}
    needed = Parallelism(**asked).devices
    if needed == 1 and "tp" not in values:
        return 0
    whole = devices % needed == 0 and "dp" not in values and OVER_NODES.isdisjoint(values)
    if needed != devices and not whole:
        raise RooflineError(f"{quote(name)} is {devices} devices, and the degrees of parallelism need {needed}")
    return needed


def precision(question: Question) -> Precision:
    """The formats on this hardware, before techniques.

    With a technique that sets the weight format, a quantized checkpoint counts as 16 bits.
    """
    values, formats = question.values, question.formats
    model: Model = values["model"]
    own: Precision | None = values.get("precision")
    if own is not None:
        if formats:
            raise RooflineError("precision gives all formats at once: give it, or single formats")
        return own
    if model.quantization is not None and not question.as_released:
        formats = {**formats, "scheme": formats.get("scheme") or PLAIN}
    return precision_of(model, values["hw"], question.profile, **formats)
