"""Sections of files as Structs: converted by msgspec; errors name the file, the key and what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert, inspect

from roofline.core.documents import bundled, bundled_path, finite_number
from roofline.core.errors import SpecError, located, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.specs.library import as_mapping, check_keys, unknown_key

Record = TypeVar("Record", bound=Struct)


def record(kind: type[Record], content: object, where: str, key: str = "") -> Record:
    """`content`, the section at the key path `key` of the file `where`, as a `kind`; raises SpecError."""
    body = as_mapping(content, where, key)
    check_keys(body, kind.__struct_encode_fields__, where, key)
    try:
        with located(where):  # the type's own check
            return convert(body, kind)
    except ValidationError as error:
        raise SpecError(where, _explained(str(error), kind, body, key)) from None


def bundled_record(kind: type[Record], relative: str) -> Record:
    """The table in a file of the program, by its path in the package."""
    found: Record = _bundled_record(kind, relative)
    return found


@cache
def _bundled_record(kind: type[Any], relative: str) -> Any:
    return record(kind, bundled(relative), str(bundled_path(relative)))


def seconds(text: object, key: str, where: str) -> float:
    """The seconds of a time such as `3 ms`, or 0; raises SpecError."""
    with located(where, key):
        return 0.0 if finite_number(text) == 0 else parse_quantity(text, Dimension.TIME).value


def _explained(message: str, kind: type[Struct], body: object, key: str) -> str:
    """One sentence for msgspec's message, such as "Expected `int`, got `str` - at `$.layers[0].count`"."""
    problem, _, path = message.partition(" - at `$")
    path = path.partition("[...]")[0].rstrip("`")  # which entry of a mapping it is, msgspec does not say
    steps = [step for step in re.split(r"[.\[\]]+", path) if step]
    place = ".".join(filter(None, (key, *steps)))
    types, given = _at((inspect.type_info(kind),), body, steps)
    if (field := re.fullmatch("Object missing required field `(.*)`", problem)) is not None:
        return f"the key {quote(f'{place}.{field[1]}'.lstrip('.'))} is missing"
    if (field := re.fullmatch("(?s)Object contains unknown field `(.*)`", problem)) is not None:
        return unknown_key(field[1], _fields(types), place)
    if given is None:
        return f"the key {quote(place)} is missing"
    named = [one.values if isinstance(one, inspect.LiteralType) else list(one.cls) for one in types if _is_named(one)]
    if named:
        texts = [repr(getattr(value, "value", value)) for values in named for value in values]
        texts += ["true", "false"] if any(isinstance(one, inspect.BoolType) for one in types) else []
        problem = f"Expected {', '.join(texts[:-1])} or {texts[-1]}"
    wanted = re.sub("`([^`]*)`", _named, problem.partition(", got ")[0])
    shown = f", got {quote(given)}" if isinstance(given, (str, int, float)) else ""
    said = f" must be {wanted.removeprefix('Expected ')}" if wanted.startswith("Expected ") else f": {wanted}"
    return f"{quote(place)}{said}{shown}"


def _is_named(one: Any) -> bool:
    """Whether a type has some texts alone."""
    return isinstance(one, (inspect.LiteralType, inspect.EnumType))


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a mapping",
}


def _named(types: re.Match[str]) -> str:
    """The types of msgspec's message, such as `int | null`, in words."""
    return " or ".join(_TYPES.get(name, name) for name in types[1].split(" | ") if name != "null")


def _at(types: tuple[Any, ...], given: Any, steps: list[str]) -> tuple[tuple[Any, ...], Any]:
    """The types that a key path leads to, and the value there."""
    for step in steps:
        given = given.get(step) if isinstance(given, Mapping) else given[int(step)]
        found = [_fields((one,)).get(step) or getattr(one, "item_type", None) for one in types]
        types = tuple(part for one in found if one is not None for part in getattr(one, "types", (one,)))
    return types, given


def _fields(types: tuple[Any, ...]) -> dict[str, Any]:
    return {field.encode_name: field.type for one in types for field in getattr(one, "fields", ())}
