"""Time of top-k selection: the indexer of sparse attention (DSA) picks the k best of a row of scores for every token.

Kernels pass over the scores several times, by digits (radix select) or by threshold estimates, and thread blocks that
share a row synchronise. Rows of n scores in 32 bits, k of them selected:

    passes   T_P = doubling log2(max(n / k, 1))
    memory   T_M = 4 rows n / (memory_efficiency bandwidth)
    time     t   = launch + T_P + T_M

Rows of at most k scores need no passes.
"""

from __future__ import annotations

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.model import Array, Bound, Parameters, Shape, Term, Terms

BYTES = 4.0
"""Bytes of a score: indexers write 32 bits."""

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 4e-6, "launch of the kernel"),
    Parameter("doubling", Unit.SECONDS, 0.05e-6, 20e-6, 2.5e-6, "passes over a row for each doubling beyond k scores"),
    Parameter("memory_efficiency", Unit.RATIO, 0.01, 1.0, 0.2, "achieved fraction of bandwidth in reading scores once"),
)


class Selection(Shape, frozen=True):
    """Selections of the `top_k` best of `kv_len` scores in each of `batch` rows; arrays of one shape."""

    batch: Array
    kv_len: Array
    top_k: Array

    @property
    def bytes(self) -> Array:
        """Bytes of all scores."""
        return BYTES * self.batch * self.kv_len

    @property
    def doublings(self) -> Array:
        """log2 of the scores of a row over k; 0 for shorter rows."""
        return np.log2(np.maximum(self.kv_len / self.top_k, 1.0))


def bound(selection: Selection, hardware: Hardware) -> Bound:
    """The scores read once."""
    return Bound(np.zeros_like(selection.batch), selection.bytes / hardware.memory_bandwidth)


def terms(selection: Selection, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, passes and memory, one after the other."""
    rate = parameters["memory_efficiency"] * hardware.memory_bandwidth
    return Terms(
        (
            Term("launch", "launch", parameters["launch"]),
            Term("passes", "doubling x log2(scores of a row / k)", parameters["doubling"] * selection.doublings),
            Term("memory", "4 rows scores / (memory_efficiency bandwidth)", selection.bytes, rate),
        )
    )
