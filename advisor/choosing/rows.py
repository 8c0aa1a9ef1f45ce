"""Rows of a decision: an alternative under a load, what ranks it, and the price of an API beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from roofline.advisor.choosing.alternatives import Alternative
from roofline.advisor.judged import handicap
from roofline.core.errors import RooflineError, quote
from roofline.scenario.cost import MILLION
from roofline.serving.load import Load
from roofline.serving.money import Money
from roofline.serving.outcome import Outcome


class Objective(StrEnum):
    """What ranks the alternatives."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    TTFT = "ttft"
    TPOT = "tpot"
    COST = "cost"


class ApiPrice(Struct, frozen=True):
    """The price of an API in USD per million tokens of prompts, of cached prefixes and of outputs."""

    prompt: float
    cached: float
    output: float

    def request(self, load: Load) -> float:
        """USD of a mean request."""
        prompt, output = load.means
        parts = (self.prompt * prompt * (1 - load.hits), self.cached * prompt * load.hits, self.output * output)
        return sum(parts) / MILLION


def parse_api_price(text: str) -> ApiPrice:
    """The price of `IN/OUT` or `IN/CACHED/OUT`, USD per million tokens. Raises RooflineError."""
    try:
        parts = [float(part) for part in text.replace("$", "").split("/")]
        if len(parts) not in (2, 3) or not all(0 <= part < math.inf for part in parts):
            raise ValueError
    except ValueError:
        raise RooflineError(
            f"an API's price is USD per million tokens, IN/OUT or IN/CACHED/OUT, such as 0.25/1, got {quote(text)}",
            options=["api_price"],
        ) from None
    return ApiPrice(parts[0], parts[-2], parts[-1])


class Row(Struct, frozen=True, dict=True):
    """An alternative under the load: its outcome on one of the copies, or the reason why there is none.

    `unknown` is what its engine is not known to run, `missed` the limits that it exceeds, `value` of the objective
    (smaller is better), `money` of its tokens. `busy`: the load's part of what all copies would have with as much as
    the fullest: fewer users than copies leave some idle.
    """

    alternative: Alternative
    devices: int = 0
    outcome: Outcome | None = None
    reason: str = ""
    unknown: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    value: float = math.inf
    money: Money | None = None
    busy: float = 1.0

    @property
    def label(self) -> str:
        return self.alternative.label

    @property
    def is_apart(self) -> bool:
        """Whether prefill and decode are apart."""
        return self.alternative.pools is not None

    @property
    def fits(self) -> bool:
        return not self.reason

    @property
    def requests_per_second(self) -> float:
        found = 0.0 if self.outcome is None else self.outcome.requests_per_second
        return found * self.alternative.copies * self.busy

    @property
    def largest(self) -> float | None:
        """The largest sustainable rate of all copies in requests/s; None of a load with users."""
        if self.outcome is None or self.outcome.saturated_at is None:
            return None
        return self.outcome.saturated_at * self.alternative.copies

    @property
    def per_device(self) -> float | None:
        """Output tokens/s of a device."""
        return None if self.outcome is None else self.outcome.output_per_device * self.busy

    @property
    def rank(self) -> tuple[Any, ...]:
        scenario = self.alternative.scenario
        value = self.value if scenario is None else self.value * handicap(scenario)
        return (not self.fits, bool(self.unknown), bool(self.missed), value)


def rival_of(rows: Sequence[Row]) -> Row | None:
    """What the first of some rows is compared with: of those that run, the nearest; None where the first alone does.

    Layouts that come later for want of measurements (`handicap`) are compared by what is predicted of them. Where some
    have prefill and decode apart, the first is compared with the best of the other kind.
    """
    best, *others = (row for row in rows if row.fits)
    if not others:
        return None
    nearest = min((row for row in others if row.rank[:-1] == others[0].rank[:-1]), key=lambda row: row.value)
    return next((row for row in others if row.is_apart is not best.is_apart), nearest)


class Flip(Struct, frozen=True):
    """The load (requests in flight, or requests/s) from which on, or below which, another alternative comes first."""

    load: float
    above: bool
    label: str
