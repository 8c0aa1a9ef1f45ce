"""Attention of one new token, or a few, to a long cache (op `attention_decode`): split over the keys, in pages.

This project's kernel reads the cache through a block table, as engines keep it; pages are shuffled. PyTorch reads a
contiguous copy that is gathered when the inputs are made: the gather is not part of what is timed, which favours it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
from roofline.validate.kernels.prefill import attention_refusal, lower_right
from roofline.validate.kernels.work import Case

PAGE = 16
"""Tokens of a page, as vLLM has them."""


class Decode(Benchmark):
    """Attention of the last `q_len` of `kv_len` tokens to a paged cache.

    Inputs `query` (batch, q_len, heads, head_dim); `key_cache` and `value_cache` (pages, page, kv_heads, head_dim);
    `block_table` (batch, pages a sequence) and `lengths` (batch) of int32; output `output`, like `query`. For PyTorch
    alone: `keys` and `values` (batch, kv_len, kv_heads, head_dim), gathered, and where lengths differ a `mask`.
    Beyond the operands of the schema a kernel reads the block table and the lengths, 4 bytes a page and sequence, and
    the last page of a sequence may hold unused slots. A cache in fp8 is converted to the query's format by the kernel,
    as it reads it; PyTorch has nothing for it.
    """

    op = "attention_decode"
    dtypes = ("fp16", "bf16")
    mixed = ("bf16/fp8",)

    def __init__(self, page: int = PAGE) -> None:
        self.page = page

    @property
    def ways(self) -> Mapping[str, Way]:
        """The project's kernels, and PyTorch's attention over the gathered cache."""
        return {"triton": _triton, "torch": _torch}

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Sequences of one length."""
        return self.ragged(case, [case["kv_len"]] * case["batch"], device, seed)

    def ragged(self, case: Case, lengths: Sequence[int], device: str, seed: int) -> dict[str, torch.Tensor]:
        """Sequences of the given lengths, each between 0 and the case's kv_len; a slot without a token is poisoned."""
        random, dtype = Random(device, seed), DTYPES[case.dtype]
        batch, longest = case["batch"], case["kv_len"]
        kv_heads, width = case["kv_heads"], case["head_dim"]
        pages = math.ceil(longest / self.page)
        table = random.permutation(batch * pages).view(batch, pages)
        counts = torch.tensor(lengths, dtype=torch.int32, device=device)
        empty = torch.arange(pages * self.page, device=device).view(pages, self.page) >= counts[:, None, None]
        operands = {
            "query": random.normal(batch, case["q_len"], case["heads"], width, dtype=dtype),
            "block_table": table.to(torch.int32),
            "lengths": counts,
        }
        for cache, gathered in (("key_cache", "keys"), ("value_cache", "values")):
            stored = random.normal(batch * pages, self.page, kv_heads, width, dtype=dtype)
            stored[table[empty.any(-1)]] = stored[table[empty.any(-1)]].masked_fill(
                empty[empty.any(-1)][:, :, None, None], math.nan
            )
            operands[cache] = stored.to(cache_dtype(case))
            if operands[cache].dtype == dtype:
                operands[gathered] = stored[table].flatten(1, 2)[:, :longest].contiguous()
        if "keys" in operands and any(length != longest for length in lengths):
            for gathered in ("keys", "values"):
                operands[gathered].nan_to_num_(0.0)
            operands["mask"] = torch.stack([_mask(case, length, device) for length in lengths])[:, None]
        return operands

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """The poisoned output."""
        shape = (case["batch"], case["q_len"], case["heads"], case["head_dim"])
        return {"output": poisoned(*shape, dtype=DTYPES[case.dtype], device=device)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Scores, softmax and sum in float64 over the pages, one sequence and head at a time."""
        sequences = []
        for query, pages, count in zip(inputs["query"], inputs["block_table"], inputs["lengths"].tolist(), strict=True):
            keys, values = (inputs[cache][pages].flatten(0, 1)[:count] for cache in ("key_cache", "value_cache"))
            sequences.append(attention_reference(query, keys, values, case["window"]))
        return {"output": torch.stack(sequences)}

    def refusal(self, case: Case, way: str, device: str) -> str | None:
        """Why not: the format, the shape, the page, or no Triton."""
        if self.page & (self.page - 1):
            return "a page must be a power of two"
        return attention_refusal(self, case, way, device)


def _mask(case: Case, length: int, device: str) -> torch.Tensor:
    """What the queries of a sequence see of its padded keys: (q_len, kv_len) of bool."""
    mask = torch.zeros(case["q_len"], case["kv_len"], dtype=torch.bool, device=device)
    mask[:, :length] = visible(case["q_len"], length, case["window"], device)
    return mask


def _triton(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    """The project's two kernels: the splits, and what combines them."""
    from roofline.validate.kernels.programs.decode import decode

    cache = inputs["key_cache"], inputs["value_cache"]
    decode(inputs["query"], *cache, inputs["block_table"], inputs["lengths"], outputs["output"], case["window"])


def _torch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    """PyTorch's attention to the contiguous copy; a window is a slice of it for a single query."""
    query, keys, values = transposed(inputs["query"], inputs["keys"], inputs["values"])
    grouped, window = case["heads"] != case["kv_heads"], case["window"]
    cut = 0 < window < case["kv_len"]
    if "mask" in inputs:
        result = scaled_dot_product_attention(query, keys, values, attn_mask=inputs["mask"], enable_gqa=grouped)
        # A query that sees nothing: PyTorch's kernels differ in what they return.
        result = result.masked_fill(~inputs["mask"].any(-1, keepdim=True), 0.0)
    elif case["q_len"] == 1:
        if cut:
            keys, values = keys[:, :, -window:], values[:, :, -window:]
        result = scaled_dot_product_attention(query, keys, values, enable_gqa=grouped)
    elif cut:
        mask = visible(case["q_len"], case["kv_len"], window, query.device)
        result = scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=grouped)
    else:
        result = lower_right(query, keys, values)
    deliver(result.transpose(1, 2), outputs["output"])


DECODE = Decode()
"""The benchmark of op `attention_decode`."""
