"""What a simulation observes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

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
