"""Time of top-k selection: the indexer of sparse attention (DSA) picks the k best of a row of scores for every token.

Kernels pass over the scores several times, by digits (radix select) or by threshold estimates, and thread blocks that
share a row synchronise. Rows of n scores in 32 bits, k of them selected:

    passes   T_P = doubling log2(max(n / k, 1))
    memory   T_M = 4 rows n / (e_B bw)
    time     t   = launch + T_P + T_M

Rows of at most k scores need no passes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import Array, Columns, Mask, aligned, column

BYTES = 4.0
"""Bytes of a score: indexers write 32 bits."""

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 4e-6, "launch of the kernel"),
    Parameter("doubling", Unit.SECONDS, 0.05e-6, 20e-6, 2.5e-6, "passes over a row for each doubling beyond k scores"),
    Parameter("memory_efficiency", Unit.RATIO, 0.01, 1.0, 0.2, "achieved fraction of bandwidth in reading scores once"),
)


def _sizes(columns: Columns) -> tuple[Array, ...]:
    return aligned(*(column(columns, name) for name in ("batch", "kv_len", "top_k")))


def doublings(columns: Columns) -> Array:
    """log2 of the scores of a row over k; 0 for shorter rows."""
    _, keys, picked = _sizes(columns)
    return np.log2(np.maximum(keys / picked, 1.0))


def score_bytes(columns: Columns) -> Array:
    """Bytes of all scores."""
    rows, keys, _ = _sizes(columns)
    return BYTES * rows * keys


def top_k_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds: the scores read once; 0 for `resident` rows."""
    return np.where(resident, 0.0, score_bytes(columns) / hardware.memory_bandwidth)


def top_k_time(columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False) -> Array:
    """Seconds for columns `batch` (rows), `kv_len` (scores of a row) and `top_k` (the module's formula)."""
    del resident
    over_memory = score_bytes(columns) / (parameters["memory_efficiency"] * hardware.memory_bandwidth)
    time: Array = parameters["launch"] + parameters["doubling"] * doublings(columns) + over_memory
    return time
