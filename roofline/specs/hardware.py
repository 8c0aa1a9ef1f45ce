"""Hardware specs: peaks, memory, links, energy and price of an accelerator, in SI base units."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from roofline.core.checked import Checked, Count, NotNegative, Positive, Share
from roofline.core.documents import bundled_path, read_mapping
from roofline.core.errors import RooflineError, UnknownNameError, UnsupportedError, quote, suggest
from roofline.core.units import GIB, si
from roofline.specs.host import Host
from roofline.specs.library import modified, spec_files, spec_path, written
from roofline.specs.network import Fabric, Network, network_of_kind
from roofline.specs.prices import Price, bundled_price

ARITHMETIC = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8", "int4", "int1")
"""Formats for which a spec may give a peak."""

SERVER_DEVICES = 8
"""Accelerators per server: HGX boards, and PCIe servers such as the ASUS ESC8000."""

Kind = Literal["gpu", "cpu", "soc", "npu"]
KINDS: tuple[str, ...] = get_args(Kind)
"""Hardware kinds."""


class Interconnect(Checked, frozen=True):
    """A link of one device: `bandwidth` per direction (B/s), and `latency` in seconds if documented.

    In a `mesh` the bandwidth is split evenly over the links to all other devices; a `switch` gives all of it to any one
    of them. `reduction` names the unit of the switch that adds what devices send and multicasts the sum (NVLink SHARP).
    `tray`: the devices of one operating system, where the link joins those of several (GB200 NVL72). `memory`: the most
    bytes of a device's part of the host's memory, where the host comes with it.
    """

    kind: str
    scope: Literal["node", "host", "network"]
    bandwidth: Positive
    devices: Count | None = None
    latency: NotNegative | None = None
    topology: Literal["switch", "mesh"] = "switch"
    reduction: str | None = None
    tray: Count | None = None
    memory: Positive | None = None

    def __post_init__(self) -> None:
        """Reject a mesh without a device count or with a switch's reduction, and the host's memory behind no host."""
        Checked.__post_init__(self)
        if self.topology == "mesh" and (self.devices or 0) < 2:
            raise ValueError("a mesh needs the number of 'devices' that it joins, at least 2")
        if self.topology == "mesh" and self.reduction is not None:
            raise ValueError("a mesh has no switch for the 'reduction' to run in")
        if self.memory is not None and self.scope != "host":
            raise ValueError(f"'memory' is that of the host: a link of scope {self.scope} has none")

    def bandwidth_among(self, ranks: int) -> float:
        """The bandwidth of a device to `ranks - 1` other devices (B/s)."""
        if self.topology == "switch" or self.devices is None:
            return self.bandwidth
        return self.bandwidth * min(1.0, max(ranks - 1, 1) / (self.devices - 1))

    def all_reduce_share(self, ranks: int) -> float:
        """Bytes that a device sends in an all-reduce over those of a ring: r / (2 (r - 1)) where the switch reduces.

        A device then sends the message once and receives the sum once, which is the least without compression.
        """
        return 1.0 if self.reduction is None or ranks < 2 else ranks / (2 * (ranks - 1))

    @property
    def bridged(self) -> int | None:
        """The cards that an NVLink or similar bridge joins, fewer than a server has; None if the link joins all."""
        few = self.scope == "node" and self.devices is not None and self.devices < SERVER_DEVICES
        return self.devices if few else None


class Span(Struct, frozen=True):
    """The extent of a device group: `reach` neighbouring devices, within a node or across nodes."""

    reach: int
    across_nodes: bool


NETWORK = Span(2, across_nodes=True)


class EnergyFigures(Checked, frozen=True):
    """Energy coefficients: `static` power in watts when ready to run, and dynamic energy in joules.

    `memory` is per byte moved to or from memory, `compute` per FLOP by arithmetic format, `link` per byte sent or
    streamed over a link; None or absent if undocumented (see `roofline.scenario.energy`).
    """

    static: NotNegative
    memory: NotNegative
    compute: Mapping[str, NotNegative] = field(default_factory=dict)
    link: NotNegative | None = None


MEASURED = "measured by roofline validate measure"
"""How the source of a number begins that was measured on the machine itself."""


class Hardware(Checked, frozen=True):
    """One accelerator. Peaks are dense, in FLOP/s (OP/s for integers), by arithmetic format.

    `tensor` has the peaks of the matrix units (tensor cores), `vector` those of the vector units (CUDA cores);
    unsupported formats are absent. `units` are SMs, CUs or cores, `exponentials` those that each computes a clock where
    that is not the usual 16. `half_accumulation`: how many times as fast the matrix units multiply FP16 and FP8 with
    sums in 16 bits, which few kernels use. `sources` has the source of each number, by dotted key. `host` is the server
    that holds PCIe devices, None if unknown; `network` is the one that is named, None for that of the link's kind.
    `achieved` is the fraction of the published memory bandwidth that a microbenchmark reached, where that is far less.
    `static` is the power at rest; `unlimited` the device without the power limit or the locked clock of its name
    (`roofline.specs.power`), `locked` that clock as a fraction of its own.
    """

    name: str
    title: str
    vendor: str
    family: str
    kind: Kind
    memory_capacity: Positive
    memory_bandwidth: Positive
    tensor: Mapping[str, Positive] = field(default_factory=dict)
    vector: Mapping[str, Positive] = field(default_factory=dict)
    memory_kind: str | None = None
    achieved: Share | None = None
    memory_visible: Positive | None = None
    units: Count | None = None
    clock: Positive | None = None
    exponentials: Count | None = None
    half_accumulation: Count | None = None
    l2: Positive | None = None
    interconnects: tuple[Interconnect, ...] = ()
    tdp: Positive | None = None
    static: Positive | None = None
    energy: EnergyFigures | None = None
    price: Price | None = None
    released: Annotated[int, Meta(ge=1900, le=2100)] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    host: Host | None = None
    network: Network | None = None
    unlimited: Hardware | None = None
    locked: Share | None = None

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        for name in (*self.tensor, *self.vector):
            if name not in ARITHMETIC:
                raise UnknownNameError("format of a peak", name, ARITHMETIC)
        if not self.tensor and not self.vector:
            raise RooflineError(f"{self.name} has no peak: give at least one, in tensor or vector")

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bandwidth, self.memory_capacity))

    @property
    def bandwidth_is_achieved(self) -> bool:
        """Whether the memory bandwidth is what kernels achieved on this machine, and not a datasheet's."""
        return self.sources.get("memory.bandwidth", "").startswith(MEASURED)

    def __repr__(self) -> str:
        memory = f"{si(self.memory_capacity, 'B')} at {si(self.memory_bandwidth, 'B/s')}"
        return f"Hardware({self.name}: {self.title}, {memory})"

    def supports(self, arithmetic: str) -> bool:
        """Whether any unit computes in this format."""
        return arithmetic in self.tensor or arithmetic in self.vector

    def matrix_peak(self, arithmetic: str) -> float:
        """The peak for GEMMs in `arithmetic`: of the matrix units, else of the vector units (FLOP/s)."""
        peak = self.tensor.get(arithmetic) or self.vector.get(arithmetic)
        if peak is None:
            raise UnsupportedError(f"{self.name} has no peak for {arithmetic}{suggest(arithmetic, self.formats)}")
        return peak

    def matrix_roof(self, arithmetic: str, converted: bool = False) -> float:
        """The peak that no kernel exceeds: `matrix_peak`, or that with sums in 16 bits (FLOP/s).

        Kernels that convert their weights to 16 bits (`converted`) may convert BF16 activations to FP16, too.
        """
        if arithmetic == "bf16" and converted and "fp16" in self.tensor:
            arithmetic = "fp16"
        half = arithmetic in ("fp16", "fp8") and arithmetic in self.tensor
        return self.matrix_peak(arithmetic) * ((self.half_accumulation or 1) if half else 1)

    @property
    def vector_peak(self) -> float | None:
        """The vector peak (FLOP/s): fp32, or 16-bit if only that is documented, or None."""
        return next((self.vector[name] for name in ("fp32", "bf16", "fp16") if name in self.vector), None)

    def roofs(self, attained: Iterable[tuple[str | None, float]]) -> list[tuple[str, float]]:
        """The peaks over operators and of the vector units (FLOP/s), the highest first.

        `attained` are the operators' arithmetic, None for none, and the most that they attain (FLOP/s): beyond the peak
        of a format lies that with sums in 16 bits.
        """
        peaks: dict[str, float] = {}
        for name, most in attained:
            if name is not None:
                peaks[name] = self.matrix_peak(name)
                if most > 1.001 * peaks[name]:
                    peaks["16-bit sums"] = max(self.matrix_roof(name), self.matrix_roof(name, converted=True))
        peaks |= {} if self.vector_peak is None else {"vector": self.vector_peak}
        return sorted(peaks.items(), key=lambda item: -item[1])

    @property
    def memory_class(self) -> str:
        """What tells the chips of one family apart: `hbm`, `gddr` or `lpddr`; "" for other kinds of memory."""
        kind = (self.memory_kind or "").lower()
        return next((name for name in ("hbm", "gddr", "lpddr") if kind.startswith(name)), "")

    @property
    def has_tensor_memory(self) -> bool:
        """Whether the matrix units have the instructions of tensor memory (tcgen05): those of Blackwell with HBM.

        GeForce, RTX PRO and GB10 have the `mma` of Ada, and such kernels (CUTLASS, functionality.md: SM100 and SM120).
        """
        return self.family == "blackwell" and self.memory_class == "hbm"

    @property
    def node_devices(self) -> int:
        """Devices per node: those the link joins, or a whole server if the cards also communicate over the host."""
        scopes = {link.scope: link for link in self.interconnects}
        if "host" in scopes and scopes["host"].devices is not None:  # of a laptop
            return scopes["host"].devices
        joined = scopes["node"].devices if "node" in scopes else None
        return SERVER_DEVICES if joined is None or (joined < SERVER_DEVICES and "host" in scopes) else joined

    @property
    def machine_devices(self) -> int:
        """Devices of one operating system: a node's, or of a node that has several a tray's."""
        return next((link.tray for link in self.interconnects if link.scope == "node" and link.tray), self.node_devices)

    def machines(self, devices: int) -> int:
        """The operating systems of `devices` devices."""
        return -(-devices // self.machine_devices)

    def nodes(self, devices: int) -> int:
        """The number of nodes for `devices` devices."""
        return -(-devices // self.node_devices)

    def link(self, span: Span) -> Interconnect:
        """The link between the devices of a span.

        Within a node, devices without a link of their own, and those beyond a bridge, communicate over the host link.
        Raises UnsupportedError if the spec has no such link.
        """
        scopes = ("network",) if span.across_nodes else ("node", "host")
        found = [link for scope in scopes for link in self.interconnects if link.scope == scope]
        if not found:
            each = "1 device" if self.node_devices == 1 else f"{self.node_devices} devices"
            across = f"across nodes, of {each} each (scope: network)"
            where = across if span.across_nodes else "within a node (scope: node or host)"
            name = ": name a network" if span.across_nodes else ""
            options = ["network"] if span.across_nodes else []
            raise UnsupportedError(f"the spec of {self.name} has no interconnect {where}{name}", options=options)
        return next((link for link in found if link.bridged is None or span.reach <= link.bridged), found[0])

    @property
    def crossing(self) -> Network:
        """The network between nodes: the one that is named, or what is known of its link's kind."""
        if self.network is not None:
            return self.network
        return network_of_kind(next((link.kind for link in self.interconnects if link.scope == "network"), ""))

    def over_host(self, reach: int) -> bool:
        """Whether `reach` neighbouring devices of a node communicate over PCIe links of their host."""
        scopes = {link.scope for link in self.interconnects}
        if scopes.isdisjoint(("node", "host")):
            return False
        link = self.link(Span(reach, across_nodes=False))
        return link.scope == "host" and link.kind.startswith("PCIe")

    @property
    def bridge(self) -> int | None:
        """The cards that a bridge joins; None without a bridge."""
        return next((link.bridged for link in self.interconnects if link.bridged is not None), None)

    @property
    def host_bandwidth(self) -> float:
        """Bandwidth between CPU memory and device (B/s), per direction.

        Raises UnsupportedError if unknown, and where the device computes in the memory of the CPU.
        """
        if self.kind in ("cpu", "soc"):
            raise UnsupportedError(
                f"{self.name} shares the memory of its CPU: nothing is offloaded from one to the other"
            )
        for link in self.interconnects:
            if link.scope == "host":
                return link.bandwidth
        raise UnsupportedError(f"the spec of {self.name} has no interconnect to the host (scope: host)")

    @property
    def host_memory(self) -> float:
        """A device's part of the memory of the host that it comes with (bytes); infinite where it is another's."""
        return next((link.memory for link in self.interconnects if link.scope == "host" and link.memory), math.inf)

    @property
    def formats(self) -> tuple[str, ...]:
        """The supported arithmetic formats, widest first."""
        return tuple(name for name in ARITHMETIC if self.supports(name))


@lru_cache(maxsize=256)
def hosted(hardware: Hardware, host: Host) -> Hardware:
    """The hardware in a host."""
    return replace(hardware, host=host)


@lru_cache(maxsize=256)
def networked(hardware: Hardware, fabric: Fabric) -> Hardware:
    """The hardware with nodes and on a network as a person names them; cards are joined by their host.

    Raises RooflineError for the devices of a node that has no link between them.
    """
    links = hardware.interconnects
    if fabric.domain is not None:
        joining = ("host",) if hardware.bridge is not None else ("node", "host")
        if not any(link.scope in joining for link in links):
            raise RooflineError(f"{hardware.name} has no link within a node that would join {fabric.domain} devices")
        links = tuple(replace(link, devices=fabric.domain) if link.scope in joining else link for link in links)
    found, network = replace(hardware, interconnects=links), fabric.network
    if network is None:
        return found
    bandwidth = network.bandwidth if fabric.speed is None else fabric.speed
    if fabric.ports is not None:
        bandwidth *= fabric.ports / found.node_devices
    inside = tuple(link for link in links if link.scope != "network")
    across = Interconnect(network.title or network.name, "network", bandwidth)
    return replace(found, interconnects=(*inside, across), network=replace(network, bandwidth=bandwidth))


def load_hardware(name: str | os.PathLike[str] | Hardware) -> Hardware:
    """The hardware `name`, or that of the YAML file at that path.

    `name` may also be another name of one device (`roofline.specs.hardware_names`). Raises UnknownNameError with the
    nearest names, or SpecError with the file and the key.

    >>> from roofline import load_hardware
    >>> load_hardware("A100 80GB SXM").name
    'a100-sxm-80gb'
    """
    hardware, devices = load_devices(name)
    if devices > 1:
        raise RooflineError(f"{quote(name)} is {devices} devices: name one, {hardware.name}")
    return hardware


def load_devices(name: str | os.PathLike[str] | Hardware) -> tuple[Hardware, int]:
    """The hardware `name`, and the number of devices in it: 8 in 8xH200. Raises like `load_hardware`."""
    if isinstance(name, Hardware):
        return name, 1
    name = written(name, "hardware")
    path = spec_path(name, "hwspecs")
    if path is not None:
        return _load(path, modified(path)), 1
    from roofline.specs.hardware_names import read_hardware
    from roofline.specs.states import STATES

    for pattern, in_state in STATES.items():
        if (said := pattern.fullmatch(name.strip())) is not None:
            whole, devices = load_devices(said["hardware"])
            return in_state(whole, *said.groups()[1:]), devices
    named = read_hardware(name)
    found = _load(named.path, modified(named.path))
    if (size := named.changes.get("memory")) is not None:
        named_size = f"{found.name}-{size}gb"
        found = replace(found, name=named_size, title=f"{found.title}, {size} GB", memory_capacity=1e9 * size)
    if (macos := named.changes.get("macos")) is not None:
        visible = unified_share(found.memory_capacity, macos) * found.memory_capacity / 1e9 * GIB
        title = f"{found.title}, macOS {macos}"
        found = replace(found, name=f"{found.name}-macos{macos}", title=title, memory_visible=visible)
    return found, named.devices


def load_mixed(name: str | os.PathLike[str] | Hardware) -> list[tuple[Hardware, int]]:
    """The hardware of a name, or of several joined by a plus (rtx-4090+2xrtx-3090). Raises like `load_devices`."""
    from roofline.specs.hardware_names import joined_devices

    return [load_devices(part) for part in joined_devices(name)] if isinstance(name, str) else [load_devices(name)]


APPLE_SHARES = ((26, ((128e9, 0.84), (64e9, 0.81), (32e9, 0.78), (0.0, 0.74))), (0, ((36e9, 3 / 4), (0.0, 2 / 3))))
"""Fraction of unified memory that Metal lets a GPU use (recommendedMaxWorkingSetSize), by macOS and from a capacity on.

llama.cpp's logs under macOS 26: 19,069.67 MB of 24 GB, 26,800.60 of 32, 40,200.90 of 48, 55,662.79 of 64 and 115,448.73
of 128 (antirez/ds4, pull request 893: 107.52 GiB of 128). Before, 2/3 below 36 GB and 3/4 from there on.
"""


def unified_share(capacity: float, macos: int = 26) -> float:
    """The fraction of Apple's unified memory, of `capacity` bytes, that a GPU may use under a version of macOS."""
    shares = next(shares for since, shares in APPLE_SHARES if macos >= since)
    return next(share for least, share in shares if capacity >= least)


def hardware_name(name: str, counted: bool = False) -> str:
    """The name of the spec that `name` stands for, also of several devices if `counted`; a path stays.

    Raises like `load_hardware`.
    """
    if spec_path(name, "hwspecs") is not None:
        return name
    return load_devices(name)[0].name if counted else load_hardware(name).name


@lru_cache(maxsize=256)
def _load(path: Path, _modified: int) -> Hardware:
    from roofline.specs.hardware_files import parse_hardware

    found = parse_hardware(read_mapping(path), str(path))
    if path.resolve().parent != bundled_path("hwspecs").resolve() or found.price is not None:
        return found
    price, sources = bundled_price(found.name)
    return replace(found, price=price, sources={**found.sources, **sources})


RECENT = 2020
"""The first year of devices that are not old."""


def list_hardware() -> list[str]:
    """The names of all known hardware."""
    return list(spec_files("hwspecs"))


def searched_hardware() -> list[str]:
    """The hardware that a search over all of it tries: no laptops, and nothing old that has no price."""
    devices = (each for each in map(load_hardware, list_hardware()) if each.node_devices > 1)
    return [each.name for each in devices if each.price is not None or (each.released or RECENT) >= RECENT]
