"""From a question to the fields of a scenario: what is not given, and settings that several options change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.graph.convention import Convention
from roofline.graph.offload import parse_offload
from roofline.graph.parallel import Parallelism
from roofline.scenario.engine_options import limited_context, ranks_together
from roofline.scenario.lengths import Lengths
from roofline.scenario.options import NEEDED, OPTIONS, missing
from roofline.scenario.question import CPU, Question, precision
from roofline.scenario.settings import PLAIN_SETTINGS, Settings, gpu_layers, placed_tables
from roofline.specs.hardware import load_hardware
from roofline.specs.model import Model


def resolve(question: Question) -> dict[str, Any]:
    """The fields of the scenario of a question, before its techniques. Raises RooflineError."""
    values = question.values
    for needed in NEEDED:
        if needed not in values:
            raise RooflineError(missing(needed), options=["hw"] if needed == "hw" else [])
    model, hardware = values["model"], question.hardware
    settings = _settings(question)
    if settings.longest is not None:
        model = replace(model, max_context=limited_context(model, settings.longest, question.longest(settings.longest)))
    drawn = tuple(value if isinstance(value, Lengths) else None for value in map(values.get, ("prompt", "generate")))
    return {
        "model": model,
        "hardware": hardware,
        "batch": values.get("batch", 1),
        "prompt": _mean(values.get("prompt")),
        "generate": _mean(values.get("generate", OPTIONS["generate"].usual)),
        "prefix": values.get("prefix", 0),
        "precision": precision(question),
        "fusions": _fusions(values),
        "convention": values.get("convention", Convention.PHYSICAL),
        "images": values.get("images", 0) if values.get("audio") is None else _windows(model, values),
        "settings": settings,
        "techniques": (),
        "engine": question.engine,
        **{name: values.get(name) for name in ("context", "price", "carbon", "image_size", "host", "network")},
        "drawn": values.get("drawn", drawn),
    }


def _windows(model: Model, values: Mapping[str, Any]) -> int:
    """The windows of the encoder that the seconds of audio fill, which pass it like images."""
    if "images" in values:
        raise RooflineError("audio and images are of two kinds of models: give one of them", options=["audio"])
    seconds = model.audio_seconds
    if seconds is None:
        raise RooflineError(f"the spec of {model.name} has no encoder of audio", options=["audio"])
    windows: int = math.ceil(values["audio"] / seconds)
    if model.tower_kind != "encoder":
        return windows
    if windows > 1:
        raise RooflineError(
            f"{model.name} hears {seconds:g} s at once: each such window is a request", options=["audio"]
        )
    return 0


def _mean(length: Any) -> Any:
    """A length, or the mean of a distribution in whole tokens."""
    return max(1, round(length.mean)) if isinstance(length, Lengths) else length


def _settings(question: Question) -> Settings:
    """The settings, of which single options and degrees of parallelism change some."""
    values, single = question.values, dict(question.groups["settings"])
    settings: Settings = values.get("settings", PLAIN_SETTINGS)
    if (offload := values.get("offload")) is not None:
        single["offload"] = parse_offload(offload) if isinstance(offload, str) else offload
    if (tokens := values.get("ctx_size")) is not None:
        if "longest" in single:
            raise RooflineError("ctx_size and max_model_len name the same: give one of them")
        single["longest"] = tokens // single.get("sequences", 1)
    if (layers := values.get("n_gpu_layers")) is not None:
        single["host"] = gpu_layers(values["model"], load_hardware(CPU), layers)
    if question.degrees:
        ranks: dict[str, Any] = question.degrees
        turns = question.profile.split_layers or single.get("host") is not None
        if question.groups["degrees"].get("pipeline", 1) > 1 and not turns:
            # Engines keep a batch in flight for each stage (vLLM's batch queue, SGLang's and TensorRT-LLM's loops).
            ranks = {"micro_batches": ranks["pipeline"], **ranks}
        single["parallel"] = Parallelism(**ranks)
        if (
            layers is not None
            and single["host"] is not None
            and single["parallel"].devices > single["parallel"].pipeline
        ):
            raise RooflineError(
                f"layers on a CPU are simulated beside devices that divide the layers (pp), not each of them: {layers}"
                f" of {values['model'].layers} are on the devices",
                options=["n_gpu_layers"],
            )
    parallel = single.get("parallel", settings.parallel)
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        _, part = OPTIONS[name].target
        together = ranks_together(question.profile.name, name, parallel)
        if together > 1 and single.get(part) is not None:
            if single[part] < together:
                raise RooflineError(
                    f"{question.profile.name} divides {single[part]} ({name}) among {together} ranks of attention: at"
                    f" least {together} are needed",
                    options=[name, "dp"],
                )
            single[part] //= together
    settings = replace(settings, **single) if single else settings
    placed = placed_tables(settings.offload, values["model"], question.hardware, question.profile)
    return settings if placed is settings.offload else replace(settings, offload=placed)


def _fusions(values: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The fusions of the switches, or of the object; None for the convention's own."""
    if "fusions" in values:
        if "flash" in values or "fuse" in values:
            raise RooflineError("fusions names all at once: give it, or flash and fuse")
        return None if values["fusions"] is None else values["fusions"]
    if "flash" not in values and "fuse" not in values:
        return None
    flash = values.get("flash", values.get("convention", Convention.PHYSICAL) == Convention.PHYSICAL)
    return (*(("attention",) if flash else ()), *values.get("fuse", ()))
