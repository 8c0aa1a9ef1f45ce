"""Networks: how devices of different nodes reach each other.

A network is a file of `hwspecs/networks/`, one for each kind, or a person's own. Its `bandwidth` is that of a device in
one direction, so that ports which several devices share count in parts. A message that crosses it takes a `hop` more
than within a node: the way through two adapters and the switches, with the proxies and flags of the library that sends.
Large messages achieve `efficiency` of the bandwidth. Devices of equal number in their nodes are a rail, with switches
of its own: between rails the bandwidth is that of a rail over `spine`, and a message takes `spine_hop` more. NCCL and
DeepEP's normal kernels cross to the right rail within the node and stay in it (PXN); DeepEP's low-latency kernels send
to any device. `spread` is p10 and p90 of an exchange's time over the expected one: congestion, other libraries, and
ranks that wait for the last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

from msgspec import Meta, field
from msgspec.structs import replace

from roofline.core.checked import Checked, NotNegative, Positive, Share
from roofline.core.documents import bundled_path, read_mapping
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import Dimension
from roofline.specs.cited import PLAIN, Reader
from roofline.specs.library import File, is_own_path, named_file, written
from roofline.specs.records import record

UNKNOWN = "unknown"
"""The file of networks whose kind is not known."""

ALIASES: Mapping[str, str] = {"ib": "infiniband", "eth": "ethernet", "tcp": "ethernet"}
"""Short names of the kinds."""

_DOMAIN = re.compile(r"nvl(\d{1,4})", re.ASCII)
_SPEED = re.compile(r"(?:(\d{1,3})x)?(\d{1,5}(?:\.\d{1,2})?)g(?:-([a-z]{2,20}))?", re.ASCII)


class Network(Checked, frozen=True):
    """A network: bandwidth of a device in one direction (B/s), seconds of a hop; see the module.

    `kinds` are the first words of links in hardware specs that are of this kind.
    """

    name: Annotated[str, Meta(min_length=1)]
    bandwidth: Positive
    hop: NotNegative
    efficiency: Share = 1.0
    spine: Annotated[float, Meta(ge=1, le=100)] = 1.0
    spine_hop: NotNegative = 0.0
    spread: tuple[Annotated[float, Meta(ge=0.01, le=1)], Annotated[float, Meta(ge=1, le=100)]] = (1.0, 1.0)
    title: str = ""
    kinds: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.name, self.bandwidth, self.hop, self.efficiency, self.spine, self.spine_hop, *self.spread))


class Fabric(Checked, frozen=True):
    """A network as a person names it (None: that of the hardware), with its speed, and the devices of a node.

    `speed` is that of each of a node's `ports` in B/s, without `ports` that of a device; `domain` are the devices that
    NVLink, or a link like it, joins: one of servers with a device each.
    """

    network: Network | None
    domain: Annotated[int, Meta(ge=1, le=4096)] | None = None
    ports: Annotated[int, Meta(ge=1, le=999)] | None = None
    speed: Positive | None = None


def list_networks() -> list[str]:
    """The names of the bundled networks."""
    return sorted(path.stem for path in (bundled_path("hwspecs") / "networks").glob("*.yaml"))


def load_fabric(text: str | os.PathLike[str]) -> Fabric:
    """The network of a text: a kind (`roce`, `efa`), a speed a device (`400G`), ports a node (`8x400G-ib`), or a file.

    `nvl72` before it, with a comma, is the number of devices that NVLink joins; alone it leaves the network as it is.
    `spine=2` after it is how much less bandwidth there is between rails.
    Raises UnknownNameError, RooflineError or SpecError.
    """
    text = written(text, "network").strip()
    domain, comma, rest = text.partition(",")
    joined = _DOMAIN.fullmatch(domain.lower())
    own = int(joined[1]) if joined else None
    if joined and not comma:
        return Fabric(None, own)
    if joined:
        text = rest
    if is_own_path(text):
        return Fabric(_named(text), own)
    lower, _, spine = text.lower().partition(",spine=")
    if lower.startswith("spine="):
        raise RooflineError("a spine is that of a network: name it, as in nvl8,400G-ib,spine=2", options=["network"])
    match = _SPEED.fullmatch(lower)
    if match is None:
        return Fabric(_with_spine(_named(lower), spine), own)
    ports, speed, kind = match.groups()
    if float(speed) == 0 or ports == "0":
        raise RooflineError(f"the network {quote(text)} has no bandwidth")
    network = _named(kind) if kind else _named(UNKNOWN)
    return Fabric(_with_spine(network, spine), own, int(ports) if ports else None, float(speed) * 1e9 / 8)


def _with_spine(network: Network, text: str) -> Network:
    """The network with less bandwidth between rails; raises RooflineError."""
    if not text:
        return network
    if not re.fullmatch(r"\d{1,2}(\.\d{1,3})?", text, re.ASCII) or float(text) < 1:
        raise RooflineError(f"the spine of a network is a number from 1 to 99, got {quote(text)}", options=["network"])
    return replace(network, spine=float(text))


@lru_cache(maxsize=64)
def network_of_kind(kind: str) -> Network:
    """The bundled network whose links specs call `kind`; the unknown one for others."""
    networks = (_named(name) for name in list_networks())
    found = (one for one in networks if any(kind.startswith(word) for word in one.kinds))
    return next(found, None) or _named(UNKNOWN)


def _named(name: str) -> Network:
    name = ALIASES.get(name, name)
    file = named_file(name, "networks")
    if file is None:
        shown = [*list_networks(), "400G", "8x400G-ib", "nvl72"]
        raise UnknownNameError("network", name, shown)
    return _load(file)


@lru_cache(maxsize=64)
def _load(file: File) -> Network:
    return parse_network(read_mapping(file.path), str(file.path))


_SHAPE: Mapping[str, Any] = {
    **dict.fromkeys(Network.__struct_fields__, PLAIN),
    "bandwidth": Dimension.BANDWIDTH,
    "hop": Dimension.TIME,
    "spine_hop": Dimension.TIME,
}


def parse_network(content: Mapping[str, Any], where: str) -> Network:
    """The network that a file's mapping describes; `where` names the file in errors. Raises SpecError."""
    return record(Network, Reader(where, content.get("sources")).read(content, _SHAPE), where)
