"""Benchmarks of memory-bound kernels that stream rows (ops norm, softmax, activation, rope, copy), fused as in engines.

Two are not ops of the schema: a triad, which measures memory bandwidth, and an empty kernel, which measures a launch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from roofline.validate.kernels.benchmark import Backend, Benchmark, Tensors
from roofline.validate.kernels.tools import Random, assign, poisoned, triton_refusal
from roofline.validate.kernels.work import Case

EPSILON = 1e-5
"""The epsilon of RMSNorm."""

HEAD_DIM = 128
"""The head dimension of rows of op `rope`, where their width is a multiple of it; else a row is one head."""

ROPE_BASE = 10000.0

TRIAD_FACTOR = 3.0


class Streaming(Benchmark):
    """A kernel over `rows` rows of `columns` elements; each operand in `sources` is read once."""

    dtypes = ("fp16", "bf16", "fp32")
    sources: tuple[str, ...] = ("source",)
    targets: tuple[str, ...] = ("output",)

    @property
    def backends(self) -> Mapping[str, Backend]:
        """The Triton kernel, and PyTorch's."""
        return {"triton": _without_case(self._triton), "torch": _without_case(self._torch)}

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Normal rows."""
        random = Random(device, seed)
        rows = {name: random.normal(case["rows"], case["columns"], dtype=case.dtype) for name in self.sources}
        return rows | self._constants(case, random)

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """Poisoned rows."""
        shape = (case["rows"], case["columns"])
        return {name: poisoned(*shape, dtype=case.dtype, device=device) for name in self.targets}

    def refusal(self, case: Case, backend: str, device: str) -> str | None:
        """Why a backend cannot run the case (format, no Triton), in a few words; None if it can."""
        if reason := super().refusal(case, backend, device):
            return reason
        if case.dtype not in self.dtypes:
            return f"no kernel for {case.dtype}"
        return triton_refusal(device) if backend == "triton" else None

    def _constants(self, case: Case, random: Random) -> dict[str, torch.Tensor]:
        """Operands of another shape than (rows, columns)."""
        del case, random
        return {}

    @abstractmethod
    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        """Run this project's kernel."""

    @abstractmethod
    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        """Run PyTorch's kernels."""


def _without_case(compute: Callable[[Tensors, Tensors], None]) -> Backend:
    """A backend for a function of the operands alone."""

    def backend(case: Case, inputs: Tensors, outputs: Tensors) -> None:
        del case
        compute(inputs, outputs)

    return backend


def _launchers() -> Any:
    """The module of Triton launchers, imported late: it needs Triton."""
    from roofline.validate.kernels.triton_kernels import streaming

    return streaming


