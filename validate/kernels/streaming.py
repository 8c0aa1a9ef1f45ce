"""Kernels that read and write their rows once (ops norm, softmax, activation, rope, copy), as engines run them.

Beside the schema: a triad, which measures memory bandwidth, and an empty kernel, which measures a launch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from roofline.validate.kernels.attention_tools import DTYPES, Random, deliver, poisoned
from roofline.validate.kernels.benchmark import Benchmark, Tensors, Way
from roofline.validate.kernels.tools import triton_refusal
from roofline.validate.kernels.work import Case

EPSILON = 1e-5
"""What RMSNorm adds to the mean square."""

HEAD_DIM = 128
"""The heads that a row of the op `rope` is made of, where its width is a multiple of it; else it is one head."""

BASE = 10000.0
"""The base of rotary frequencies."""

FACTOR = 3.0
"""What the triad multiplies by."""


class Streaming(Benchmark):
    """A kernel over `rows` rows of `columns` elements; each operand named in `sources` is read once."""

    dtypes = ("fp16", "bf16", "fp32")
    sources: tuple[str, ...] = ("source",)
    targets: tuple[str, ...] = ("output",)

    @property
    def ways(self) -> Mapping[str, Way]:
        """The project's kernel, and PyTorch's own."""
        return {"triton": _issued(self._triton), "torch": _issued(self._torch)}

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Normal rows."""
        random = Random(device, seed)
        return {
            name: random.normal(case["rows"], case["columns"], dtype=DTYPES[case.dtype]) for name in self.sources
        } | self._constants(case, random)

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """Poisoned rows."""
        shape = (case["rows"], case["columns"])
        return {name: poisoned(*shape, dtype=DTYPES[case.dtype], device=device) for name in self.targets}

    def refusal(self, case: Case, way: str, device: str) -> str | None:
        """Why not: the format, or no Triton."""
        if way not in self.ways:
            return f"there is no way {way}"
        if case.dtype not in self.dtypes:
            return f"no kernel for {case.dtype}"
        return triton_refusal(device) if way == "triton" else None

    def _constants(self, case: Case, random: Random) -> dict[str, torch.Tensor]:
        """Operands that are no rows."""
        del case, random
        return {}

    @abstractmethod
    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        """Compute with the project's kernel."""

    @abstractmethod
    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        """Compute with PyTorch's."""


def _issued(compute: Callable[[Tensors, Tensors], None]) -> Way:
    """The way that computes with operands alone: they say all about a case."""

    def way(case: Case, inputs: Tensors, outputs: Tensors) -> None:
        del case
        compute(inputs, outputs)

    return way


