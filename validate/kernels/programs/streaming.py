"""Kernels that read and write their operands once: norm, softmax, gated activation, rotary embedding, copy, triad.

Arithmetic is in fp32. Rows that fit into one block stay in registers between the passes over them; wider ones are
looped over, and read again (from the cache, if it holds them) for the second pass.
"""
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-any-unimported, unused-ignore"
# ruff: noqa: N803 (compile-time constants are in capitals)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from roofline.validate.kernels.tools import interpreted

WIDEST = 128 if interpreted() else 16384
"""Elements of a row that a program holds at once; small where interpreted, so that tests loop."""

FLAT = 128 if interpreted() else 4096
"""Elements of a program that has no rows to respect."""

HELD = 2048
"""Elements of several short rows that a program takes together."""

PROGRAMS = 1 if interpreted() else 256
"""Programs that short rows are spread over before any takes several."""


@triton.jit
def _norm(
    source: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    summed: tl.tensor,
    output: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    epsilon: tl.tensor,
    ADD: tl.constexpr,
    LOOP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = tl.arange(0, BLOCK)
    own = (row < rows)[:, None]
    place = tl.cast(row, tl.int64)[:, None] * columns
    start_of = tl.cast(row, tl.int64)[:, None] * stride
    if LOOP:
        squares = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, columns, BLOCK):
            column = (start + inside)[None, :]
            held = own & (column < columns)
            value = tl.load(source + start_of + column, mask=held, other=0.0).to(tl.float32)
            if ADD:
                value += tl.load(residual + place + column, mask=held, other=0.0).to(tl.float32)
                tl.store(summed + place + column, value.to(summed.dtype.element_ty), mask=held)
            squares += value * value
        factor = tl.rsqrt(tl.sum(squares, 1) / columns + epsilon)[:, None]
        for start in range(0, columns, BLOCK):
            column = (start + inside)[None, :]
            held = own & (column < columns)
            value = tl.load(source + start_of + column, mask=held, other=0.0).to(tl.float32)
            if ADD:
                value += tl.load(residual + place + column, mask=held, other=0.0).to(tl.float32)
            gain = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
            tl.store(output + place + column, (value * factor * gain).to(output.dtype.element_ty), mask=held)
    else:
        column = inside[None, :]
        held = own & (column < columns)
        value = tl.load(source + start_of + column, mask=held, other=0.0).to(tl.float32)
        if ADD:
            value += tl.load(residual + place + column, mask=held, other=0.0).to(tl.float32)
            tl.store(summed + place + column, value.to(summed.dtype.element_ty), mask=held)
        factor = tl.rsqrt(tl.sum(value * value, 1) / columns + epsilon)[:, None]
        gain = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
        tl.store(output + place + column, (value * factor * gain).to(output.dtype.element_ty), mask=held)


