"""Tiers of the KV cache below the device's memory: size, bandwidth, latency, and how they are filled and read.

A tier is written as NAME=SIZE with further settings behind colons; before the first may stand the connector that moves
them, by default the engine's own (`connectors.yaml`), which has further settings:

    dram=1TB                            the hosts' memory, over the devices' links to it
    ssd=8TB:bandwidth=50GB/s            a bandwidth of the whole replica
    remote=inf:latency=2ms:write=back:overlap=0.9:price=0.5USD/h
    lmcache:dram=64GB,redis=1TB:full=refuse
    hicache:dram=2x:write=write_through_selective,mooncake=4TB
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import ValidationError, convert
from msgspec.structs import replace

from roofline.bound.memory import kv_bytes_per_token
from roofline.core.checked import Checked, Fraction, NotNegative, Positive
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.scenario.scenario import Scenario
from roofline.serving.sessions.connectors import Connector, connector_of

LINKS = {"dram": "host", "remote": "network"}
"""The link of a device that a tier of this name is behind, where no bandwidth is given."""

EFFICIENCY = 0.8
"""Of a link's bandwidth that copies of large blocks reach: 51.2 of the 64 GB/s of PCIe 5.0 x16, an H100's DMA of 16 MB
(vllm-project.github.io, 2026-01-08, KV offloading connector)."""

COPY = 3.1e-6
"""Seconds that a copy by DMA takes beside its bytes: copies of 4 KB, 32 KB, 512 KB and 2 MB reach 1.1, 7.5, 39.5 and
47.7 GB/s (the same post), which 51.2 GB/s and this give as 1.3, 8.8, 39.3 and 47.6."""

QUANTITIES = {
    "bandwidth": Dimension.BANDWIDTH,
    "most": Dimension.BANDWIDTH,
    "latency": Dimension.TIME,
    "price": Dimension.MONEY_RATE,
}
"""Settings that are quantities."""


class Tier(Checked, frozen=True):
    """A tier: `bytes` in all (None: no limit), `bandwidth` in B/s to all devices of the replica together.

    `latency`: seconds of a read. `write`: `through`, a copy of all that is computed, `selective`, of what is used
    again, or `back`, what the tier above evicts. `overlap`: the fraction of a request's own prefill that hides its
    read, 1 where layers are loaded while others compute (HiCache), 0 where the request waits for all; where a tier
    `stalls`, all requests wait, also for copies to the hosts. `price`: USD an hour that it adds to the rent of a
    replica. `block`: a hit ends at a multiple of so many tokens (0: the engine's). Without `outputs` it takes prompts
    alone. `full`: whether it evicts, or refuses what is written. What all ranks hold, latents, it has `stored` once or
    for each rank, and the ranks `read` likewise. One that is `shared` is of all replicas of a fleet. `ratio`: a size in
    pools, until that of the pool is known.
    """

    name: str
    bytes: Positive | None
    bandwidth: Positive
    latency: NotNegative = 0.0
    write: Literal["through", "selective", "back"] = "through"
    overlap: Fraction = 0.0
    price: NotNegative = 0.0
    block: int = 0
    outputs: bool = True
    stalls: bool = False
    full: Literal["evict", "refuse"] = "evict"
    stored: Literal["once", "ranks"] = "once"
    read: Literal["once", "ranks"] = "once"
    shared: bool = False
    ratio: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.write == "back" and self.full == "refuse":
            raise RooflineError(f"the tier {quote(self.name)} writes back, and so evicts: omit full=refuse")

    def sized(self, pool: float) -> Tier:
        """The tier with its bytes, beside a pool of so many."""
        return self if self.ratio is None else replace(self, bytes=self.ratio * pool, ratio=None)


WRITES = ("through", "selective", "back")
SETTINGS = Tier.__struct_fields__[2:-1]


def parse_tiers(text: str, scenario: Scenario) -> tuple[Tier, ...]:
    """The tiers of a text, joined by commas, nearest first; raises RooflineError.

    Without a bandwidth `dram` and `remote` have that of the devices' links to their host and to the network.
    """
    connector, parts = split_tiers(text, scenario)
    found = tuple(_tier(part, scenario, connector) for part in parts)
    if len({tier.name for tier in found}) < len(found):
        raise RooflineError(f"tiers have names of their own, got {quote(text)}", options=["tiers"])
    return found


def split_tiers(text: str, scenario: Scenario) -> tuple[Connector | None, list[str]]:
    """The connector of a text, and its tiers; raises RooflineError for a connector that the engine has not."""
    name, colon, rest = text.partition(":")
    named = bool(colon) and "=" not in name
    connector = connector_of(name.strip() if named else "", scenario.profile)
    return connector, [part.strip() for part in (rest if named else text).split(",") if part.strip()]


def settings_of(part: str) -> tuple[str, str, dict[str, str]]:
    """The name, the size and the settings of a tier's text."""
    head, *settings = part.split(":")
    name, _, size = head.partition("=")
    return name, size, dict(setting.partition("=")[::2] for setting in settings)


def _tier(text: str, scenario: Scenario, connector: Connector | None) -> Tier:
    name, size, given = settings_of(text)
    for key in given:
        if key not in SETTINGS:
            raise UnknownNameError("setting of a tier", key, SETTINGS)
    if not name or not size:
        raise RooflineError(f"a tier is NAME=SIZE such as dram=1TB, got {quote(text)}")
    known = {} if connector is None else connector.of(name, scenario.profile.version)
    merged: dict[str, Any] = {"link": LINKS.get(name, ""), **known, **given}
    for key, dimension in QUANTITIES.items():
        if key in merged:
            merged[key] = parse_quantity(str(merged[key]), dimension).value
    times = size.removesuffix("x") if size.endswith("x") else None
    bytes_ = None if times or size == "inf" else parse_quantity(size, Dimension.BYTES).value
    write = str(merged.get("write", "through")).removeprefix("write_").removeprefix("through_")
    if write not in WRITES:
        raise UnknownNameError("way of writing to a tier", write, WRITES)
    fields = {key: value for key, value in merged.items() if key in Tier.__struct_fields__}
    fields = {"bandwidth": 1.0, **fields, "name": name, "bytes": bytes_, "write": write, "ratio": times}
    try:
        found = convert(fields, Tier, strict=False)
    except ValidationError as error:
        problem, _, key = str(error).partition(" - at `$.")
        raise RooflineError(f"{key.rstrip('`')} of the tier {quote(name)}: {problem[0].lower()}{problem[1:]}") from None
    return found if "bandwidth" in merged else replace(found, bandwidth=_bandwidth(found, scenario, merged))


def _bandwidth(tier: Tier, scenario: Scenario, settings: Mapping[str, Any]) -> float:
    """Of the links of all devices to a tier."""
    links = [link for link in scenario.hardware.interconnects if link.scope == settings["link"]]
    if not links:
        name = tier.name
        raise RooflineError(f"the bandwidth of tier {quote(name)} is missing: write {name}=SIZE:bandwidth=50GB/s")
    each = float(settings.get("efficiency", EFFICIENCY)) * links[0].bandwidth
    if copied := settings.get("copies"):
        model, spread = scenario.model, scenario.settings.parallel
        tokens = tier.block or scenario.profile.memory.on(scenario.hardware).block
        size = tokens * kv_bytes_per_token(model, scenario.run_precision, spread)
        each /= 1 + COPY * each / max(size / (2 * model.layers if copied == "layers" else 1), 1.0)
    return min(each, float(settings.get("most", math.inf))) * scenario.settings.parallel.devices
