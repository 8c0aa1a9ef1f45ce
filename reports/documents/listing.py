"""The output of `roofline specs`: lists, single specs, validation results and imported models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.text import Text

from roofline import Hardware, Model, list_hardware, list_models, load_hardware, load_model, parameters
from roofline.core.errors import SpecError, quote
from roofline.core.units import seconds, si
from roofline.reports.documents.analysis import hardware_document, model_document
from roofline.reports.output.cells import BYTES, Column, table_of
from roofline.reports.output.terminal import table
from roofline.scenario.stored import mismatch
from roofline.specs.huggingface import translate_file
from roofline.specs.modelspec import parse_model
from roofline.specs.written import to_spec


def listed(kind: str) -> list[dict[str, Any]]:
    """A summary of every known model, or of all known hardware."""
    if kind == "models":
        keys = "name title parameters active_parameters kv_bytes_per_token max_context dtype quantization"
        documents = (model_document(load_model(name)) for name in list_models())
    else:
        keys = "name title vendor family kind memory_capacity memory_bandwidth tensor vector tdp"
        documents = (hardware_document(load_hardware(name)) for name in list_hardware())
    return [{key: document.get(key) for key in keys.split()} for document in documents]


def family(name: str) -> dict[str, list[dict[str, Any]]]:
    """The models and hardware that have the words of `name` in their name or title; none if it is the name of one."""
    if name in (*list_models(), *list_hardware()):
        return {}
    found = dict[str, list[dict[str, Any]]]()
    for kind, names, load in (("models", list_models(), load_model), ("hardware", list_hardware(), load_hardware)):
        titles = ((candidate, str(load(candidate).title)) for candidate in names)
        if own := [{"name": one, "title": title} for one, title in titles if _words(name) in _words(f"{one} {title}")]:
            found[kind] = own
    return found


def _words(text: str) -> str:
    return f" {' '.join(re.findall(r'[a-z]+|[0-9.]+', text.lower()))} "


def family_parts(name: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Any]:
    """The output of `roofline techniques` for a name of several models or devices, with a command for one of each."""
    drawn: list[Any] = []
    for kind, documents in found.items():
        first = documents[0]["name"]
        command = f"{first} --hw h100-sxm" if kind == "models" else f"qwen3-1.7b --hw {first}"
        rows = [[each["name"], each["title"]] for each in documents]
        drawn.append(Text(f"{quote(name)} names {kind}, which analyses take: roofline analyze {command}"))
        drawn.append(table((kind, "title"), rows, left=2))
    return drawn


def parts(kind: str, documents: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The output of `roofline specs list`."""
    if kind == "models":
        return [table(*table_of(MODELS, documents), left=2)]
    shown = []
    for entry in documents:
        units = [entry.get(unit) or {} for unit in ("tensor", "vector")]
        peaks = {title: [unit.get(name) for unit in units for name in names] for title, names in PEAKS.items()}
        shown.append({**entry, **{title: next(filter(None, found), None) for title, found in peaks.items()}})
    note = "Dense peaks in OP/s, of the matrix units if there are any."
    return [table(*table_of(HARDWARE, shown), left=2), Text(note, "dim")]


MODELS = (
    Column("model", "name"),
    Column("title", "title"),
    Column("parameters", "parameters", si),
    Column("KV bytes/token", "kv_bytes_per_token", BYTES),
    Column("max context", "max_context", ","),
)

PEAKS = {"fp16/bf16": ("bf16", "fp16"), **{name: (name,) for name in ("fp8", "int8", "fp4", "int4")}}
"""Columns of peaks, with the formats of which the first known one is shown."""

HARDWARE = (
    *(Column("hardware", "name"), Column("title", "title"), Column("memory", "memory_capacity", BYTES)),
    Column("bandwidth", "memory_bandwidth", partial(si, unit="B/s")),
    *(Column(title, title, si) for title in PEAKS),
)


def card(document: Mapping[str, Any]) -> list[Any]:
    """The output of `roofline specs show`: one row per key, nested keys dotted."""
    return [table(("key", "value"), [[key, _text(key, value)] for key, value in _flat(document)], left=2)]


UNITS = {
    **dict.fromkeys(("memory_capacity", "memory_visible", "l2", "kv_bytes_per_token"), "B"),
    **dict.fromkeys(("file_bytes", "header_bytes", "tensor_bytes"), "B"),
    **dict.fromkeys(("memory_bandwidth", "bandwidth"), "B/s"),
    **dict.fromkeys(("tensor", "vector"), "OP/s"),
    "latency": "s",
    "clock": "Hz",
    "tdp": "W",
}
"""Units by a component of the dotted key."""


def _flat(document: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in document.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for index, entry in enumerate(value):
                rows += _flat(entry, f"{prefix}{key}.{index}.")
        else:
            rows.append((f"{prefix}{key}", value))
    return rows


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        unit = next((UNITS[part] for part in key.split(".") if part in UNITS), None)
        if unit == "s":
            return seconds(value)
        if unit:
            return si(value, unit, digits=4)
        return str(value) if key == "released" else f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def verdict(path: str, spec: Model | Hardware) -> str:
    """One line on a valid spec.

    Raises SpecError if the parameter count differs from the published size, or a checkpoint's tensors from its config.
    """
    if isinstance(spec, Hardware):
        peaks = ", ".join(spec.formats)
        return f"{path}: hardware {spec.name}: {si(spec.memory_capacity, 'B')}, computes in {peaks}"
    count, published = parameters(spec), spec.parameters
    if spec.stored is not None and (difference := mismatch(spec)):
        raise SpecError(path, difference)
    if published is not None and published != count:
        raise SpecError(path, f"'parameters': the spec has {count:,} parameters, the published size is {published:,}")
    compared = "matches the published size" if published else "no published size to compare with"
    return f"{path}: model {spec.name}: {count:,} parameters, {compared}"


def imported(path: Path, name: str | None) -> str:
    """The YAML model spec that a config.json describes."""
    content = translate_file(path)
    model = parse_model({**content, **({} if name is None else {"name": name})}, str(path))
    return yaml.safe_dump(to_spec(model), sort_keys=False, allow_unicode=True)
