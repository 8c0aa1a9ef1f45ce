"""Which kernel variant an engine's release runs: the rows of `variants.yaml`, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct, convert, field

from roofline.core.documents import bundled
from roofline.specs.hardware import Hardware
from roofline.specs.version import between

FILE = "timing/variants.yaml"


class Cost(Struct, frozen=True, forbid_unknown_fields=True):
    """Times of unmeasured kernels over those of tuned ones on the same device: p10, p50 and p90, with their source."""

    times: tuple[float, float, float]
    source: str


class Dated(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row for an engine, from a version on or before one; "" without. The newest version has no name."""

    source: str
    engine: str = ""
    since: str = ""
    before: str = ""

    def includes(self, engine: str, version: str) -> bool:
        """Whether it is for a version of an engine."""
        if self.before or self.since:
            dated = between(version, self.since, self.before) if version else not self.before
            return engine == self.engine and dated
        return self.engine in ("", engine)


class Variant(Dated, frozen=True, kw_only=True):
    """A row: what it is for, and the kernel that runs there. See the file for the meaning of each field."""

    op: str
    formats: tuple[str, ...] = ()
    family: str = ""
    memory: str = ""
    ranks: bool = False
    kernel: str = ""
    beside: str = ""
    instead: str = ""
    columns: dict[str, float] = field(default_factory=dict)

    def runs(self, format: str, engine: str, version: str, hardware: Hardware) -> bool:
        """Whether an engine's version runs it on such hardware for operands of a format."""
        of_hardware = self.family in ("", hardware.family) and self.memory in ("", hardware.memory_class)
        return of_hardware and self.includes(engine, version) and (not self.formats or format in self.formats)

    def named(self, format: str) -> str:
        """The format of its constants."""
        return self.kernel.replace("{}", format)


@lru_cache(maxsize=1)
def variants() -> tuple[Variant, ...]:
    """The rows of the file, in their order."""
    return convert(bundled(FILE)["variants"], tuple[Variant, ...])


@lru_cache(maxsize=1)
def costs() -> Mapping[str, Cost]:
    """What kernels cost that run in place of tuned ones and were never measured, by their kind (`instead`)."""
    return convert(bundled(FILE)["costs"], dict[str, Cost])


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