class Norm(Streaming):
    """Residual addition and RMSNorm in one kernel, as engines fuse them.

    Inputs `source` and `residual` (rows, columns) and `weight` (columns); outputs `summed` and `output`. PyTorch runs
    an addition and a norm, which reads the sum again.
    """

    op = "norm"
    sources = ("source", "residual")
    targets = ("summed", "output")

    def _constants(self, case: Case, random: Random) -> dict[str, torch.Tensor]:
        return {"weight": random.normal(case["columns"], dtype=case.dtype, mean=1.0, deviation=0.1)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """(x + r) / sqrt(mean((x + r)^2) + epsilon) * weight."""
        del case
        summed = inputs["source"].double() + inputs["residual"].double()
        scale = (summed.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
        return {"summed": summed, "output": summed * scale * inputs["weight"].double()}

    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        operands = inputs["source"], inputs["residual"], inputs["weight"]
        _launchers().norm(*operands, outputs["summed"], outputs["output"], EPSILON)

    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        torch.add(inputs["source"], inputs["residual"], out=outputs["summed"])
        shape = inputs["weight"].shape
        assign(outputs["output"], functional.rms_norm(outputs["summed"], list(shape), inputs["weight"], EPSILON))


class Softmax(Streaming):
    """Softmax over each row of `source`."""

    op = "softmax"

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """exp(x) / sum(exp(x))."""
        del case
        return {"output": inputs["source"].double().softmax(-1)}

    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        _launchers().softmax(inputs["source"], outputs["output"])

    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        torch.softmax(inputs["source"], -1, out=outputs["output"])


class Activation(Streaming):
    """SwiGLU: silu(gate) * up. PyTorch runs two kernels, with silu(gate) in memory between them."""

    op = "activation"
    sources = ("gate", "up")

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """gate / (1 + exp(-gate)) * up."""
        del case
        gate = inputs["gate"].double()
        return {"output": gate * torch.sigmoid(gate) * inputs["up"].double()}

    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        _launchers().swiglu(inputs["gate"], inputs["up"], outputs["output"])

    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        torch.mul(functional.silu(inputs["gate"]), inputs["up"], out=outputs["output"])


class Rope(Streaming):
    """Rotary embedding (RoPE) of rows of heads of 128 (else of one head as wide as the row), row i at position i.

    The first half of a head is rotated against the second. Beside the operands of the schema a kernel reads `cosine`
    and `sine` (rows, half of a head) of fp32, as engines read their table: 512 bytes a row for heads of 128.
    """

    op = "rope"

    def _constants(self, case: Case, random: Random) -> dict[str, torch.Tensor]:
        positions = torch.arange(case["rows"], device=random.device)
        cosine, sine = rotations(positions, head_dim(case["columns"]), ROPE_BASE)
        return {"cosine": cosine, "sine": sine}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """(a cos - b sin, b cos + a sin) for the halves a and b of a head."""
        cosine, sine = inputs["cosine"].double(), inputs["sine"].double()
        return {"output": rotate(inputs["source"].double(), cosine, sine).view(case["rows"], case["columns"])}

    def refusal(self, case: Case, backend: str, device: str) -> str | None:
        """Why a backend cannot run the case, in a few words; None if it can."""
        return "columns must be even" if case["columns"] % 2 else super().refusal(case, backend, device)

    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        _launchers().rope(inputs["source"], inputs["cosine"], inputs["sine"], outputs["output"])

    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        assign(outputs["output"], rotate(inputs["source"], inputs["cosine"], inputs["sine"]))


class Copy(Streaming):
    """A copy of rows."""

    op = "copy"

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The rows."""
        del case
        return {"output": inputs["source"].double()}

    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        _launchers().copy(inputs["source"], outputs["output"])

    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        outputs["output"].copy_(inputs["source"])


class Triad(Streaming):
    """first + 3 second, the STREAM triad: it moves three elements for each of rows * columns."""

    op = "triad"
    sources = ("first", "second")

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """first + 3 second."""
        del case
        return {"output": inputs["first"].double() + TRIAD_FACTOR * inputs["second"].double()}

    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        _launchers().triad(inputs["first"], inputs["second"], outputs["output"], TRIAD_FACTOR)

    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        torch.add(inputs["first"], inputs["second"], alpha=TRIAD_FACTOR, out=outputs["output"])


class Empty(Benchmark):
    """A kernel that does nothing: its time is that of a launch."""

    op = "empty"
    dtypes = ("fp16", "bf16", "fp32")

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Only this project's: PyTorch has no empty kernel."""
        return {"triton": _launch}

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Nothing."""
        del case, device, seed
        return {}

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """Nothing."""
        del case, device
        return {}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Nothing."""
        del case, inputs
        return {}

    def refusal(self, case: Case, backend: str, device: str) -> str | None:
        """Why a backend cannot run, in a few words; None if it can."""
        return super().refusal(case, backend, device) or triton_refusal(device)


def _launch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    """Launch the empty kernel."""
    del case, inputs, outputs
    _launchers().empty()


def head_dim(columns: int) -> int:
    """The head dimension of rows of op `rope`."""
    return columns if columns % HEAD_DIM else HEAD_DIM


def rotations(positions: torch.Tensor, width: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of position * base^(-2 i / width), each (positions, width / 2) of fp32, from float64."""
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width
    angles = positions.double()[:, None] * base**-exponents
    return angles.cos().float(), angles.sin().float()


def rotate(rows: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rows (rows, columns) with the first half of each head rotated against its second, in fp32 or wider."""
    first, second = rows.reshape(rows.shape[0], -1, 2, cosine.shape[1]).unbind(2)
    cosine, sine = cosine[:, None], sine[:, None]
    rotated = torch.stack((first * cosine - second * sine, second * cosine + first * sine), 2)
    return rotated.to(rows.dtype).flatten(1)


NORM = Norm()
SOFTMAX = Softmax()
ACTIVATION = Activation()
ROPE = Rope()
COPY = Copy()
TRIAD = Triad()
EMPTY = Empty()
