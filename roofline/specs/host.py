"""Hosts: how the PCIe devices of a server reach each other, and how much of their links collectives achieve there.

A host is a file of `hwspecs/hosts/`. Its fractions are those of a ring all-reduce of a large message, as nccl-tests
reports them (bus bandwidth), over the bandwidth of a device's PCIe link in one direction. They depend on the way
between the devices: directly through a PCIe switch or a CPU (peer-to-peer), or by copies in CPU memory, which the
devices share, and between sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from roofline.core.documents import finite_number, read_mapping, scalar_text
from roofline.core.errors import SpecError, UnknownNameError, quote
from roofline.specs.library import as_mapping, check_keys, find_file, modified

RANKS = (2, 4, 8)
"""Numbers of devices that a host has fractions for."""

DEFAULT_HOST = "pcie-server"
"""The host of devices for which none is named."""

_KEYS = ("name", "title", "all_reduce", "spread", "sources")

MAX_SPREAD = 100.0
"""Largest factor between machines of one kind."""


class Host(Struct, frozen=True):
    """A host: `all_reduce` has the achieved fraction of the PCIe link by number of devices (RANKS).

    `spread`: p10 and p90 of the time of a large message on machines of this kind, over that of these fractions.
    """

    name: str
    title: str = ""
    all_reduce: Mapping[int, float] = field(default_factory=dict)
    spread: tuple[float, float] = (1.0, 1.0)
    sources: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, *self.all_reduce.values(), *self.spread))


def list_hosts() -> list[str]:
    """The names of the bundled hosts."""
    return sorted(Path(str(entry)).stem for entry in (files("roofline") / "hwspecs" / "hosts").iterdir())


def load_host(name: str) -> Host:
    """The host `name`, or that of the YAML file at that path; raises UnknownNameError or SpecError."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path: Path | None = Path(name)
    else:
        path = find_file(f"hosts/{name}.yaml", "hwspecs") if name.replace("-", "").isalnum() else None
    if path is None:
        raise UnknownNameError("host", name, list_hosts())
    return _load(path, modified(path))


@lru_cache(maxsize=64)
def _load(path: Path, _modified: int) -> Host:
    return parse_host(read_mapping(path), str(path))


def parse_host(content: Mapping[str, Any], where: str) -> Host:
    """The host that a file's mapping describes; `where` names the file in errors."""
    check_keys(content, _KEYS, where)
    name, title = content.get("name"), scalar_text(content.get("title", ""))
    if not isinstance(name, str) or not name:
        raise SpecError(where, "the key 'name' is missing")
    given = as_mapping(content.get("all_reduce"), where, "all_reduce")
    check_keys(given, map(str, RANKS), where, "all_reduce")
    fractions = {ranks: finite_number(given.get(str(ranks))) for ranks in RANKS}
    checked = {ranks: value for ranks, value in fractions.items() if value is not None and 0.01 <= value <= 1}
    for ranks in RANKS:
        if ranks not in checked:
            raise SpecError(where, f"'all_reduce.{ranks}' must be a fraction of the link, 0.01 to 1")
    sources = content.get("sources", [])
    if title is None or not isinstance(sources, list) or not all(isinstance(text, str) for text in sources):
        raise SpecError(where, f"{quote('title' if title is None else 'sources')} must be text")
    return Host(name, title, checked, _spread(content.get("spread", [1, 1]), where), tuple(sources))


def _spread(content: object, where: str) -> tuple[float, float]:
    match [finite_number(entry) for entry in content] if isinstance(content, list) else None:
        case [float(low), float(high)] if 1 / MAX_SPREAD <= low <= 1 <= high <= MAX_SPREAD:
            return low, high
    allowed = f"the first of {1 / MAX_SPREAD:g} to 1, the second of 1 to {MAX_SPREAD:g}"
    raise SpecError(where, f"'spread' must be two numbers, {allowed}")
