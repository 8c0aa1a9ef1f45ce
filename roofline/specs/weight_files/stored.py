"""What a checkpoint stores: its tensors, and the format of each component of a model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from roofline.specs.formats import Format
from roofline.specs.schemes import WeightScheme


class StoredTensor(Struct, frozen=True):
    """A tensor of a checkpoint: its format as the file names it, logical `shape`, and bytes on disk."""

    name: str
    format: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class Share(Struct, frozen=True):
    """The tensors of one component or of one format together."""

    tensors: int = 0
    elements: int = 0
    bytes: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.tensors + other.tensors, self.elements + other.elements, self.bytes + other.bytes)


class Stored(Struct, frozen=True):
    """The weights of a model as a checkpoint stores them.

    `scheme` has the format of each component, averaged over its tensors, so that its bytes are those of the file.
    `components` are the tensors by the components that they hold (a fused tensor holds several), `formats` by format;
    `left_out` are those that no operator of the simulated model reads, `loaded` says whether engines load them anyway.
    `size` is that of all files, `header` the part of it before the tensors. `adapters` describe LoRA adapters beside.
    """

    where: str
    scheme: WeightScheme
    components: Mapping[tuple[str, ...], Share]
    formats: Mapping[str, Share]
    left_out: Share
    header: int
    size: int
    files: int = 1
    loaded: bool = False
    adapters: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(share.bytes for share in self.formats.values())

    @property
    def padding(self) -> int:
        return self.size - self.header - self.bytes


REMOTE = "roofline-hub.json"
"""The file that tells a folder of headers, read from the hub, from one with weights."""


class Remote(Struct, frozen=True):
    """A repository of the hub whose headers alone are in a folder: its name, commit, and the sizes of its files."""

    repository: str
    commit: str
    sizes: Mapping[str, int]


def is_checkpoint(path: Path) -> bool:
    """Whether a path names a checkpoint: a GGUF or safetensors file, or a folder."""
    # os.path.isdir is False for a name that is too long, where Path.is_dir raises
    return path.suffix.lower() in (".gguf", ".safetensors") or os.path.isdir(path)  # noqa: PTH112


def shares(tensors: Iterable[StoredTensor]) -> dict[str, Share]:
    """The tensors by format, the largest share first."""
    found: dict[str, Share] = {}
    for tensor in tensors:
        own = Share(1, tensor.elements, tensor.bytes)
        found[tensor.format] = found.get(tensor.format, Share()) + own
    return dict(sorted(found.items(), key=lambda entry: -entry[1].bytes))


def average(formats: Mapping[Format, Share]) -> Format:
    """The format of a component whose tensors have these formats: that of the most, with the average bits of all."""
    ordered = sorted(formats, key=lambda name: -formats[name].elements)
    total = sum(formats.values(), Share())
    return Format("/".join(format.name for format in ordered), 8 * total.bytes / total.elements, ordered[0].arithmetic)
