"""Model families as rows of `families.yaml`: which key of a file each part of a spec is read from.

A row has the sections of a spec, and what they hold as expressions over the file's keys (`expressions`). It begins with
what `sections.yaml` has for each of its sections, or with the row that it is `like`; null leaves a key out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from itertools import chain
from typing import Any

import numpy as np
from msgspec import Struct, convert, inspect

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import (
    WINDOWED,
    Config,
    Reader,
    Spec,
    base_spec,
    layer_types,
    rows,
    sparse_layers,
    spec_with_pattern,
)
from roofline.specs.huggingface.expressions import WINDOW, Kind, Scope, evaluate, holds, kind_of
from roofline.specs.modelspec import SECTIONS, ModelSpec
from roofline.specs.sublayers import FEED_FORWARDS, MIXERS

FEEDS = {"moe": "moe", "dense": "mlp"}
"""The blocks of layers with experts and without, by name."""

_WINDOWS: Mapping[str, Mapping[str, Any]] = {"local": {"attention": {"window": "sliding_window"}}, "global": {}}


class Family(Struct, frozen=True, forbid_unknown_fields=True):
    """What a row says beside the sections of a spec, which are its other keys (`spec`).

    `instead`: the row that counts where a condition holds. `renamed`: the file's names of the usual keys. `refused`:
    keys whose features are not read. `needed`: what must hold, and what is said where it does not. `tied`: embeddings
    are, if the file does not say. `blocks`: how layers differ, by name; `listed` are their names in `layer_types`, else
    a layer is the first whose `pattern` holds. `windows`: the last of so many layers has no window, the others
    `sliding_window`, if there is one. `sparse`: which layers have experts, where others have an MLP; or `feeds`: a
    pattern of blocks that differ in more, beside the other one. `mixers_first`: in the names of blocks.
    """

    spec: dict[str, Any]
    instead: Mapping[str, str] = {}
    renamed: Mapping[str, str] = {}
    refused: tuple[str, ...] = ()
    needed: Mapping[str, str] = {}
    tied: bool = False
    blocks: Mapping[str, Mapping[str, Any]] = {}
    listed: Mapping[str, str] = {}
    pattern: Mapping[str, str | bool] = {}
    windows: int | str = 0
    sparse: str = "true"
    feeds: Mapping[str, str | bool] = {}
    mixers_first: bool = False


def _over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A section with the changes of another, key by key; null removes a key."""
    merged = dict(base)
    for key, value in changes.items():
        before = merged.get(key)
        merged[key] = _over(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


def row(table: str, name: str) -> dict[str, Any]:
    """A row of a table, over the one that it is `like`."""
    own = dict(rows(table)[name])
    return _over(row(table, own.pop("like")), own) if "like" in own else own


@cache
def family(name: str) -> Family:
    """The row of a `model_type`, with what `sections.yaml` has for its sections."""
    found, usual = row("families.yaml", name), rows("sections.yaml")
    places = [found, *found.get("blocks", {}).values()]
    for default, among in (("attention", MIXERS), ("mlp", FEED_FORWARDS)):
        if not any(key in place for place in places for key in among):
            found[default] = {}

    def whole(place: Mapping[str, Any], inherited: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: _over({} if key in inherited else usual.get(key, {}), part) if isinstance(part, dict) else part
            for key, part in place.items()
        }

    found = {key: part for key, part in found.items() if part is not None}
    own = {key: found.pop(key) for key in Family.__struct_fields__ if key in found}
    own["blocks"] = {name: whole(place, found) for name, place in own.get("blocks", {}).items()}
    return convert({**own, "spec": whole(found, {})}, Family)


class _Field:
    """A field of a spec: the record of its section, the field of an entry of a list, and what a key for it may hold."""

    entry: _Field

    def __init__(self, field: inspect.Field) -> None:
        types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        inner = next((one for one in types if isinstance(one, inspect.StructType)), None)
        listed = next((one for one in types if isinstance(one, (inspect.ListType, inspect.VarTupleType))), None)
        self.record = inner.cls if inner else SECTIONS.get(field.name, ModelSpec)  # a tower is a model
        if listed is not None:
            self.entry = _Field(inspect.Field(field.name, field.name, listed.item_type))
        self.plain = any(isinstance(one, inspect.StrType) for one in types)
        self.whole = not any(isinstance(one, inspect.FloatType) for one in types)
        layers = Kind(most=10**5, needed=True)
        self.kind = layers if field.name == "layers" else kind_of(inner.fields[0] if inner else field)


@cache
def _fields(record: type) -> dict[str, _Field]:
    found = inspect.type_info(record)
    assert isinstance(found, inspect.StructType)
    return {field.name: _Field(field) for field in found.fields}


def fill(record: type, row: Mapping[str, Any], scope: Scope) -> Spec:
    """The section of a spec that a row describes, for a file; values that it lacks are left out."""
    fields = _fields(record)
    filled = {key: _filled(fields[key], source, scope) for key, source in row.items() if source is not None}
    return {key: value for key, value in filled.items() if value is not None}


def _filled(field: _Field, source: Any, scope: Scope) -> Any:
    if isinstance(source, dict):
        return fill(field.record, source, scope)
    if isinstance(source, list):
        return [_filled(field.entry, one, scope) for one in source]
    if field.plain or not isinstance(source, str):
        return source
    found = evaluate(source, field.kind, scope)
    if isinstance(found, float) and field.whole:
        return int(found)
    return found or None if field.kind is WINDOW else found


def read_family(name: str, config: Config) -> Spec:
    """The spec of a file by the row of a `model_type`."""
    own = family(name)
    for condition, other in own.instead.items():
        if holds(condition, Scope(config)):
            return read_family(other, config)
    config = config.renamed(**own.renamed)
    for key in own.refused:
        section, _, inner = key.rpartition(".")
        (config.section(section) if section else config).reject(inner)
    check(own.needed, Scope(config), name)
    scope, parts = Scope(config), dict(own.spec)
    several = all(key in parts for key in FEEDS.values())
    feeds = {name: {key: parts.pop(key)} for name, key in FEEDS.items()} if several else {}
    base = base_spec(config, tied=own.tied, **fill(ModelSpec, parts, scope))
    axes = [axis for axis in (_feeds(own, config, several), _mixers(own, config)) if axis]
    known = {**_WINDOWS, **feeds, **own.blocks}
    used = {name: fill(ModelSpec, known[name], scope) for name in dict.fromkeys(chain(*axes))}
    return spec_with_pattern(base, used, *(axes[::-1] if own.mixers_first else axes)) if axes else base


def check(needed: Mapping[str, str], scope: Scope, model_type: str = "") -> None:
    """Raise SpecError for the first condition that does not hold, with what is said of it."""
    for condition, problem in needed.items():
        if not holds(condition, scope):
            raise SpecError(scope.config.where, problem.format(model_type=quote(model_type)))


def _feeds(row: Family, config: Config, several: bool) -> list[str]:
    """The feed-forward block of each layer; none where all are alike."""
    if not several:
        return _chosen(row.feeds, config) if row.feeds else []
    sparse = sparse_layers(config, [name == "moe" for name in _chosen({"moe": row.sparse, "dense": True}, config)])
    return ["moe" if some else "dense" for some in sparse]


def _mixers(row: Family, config: Config) -> list[str]:
    """The block of each layer; none where all are alike."""
    listed, pattern = row.listed, row.pattern
    if row.windows:
        if config.window() is None:
            return []
        listed, pattern = WINDOWED, {"local": f"(index + 1) % ({row.windows})", "global": True}
    return (layer_types(config, listed) if listed else None) or (_chosen(pattern, config) if pattern else [])


def _chosen(pattern: Mapping[str, str | bool], config: Config) -> list[str]:
    """The first name for each layer whose condition holds."""
    layers = config.layers()
    chosen, left = np.full(layers, "", dtype=object), np.ones(layers, dtype=bool)
    for name, condition in pattern.items():
        if left.any():
            found = left & (condition is True or holds(str(condition), Scope(config, layers)))
            chosen[found], left = name, left & ~found
    names: list[str] = chosen.tolist()
    return names


READERS: Mapping[str, Reader] = {
    name: partial(read_family, name) for name in rows("families.yaml") if not name.startswith("_")
}
