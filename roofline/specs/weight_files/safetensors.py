"""The headers of safetensors files: a length of 8 bytes, then JSON with type, shape and place of each tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from roofline.core.documents import parse_json, read_mapping
from roofline.core.errors import SpecError, quote
from roofline.core.inputs import open_file
from roofline.specs.weight_files.stored import StoredTensor

INDEX = "model.safetensors.index.json"

_KINDS = (
    *("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "C64"),
    *("F8_E4M3", "F8_E5M2", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4"),
)
BITS: Mapping[str, int] = {"BOOL": 8, **{kind: int(re.findall(r"\d+", kind)[0]) for kind in _KINDS}}
"""Bits of an element by the names of types, which say them."""

MAX_HEADER = 64 << 20
"""Most bytes of a header or an index: those of 600 GB checkpoints with 90,000 tensors have 10 MB."""


def shards(folder: Path) -> list[Path]:
    """The safetensors files of a folder: those of its index, else all; raises SpecError for one that is missing."""
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    names = file_names(read_mapping(index, MAX_HEADER), str(index))
    for name in names:
        if not (folder / name).is_file():
            raise SpecError(str(index), f"'weight_map' names {quote(name)}, which is missing")
    return [folder / name for name in names]


def file_names(index: object, where: str) -> list[str]:
    """The files that an index names, all of them safetensors of its own folder; raises SpecError for any other."""
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise SpecError(where, "'weight_map' must be a mapping of tensors to files")
    names = sorted(set(listed.values()))
    for name in names:
        if name in ("", ".", "..") or not set("/\\\0").isdisjoint(name):
            raise SpecError(where, f"'weight_map' names {quote(name)}, which is no file of its folder")
    return names


def header_length(prefix: bytes, size: int, where: str) -> int:
    """The bytes of a header, by the first 8 of a file of `size` bytes; raises SpecError where it cannot be."""
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > min(size - 8, MAX_HEADER):
        raise SpecError(where, f"is no complete safetensors file: its header has {length} bytes")
    return length


def read_header(path: Path, whole: int | None = None) -> tuple[list[StoredTensor], int, int]:
    """The tensors of a safetensors file, the bytes of its header, and its size; raises SpecError for a damaged one.

    `whole`: the size of a file of which only the header is here.
    """
    where = str(path)
    with open_file(path) as (file, size):
        size = size if whole is None else whole
        length = header_length(file.read(8), size, where)
        raw = file.read(length)
    try:
        content = parse_json(raw.decode(), where)
    except UnicodeDecodeError as error:
        raise SpecError(where, f"its header is not UTF-8 text (byte {error.start})") from None
    if not isinstance(content, dict):
        raise SpecError(where, "its header must be a mapping of tensors")
    placed = [_tensor(name, entry, where) for name, entry in content.items() if name != "__metadata__"]
    end = 0
    for (first, last), tensor in sorted(placed, key=lambda entry: entry[0]):
        if first != end:
            problem = "overlaps another" if first < end else "has a gap before it"
            raise SpecError(where, f"tensor {quote(tensor.name)} {problem}")
        end = last
    if 8 + length + end != size:
        raise SpecError(where, f"has {size} bytes, where its header says {8 + length + end}: it is incomplete")
    return [tensor for _, tensor in placed], 8 + length, size


def _tensor(name: str, entry: Any, where: str) -> tuple[tuple[int, int], StoredTensor]:
    if not isinstance(entry, dict):
        raise SpecError(where, f"tensor {quote(name)} must be a mapping")
    kind, shape, place = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(kind, str) or kind not in BITS:
        raise SpecError(where, f"tensor {quote(name)} has the unknown type {quote(kind)}")
    if not _naturals(shape) or len(shape) > 8 or not _naturals(place) or len(place) != 2 or place[0] > place[1]:
        raise SpecError(where, f"tensor {quote(name)} needs a 'shape' and two 'data_offsets'")
    tensor = StoredTensor(name, kind, tuple(shape), place[1] - place[0])
    if math.prod(shape) * BITS[kind] != 8 * tensor.bytes:
        problem = f"has {tensor.bytes} bytes, which are not those of its shape in {kind}"
        raise SpecError(where, f"tensor {quote(name)} {problem}")
    return (place[0], place[1]), tensor


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(entry) is int and 0 <= entry < 1 << 63 for entry in value)
