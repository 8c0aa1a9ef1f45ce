"""Benchmarks of causal attention: `attention_prefill` (many queries) and `attention_decode` (a few, paged cache).

Prefill: operands are laid out as engines have them after the projections, token by token, heads side by side. Decode:
this project's kernel splits the keys and reads the cache through a block table, as engines do; pages are shuffled.
PyTorch reads a contiguous copy that is gathered when the inputs are made: the gather is not timed, which favours it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from roofline.validate.kernels.benchmark import Benchmark, Tensors, torch_dtype
from roofline.validate.kernels.eager import attend
from roofline.validate.kernels.tools import (
    Random,
    assign,
    attention_reference,
    format_refusal,
    heads_first,
    poisoned,
    triton_refusal,
)
from roofline.validate.kernels.work import Case

MAX_HEAD_DIM = 256
"""The largest head dimension of the Triton kernels."""

UNWINDOWED = "PyTorch has no attention that skips the keys before a window"

PAGE_SIZE = 16
"""Tokens of a page, vLLM's default."""


class AttentionBenchmark(Benchmark):
    """Attention of the last `q_len` of `kv_len` tokens: causal, with GQA and an optional sliding window.

    A cache in fp8 has a scale of one (another would only be a factor of scores and output) and is converted to the
    queries' format by the Triton kernel as it reads; PyTorch has no kernel for it.
    """

    dtypes = ("fp16", "bf16")
    mixed = ("bf16/fp8",)

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        shape = (case["batch"], case["q_len"], case["heads"], case["head_dim"])
        return {"output": poisoned(*shape, dtype=case.dtype, device=device)}

    def _refusal(self, case: Case, backend: str, device: str) -> str | None:
        if case.kv_dtype not in (case.dtype, "fp8"):
            return "the cache must have the queries' format, or fp8"
        if case.kv_dtype != case.dtype and backend != "triton":
            return f"PyTorch's attention reads no {case.kv_dtype} cache"
        if backend != "triton" and case["q_len"] > 1 and 0 < case["window"] < case["kv_len"]:
            return UNWINDOWED
        if case["heads"] % case["kv_heads"]:
            return "heads must be a multiple of kv_heads"
        if case["q_len"] > case["kv_len"]:
            return "kv_len must count the new tokens"
        if backend != "triton":
            return None
        if case["head_dim"] > MAX_HEAD_DIM:
            return f"head_dim over {MAX_HEAD_DIM}"
        return triton_refusal(device) or format_refusal(case.kv_dtype, device)


class Prefill(AttentionBenchmark):
    """Prefill attention over a contiguous cache.

    Inputs `query` (batch, q_len, heads, head_dim), `keys` and `values` (batch, kv_len, kv_heads, head_dim); output
    `output`, like `query`.
    """

    op = "attention_prefill"

    def __init__(self) -> None:
        self.backends = {"triton": _triton_prefill, "torch": _torch, "torch_flash": _torch_flash}

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        random, head_dim = Random(device, seed), case["head_dim"]
        operands = {"query": random.normal(case["batch"], case["q_len"], case["heads"], head_dim, dtype=case.dtype)}
        for name in ("keys", "values"):
            drawn = random.normal(case["batch"], case["kv_len"], case["kv_heads"], head_dim, dtype=case.dtype)
            operands[name] = drawn.to(torch_dtype(case.kv_dtype))
        return operands

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        sequences = zip(inputs["query"], inputs["keys"], inputs["values"], strict=True)
        return {"output": torch.stack([attention_reference(*operands, case["window"]) for operands in sequences])}


