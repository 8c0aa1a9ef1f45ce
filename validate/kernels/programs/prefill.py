"""FlashAttention forward: causal, with a cached prefix, grouped query heads and sliding windows.

One program computes a block of queries of one head. It walks over the keys that any of its queries sees, keeps the
running maximum and sum of the softmax in fp32 (base 2: the scale holds log2 e), and never writes a score. Keys that
no query of the block sees are not visited; only blocks at the diagonal and at the window's edge are masked.
"""
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-any-unimported, unused-ignore"
# ruff: noqa: N803 (compile-time constants are in capitals)

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from roofline.validate.kernels.tools import interpreted

LOWEST = tl.constexpr(-1.0e30)
"""A score that is not seen. Finite, so that a row of which nothing is seen yet stays free of NaN: what such a row
gathers is multiplied by exp2(LOWEST - maximum) = 0 as soon as it sees a key, and every row sees its own."""


NAMES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
"""Triton's name of the formats that a cache in another one is converted to."""


def _config(rows: int, columns: int, warps: int, stages: int) -> Any:
    return triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)


CONFIGS = (
    [_config(32, 16, 4, 1)]
    if interpreted()
    else [
        _config(128, 128, 8, 3),
        _config(128, 128, 8, 2),
        _config(128, 64, 8, 3),
        _config(128, 64, 8, 2),
        _config(128, 64, 4, 3),
        _config(128, 32, 8, 2),
        _config(64, 128, 4, 2),
        _config(64, 64, 4, 3),
        _config(64, 32, 4, 2),
        _config(32, 64, 4, 3),
        _config(16, 64, 4, 3),
        _config(16, 32, 4, 2),
    ]
)
"""Tiles to choose from; those that do not fit a device's shared memory drop out when they are tried."""


