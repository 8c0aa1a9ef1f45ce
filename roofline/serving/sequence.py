"""A request inside an engine, and what a simulation observes of all."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.scenario import speculation
from roofline.serving.tables import Array

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

Finished = tuple[float, float, float, int]
"""Of a request: arrival, first and last token in seconds, and tokens generated."""


class Served(NamedTuple):
    """What a simulation observed: times of each finished request in seconds, and shares of the whole run.

    `arrival`, `first` and `last` are absolute times of arrival, first and last token; `output` the tokens generated.
    `duration` is the time of the run, `prefilling` that of steps with prompts, `running` and `waiting` mean requests,
    `cached` the mean tokens in the KV cache. `steps` counts passes, `tokens` those computed of prompts. `tenant` is the
    number of each finished request's tenant, None where a load has none. `whole`: of all copies of a replica together,
    not of one.
    """

    arrival: Array
    first: Array
    last: Array
    output: Array
    duration: float
    prefilling: float
    running: float
    waiting: float
    cached: float
    preemptions: int
    steps: int
    prompt_tokens: int
    tenant: NDArray[np.intp] | None = None
    whole: bool = False
