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

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args

from msgspec import Meta, Struct

from roofline.core.documents import read_mapping, scalar_text
from roofline.core.errors import RooflineError, SpecError, quote, suggest
from roofline.specs.engine import list_engines
from roofline.specs.formats import find_format
from roofline.specs.hardware import Hardware
from roofline.specs.library import as_mapping, check_keys
from roofline.specs.records import record
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


Name = Annotated[str, Meta(min_length=1, max_length=400)]
Cited = Name | list[Name]


class _Document(Struct, frozen=True):
    document: Name
    version: Name
    address: Name

    def __str__(self) -> str:
        return f"{self.document}, {self.version}, {self.address}"


class _Limit(Struct, frozen=True):
    source: Cited
    families: tuple[Name, ...]


class _Architectures(Struct, frozen=True):
    source: Cited
    features: tuple[Name, ...]


class _Row(Struct, frozen=True):
    source: Cited
    option: Name = ""
    parameters: Name = ""
    default: bool = False
    families: tuple[Name, ...] = ()


SECTIONS = ("sources", "profiles", "engines", "architectures", "techniques", "weights", "kv")


def parse_support(content: Mapping[str, Any], where: str) -> Table:
    """A Table from the mapping of a file; `where` names the file in errors.

    Raises SpecError for an unknown key, technique, format, feature, engine or source, and for a source that nothing
    cites.
    """
    check_keys(content, SECTIONS, where)
    return _Reader(content, where).table()


Record = TypeVar("Record", bound=Struct)


class _Reader:
    """Checks the names of a file and collects the sources that it cites."""

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self.content, self.where = content, where
        self.engines = list_engines()
        self.documents = self.section("sources", _Document)
        self.cited: set[str] = set()

    def table(self) -> Table:
        """The table; raises SpecError for an unknown name or a source that nothing cites."""
        names: tuple[Section, ...] = get_args(Section)
        rows = MappingProxyType({name: MappingProxyType(dict(self.rows(name))) for name in names})
        limits, able = self.section("engines", _Limit), self.section("architectures", _Architectures)
        profiles = {name: scalar_text(engine) or "" for name, engine in self.mapping("profiles").items()}
        for engine, limit in limits.items():
            self.known(engine, self.engines, "engine", "engines")
            self.sources(limit.source, f"engines.{engine}")
        for engine, parts in able.items():
            self.known(engine, self.engines, "engine", "architectures")
            self.sources(parts.source, f"architectures.{engine}")
            for feature in parts.features:
                self.known(feature, FEATURES, "feature", f"architectures.{engine}")
        for profile, engine in profiles.items():
            self.known(engine, self.engines, "engine", f"profiles.{profile}")
        for name in self.documents:
            if name not in self.cited:
                raise SpecError(self.where, f"nothing cites the source {quote(name)}")
        families = MappingProxyType({engine: limit.families for engine, limit in limits.items()})
        architectures = MappingProxyType({engine: parts.features for engine, parts in able.items()})
        return Table(rows, families, architectures, MappingProxyType(profiles))

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A section of the file."""
        return as_mapping(self.content.get(name, {}), self.where, name)

    def section(self, name: str, kind: type[Record]) -> dict[str, Record]:
        """The records of a section."""
        return {key: record(kind, body, self.where, f"{name}.{key}") for key, body in self.mapping(name).items()}

    def rows(self, section: Section) -> Iterator[tuple[str, Mapping[str, Support]]]:
        """The rows of a section: technique or format, and what each engine does."""
        for name, engines in self.mapping(section).items():
            if section == "techniques":
                self.known(name, techniques(), "technique", section)
            elif name != "gguf":
                self.format(name, section)
            found = {}
            for engine, body in as_mapping(engines, self.where, f"{section}.{name}").items():
                self.known(engine, self.engines, "engine", f"{section}.{name}")
                row = record(_Row, body, self.where, f"{section}.{name}.{engine}")
                source = self.sources(row.source, f"{section}.{name}.{engine}")
                found[engine] = Support(source, row.option, row.parameters, row.default, row.families)
            yield name, MappingProxyType(found)

    def sources(self, names: str | list[str], key: str) -> str:
        """The text of the documents that a row cites."""
        keys = [names] if isinstance(names, str) else names
        if not keys:
            raise SpecError(self.where, f"{quote(key)} names no source")
        for name in keys:
            self.known(name, self.documents, "source", key)
        self.cited.update(keys)
        return "; ".join(str(self.documents[name]) for name in keys)

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
