"""Times of sparse attention: its index scores, and attention over the entries that each token gathers.

Every token is a sequence of one query with n entries of its own, which all heads share (DeepSeek-V4's CSA and HCA).
A unit takes the heads of one token, 64 at a time, and its entries in blocks of 64; with fewer tokens than units several
share the entries of one, and a second kernel combines their parts:

    tiles   W   = tokens ceil(heads / 64),       parts = min(blocks, max(1, floor(S / W))),   blocks = ceil(n / 64)
    units   T_C = rounds(W parts / S) (tile_prologue + 4 x 64 (d + rope / 2) 64 ceil(blocks / parts) / (ce peak / S))
    memory  T_M = tokens n entry bytes / (gather_rate bandwidth)
    time    t   = launch + combine log2(parts) + (T_C^p + T_M^p)^(1/p)

Kernels of prompts read the slots of a whole window, filled or not: blocks = max(ceil(n / 64), 2).
Gathered entries are counted for every token: neighbours of a prompt find them in the L2, which shows as a
`gather_rate` above 1. Scores of H index heads of width d are GEMMs with as many rows as tokens and heads; a score
of 32 bits is written for each entry:

    units   T_C = 2 tokens n H d / (compute_efficiency peak) + tile_prologue ceil(tokens / S)
    memory  T_M = (keys + 4 tokens n) / (memory_efficiency bandwidth)
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.attention import Cache, cache_of
from roofline.timing.kernels.common import ceil_div, rounds, units
from roofline.timing.kernels.model import Array, Bound, Parameters, Row, Term, Terms, aligned, column

SLOTS = 2.0
"""Blocks of a window of 128 tokens."""

BLOCK = 64.0
"""Heads of a tile, and entries of a block (FlashMLA's sparse kernels)."""

SCORE_BYTES = 4.0

GATHERED = (
    Parameter("launch", Unit.SECONDS, 1e-6, 80e-6, 8e-6, "launch of the kernel"),
    Parameter("compute_efficiency", Unit.RATIO, 0.02, 1.0, 0.5, "matrix unit's achievable fraction of its peak"),
    Parameter("gather_rate", Unit.RATIO, 0.05, 8.0, 0.8, "bandwidth of gathered entries over that of memory"),
    Parameter("tile_prologue", Unit.SECONDS, 0.1e-6, 50e-6, 3e-6, "start and end of a tile"),
    Parameter("combine", Unit.SECONDS, 1e-9, 20e-6, 1e-6, "combining parts, for each doubling of them"),
    Parameter("wave_quantization", Unit.RATIO, 0.01, 1.0, 0.5, "fraction of a kernel in whole waves"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 3.0, "exponent of the smooth maximum of units and memory"),
)

SCORES = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 4e-6, "launch of the kernel"),
    Parameter("compute_efficiency", Unit.RATIO, 0.02, 1.0, 0.4, "matrix unit's achievable fraction of its peak"),
    Parameter("memory_efficiency", Unit.RATIO, 0.02, 1.0, 0.6, "achieved fraction of bandwidth on keys and scores"),
    Parameter("tile_prologue", Unit.SECONDS, 1e-9, 20e-6, 0.5e-6, "start and end of a token's scores"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 3.0, "exponent of the smooth maximum of units and memory"),
)


class Gathered(Struct, frozen=True):
    """Attention of `batch` tokens to `kv_len` entries each, of `latent` + `rope` elements; arrays of one shape."""

    batch: Array
    kv_len: Array
    heads: Array
    latent: Array
    rope: Array
    cache: Cache

    @property
    def flops(self) -> Array:
        """FLOPs of scores and sums."""
        return self.batch * self.heads * self.kv_len * (4.0 * self.latent + 2.0 * self.rope)

    @property
    def bytes(self) -> Array:
        """Bytes of the entries of all tokens."""
        return self.batch * self.kv_len * (self.latent + self.rope) * self.cache.bytes


def shape(row: Row) -> Gathered:
    """The attention of rows with `batch` (tokens), `kv_len` (entries), `heads, latent, rope` and formats."""
    names = ("batch", "kv_len", "heads", "latent", "rope")
    tokens, entries, heads, latent, rope = aligned(*(column(row, name) for name in names))
    return Gathered(tokens, entries, heads, latent, rope, cache_of(row))


