"""The heads of a rank in tables of MLA, some of which divide the model's heads by the ranks twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

MODEL_HEADS = (64, 128)
"""Query heads of the models in public tables of MLA: Kimi K2, DeepSeek-V3."""

MOST_RANKS = 16
"""Most ranks that share the heads of a model in public tables of MLA."""


def heads_of_rank(heads: pd.Series[float]) -> pd.Series[float]:
    """The column `heads` of a table, or where the table divided twice, the heads that each rank has.

    Zeros show such a table, and one or two heads beside the 64 or 128 of a whole model, which would run on more than
    `MOST_RANKS`. Its heads are the model's over the square of the ranks, so those of a rank are the root of their
    product, for the model with which it is whole. Zeros stay, since they stand for several numbers.
    """
    few = heads < min(MODEL_HEADS) / MOST_RANKS
    if not ((heads == 0).any() or (few.any() and heads.isin(MODEL_HEADS).any())):
        return heads
    found = heads
    for total in MODEL_HEADS:
        rank = (total * heads) ** 0.5
        found = found.where(rank != rank.round(), rank)
    return found
