"""Selections whose scores are all alike, as a collector's random layers have them: candidates are compared in pairs.

The kernel of vLLM and TensorRT-LLM (csrc/sampler.cu, indexerTopK.cu) counts scores by their first 11 bits. If the bin
with the k-th best score holds at most `most_compared` scores, it ranks these by comparing each with each in the first
`ROWS` rows of a call, and sorts them in others; longer bins are counted by further bits. Scores of trained indexers are
in many bins, of which one holds few. The collector's are in one: a row of n scores, k < n <= `most_compared`, takes n^2
comparisons, and a longer one hardly any. Rows of two calls are tokens of as many sequences as a call holds.

A row is counted by one block of threads, whose atomic additions to one bin wait for each other: some clocks a score, in
which other units idle where a step of decode has fewer tokens than the device has units (`counted`).

Chosen on vLLM's CSA of one GPU: with these numbers of the sources its rows of 500 to 5,000 scores leave 6 to 8% on
H100, H200 and B200 (20% without), with other limits 8 to 12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from roofline.timing.kernels import Array
from roofline.timing.kernels.sparse import Selected

ROWS = 12288.0
"""Rows of a call whose candidates are compared in pairs (kSortingAlgorithmThreshold)."""


class Selecting(NamedTuple):
    """An engine's kernel: the most scores that it compares in pairs, and the most scores and tokens of a call."""

    most_compared: float
    most_scores: float
    most_tokens: float

    def sequences(self, tokens: Array, scores: Array) -> Array:
        """Sequences of a call, which scores each token with the keys of all of them; 0 where one is too long."""
        return np.minimum(np.floor(np.sqrt(self.most_scores / (tokens * scores))), np.floor(self.most_tokens / tokens))


ENGINES: Mapping[str, Selecting] = {
    "vllm": Selecting(2048.0, 2.0**27, np.inf),  # VLLM_SPARSE_INDEXER_MAX_LOGITS_MB is 512, of scores in 32 bits
    "tensorrt-llm": Selecting(3072.0, np.inf, 32768.0),  # indexer_max_chunk_size
}
"""Engines with this kernel; SGLang has another one, whose time does not depend on it."""


def counted(selected: Selected, blocks: float) -> Array:
    """Scores of the rows from which some are left out, with those that idle units could have counted meanwhile.

    A row keeps one of `blocks` units busy in decode; prompts have rows for all units, so that `blocks` is 1. Rows of a
    prompt without a prefix grow token by token, and those of full selections hold the longer ones.
    """
    if blocks > 1.0:
        return np.asarray(np.maximum(1.0, blocks / selected.batch) * selected.scored * ~selected.is_whole)
    return np.asarray(selected.scored * selected.full * (2.0 - selected.full))


def comparisons(engine: str, batch: Array, tokens: Array, cached: Array, kept: Array, ratio: float) -> Array:
    """Comparisons for `tokens` new tokens of each sequence after `cached` ones, with a score for each `ratio`.

    `kept` scores of a row are selected; 0 for engines with other kernels.
    """
    if engine not in ENGINES:
        return np.zeros_like(batch)
    kernel = ENGINES[engine]

    def of_first(count: Array) -> Array:
        """The comparisons of the first tokens of a sequence: the integral of the squares of their scores."""
        first, last = np.maximum(cached / ratio, kept), np.minimum((cached + count) / ratio, kernel.most_compared)
        return np.asarray(ratio * np.maximum(last**3 - first**3, 0.0) / 3.0)

    def of_call(count: Array) -> Array:
        """The comparisons of a call of so many sequences."""
        whole = np.minimum(count, np.floor(ROWS / tokens))
        rest = np.where(count > whole, np.minimum(ROWS - whole * tokens, tokens), 0.0)
        return np.asarray(whole * of_first(tokens) + of_first(rest))

    together = np.clip(kernel.sequences(tokens, (cached + tokens) / ratio), 1.0, batch)
    calls = np.floor(batch / together)
    return np.asarray(calls * of_call(together) + of_call(batch - calls * together))
