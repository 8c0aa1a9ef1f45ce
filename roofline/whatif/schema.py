"""JSON Schemas of a scenario and of a study file, for editors and clients: from the table of options.

They say what a single key takes. What several options refuse together, a scenario says when it is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from roofline.core.options import FORMS, NOTHING, SWITCHES, Kind, Option
from roofline.scenario.options import NEEDED, OPTIONS, SPELLINGS
from roofline.specs.schema import DRAFT, NUMBER, Schema
from roofline.whatif.axes import EVERYTHING
from roofline.whatif.metrics import AT, NAMES
from roofline.whatif.study import INVALID

COUNT = rf"^\s*({NUMBER}[kmgKMG]?|{NOTHING})\s*$"

_METRICS: Schema = {"type": ["string", "array"], "items": {"type": "string", "examples": list(NAMES)}}

STUDY_KEYS: Mapping[str, Schema] = {
    "metrics": {"description": "The columns: names, or one text with commas.", **_METRICS},
    "at": {"description": "Expected times, or the bound.", "enum": list(AT), "default": "expected"},
    "where": {"description": "Keep rows such as 'fits and ttft < 500ms'.", "type": ["string", "boolean"]},
    "top": {"description": "Keep this many rows, the best by `by`.", "type": "integer", "minimum": 1},
    "by": {"description": "The metric or axis that rows are ranked by.", "type": "string", "examples": list(NAMES)},
    "pareto": {"description": "Keep the Pareto front of these metrics.", **_METRICS},
    "invalid": {"description": "Combinations that cannot run.", "enum": list(INVALID), "default": INVALID[0]},
    "figure": {"description": "The figure of `roofline plot`.", "type": "object"},
}
"""The keys of a study file beside its options and its axes."""


def scenario_schema() -> Schema:
    """The JSON Schema of the options of a scenario: keywords of `Scenario`, and what its `options` give."""
    required = [{"anyOf": [{"required": [name]} for name in (needed, *_others(needed))]} for needed in NEEDED]
    return {"$schema": DRAFT, "title": "Scenario", **_options(_value, "#/properties"), "allOf": required}


def study_schema() -> Schema:
    """The JSON Schema of a study file."""
    axis: Schema = {
        "type": ["string", "number", "boolean", "array"],
        "items": {"type": ["string", "number", "boolean", "array", "null"]},
        "minItems": 1,
    }
    over = {
        "description": f"The axes: {FORMS}; or a list, or {EVERYTHING}.",
        **_options(lambda option: {"$ref": "#/$defs/axis", **_told(option)}, "#/properties/over/properties"),
        "minProperties": 1,
    }
    found = _options(_value, "#/properties")
    found["properties"] |= {"over": over, **STUDY_KEYS}
    required = [{"required": [key]} for key in ("over", "figure")]  # some figures are of one scenario
    return {"$schema": DRAFT, "title": "Study", **found, "anyOf": required, "$defs": {"axis": axis}}


def _options(made: Callable[[Option], Schema], place: str) -> Schema:
    """A mapping of options, also by the names that engines have for them, each as it is `made`."""
    others = {
        f"^({'|'.join(name.replace('_', '[-_]') for name in (option.name, *_others(option.name)))})$": option.name
        for option in OPTIONS.values()
        if "_" in option.name or _others(option.name)
    }
    return {
        "type": "object",
        "properties": {option.name: made(option) for option in OPTIONS.values()},
        "patternProperties": {pattern: {"$ref": f"{place}/{name}"} for pattern, name in others.items()},
        "additionalProperties": False,
    }


def _others(name: str) -> list[str]:
    """The other names of an option."""
    return [other for other, found in SPELLINGS.items() if found == name and other not in OPTIONS]


def _told(option: Option) -> Schema:
    """What an editor tells of an option."""
    return {
        "title": option.short,
        "description": option.described,
        "examples": list(option.names) or [option.example],
        **({"x-unit": option.unit} if option.unit else {}),
    }


def _value(option: Option) -> Schema:
    """The values of an option, as text, too; null and "none" stand for one that is not set."""
    default = {"default": option.usual} if option.default else {}
    return {**_told(option), **_type(option), **default}


def _type(option: Option) -> Schema:
    limits = {"minimum": option.low} | ({"maximum": option.high} if option.high < math.inf else {})
    form = {} if option.other is not None else {"pattern": COUNT}
    match option.kind:
        case Kind.GRID | Kind.INTEGER:
            return {"type": ["integer", "string", "null"], **limits, **form}
        case Kind.NUMBER:
            return {"type": ["number", "string", "null"], **limits, **form}
        case Kind.TIME:
            return {"type": ["number", "string", "null"], "exclusiveMinimum": 0}
        case Kind.SWITCH:
            return {"enum": [True, False, *SWITCHES, NOTHING, None]}
        case Kind.LIST:
            return {"type": ["string", "array", "null"], "items": {"type": "string", "examples": list(option.names)}}
    if option.choices:
        return {"enum": [*map(str, option.choices), NOTHING, None]}
    return {"type": "string" if option.needed else ["string", "null"]}