def _fitting(configs: list[Any], named: dict[str, Any], **meta: Any) -> list[Any]:
    """Tiles no longer than the queries, no shorter than them or 64, and whose accumulator fits the registers."""
    most = max(16, triton.next_power_of_2(named["q_len"]))
    padded = int(meta["HEAD_PAD"])

    def fits(config: Any) -> bool:
        rows: int = config.kwargs["BLOCK_M"]
        held = rows * padded // int(32 * config.num_warps)
        return min(64, most) <= rows <= most and held <= max(64, padded // 2)

    return [config for config in configs if fits(config)] or configs


@triton.jit
def _attend(
    accumulator: tl.tensor,
    highest: tl.tensor,
    total: tl.tensor,
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    position: tl.tensor,
    kv_len: tl.tensor,
    window: tl.tensor,
    stride: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    WINDOWED: tl.constexpr,
    MASKED: tl.constexpr,
    CONVERT: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> Any:
    """Add keys `begin` to `end`, in blocks, to a running softmax."""
    inside = tl.arange(0, BLOCK_N)
    width = tl.arange(0, HEAD_PAD)
    tile = inside[:, None] * stride + width[None, :]
    keys += tl.cast(begin, tl.int64) * stride
    values += tl.cast(begin, tl.int64) * stride
    for start in range(begin, end, BLOCK_N):
        key_position = start + inside
        if MASKED:
            held = (key_position < kv_len)[:, None] & (width < HEAD_DIM)[None, :]
            key = tl.load(keys + tile, mask=held, other=0.0)
            value = tl.load(values + tile, mask=held, other=0.0)
        elif HEAD_DIM == HEAD_PAD:
            key = tl.load(keys + tile)
            value = tl.load(values + tile)
        else:
            key = tl.load(keys + tile, mask=(width < HEAD_DIM)[None, :], other=0.0)
            value = tl.load(values + tile, mask=(width < HEAD_DIM)[None, :], other=0.0)
        if CONVERT is not None:
            key = key.to(CONVERT)
            value = value.to(CONVERT)
        if WIDEN:
            key = key.to(tl.float32)
        scores = tl.dot(query, tl.trans(key))
        if MASKED:
            seen = key_position[None, :] <= position[:, None]
            if WINDOWED:
                seen = seen & (key_position[None, :] > position[:, None] - window)
            scores = tl.where(seen, scores * scale, LOWEST)
            higher = tl.maximum(highest, tl.max(scores, 1))
            weights = tl.exp2(scores - higher[:, None])
        else:
            higher = tl.maximum(highest, tl.max(scores, 1) * scale)
            weights = tl.exp2(scores * scale - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        accumulator = accumulator * shrink[:, None]
        weights = weights.to(value.dtype)
        if WIDEN:
            weights, value = weights.to(tl.float32), value.to(tl.float32)
        accumulator = tl.dot(weights, value, accumulator)
        highest = higher
        keys += BLOCK_N * tl.cast(stride, tl.int64)
        values += BLOCK_N * tl.cast(stride, tl.int64)
    return accumulator, highest, total


@triton.autotune(
    configs=CONFIGS,
    key=["batch", "q_len", "kv_len", "heads", "kv_heads", "window", "HEAD_DIM", "CONVERT"],
    prune_configs_by={"early_config_prune": _fitting},
)
@triton.jit(do_not_specialize=["batch", "q_len", "kv_len", "heads", "kv_heads", "window"])
def _prefill(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    output: tl.tensor,
    batch: tl.tensor,  # noqa: ARG001 (tuned for)
    q_len: tl.tensor,
    kv_len: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    window: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    WINDOWED: tl.constexpr,
    CONVERT: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    # Blocks of a head run together, so that they share its keys in the cache; the longest first, so that the last
    # programs are short ones.
    blocks = tl.cdiv(q_len, BLOCK_M)
    block = blocks - 1 - tl.program_id(0) % blocks
    head = (tl.program_id(0) // blocks) % heads
    sequence = tl.cast(tl.program_id(0) // blocks // heads, tl.int64)
    kv_head = head // (heads // kv_heads)

    first = block * BLOCK_M
    rows = tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_PAD)
    own = (first + rows < q_len)[:, None] & (width < HEAD_DIM)[None, :]
    corner = ((sequence * q_len + first) * heads + head) * HEAD_DIM
    tile = rows[:, None] * (heads * HEAD_DIM) + width[None, :]
    queries = tl.load(query + corner + tile, mask=own, other=0.0)
    if WIDEN:
        queries = queries.to(tl.float32)
    stride = kv_heads * HEAD_DIM
    keys += (sequence * kv_len * kv_heads + kv_head) * HEAD_DIM
    values += (sequence * kv_len * kv_heads + kv_head) * HEAD_DIM

    # Keys begin..end are seen by some query, all of left..right by every one: the blocks between need no mask.
    earliest = first + (kv_len - q_len)
    latest = earliest + BLOCK_M - 1
    end = tl.minimum(latest + 1, kv_len)
    begin = 0
    left = 0
    if WINDOWED:
        begin = tl.maximum(earliest - window + 1, 0) // BLOCK_N * BLOCK_N
        left = tl.minimum(tl.cdiv(tl.maximum(latest - window + 1, 0), BLOCK_N), tl.cdiv(end, BLOCK_N)) * BLOCK_N
    right = tl.maximum((earliest + 1) // BLOCK_N * BLOCK_N, left)

    accumulator = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32)
    highest = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    position = earliest + rows
    if WINDOWED:
        accumulator, highest, total = _attend(
            accumulator, highest, total, queries, keys, values, begin, left, position, kv_len, window, stride, scale,
            HEAD_DIM, HEAD_PAD, WINDOWED, True, CONVERT, WIDEN, BLOCK_N,
        )  # fmt: skip
    accumulator, highest, total = _attend(
        accumulator, highest, total, queries, keys, values, left, right, position, kv_len, window, stride, scale,
        HEAD_DIM, HEAD_PAD, WINDOWED, False, CONVERT, WIDEN, BLOCK_N,
    )  # fmt: skip
    accumulator, highest, total = _attend(
        accumulator, highest, total, queries, keys, values, right, end, position, kv_len, window, stride, scale,
        HEAD_DIM, HEAD_PAD, WINDOWED, True, CONVERT, WIDEN, BLOCK_N,
    )  # fmt: skip
    result = accumulator / total[:, None]
    tl.store(output + corner + tile, result.to(output.dtype.element_ty), mask=own)


def prefill(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, output: torch.Tensor, window: int = 0
) -> None:
    """Causal attention of the last q_len of kv_len tokens.

    `query` and `output` (batch, q_len, heads, head_dim), `keys` and `values` (batch, kv_len, kv_heads, head_dim), all
    contiguous; a query sees the last `window` keys up to its own, or all of them with 0.
    """
    assert all(tensor.is_contiguous() for tensor in (query, keys, values, output))
    batch, q_len, heads, head_dim = query.shape
    _, kv_len, kv_heads, _ = keys.shape

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (batch * heads * triton.cdiv(q_len, meta["BLOCK_M"]),)

    _prefill[grid](
        query,
        keys,
        values,
        output,
        batch,
        q_len,
        kv_len,
        heads,
        kv_heads,
        window,
        math.log2(math.e) / math.sqrt(head_dim),
        HEAD_DIM=head_dim,
        HEAD_PAD=max(16, triton.next_power_of_2(head_dim)),
        WINDOWED=window > 0,
        CONVERT=None if keys.dtype == query.dtype else NAMES[query.dtype],
        WIDEN=interpreted() and query.dtype == torch.bfloat16,
    )
