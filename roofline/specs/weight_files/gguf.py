"""The header of a GGUF file: metadata, and the name, type, shape and place of each tensor.

The layout is that of ggml's `docs/gguf.md`, version 2 and 3, little endian. Headers are untrusted: every length is
compared with the file before it is used, and the entries of a header are counted.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from roofline.core.errors import SpecError, quote
from roofline.core.inputs import open_file
from roofline.specs.weight_files.ggml import TYPES
from roofline.specs.weight_files.stored import StoredTensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
"""Types of metadata values, by the numbers of ggml's docs/gguf.md; those of numbers as codes of `struct`."""

MAX_ENTRIES = 1 << 23
"""Most keys, tensors and words of the vocabulary together; the largest vocabularies have a quarter of a million words,
each with a score and a type, and as many merges."""

MAX_STRING = 1 << 20
"""Most bytes of a text that is kept: chat templates have tens of kilobytes."""

KEPT_ELEMENTS = 4096
"""Arrays up to this length are kept, such as a value for each layer; of others only the length."""

MAX_DIMENSIONS, DEFAULT_ALIGNMENT = 4, 32
"""The most dimensions of a tensor (GGML_MAX_DIMS), and bytes of which its offset is a multiple where a file says
nothing (GGUF_DEFAULT_ALIGNMENT), of ggml's headers."""


class Gguf(Struct, frozen=True):
    """The header of a GGUF file. `header` are the bytes before the padding in front of the tensors."""

    metadata: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...]
    header: int
    size: int


class _Header:
    """Reads a header from front to back; every problem is a SpecError that names the file."""

    def __init__(self, file: BinaryIO, size: int, where: str) -> None:
        self.file, self.size, self.where = file, size, where
        self.at = self.entries = 0

    def problem(self, what: str) -> SpecError:
        return SpecError(self.where, what)

    def _advance(self, count: int, what: str) -> None:
        if count > self.size - self.at:
            raise self.problem(f"is no complete GGUF file: {what} would end behind the file")
        self.at += count

    def bytes(self, count: int, what: str) -> bytes:
        self._advance(count, what)
        return self.file.read(count)

    def skip(self, count: int, what: str) -> None:
        self._advance(count, what)
        self.file.seek(count, 1)

    def number(self, code: str, what: str) -> Any:
        return struct.unpack(f"<{code}", self.bytes(struct.calcsize(f"<{code}"), what))[0]

    def count(self, number: int, what: str) -> int:
        self.entries += number
        if self.entries > MAX_ENTRIES:
            raise self.problem(f"its header has {number} {what}, more than any model")
        return number

    def text(self, what: str, strict: bool = True) -> str:
        length = self.number("Q", what)
        if length > MAX_STRING:
            if strict or length > self.size - self.at:
                raise self.problem(f"{what} has {length} bytes")
            self.skip(length, what)
            return ""
        try:
            return self.bytes(length, what).decode("utf-8", "strict" if strict else "replace")
        except UnicodeDecodeError:
            raise self.problem(f"{what} is not UTF-8 text") from None

    def value(self, kind: int, key: str) -> Any:
        """The value of a key; of a long array, or one of texts, its length."""
        what = f"the value of {quote(key)}"
        if kind == _STRING:
            return self.text(what, strict=False)
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], what)
        if kind != _ARRAY:
            raise self.problem(f"{what} has the unknown type {kind}")
        inner, length = self.number("I", what), self.number("Q", what)
        if inner == _STRING:
            for _ in range(self.count(length, f"entries in {quote(key)}")):
                self.skip(self.number("Q", what), what)
            return length
        if inner not in _SCALARS:
            raise self.problem(f"{what} is an array of the unknown type {inner}")
        width = struct.calcsize(f"<{_SCALARS[inner]}")
        if length > KEPT_ELEMENTS:
            self.skip(length * width, what)
            return length
        return list(struct.unpack(f"<{length}{_SCALARS[inner]}", self.bytes(length * width, what)))


class _Placed(Struct, frozen=True):
    tensor: StoredTensor
    offset: int


def read_gguf(path: Path) -> Gguf:
    """The header of the GGUF file at `path`; raises SpecError for a file that is none, or a damaged one."""
    with open_file(path) as (file, size):
        header = _Header(file, size, str(path))
        metadata, placed = _read(header)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise header.problem(f"'general.alignment' must be a power of two, got {quote(alignment)}")
    start = header.at + -header.at % alignment
    _check_places(placed, start, alignment, header)
    return Gguf(metadata, tuple(entry.tensor for entry in placed), header.at, header.size)


def _read(header: _Header) -> tuple[dict[str, Any], list[_Placed]]:
    if header.size < len(MAGIC) or header.bytes(4, "its magic") != MAGIC:
        raise header.problem("is no GGUF file: it does not begin with 'GGUF'")
    version = header.number("I", "its version")
    if version not in VERSIONS:
        raise header.problem(f"has version {version} of GGUF (or the other byte order); 2 and 3 can be read")
    tensors, keys = header.number("Q", "its header"), header.number("Q", "its header")
    metadata: dict[str, Any] = {}
    for index in range(header.count(keys, "keys")):
        key = header.text(f"key {index + 1} of the metadata")
        if key in metadata:
            raise header.problem(f"the key {quote(key)} appears twice")
        metadata[key] = header.value(header.number("I", f"the type of {quote(key)}"), key)
    placed: dict[str, _Placed] = {}
    for index in range(header.count(tensors, "tensors")):
        entry = _tensor(header, index)
        if entry.tensor.name in placed:
            raise header.problem(f"the tensor {quote(entry.tensor.name)} appears twice")
        placed[entry.tensor.name] = entry
    return metadata, list(placed.values())


def _tensor(header: _Header, index: int) -> _Placed:
    name = header.text(f"the name of tensor {index + 1}")
    what = f"tensor {quote(name)}"
    dimensions = header.number("I", what)
    if dimensions > MAX_DIMENSIONS:
        raise header.problem(f"{what} has {dimensions} dimensions; ggml has at most {MAX_DIMENSIONS}")
    sizes = [header.number("Q", what) for _ in range(dimensions)]
    kind, offset = header.number("I", what), header.number("Q", what)
    if kind not in TYPES:
        raise header.problem(f"{what} has the unknown type {kind}")
    format, block, bytes = TYPES[kind]
    if sizes and sizes[0] % block:
        raise header.problem(f"{what} has rows of {sizes[0]} elements, which are no whole blocks of {format} ({block})")
    stored = math.prod(sizes) // block * bytes
    if stored > header.size:
        raise header.problem(f"{what} would end behind the file ({stored} bytes)")
    return _Placed(StoredTensor(name, format, tuple(reversed(sizes)), stored), offset)


def _check_places(placed: list[_Placed], start: int, alignment: int, header: _Header) -> None:
    """Raise SpecError for tensors that overlap, lie outside the file, or are not aligned."""
    end, before = 0, ""
    for entry in sorted(placed, key=lambda entry: entry.offset):
        what = f"tensor {quote(entry.tensor.name)}"
        if entry.offset % alignment:
            raise header.problem(f"{what} is not aligned to {alignment} bytes")
        if entry.offset < end:
            raise header.problem(f"{what} overlaps {quote(before)}")
        end, before = entry.offset + entry.tensor.bytes, entry.tensor.name
        if start + end > header.size:
            raise header.problem(f"{what} ends {start + end - header.size} bytes behind the file: it is incomplete")
