"""The workload of a service: its load (`roofline.serving.load`), and latency targets."""

from __future__ import annotations

import math
from functools import cached_property

from msgspec import Struct
from msgspec.structs import force_setattr

from roofline.advisor.options import requests
from roofline.core.errors import RooflineError, quote
from roofline.scenario.lengths import Lengths, as_number
from roofline.serving.load import Load
from roofline.serving.options import LOAD_OPTIONS
from roofline.serving.outcome import targets_or_usual
from roofline.whatif.solve.load import READINGS
from roofline.whatif.solve.targets import Targets, read_time

SHARES = {"mean": None, "p50": 0.5, "p95": 0.95, "p99": 0.99}
"""The statistics of a latency, with their share of the requests."""


class Service(Struct, frozen=True, dict=True):
    """The load and targets of a service: `rate` requests/s or `concurrency` requests in flight, else a single user.

    A single user has one request at a time. `prompt` and `generate` are token lengths as of `parse_lengths`, `hits` is
    the fraction of a prompt in the prefix cache, `beside` the tokens of its images. `ttft` and `tpot` are targets in
    seconds (None or infinite: no target) of the `quantile`: mean, p50, p95 or p99. Raises RooflineError.
    """

    rate: float | None
    prompt: float | str | Lengths
    generate: float | str | Lengths
    ttft: float | None = None
    tpot: float | None = None
    quantile: str = "p95"
    concurrency: int | None = None
    hits: float = 0.0
    beside: int = 0

    def __post_init__(self) -> None:
        force_setattr(self, "rate", requests(self.rate))
        force_setattr(self, "concurrency", LOAD_OPTIONS["concurrency"].read(self.concurrency))
        for name in ("ttft", "tpot"):
            read = None if (given := getattr(self, name)) == math.inf else read_time(name, given)
            force_setattr(self, name, read)
        if self.rate is not None and self.concurrency is not None:
            raise RooflineError("a service has a rate or requests in flight, not both", options=["rate", "concurrency"])
        part = as_number(text := str(self.quantile))
        force_setattr(self, "quantile", text.strip().lower() if part is None else f"p{100 * part:g}")
        if self.quantile not in SHARES:
            raise RooflineError(f"the quantile must be 0.5, 0.95, 0.99 or mean, got {quote(text)}")
        force_setattr(self, "hits", LOAD_OPTIONS["prefix_hits"].read(self.hits) or 0.0)
        load, _ = self.load(1), self.targets("mid")
        force_setattr(self, "prompt", load.prompts)
        force_setattr(self, "generate", load.outputs)

    @property
    def alone(self) -> bool:
        """Whether it is a single user."""
        return self.rate is None and self.concurrency is None

    @property
    def amount(self) -> float:
        """Requests/s, or requests in flight."""
        return self.rate if self.rate is not None else float(1 if self.concurrency is None else self.concurrency)

    def share(self, replicas: float) -> float:
        """The load of the busiest of some replicas: requests/s, or requests in flight."""
        return self.rate / replicas if self.rate is not None else float(math.ceil(self.amount / replicas - 1e-9))

    def load(self, replicas: int) -> Load:
        """The load of the busiest of some replicas."""
        share = self.share(replicas)
        rate, users = (share, None) if self.rate is not None else (None, int(share))
        return Load(self.prompt, self.generate, concurrency=users, rate=rate, hits=self.hits, beside=self.beside).apart

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
        """Mean output tokens of a request after the first."""
        return self.answers.mean - 1

    @cached_property
    def context(self) -> float:
        """Mean tokens in the KV cache of the sequences that run at a random moment."""
        return self.beside + self.prompts.mean + self.answers.biased / 2

    @property
    def limits(self) -> tuple[float, float]:
        """Seconds of TTFT and TPOT, infinite without a target."""
        return targets_or_usual(self.ttft, self.tpot, loaded=False)

    def targets(self, at: str) -> Targets:
        """The targets, which hold at a reading of expected times."""
        assert at in READINGS
        return Targets(ttft=self.ttft, tpot=self.tpot, at=at)  # type: ignore[arg-type]
