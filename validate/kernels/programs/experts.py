"""A mixture of experts in Triton: pairs of a token and an expert sorted by expert, two grouped products, a sum.

Nothing comes back to the host in between. Kernels of the products start for as many tiles as there can be and leave
those that there are not; a tile belongs to one expert. Sorting counts, so that the order is always the same:

    count      one program an expert: how many pairs it has, and how many come before
    sort       one program an expert: its pairs in their order, and its tiles
    gate, up   one program a tile: rows gathered by token, two products, silu(gate) up
    down       one program a tile: rows scattered by pair
    combine    one program a token: its rows times their weights, added

Tokens may choose experts that are not here but on other ranks: those with numbers from the count of the experts on.
Nothing is computed of such pairs.
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

from roofline.validate.kernels.programs.gemm import narrow, place
from roofline.validate.kernels.tools import interpreted

SCANNED = 1024
"""Pairs that counting and sorting look at together."""

COMBINED = 1024
"""Most elements of a token that one program adds."""

_THIN = ((32, 128, 4, 4), (64, 128, 4, 3), (64, 64, 4, 5), (128, 64, 4, 3))
"""Columns, depth, warps, stages for tiles of up to 32 rows."""

_WIDE = ((64, 64, 4, 3), (128, 64, 8, 3), (128, 32, 8, 4), (64, 64, 8, 4))
"""The same for more rows."""

_WIDEST = ((256, 64, 8, 3),)
"""Tiles for more rows that have the registers for one product only."""


def config(columns: int, depth: int, warps: int, stages: int) -> Any:
    """A tile, how many warps compute it, and how many loads are in flight; eight rows of tiles share the L2 cache."""
    return triton.Config({"BLOCK_N": columns, "BLOCK_K": depth, "GROUP": 8}, num_warps=warps, num_stages=stages)


def configs_for(rows: int, products: int) -> list[Any]:
    """The tiles worth trying with `rows` rows, where a program computes one product or two."""
    if interpreted():
        return [config(32, 64, 4, 1)]
    if rows <= 32:
        return [config(*tile) for tile in _THIN]
    return [config(*tile) for tile in (*_WIDE, *(_WIDEST if products == 1 else ()))]


def _prune_two(_: Sequence[Any], __: Mapping[str, Any], **arguments: Any) -> list[Any]:
    return configs_for(arguments["BLOCK_M"], 2)


def _prune_one(_: Sequence[Any], __: Mapping[str, Any], **arguments: Any) -> list[Any]:
    return configs_for(arguments["BLOCK_M"], 1)


def tile_rows(pairs: int, experts: int) -> int:
    """The height of tiles: twice what an expert has on average, so that few have more than one, from 16 to 128."""
    mean = pairs / min(pairs, experts)
    return max(16, min(128, int(triton.next_power_of_2(math.ceil(2 * mean)))))


@triton.jit
def _count(
    chosen,
    counts,
    firsts,
    pairs,
    BLOCK: tl.constexpr,
):
    """How many pairs an expert has, and how many belong to the experts before it."""
    expert = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    own = tl.zeros((BLOCK,), dtype=tl.int32)
    before = tl.zeros((BLOCK,), dtype=tl.int32)
    for offset in range(0, pairs, BLOCK):
        experts = tl.load(chosen + offset + index, mask=offset + index < pairs, other=2147483647)
        own += (experts == expert).to(tl.int32)
        before += (experts < expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(own, axis=0))
    tl.store(firsts + expert, tl.sum(before, axis=0))


@triton.jit
def _sort(
    chosen,
    counts,
    firsts,
    order,
    owners,
    starts,
    tiles,
    pairs,
    experts,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """An expert's pairs, in their order, into `order` from its first place on; its tiles into `owners` and `starts`.

    The last expert writes how many tiles there are. `EXPERTS` is a power of two and at least their number.
    """
    expert = tl.program_id(0)
    first = tl.load(firsts + expert)
    index = tl.arange(0, BLOCK)
    position = first
    for offset in range(0, pairs, BLOCK):
        others = tl.load(chosen + offset + index, mask=offset + index < pairs, other=2147483647)
        mine = (others == expert).to(tl.int32)
        tl.store(order + position + tl.cumsum(mine, axis=0) - 1, offset + index, mask=mine != 0)
        position += tl.sum(mine, axis=0)
    everyone = tl.arange(0, EXPERTS)
    loads = tl.load(counts + everyone, mask=everyone < expert, other=0)
    tile = tl.sum((loads + ROWS - 1) // ROWS, axis=0)
    for start in range(first, position, ROWS):
        tl.store(owners + tile, expert)
        tl.store(starts + tile, start)
        tile += 1
    if expert == experts - 1:
        tl.store(tiles, tile)


@triton.autotune(
    configs=configs_for(16, 2) + ([] if interpreted() else configs_for(64, 2)),
    key=["most", "n", "k", "BLOCK_M"],
    prune_configs_by={"early_config_prune": _prune_two},
)
@triton.heuristics({"EVEN": lambda arguments: arguments["k"] % arguments["BLOCK_K"] == 0})
@triton.jit
def _gate_up(
    a,
    gate,
    up,
    c,
    order,
    owners,
    starts,
    firsts,
    counts,
    tiles,
    most,
    top_k,
    n,
    k,
    WIDEN: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of silu(a gate^T) (a up^T): rows of a gathered by token, rows of c in sorted order."""
    row, column = place(tl.program_id(0), most, tl.cdiv(n, BLOCK_N), GROUP)
    if row >= tl.load(tiles):
        return
    expert = tl.load(owners + row)
    end = tl.load(firsts + expert) + tl.load(counts + expert)
    places = tl.load(starts + row) + tl.arange(0, BLOCK_M)
    tokens = tl.load(order + tl.minimum(places, end - 1)) // top_k
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    left = a + tokens.to(tl.int64)[:, None] * k + depth[None, :]
    weights = (expert.to(tl.int64) * n + tl.minimum(columns, n - 1))[None, :] * k + depth[:, None]
    right, other = gate + weights, up + weights
    gates = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    ups = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for offset in range(0, k, BLOCK_K):
        if EVEN:
            x = tl.load(left)
            y = tl.load(right)
            z = tl.load(other)
        else:
            inside = depth < k - offset
            x = tl.load(left, mask=inside[None, :], other=0.0)
            y = tl.load(right, mask=inside[:, None], other=0.0)
            z = tl.load(other, mask=inside[:, None], other=0.0)
        if WIDEN:
            x = x.to(tl.float32)
            y = y.to(tl.float32)
            z = z.to(tl.float32)
        gates = tl.dot(x, y, gates, input_precision="ieee")
        ups = tl.dot(x, z, ups, input_precision="ieee")
        left += BLOCK_K
        right += BLOCK_K
        other += BLOCK_K
    result = gates / (1.0 + tl.exp(-gates)) * ups
    target = c + places.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(target, narrow(result, c.dtype.element_ty, WIDEN), mask=(places < end)[:, None] & (columns < n)[None, :])


