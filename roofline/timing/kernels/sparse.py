"""Time of sparse attention with its indexer: scores of keys, attention to gathered ones, and the small kernels beside.

Every token is a sequence of one query with n keys of its own, that an indexer picked (DSA of DeepSeek-V3.2 and GLM-5,
CSA of DeepSeek-V4, blocks for each KV head in MiniMax-M3's MSA) or that compression left (HCA). The indexer first
scores s keys, counted over all tokens, with F FLOPs and, in decode, k bytes each. In prompts a unit then picks the keys
of one token after the other, which takes time where some are left out, of a share f of the tokens. A layer has a dozen
small kernels beside (rotations, quantization, the cache, indices of pages), which pass over the queries Q of attention
and indexer in 16 bits:

    scores   T_I = s F / (score_efficiency peak) + s k / bandwidth (decode) or tokens f selection / (S clock) (prompts)
    queries  T_Q = passes 2 Q / rate                  rate: the bandwidth in decode, 16 S clock in prompts (S units)
    units    T_C = tokens n ceil(heads / tile) tile (4 d + 2 rope) / (compute_efficiency peak)
    memory   T_M = tokens n bytes of a key / (gather_rate bandwidth)
    time     t   = launch + T_I + T_Q + (T_C^p + T_M^p)^(1/p)                        p: `sharpness`

d is the width of a value, and d + rope that of a key; `tokens` are those of all sequences.

A tile holds the query heads of one token: kernels pad them, or have slower ones for fewer than 128 (`partial`, a factor
on T_C). Small kernels pass over padded heads, too, where engines allocate queries for the tile (`padded`). Some kernels
pass over all slots of a selection, filled or not, or over those of a window (`whole`). Some engines skip the indexer
where nothing is left out and attend densely to expanded keys (`dense`), 320 elements instead of 1,088 for a head of
DeepSeek's; GLM-5's, whose values are twice as wide, have no such kernel on Blackwell. Gathered keys are counted for
every token: neighbours of a prompt find them in the L2, which shows as a `gather_rate` above 1.
"""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.attention import Cache, cache_of
from roofline.timing.kernels.common import ON_CHIP, ceil_div, unit_clocks
from roofline.timing.kernels.formats import numbers
from roofline.timing.kernels.model import Array, Bound, Parameters, Row, Shape, Term, Terms, text

TILES = 1.0, 16.0, 64.0, 128.0
"""Query heads of a tile: the values of the parameter `tile`, which a fit tries."""

TUNED_HEADS = 128.0
"""Query heads of DeepSeek's models, from which `partial` does not count: with fewer heads TensorRT-LLM 1.3.0rc10 takes
7 times as long for each."""

DEEPSEEK_SCORE_FLOPS = 16384.0
"""FLOPs of a score of DeepSeek-V3.2's indexer (64 heads of 128), twice GLM-5's, whose dense attention Blackwell lacks:
SGLang sets SGLANG_NSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD to 0 for it there."""

WINDOW = 128.0
"""Slots of DeepSeek-V4's window, in front of those of its entries."""

EXPANDED = 640.0 / 2176.0
"""FLOPs of a pair with expanded keys and values (192 and 128 wide) over those with latents (576 and 512)."""

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 1e-6, 80e-6, 10e-6, "launches of attention and of its indexer"),
    Parameter("compute_efficiency", Unit.RATIO, 0.01, 1.0, 0.25, "achieved fraction of twice the 16-bit peak: FP8's"),
    Parameter("gather_rate", Unit.RATIO, 0.05, 8.0, 0.8, "bandwidth of gathered keys over that of memory"),
    Parameter("score_efficiency", Unit.RATIO, 0.01, 1.0, 0.3, "achieved fraction of their peak in scores"),
    Parameter("partial", Unit.RATIO, 0.3, 20.0, 1.0, "factor on the units with fewer heads than 128", start=1.0),
    Parameter("passes", Unit.RATIO, 0.01, 200.0, 3.0, "passes of small kernels over queries in 16 bits"),
    Parameter("selection", Unit.RATIO, 10, 2e5, 10, "clocks of a unit to select the keys of a token", start=1e3),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 3.0, "exponent of the smooth maximum of units and memory"),
    Parameter("tile", Unit.CHOICE, 0, 3, 2, "query heads of a tile: 1, 16, 64 or 128", start=2),
    Parameter("whole", Unit.CHOICE, 0, 2, 0, "1: empty slots take time, too; 2: those of a window", start=0),
    Parameter("dense", Unit.CHOICE, 0, 2, 0, "1: dense attention where nothing is left out; 2: DeepSeek's", start=0),
)

