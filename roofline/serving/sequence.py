"""A request inside an engine."""

from __future__ import annotations

import math
from statistics import NormalDist

from roofline.scenario import speculation

GOLDEN, SILVER = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1
"""Multiples of them, without their whole parts, are evenly spread: of two draws of each request."""

_NORMAL = NormalDist()


class Sequence:
    """A request inside the engine: `left` tokens of its prompt are not computed, and it `ends` at an iteration."""

    __slots__ = (
        *("arrival", "base", "ends", "first", "generated", "index", "left", "output", "prompt", "rank", "started"),
    )

    def __init__(self, index: int, arrival: float, prompt: int, output: int, base: int) -> None:
        self.index, self.arrival, self.prompt, self.output, self.base = index, arrival, prompt, output, base
        self.left, self.generated, self.rank, self.started, self.ends = prompt, 0, 0, 0, 0
        self.first = math.nan

    def iterations(self, accepted: float, scatter: float) -> int:
        """The iterations that are left of its output, with so many `accepted` tokens each on average.

        Drafts are accepted by chance: requests of one length take more iterations or fewer (`scatter`), and part.
        """
        left = self.output - self.generated
        if accepted == 1 and not scatter:
            return left
        number = float(speculation.iterations(left, accepted))
        if scatter and number > 1:
            more = math.sqrt(left * scatter) * _NORMAL.inv_cdf((self.index * SILVER + 0.5) % 1.0)
            number += min(max(more, 1 - number), number - 1)
        # Whole ones of a mean that need not be: evenly spread over the requests.
        return int(number + self.index * GOLDEN % 1.0)


Piece = tuple[Sequence, int]
"""A chunk of a prompt: its request and tokens."""
