"""What engines run: techniques, architectures and number formats, on which hardware, and which by default.

The facts are in support.yaml, each with the document that states it. What no document states is absent: None means
that it is not known, and techniques that need nothing of an engine are not in the file at all. `unsupported` of
`roofline.techniques.unsupported` compares a scenario with them.

>>> found = support("fp8-kv", "vllm")
>>> found.option
'--kv-cache-dtype fp8'
>>> support("paged-attention", "vllm").default
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from msgspec import Struct

from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, SpecError, quote, suggest
from roofline.specs.engine import list_engines
from roofline.specs.formats import find_format
from roofline.specs.hardware import Hardware
from roofline.specs.library import validate
from roofline.specs.model import CLOSED, Flag, Text
from roofline.techniques import find_technique, techniques
from roofline.techniques.base import Level, Price, Technique

Section = Literal["techniques", "weights", "kv"]
"""The sections of the file with rows: techniques of the catalogue, and formats of weights and of the KV cache."""

FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "attention": "softmax attention",
        "latent_attention": "MLA",
        "mamba": "Mamba",
        "mamba2": "Mamba-2",
        "delta_net": "Gated DeltaNet",
        "rwkv": "RWKV",
        "retention": "RetNet",
        "hyena": "Hyena",
        "encoder": "encoder-only models",
        "text_encoder": "encoder-decoder models of text",
        "speech": "encoder-decoder models of speech",
        "vision": "vision encoders",
        "diffusion": "diffusion transformers",
        "global_tokens": "attention of BigBird's pattern",
    }
)
"""Parts of models that an engine runs or not, with their names."""

PLAIN_MODEL_SLOTS = frozenset({"model size", "vocabulary", "KV heads", "student"})
"""Slots of the catalogue that yield an ordinary model, which every engine runs."""


class Support(Struct, frozen=True):
    """The documented support of a technique or format by an engine.

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
    """The file.

    `rows` by section, technique or format, and engine. `families` of hardware to which an engine is limited whatever it
    runs, `architectures`: the FEATURES that it runs. `profiles`: the engine of a profile, where their names differ.
    """

    rows: Mapping[Section, Mapping[str, Mapping[str, Support]]]
    families: Mapping[str, tuple[str, ...]]
    architectures: Mapping[str, tuple[str, ...]]
    profiles: Mapping[str, str]

    def engine(self, profile: str) -> str:
        """The engine of a profile, of any version."""
        name = profile.partition("@")[0]
        return self.profiles.get(name, name)


def documented_engines() -> tuple[str, ...]:
    """The engines that the documents cover, in the file's order."""
    return tuple(load_support().architectures)


def is_documented(engine: str) -> bool:
    """Whether the documents cover an engine's profile."""
    table = load_support()
    return table.engine(engine) in table.architectures


def support(technique: str, engine: str) -> Support | None:
    """The documented support of a technique by an engine, or None; raises UnknownNameError for an unknown technique."""
    table = load_support()
    return table.rows["techniques"].get(find_technique(technique).name, {}).get(table.engine(engine))


def engines_with(technique: str) -> tuple[str, ...]:
    """The engines that are known to run a technique, in the file's order; raises UnknownNameError."""
    return tuple(load_support().rows["techniques"].get(find_technique(technique).name, ()))


def runs(technique: str, engine: str, hardware: Hardware) -> bool:
    """Whether an engine is known to run a technique on this hardware; raises UnknownNameError."""
    return _runs(support(technique, engine), engine, hardware)


def runs_format(section: Section, name: str, engine: str, hardware: Hardware) -> bool:
    """Whether an engine has a row for this format on this hardware, beside those of techniques."""
    table = load_support()
    return _runs(table.rows[section].get(name, {}).get(table.engine(engine)), engine, hardware)


def runs_on(engine: str, hardware: Hardware) -> bool:
    """Whether no document excludes that an engine runs on this hardware.

    CPUs that were measured where they are, without a bundled spec, are of no family.
    """
    table = load_support()
    families = table.families.get(table.engine(engine), ())
    measured_cpu = hardware.family == hardware.kind == "cpu" and "xeon" in families
    return not families or hardware.family in families or measured_cpu


def needs_no_engine(technique: Technique) -> bool:
    """Whether any engine runs a technique: another prompt, another output, or an ordinary model of another size."""
    retrained = technique.price is Price.RETRAINING
    return technique.level is Level.DATA or (technique.slot in PLAIN_MODEL_SLOTS and retrained)


