"""Tensors: the operands of operators. Bytes follow from shape and format."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

from roofline.graph.size import Dim, Size, product
from roofline.specs.formats import Format


class Role(StrEnum):
    """The role of a tensor in the model; traffic and memory are reported by role."""

    WEIGHT = "weight"
    ACTIVATION = "activation"
    KV = "kv"
    STATE = "state"


class Tensor(Struct, frozen=True):
    """One operand: the `shape` that one kernel touches, in `format`.

    `stored` is the shape in memory where it differs: an embedding gather touches one row per token of the table, a
    decode step some of the experts, sparse attention some keys of the cache.
    """

    name: str
    role: Role
    shape: tuple[Dim, ...]
    format: Format
    stored: tuple[Dim, ...] | None = None

    @property
    def elements(self) -> Size:
        """The elements that the kernel touches."""
        return product(self.shape)

    @property
    def width(self) -> int:
        """The last dimension, which is fixed."""
        width = self.shape[-1]
        assert isinstance(width, int)
        return width

    @property
    def bytes(self) -> Size:
        """The bytes that the kernel moves, including scales and zero points."""
        return moved(self.shape, self.format.bits)

    @property
    def stored_shape(self) -> tuple[Dim, ...]:
        """The shape in memory."""
        return self.shape if self.stored is None else self.stored

    @property
    def stored_elements(self) -> Size:
        """The elements in memory."""
        return product(self.stored_shape)


@lru_cache(maxsize=1 << 14)
def moved(shape: tuple[Dim, ...], bits: float) -> Size:
    """Bytes of a tensor of `shape` with `bits` per element."""
    return product(shape) * (bits / 8)