def _device() -> Any:
    """The launchers, which import Triton."""
    from roofline.validate.kernels.programs import streaming

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
        return {"weight": random.normal(case["columns"], dtype=DTYPES[case.dtype], mean=1.0, deviation=0.1)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """(x + r) / sqrt(mean((x + r)^2) + epsilon) * weight."""
        del case
        summed = inputs["source"].double() + inputs["residual"].double()
        scale = (summed.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
        return {"summed": summed, "output": summed * scale * inputs["weight"].double()}

    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        operands = inputs["source"], inputs["residual"], inputs["weight"]
        _device().norm(*operands, outputs["summed"], outputs["output"], EPSILON)

    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        torch.add(inputs["source"], inputs["residual"], out=outputs["summed"])
        shape = inputs["weight"].shape
        deliver(functional.rms_norm(outputs["summed"], list(shape), inputs["weight"], EPSILON), outputs["output"])


class Softmax(Streaming):
    """Softmax over each row of `source`."""

    op = "softmax"

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """exp(x) / sum(exp(x))."""
        del case
        return {"output": inputs["source"].double().softmax(-1)}

    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        _device().softmax(inputs["source"], outputs["output"])

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
        _device().swiglu(inputs["gate"], inputs["up"], outputs["output"])

    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        torch.mul(functional.silu(inputs["gate"]), inputs["up"], out=outputs["output"])


class Rope(Streaming):
    """Rotary embedding of rows made of heads of 128 (else of one head as wide as the row), row i at position i.

    The first half of a head is rotated against the second. Beside the operands of the schema a kernel reads `cosine`
    and `sine` (rows, half of a head) of fp32, as engines read their table: 512 bytes a row for heads of 128.
    """

    op = "rope"

    def _constants(self, case: Case, random: Random) -> dict[str, torch.Tensor]:
        positions = torch.arange(case["rows"], device=random.device)
        cosine, sine = rotations(positions, head_dim(case["columns"]), BASE)
        return {"cosine": cosine, "sine": sine}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """(a cos - b sin, b cos + a sin) for the halves a and b of a head."""
        cosine, sine = inputs["cosine"].double(), inputs["sine"].double()
        return {"output": rotate(inputs["source"].double(), cosine, sine).view(case["rows"], case["columns"])}

    def refusal(self, case: Case, way: str, device: str) -> str | None:
        """Why not: halves of an odd row, or as for all."""
        return "an odd row has no halves" if case["columns"] % 2 else super().refusal(case, way, device)

    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        _device().rope(inputs["source"], inputs["cosine"], inputs["sine"], outputs["output"])

    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        deliver(rotate(inputs["source"], inputs["cosine"], inputs["sine"]), outputs["output"])


class Copy(Streaming):
    """The same rows elsewhere."""

    op = "copy"

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The rows."""
        del case
        return {"output": inputs["source"].double()}

    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        _device().copy(inputs["source"], outputs["output"])

    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        outputs["output"].copy_(inputs["source"])


class Triad(Streaming):
    """first + 3 second, which moves three elements for each of rows * columns: the classic measure of bandwidth."""

    op = "triad"
    sources = ("first", "second")

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """first + 3 second."""
        del case
        return {"output": inputs["first"].double() + FACTOR * inputs["second"].double()}

    def _triton(self, inputs: Tensors, outputs: Tensors) -> None:
        _device().triad(inputs["first"], inputs["second"], outputs["output"], FACTOR)

    def _torch(self, inputs: Tensors, outputs: Tensors) -> None:
        torch.add(inputs["first"], inputs["second"], alpha=FACTOR, out=outputs["output"])


class Empty(Benchmark):
    """A kernel that does nothing, whatever the case: what its time is made of is the launch."""

    op = "empty"
    dtypes = ("fp16", "bf16", "fp32")

    @property
    def ways(self) -> Mapping[str, Way]:
        """The project's alone: PyTorch has no empty kernel."""
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

    def refusal(self, case: Case, way: str, device: str) -> str | None:
        """Why not: no Triton."""
        return super().refusal(case, way, device) or triton_refusal(device)


def _launch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    """Launch the empty kernel."""
    del case, inputs, outputs
    _device().empty()


def head_dim(columns: int) -> int:
    """The width of the heads that a row of the op `rope` is made of."""
    return columns if columns % HEAD_DIM else HEAD_DIM


def rotations(positions: torch.Tensor, width: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of position * base^(-2 i / width), each (positions, width / 2) of fp32, from float64."""
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width
    angles = positions.double()[:, None] * base**-exponents
    return angles.cos().float(), angles.sin().float()


def rotate(rows: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rows (rows, columns) rotated head by head; the first half of each against its second, in fp32 or wider."""
    first, second = rows.reshape(rows.shape[0], -1, 2, cosine.shape[1]).unbind(2)
    cosine, sine = cosine[:, None], sine[:, None]
    turned = torch.stack((first * cosine - second * sine, second * cosine + first * sine), 2)
    return turned.to(rows.dtype).flatten(1)


NORM = Norm()
"""The benchmark of op `norm`."""

SOFTMAX = Softmax()
"""The benchmark of op `softmax`."""

ACTIVATION = Activation()
"""The benchmark of op `activation`."""

ROPE = Rope()
"""The benchmark of op `rope`."""

COPY = Copy()
"""The benchmark of op `copy`."""

TRIAD = Triad()
"""A triad over rows: memory bandwidth."""

EMPTY = Empty()
"""An empty kernel: the overhead of a launch."""
