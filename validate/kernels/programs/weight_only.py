"""Products with 4-bit weights in Triton: C[m, n] = A[m, k] W[n, k]^T, weights widened to bf16 inside the program.

A group of 128 weights along k shares an fp16 scale. In its 64 bytes, byte j holds weight j in the low and weight 64 + j
in the high four bits, each plus 8: the two halves are two products, and nothing has to be interleaved. Integers from -8
to 7 are exact in bf16, and the scale of a group multiplies the group's sums in fp32, so that weights are never rounded.

The weights are the left operand, tokens the right one (C^T is computed): matrix units take the left operand from
registers, where the weights are unpacked, and need at least 64 rows, which the weights have and few tokens do not.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-untyped-decorators=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: N803, N806

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]

from roofline.validate.kernels.programs.gemm import SKINNY, add_parts, narrow, place, skinny_rows, splits_for
from roofline.validate.kernels.tools import interpreted
from roofline.validate.kernels.work import GROUP

_SKINNY = ((64, 4, 4), (64, 4, 6), (128, 4, 4), (128, 8, 5), (32, 4, 6))
"""Weight rows, warps, stages."""

_TALL = ((128, 128, 8, 3), (128, 64, 4, 4), (128, 64, 8, 4), (64, 128, 4, 4), (64, 64, 4, 4))
"""Tokens, weight rows, warps, stages."""


def config(rows: int, columns: int, warps: int, stages: int) -> Any:
    """A tile of `rows` tokens and `columns` weight rows, its warps, and how many loads are in flight."""
    return triton.Config({"BLOCK_M": rows, "BLOCK_N": columns, "TILES": 8}, num_warps=warps, num_stages=stages)


def configs_for(m: int) -> list[Any]:
    """The tiles worth trying for m rows."""
    if interpreted():
        return [config(32, 32, 4, 1)]
    if m <= SKINNY:
        return [config(skinny_rows(m), *tile) for tile in _SKINNY]
    return [config(*tile) for tile in _TALL]


def _prune(_: Sequence[Any], arguments: Mapping[str, Any], **__: Any) -> list[Any]:
    return configs_for(arguments["m"])


@triton.jit
def _widen(bits, WIDEN: tl.constexpr):
    """Integers 0 to 15 plus -8 as bf16: 0x4300 is 128, of which they are the last bits."""
    numbers = (bits.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)
    if WIDEN:
        numbers = numbers.to(tl.float32)
    return numbers - 136.0


@triton.autotune(
    configs=configs_for(1) + ([] if interpreted() else configs_for(SKINNY + 1)),
    key=["m", "n", "k", "span"],
    prune_configs_by={"early_config_prune": _prune},
)
@triton.jit
def _product(
    a,
    w,
    scales,
    c,
    m,
    n,
    k,
    span,
    SIZE: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILES: tl.constexpr,
):
    """One tile of one part of the product, a group of `SIZE` inputs at a time; part p of c is at c + p m n."""
    HALF: tl.constexpr = SIZE // 2
    part = tl.program_id(1)
    row, column = place(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), TILES)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    known = tl.minimum(columns, n - 1)
    depth = tl.arange(0, HALF)
    start = part * span
    end = tl.minimum(start + span, k)
    packed = w + start // 2 + known.to(tl.int64)[:, None] * (k // 2) + depth[None, :]
    tokens = a + start + tl.minimum(rows, m - 1).to(tl.int64)[None, :] * k + depth[:, None]
    factors = scales + (start // SIZE) * n + known
    sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for _ in range(start, end, SIZE):
        pairs = tl.load(packed)
        first = tl.load(tokens)
        second = tl.load(tokens + HALF)
        if WIDEN:
            first = first.to(tl.float32)
            second = second.to(tl.float32)
        group = tl.dot(_widen(pairs & 15, WIDEN), first)
        group = tl.dot(_widen(pairs >> 4, WIDEN), second, group)
        sums += group * tl.load(factors).to(tl.float32)[:, None]
        packed += HALF
        tokens += SIZE
        factors += n
    target = c + part.to(tl.int64) * m * n + rows.to(tl.int64)[None, :] * n + columns[:, None]
    tl.store(target, narrow(sums, c.dtype.element_ty, WIDEN), mask=(rows < m)[None, :] & (columns < n)[:, None])


def multiply(
    a: torch.Tensor,
    w: torch.Tensor,
    scales: torch.Tensor,
    output: torch.Tensor,
    splits: int | None = None,
    tile: Any = None,
) -> None:
    """Fill output (m, n) with a (m, k), bf16, times w transposed: w (n, k / 2) in bytes, scales (k / 128, n) in fp16.

    `splits` and `tile` replace the choice of parts of k and of tiles.
    """
    (m, k), n = a.shape, w.shape[0]
    assert k % GROUP == 0
    assert w.shape == (n, k // 2)
    assert scales.shape == (k // GROUP, n)
    assert output.shape == (m, n)
    assert all(tensor.is_contiguous() for tensor in (a, w, scales, output))
    splits = splits_for(m, n, k, str(a.device)) if splits is None else splits
    span = triton.cdiv(k // GROUP, splits) * GROUP
    splits = triton.cdiv(k, span)
    target = output
    if splits > 1:
        target = torch.empty(splits, m, n, dtype=torch.float32, device=a.device)
    kernel = _product if tile is None else _product.fn
    kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]), splits)](
        a,
        w,
        scales,
        target,
        m,
        n,
        k,
        span,
        SIZE=GROUP,
        WIDEN=interpreted(),
        **({} if tile is None else tile.all_kwargs()),
    )
    if splits > 1:
        add_parts(target, output)