@triton.autotune(
    configs=configs_for(16, 1) + ([] if interpreted() else configs_for(64, 1)),
    key=["most", "n", "k", "BLOCK_M"],
    prune_configs_by={"early_config_prune": _prune_one},
)
@triton.heuristics({"EVEN": lambda arguments: arguments["k"] % arguments["BLOCK_K"] == 0})
@triton.jit
def _down(
    a,
    w,
    c,
    order,
    owners,
    starts,
    firsts,
    counts,
    tiles,
    most,
    n,
    k,
    WIDEN: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of a w^T: rows of a in sorted order, rows of c scattered by pair."""
    row, column = place(tl.program_id(0), most, tl.cdiv(n, BLOCK_N), GROUP)
    if row >= tl.load(tiles):
        return
    expert = tl.load(owners + row)
    end = tl.load(firsts + expert) + tl.load(counts + expert)
    places = tl.load(starts + row) + tl.arange(0, BLOCK_M)
    known = tl.minimum(places, end - 1)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    left = a + known.to(tl.int64)[:, None] * k + depth[None, :]
    right = w + (expert.to(tl.int64) * n + tl.minimum(columns, n - 1))[None, :] * k + depth[:, None]
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for offset in range(0, k, BLOCK_K):
        if EVEN:
            x = tl.load(left)
            y = tl.load(right)
        else:
            inside = depth < k - offset
            x = tl.load(left, mask=inside[None, :], other=0.0)
            y = tl.load(right, mask=inside[:, None], other=0.0)
        if WIDEN:
            x = x.to(tl.float32)
            y = y.to(tl.float32)
        sums = tl.dot(x, y, sums, input_precision="ieee")
        left += BLOCK_K
        right += BLOCK_K
    target = c + tl.load(order + known).to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(target, narrow(sums, c.dtype.element_ty, WIDEN), mask=(places < end)[:, None] & (columns < n)[None, :])


@triton.jit
def _combine(
    rows,
    chosen,
    routes,
    c,
    experts,
    top_k,
    n,
    WIDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`BLOCK` elements of a token: its experts' rows times their weights, added in order."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in range(top_k):
        pair = token * top_k + choice
        width = tl.where(tl.load(chosen + pair) < experts, n, 0)  # rows of other ranks' experts were not computed
        weight = tl.load(routes + pair).to(tl.float32)
        sums += weight * tl.load(rows + pair * n + columns, mask=columns < width, other=0.0).to(tl.float32)
    tl.store(c + token * n + columns, narrow(sums, c.dtype.element_ty, WIDEN), mask=inside)


def sort_pairs(chosen: torch.Tensor, experts: int, rows: int) -> dict[str, torch.Tensor]:
    """Pairs of a token and an expert by expert, and the tiles of `rows` of them, from chosen (tokens, top_k), int32.

    order (pairs): pairs, token * top_k + choice, by expert and then as they were, those of no expert here left out;
    counts and firsts (experts): how many
    an expert has, and where they begin; owners and starts: a tile's expert, and where it begins; tiles (1): how many of
    those there are.
    """
    pairs, device = chosen.numel(), chosen.device

    def empty(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int32, device=device)

    counts, firsts, order, tiles = empty(experts), empty(experts), empty(pairs), empty(1)
    most = most_tiles(pairs, experts, rows)
    owners, starts = empty(most), empty(most)
    block = min(SCANNED, max(16, triton.next_power_of_2(pairs)))
    _count[(experts,)](chosen, counts, firsts, pairs, BLOCK=block)
    _sort[(experts,)](
        chosen,
        counts,
        firsts,
        order,
        owners,
        starts,
        tiles,
        pairs,
        experts,
        EXPERTS=triton.next_power_of_2(experts),
        ROWS=rows,
        BLOCK=block,
    )
    return {
        "order": order,
        "owners": owners,
        "starts": starts,
        "firsts": firsts,
        "counts": counts,
        "tiles": tiles,
    }


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """The most tiles that pairs can fill: each expert reached has one that is not full."""
    reached = min(pairs, experts)
    return reached + (pairs - reached) // rows


def run(
    source: torch.Tensor,
    chosen: torch.Tensor,
    routes: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    output: torch.Tensor,
    rows: int | None = None,
    tile: Any = None,
    ranks: int = 1,
) -> None:
    """Fill output (tokens, hidden) with the experts' results for source (tokens, hidden), added by their weights.

    Chosen (tokens, top_k), int32, are the experts of a token, routes (tokens, top_k) their weights; gate and up have
    the shape (experts, width, hidden), down (experts, hidden, width). `rows` and `tile` replace the choice of tiles.
    Of `ranks` ranks this one has the first experts; others chosen add nothing.
    """
    (tokens, hidden), (experts, width, _), top_k = source.shape, gate.shape, chosen.shape[1]
    assert up.shape == gate.shape == (experts, width, hidden)
    assert down.shape == (experts, hidden, width)
    assert chosen.shape == routes.shape == (tokens, top_k)
    assert chosen.dtype == torch.int32
    assert all(tensor.is_contiguous() for tensor in (source, chosen, routes, gate, up, down, output))
    pairs = tokens * top_k
    rows = tile_rows(max(1, pairs // ranks), experts) if rows is None else rows
    most = most_tiles(pairs, experts, rows)
    plan = sort_pairs(chosen, experts, rows)
    activated = torch.empty(pairs, width, dtype=source.dtype, device=source.device)
    results = torch.empty(pairs, hidden, dtype=source.dtype, device=source.device)
    fixed = {"WIDEN": interpreted(), "BLOCK_M": rows, **({} if tile is None else tile.all_kwargs())}
    first, second = (_gate_up, _down) if tile is None else (_gate_up.fn, _down.fn)
    first[lambda meta: (most * triton.cdiv(width, meta["BLOCK_N"]),)](
        source, gate, up, activated, *plan.values(), most, top_k, width, hidden, **fixed
    )
    second[lambda meta: (most * triton.cdiv(hidden, meta["BLOCK_N"]),)](
        activated, down, results, *plan.values(), most, hidden, width, **fixed
    )
    block = min(COMBINED, triton.next_power_of_2(hidden))
    _combine[(tokens, triton.cdiv(hidden, block))](
        results, chosen, routes, output, experts, top_k, hidden, WIDEN=interpreted(), BLOCK=block
    )
