"""Hosts: how the PCIe devices of a server reach each other, and how much of their links collectives achieve there.

A host is a file of `hwspecs/hosts/`. Its fractions are those of a ring all-reduce of a large message, as nccl-tests
reports them (bus bandwidth), over the bandwidth of a device's PCIe link in one direction. They depend on the way
between the devices: directly through a PCIe switch or a CPU (peer-to-peer), or by copies in CPU memory, which the
devices share, and between sockets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from roofline.core.documents import bundled_path, read_mapping
from roofline.core.errors import UnknownNameError
from roofline.specs.library import File, named_file, written
from roofline.specs.records import record

RANKS = (2, 4, 8)
"""Numbers of devices that a host has fractions for."""

DEFAULT_HOST = "pcie-server"
"""The host of devices for which none is named."""

Fraction = Annotated[float, Meta(ge=0.01, le=1)]


class _Fractions(Struct, frozen=True):
    """The key `all_reduce` of a file: fractions of the link by number of devices."""

    of_2: Fraction = field(name="2")
    of_4: Fraction = field(name="4")
    of_8: Fraction = field(name="8")


class Host(Struct, frozen=True):
    """A host: `all_reduce` has the achieved fraction of the PCIe link by number of devices (RANKS).

    `spread`: p10 and p90 of the time of a large message on machines of this kind, over that of these fractions.
    """

    name: Annotated[str, Meta(min_length=1)]
    title: str = ""
    all_reduce: Mapping[int, Fraction] = {}
    spread: tuple[Annotated[float, Meta(ge=0.01, le=1)], Annotated[float, Meta(ge=1, le=100)]] = (1.0, 1.0)
    sources: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, *self.all_reduce.values(), *self.spread))


def list_hosts() -> list[str]:
    """The names of the bundled hosts."""
    return sorted(path.stem for path in bundled_path("hwspecs/hosts").glob("*.yaml"))


def load_host(name: str | os.PathLike[str]) -> Host:
    """The host `name`, or that of the YAML file at that path; raises UnknownNameError or SpecError."""
    file = named_file(name := written(name, "host"), "hosts")
    if file is None:
        raise UnknownNameError("host", name, list_hosts())
    return _load(file)


@lru_cache(maxsize=64)
def _load(file: File) -> Host:
    return parse_host(read_mapping(file.path), str(file.path))


def parse_host(content: Mapping[str, Any], where: str) -> Host:
    """The host that a file's mapping describes; `where` names the file in errors."""
    host = record(Host, {**content, "all_reduce": {}}, where)
    fractions = record(_Fractions, content.get("all_reduce"), where, "all_reduce")
    return replace(host, all_reduce={ranks: getattr(fractions, f"of_{ranks}") for ranks in RANKS})
