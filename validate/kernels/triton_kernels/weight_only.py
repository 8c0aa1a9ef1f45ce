"""W4A16 GEMM in Triton: C[m, n] = A[m, k] W[n, k]^T, with 4-bit weights converted to bf16 inside the kernel.

A group of 128 weights along k shares an fp16 scale. In its 64 bytes, byte j holds weight j in the low and weight 64 + j
in the high four bits, each plus 8: the two halves are two dot products, and nothing has to be interleaved. Integers
from -8 to 7 are exact in bf16, and the scale multiplies the group's sums in fp32, so that weights are never rounded.

The weights are the left operand, tokens the right one (C^T is computed): tensor cores take the left operand from
registers, where the weights are unpacked, and need at least 64 rows, which the weights have and a few tokens do not.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-untyped-decorators=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: N803, N806

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]

from roofline.validate.kernels.tools import interpreted
from roofline.validate.kernels.triton_kernels.gemm import (
    SKINNY,
    reduce_splits,
    round_to,
    skinny_rows,
    splits_for,
    swizzled_tile,
)
from roofline.validate.kernels.triton_kernels.launch import autotune, launch
from roofline.validate.kernels.work import GROUP

_SKINNY = ((64, 4, 4), (64, 4, 6), (128, 4, 4), (128, 8, 5), (32, 4, 6))
"""Weight rows, warps, stages."""

_TALL = ((128, 128, 8, 3), (128, 64, 4, 4), (128, 64, 8, 4), (64, 128, 4, 4), (64, 64, 4, 4))
"""Tokens, weight rows, warps, stages."""


def make_config(rows: int, columns: int, warps: int, stages: int) -> Any:
    """A tile of `rows` tokens and `columns` weight rows with its warps and pipeline stages."""
    return triton.Config({"BLOCK_M": rows, "BLOCK_N": columns, "TILES": 8}, num_warps=warps, num_stages=stages)


def configs_for(m: int) -> list[Any]:
    """The tiles to tune over for m rows."""
    if interpreted():
        return [make_config(32, 32, 4, 1)]
    if m <= SKINNY:
        return [make_config(skinny_rows(m), *tile) for tile in _SKINNY]
    return [make_config(*tile) for tile in _TALL]


@triton.jit
def _dequantize(bits, UPCAST: tl.constexpr):
    """Integers from 0 to 15, minus 8, in bf16: they are the last bits of 0x4300, which is 128."""
    numbers = (bits.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)
    if UPCAST:
        numbers = numbers.to(tl.float32)
    return numbers - 136.0


@autotune(
    configs_for(1) + ([] if interpreted() else configs_for(SKINNY + 1)),
    ["m", "n", "k", "split_length"],
    lambda _, arguments, **__: configs_for(arguments["m"]),
)
@triton.jit(do_not_specialize=["m"])
def _weight_only_gemm(
    a, w, scales, c, m, n, k, split_length,
    SIZE: tl.constexpr, UPCAST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One tile of one split of C, a group of `SIZE` inputs at a time; split s is at c + s m n."""
    HALF: tl.constexpr = SIZE // 2
    split = tl.program_id(1)
    row, column = swizzled_tile(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), TILES)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    clamped = tl.minimum(columns, n - 1)
    depth = tl.arange(0, HALF)
    start = split * split_length
    end = tl.minimum(start + split_length, k)
    packed = w + start // 2 + clamped.to(tl.int64)[:, None] * (k // 2) + depth[None, :]
    tokens = a + start + tl.minimum(rows, m - 1).to(tl.int64)[None, :] * k + depth[:, None]
    group_scales = scales + (start // SIZE) * n + clamped
    sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for _ in range(start, end, SIZE):
        pairs = tl.load(packed)
        first = tl.load(tokens)
        second = tl.load(tokens + HALF)
        if UPCAST:
            first = first.to(tl.float32)
            second = second.to(tl.float32)
        group = tl.dot(_dequantize(pairs & 15, UPCAST), first)
        group = tl.dot(_dequantize(pairs >> 4, UPCAST), second, group)
        sums += group * tl.load(group_scales).to(tl.float32)[:, None]
        packed += HALF
        tokens += SIZE
        group_scales += n
    target = c + split.to(tl.int64) * m * n + rows.to(tl.int64)[None, :] * n + columns[:, None]
    tl.store(target, round_to(sums, c.dtype.element_ty, UPCAST), mask=(rows < m)[None, :] & (columns < n)[:, None])


def weight_only_gemm(
    a: torch.Tensor,
    w: torch.Tensor,
    scales: torch.Tensor,
    output: torch.Tensor,
    splits: int | None = None,
    config: Any = None,
) -> None:
    """Fill output (m, n) with a (m, k), bf16, times w transposed: w (n, k / 2) in bytes, scales (k / 128, n) in fp16.

    `splits` and `config` override the heuristic and the tuning.
    """
    (m, k), n = a.shape, w.shape[0]
    assert k % GROUP == 0
    assert w.shape == (n, k // 2)
    assert scales.shape == (k // GROUP, n)
    assert output.shape == (m, n)
    assert all(tensor.is_contiguous() for tensor in (a, w, scales, output))
    splits = splits_for(m, n, k, str(a.device)) if splits is None else splits
    split_length = triton.cdiv(k // GROUP, splits) * GROUP
    splits = triton.cdiv(k, split_length)
    target = output
    if splits > 1:
        target = torch.empty(splits, m, n, dtype=torch.float32, device=a.device)
    kernel = _weight_only_gemm if config is None else _weight_only_gemm.fn
    launch(
        kernel,
        lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]), splits),
        *(a, w, scales, target, m, n, k, split_length),
        SIZE=GROUP,
        UPCAST=interpreted(),
        **({} if config is None else config.all_kwargs()),
    )
    if splits > 1:
        reduce_splits(target, output)
