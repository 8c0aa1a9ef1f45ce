"""What a scenario has that its engine is not known to run: architecture, number formats, techniques, parallelism.

The facts are those of `roofline.techniques.support`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from roofline.graph.blocks import cut_blocks
from roofline.scenario.scenario import Scenario
from roofline.specs.checkpoint import only_cache
from roofline.specs.engine import Engine
from roofline.specs.formats import UNQUANTIZED_FORMATS, Format, find_format
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.schemes import GGUF
from roofline.specs.sublayers import MIXERS, LatentAttention
from roofline.techniques import check_request, find_technique
from roofline.techniques.support import (
    is_documented,
    load_support,
    needs_no_engine,
    runs,
    runs_format,
    runs_on,
    support,
)

PLACEMENTS = ("flexgen", "zero-inference")
"""The techniques that keep weights on the host and stream them."""

WITHOUT_CACHE = "kv=0"
"""The parameters of an engine that offloads weights and no KV cache."""


class Lack(Struct, frozen=True):
    """A part that an engine is not known to run: anywhere, or on a device alone; without a part nothing runs there."""

    part: str
    device: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.part, f"on {self.device}" if self.device else "")))


def note(scenario: Scenario) -> str | None:
    """A sentence on what the engine is not known to run; None if its documents name all of it, or it has none."""
    found = unsupported(scenario)
    if not found:
        return None
    unknown = f"{scenario.profile.name} is not known to run {', '.join(map(str, found))}"
    return f"{unknown}; expected times are those if it did, with its overheads"


def unsupported(scenario: Scenario) -> tuple[Lack, ...]:
    """Parts of a scenario that its engine is not known to run on the hardware; () for an engine without documents."""
    if not is_documented(scenario.profile.name):
        return ()
    if not runs_on(scenario.profile.name, scenario.hardware):
        return not_started(scenario)
    parts = (*_formats(scenario), *not_whole(scenario), *_methods(scenario))
    return tuple(dict.fromkeys((*not_started(scenario), *map(Lack, parts))))


def not_started(scenario: Scenario) -> tuple[Lack, ...]:
    """The hardware, or else the parts of the model, without which the engine's server does not start; () for none."""
    engine, hardware = scenario.profile, scenario.hardware
    if not is_documented(engine.name):
        return ()
    if not runs_on(engine.name, hardware):
        return (Lack("", hardware.name),)
    return (*map(Lack, _parts(scenario)), *lacks(engine, scenario.model, hardware, scenario.precision.kv))


def features(model: Model) -> set[str]:
    """The parts of a model by the names of the table's `features` and `kinds`, its vision encoder apart."""
    names = {kind: name for name, kind in MIXERS.items()}
    found = {names[type(group.layer.mixer)] for group in model.groups if group.layer.mixer is not None}
    if any(attention.unit for attention in model.attentions):
        found.add("gated_unit")
    for mixer in (group.layer.mixer for group in model.groups):
        if isinstance(mixer, LatentAttention) and mixer.indexer is not None:
            found |= {"sparse_latent"} if mixer.rope_dim else {"sparse_latent", "sparse_latent_without_rope"}
    if model.conditioning is not None:
        found.add("diffusion")
    elif model.task == "encode" and model.unet is None:
        found.add("encoder")
        if any(attention.extra for attention in model.attentions):
            found.add("global_tokens")
    if model.tower is not None and model.tower_kind == "encoder":
        found.add("speech" if model.tower.convolutions else "text_encoder")
    return found


def _parts(scenario: Scenario) -> Iterator[str]:
    table = load_support()
    able = table.architectures[table.engine(scenario.profile.name)].features
    has = features(scenario.model) | ({"vision"} if np.any(scenario.images) else set())
    yield from (title for name, title in table.features.items() if name in has and name not in able)


def lacks(engine: Engine, model: Model, hardware: Hardware, cache: Format) -> Iterator[Lack]:
    """What the version of an engine runs on other devices and not on this one, with a KV cache in a format."""
    table = load_support()
    for row in table.lacks.get(table.engine(engine.name), ()):
        here = hardware.family in row.families and row.kv in ("", cache.arithmetic) and row.holds(engine.version)
        if here and row.part in features(model):
            title = table.features.get(row.part) or table.kinds[row.part]
            yield Lack(f"a KV cache in {cache.name} for {title}" if row.kv else title, hardware.name)


