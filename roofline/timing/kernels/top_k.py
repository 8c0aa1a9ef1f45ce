"""Time of picking the k best of a row of scores: what an indexer of sparse attention does for every token.

Kernels pass over the scores several times, by their digits (radix) or by guessed thresholds, and the blocks that share
a row wait for each other. Rows of n scores in 32 bits, k of them picked:

    passes   T_P = doubling log2(max(n / k, 1))
    memory   T_M = 4 rows n / (e_B bw)
    time     t   = launch + T_P + T_M

A row of no more than k scores is taken whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import Array, Columns, Mask, aligned, column

BYTES = 4.0
"""Bytes of a score: kernels that score keys write 32 bits."""

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 4e-6, "start and end of the kernel"),
    Parameter("doubling", Unit.SECONDS, 0.05e-6, 20e-6, 2.5e-6, "passes over a row for each doubling beyond k scores"),
    Parameter("memory_efficiency", Unit.RATIO, 0.01, 1.0, 0.2, "memory bandwidth that reading the scores once reaches"),
)


def _sizes(columns: Columns) -> tuple[Array, ...]:
    return aligned(*(column(columns, name) for name in ("batch", "kv_len", "top_k")))


def doublings(columns: Columns) -> Array:
    """How many times a row would have to be halved until k scores are left."""
    _, keys, picked = _sizes(columns)
    return np.log2(np.maximum(keys / picked, 1.0))


def scored(columns: Columns) -> Array:
    """Bytes of all scores."""
    rows, keys, _ = _sizes(columns)
    return BYTES * rows * keys


def top_k_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The speed of light in seconds: the scores read once; nothing where they are in the cache."""
    return np.where(resident, 0.0, scored(columns) / hardware.memory_bandwidth)


def top_k_time(columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False) -> Array:
    """Seconds for columns `batch` (rows), `kv_len` (scores of a row) and `top_k`; see the module."""
    del resident
    over_memory = scored(columns) / (parameters["memory_efficiency"] * hardware.memory_bandwidth)
    time: Array = parameters["launch"] + parameters["doubling"] * doublings(columns) + over_memory
    return time