PADDED = Parameter("padded", Unit.CHOICE, 0, 1, 0, "1: small kernels pass over padded heads, too", start=0)
"""Of DeepSeek-V4's layers, whose queries and outputs vLLM writes into buffers of 64 or 128 heads (`padded_heads` in
deepseek_v4_attention.py); in DSA and MSA it helped no table, and MSA's on another GPU were 17% off for 10."""

DEEPGEMM_SCORES = 0.5, 0.55
"""The least and the usual fraction of the FP8 peak that DeepGEMM's kernel of a prompt's scores reaches.

A run of its own test on Hopper has 1,004 to 1,145 TFLOP/s from 4,096 to 65,536 keys (sgl-project/sglang, issue 11989)
of a peak of 1,979. Tables of DSA end at 32,768 keys and are fitted as well with 0.1, with which 100,000 keys take twice
as long: fitted up to 8,192 keys, the longer rows are 11 to 12% off with this bound and 17 to 28% without it.
"""


@cache
def prefill_parameters(format: str) -> tuple[Parameter, ...]:
    """The parameters of prompts, of a kind of layers and a cache."""
    if format.startswith("dsa"):
        low, usual = DEEPGEMM_SCORES
        return tuple(
            replace(one, low=low, default=usual) if one.name == "score_efficiency" else one for one in PARAMETERS
        )
    return (*PARAMETERS, PADDED) if format.startswith(("csa", "hca")) else PARAMETERS


@cache
def decode_parameters(format: str) -> tuple[Parameter, ...]:
    """The parameters of decode, of a kind of layers and a cache.

    Engines score single keys with DeepGEMM's kernels. Tables of up to 131,072 keys have 0.16 to 0.9 of the peak; those
    of few keys do not tell scores from other small costs, which must not grow with the context.
    """
    least = {} if format.startswith("msa") else {"score_efficiency": 0.1}
    return tuple(replace(one, low=least.get(one.name, one.low)) for one in PARAMETERS if one.name != "selection")


class Selected(Shape, frozen=True):
    """Attention of `batch` tokens to `kv_len` keys each, of `width` FLOPs a pair and head and `entry` bytes a key.

    `scored` keys of all tokens had scores of `index_flops` FLOPs and `index_key` bytes each; a selection has `slots`
    (0: all that are visible). Arrays of one shape.
    """

    batch: Array
    kv_len: Array
    heads: Array
    width: Array
    entry: Array
    scored: Array
    index_flops: Array
    index_key: Array
    slots: Array
    cache: Cache
    index_arithmetic: str

    @property
    def is_whole(self) -> NDArray[np.bool_]:
        """Where no key is left out."""
        return np.asarray(self.kv_len * np.maximum(self.batch, 1.0) >= self.scored * (1.0 - 1e-9))

    @property
    def context(self) -> Array:
        """Keys that the indexer scored for a token, or that it attends to without one."""
        return np.where(self.scored > 0, self.scored / np.maximum(self.batch, 1.0), self.kv_len)

    @property
    def full(self) -> Array:
        """The share of tokens whose selection is full: of prompts without a prefix, whose keys grow token by token."""
        filled = self.kv_len / np.maximum(self.slots, 1.0)
        return np.clip(2.0 * filled - 1.0, 0.0, 1.0) * np.logical_not(self.is_whole)

    def is_dense(self, parameters: Parameters) -> NDArray[np.bool_]:
        """Where the engine skips the indexer, since nothing is left out."""
        expanded = (parameters["dense"] < 1.5) | (self.index_flops >= DEEPSEEK_SCORE_FLOPS)
        return np.asarray((parameters["dense"] > 0.5) & expanded & self.is_whole & (self.scored > 0))

    def query_bytes(self, heads: Array) -> Array:
        """Bytes of the queries of attention, of so many heads, and of the indexer in 16 bits."""
        return 2.0 * self.batch * (heads * self.width / 4.0 + (self.scored > 0) * self.index_flops / 2.0)


