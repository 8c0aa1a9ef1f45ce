"""Kernels as eager PyTorch runs them, on any device, and their benchmarks; `measure.decoder` is built of them.

The simulator models each as one kernel, though PyTorch may launch several: `norm` is a residual addition and a norm,
`rope` multiplies and concatenates. PyTorch is imported on the first run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from roofline.validate.kernels.benchmark import Backend, Benchmark, Tensors, torch_dtype
from roofline.validate.kernels.work import Case

if TYPE_CHECKING:
    import torch

EPSILON = 1e-6

HEAD_DIM = 128
"""The head dimension of rows of op `rope`, where their width is a multiple of it."""

ROPE_BASE = 10000.0


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

    frequencies = ROPE_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    half = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    both = torch.cat([half, half], dim=-1)
    return both.cos().to(dtype=dtype, device=device), both.sin().to(dtype=dtype, device=device)


def rotate(source: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """The rotary embedding of (..., width), the two halves of a head being the pairs' coordinates."""
    import torch

    first, second = source.chunk(2, dim=-1)
    return source * cosine + torch.cat([-second, first], dim=-1) * sine


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int = 0) -> torch.Tensor:
    """Causal attention of (batch, heads, queries, width) over (batch, kv_heads, keys, width), aligned to the last key.

    For one query a sequence, the heads of a group are the rows of one GEMM; keys before the window are not read.
    """
    import torch

    sdpa = torch.nn.functional.scaled_dot_product_attention
    batch, heads, queries, width = query.shape
    kv_heads, seen = keys.shape[1], keys.shape[2]
    if queries == 1:
        if window:
            keys, values = keys[:, :, -window:], values[:, :, -window:]
        grouped = query.reshape(batch, kv_heads, heads // kv_heads, width)
        return sdpa(grouped, keys, values).reshape(batch, heads, 1, width)
    gqa = heads > kv_heads
    if queries == seen and not window:
        return sdpa(query, keys, values, is_causal=True, enable_gqa=gqa)
    return sdpa(query, keys, values, attn_mask=visible(queries, seen, window, query.device), enable_gqa=gqa)


@lru_cache(maxsize=2)
def visible(queries: int, keys: int, window: int, device: Any) -> torch.Tensor:
    """Which keys each query sees, (queries, keys) of bool: causal, aligned to the last key, in a window if not 0."""
    import torch

    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)[None, :]
    return (distance >= 0) & (distance < window) if window else distance >= 0


# --- benchmarks ---


RANDOM_BLOCK = 1 << 18
"""Random numbers drawn for an operand; a larger operand repeats them, which costs a copy instead of a minute."""


def repeated_normal(shape: tuple[int, ...], dtype: Any, device: str, generator: Any) -> torch.Tensor:
    """A normally distributed operand that repeats a block of `RANDOM_BLOCK` numbers."""
    import torch

    count = math.prod(shape)
    block = (
        torch.empty(min(count, RANDOM_BLOCK), dtype=torch.float32, device=device).normal_(generator=generator).to(dtype)
    )
    filled = torch.empty(count, dtype=dtype, device=device)
    whole = count - count % len(block)
    filled[:whole].view(-1, len(block)).copy_(block.expand(whole // len(block), -1))
    filled[whole:].copy_(block[: count - whole])
    return filled.view(shape)


class EagerBenchmark(Benchmark):
    """A benchmark with the single backend `torch` and normally distributed operands."""

    dtypes = ("fp32", "bf16", "fp16")

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Eager PyTorch."""
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
        return {name: repeated_normal(shape, dtype, device, generator) for name, shape in self.operands(case).items()}

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """Results filled with NaN."""
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


class EagerGemm(EagerBenchmark):
    """A linear layer: C[m, n] = A[m, k] W[n, k]^T."""

    op = "gemm"

    def operands(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """Input and weight."""
        return {"input": (case["m"], case["k"]), "weight": (case["n"], case["k"])}

    def results(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """The output."""
        return {"output": (case["m"], case["n"])}

    def run(self, case: Case, inputs: Tensors, outputs: Tensors) -> None:
        """The one library call of a linear layer."""
        import torch

        del case
        torch.mm(inputs["input"], inputs["weight"].t(), out=outputs["output"])


class EagerAttention(EagerBenchmark):
    """Scaled dot-product attention over a cache that already holds the new keys."""

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
        """Attention, copied to the output."""
        outputs["output"].copy_(attend(inputs["query"], inputs["keys"], inputs["values"], case["window"]))

    def refusal(self, case: Case, backend: str, device: str) -> str | None:
        """Which attention PyTorch lacks: over a cache in another format, and windowed prefill."""
        if case.kv_dtype != case.dtype:
            return f"PyTorch has no attention over a cache in {case.kv_dtype}"
        if case["window"] and case["q_len"] > 1:
            return "PyTorch has no attention that skips the keys before a window"
        return super().refusal(case, backend, device)


class EagerStreaming(EagerBenchmark):
    """Kernels that stream rows: each operand in `operands` and each result is (rows, columns)."""

    def __init__(self, op: str, *operands: str) -> None:
        self.op = op
        self._operands = operands

    def operands(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """Rows, and a norm's weight."""
        shape = (case["rows"], case["columns"])
        weight = {"weight": (case["columns"],)} if self.op == "norm" else {}
        return {**dict.fromkeys(self._operands, shape), **weight}

    def results(self, case: Case) -> Mapping[str, tuple[int, ...]]:
        """Rows; a norm also writes the sum."""
        shape = (case["rows"], case["columns"])
        return {"summed": shape, "output": shape} if self.op == "norm" else {"output": shape}

    def run(self, case: Case, inputs: Tensors, outputs: Tensors) -> None:
        """The decoder's function; where it allocates its result, the output takes over that storage."""
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
                rotated = rotate(source, cosine, sine)
                outputs["output"].set_(rotated.transpose(1, 2).reshape(rows, columns))  # type: ignore[call-overload]
            case _:
                outputs["output"].copy_(inputs["input"])


BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.op: benchmark
    for benchmark in (
        EagerGemm(),
        EagerAttention("attention_prefill"),
        EagerAttention("attention_decode"),
        EagerStreaming("norm", "stream", "added"),
        EagerStreaming("softmax", "input"),
        EagerStreaming("activation", "gate", "up"),
        EagerStreaming("rope", "input"),
        EagerStreaming("copy", "input"),
    )
}
"""By the op of the measurement schema."""
