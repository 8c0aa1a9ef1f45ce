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

PLAIN, CITED = "what the record checks", "text with its source"

SHAPE: Mapping[str, Any] = {
    **dict.fromkeys(("name", "title", "vendor", "family", "kind", "released", "host", "sources", "also"), PLAIN),
    "memory": {
        "capacity": Dimension.BYTES,
        "bandwidth": Dimension.BANDWIDTH,
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
            **dict.fromkeys(("devices", "tray"), Dimension.COUNT),
        }
    ],
}
"""The keys of a hardware file: the dimension of a quantity, sections, and a list of sections."""

REQUIRED: Mapping[str, tuple[str, ...]] = {"memory": ("capacity", "bandwidth")}
"""Sections that a file must have, with these keys; of others the record says what is missing."""

_PEAK = re.compile(r"^compute\.(?=tensor\.|vector\.)")
"""What the key of a peak begins with, and its source is not filed under."""

_CITED = re.compile(r"\s*(?P<text>[^\[\]]{1,80}?)\s*\[\s*(?P<source>[^\];]+?)\s*(?:;\s*(?P<remark>[^\]]*?)\s*)?\]\s*")


def parse_hardware(content: Mapping[str, Any], where: str) -> Hardware:
    """The hardware that a spec file's mapping describes; `where` names the file in errors."""
    reader = _Reader(where, content.get("sources"))
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

    def read(self, content: object, shape: Mapping[str, Any], place: str = "") -> dict[str, Any]:
        """A section of a shape, with quantities in base units, and its own sections; `place` is its key path."""
        inside, needed = f"{place}." if place else "", REQUIRED.get(place, ())
        if content is None and needed:
            raise SpecError(self.where, f"the key {quote(place)} is missing")
        given = as_mapping({} if content is None else content, self.where, place)
        check_keys(given, shape, self.where, place)
        for key in needed:
            if given.get(key) is None:
                raise SpecError(self.where, f"the key {quote(f'{inside}{key}')} is missing")
        sections = {key: inner for key, inner in shape.items() if isinstance(inner, (Mapping, list))}
        values = {key: value for key, value in given.items() if key not in sections}
        return {
            **{key: self._value(value, shape[key], f"{inside}{key}") for key, value in values.items()},
            **{key: self._section(given.get(key), inner, f"{inside}{key}") for key, inner in sections.items()},
        }

    def _section(self, content: object, shape: Any, place: str) -> Any:
        """A section, or a list of sections."""
        if isinstance(shape, Mapping):
            return self.read(content, shape, place)
        entries = [] if content is None else content
        if not isinstance(entries, list):
            raise SpecError(self.where, f"{quote(place)} must be a list")
        return [self.read(entry, shape[0], f"{place}.{index}") for index, entry in enumerate(entries)]

    def _value(self, value: object, kind: Dimension | str, key: str) -> Any:
        if isinstance(kind, Dimension):
            return self._quantity(value, key, kind)
        return self._cited(value, key) if kind == CITED else value

    def _cited(self, text: object, key: str) -> str:
        """A text with its citation: `NVLink SHARP [nvswitch]`."""
        match = _CITED.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise SpecError(self.where, f"{quote(key)} must be text with its source in brackets, got {quote(text)}")
        self._cite(key, match["source"], match["remark"])
        return match["text"]

    def _cite(self, key: str, source: str, remark: str | None) -> None:
        if source not in self.documents:
            hint = suggest(source, self.documents)
            raise SpecError(self.where, f"{quote(key)} cites the unknown source {quote(source)}{hint}")
        self.used[_PEAK.sub("", key)] = self.documents[source] + (f" ({remark})" if remark else "")

    def _quantity(self, text: object, key: str, dimension: Dimension) -> float:
        try:
            quantity: Quantity = parse_quantity(text, dimension)
            if dimension is Dimension.COUNT and not quantity.value.is_integer():
                raise RooflineError(f"{quote(text)} is not a whole number")
        except RooflineError as error:
            raise SpecError(self.where, f"{quote(key)}: {error}") from None
        if quantity.source is not None:
            self._cite(key, quantity.source, quantity.remark)
        return int(quantity.value) if dimension is Dimension.COUNT else quantity.value
