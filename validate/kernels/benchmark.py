"""What a benchmark is: inputs for a case, a float64 reference, and the ways to compute the same on a device.

Every way writes into an output that was poisoned before, so that what it leaves out shows. Ways are called `triton`
(this project's kernels) and `torch` (what PyTorch hands to the vendor's libraries).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from roofline.validate.kernels.work import Case

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = "Mapping[str, torch.Tensor]"
"""Operands by name."""


class Way(Protocol):
    """One way to compute a case: reads the inputs, fills the outputs, returns when the work is issued."""

    def __call__(self, case: Case, inputs: Tensors, outputs: Tensors) -> None:
        """Compute `case`."""


class Benchmark(ABC):
    """A kind of kernel of the measurement schema."""

    op: str
    """The op of the schema."""

    dtypes: tuple[str, ...]
    """The number formats it has kernels for."""

    mixed: tuple[str, ...] = ()
    """Formats in which the cache has another one: `bf16/fp8`."""

    @property
    @abstractmethod
    def ways(self) -> Mapping[str, Way]:
        """The ways to compute it, by name."""

    @abstractmethod
    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Fresh random operands of a case."""

    @abstractmethod
    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """Outputs of a case, poisoned: NaN, or the largest integer."""

    @abstractmethod
    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The outputs in float64 (integers: int64), computed plainly."""

    def refusal(self, case: Case, way: str, device: str) -> str | None:
        """Why this way cannot compute the case on the device, in a few words; None if it can."""
        del case, device
        return None if way in self.ways else f"there is no way {way}"
