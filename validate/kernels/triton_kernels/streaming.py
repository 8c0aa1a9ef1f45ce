"""Memory-bound kernels that stream rows: RMSNorm, softmax, SwiGLU, rotary embedding, copy.

Arithmetic is in fp32. Rows that fit into one block stay in registers; wider ones are looped over, and read again (from
L2, if it holds them) for the second pass.
"""
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-any-unimported, unused-ignore"
# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-incomplete-defs=False
# ruff: noqa: N803 (compile-time constants are in capitals)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from roofline.validate.kernels.tools import interpreted
from roofline.validate.kernels.triton_kernels.launch import launch

MAX_BLOCK = 128 if interpreted() else 16384
"""Most elements of a row in one block; small where interpreted, so that tests cover the loop."""

FLAT_BLOCK = 128 if interpreted() else 4096
"""Elements of a program of an elementwise kernel, which ignores rows."""

SHORT_ROWS_BLOCK = 2048
"""Most elements of a program that takes several short rows."""

MIN_PROGRAMS = 1 if interpreted() else 256
"""Short rows are spread over this many programs before any takes several."""


@triton.jit
def _load_sum(source, residual, summed, offset, mask, STORE: tl.constexpr):
    """A block of `source` + `residual` at `offset`, stored in `summed` where `STORE`."""
    value = tl.load(source + offset, mask=mask, other=0.0).to(tl.float32)
    value += tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
    if STORE:
        tl.store(summed + offset, value.to(summed.dtype.element_ty), mask=mask)
    return value


