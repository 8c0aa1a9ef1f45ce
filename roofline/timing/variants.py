"""Which kernel variant an engine's release runs: the rows of `variants.yaml`, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from msgspec import Struct, field

from roofline.core.documents import read_mapping
from roofline.specs.hardware import Hardware
from roofline.specs.records import record
from roofline.specs.version import Releases

FILE = Path(str(files("roofline.timing"))) / "variants.yaml"


class Cost(Struct, frozen=True):
    """Times of unmeasured kernels over those of tuned ones on the same device: p10, p50 and p90, with their source."""

    times: tuple[float, float, float]
    source: str


class Variant(Struct, frozen=True):
    """A row: what it is for, and the kernel that runs there. See the file for the meaning of each field."""

    op: str
    source: str
    formats: tuple[str, ...] = ()
    engine: str = ""
    before: str = ""
    since: str = ""
    family: str = ""
    memory: str = ""
    ranks: bool = False
    kernel: str = ""
    beside: str = ""
    instead: str = ""
    columns: dict[str, float] = field(default_factory=dict)

    def runs(self, format: str, engine: str, version: str, hardware: Hardware) -> bool:
        """Whether an engine's version runs it on such hardware for operands of a format."""
        dated = self.before or self.since
        of_engine = self.releases.include(engine, version) if dated else self.engine in ("", engine)
        of_hardware = self.family in ("", hardware.family) and self.memory in ("", hardware.memory_class)
        return of_engine and of_hardware and (not self.formats or format in self.formats)

    @property
    def releases(self) -> Releases:
        """The versions of its engine that run it."""
        return Releases(self.engine, self.before, self.since)

    def named(self, format: str) -> str:
        """The format of its constants."""
        return self.kernel.replace("{}", format)


@lru_cache(maxsize=1)
def variants() -> tuple[Variant, ...]:
    """The rows of the file, in their order."""
    return tuple(record(Variant, row, str(FILE)) for row in read_mapping(FILE)["variants"])


@lru_cache(maxsize=1)
def costs() -> Mapping[str, Cost]:
    """What kernels cost that run in place of tuned ones and were never measured, by their kind (`instead`)."""
    return {name: record(Cost, row, str(FILE)) for name, row in read_mapping(FILE)["costs"].items()}


@lru_cache(maxsize=4096)  # every kernel of a pass asks, and most have none
def variants_of(op: str, format: str, engine: str, version: str, hardware: Hardware) -> tuple[Variant, ...]:
    """The variants of a kind of kernel that an engine's version runs on such hardware, in the file's order."""
    return tuple(one for one in variants() if one.op == op and one.runs(format, engine, version, hardware))


def columns_of(op: str, format: str, engine: str, version: str, hardware: Hardware) -> Mapping[str, float]:
    """The columns that variants with no constants of their own give to the kernel model."""
    found: dict[str, float] = {}
    for one in variants_of(op, format, engine, version, hardware):
        found |= {} if one.kernel else one.columns
    return found
