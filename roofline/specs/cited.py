"""Files of quantities with units and citations: sections by the shape of a file, read into numbers in base units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from roofline.core.errors import RooflineError, SpecError, located, quote, suggest
from roofline.core.units import Dimension, parse_quantity
from roofline.specs.library import as_mapping, check_keys

PLAIN, CITED = "what the record checks", "text with its source"

_PEAK = re.compile(r"^compute\.(?=tensor\.|vector\.)")
"""What the key of a peak begins with, and its source is not filed under."""

_CITED = re.compile(r"\s*(?P<text>[^\[\]]{1,80}?)\s*\[\s*(?P<source>[^\];]+?)\s*(?:;\s*(?P<remark>[^\]]*?)\s*)?\]\s*")


class Reader:
    """Reads the sections of one file: rejects unknown keys, parses quantities, resolves their sources."""

    def __init__(self, where: str, documents: object, required: Mapping[str, tuple[str, ...]] = {}) -> None:
        if documents is not None and not (
            isinstance(documents, dict) and all(isinstance(text, str) for text in documents.values())
        ):
            raise SpecError(where, "'sources' must map short keys to titles of documents")
        self.where, self.required = where, required
        self.documents: Mapping[str, str] = documents or {}
        self.used: dict[str, str] = {}

    def read(self, content: object, shape: Mapping[str, Any], place: str = "") -> dict[str, Any]:
        """A section of a shape, with quantities in base units, and its own sections; `place` is its key path."""
        inside, needed = f"{place}." if place else "", self.required.get(place, ())
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
        with located(self.where, key):
            quantity = parse_quantity(text, dimension)
            if dimension is Dimension.COUNT and not quantity.value.is_integer():
                raise RooflineError(f"{quote(text)} is not a whole number")
        if quantity.source is not None:
            self._cite(key, quantity.source, quantity.remark)
        return int(quantity.value) if dimension is Dimension.COUNT else quantity.value
