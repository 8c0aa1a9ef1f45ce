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

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from roofline.specs.engine import GGUF_ENGINE
from roofline.specs.hardware import Hardware
from roofline.specs.records import bundled_record
from roofline.specs.version import between
from roofline.techniques import find_technique
from roofline.techniques.base import Level, Price, Technique

PLAIN_MODEL_SLOTS = frozenset({"model size", "vocabulary", "KV heads", "student"})
"""Slots of the catalogue that yield an ordinary model, which every engine runs."""


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """A document of an engine: its title, version or date, and address."""

    document: str
    version: str
    address: str

    def __str__(self) -> str:
        return f"{self.document}, {self.version}, {self.address}"


class Support(Struct, frozen=True, forbid_unknown_fields=True):
    """The documented support of a technique or format by an engine.

    `sources` are the keys of the documents that state it; `option` how it is switched on, "" where they do not say;
    `parameters` those of the catalogue's technique (key=value,key=value) that the engine runs it with, "" for the
    catalogue's own. `default` holds where the engine does it without being asked. `families` are the hardware families
    that it is limited to, or devices of one by name; empty where no document limits it.
    """

    sources: tuple[str, ...]
    option: str = ""
    parameters: str = ""
    default: bool = False
    families: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Titles, versions and addresses of the documents."""
        documents = load_support().sources
        return "; ".join(str(documents[key]) for key in self.sources)


class Limit(Struct, frozen=True, forbid_unknown_fields=True):
    """The hardware families that an engine runs on at all."""

    sources: tuple[str, ...]
    families: tuple[str, ...]


class Lack(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a model, of `Table.features` or `kinds`, that an engine does not run on some families of hardware.

    With `kv` it does not run there with a KV cache in that format; from version `before` on it runs there ("": never).
    """

    part: str
    sources: tuple[str, ...]
    families: tuple[str, ...]
    kv: str = ""
    before: str = ""

    def holds(self, version: str) -> bool:
        """Whether a version lacks it; "" is the newest."""
        return not self.before or (bool(version) and between(version, "", self.before))


class Architectures(Struct, frozen=True, forbid_unknown_fields=True):
    """The features that an engine runs."""

    sources: tuple[str, ...]
    features: tuple[str, ...]


Section = Literal["weights", "kv"]
"""The sections of the file with rows of formats: of weights, and of the KV cache."""


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """The file: its sections are described at its top."""

    features: dict[str, str]
    kinds: dict[str, str]
    covered: dict[str, str]
    together: dict[str, str]
    degrees: dict[str, str]
    sources: dict[str, Document]
    profiles: dict[str, str]
    engines: dict[str, Limit]
    architectures: dict[str, Architectures]
    lacks: dict[str, tuple[Lack, ...]]
    techniques: dict[str, dict[str, Support]]
    weights: dict[str, dict[str, Support]]
    kv: dict[str, dict[str, Support]]

    def engine(self, profile: str) -> str:
        """The engine of a profile, of any version."""
        name = profile.partition("@")[0]
        return self.profiles.get(name, name)


def load_support() -> Table:
    """The bundled table."""
    return bundled_record(Table, "techniques/support.yaml")


def documented_engines() -> tuple[str, ...]:
    """The engines that the documents cover, in the file's order."""
    return tuple(load_support().architectures)


def is_documented(engine: str) -> bool:
    """Whether the documents cover an engine's profile."""
    table = load_support()
    return table.engine(engine) in table.architectures


def runs_gguf(engine: str) -> bool:
    """Whether an engine's profile is of llama.cpp, or of what is built on it, such as Ollama."""
    return load_support().engine(engine) == GGUF_ENGINE


def support(technique: str, engine: str) -> Support | None:
    """The documented support of a technique by an engine, or None; raises UnknownNameError for an unknown technique."""
    return _rows(technique).get(load_support().engine(engine))


def engines_with(technique: str) -> tuple[str, ...]:
    """The engines that are known to run a technique, in the file's order; raises UnknownNameError."""
    return tuple(_rows(technique))


def _rows(technique: str) -> Mapping[str, Support]:
    rows = load_support().techniques
    return rows[technique] if technique in rows else rows.get(find_technique(technique).name, {})


def runs(technique: str, engine: str, hardware: Hardware) -> bool:
    """Whether an engine is known to run a technique on this hardware; raises UnknownNameError."""
    return _runs(support(technique, engine), engine, hardware)


def runs_format(section: Section, name: str, engine: str, hardware: Hardware) -> bool:
    """Whether an engine has a row for this format on this hardware, beside those of techniques."""
    table = load_support()
    rows = table.weights if section == "weights" else table.kv
    return _runs(rows.get(name, {}).get(table.engine(engine)), engine, hardware)


def runs_on(engine: str, hardware: Hardware) -> bool:
    """Whether no document excludes that an engine runs on this hardware.

    CPUs that were measured where they are, without a bundled spec, are of no family.
    """
    table = load_support()
    limit = table.engines.get(table.engine(engine))
    if limit is None or hardware.family in limit.families:
        return True
    return hardware.family == hardware.kind == "cpu" and "xeon" in limit.families


def needs_no_engine(technique: Technique) -> bool:
    """Whether any engine runs a technique: another prompt, another output, or an ordinary model of another size."""
    retrained = technique.price is Price.RETRAINING
    return technique.level is Level.DATA or (technique.slot in PLAIN_MODEL_SLOTS and retrained)


def _runs(found: Support | None, engine: str, hardware: Hardware) -> bool:
    if found is None or not runs_on(engine, hardware):
        return False
    return not found.families or not {hardware.family, hardware.name}.isdisjoint(found.families)
