"""Benchmarks of kernels that stream rows (ops norm, softmax, activation, rope, copy), fused as in engines."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import silu

from roofline.validate.kernels.benchmark import Benchmark, Tensors
from roofline.validate.kernels.eager import EPSILON, angles, rms_norm, rotate
from roofline.validate.kernels.tools import Random, assign, poisoned, triton_refusal
from roofline.validate.kernels.work import Case

FLOATS = ("fp32", "bf16", "fp16")

HEAD_DIM = 128
"""The head dimension of rows of op `rope`, where their width is a multiple of it; else a row is one head."""


class Streaming(Benchmark):
    """A kernel over `rows` rows of `columns` elements, which reads each of `sources` and writes each of `targets` once.

    `exact` returns the targets from operands in float64, `plain` runs PyTorch's kernels, and Triton's
    take `constants` beside operands and targets.
    """

    dtypes = FLOATS

    def __init__(
        self,
        op: str,
        sources: tuple[str, ...],
        exact: Callable[[Tensors], tuple[torch.Tensor, ...]],
        plain: Callable[[Tensors, Tensors], object],
        targets: tuple[str, ...] = ("output",),
        constants: tuple[float, ...] = (),
    ) -> None:
        self.op, self.sources, self.targets = op, sources, targets
        self._exact, self._constants = exact, constants
        self.backends = {"triton": self._run_fused, "torch": lambda _, inputs, outputs: plain(inputs, outputs)}  # type: ignore[dict-item]

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Normal rows; for a norm the weight (columns), for a rotary embedding cosines and sines of fp32.

        Beside the operands of the schema a kernel reads that table of (rows, half of a head), as engines do: 512 bytes
        a row for heads of 128.
        """
        random, columns = Random(device, seed), case["columns"]
        operands = {name: random.normal(case["rows"], columns, dtype=case.dtype) for name in self.sources}
        if self.op == "norm":
            operands["weight"] = random.normal(columns, dtype=case.dtype, mean=1.0, deviation=0.1)
        if self.op == "rope":
            width = head_dim(columns)
            table = angles(case["rows"], width, torch.float32, device)
            operands |= {
                name: half[:, : width // 2].contiguous() for name, half in zip(("cosine", "sine"), table, strict=True)
            }
        return operands

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        shape = (case["rows"], case["columns"])
        return {name: poisoned(*shape, dtype=case.dtype, device=device) for name in self.targets}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        del case
        results = self._exact({name: tensor.double() for name, tensor in inputs.items()})
        return dict(zip(self.targets, results, strict=True))

    def _refusal(self, case: Case, backend: str, device: str) -> str | None:
        if self.op == "rope" and case["columns"] % 2:
            return "columns must be even"
        return triton_refusal(device) if backend == "triton" else None

    def _run_fused(self, case: Case, inputs: Tensors, outputs: Tensors) -> None:
        from roofline.validate.kernels.triton_kernels.streaming import stream

        del case
        stream(self.op, [*inputs.values(), *outputs.values()], *self._constants)


def head_dim(columns: int) -> int:
    """The head dimension of rows of op `rope`."""
    return columns if columns % HEAD_DIM else HEAD_DIM


def _exact_norm(inputs: Tensors) -> tuple[torch.Tensor, ...]:
    """(x + r), and it over sqrt(mean((x + r)^2) + epsilon), times the weight."""
    summed = inputs["source"] + inputs["residual"]
    return summed, summed * (summed.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * inputs["weight"]


def _plain_norm(inputs: Tensors, outputs: Tensors) -> None:
    """An addition, and a norm that reads the sum again."""
    torch.add(inputs["source"], inputs["residual"], out=outputs["summed"])
    assign(outputs["output"], rms_norm(outputs["summed"], inputs["weight"]))


def _exact_rope(inputs: Tensors) -> tuple[torch.Tensor, ...]:
    """(a cos - b sin, b cos + a sin) for the halves a and b of a head, row i at position i."""
    source, cosine, sine = inputs["source"], inputs["cosine"][:, None], inputs["sine"][:, None]
    first, second = source.view(len(source), -1, 2, cosine.shape[-1]).unbind(2)
    turned = torch.stack((first * cosine - second * sine, second * cosine + first * sine), 2)
    return (turned.view(source.shape),)


def _plain_rope(inputs: Tensors, outputs: Tensors) -> None:
    source = inputs["source"]
    width = 2 * inputs["cosine"].shape[1]
    heads = source.view(len(source), -1, width).transpose(0, 1)
    turned = rotate(heads, *angles(len(source), width, source.dtype, source.device))
    assign(outputs["output"], turned.transpose(0, 1).reshape(source.shape))


NORM = Streaming(
    *("norm", ("source", "residual"), _exact_norm, _plain_norm), targets=("summed", "output"), constants=(EPSILON,)
)
"""Residual addition and RMSNorm in one kernel, as engines fuse them."""

SOFTMAX = Streaming(
    "softmax",
    ("source",),
    lambda inputs: (inputs["source"].softmax(-1),),
    lambda inputs, outputs: torch.softmax(inputs["source"], -1, out=outputs["output"]),
)
ACTIVATION = Streaming(
    "activation",
    ("gate", "up"),
    lambda inputs: (inputs["gate"] * torch.sigmoid(inputs["gate"]) * inputs["up"],),
    lambda inputs, outputs: torch.mul(silu(inputs["gate"]), inputs["up"], out=outputs["output"]),
)
"""SwiGLU: silu(gate) up. PyTorch runs two kernels, with silu(gate) in memory between them."""

ROPE = Streaming("rope", ("source",), _exact_rope, _plain_rope)
"""Rotary embedding of rows of heads of 128 (else of one head as wide as the row), each half against the other."""

COPY = Streaming(
    "copy",
    ("source",),
    lambda inputs: (inputs["source"],),
    lambda inputs, outputs: outputs["output"].copy_(inputs["source"]),
)

BENCHMARKS = (NORM, SOFTMAX, ACTIVATION, ROPE, COPY)