def _runs(found: Support | None, engine: str, hardware: Hardware) -> bool:
    if found is None or not runs_on(engine, hardware):
        return False
    return not found.families or hardware.family in found.families


@lru_cache(maxsize=1)
def load_support() -> Table:
    """The bundled table; raises SpecError naming the file and the key."""
    path = Path(str(files("roofline.techniques") / "support.yaml"))
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
class _Architectures:
    __pydantic_config__ = CLOSED

    source: Text | list[Text]
    features: list[Text]


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
    weights: dict[str, dict[str, _Entry]] = field(default_factory=dict)
    kv: dict[str, dict[str, _Entry]] = field(default_factory=dict)
    engines: dict[str, _Limit] = field(default_factory=dict)
    architectures: dict[str, _Architectures] = field(default_factory=dict)
    profiles: dict[str, Text] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(_File)


def parse_support(content: Mapping[str, Any], where: str) -> Table:
    """A Table from the mapping of a file; `where` names the file in errors.

    Raises SpecError for an unknown key, technique, format, feature, engine or source, and for a source that nothing
    cites.
    """
    file: _File = validate(_adapter(), content, where, {"": tuple(entry.name for entry in fields(_File))})
    return _Reader(file, where).table()


class _Reader:
    """Checks the names of a file and collects the sources that it cites."""

    def __init__(self, file: _File, where: str) -> None:
        self.file, self.where = file, where
        self.engines = list_engines()
        self.cited: set[str] = set()

    def table(self) -> Table:
        """The table; raises SpecError for an unknown name or a source that nothing cites."""
        file = self.file
        rows: Mapping[Section, Mapping[str, Mapping[str, Support]]] = {
            "techniques": self.rows("techniques", file.techniques),
            "weights": self.rows("weights", file.weights),
            "kv": self.rows("kv", file.kv),
        }
        families = {engine: tuple(limit.families) for engine, limit in file.engines.items()}
        architectures = {engine: tuple(parts.features) for engine, parts in file.architectures.items()}
        for engine, limit in file.engines.items():
            self.known(engine, self.engines, "engine", "engines")
            self.sources(limit.source, f"engines.{engine}")
        for engine, parts in file.architectures.items():
            self.known(engine, self.engines, "engine", "architectures")
            self.sources(parts.source, f"architectures.{engine}")
            for feature in parts.features:
                self.known(feature, FEATURES, "feature", f"architectures.{engine}")
        for profile, engine in file.profiles.items():
            self.known(engine, self.engines, "engine", f"profiles.{profile}")
        for name in file.sources:
            if name not in self.cited:
                raise SpecError(self.where, f"nothing cites the source {quote(name)}")
        sections = (rows, families, architectures, file.profiles)
        return Table(*(MappingProxyType(section) for section in sections))

    def rows(
        self, section: Section, content: Mapping[str, Mapping[str, _Entry]]
    ) -> Mapping[str, Mapping[str, Support]]:
        """The rows of a section by technique or format and engine."""
        table = {}
        for name, rows in content.items():
            if section == "techniques":
                self.known(name, techniques(), "technique", section)
            elif name != "gguf":
                self.format(name, section)
            found = {}
            for engine, row in rows.items():
                self.known(engine, self.engines, "engine", f"{section}.{name}")
                source = self.sources(row.source, f"{section}.{name}.{engine}")
                found[engine] = Support(source, row.option, row.parameters, row.default, tuple(row.families))
            table[name] = MappingProxyType(found)
        return MappingProxyType(table)

    def sources(self, names: str | list[str], key: str) -> str:
        """The text of the documents that a row cites."""
        keys = [names] if isinstance(names, str) else names
        if not keys:
            raise SpecError(self.where, f"{quote(key)} names no source")
        for name in keys:
            self.known(name, self.file.sources, "source", key)
        self.cited.update(keys)
        return "; ".join(str(self.file.sources[name]) for name in keys)

    def format(self, name: str, section: str) -> None:
        """Raises SpecError for an unknown format."""
        try:
            find_format(name)
        except RooflineError as error:
            raise SpecError(self.where, f"{quote(section)}: {error}") from None

    def known(self, name: str, known: Iterable[str], kind: str, key: str) -> None:
        """Raises SpecError for an unknown name."""
        if name not in known:
            raise SpecError(self.where, f"unknown {kind} {quote(name)} in {quote(key)}{suggest(name, known)}")
