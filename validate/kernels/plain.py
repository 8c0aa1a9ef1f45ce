"""Kernels as plain PyTorch code runs them, on any device: what `roofline.validate.measure.decoder` is made of.

Each is what the simulator takes for one kernel, though PyTorch may launch several: `norm` is a residual addition and a
norm, `rope` turns and concatenates. PyTorch is imported when something runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from roofline.validate.kernels.benchmark import Benchmark, Tensors, Way
from roofline.validate.kernels.work import Case

if TYPE_CHECKING:
    import torch

DTYPES = ("fp32", "bf16", "fp16")
NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

EPSILON = 1e-6

HEAD_DIM = 128
"""Elements that a rotary embedding turns together, where a row has as many."""

BASE = 10000.0


def torch_dtype(name: str) -> Any:
    """The PyTorch type of a format."""
    import torch

    return getattr(torch, NAMES[name])


# --- the functions of a decoder ---


def linear(source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T (+ b), W stored as (outputs, inputs)."""
    import torch

    return torch.nn.functional.linear(source, weight, bias)


def rms_norm(source: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x / rms(x) times the weight."""
    import torch

    return torch.nn.functional.rms_norm(source, (source.shape[-1],), weight, EPSILON)


def add_norm(stream: torch.Tensor, added: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The residual stream with a layer's output added, and its norm."""
    summed = stream + added
    return summed, rms_norm(summed, weight)


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The gated activation silu(gate) up."""
    import torch

    return torch.nn.functional.silu(gate) * up


@lru_cache(maxsize=64)
def angles(positions: int, width: int, dtype: Any, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the rotary embedding: (positions, width), each angle twice."""
    import torch

    frequencies = BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    turned = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    both = torch.cat([turned, turned], dim=-1)
    return both.cos().to(dtype=dtype, device=device), both.sin().to(dtype=dtype, device=device)


def rotate(source: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """The rotary embedding of (..., width), the two halves of a head being the pairs' coordinates."""
    import torch

    first, second = source.chunk(2, dim=-1)
    return source * cosine + torch.cat([-second, first], dim=-1) * sine


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int = 0) -> torch.Tensor:
    """Causal attention of (batch, heads, queries, width) to (batch, kv_heads, keys, width), the last keys being theirs.

    For one query a sequence, the heads of a group are the rows of one product; keys before the window are not read.
    """
    import torch

    product = torch.nn.functional.scaled_dot_product_attention
    batch, heads, queries, width = query.shape
    kv_heads, seen = keys.shape[1], keys.shape[2]
    if queries == 1:
        if window:
            keys, values = keys[:, :, -window:], values[:, :, -window:]
        grouped = query.reshape(batch, kv_heads, heads // kv_heads, width)
        return product(grouped, keys, values).reshape(batch, heads, 1, width)
    grouping = heads > kv_heads
    if queries == seen and not window:
        return product(query, keys, values, is_causal=True, enable_gqa=grouping)
    return product(query, keys, values, attn_mask=visible(queries, seen, window, query.device), enable_gqa=grouping)


@lru_cache(maxsize=2)
def visible(queries: int, keys: int, window: int, device: Any) -> torch.Tensor:
    """Which keys each query sees: those up to its own, the last `window` of them."""
    import torch

    at = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)[None, :]
    return (at >= 0) & (at < window) if window else at >= 0


# --- benchmarks ---


DRAWN = 1 << 18
"""Numbers that are drawn for an operand; a larger one repeats them, which costs a copy instead of a minute."""


def drawn(shape: tuple[int, ...], dtype: Any, device: str, generator: Any) -> torch.Tensor:
    """A normal operand."""
    import torch

    count = math.prod(shape)
    block = torch.empty(min(count, DRAWN), dtype=torch.float32, device=device).normal_(generator=generator).to(dtype)
    filled = torch.empty(count, dtype=dtype, device=device)
    whole = count - count % len(block)
    filled[:whole].view(-1, len(block)).copy_(block.expand(whole // len(block), -1))
    filled[whole:].copy_(block[: count - whole])
    return filled.view(shape)


class Plain(Benchmark):
    """A benchmark with the one way `torch`: inputs are normal, `widths` says which operands and results there are."""

    dtypes = DTYPES

    @property
    def ways(self) -> Mapping[str, Way]:
        """PyTorch's own."""
        return {"torch": self.run}

    def run(self, case: Case, inputs: Tensors, outputs: Tensors) -> None:
        """Compute the case into the outputs."""
        raise NotImplementedError

    def operands(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the operands."""
        raise NotImplementedError

    def results(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the results."""
        raise NotImplementedError

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Normal operands."""
        import torch

        generator = torch.Generator(device=device).manual_seed(seed)
        dtype = torch_dtype(case.dtype)
        return {name: drawn(shape, dtype, device, generator) for name, shape in self.operands(case).items()}

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """Results full of NaN."""
        import torch

        dtype = torch_dtype(case.dtype)
        return {
            name: torch.full(shape, math.nan, dtype=dtype, device=device) for name, shape in self.results(case).items()
        }

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The same functions in float64."""
        import torch

        wide = {name: tensor.double() for name, tensor in inputs.items()}
        results = {
            name: torch.full(shape, math.nan, dtype=torch.float64, device=next(iter(wide.values())).device)
            for name, shape in self.results(case).items()
        }
        self.run(case, wide, results)
        return results


class Gemm(Plain):
    """A linear layer: C[m, n] = A[m, k] W[n, k]^T."""

    op = "gemm"

    def operands(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """Input and weight."""
        return {"input": (case["m"], case["k"]), "weight": (case["n"], case["k"])}

    def results(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """The output."""
        return {"output": (case["m"], case["n"])}

    def run(self, case: Case, inputs: Tensors, outputs: Tensors) -> None:
        """One call of the library, the one that a linear layer makes."""
        import torch

        del case
        torch.mm(inputs["input"], inputs["weight"].t(), out=outputs["output"])


class AttentionOf(Plain):
    """Scaled dot-product attention over a cache that holds the new keys already."""

    def __init__(self, op: str) -> None:
        self.op = op

    def operands(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """Queries, keys and values."""
        cache = (case["batch"], case["kv_heads"], case["kv_len"], case["head_dim"])
        query = (case["batch"], case["heads"], case["q_len"], case["head_dim"])
        return {"query": query, "keys": cache, "values": cache}

    def results(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """The output."""
        return {"output": (case["batch"], case["heads"], case["q_len"], case["head_dim"])}

    def run(self, case: Case, inputs: Tensors, outputs: Tensors) -> None:
        """Attention, and its result kept."""
        outputs["output"].copy_(attend(inputs["query"], inputs["keys"], inputs["values"], case["window"]))

    def refusal(self, case: Case, way: str, device: str) -> str | None:
        """A cache in another format has to be converted first: that is no kernel of PyTorch's."""
        stored = case.columns.get("kv_dtype", case.dtype)
        if stored != case.dtype:
            return f"PyTorch has no attention over a cache in {stored}"
        if case["window"] and case["q_len"] > 1:
            return "PyTorch has no attention that skips the keys before a window"
        return super().refusal(case, way, device)


class RowsOf(Plain):
    """Kernels that stream rows: `operands` of the shape of a row, one result or two."""

    def __init__(self, op: str, *operands: str) -> None:
        self.op = op
        self._operands = operands

    def operands(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """Rows, and a norm's weight."""
        shape = (case["rows"], case["columns"])
        weight = {"weight": (case["columns"],)} if self.op == "norm" else {}
        return {**dict.fromkeys(self._operands, shape), **weight}

    def results(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """Rows; a norm keeps the sum as well."""
        shape = (case["rows"], case["columns"])
        return {"summed": shape, "output": shape} if self.op == "norm" else {"output": shape}

    def run(self, case: Case, inputs: Tensors, outputs: Tensors) -> None:
        """The function of the decoder; its result replaces the output's memory."""
        import torch

        match self.op:
            case "norm":
                torch.add(inputs["stream"], inputs["added"], out=outputs["summed"])
                outputs["output"].set_(rms_norm(outputs["summed"], inputs["weight"]))  # type: ignore[call-overload]
            case "activation":
                torch.mul(torch.nn.functional.silu(inputs["gate"]), inputs["up"], out=outputs["output"])
            case "softmax":
                torch.softmax(inputs["input"], dim=-1, out=outputs["output"])
            case "rope":
                rows, columns = case["rows"], case["columns"]
                width = HEAD_DIM if columns % HEAD_DIM == 0 else columns
                source = inputs["input"].view(1, rows, -1, width).transpose(1, 2)
                cosine, sine = angles(rows, width, source.dtype, source.device)
                turned = rotate(source, cosine, sine)
                outputs["output"].set_(turned.transpose(1, 2).reshape(rows, columns))  # type: ignore[call-overload]
            case _:
                outputs["output"].copy_(inputs["input"])


GEMM = Gemm()
PREFILL = AttentionOf("attention_prefill")
DECODE = AttentionOf("attention_decode")
NORM = RowsOf("norm", "stream", "added")
SOFTMAX = RowsOf("softmax", "input")
ACTIVATION = RowsOf("activation", "gate", "up")
ROPE = RowsOf("rope", "input")
COPY = RowsOf("copy", "input")

BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.op: benchmark for benchmark in (GEMM, PREFILL, DECODE, NORM, SOFTMAX, ACTIVATION, ROPE, COPY)
}
"""By the op of the measurement schema."""
