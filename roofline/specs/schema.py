"""JSON Schemas of the spec files of hardware and models, for editors: from the records that the files are read into.

What depends on several keys at once is checked when a file is read (`roofline specs validate`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import json

from roofline.core.units import Dimension
from roofline.specs.hardware import Hardware
from roofline.specs.hardware_files import CITED_TEXTS, PLAIN_KEYS, SECTIONS
from roofline.specs.modelspec import LAYER_KEYS, ModelSpec
from roofline.specs.modelspec import SECTIONS as PARTS

DRAFT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

NUMBER = r"[+-]?\d[\d_]*(\.\d+)?([eE][+-]?\d+)?"


def hardware_schema() -> Schema:
    """The JSON Schema of a hardware spec file."""
    defs = _definitions(Hardware)
    records = {"": "Hardware", "interconnects": "Interconnect"}

    def section(name: str, required: tuple[str, ...] = (), **inner: Schema) -> Schema:
        known = defs[records[name]]["properties"] if name in records else {}
        quantities = {key: _quantity(dimension) for key, dimension in SECTIONS.get(name, {}).items()}
        plain = {key: known.get(key, {"type": "string"}) for key in PLAIN_KEYS.get(name, ())}
        cited = {key: {"type": "string", "pattern": r"\[.+\]"} for key in CITED_TEXTS if key in plain}
        return _mapping({**plain, **quantities, **cited, **inner}, required)

    return {
        "$schema": DRAFT,
        "title": "Hardware",
        **section(
            "",
            ("name", "vendor", "family", "kind", "memory", "compute"),
            memory=section("memory", ("capacity", "bandwidth")),
            compute=section("compute", tensor=section("tensor"), vector=section("vector")),
            cache=section("cache"),
            interconnects={"type": "array", "items": section("interconnects", ("kind", "scope", "bandwidth"))},
            power=section("power"),
            energy=section("energy", compute=section("energy.compute")),
            price=section("price"),
            host={"type": "string"},
            also={"type": "array", "items": {"type": "string"}},
            sources={"type": "object", "additionalProperties": {"type": "string"}},
        ),
    }


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
