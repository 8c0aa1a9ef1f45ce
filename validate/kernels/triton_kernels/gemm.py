"""GEMM in Triton: C[m, n] = A[m, k] W[n, k]^T, with weights stored as (outputs, inputs).

One program computes a tile of C. Where C has too few tiles to fill the device (small m), k is split: each split leaves
partial sums in fp32 (int32 for integers), which a second kernel adds in order, so that results are deterministic.
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

from roofline.validate.kernels.tools import interpreted, multiprocessors
from roofline.validate.kernels.triton_kernels.launch import autotune, launch

SKINNY = 64
"""The largest m of a skinny GEMM, whose traffic is mostly its weights."""

MAX_SPLITS = 16
"""The most splits of k: each adds a partial sum of C in fp32, which the reduction reads."""

SPLIT_MULTIPLE = 512
"""The length of a split of k is a multiple of this, which is a multiple of every BLOCK_K and keeps reduction cheap."""

REDUCE_BLOCK = 1024
"""Elements of C that one program of the split-k reduction adds."""


def make_config(rows: int, columns: int, depth: int, warps: int, stages: int) -> Any:
    """A tile with its warps and pipeline stages; eight rows of tiles share the L2 cache."""
    tile = {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": depth, "GROUP": 8}
    return triton.Config(tile, num_warps=warps, num_stages=stages)


_SKINNY = ((32, 128, 4, 5), (64, 128, 4, 4), (128, 64, 4, 5), (64, 256, 4, 3))
"""Columns, depth in 16-bit elements, warps, stages."""

_TALL = (
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (128, 128, 64, 8, 3),
    (128, 128, 64, 4, 4),
    (128, 128, 32, 8, 4),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 4, 4),
)
"""Rows, columns, depth in 16-bit elements, warps, stages."""

_TALL_FP32 = ((128, 128, 16, 8, 3), (128, 64, 16, 4, 3), (64, 64, 32, 4, 3), (64, 32, 32, 4, 4))
"""The same in fp32, which runs on the vector units: registers limit the tile."""


_UNALIGNED = ((32, 64, 32, 4, 3), (64, 64, 32, 4, 3), (64, 32, 32, 4, 3), (16, 64, 64, 4, 3))
"""The same where n or k is no multiple of `ALIGNED`: every element has an address of its own, which takes registers."""

ALIGNED = 16
"""Sizes that are multiples of this let a thread load and store 16 bytes at once; Triton specializes kernels on it."""


def skinny_rows(m: int) -> int:
    """The height of tiles of a skinny GEMM, at least the tensor core's 16."""
    return max(16, int(triton.next_power_of_2(min(m, SKINNY))))


