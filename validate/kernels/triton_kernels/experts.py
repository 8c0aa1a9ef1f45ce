"""Routed experts (MoE) in Triton: pairs of a token and an expert sorted by expert, two grouped GEMMs, a weighted sum.

Nothing is read back to the CPU in between. The grouped GEMMs launch the largest possible number of tiles, and programs
beyond the actual number return at once; a tile belongs to one expert. Sorting counts, so that its order is
deterministic:

    count      one program an expert: how many pairs it has, and how many come before
    sort       one program an expert: its pairs in their order, and its tiles
    gate, up   one program a tile: rows gathered by token, two GEMMs, silu(gate) up
    down       one program a tile: rows scattered by pair
    combine    one program a token: its rows times their weights, added

With expert parallelism, expert ids from the number of local experts on are those of other ranks; their pairs are
skipped.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-untyped-decorators=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: N803

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]

from roofline.validate.kernels.tools import interpreted
from roofline.validate.kernels.triton_kernels.gemm import load_block, round_to, swizzled_tile
from roofline.validate.kernels.triton_kernels.launch import autotune, launch

SORT_BLOCK = 1024
"""Pairs that one iteration of counting and sorting reads."""

COMBINE_BLOCK = 1024
"""Most elements of a token that one program adds."""

_THIN = ((32, 128, 4, 4), (64, 128, 4, 3), (64, 64, 4, 5), (128, 64, 4, 3))
"""Columns, depth, warps, stages for tiles of up to 32 rows."""

_WIDE = ((64, 64, 4, 3), (128, 64, 8, 3), (128, 32, 8, 4), (64, 64, 8, 4))
"""The same for more rows."""

_WIDEST = ((256, 64, 8, 3),)
"""Tiles for more rows whose registers suffice for one GEMM only."""


def make_config(columns: int, depth: int, warps: int, stages: int) -> Any:
    """A tile with its warps and pipeline stages; eight rows of tiles share the L2 cache."""
    return triton.Config({"BLOCK_N": columns, "BLOCK_K": depth, "GROUP": 8}, num_warps=warps, num_stages=stages)


def configs_for(rows: int, gemms: int) -> list[Any]:
    """The tiles to tune over with `rows` rows, for a program that computes one GEMM or two."""
    if interpreted():
        return [make_config(32, 64, 4, 1)]
    if rows <= 32:
        return [make_config(*tile) for tile in _THIN]
    return [make_config(*tile) for tile in (*_WIDE, *(_WIDEST if gemms == 1 else ()))]


def _autotune(gemms: int) -> Any:
    """The tuner of a kernel that computes `gemms` GEMMs."""

    def prune(_: Sequence[Any], __: Mapping[str, Any], **arguments: Any) -> list[Any]:
        return configs_for(arguments["BLOCK_M"], gemms)

    configs = configs_for(16, gemms) + ([] if interpreted() else configs_for(64, gemms))
    return autotune(configs, ["max_tiles", "n", "k", "BLOCK_M"], prune)


def tile_rows(pairs: int, experts: int) -> int:
    """The height of tiles: twice an expert's mean load, so that few experts have several tiles, from 16 to 128."""
    mean = pairs / min(pairs, experts)
    return max(16, min(128, int(triton.next_power_of_2(math.ceil(2 * mean)))))


@triton.jit(do_not_specialize=["pairs"])
def _count(expert_ids, counts, expert_starts, pairs, BLOCK: tl.constexpr):
    """The number of pairs of an expert, and of all experts before it."""
    expert = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    own = tl.zeros((BLOCK,), dtype=tl.int32)
    before = tl.zeros((BLOCK,), dtype=tl.int32)
    for offset in range(0, pairs, BLOCK):
        experts = tl.load(expert_ids + offset + index, mask=offset + index < pairs, other=2147483647)
        own += (experts == expert).to(tl.int32)
        before += (experts < expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(own, axis=0))
    tl.store(expert_starts + expert, tl.sum(before, axis=0))


