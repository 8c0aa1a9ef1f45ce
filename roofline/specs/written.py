"""Models as spec files, without the keys that have their defaults."""

from __future__ import annotations

from functools import cache
from itertools import groupby
from typing import Any

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, asdict, fields

from roofline.specs.model import Layer, Model
from roofline.specs.modelspec import SHARED, SWITCHES, ModelSpec
from roofline.specs.sublayers import FEED_FORWARDS, MIXERS


def to_spec(model: Model) -> dict[str, Any]:
    """The spec mapping of `model` without defaults; `parse_model` reads it back."""
    positions = model.positions
    plain = len(model.groups) == 1 and model.groups[0].name == "layer"
    written: dict[str, Any] = {
        **{key: _plain(getattr(model, key)) for key in SHARED},
        "conditioning": None if model.conditioning is None else asdict(model.conditioning),
        "positions": positions.kind if positions.count is None else {"kind": positions.kind, "count": positions.count},
        "convolutions": [asdict(part) for part in model.convolutions],
        "layers": model.layers if plain else {"count": model.layers, "pattern": _runs(model.pattern)},
    }
    defaults = {field.name: field.default for field in _fields(ModelSpec)}
    defaults |= {"positions": "rope", "title": model.name}
    given = {key: value for key, value in written.items() if value not in (None, [])}
    spec = {key: value for key, value in given.items() if value != defaults.get(key, NODEFAULT)}
    if model.tower is not None:
        tower = to_spec(model.tower)
        spec["tower"] = {key: value for key, value in tower.items() if key not in ("name", "lm_head", "task")}
    parts = [_layer_spec(group.layer) for group in model.groups]
    common = {key: part for key, part in parts[0].items() if all(other.get(key) == part for other in parts)}
    spec |= common
    if not plain:
        spec["blocks"] = {
            group.name: {key: value for key, value in part.items() if key not in common}
            for group, part in zip(model.groups, parts, strict=True)
        }
    return spec


def _layer_spec(layer: Layer) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    for part, family in ((layer.mixer, MIXERS), (layer.feed_forward, FEED_FORWARDS)):
        if part is not None:
            key = next(name for name, record in family.items() if type(part) is record)
            spec[key] = section_spec(part)
    if layer.cross is not None:
        spec["cross"] = {key: value for key, value in section_spec(layer.cross).items() if key != "causal"}
    if layer.engram is not None:
        spec["engram"] = section_spec(layer.engram)
    spec["norm"] = section_spec(layer.norm)
    switches = {key: getattr(layer, key) for key in SWITCHES}
    return {**spec, **{key: value for key, value in switches.items() if value not in ("sequential", False)}}


def section_spec(record: Struct) -> dict[str, Any]:
    """The section of a record without defaults."""
    return {
        field.name: _plain(value)
        for field in _fields(type(record))
        if (value := getattr(record, field.name)) is not None and value != field.default
    }


@cache  # `fields` reads the annotations at each call
def _fields(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    return fields(kind)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(map(_plain, value))
    return section_spec(value) if isinstance(value, Struct) else value


def _runs(pattern: tuple[str, ...]) -> list[str]:
    """The shortest period of `pattern`, with runs written as '5 x local'."""
    borders = [0]  # the longest prefix of the pattern that ends at each place and begins after the first
    for name in pattern[1:]:
        length = borders[-1]
        while length and name != pattern[length]:
            length = borders[length - 1]
        borders.append(length + (name == pattern[length]))
    period = len(pattern) - borders[-1]
    runs = ((name, len(list(run))) for name, run in groupby(pattern[:period]))
    return [name if times == 1 else f"{times} x {name}" for name, times in runs]
