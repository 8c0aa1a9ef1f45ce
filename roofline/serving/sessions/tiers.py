"""Tiers of the KV cache below the device's memory: size, bandwidth, latency, and how they are filled and read.

A tier is written as NAME=SIZE with further settings behind colons:

    dram=1TB                            the hosts' memory, over the devices' links to it
    ssd=8TB:bandwidth=50GB/s            a bandwidth of the whole replica
    remote=inf:latency=2ms:write=back:overlap=0.9:price=0.5USD/h
"""

from __future__ import annotations

import math
from typing import Literal

from roofline.core.checked import Checked, Fraction, NotNegative, Positive
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.scenario.scenario import Scenario

LINKS = {"dram": "host", "remote": "network"}
"""The link of a device that a tier of this name is behind, where no bandwidth is given."""

WRITES = ("through", "back")
SETTINGS = ("bandwidth", "latency", "write", "overlap", "price")

EFFICIENCY = 0.8
"""Of a link's bandwidth that copies of large blocks reach: 51.2 of the 64 GB/s of PCIe 5.0 x16, an H100's DMA of 16 MB
(vllm-project.github.io, 2026-01-08, KV offloading connector)."""


class Tier(Checked, frozen=True):
    """A tier: `bytes` in all (None: no limit), `bandwidth` in B/s to all devices of the replica together.

    `latency`: seconds of a read. `write`: `through`, a copy of all that is computed, as vLLM's offloading connector,
    LMCache, Mooncake's store and HiCache have by default, or `back`, what the tier above evicts. `overlap`: the
    fraction of a request's own prefill that hides its read, 1 where layers are loaded while others compute (HiCache),
    0 where the request waits for all. `price`: USD an hour that it adds to the rent of a replica.
    """

    name: str
    bytes: Positive | None
    bandwidth: Positive
    latency: NotNegative = 0.0
    write: Literal["through", "back"] = "through"
    overlap: Fraction = 0.0
    price: NotNegative = 0.0


def parse_tiers(text: str, scenario: Scenario) -> tuple[Tier, ...]:
    """The tiers of a text, joined by commas, nearest first; raises RooflineError.

    Without a bandwidth `dram` and `remote` have that of the devices' links to their host and to the network.
    """
    found = tuple(_tier(part.strip(), scenario) for part in text.split(",") if part.strip())
    if len({tier.name for tier in found}) < len(found):
        raise RooflineError(f"tiers have names of their own, got {quote(text)}", options=["tiers"])
    return found


def _tier(text: str, scenario: Scenario) -> Tier:
    head, *settings = text.split(":")
    name, _, size = head.partition("=")
    given = dict(setting.partition("=")[::2] for setting in settings)
    for key in given:
        if key not in SETTINGS:
            raise UnknownNameError("setting of a tier", key, SETTINGS)
    if not name or not size:
        raise RooflineError(f"a tier is NAME=SIZE such as dram=1TB, got {quote(text)}")
    bytes_ = None if size == "inf" else parse_quantity(size, Dimension.BYTES).value
    bandwidth = parse_quantity(given["bandwidth"], Dimension.BANDWIDTH).value if "bandwidth" in given else None
    if bandwidth is None:
        bandwidth = _bandwidth(name, scenario)
    latency = parse_quantity(given["latency"], Dimension.TIME).value if "latency" in given else 0.0
    write, overlap = given.get("write", "through"), given.get("overlap", "0")
    if write not in WRITES:
        raise UnknownNameError("way of writing to a tier", write, WRITES)
    try:
        part = float(overlap)
    except ValueError:
        part = math.nan
    if not 0 <= part <= 1:
        raise RooflineError(f"the overlap of a tier is a fraction from 0 to 1, got {quote(overlap)}")
    price = parse_quantity(given["price"], Dimension.MONEY_RATE).value if "price" in given else 0.0
    return Tier(name, bytes_, bandwidth, latency, "back" if write == "back" else "through", part, price)


def _bandwidth(name: str, scenario: Scenario) -> float:
    """Of the links of all devices to a tier."""
    scope, devices = LINKS.get(name), scenario.settings.parallel.devices
    links = [link for link in scenario.hardware.interconnects if link.scope == scope]
    if not links:
        raise RooflineError(f"the bandwidth of tier {quote(name)} is missing: write {name}=SIZE:bandwidth=50GB/s")
    return EFFICIENCY * links[0].bandwidth * devices
