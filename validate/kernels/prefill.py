"""Causal attention of many queries at once (op `attention_prefill`): this project's FlashAttention, and PyTorch's.

Operands are laid out as engines have them after the projections: token by token, heads side by side.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from roofline.validate.kernels.attention_tools import (
    DTYPES,
    Random,
    attention_reference,
    cache_dtype,
    deliver,
    poisoned,
    transposed,
    visible,
)
from roofline.validate.kernels.benchmark import Benchmark, Tensors, Way
from roofline.validate.kernels.tools import format_refusal, triton_refusal
from roofline.validate.kernels.work import Case

HEAD_DIMS = (64, 96, 128, 256)
"""Head dimensions that the tiles of this project's kernels were made for; others up to the widest run as well."""


class Prefill(Benchmark):
    """Attention of the last `q_len` of `kv_len` tokens, causal, grouped, with an optional window.

    Inputs `query` (batch, q_len, heads, head_dim), `keys` and `values` (batch, kv_len, kv_heads, head_dim); output
    `output`, like `query`. With a window, a mask or the sequences' first tokens are there for PyTorch alone. Keys and
    values in fp8 are converted to the queries' format by the kernel, as it reads them.
    """

    op = "attention_prefill"
    dtypes = ("fp16", "bf16")
    mixed = ("bf16/fp8",)

    @property
    def ways(self) -> Mapping[str, Way]:
        """The project's kernel, and PyTorch's attention."""
        return {"triton": _triton, "torch": _torch}

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Normal queries, keys and values; with a window also what PyTorch needs for it."""
        random, dtype = Random(device, seed), DTYPES[case.dtype]
        width = case["head_dim"]
        operands = {
            "query": random.normal(case["batch"], case["q_len"], case["heads"], width, dtype=dtype),
        }
        for name in ("keys", "values"):
            drawn = random.normal(case["batch"], case["kv_len"], case["kv_heads"], width, dtype=dtype)
            operands[name] = drawn.to(cache_dtype(case))
        if _cut(case) and _has_windows(device):
            for name, length in (("query_starts", case["q_len"]), ("key_starts", case["kv_len"])):
                operands[name] = torch.arange(case["batch"] + 1, dtype=torch.int32, device=device) * length
        elif _cut(case):
            operands["mask"] = visible(case["q_len"], case["kv_len"], case["window"], device)
        return operands

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """The poisoned output."""
        shape = (case["batch"], case["q_len"], case["heads"], case["head_dim"])
        return {"output": poisoned(*shape, dtype=DTYPES[case.dtype], device=device)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Scores, softmax and sum in float64, one sequence and head at a time."""
        sequences = zip(inputs["query"], inputs["keys"], inputs["values"], strict=True)
        return {"output": torch.stack([attention_reference(*operands, case["window"]) for operands in sequences])}

    def refusal(self, case: Case, way: str, device: str) -> str | None:
        """Why not: the format, the shape, or no Triton."""
        return attention_refusal(self, case, way, device)


def attention_refusal(benchmark: Benchmark, case: Case, way: str, device: str) -> str | None:
    """Why `way` cannot run an attention case, in a few words; None if it can."""
    if way not in benchmark.ways:
        return f"there is no way {way}"
    if case.dtype not in benchmark.dtypes:
        return f"no kernel for {case.dtype}"
    stored = str(case.columns.get("kv_dtype", case.dtype))
    if stored not in (case.dtype, "fp8"):
        return "the cache must have the queries' format, or fp8"
    if stored != case.dtype and way == "torch":
        return f"PyTorch's attention reads no {stored} cache"
    if case["heads"] % case["kv_heads"]:
        return "heads must be a multiple of kv_heads"
    if case["q_len"] > case["kv_len"]:
        return "kv_len must count the new tokens"
    if way != "triton":
        return None
    if case["head_dim"] > max(HEAD_DIMS):
        return f"head_dim over {max(HEAD_DIMS)}"
    return triton_refusal(device) or format_refusal(stored, device)


def _cut(case: Case) -> bool:
    """Whether the window hides anything."""
    return 0 < case["window"] < case["kv_len"]


def _has_windows(device: str) -> bool:
    """Whether this PyTorch has attention with windows for the device: variable-length FlashAttention, on GPUs."""
    return device.startswith("cuda") and _varlen() is not None


def _varlen() -> Any:
    """`torch.nn.attention.varlen.varlen_attn`, if there is one that knows windows and grouped heads."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"window_size", "enable_gqa"} <= known.keys() else None


def _triton(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    """The project's FlashAttention."""
    from roofline.validate.kernels.programs.prefill import prefill

    prefill(inputs["query"], inputs["keys"], inputs["values"], outputs["output"], case["window"])


def _torch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    """The fastest path that PyTorch has for the mask: causal, causal from the end, a window, else an explicit mask."""
    query, keys, values = transposed(inputs["query"], inputs["keys"], inputs["values"])
    grouped = case["heads"] != case["kv_heads"]
    if "mask" in inputs:
        result = scaled_dot_product_attention(query, keys, values, attn_mask=inputs["mask"], enable_gqa=grouped)
    elif "query_starts" in inputs:
        deliver(_windowed(case, inputs), outputs["output"])
        return
    elif case["q_len"] == case["kv_len"]:
        result = scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=grouped)
    elif case["q_len"] == 1:
        result = scaled_dot_product_attention(query, keys, values, enable_gqa=grouped)
    else:
        result = lower_right(query, keys, values)
    deliver(result.transpose(1, 2), outputs["output"])


def lower_right(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """PyTorch's attention, causal from the end; operands and result (batch, heads, tokens, head_dim)."""
    from torch.nn.attention.bias import causal_lower_right

    bias: Any = causal_lower_right(query.shape[2], keys.shape[2])
    grouped = query.shape[1] != keys.shape[1]
    return scaled_dot_product_attention(query, keys, values, attn_mask=bias, enable_gqa=grouped)


def _windowed(case: Case, inputs: Tensors) -> torch.Tensor:
    """PyTorch's variable-length attention over equal lengths; (batch, q_len, heads, head_dim)."""
    query, keys, values = inputs["query"], inputs["keys"], inputs["values"]
    result: torch.Tensor = _varlen()(
        query.flatten(0, 1),
        keys.flatten(0, 1),
        values.flatten(0, 1),
        inputs["query_starts"],
        inputs["key_starts"],
        case["q_len"],
        case["kv_len"],
        window_size=(case["window"] - 1, 0),
        enable_gqa=case["heads"] != case["kv_heads"],
    )
    return result.view(query.shape)


PREFILL = Prefill()
"""The benchmark of op `attention_prefill`."""