@triton.jit
def _store_scaled(output, offset, value, factor, weight, column, columns, mask):
    """Store a block of a normalised row times its weights."""
    gain = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
    tl.store(output + offset, (value * factor * gain).to(output.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _norm(
    source, residual, weight, summed, output, rows, columns, epsilon,
    LOOP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = tl.arange(0, BLOCK)
    row_mask = (row < rows)[:, None]
    start_of = tl.cast(row, tl.int64)[:, None] * columns
    if LOOP:
        squares = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, columns, BLOCK):
            column = (start + inside)[None, :]
            mask = row_mask & (column < columns)
            value = _load_sum(source, residual, summed, start_of + column, mask, True)
            squares += value * value
        factor = tl.rsqrt(tl.sum(squares, 1) / columns + epsilon)[:, None]
        for start in range(0, columns, BLOCK):
            column = (start + inside)[None, :]
            mask = row_mask & (column < columns)
            value = _load_sum(source, residual, summed, start_of + column, mask, False)
            _store_scaled(output, start_of + column, value, factor, weight, column, columns, mask)
    else:
        column = inside[None, :]
        mask = row_mask & (column < columns)
        value = _load_sum(source, residual, summed, start_of + column, mask, True)
        factor = tl.rsqrt(tl.sum(value * value, 1) / columns + epsilon)[:, None]
        _store_scaled(output, start_of + column, value, factor, weight, column, columns, mask)


@triton.jit(do_not_specialize=["rows"])
def _softmax(source, output, rows, columns, LOOP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = tl.arange(0, BLOCK)
    row_mask = (row < rows)[:, None]
    offset = tl.cast(row, tl.int64)[:, None] * columns
    if LOOP:
        # The first block holds at least one element of the row, so that the maximum is finite.
        row_max = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        for start in range(0, columns, BLOCK):
            column = (start + inside)[None, :]
            value = tl.load(source + offset + column, mask=column < columns, other=float("-inf")).to(tl.float32)
            new_max = tl.maximum(row_max, tl.max(value, 1))
            total = total * tl.exp(row_max - new_max) + tl.sum(tl.exp(value - new_max[:, None]), 1)
            row_max = new_max
        for start in range(0, columns, BLOCK):
            column = (start + inside)[None, :]
            mask = row_mask & (column < columns)
            value = tl.load(source + offset + column, mask=mask, other=0.0).to(tl.float32)
            probability = tl.exp(value - row_max[:, None]) / total[:, None]
            tl.store(output + offset + column, probability.to(output.dtype.element_ty), mask=mask)
    else:
        column = inside[None, :]
        mask = row_mask & (column < columns)
        # Rows past the end are zeros, not minus infinity: their softmax is discarded, but must not be NaN.
        outside = tl.where(row_mask, float("-inf"), 0.0)
        value = tl.load(source + offset + column, mask=mask, other=outside).to(tl.float32)
        probability = tl.exp(value - tl.max(value, 1)[:, None])
        probability = probability / tl.sum(probability, 1)[:, None]
        tl.store(output + offset + column, probability.to(output.dtype.element_ty), mask=mask)


@triton.jit
def _swiglu(gate, up, output, count, BLOCK: tl.constexpr):
    offset = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gated = tl.load(gate + offset, mask=offset < count, other=0.0).to(tl.float32)
    value = tl.load(up + offset, mask=offset < count, other=0.0).to(tl.float32)
    value = gated / (1.0 + tl.exp(-gated)) * value
    tl.store(output + offset, value.to(output.dtype.element_ty), mask=offset < count)


@triton.jit(do_not_specialize=["blocks", "heads"])
def _rope(source, cosine, sine, output, blocks, heads, half, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.cast(tl.program_id(0) // blocks, tl.int64)
    head = (tl.program_id(0) % blocks) * HEADS + tl.arange(0, HEADS)
    inside = tl.arange(0, BLOCK)
    for start in range(0, half, BLOCK):
        index = start + inside
        valid = index < half
        mask = (head < heads)[:, None] & valid[None, :]
        cos = tl.load(cosine + row * half + index, mask=valid, other=0.0)[None, :]
        sin = tl.load(sine + row * half + index, mask=valid, other=0.0)[None, :]
        offset = (row * heads + head)[:, None] * (2 * half) + index[None, :]
        first = tl.load(source + offset, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(source + offset + half, mask=mask, other=0.0).to(tl.float32)
        target = output + offset
        tl.store(target, (first * cos - second * sin).to(output.dtype.element_ty), mask=mask)
        tl.store(target + half, (second * cos + first * sin).to(output.dtype.element_ty), mask=mask)


@triton.jit
def _copy(source, output, count, BLOCK: tl.constexpr):
    offset = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(output + offset, tl.load(source + offset, mask=offset < count), mask=offset < count)


def _warps(elements: int) -> int:
    """Warps of a program of `elements` elements: 16 a thread, for several 16-byte loads in flight."""
    return int(min(16, max(1, triton.next_power_of_2(elements) // 512)))


def _tile(rows: int, columns: int) -> tuple[bool, int, int]:
    """Whether rows are looped over, the rows of a program, and the elements of a block.

    A program takes several short rows if enough programs remain to fill a device.
    """
    block = min(MAX_BLOCK, triton.next_power_of_2(columns))
    if columns > MAX_BLOCK:
        return True, 1, block
    return False, max(1, min(SHORT_ROWS_BLOCK // block, triton.next_power_of_2(rows) // MIN_PROGRAMS)), block


def _over_rows(kernel: Any, tensors: Sequence[torch.Tensor], rows: int, columns: int, *more: float) -> None:
    """Launch a kernel on rows of so many columns, several of them a program where they are short."""
    loop, together, block = _tile(rows, columns)
    sizes = {"LOOP": loop, "ROWS": together, "BLOCK": block, "num_warps": _warps(together * block)}
    launch(kernel, (triton.cdiv(rows, together),), *tensors, rows, columns, *more, **sizes)


def _over_elements(kernel: Any, *tensors: torch.Tensor) -> None:
    """Launch a kernel on tensors of one shape, element by element."""
    count = tensors[-1].numel()
    sizes = {"BLOCK": FLAT_BLOCK, "num_warps": _warps(FLAT_BLOCK)}
    launch(kernel, (triton.cdiv(count, FLAT_BLOCK),), *tensors, count, **sizes)


def _over_heads(source: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, output: torch.Tensor) -> None:
    """Launch the rotation of each head of each row: its first half against its second."""
    rows, columns = source.shape
    half = cosine.shape[1]
    heads = columns // (2 * half)
    block = min(MAX_BLOCK // 2, triton.next_power_of_2(half))
    together = min(triton.next_power_of_2(heads), max(1, SHORT_ROWS_BLOCK // (2 * block)))
    blocks = triton.cdiv(heads, together)
    launch(
        _rope,
        (rows * blocks,),
        *(source, cosine, sine, output, blocks, heads, half),
        HEADS=together,
        BLOCK=block,
        num_warps=_warps(2 * together * block),
    )


def stream(op: str, tensors: Sequence[torch.Tensor], *more: float) -> None:
    """Run the kernel of an op on its operands and targets: contiguous, (rows, columns) but for the weight and angles.

    norm        source, residual, weight (columns), summed, output, and epsilon: RMSNorm of the sum, which is written
    softmax     source, output
    activation  gate, up, output: silu(gate) up
    rope        source, cosine, sine (rows, half of a head; fp32), output
    copy        source, output
    """
    assert all(tensor.is_contiguous() for tensor in tensors)
    if op in ("norm", "softmax"):
        _over_rows({"norm": _norm, "softmax": _softmax}[op], tensors, *tensors[0].shape, *more)
    elif op == "rope":
        _over_heads(*tensors)
    else:
        _over_elements({"activation": _swiglu, "copy": _copy}[op], *tensors)
