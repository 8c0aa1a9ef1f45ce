"""Hardware spec files: sections of quantities with units and citations, read into a `Hardware`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from roofline.core.errors import RooflineError, SpecError, UnknownNameError, quote, suggest
from roofline.core.units import Dimension, Quantity, parse_quantity
from roofline.specs.hardware import ARITHMETIC, Hardware
from roofline.specs.host import Host, load_host
from roofline.specs.library import as_mapping, check_keys, check_name
from roofline.specs.records import record

SECTIONS: Mapping[str, Mapping[str, Dimension]] = {
    "memory": {"capacity": Dimension.BYTES, "bandwidth": Dimension.BANDWIDTH, "visible": Dimension.BYTES},
    "compute": {
        **dict.fromkeys(("units", "exponentials", "half_accumulation"), Dimension.COUNT),
        "clock": Dimension.FREQUENCY,
    },
    "tensor": dict.fromkeys(ARITHMETIC, Dimension.RATE),
    "vector": dict.fromkeys(ARITHMETIC, Dimension.RATE),
    "cache": {"l2": Dimension.BYTES},
    "interconnects": {
        "bandwidth": Dimension.BANDWIDTH,
        "latency": Dimension.TIME,
        **dict.fromkeys(("devices", "tray"), Dimension.COUNT),
    },
    "power": {"tdp": Dimension.POWER, "static": Dimension.POWER},
    "energy": {"static": Dimension.POWER, "memory": Dimension.ENERGY_PER_BYTE, "link": Dimension.ENERGY_PER_BYTE},
    "energy.compute": dict.fromkeys(ARITHMETIC, Dimension.ENERGY_PER_FLOP),
    "price": {"rent": Dimension.MONEY_RATE, "buy": Dimension.MONEY},
}
"""The dimension of each quantity, by section of a hardware file."""

CITED_TEXTS = ("reduction",)
"""Keys whose values are text with a source."""

_CITED = re.compile(r"\s*(?P<text>[^\[\]]{1,80}?)\s*\[\s*(?P<source>[^\];]+?)\s*(?:;\s*(?P<remark>[^\]]*?)\s*)?\]\s*")

PLAIN_KEYS: Mapping[str, tuple[str, ...]] = {
    "": (
        *("name", "title", "vendor", "family", "kind", "released", "memory", "compute", "cache", "interconnects"),
        *("power", "energy", "price", "host", "sources", "also"),
    ),
    "memory": ("kind",),
    "compute": ("tensor", "vector"),
    "interconnects": ("kind", "scope", "topology", "reduction"),
    "energy": ("compute",),
    "price": ("date",),
}
"""The other keys of each section."""


def parse_hardware(content: Mapping[str, Any], where: str) -> Hardware:
    """The hardware that a spec file's mapping describes; `where` names the file in errors."""
    reader = _Reader(where, content.get("sources"))
    top = reader.section(content, "")
    memory = reader.section(top.get("memory"), "memory", required=("capacity", "bandwidth"))
    compute = reader.section(top.get("compute"), "compute")
    peaks = {unit: reader.section(compute.get(unit), unit, place=f"compute.{unit}") for unit in ("tensor", "vector")}
    if not peaks["tensor"] and not peaks["vector"]:
        raise SpecError(where, "'compute' has no peak: give at least one, such as tensor.fp16: 312 TFLOP/s")
    cache, power = reader.section(top.get("cache"), "cache"), reader.section(top.get("power"), "power")
    links = [] if top.get("interconnects") is None else top["interconnects"]
    if not isinstance(links, list):
        raise SpecError(where, "'interconnects' must be a list")
    energy: dict[str, Any] = {}
    if top.get("energy") is not None:
        energy = reader.section(top["energy"], "energy")
        energy["compute"] = reader.section(energy.get("compute"), "energy.compute")
    price = reader.section(top.get("price"), "price")
    fields: dict[str, Any] = {
        **{key: top[key] for key in ("name", "vendor", "family", "kind") if key in top},
        "title": top.get("title", top.get("name", "")),
        **{f"memory_{key}": memory.get(key) for key in ("capacity", "bandwidth", "visible", "kind")},
        **peaks,
        **{key: compute.get(key) for key in ("units", "clock", "exponentials", "half_accumulation")},
        "l2": cache.get("l2"),
        "interconnects": [
            reader.section({} if entry is None else entry, "interconnects", place=f"interconnects.{index}")
            for index, entry in enumerate(links)
        ],
        **{key: power.get(key) for key in ("tdp", "static")},
        "energy": energy or None,
        "price": price or None,
        "released": top.get("released"),
        "sources": reader.used,
    }
    if not isinstance(memory.get("kind"), (str, type(None))):
        raise SpecError(where, f"'memory.kind' must be text, got {quote(memory['kind'])}")
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
    try:
        return load_host(name)
    except UnknownNameError as error:
        raise SpecError(where, f"'host': {error}") from None


class _Reader:
    """Reads the sections of one file: rejects unknown keys, parses quantities, resolves their sources."""

    def __init__(self, where: str, documents: object) -> None:
        if documents is not None and not (
            isinstance(documents, dict) and all(isinstance(text, str) for text in documents.values())
        ):
            raise SpecError(where, "'sources' must map short keys to titles of documents")
        self.where = where
        self.documents: Mapping[str, str] = documents or {}
        self.used: dict[str, str] = {}

    def section(
        self, content: object, name: str, required: tuple[str, ...] = (), place: str | None = None
    ) -> dict[str, Any]:
        """The content of section `name`, with quantities in base units; `place` is its key path in the file."""
        source_place = name if name in ("tensor", "vector") else place or name
        place = place or name
        if content is None and not required:
            return {}
        if content is None:
            raise SpecError(self.where, f"the key {quote(place)} is missing")
        content = as_mapping(content, self.where, place)
        dimensions = SECTIONS.get(name, {})
        check_keys(content, (*dimensions, *PLAIN_KEYS.get(name, ())), self.where, place)
        for key in required:
            if content.get(key) is None:
                raise SpecError(self.where, f"the key {quote(f'{place}.{key}')} is missing")
        read = dict(content)
        for key, value in content.items():
            if key in dimensions:
                read[key] = self._quantity(value, f"{place}.{key}", dimensions[key], f"{source_place}.{key}")
            elif key in CITED_TEXTS:
                read[key] = self._cited(value, f"{place}.{key}")
        return read

    def _cited(self, text: object, key: str) -> str:
        """A text with its citation: `NVLink SHARP [nvswitch]`."""
        match = _CITED.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise SpecError(self.where, f"{quote(key)} must be text with its source in brackets, got {quote(text)}")
        self._cite(key, key, match["source"], match["remark"])
        return match["text"]

    def _cite(self, key: str, cited_as: str, source: str, remark: str | None) -> None:
        if source not in self.documents:
            hint = suggest(source, self.documents)
            raise SpecError(self.where, f"{quote(key)} cites the unknown source {quote(source)}{hint}")
        self.used[cited_as] = self.documents[source] + (f" ({remark})" if remark else "")

    def _quantity(self, text: object, key: str, dimension: Dimension, cited_as: str) -> float:
        try:
            quantity: Quantity = parse_quantity(text, dimension)
            if dimension is Dimension.COUNT and not quantity.value.is_integer():
                raise RooflineError(f"{quote(text)} is not a whole number")
        except RooflineError as error:
            raise SpecError(self.where, f"{quote(key)}: {error}") from None
        if quantity.source is not None:
            self._cite(key, cited_as, quantity.source, quantity.remark)
        return int(quantity.value) if dimension is Dimension.COUNT else quantity.value
