"""The workload of a service: lengths of prompts and outputs (`roofline.serving.lengths`), and latency targets."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr

from roofline.core.errors import RooflineError, quote
from roofline.serving.lengths import Lengths, as_number, parse_lengths


def parse_quantile(text: str) -> float | None:
    """The quantile of a text such as 0.95; None for `mean`. Raises RooflineError."""
    if text.strip().lower() == "mean":
        return None
    share = as_number(text)
    if share is None:
        raise RooflineError(f"the quantile must be a number such as 0.95, or mean, got {quote(text)}")
    return share


class Service(Struct, frozen=True, dict=True):
    """The load and targets of a service: `rate` requests/s, or None for one user with one request at a time.

    `prompt` and `generate` are token lengths as of `parse_lengths`. `ttft` and `tpot` are targets in seconds (None: no
    target) at `quantile` of the requests; None is their mean. Raises RooflineError.
    """

    rate: float | None
    prompt: float | str | Lengths
    generate: float | str | Lengths
    ttft: float | None = None
    tpot: float | None = None
    quantile: float | None = 0.95

    def __post_init__(self) -> None:
        for name in ("rate", "ttft", "tpot"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                what = "the request rate" if name == "rate" else f"the target of {name.upper()}"
                raise RooflineError(f"{what} must be above 0, got {value:g}")
        if self.quantile is not None and not 0.5 <= self.quantile < 1:
            raise RooflineError(f"the quantile must be at least 0.5 and below 1, got {self.quantile:g}")
        force_setattr(self, "prompt", parse_lengths(self.prompt, "the prompt"))
        force_setattr(self, "generate", parse_lengths(self.generate, "the generation"))
        if self.answers.mean < 2:
            raise RooflineError("a service generates at least 2 tokens a request: the first has no TPOT")

    @property
    def prompts(self) -> Lengths:
        """The prompt lengths."""
        assert isinstance(self.prompt, Lengths)
        return self.prompt

    @property
    def answers(self) -> Lengths:
        """The output lengths."""
        assert isinstance(self.generate, Lengths)
        return self.generate

    @property
    def steps(self) -> float:
        """Mean decode steps of a request; prefill yields the first token."""
        return self.answers.mean - 1

    @cached_property
    def inverse_steps(self) -> float:
        """The mean of 1 / decode steps."""
        return float(np.mean(1 / np.maximum(self.answers.sample - 1, 1)))