@triton.jit
def _softmax(
    source: tl.tensor,
    output: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    LOOP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = tl.arange(0, BLOCK)
    own = (row < rows)[:, None]
    place = tl.cast(row, tl.int64)[:, None] * columns
    if LOOP:
        # The first block holds at least one element of the row, so the maximum is finite from there on.
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        for start in range(0, columns, BLOCK):
            column = (start + inside)[None, :]
            value = tl.load(source + place + column, mask=column < columns, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(highest, tl.max(value, 1))
            total = total * tl.exp(highest - higher) + tl.sum(tl.exp(value - higher[:, None]), 1)
            highest = higher
        for start in range(0, columns, BLOCK):
            column = (start + inside)[None, :]
            held = own & (column < columns)
            value = tl.load(source + place + column, mask=held, other=0.0).to(tl.float32)
            share = tl.exp(value - highest[:, None]) / total[:, None]
            tl.store(output + place + column, share.to(output.dtype.element_ty), mask=held)
    else:
        column = inside[None, :]
        held = own & (column < columns)
        # Rows past the end are all zeros, not all minus infinity: their softmax is thrown away, but must not be NaN.
        outside = tl.where(own, float("-inf"), 0.0)
        value = tl.load(source + place + column, mask=held, other=outside).to(tl.float32)
        share = tl.exp(value - tl.max(value, 1)[:, None])
        share = share / tl.sum(share, 1)[:, None]
        tl.store(output + place + column, share.to(output.dtype.element_ty), mask=held)


@triton.jit
def _swiglu(
    gate: tl.tensor,
    up: tl.tensor,
    output: tl.tensor,
    blocks: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.cast(tl.program_id(0) // blocks, tl.int64)
    column = tl.cast(tl.program_id(0) % blocks, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    held = column < columns
    gated = tl.load(gate + row * stride + column, mask=held, other=0.0).to(tl.float32)
    value = tl.load(up + row * stride + column, mask=held, other=0.0).to(tl.float32)
    value = gated / (1.0 + tl.exp(-gated)) * value
    tl.store(output + row * columns + column, value.to(output.dtype.element_ty), mask=held)


@triton.jit
def _rope(
    source: tl.tensor,
    cosine: tl.tensor,
    sine: tl.tensor,
    output: tl.tensor,
    blocks: tl.tensor,
    heads: tl.tensor,
    half: tl.tensor,
    stride: tl.tensor,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.cast(tl.program_id(0) // blocks, tl.int64)
    head = (tl.program_id(0) % blocks) * HEADS + tl.arange(0, HEADS)
    inside = tl.arange(0, BLOCK)
    for start in range(0, half, BLOCK):
        angle = start + inside
        there = angle < half
        held = (head < heads)[:, None] & there[None, :]
        turn = tl.load(cosine + row * half + angle, mask=there, other=0.0)[None, :]
        rise = tl.load(sine + row * half + angle, mask=there, other=0.0)[None, :]
        place = head[:, None] * (2 * half) + angle[None, :]
        first = tl.load(source + row * stride + place, mask=held, other=0.0).to(tl.float32)
        second = tl.load(source + row * stride + place + half, mask=held, other=0.0).to(tl.float32)
        target = output + row * heads * (2 * half) + place
        tl.store(target, (first * turn - second * rise).to(output.dtype.element_ty), mask=held)
        tl.store(target + half, (second * turn + first * rise).to(output.dtype.element_ty), mask=held)


@triton.jit
def _copy(source: tl.tensor, output: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr) -> None:
    place = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(output + place, tl.load(source + place, mask=place < count), mask=place < count)


@triton.jit
def _triad(
    first: tl.tensor, second: tl.tensor, output: tl.tensor, factor: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    place = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    held = place < count
    value = tl.load(first + place, mask=held).to(tl.float32) + factor * tl.load(second + place, mask=held).to(
        tl.float32
    )
    tl.store(output + place, value.to(output.dtype.element_ty), mask=held)


@triton.jit
def _empty() -> None:
    pass


def _warps(elements: int) -> int:
    """Warps for a program of so many elements: 16 a thread, so that loads are 16 bytes wide and in flight together."""
    return int(min(16, max(1, triton.next_power_of_2(elements) // 512)))


def _tile(rows: int, columns: int) -> tuple[bool, int, int]:
    """Whether rows are looped over, rows a program, and elements of a row at once.

    Short rows are taken several at a time, as far as enough programs are left to fill a device.
    """
    block = min(WIDEST, triton.next_power_of_2(columns))
    if columns > WIDEST:
        return True, 1, block
    return False, max(1, min(HELD // block, triton.next_power_of_2(rows) // PROGRAMS)), block


def _check(*tensors: torch.Tensor | None, rows: tuple[torch.Tensor, ...] = ()) -> None:
    """Kernels address `tensors` as contiguous and each row of `rows` so."""
    assert all(tensor is None or tensor.is_contiguous() for tensor in tensors)
    assert all(tensor.shape[1] == 1 or tensor.stride(1) == 1 for tensor in rows)


def norm(
    source: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    summed: torch.Tensor | None,
    output: torch.Tensor,
    epsilon: float,
) -> None:
    """RMSNorm of `source` + `residual`, which goes to `summed`; without `residual` of `source` alone.

    All (rows, columns); rows of `source` may lie further apart than their width, the others are contiguous and
    distinct tensors. `weight` (columns).
    """
    _check(residual, weight, summed, output, rows=(source,))
    rows, columns = source.shape
    loop, together, block = _tile(rows, columns)
    added = residual is not None and summed is not None
    _norm[(triton.cdiv(rows, together),)](
        source,
        residual if added else source,
        weight,
        summed if added else output,
        output,
        rows,
        columns,
        source.stride(0),
        epsilon,
        ADD=added,
        LOOP=loop,
        ROWS=together,
        BLOCK=block,
        num_warps=_warps(together * block),
    )


def softmax(source: torch.Tensor, output: torch.Tensor) -> None:
    """Softmax over each row; both (rows, columns), contiguous."""
    _check(source, output)
    rows, columns = source.shape
    loop, together, block = _tile(rows, columns)
    _softmax[(triton.cdiv(rows, together),)](
        source,
        output,
        rows,
        columns,
        LOOP=loop,
        ROWS=together,
        BLOCK=block,
        num_warps=_warps(together * block),
    )


def swiglu(gate: torch.Tensor, up: torch.Tensor, output: torch.Tensor) -> None:
    """silu(gate) * up; all (rows, columns). `gate` and `up` may be halves of one wider tensor; `output` contiguous."""
    _check(output, rows=(gate, up))
    rows, columns = gate.shape
    if gate.is_contiguous() and up.is_contiguous():
        rows, columns = 1, rows * columns
    block = min(FLAT, triton.next_power_of_2(columns))
    blocks = triton.cdiv(columns, block)
    assert rows == 1 or gate.stride(0) == up.stride(0)
    stride = gate.stride(0) if rows > 1 else columns
    _swiglu[(rows * blocks,)](gate, up, output, blocks, columns, stride, BLOCK=block, num_warps=_warps(block))


def rope(source: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, output: torch.Tensor) -> None:
    """Rotate each head of each row: its first half against its second.

    `source` and `output` (rows, columns); rows of `source` may lie further apart than their width. `cosine` and
    `sine` (rows, half of a head) of fp32.
    """
    _check(cosine, sine, output, rows=(source,))
    rows, columns = source.shape
    half = cosine.shape[1]
    heads = columns // (2 * half)
    block = min(WIDEST // 2, triton.next_power_of_2(half))
    together = min(triton.next_power_of_2(heads), max(1, HELD // (2 * block)))
    blocks = triton.cdiv(heads, together)
    _rope[(rows * blocks,)](
        source,
        cosine,
        sine,
        output,
        blocks,
        heads,
        half,
        source.stride(0),
        HEADS=together,
        BLOCK=block,
        num_warps=_warps(2 * together * block),
    )


def copy(source: torch.Tensor, output: torch.Tensor) -> None:
    """The same elements; both contiguous."""
    _check(source, output)
    count = source.numel()
    _copy[(triton.cdiv(count, FLAT),)](source, output, count, BLOCK=FLAT, num_warps=_warps(FLAT))


def triad(first: torch.Tensor, second: torch.Tensor, output: torch.Tensor, factor: float) -> None:
    """`first` + `factor` * `second`; all contiguous and of one shape."""
    _check(first, second, output)
    count = output.numel()
    _triad[(triton.cdiv(count, FLAT),)](first, second, output, factor, count, BLOCK=FLAT, num_warps=_warps(FLAT))


def empty() -> None:
    """A kernel that does nothing: what is left is the launch."""
    _empty[(1,)](num_warps=1)