class Decode(AttentionBenchmark):
    """Decode attention over a paged cache.

    Inputs `query` (batch, q_len, heads, head_dim); `key_cache` and `value_cache` (pages, page, kv_heads, head_dim);
    `block_table` (batch, pages a sequence) and `lengths` (batch) of int32; output `output`, like `query`. For PyTorch
    alone: `keys` and `values` (batch, kv_len, kv_heads, head_dim), gathered. Beyond the operands of the schema a kernel
    reads the block table and the lengths, 4 bytes a page and sequence, and the last page of a sequence may hold unused
    slots, which are poisoned.
    """

    op = "attention_decode"

    def __init__(self, page: int = PAGE_SIZE) -> None:
        self.page = page
        self.backends = {"triton": _triton_decode, "torch": _torch, "torch_flash": _torch_flash}

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Operands for sequences of one length, on shuffled pages."""
        random, batch, kv_len = Random(device, seed), case["batch"], case["kv_len"]
        pages = math.ceil(kv_len / self.page)
        table = random.permutation(batch * pages).view(batch, pages)
        operands = {
            "query": random.normal(batch, case["q_len"], case["heads"], case["head_dim"], dtype=case.dtype),
            "block_table": table.to(torch.int32),
            "lengths": torch.full((batch,), kv_len, dtype=torch.int32, device=device),
        }
        shape = (batch * pages, self.page, case["kv_heads"], case["head_dim"])
        for cache, gathered in (("key_cache", "keys"), ("value_cache", "values")):
            stored = random.normal(*shape, dtype=case.dtype)
            stored[table[:, -1], kv_len - (pages - 1) * self.page :] = math.nan
            operands[cache] = stored.to(torch_dtype(case.kv_dtype))
            if case.kv_dtype == case.dtype:
                operands[gathered] = stored[table].flatten(1, 2)[:, :kv_len].contiguous()
        return operands

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        sequences = []
        for query, pages, count in zip(inputs["query"], inputs["block_table"], inputs["lengths"].tolist(), strict=True):
            keys, values = (inputs[cache][pages].flatten(0, 1)[:count] for cache in ("key_cache", "value_cache"))
            sequences.append(attention_reference(query, keys, values, case["window"]))
        return {"output": torch.stack(sequences)}

    def _refusal(self, case: Case, backend: str, device: str) -> str | None:
        if self.page & (self.page - 1):
            return "a page must be a power of two"
        return super()._refusal(case, backend, device)


class EagerAttention(Benchmark):
    """Attention as `measure.decoder` runs it, over a cache that already holds the new keys: the benchmark on CPUs.

    Inputs `query` (batch, heads, q_len, head_dim), `keys` and `values` (batch, kv_heads, kv_len, head_dim); output
    `output`, like `query`.
    """

    dtypes = ("fp32", "bf16", "fp16")

    def __init__(self, op: str) -> None:
        self.op = op
        self.backends = {"torch": _attend}

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        random, batch, width = Random(device, seed), case["batch"], case["head_dim"]
        heads = {"query": ("heads", "q_len"), "keys": ("kv_heads", "kv_len"), "values": ("kv_heads", "kv_len")}
        return {
            name: random.normal(batch, case[count], case[tokens], width, dtype=case.dtype)
            for name, (count, tokens) in heads.items()
        }

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        shape = (case["batch"], case["heads"], case["q_len"], case["head_dim"])
        return {"output": poisoned(*shape, dtype=case.dtype, device=device)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        sequences = zip(*heads_first(inputs["query"], inputs["keys"], inputs["values"]), strict=True)
        exact = [attention_reference(query, keys, values, case["window"]) for query, keys, values in sequences]
        return {"output": torch.stack(exact).transpose(1, 2)}

    def _refusal(self, case: Case, backend: str, device: str) -> str | None:
        del backend, device
        if case.kv_dtype != case.dtype:
            return f"PyTorch has no attention over a cache in {case.kv_dtype}"
        if case["window"] and case["q_len"] > 1:
            return UNWINDOWED
        return None


def _attend(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    outputs["output"].copy_(attend(inputs["query"], inputs["keys"], inputs["values"], case["window"]))


def _triton_prefill(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    from roofline.validate.kernels.triton_kernels.prefill import prefill

    prefill(inputs["query"], inputs["keys"], inputs["values"], outputs["output"], case["window"])


def _causal_lower_right(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """PyTorch's attention, causal and aligned to the last key; operands and result (batch, heads, tokens, head_dim)."""
    from torch.nn.attention.bias import causal_lower_right

    bias: Any = causal_lower_right(query.shape[2], keys.shape[2])
    gqa = query.shape[1] != keys.shape[1]
    return scaled_dot_product_attention(query, keys, values, attn_mask=bias, enable_gqa=gqa)


def _triton_decode(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    from roofline.validate.kernels.triton_kernels.decode import decode

    cache = inputs["key_cache"], inputs["value_cache"]
    decode(inputs["query"], *cache, inputs["block_table"], inputs["lengths"], outputs["output"], case["window"])


def _torch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    """PyTorch's fastest path: for a single query a window is a slice of the keys, several are causal."""
    query, keys, values = heads_first(inputs["query"], inputs["keys"], inputs["values"])
    gqa, window = case["heads"] != case["kv_heads"], case["window"]
    if case["q_len"] == 1:
        if window:
            keys, values = keys[:, :, -window:], values[:, :, -window:]
        result = scaled_dot_product_attention(query, keys, values, enable_gqa=gqa)
    elif case["q_len"] == case["kv_len"]:
        result = scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=gqa)
    else:
        result = _causal_lower_right(query, keys, values)
    assign(outputs["output"], result.transpose(1, 2))


def _torch_flash(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    """PyTorch's own FlashAttention, where its fastest path may be cuDNN's."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        _torch(case, inputs, outputs)


PREFILL = Prefill()
DECODE = Decode()
