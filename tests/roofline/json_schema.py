"""What a JSON Schema says of a value: those keywords of draft 2020-12 that the program's schemas have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": Mapping, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip
TOLD = {"$schema", "$defs", "title", "description", "default", "examples", "x-unit"}
READ = {
    *("type", "enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems"),
    *("maxItems", "minProperties", "anyOf", "allOf", "$ref", "properties", "patternProperties", "required"),
    *("additionalProperties", "items", "propertyNames"),
}


def problems(schema: Any, value: Any, root: Any = None, place: str = "") -> Iterator[str]:
    """Why a value is not of a schema."""
    root = schema if root is None else root
    assert schema.keys() <= TOLD | READ, schema.keys() - TOLD - READ

    def within(part: Any, inner: Any, key: object = "") -> Iterator[str]:
        return problems(part, inner, root, f"{place}/{key}" if key != "" else place)

    if "$ref" in schema:
        found = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        yield from within(found, value)
    kinds = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", TYPES)
    if not any(isinstance(value, TYPES[kind]) and (type(value) is not bool or kind == "boolean") for kind in kinds):
        yield f"{place}: {value!r} is no {' or '.join(kinds)}"
    if "enum" in schema and not any(type(one) is type(value) and one == value for one in schema["enum"]):
        yield f"{place}: {value!r} is none of {schema['enum']}"
    if "anyOf" in schema and all(any(within(part, value)) for part in schema["anyOf"]):
        yield f"{place}: nothing of anyOf holds"
    for part in schema.get("allOf", ()):
        yield from within(part, value)
    if isinstance(value, str):
        if not re.search(schema.get("pattern", ""), value):
            yield f"{place}: {value!r} is not like {schema['pattern']}"
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            yield f"{place}: the length of {value!r}"
    elif isinstance(value, (int, float)) and type(value) is not bool:
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield f"{place}: {value} is out of range"
        if value <= schema.get("exclusiveMinimum", value - 1):
            yield f"{place}: {value} is out of range"
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{place}: {len(value)} items"
        for index, inner in enumerate(value):
            yield from within(schema.get("items", {}), inner, index)
    elif isinstance(value, Mapping):
        yield from (f"{place}: {key} is missing" for key in schema.get("required", ()) if key not in value)
        for key in value if "propertyNames" in schema else ():
            yield from within(schema["propertyNames"], key, key)
        if len(value) < schema.get("minProperties", 0):
            yield f"{place}: is empty"
        for key, inner in value.items():
            parts = [part for pattern, part in schema.get("patternProperties", {}).items() if re.search(pattern, key)]
            parts += [schema["properties"][key]] if key in schema.get("properties", {}) else []
            other = schema.get("additionalProperties", {})
            if not parts and other is False:
                yield f"{place}: unknown key {key}"
            for part in parts or ([] if other is False else [other]):
                yield from within(part, inner, key)
