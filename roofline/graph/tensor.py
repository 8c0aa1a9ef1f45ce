"""Tensors: what an operator reads and writes. Bytes follow from shape and format and are never written by hand."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

from roofline.graph.size import Dim, Size, product
from roofline.specs.formats import Format


class Role(StrEnum):
    """What a tensor is to the model; traffic and memory are reported by role."""

    WEIGHT = "weight"
    ACTIVATION = "activation"
    KV = "kv"
    STATE = "state"


class Tensor(Struct, frozen=True):
    """One operand: `shape` as one kernel touches it, in `format`.

    `stored` is the shape it is kept in where that differs: an embedding gather touches one row a token of a table
    that is stored whole, a decode step some experts of all, sparse attention some keys of the cache.
    """

    name: str
    role: Role
    shape: tuple[Dim, ...]
    format: Format
    stored: tuple[Dim, ...] | None = None

    @property
    def elements(self) -> Size:
        """How many elements the kernel touches."""
        return product(self.shape)

    @property
    def bytes(self) -> Size:
        """Bytes the kernel moves for this tensor, scales and zero points included."""
        return moved(self.shape, self.format.bits)

    @property
    def stored_shape(self) -> tuple[Dim, ...]:
        """The shape the tensor is kept in."""
        return self.shape if self.stored is None else self.stored

    @property
    def stored_elements(self) -> Size:
        """How many elements are kept."""
        return product(self.stored_shape)


@lru_cache(maxsize=1 << 14)
def moved(shape: tuple[Dim, ...], bits: float) -> Size:
    """Bytes of a tensor of this shape with so many bits an element."""
    return product(shape) * (bits / 8)
