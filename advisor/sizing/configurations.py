"""Configurations: hardware, parallelism and formats that may serve a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.formats import no_narrower
from roofline.advisor.search.goal import Quality
from roofline.advisor.search.moves import is_consumer
from roofline.advisor.sizing.workload import Service
from roofline.graph.parallel import Parallelism
from roofline.scenario.memory import UTILIZATION, more_memory
from roofline.scenario.options import DEGREES, FORMATS, of_group
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Settings
from roofline.serving.layouts import linked_devices, servers
from roofline.specs.checkpoint import precision_of, released
from roofline.specs.engine import Engine, default_engine, load_engine
from roofline.specs.hardware import Hardware, load_hardware, searched_hardware
from roofline.specs.model import Model
from roofline.techniques import check_request
from roofline.techniques.base import Price
from roofline.techniques.support import runs, runs_format, runs_gguf
from roofline.techniques.unsupported import lacks

TENSOR = (1, 2, 4, 8)
"""Tensor-parallel devices within a node; for MoE models also ranks of attention and experts."""

PIPELINE = (2, 4)
"""Pipeline stages over nodes, where a model does not fit in one."""

DESKTOP = (1, 2)
"""Devices of a desktop computer."""


class Configuration(Struct, frozen=True, dict=True):
    """The configuration of a replica; its scenario has the service's mean lengths and batch 1.

    The scenario is the `base` of its hardware with `changes`: the `scheme` and the format of the KV cache ("" as
    `released`) and the `layout`, degrees of parallelism by field. `engine` is the profile that it names.
    """

    base: Scenario
    changes: Mapping[str, Any]
    scheme: str
    kv: str
    layout: Mapping[str, int]
    released: tuple[tuple[str, str], ...]
    price: Price
    engine: Engine

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario; few configurations come so far that theirs is asked for."""
        return self.base.with_(**self.changes) if self.changes else self.base

    @property
    def hardware(self) -> Hardware:
        return self.base.hardware

    @property
    def settings(self) -> Settings:
        """The settings: memory and limits are those of all layouts and formats, but where it takes more memory."""
        return (self.scenario if UTILIZATION in self.changes else self.base).settings

    def with_more_memory(self) -> Configuration | None:
        """The configuration on an engine that takes more of the memory than by default; None where it has none."""
        more = more_memory(self.base)
        return replace(self, changes={**self.changes, **more}) if more else None

    @property
    def degrees(self) -> Mapping[str, int]:
        return self.scenario.question.degrees

    @property
    def parallel(self) -> Parallelism:
        return self.scenario.plain.settings.parallel

    @property
    def devices(self) -> int:
        return self.parallel.devices

    @property
    def formats(self) -> str:
        """Text: the scheme or the weights' format, and the KV cache's if set."""
        given, precision, plain = self.scenario.question.formats, self.scenario.precision, self.scenario.plain.precision
        scheme = None if given.get("weights") else given.get("scheme")
        kv = given.get("kv") or (precision.kv.name if precision.kv != plain.kv else None)
        return f"{scheme or precision.weights.name}, KV {kv}" if kv else scheme or precision.weights.name

    @property
    def split(self) -> str:
        """Text: the parallelism, such as `tp=2 pp=4`."""
        shown = ("tensor", "pipeline", "data", "expert")
        found = ((DEGREES[name], self.degrees[name]) for name in shown if self.degrees.get(name, 1) > 1)
        return " ".join(f"{name}={value}" for name, value in found)

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of all that FLOPs and bytes depend on."""
        return (self.released, self.scheme, self.kv, *self.layout.items())


OFFERED = {"fp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "smoothquant": "w8a8", "awq": "awq", "gptq": "gptq"}
"""Schemes by the technique whose support by an engine is documented; GPTQ has the formats of AWQ, which stands for
both."""


class Given(Struct, frozen=True):
    """Fixed choices of a sizing: degrees of parallelism (as of `Parallelism`), the scheme, and techniques.

    `model` is the name or path of the model, `options` further options of its scenarios by name, such as the settings
    of the engine.
    """

    degrees: Mapping[str, int] = MappingProxyType({})
    scheme: str | None = None
    techniques: tuple[str, ...] = ()
    model: str | None = None
    options: Mapping[str, Any] = MappingProxyType({})


NOTHING_GIVEN = Given()


def formats_for(
    model: Model, hardware: Hardware, engine: Engine, quality: Quality, scheme: str | None = None
) -> Iterator[tuple[str, str, Price]]:
    """Yields scheme and KV cache format ("" is as released) with their price, within the quality budget.

    Released formats cost nothing. FP8, NVFP4, INT8 and 4-bit weights, and FP8 or INT8 KV cache, are offered where a
    document states that the engine runs them on this hardware (`roofline.techniques.support`), GGUF formats on
    llama.cpp; instead of a quantized checkpoint only if they are narrower. A given `scheme` is the only one, within any
    budget; "" leaves formats to the other options of the scenario.
    """
    calibrated = quality.allows(Price.CALIBRATION)
    caches, cached = [""], calibrated and model.task == "generate"
    if cached and runs("fp8-kv", engine.name, hardware):
        caches.append("fp8")
    elif cached and runs_format("kv", "int8", engine.name, hardware):
        caches.append("q8_0" if runs_gguf(engine.name) else "int8")  # --cache-type-k q8_0
    schemes = [scheme or ""]
    if scheme is None and calibrated:
        schemes += ["q8_0", "q4_k_m"] if runs_gguf(engine.name) else []
        schemes += [name for technique, name in OFFERED.items() if runs(technique, engine.name, hardware)]
        if "awq" in schemes and "gptq" in schemes:
            schemes.remove("gptq")
    if scheme is None and model.quantization is not None:
        now = precision_of(model, hardware, engine)
        asked = ((name, precision_of(model, hardware, engine, scheme=name)) for name in schemes if name)
        schemes = ["", *(name for name, other in asked if not no_narrower(model, now, other, name))]
    for chosen in schemes:
        for kv in caches:
            yield chosen, kv, Price.CALIBRATION if chosen or kv else Price.LOSSLESS


def configurations(
    model: Model,
    service: Service,
    hardware: Sequence[str] | None,
    quality: Quality,
    engine: str | None,
    given: Given = NOTHING_GIVEN,
) -> Iterator[Configuration]:
    """All configurations that may serve the model, on `hardware` or all hardware (one user: consumer hardware)."""
    names = searched_hardware() if hardware is None else hardware
    profiles: dict[str, Engine] = {}
    slots = {check_request(name).slot for name in given.techniques}
    single = given.options.keys() & set(of_group(FORMATS))
    scheme_given = given.scheme or ("" if single - {"kv"} or "weight format" in slots else None)
    kv_given = "kv" in single or "KV format" in slots
    cached = round(service.hits * service.prompts.mean)
    lengths: dict[str, Any] = {
        "prompt": round(service.prompts.mean) - cached,
        "prefix": cached,
        **({} if model.task == "encode" else {"generate": max(2, round(service.answers.mean))}),
    }
    for name in names:
        device = load_hardware(name)
        if hardware is None and service.alone and not is_consumer(device):
            continue
        chosen = default_engine(device, model) if engine is None else engine
        if chosen not in profiles:
            profiles[chosen] = load_engine(chosen)
        first: tuple[Scenario, dict[str, Any]] | None = None
        own = tuple(released(model, device, profiles[chosen]).items())
        layouts = list(_degrees(model, device, service.alone, given.degrees, profiles[chosen]))
        for scheme, kv, price in formats_for(model, device, profiles[chosen], quality, scheme_given):
            if kv and kv_given:
                continue
            if kv or hardware is None:
                cache = precision_of(model, device, profiles[chosen], kv=kv or given.options.get("kv")).kv
                if any(lacks(profiles[chosen], model, device, cache)):
                    continue
            formats = {**({"quant": scheme} if scheme else {}), **({"kv": kv} if kv else {})}
            for degrees in layouts:
                layout: dict[str, Any] = {DEGREES[part]: count for part, count in degrees.items()}
                options = {**lengths, **given.options, **formats, "engine": chosen, **layout}
                if first is None:
                    first = Scenario(given.model or model, name, techniques=given.techniques, **options), options
                before, known = first  # all else is read already
                changes = {key: options.get(key) for key in {**known, **options} if options.get(key) != known.get(key)}
                yield Configuration(before, changes, scheme, kv, degrees, own, price, profiles[chosen])


def _degrees(
    model: Model, hardware: Hardware, alone: bool, given: Mapping[str, int], engine: Engine
) -> Iterator[dict[str, int]]:
    """Layouts of one server that divide in one way within a node, and pipelines of whole nodes.

    Of given degrees nothing is varied but tensor parallelism, unless it or data parallelism is given.
    """
    widest = linked_devices(hardware)
    within = [count for count in (DESKTOP if alone else TENSOR) if count <= widest]
    if given:
        kind = "pipeline" if engine.split_layers else "tensor"
        for count in (1,) if {"tensor", "data"} & given.keys() else within:
            yield {**({kind: count} if count > 1 else {}), **given}
        return
    for count in within:
        for layout in servers(model, hardware, engine, count):
            staged = layout.pipeline > 1 and not engine.split_layers
            if not (layout.is_mixed or staged or (alone and layout.data > 1)):
                yield layout.degrees
    linked = any(link.scope == "network" for link in hardware.interconnects)
    for stages in PIPELINE if linked and not alone and not engine.split_layers else ():
        yield from (
            one.degrees for one in servers(model, hardware, engine, stages * within[-1]) if one.pipeline == stages
        )