def configs_for(m: int, width: int, aligned: bool = True) -> list[Any]:
    """The tiles to tune over for m rows of operands of `width` bytes an element."""
    if interpreted():
        return [make_config(32, 32, 128, 4, 1)]
    if not aligned:
        return [make_config(*tile) for tile in _UNALIGNED if tile[0] <= max(16, 2 * m)]
    if m <= SKINNY:
        return [make_config(skinny_rows(m), n, k * 2 // width, w, s) for n, k, w, s in _SKINNY]
    if width == 4:
        return [make_config(*tile) for tile in _TALL_FP32]
    return [make_config(rows, columns, k * 2 // width, w, s) for rows, columns, k, w, s in _TALL]


def _prune(_: Sequence[Any], arguments: Mapping[str, Any], **__: Any) -> list[Any]:
    aligned = arguments["n"] % ALIGNED == 0 and arguments["k"] % ALIGNED == 0
    return configs_for(arguments["m"], arguments["a"].element_size(), aligned)


def splits_for(m: int, n: int, k: int, device: str) -> int:
    """The splits of k with which a skinny GEMM fills the device about twice."""
    if m > SKINNY:
        return 1
    tiles = -(-n // 64)
    return max(1, min(2 * multiprocessors(device) // tiles, k // SPLIT_MULTIPLE, MAX_SPLITS))


@triton.jit
def swizzled_tile(tile, rows, columns, GROUP: tl.constexpr):
    """Row and column of a tile: down `GROUP` rows of tiles, then to the next column, so that these share W in L2."""
    group = tile // (GROUP * columns)
    first = group * GROUP
    height = tl.minimum(rows - first, GROUP)
    inside = tile % (GROUP * columns)
    return first + inside % height, inside // height


@triton.jit
def round_to(sums, dtype: tl.constexpr, UPCAST: tl.constexpr):
    """`sums` in the output's type, rounded to nearest; the interpreter truncates to bf16, so it rounds here."""
    if UPCAST and dtype == tl.bfloat16:
        bits = sums.to(tl.int32, bitcast=True)
        sums = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    return sums.to(dtype)


@triton.jit
def load_block(pointers, mask, EVEN: tl.constexpr, UPCAST: tl.constexpr):
    """A block of an operand; masked unless `EVEN`, converted to fp32 with `UPCAST` (for the interpreter)."""
    block = tl.load(pointers) if EVEN else tl.load(pointers, mask=mask, other=0.0)
    if UPCAST:
        block = block.to(tl.float32)
    return block


@autotune(
    configs_for(1, 2) + ([] if interpreted() else configs_for(SKINNY + 1, 2)), ["m", "n", "k", "split_length"], _prune
)
@triton.heuristics({"EVEN": lambda arguments: arguments["k"] % arguments["BLOCK_K"] == 0})
@triton.jit(do_not_specialize=["m"])
def _gemm(
    a, w, c, row_scales, column_scales, m, n, k, split_length,
    INTEGER: tl.constexpr, SCALED: tl.constexpr, UPCAST: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of one split of C; split s is at c + s m n.

    Rows and columns outside of C are computed from the last ones inside and not stored; only k needs masks. `INTEGER`:
    int32 sums. `UPCAST`: multiply in fp32, for the interpreter, which reads bf16 operands as integers.
    """
    SUM: tl.constexpr = tl.int32 if INTEGER else tl.float32
    split = tl.program_id(1)
    row, column = swizzled_tile(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    start = split * split_length
    end = tl.minimum(start + split_length, k)
    left = a + start + tl.minimum(rows, m - 1).to(tl.int64)[:, None] * k + depth[None, :]
    right = w + start + tl.minimum(columns, n - 1).to(tl.int64)[None, :] * k + depth[:, None]
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=SUM)
    for offset in range(start, end, BLOCK_K):
        inside = depth < end - offset
        x = load_block(left, inside[None, :], EVEN, UPCAST and not INTEGER)
        y = load_block(right, inside[:, None], EVEN, UPCAST and not INTEGER)
        sums = tl.dot(x, y, sums, input_precision="ieee", out_dtype=SUM)
        left += BLOCK_K
        right += BLOCK_K
    if SCALED:
        by_row = tl.load(row_scales + rows, mask=rows < m, other=0.0)
        by_column = tl.load(column_scales + columns, mask=columns < n, other=0.0)
        result = sums.to(tl.float32) * by_row[:, None] * by_column[None, :]
    else:
        result = sums
    target = c + split.to(tl.int64) * m * n + rows.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(target, round_to(result, c.dtype.element_ty, UPCAST), mask=(rows < m)[:, None] & (columns < n)[None, :])


@triton.jit
def _reduce_splits(
    partial, c, row_scales, column_scales, n, size, splits,
    SCALED: tl.constexpr, UPCAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`BLOCK` of the `size` elements of C: the splits of k added in order, then scaled."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    source = partial + index
    sums = tl.load(source, mask=inside, other=0.0)
    for _ in range(1, splits):
        source += size
        sums += tl.load(source, mask=inside, other=0.0)
    if SCALED:
        by_row = tl.load(row_scales + index // n, mask=inside, other=0.0)
        by_column = tl.load(column_scales + index % n, mask=inside, other=0.0)
        result = sums.to(tl.float32) * by_row * by_column
    else:
        result = sums
    tl.store(c + index, round_to(result, c.dtype.element_ty, UPCAST), mask=inside)


def reduce_splits(
    partial: torch.Tensor,
    output: torch.Tensor,
    row_scales: torch.Tensor | None = None,
    column_scales: torch.Tensor | None = None,
) -> None:
    """Fill output (m, n) with the sum over partial (splits, m, n), times the scales of its rows and columns."""
    splits, m, n = partial.shape
    scaled = row_scales is not None
    launch(
        _reduce_splits,
        (triton.cdiv(m * n, REDUCE_BLOCK),),
        *(partial, output, row_scales, column_scales, n, m * n, splits),
        SCALED=scaled,
        UPCAST=interpreted(),
        BLOCK=REDUCE_BLOCK,
    )


def gemm(
    a: torch.Tensor,
    w: torch.Tensor,
    output: torch.Tensor,
    row_scales: torch.Tensor | None = None,
    column_scales: torch.Tensor | None = None,
    splits: int | None = None,
    config: Any = None,
) -> None:
    """Fill output (m, n) with a (m, k) times w (n, k) transposed, both of one format.

    Sums are fp32, or int32 for int8; with fp32 `row_scales` (m elements) and `column_scales` (n) the output is scaled,
    without them int8 operands may have an int32 output. `splits` and `config` override the heuristic and the tuning.
    """
    (m, k), n = a.shape, w.shape[0]
    assert w.shape == (n, k)
    assert output.shape == (m, n)
    assert all(tensor.is_contiguous() for tensor in (a, w, output))
    splits = splits_for(m, n, k, str(a.device)) if splits is None else splits
    split_length = k
    if splits > 1:
        split_length = triton.cdiv(k, splits * SPLIT_MULTIPLE) * SPLIT_MULTIPLE
        splits = triton.cdiv(k, split_length)
    integer = a.dtype == torch.int8
    target, scaled = output, row_scales is not None
    if splits > 1:
        target = torch.empty(splits, m, n, dtype=torch.int32 if integer else torch.float32, device=a.device)
        scaled = False
    kernel = _gemm if config is None else _gemm.fn
    launch(
        kernel,
        lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]), splits),
        *(a, w, target, row_scales if scaled else None, column_scales if scaled else None, m, n, k, split_length),
        INTEGER=integer,
        SCALED=scaled,
        UPCAST=interpreted(),
        **({} if config is None else config.all_kwargs()),
    )
    if splits > 1:
        reduce_splits(target, output, row_scales, column_scales)
