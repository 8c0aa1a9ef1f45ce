"""Which techniques an engine runs, on which hardware, and which of them by default.

The facts are in support.yaml, each with the document that states it. What no document states is absent: None means
that it is not known, and techniques that need nothing of an engine are not in the file at all.

>>> found = support("fp8-kv", "vllm")
>>> found.option
'--kv-cache-dtype fp8'
>>> support("paged-attention", "vllm").default
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from roofline.core.documents import read_mapping
from roofline.core.errors import SpecError, quote, suggest
from roofline.specs.engine import list_engines
from roofline.specs.hardware import Hardware
from roofline.specs.library import validate
from roofline.specs.model import CLOSED, Flag, Text
from roofline.techniques import find_technique, techniques


class Support(Struct, frozen=True):
    """The documented support of a technique by an engine.

    `source` is their titles, versions and addresses; `option` how it is switched on, "" where they do not say;
    `parameters` those of the catalogue's technique (key=value,key=value) that the engine runs it with, "" for the
    catalogue's own. `default` holds where the engine does it without being asked. `families` are the hardware families
    it is limited to, empty where no document limits it.
    """

    source: str
    option: str = ""
    parameters: str = ""
    default: bool = False
    families: tuple[str, ...] = ()


class Table(Struct, frozen=True):
    """The file: `entries` by technique and engine, and the families an engine is limited to whatever it runs."""

    entries: Mapping[str, Mapping[str, Support]]
    families: Mapping[str, tuple[str, ...]]


def support(technique: str, engine: str) -> Support | None:
    """The documented support of a technique by an engine, or None; raises UnknownNameError for an unknown technique."""
    return load_support().entries.get(find_technique(technique).name, {}).get(engine)


def engines_with(technique: str) -> tuple[str, ...]:
    """The engines that are known to run a technique, in the file's order; raises UnknownNameError."""
    return tuple(load_support().entries.get(find_technique(technique).name, ()))


def runs(technique: str, engine: str, hardware: Hardware) -> bool:
    """Whether an engine is known to run a technique on this hardware; raises UnknownNameError."""
    found = support(technique, engine)
    if found is None:
        return False
    limits = (found.families, load_support().families.get(engine, ()))
    return all(not families or hardware.family in families for families in limits)


@lru_cache(maxsize=1)
def load_support() -> Table:
    """The bundled table; raises SpecError naming the file and the key."""
    path = Path(str(files("roofline.advisor") / "support.yaml"))
    return parse_support(read_mapping(path), str(path))


@dataclass(frozen=True, slots=True)
class _Document:
    __pydantic_config__ = CLOSED

    document: Text
    version: Text
    address: Text

    def __str__(self) -> str:
        return f"{self.document}, {self.version}, {self.address}"


@dataclass(frozen=True, slots=True)
class _Limit:
    __pydantic_config__ = CLOSED

    source: Text | list[Text]
    families: list[Text]


@dataclass(frozen=True, slots=True)
class _Entry:
    __pydantic_config__ = CLOSED

    source: Text | list[Text]
    option: Text = ""
    parameters: Text = ""
    default: Flag = False
    families: list[Text] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _File:
    __pydantic_config__ = CLOSED

    sources: dict[str, _Document]
    techniques: dict[str, dict[str, _Entry]]
    engines: dict[str, _Limit] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(_File)


def parse_support(content: Mapping[str, Any], where: str) -> Table:
    """A Table from the mapping of a file; `where` names the file in errors.

    Raises SpecError for an unknown key, technique, engine or source, and for a source that nothing cites.
    """
    file: _File = validate(_adapter(), content, where, {"": ("sources", "engines", "techniques")})
    engines = list_engines()
    cited: set[str] = set()

    def text(source: str | list[str], key: str) -> str:
        keys = [source] if isinstance(source, str) else source
        if not keys:
            raise SpecError(where, f"{quote(key)} names no source")
        for name in keys:
            _known(name, file.sources, "source", key, where)
        cited.update(keys)
        return "; ".join(str(file.sources[name]) for name in keys)

    limits: dict[str, tuple[str, ...]] = {}
    for engine, limit in file.engines.items():
        _known(engine, engines, "engine", "engines", where)
        text(limit.source, f"engines.{engine}")
        limits[engine] = tuple(limit.families)
    entries: dict[str, Mapping[str, Support]] = {}
    for technique, rows in file.techniques.items():
        _known(technique, techniques(), "technique", "techniques", where)
        found = {}
        for engine, row in rows.items():
            key = f"techniques.{technique}"
            _known(engine, engines, "engine", key, where)
            source = text(row.source, f"{key}.{engine}")
            found[engine] = Support(source, row.option, row.parameters, row.default, tuple(row.families))
        entries[technique] = MappingProxyType(found)
    for name in file.sources:
        if name not in cited:
            raise SpecError(where, f"nothing cites the source {quote(name)}")
    return Table(MappingProxyType(entries), MappingProxyType(limits))


def _known(name: str, known: Iterable[str], kind: str, key: str, where: str) -> None:
    if name not in known:
        raise SpecError(where, f"unknown {kind} {quote(name)} in {quote(key)}{suggest(name, known)}")
