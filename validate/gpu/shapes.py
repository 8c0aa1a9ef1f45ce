"""The shapes that a short visit to a GPU measures, by step, the most informative first.

Sizes are those of published models (Llama 3 8B and 70B, Qwen3, Mixtral, DeepSeek-V3) and a few that fit no tile.
`Sizes` bounds them, so that the same plan runs on a small machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

from roofline.validate.kernels.work import Case, attention_case, experts_case, gemm_case, rows_case

Item = TypeVar("Item")

Point = tuple[Case, str]
"""A case and the backend that computes it."""


class Sizes(Struct, frozen=True):
    """The largest sizes of a plan: rows (tokens, batch times length), widths (of matrices), lengths, heads, experts."""

    rows: int = 1 << 20
    width: int = 1 << 20
    length: int = 1 << 20
    heads: int = 256
    experts: int = 512

    def gemm(self, dtype: str, m: int, n: int, k: int) -> Case:
        """C[m, n] = A[m, k] W[n, k]^T, k a multiple of the groups of 4-bit weights where it is cut."""
        k = min(k, max(128, self.width // 128 * 128)) if k > self.width else k
        return gemm_case(dtype, min(m, self.rows), min(n, self.width), k)

    def attention(
        self,
        op: str,
        batch: int,
        queries: int,
        keys: int,
        heads: int,
        kv_heads: int,
        head_dim: int = 128,
        window: int = 0,
        kv_dtype: str = "bf16",
    ) -> Case:
        """Attention in bf16 over a cache in `kv_dtype`."""
        keys = min(keys, self.length)
        group = heads // kv_heads
        kv_heads = max(1, min(kv_heads, self.heads // group))
        return attention_case(
            *(op, "bf16"),
            kv_dtype=kv_dtype,
            batch=max(1, min(batch, self.rows // 8)),
            q_len=min(queries, keys),
            kv_len=keys,
            heads=kv_heads * group,
            kv_heads=kv_heads,
            head_dim=min(head_dim, self.width),
            window=window if window < keys else 0,
        )

    def experts_of(self, tokens: int, hidden: int, width: int, top_k: int, experts: int, ep: int = 1) -> Case:
        """Routed experts in bf16, uniformly routed."""
        experts = max(ep, min(experts, self.experts))
        hidden, width = min(hidden, self.width), min(width, self.width)
        return experts_case(min(tokens, self.rows), hidden, width, min(top_k, experts), experts, ep=ep)

    def rows_of(self, op: str, rows: int, columns: int) -> Case:
        """A kernel that streams rows, in bf16."""
        return rows_case(op, "bf16", min(rows, self.rows), min(columns, self.width))


FULL = Sizes()
"""The sizes of the models themselves."""

LAYERS = ((4096, 4096), (28672, 4096), (4096, 14336))
"""Outputs and inputs of linear layers, timed at every number of rows: attention output, gate and up, down of 8B."""

ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Tokens: decode of a few sequences to prefill."""

OTHERS = (
    (1, 128256, 4096), (64, 128256, 4096), (8, 6144, 4096), (192, 6144, 4096), (3000, 6144, 4096), (8, 10240, 8192),
    (48, 8192, 8192), (96, 57344, 8192), (2048, 8192, 28672), (300, 8192, 28672), (16, 2048, 2048), (4096, 2048, 2048),
    (256, 1280, 5120), (1024, 1280, 5120), (64, 512, 7168), (64, 1536, 7168), (512, 24576, 1536), (16384, 2112, 7168),
    (32, 152064, 5120), (5000, 18432, 7168), (640, 2880, 2880),
)  # fmt: skip
"""Rows, outputs and inputs of other layers: heads, tensor-parallel parts, low-rank projections."""

ODD = ((17, 4097, 4097), (100, 1000, 1000), (333, 3332, 1004), (64, 4100, 4096), (64, 4096, 4100), (2047, 4095, 4096),
       (4000, 11008, 4104), (1, 32003, 4096), (5, 50257, 768))  # fmt: skip
"""Sizes that no tile or vector width divides."""


def gemms(sizes: Sizes = FULL) -> list[Point]:
    """16-bit and FP8 GEMMs by the vendor's library and by our kernel; every prefix of the list covers the range."""
    shapes = [(m, n, k) for m in _spread(ROWS) for n, k in LAYERS]
    mixed = _interleaved(shapes, OTHERS, ODD)
    cases = [(sizes.gemm(dtype, *shape), backend) for shape in mixed for dtype, backend in _GEMM_KERNELS]
    return _different(cases)


_GEMM_KERNELS = (("bf16", "torch"), ("fp8", "torch"), ("bf16", "triton"), ("fp8", "triton"))