@triton.jit(do_not_specialize=["pairs", "experts"])
def _sort(
    expert_ids, counts, expert_starts, order, tile_experts, tile_starts, tile_count, pairs, experts,
    EXPERTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write an expert's pairs in order to `order`, and its tiles to `tile_experts` and `tile_starts`.

    The last expert writes the number of tiles. `EXPERTS` is a power of two that is at least `experts`.
    """
    expert = tl.program_id(0)
    first = tl.load(expert_starts + expert)
    index = tl.arange(0, BLOCK)
    position = first
    for offset in range(0, pairs, BLOCK):
        others = tl.load(expert_ids + offset + index, mask=offset + index < pairs, other=2147483647)
        mine = (others == expert).to(tl.int32)
        tl.store(order + position + tl.cumsum(mine, axis=0) - 1, offset + index, mask=mine != 0)
        position += tl.sum(mine, axis=0)
    everyone = tl.arange(0, EXPERTS)
    loads = tl.load(counts + everyone, mask=everyone < expert, other=0)
    tile = tl.sum((loads + ROWS - 1) // ROWS, axis=0)
    for start in range(first, position, ROWS):
        tl.store(tile_experts + tile, expert)
        tl.store(tile_starts + tile, start)
        tile += 1
    if expert == experts - 1:
        tl.store(tile_count, tile)


def _grouped(
    a, w, up, c, order, tile_experts, tile_starts, expert_starts, counts, tile_count, max_tiles, top_k, n, k,
    GATED: tl.constexpr, UPCAST: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of a grouped GEMM.

    `GATED`: silu(a w^T) (a up^T), rows of a gathered by token, rows of c in sorted order. Otherwise a w^T, rows of a in
    sorted order, rows of c scattered by pair.
    """
    row, column = swizzled_tile(tl.program_id(0), max_tiles, tl.cdiv(n, BLOCK_N), GROUP)
    if row >= tl.load(tile_count):
        return
    expert = tl.load(tile_experts + row)
    end = tl.load(expert_starts + expert) + tl.load(counts + expert)
    positions = tl.load(tile_starts + row) + tl.arange(0, BLOCK_M)
    sorted_rows = tl.minimum(positions, end - 1)
    pairs = tl.load(order + sorted_rows)
    sources = pairs // top_k if GATED else sorted_rows
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    left = a + sources.to(tl.int64)[:, None] * k + depth[None, :]
    weights = (expert.to(tl.int64) * n + tl.minimum(columns, n - 1))[None, :] * k + depth[:, None]
    right = w + weights
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if GATED:
        other = up + weights
        ups = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for offset in range(0, k, BLOCK_K):
        inside = depth < k - offset
        x = load_block(left, inside[None, :], EVEN, UPCAST)
        y = load_block(right, inside[:, None], EVEN, UPCAST)
        sums = tl.dot(x, y, sums, input_precision="ieee")
        left += BLOCK_K
        right += BLOCK_K
        if GATED:
            z = load_block(other, inside[:, None], EVEN, UPCAST)
            ups = tl.dot(x, z, ups, input_precision="ieee")
            other += BLOCK_K
    result = sums / (1.0 + tl.exp(-sums)) * ups if GATED else sums
    targets = positions if GATED else pairs
    target = c + targets.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(
        target, round_to(result, c.dtype.element_ty, UPCAST), mask=(positions < end)[:, None] & (columns < n)[None, :]
    )


def _tuned(gemms: int) -> Any:
    """The grouped GEMM with the tiles of a program that computes `gemms` of them."""
    even = triton.heuristics({"EVEN": lambda arguments: arguments["k"] % arguments["BLOCK_K"] == 0})
    return _autotune(gemms)(even(triton.jit(_grouped, do_not_specialize=["max_tiles", "top_k"])))


_gate_up, _down = _tuned(gemms=2), _tuned(gemms=1)


@triton.jit(do_not_specialize=["experts", "top_k"])
def _combine(rows, expert_ids, routing_weights, c, experts, top_k, n, UPCAST: tl.constexpr, BLOCK: tl.constexpr):
    """`BLOCK` elements of a token: its experts' rows times their weights, added in order."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in range(top_k):
        pair = token * top_k + choice
        width = tl.where(tl.load(expert_ids + pair) < experts, n, 0)  # rows of other ranks' experts were not computed
        weight = tl.load(routing_weights + pair).to(tl.float32)
        sums += weight * tl.load(rows + pair * n + columns, mask=columns < width, other=0.0).to(tl.float32)
    tl.store(c + token * n + columns, round_to(sums, c.dtype.element_ty, UPCAST), mask=inside)


def sort_pairs(expert_ids: torch.Tensor, experts: int, rows: int) -> dict[str, torch.Tensor]:
    """Sort pairs of a token and an expert by expert; expert_ids (tokens, top_k) of int32, tiles of `rows` pairs.

    order (pairs): pair numbers, token * top_k + choice, in a stable order by expert, without those of other ranks;
    counts and expert_starts (experts): an expert's number of pairs, and the position of its first; tile_experts and
    tile_starts: a tile's expert, and the position where it begins; tile_count (1).
    """
    pairs = expert_ids.numel()
    max_tiles = max_tile_count(pairs, experts, rows)
    sizes = {"order": pairs, "tile_experts": max_tiles, "tile_starts": max_tiles}
    sizes |= {"expert_starts": experts, "counts": experts, "tile_count": 1}
    plan = {name: torch.empty(size, dtype=torch.int32, device=expert_ids.device) for name, size in sizes.items()}
    block = min(SORT_BLOCK, max(16, triton.next_power_of_2(pairs)))
    launch(_count, (experts,), expert_ids, plan["counts"], plan["expert_starts"], pairs, BLOCK=block)
    padded = triton.next_power_of_2(experts)
    sizes = {"EXPERTS": padded, "ROWS": rows, "BLOCK": block}
    launch(_sort, (experts,), expert_ids, **plan, pairs=pairs, experts=experts, **sizes)
    return plan


def max_tile_count(pairs: int, experts: int, rows: int) -> int:
    """The largest number of tiles that pairs can fill: each expert with pairs has one tile that is not full."""
    reached = min(pairs, experts)
    return reached + (pairs - reached) // rows


def routed_experts(
    source: torch.Tensor,
    expert_ids: torch.Tensor,
    routing_weights: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    output: torch.Tensor,
    rows: int | None = None,
    config: Any = None,
    ranks: int = 1,
) -> None:
    """Fill output (tokens, hidden) with the weighted sum of the experts' results for source (tokens, hidden).

    expert_ids (int32) and routing_weights (tokens, top_k); gate and up (experts, width, hidden), down (experts, hidden,
    width). `rows` and `config` override the heuristic and the tuning. With several `ranks`, ids from `experts` on are
    of other ranks and add nothing.
    """
    (tokens, hidden), (experts, width, _), top_k = source.shape, gate.shape, expert_ids.shape[1]
    assert up.shape == gate.shape == (experts, width, hidden)
    assert down.shape == (experts, hidden, width)
    assert expert_ids.shape == routing_weights.shape == (tokens, top_k)
    assert expert_ids.dtype == torch.int32
    assert all(t.is_contiguous() for t in (source, expert_ids, routing_weights, gate, up, down, output))
    pairs = tokens * top_k
    rows = tile_rows(max(1, pairs // ranks), experts) if rows is None else rows
    max_tiles = max_tile_count(pairs, experts, rows)
    plan = sort_pairs(expert_ids, experts, rows)
    activated = torch.empty(pairs, width, dtype=source.dtype, device=source.device)
    results = torch.empty(pairs, hidden, dtype=source.dtype, device=source.device)
    constants = {"UPCAST": interpreted(), "BLOCK_M": rows, **({} if config is None else config.all_kwargs())}

    def grouped(tuned: Any, operands: Sequence[Any], n: int, k: int, gated: bool) -> None:
        launch(
            tuned if config is None else tuned.fn,
            lambda meta: (max_tiles * triton.cdiv(n, meta["BLOCK_N"]),),
            *(*operands, *plan.values(), max_tiles, top_k, n, k),
            GATED=gated,
            **constants,
        )

    grouped(_gate_up, (source, gate, up, activated), width, hidden, gated=True)
    grouped(_down, (activated, down, down, results), hidden, width, gated=False)
    block = min(COMBINE_BLOCK, triton.next_power_of_2(hidden))
    launch(
        _combine,
        (tokens, triton.cdiv(hidden, block)),
        *(results, expert_ids, routing_weights, output, experts, top_k, hidden),
        UPCAST=interpreted(),
        BLOCK=block,
    )
