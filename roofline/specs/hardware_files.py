"""Hardware spec files: sections of quantities with units and citations, read into a `Hardware`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from roofline.core.errors import SpecError, located, quote
from roofline.core.units import Dimension
from roofline.specs.cited import CITED, PLAIN, Reader
from roofline.specs.hardware import ARITHMETIC, Hardware
from roofline.specs.host import Host, load_host
from roofline.specs.library import check_name
from roofline.specs.records import record

SHAPE: Mapping[str, Any] = {
    **dict.fromkeys(("name", "title", "vendor", "family", "kind", "released", "host", "sources", "also"), PLAIN),
    "memory": {
        "capacity": Dimension.BYTES,
        "bandwidth": Dimension.BANDWIDTH,
        "achieved": Dimension.BANDWIDTH,
        "visible": Dimension.BYTES,
        "kind": PLAIN,
    },
    "compute": {
        **dict.fromkeys(("units", "exponentials", "half_accumulation"), Dimension.COUNT),
        "clock": Dimension.FREQUENCY,
        "tensor": dict.fromkeys(ARITHMETIC, Dimension.RATE),
        "vector": dict.fromkeys(ARITHMETIC, Dimension.RATE),
    },
    "cache": {"l2": Dimension.BYTES},
    "power": {"tdp": Dimension.POWER, "static": Dimension.POWER},
    "energy": {
        "static": Dimension.POWER,
        **dict.fromkeys(("memory", "link"), Dimension.ENERGY_PER_BYTE),
        "compute": dict.fromkeys(ARITHMETIC, Dimension.ENERGY_PER_FLOP),
    },
    "price": {"rent": Dimension.MONEY_RATE, "buy": Dimension.MONEY, "date": PLAIN},
    "interconnects": [
        {
            **dict.fromkeys(("kind", "scope", "topology"), PLAIN),
            "reduction": CITED,
            "bandwidth": Dimension.BANDWIDTH,
            "latency": Dimension.TIME,
            "memory": Dimension.BYTES,
            **dict.fromkeys(("devices", "tray"), Dimension.COUNT),
        }
    ],
}
"""The keys of a hardware file: the dimension of a quantity, sections, and a list of sections."""

REQUIRED: Mapping[str, tuple[str, ...]] = {"memory": ("capacity", "bandwidth")}
"""Sections that a file must have, with these keys; of others the record says what is missing."""


def parse_hardware(content: Mapping[str, Any], where: str) -> Hardware:
    """The hardware that a spec file's mapping describes; `where` names the file in errors."""
    reader = Reader(where, content.get("sources"), REQUIRED)
    top = reader.read(content, SHAPE)
    memory, compute = top["memory"], top["compute"]
    if not compute["tensor"] and not compute["vector"]:
        raise SpecError(where, "'compute' has no peak: give at least one, such as tensor.fp16: 312 TFLOP/s")
    if not isinstance(memory.get("kind"), (str, type(None))):
        raise SpecError(where, f"'memory.kind' must be text, got {quote(memory['kind'])}")
    fields: dict[str, Any] = {
        **{key: top[key] for key in ("name", "vendor", "family", "kind") if key in top},
        "title": top.get("title", top.get("name", "")),
        **{f"memory_{key}": memory.get(key) for key in ("capacity", "bandwidth", "visible", "kind")},
        "achieved": memory["achieved"] / memory["bandwidth"] if "achieved" in memory else None,
        **compute,
        "l2": top["cache"].get("l2"),
        "interconnects": top["interconnects"],
        **top["power"],
        "energy": None if content.get("energy") is None else top["energy"],
        "price": top["price"] or None,
        "released": top.get("released"),
        "sources": reader.used,
    }
    hardware = replace(record(Hardware, fields, where), host=_host(top.get("host"), where))
    if len(hardware.name) > 80 or not hardware.name.strip() or not hardware.name.isprintable():
        raise SpecError(where, "'name' must be 1 to 80 printable characters")
    for key in ("name", "family"):
        check_name(getattr(hardware, key), where, key)
    return hardware


def _host(name: object, where: str) -> Host | None:
    if name is None:
        return None
    if not isinstance(name, str):
        raise SpecError(where, f"'host' must be the name of a host, got {quote(name)}")
    with located(where, "host"):
        return load_host(name)