def _formats(scenario: Scenario) -> Iterator[str]:
    """The formats that no technique sets and that the engine is not known to run."""
    precision = scenario.precision
    slots = {check_request(written).slot for written in scenario.techniques}
    linear = precision.weights.linear
    if linear is not None and linear.name not in UNQUANTIZED_FORMATS and "weight format" not in slots:
        gguf = any(scheme.name == precision.weights.name for scheme in GGUF)
        name = "gguf" if gguf else _plain(linear)
        if not _runs_weights(scenario, name, precision.activations):
            both = "" if precision.activations.name in UNQUANTIZED_FORMATS else f"A{_plain(precision.activations)}"
            yield f"weights in {precision.weights.name}" + (f" with activations in {both[1:]}" if both else "")
    cache, only = precision.kv, only_cache(scenario.model, scenario.profile)
    if only is not None and cache.arithmetic != find_format(only).arithmetic:
        yield f"a KV cache in {cache.name}"
    elif cache != precision.base and cache.name not in UNQUANTIZED_FORMATS and not slots & {"KV format"}:
        engine, hardware = scenario.profile.name, scenario.hardware
        set_by_method = any(cache.name.startswith(check_request(name).name) for name in scenario.techniques)
        known = runs_format("kv", cache.name, engine, hardware)
        if not set_by_method and not known and not (cache.name == "fp8" and runs("fp8-kv", engine, hardware)):
            yield f"a KV cache in {cache.name}"


def not_whole(scenario: Scenario) -> Iterator[str]:
    """What tensor parallelism cuts inside blocks of its weights."""
    parallel = scenario.settings.parallel
    for what, width in cut_blocks(scenario.model, scenario.run_precision, scenario.profile.name, parallel):
        yield f"{what} of {width} in FP8 blocks of {scenario.model.block} with TP {parallel.tensor}"


def _runs_weights(scenario: Scenario, name: str, activations: Format) -> bool:
    """Whether the engine is known to run linear layers with these weights.

    Without the arithmetic of the activations it runs them with 16-bit activations.
    """
    engine, hardware, table = scenario.profile.name, scenario.hardware, load_support()
    if activations.name in UNQUANTIZED_FORMATS:
        method = table.covered.get(name)
        weight_only = method is not None and runs(method, engine, hardware)
        return weight_only or runs_format("weights", name, engine, hardware)
    both = table.covered.get(f"{name} {_plain(activations)}")
    if both is not None and runs(both, engine, hardware):
        return True
    row = table.together.get(f"{name} {activations.name}", "" if hardware.supports(activations.arithmetic) else name)
    return bool(row) and runs_format("weights", row, engine, hardware)


def _plain(format: Format) -> str:
    """The name of a format without its group size."""
    return re.sub(r"[-_]g\d+$", "", format.name)


def _methods(scenario: Scenario) -> Iterator[str]:
    """The techniques, degrees of parallelism and placements that the engine is not known to run."""
    engine, hardware = scenario.profile.name, scenario.hardware
    entries = [check_request(written) for written in scenario.techniques]
    yield from (f"the technique {entry.name}" for entry in entries if not _does(entry.name, scenario))
    slots = {entry.slot for entry in entries}
    parallel = scenario.settings.parallel
    for degree, method in load_support().degrees.items():
        split = getattr(parallel, degree) > 1 and (degree != "data" or parallel.expert > 1)  # others are servers apart
        if split and method not in slots and not runs(method, engine, hardware):
            yield method.replace("-", " ")
    offload = scenario.settings.offload
    rows = [found for name in PLACEMENTS if runs(name, engine, hardware) and (found := support(name, engine))]
    if any(entry.slot == "placement" and not _does(entry.name, scenario) for entry in entries):
        return
    if offload.weights and not rows:
        yield "offloaded weights"
    if offload.kv and all(found.parameters == WITHOUT_CACHE for found in rows):
        yield "an offloaded KV cache"


def _does(name: str, scenario: Scenario) -> bool:
    return needs_no_engine(find_technique(name)) or runs(name, scenario.profile.name, scenario.hardware)
