"""JSON Schemas of the spec files of hardware and models, for editors: from the records that the files are read into.

What depends on several keys at once is checked when a file is read (`roofline specs validate`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import json

from roofline.core.units import Dimension
from roofline.specs.cited import CITED
from roofline.specs.hardware import Hardware
from roofline.specs.hardware_files import REQUIRED, SHAPE
from roofline.specs.modelspec import LAYER_KEYS, ModelSpec
from roofline.specs.modelspec import SECTIONS as PARTS

DRAFT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

NUMBER = r"[+-]?\d[\d_]*(\.\d+)?([eE][+-]?\d+)?"


def hardware_schema() -> Schema:
    """The JSON Schema of a hardware spec file."""
    defs = _definitions(Hardware)
    named: Schema = {"host": {"type": "string"}, "also": {"type": "array", "items": {"type": "string"}}}
    named["sources"] = {"type": "object", "additionalProperties": {"type": "string"}}
    known = {"": {**defs["Hardware"]["properties"], **named}, "interconnects": defs["Interconnect"]["properties"]}
    required = {
        **REQUIRED,
        "": ("name", "vendor", "family", "kind", "memory", "compute"),
        "interconnects": ("kind", "scope", "bandwidth"),
    }

    def schema(shape: Any, place: str, key: str = "") -> Schema:
        """The schema of what stands under a key of a section, or of a section without a key."""
        path = f"{place}.{key}".strip(".")
        if isinstance(shape, Mapping):
            return _mapping({name: schema(inner, path, name) for name, inner in shape.items()}, required.get(path, ()))
        if isinstance(shape, list):
            return {"type": "array", "items": schema(shape[0], place, key)}
        if isinstance(shape, Dimension):
            return _quantity(shape)
        if shape == CITED:
            return {"type": "string", "pattern": r"\[.+\]"}
        found: Schema = known.get(place, {}).get(key, {"type": "string"})
        return found

    return {"$schema": DRAFT, "title": "Hardware", **schema(SHAPE, "")}


def model_schema() -> Schema:
    """The JSON Schema of a model spec file. Sections of a layer may be partial: blocks are merged into them."""
    defs = _definitions(ModelSpec, *PARTS.values())
    for part in PARTS.values():
        defs[part.__name__].pop("required", None)
    spec = defs.pop(ModelSpec.__name__)
    spec["properties"] |= {
        key: {"anyOf": [{"$ref": f"#/$defs/{part.__name__}"}, {"type": "null"}]} for key, part in PARTS.items()
    }
    properties = spec["properties"]
    for key, short in (("layers", "integer"), ("positions", "string")):
        properties[key] = {"anyOf": [properties[key], {"type": short}]}
    block = _mapping({key: properties[key] for key in LAYER_KEYS})
    properties["blocks"] = {"type": "object", "additionalProperties": block}
    properties["tower"] = {
        "anyOf": [_mapping({key: {"$ref": f"#/properties/{key}"} for key in properties}), {"type": "null"}]
    }
    return {"$schema": DRAFT, **spec, "title": "Model", "$defs": defs}


def _definitions(*records: type) -> dict[str, Schema]:
    _, found = json.schema_components(records, ref_template="#/$defs/{name}")
    return dict(found)


def _mapping(properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    found: Schema = {"type": ["object", "null"], "properties": dict(properties), "additionalProperties": False}
    return {**found, "type": "object", "required": list(required)} if required else found


def _quantity(dimension: Dimension) -> Schema:
    """A number with a unit, and its source in brackets."""
    prefixes, units = (f"({'|'.join(map(re.escape, names))})" for names in (dimension.prefixes, dimension.units))
    pattern = rf"^\s*{NUMBER}\s*{prefixes}{units}\s*(\[.*\])?\s*$"
    example = dimension.example.split("'")[1]
    kinds = ["string", "integer"] if dimension is Dimension.COUNT else "string"
    return {"type": kinds, "pattern": pattern, "examples": [f"{example} [source]"]}
