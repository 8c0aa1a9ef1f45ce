"""Matrix products C[m, n] = A[m, k] W[n, k]^T in Triton, weights stored as (outputs, inputs).

One program computes a tile of C. Where C has too few tiles to fill the device (few rows), k is split: each part leaves
its sums in fp32 (int32 for integers), and a second kernel adds them in order, so that results do not depend on timing.
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

from roofline.validate.kernels.tools import interpreted, processors

SKINNY = 64
"""Rows up to which a product streams its weights and little else."""

SPLITS = 16
"""Most parts of k."""

PART = 512
"""Inputs that parts of k are multiples of: enough that adding parts stays cheap, and a multiple of every depth."""

REDUCED = 1024
"""Elements of C that one program adds the parts of."""


def config(rows: int, columns: int, depth: int, warps: int, stages: int) -> Any:
    """A tile, how many warps compute it, and how many loads are in flight; eight rows of tiles share the L2 cache."""
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
"""The same in fp32, which runs on the vector unit: registers limit the tile."""


def skinny_rows(m: int) -> int:
    """The height of tiles for few rows; the matrix unit's least is 16."""
    return max(16, int(triton.next_power_of_2(min(m, SKINNY))))


def configs_for(m: int, width: int) -> list[Any]:
    """The tiles worth trying for m rows of operands of `width` bytes an element."""
    if interpreted():
        return [config(32, 32, 128, 4, 1)]
    if m <= SKINNY:
        return [config(skinny_rows(m), n, k * 2 // width, w, s) for n, k, w, s in _SKINNY]
    if width == 4:
        return [config(*tile) for tile in _TALL_FP32]
    return [config(rows, columns, k * 2 // width, w, s) for rows, columns, k, w, s in _TALL]


def _prune(_: Sequence[Any], arguments: Mapping[str, Any], **__: Any) -> list[Any]:
    return configs_for(arguments["m"], arguments["a"].element_size())


def splits_for(m: int, n: int, k: int, device: str) -> int:
    """Parts of k with which few rows fill the device about twice."""
    if m > SKINNY:
        return 1
    tiles = -(-n // 64)
    return max(1, min(2 * processors(device) // tiles, k // PART, SPLITS))


@triton.jit
def place(tile, rows, columns, GROUP: tl.constexpr):
    """Row and column of a tile: down `GROUP` rows of tiles, then to the next column, so that these share W in L2."""
    group = tile // (GROUP * columns)
    first = group * GROUP
    height = tl.minimum(rows - first, GROUP)
    inside = tile % (GROUP * columns)
    return first + inside % height, inside // height


@triton.jit
def narrow(sums, dtype: tl.constexpr, WIDEN: tl.constexpr):
    """Sums in the type of the output, rounded to nearest; the interpreter would cut bf16 off, so it rounds before."""
    if WIDEN and dtype == tl.bfloat16:
        bits = sums.to(tl.int32, bitcast=True)
        sums = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    return sums.to(dtype)


@triton.autotune(
    configs=configs_for(1, 2) + ([] if interpreted() else configs_for(SKINNY + 1, 2)),
    key=["m", "n", "k", "span"],
    prune_configs_by={"early_config_prune": _prune},
)
@triton.heuristics({"EVEN": lambda arguments: arguments["k"] % arguments["BLOCK_K"] == 0})
@triton.jit
def _product(
    a,
    w,
    c,
    row_scales,
    column_scales,
    m,
    n,
    k,
    span,
    EXACT: tl.constexpr,
    SCALED: tl.constexpr,
    WIDEN: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of one part of the product; part p of c is at c + p m n.

    Rows and columns outside are computed from the last ones inside and not stored; only k needs masks. `EXACT`: sums
    are integers. `WIDEN`: multiply in fp32, for the interpreter, which takes bf16 operands for integers.
    """
    SUM: tl.constexpr = tl.int32 if EXACT else tl.float32
    part = tl.program_id(1)
    row, column = place(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    start = part * span
    end = tl.minimum(start + span, k)
    left = a + start + tl.minimum(rows, m - 1).to(tl.int64)[:, None] * k + depth[None, :]
    right = w + start + tl.minimum(columns, n - 1).to(tl.int64)[None, :] * k + depth[:, None]
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=SUM)
    for offset in range(start, end, BLOCK_K):
        if EVEN:
            x = tl.load(left)
            y = tl.load(right)
        else:
            inside = depth < end - offset
            x = tl.load(left, mask=inside[None, :], other=0.0)
            y = tl.load(right, mask=inside[:, None], other=0.0)
        if WIDEN and not EXACT:
            x = x.to(tl.float32)
            y = y.to(tl.float32)
        sums = tl.dot(x, y, sums, input_precision="ieee", out_dtype=SUM)
        left += BLOCK_K
        right += BLOCK_K
    if SCALED:
        by_row = tl.load(row_scales + rows, mask=rows < m, other=0.0)
        by_column = tl.load(column_scales + columns, mask=columns < n, other=0.0)
        result = sums.to(tl.float32) * by_row[:, None] * by_column[None, :]
    else:
        result = sums
    target = c + part.to(tl.int64) * m * n + rows.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(target, narrow(result, c.dtype.element_ty, WIDEN), mask=(rows < m)[:, None] & (columns < n)[None, :])


@triton.jit
def _add_parts(
    parts,
    c,
    row_scales,
    column_scales,
    n,
    size,
    splits,
    SCALED: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`BLOCK` of the `size` elements of C: the parts of k added in order, then scaled."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    source = parts + index
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
    tl.store(c + index, narrow(result, c.dtype.element_ty, WIDEN), mask=inside)


def add_parts(
    parts: torch.Tensor,
    output: torch.Tensor,
    row_scales: torch.Tensor | None = None,
    column_scales: torch.Tensor | None = None,
) -> None:
    """Fill output (m, n) with the sums over parts (splits, m, n), times the scales of its rows and columns."""
    splits, m, n = parts.shape
    size = m * n
    scaled = row_scales is not None
    _add_parts[(triton.cdiv(size, REDUCED),)](
        parts, output, row_scales, column_scales, n, size, splits, SCALED=scaled, WIDEN=interpreted(), BLOCK=REDUCED
    )


def multiply(
    a: torch.Tensor,
    w: torch.Tensor,
    output: torch.Tensor,
    row_scales: torch.Tensor | None = None,
    column_scales: torch.Tensor | None = None,
    splits: int | None = None,
    tile: Any = None,
) -> None:
    """Fill output (m, n) with a (m, k) times w (n, k) transposed, both of one format.

    Sums are fp32, or int32 for int8; with fp32 `row_scales` (m elements) and `column_scales` (n) the output is scaled,
    without them int8 operands may have an int32 output. `splits` and `tile` replace the choice of parts and of tiles.
    """
    (m, k), n = a.shape, w.shape[0]
    assert w.shape == (n, k)
    assert output.shape == (m, n)
    assert all(tensor.is_contiguous() for tensor in (a, w, output))
    splits = splits_for(m, n, k, str(a.device)) if splits is None else splits
    span = k
    if splits > 1:
        span = triton.cdiv(k, splits * PART) * PART
        splits = triton.cdiv(k, span)
    exact = a.dtype == torch.int8
    target, scaled = output, row_scales is not None
    if splits > 1:
        target = torch.empty(splits, m, n, dtype=torch.int32 if exact else torch.float32, device=a.device)
        scaled = False
    kernel = _product if tile is None else _product.fn
    kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]), splits)](
        a,
        w,
        target,
        row_scales if scaled else None,
        column_scales if scaled else None,
        m,
        n,
        k,
        span,
        EXACT=exact,
        SCALED=scaled,
        WIDEN=interpreted(),
        **({} if tile is None else tile.all_kwargs()),
    )
    if splits > 1:
        add_parts(target, output, row_scales, column_scales)