def attention(sizes: Sizes = FULL) -> list[Point]:
    """Prefill and decode: causal, grouped heads, windows, 16-bit and FP8 caches."""
    prefill: list[tuple[int, ...]] = [
        (1, 2048, 2048, 32, 8), (1, 512, 512, 32, 8), (1, 8192, 8192, 32, 8), (4, 1024, 1024, 32, 8),
        (1, 2048, 2048, 32, 32), (1, 512, 8192, 32, 8), (1, 4096, 4096, 64, 8), (8, 128, 128, 32, 8),
        (1, 2048, 16384, 32, 8), (2, 2048, 2048, 16, 8, 64), (1, 2048, 2048, 16, 4, 256), (1, 1000, 3333, 24, 8),
        (1, 8192, 8192, 32, 8, 128, 1024), (1, 16384, 16384, 16, 2),
    ]  # fmt: skip
    decode: list[tuple[int, ...]] = [
        (1, 1, 4096, 32, 8), (8, 1, 4096, 32, 8), (64, 1, 4096, 32, 8), (256, 1, 1024, 32, 8), (1, 1, 65536, 32, 8),
        (16, 1, 16384, 32, 8), (32, 1, 2048, 32, 32), (64, 1, 1000, 64, 8), (8, 1, 8192, 16, 2), (128, 1, 512, 32, 8),
        (4, 1, 131072, 32, 8), (64, 1, 4096, 8, 1), (32, 1, 4096, 16, 4, 64), (16, 1, 4096, 16, 8, 256),
        (64, 1, 8192, 32, 8, 128, 1024), (16, 4, 4096, 32, 8), (1, 1, 256, 32, 8), (512, 1, 2048, 32, 8),
    ]  # fmt: skip
    case_of: Callable[..., Case] = sizes.attention  # of shapes with and without head_dim and window
    shapes = _interleaved(
        [("attention_decode", shape) for shape in decode], [("attention_prefill", shape) for shape in prefill]
    )
    found = [(case_of(op, *shape), backend) for op, shape in shapes for backend in ("torch", "triton", "torch_flash")]
    for op, some in (("attention_decode", decode[:8]), ("attention_prefill", prefill[:4])):
        found += [(case_of(op, *shape, kv_dtype="fp8"), "triton") for shape in some]
    return _different(found)


MOE = ((4096, 14336, 2, 8), (2048, 768, 8, 128), (7168, 2048, 8, 256), (2880, 2880, 4, 32))
"""Hidden width, expert width, experts a token and experts: Mixtral 8x7B, Qwen3-30B-A3B, DeepSeek-V3, gpt-oss-20b."""


def layers(sizes: Sizes = FULL) -> list[Point]:
    """Routed experts, and the kernels that stream rows: norm, activation, rotary embedding, softmax, copy."""
    experts = [
        (sizes.experts_of(tokens, *shape, ep=8 if shape[3] == 256 else 1), "triton")
        for tokens in (64, 1, 1024, 8192, 16, 256)
        for shape in MOE
    ]
    streams = [
        (sizes.rows_of(op, rows, columns), backend)
        for rows in (4096, 64, 1, 16384)
        for op, columns in (
            ("norm", 4096), ("activation", 14336), ("rope", 4096), ("softmax", 32768), ("copy", 8192), ("norm", 8192),
        )
        for backend in ("torch", "triton")
    ]  # fmt: skip
    return _different(_interleaved(streams, experts))


def quantized(sizes: Sizes = FULL) -> list[Point]:
    """4-bit weights and INT8 beside bf16, from 1 to 4,096 rows."""
    formats = (("int4_wo", "triton"), ("bf16", "torch"), ("int8", "torch"), ("int8", "triton"), ("fp8", "torch"))
    return _different(
        (sizes.gemm(dtype, m, n, k), backend)
        for m in (1, 64, 1024, 16, 4096, 4, 256)
        for n, k in ((28672, 4096), (4096, 4096))
        for dtype, backend in formats
    )


def _spread(items: Sequence[int]) -> list[int]:
    """The items, ends and middles first."""
    order, ranges = [], [(0, len(items) - 1)]
    while ranges:
        low, high = ranges.pop(0)
        for index in (low, high):
            if index not in order:
                order.append(index)
        middle = (low + high) // 2
        if middle not in (low, high):
            ranges += [(low, middle), (middle, high)]
    return [items[index] for index in order]


def _interleaved(*lists: Sequence[Item]) -> list[Item]:
    """The items of several lists in proportion to their lengths."""
    placed = [((index + 0.5) / len(items), item) for items in lists for index, item in enumerate(items)]
    return [item for _, item in sorted(placed, key=lambda entry: entry[0])]


def _different(points: Iterable[Point]) -> list[Point]:
    """The points without repetitions, which bounded sizes make."""
    return list(dict.fromkeys(points))