SIZES = Selected.__struct_fields__[:9]
"""The columns that are sizes: the fields of `Selected` without the cache and the arithmetic of the indexer."""


def shape(row: Row) -> Selected:
    """The attention of rows with the columns `SIZES`, formats and an optional `index_dtype`."""
    arithmetic = numbers(text(row, "index_dtype", "fp8")).arithmetic
    return Selected.of(row, cache=cache_of(row), index_arithmetic=arithmetic)


def _peaks(selected: Selected, hardware: Hardware) -> tuple[float, float]:
    """The peaks of attention in FP8, and of scores in the indexer's arithmetic or, without it, in 16 bits."""
    usual = selected.cache.computed.arithmetic
    scored = selected.index_arithmetic if hardware.supports(selected.index_arithmetic) else usual
    return 2.0 * hardware.matrix_peak(usual), hardware.matrix_peak(scored)


def bound(selected: Selected, hardware: Hardware) -> Bound:
    """The FLOPs of dense attention, which are fewer, at the peak; keys may come from a cache."""
    peak, _ = _peaks(selected, hardware)
    flops = EXPANDED * selected.batch * selected.heads * selected.kv_len * selected.width
    return Bound(flops / peak, np.zeros_like(selected.batch))


def prefill_terms(selected: Selected, hardware: Hardware, parameters: Parameters) -> Terms:
    """The terms of prompts, whose index keys are read once for all their tokens."""
    # Where an engine attends densely to all keys, what sparse attention takes beyond has no step of its own to tell.
    clocks, picked = unit_clocks(hardware), selected.full * (parameters["dense"] < 0.5)
    rows = selected.batch * picked * parameters["selection"] / clocks
    return _terms(selected, hardware, parameters, rows, ON_CHIP * clocks)


def decode_terms(selected: Selected, hardware: Hardware, parameters: Parameters) -> Terms:
    """The terms of decode, where each token reads the index keys of its own sequence."""
    index_keys = selected.scored * selected.index_key / hardware.memory_bandwidth
    return _terms(selected, hardware, parameters, index_keys, hardware.memory_bandwidth)


def _terms(selected: Selected, hardware: Hardware, parameters: Parameters, picking: Array, rate: float) -> Terms:
    """The module's terms; `picking`: seconds of index keys in decode or of selections in prompts; `rate`: T_Q's."""
    peak, score_peak = _peaks(selected, hardware)
    bandwidth, dense = hardware.memory_bandwidth, selected.is_dense(parameters)
    slots = (np.zeros_like(selected.slots), selected.slots, np.minimum(selected.slots, WINDOW))
    keys = np.maximum(selected.kv_len, slots[int(parameters["whole"])])
    tile = TILES[int(parameters["tile"])]
    heads = ceil_div(selected.heads, tile) * tile
    sparse_heads = heads * np.where(selected.heads < TUNED_HEADS, parameters["partial"], 1.0)
    pairs = np.where(dense, EXPANDED * selected.heads * selected.kv_len, sparse_heads * keys)
    flops = selected.batch * selected.width * pairs
    scores = selected.scored * selected.index_flops / (parameters["score_efficiency"] * score_peak) + picking
    queries = selected.query_bytes(np.where(dense | (parameters.get("padded", 0.0) < 0.5), selected.heads, heads))
    serial = (
        Term("launch", "launch", parameters["launch"]),
        Term(
            "scores",
            "scores FLOPs / (score_efficiency peak) + index keys or selections",
            scores * np.logical_not(dense),
        ),
        Term("queries", "passes 2 queries / rate", parameters["passes"] * queries, rate),
    )
    units = Term(
        "units", "FLOPs of padded heads / (compute_efficiency peak)", flops, parameters["compute_efficiency"] * peak
    )
    memory = Term(
        "memory",
        "gathered keys / (gather_rate bandwidth)",
        selected.batch * keys * selected.entry * np.logical_not(dense),
        parameters["gather_rate"] * bandwidth,
    )
    return Terms(serial, units, memory, parameters["sharpness"])