def bound(attention: Gathered, hardware: Hardware) -> Bound:
    """The FLOPs at the peak; the entries may come from a cache."""
    peak = hardware.matrix_peak(attention.cache.computed.arithmetic)
    return Bound(attention.flops / peak, np.zeros_like(attention.batch))


def prefill_terms(attention: Gathered, hardware: Hardware, parameters: Parameters) -> Terms:
    """The terms of a kernel of prompts."""
    return _terms(attention, hardware, parameters, SLOTS)


def decode_terms(attention: Gathered, hardware: Hardware, parameters: Parameters) -> Terms:
    """The terms of a kernel of decode."""
    return _terms(attention, hardware, parameters, 1.0)


def _terms(attention: Gathered, hardware: Hardware, parameters: Parameters, least: float) -> Terms:
    """Launch, the combination of parts, and tiles of `least` blocks or more while entries are gathered."""
    count = units(hardware)
    tiles = attention.batch * ceil_div(attention.heads, BLOCK)
    blocks = np.maximum(ceil_div(attention.kv_len, BLOCK), least)
    parts = np.minimum(blocks, np.maximum(1.0, np.floor(count / np.maximum(tiles, 1.0))))
    waves = rounds(tiles * parts / count, parameters["wave_quantization"])
    rate = parameters["compute_efficiency"] * hardware.matrix_peak(attention.cache.computed.arithmetic) / count
    each = (4.0 * attention.latent + 2.0 * attention.rope) * BLOCK * BLOCK * np.ceil(blocks / parts) / rate
    tile = parameters["tile_prologue"] + each
    work = Term("tiles", "waves x (tile_prologue + blocks x FLOPs of a block / rate)", waves * tile)
    memory = Term(
        "memory",
        "gathered entries / (gather_rate bandwidth)",
        attention.bytes,
        parameters["gather_rate"] * hardware.memory_bandwidth,
    )
    serial = (
        Term("launch", "launch", parameters["launch"]),
        Term("combination", "combine x log2(parts)", parameters["combine"] * np.log2(parts)),
    )
    return Terms(serial, work, memory, parameters["sharpness"])


class Scores(Struct, frozen=True):
    """Scores of `batch` tokens with `kv_len` keys each, by `heads` of `head_dim`; `queries` tokens share their keys."""

    batch: Array
    kv_len: Array
    heads: Array
    head_dim: Array
    queries: Array
    cache: Cache

    @property
    def flops(self) -> Array:
        """FLOPs of the products."""
        return 2.0 * self.batch * self.kv_len * self.heads * self.head_dim

    @property
    def key_bytes(self) -> Array:
        """Bytes of the keys of all sequences."""
        return self.batch / self.queries * self.kv_len * self.head_dim * self.cache.bytes


def scores_shape(row: Row) -> Scores:
    """The scores of rows with `batch` (tokens), `kv_len`, `heads, head_dim`, optional `queries` and formats."""
    names = ("batch", "kv_len", "heads", "head_dim")
    sizes = (*(column(row, name) for name in names), column(row, "queries", 1.0))
    tokens, keys, heads, width, queries = aligned(*sizes)
    return Scores(tokens, keys, heads, width, queries, cache_of(row))


def _arithmetic(scores: Scores, hardware: Hardware) -> str:
    return scores.cache.arithmetic(hardware)


def scores_bound(scores: Scores, hardware: Hardware) -> Bound:
    """The FLOPs at the peak; keys at the bandwidth."""
    return Bound(
        scores.flops / hardware.matrix_peak(_arithmetic(scores, hardware)),
        scores.key_bytes / hardware.memory_bandwidth,
    )


def scores_terms(scores: Scores, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, and GEMMs while keys are read and scores are written."""
    peak = parameters["compute_efficiency"] * hardware.matrix_peak(_arithmetic(scores, hardware))
    begun = parameters["tile_prologue"] * scores.batch / units(hardware)
    moved = scores.key_bytes + SCORE_BYTES * scores.batch * scores.kv_len
    work = Term(
        "GEMMs", "FLOPs / (compute_efficiency peak) + tile_prologue tokens / units", scores.flops / peak + begun
    )
    memory = Term(
        "memory",
        "(keys + scores) / (memory_efficiency bandwidth)",
        moved,
        parameters["memory_efficiency"] * hardware.memory_bandwidth,
    )
    return Terms((Term("launch", "launch", parameters["launch"]),), work, memory, parameters["sharpness"])
