"""The shape of sessions: their turns, what each adds to the context, and the gaps between them.

The prompt of a turn is the shared prefix (a system prompt, tools, a repository), the session's own first context, and
all inputs and outputs since. Sub-agents begin beside a turn with a part of its context.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from roofline.core.checked import Checked, Fraction, Positive
from roofline.core.errors import RooflineError, quote
from roofline.core.limits import MAX_LENGTH
from roofline.scenario.lengths import Lengths, as_number, parse_lengths
from roofline.serving.tables import Array

Tokens = Annotated[int, Meta(ge=0, le=MAX_LENGTH)]

MAX_TURNS = 10_000
"""The most turns of a session: all are drawn at once."""

MILLISECONDS = {"ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6}

_TIME = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*(ms|s|min|h)?(?![\w.])")
"""A time in a distribution's text, in seconds without a unit, not the 95 of p95."""


class Gaps(Struct, frozen=True):
    """A distribution of times, as `written`: a `Lengths` of milliseconds, None for no time.

    >>> parse_gaps("quantiles:p50=2s,p90=24s").quantiles(np.array([0.5])).round(3)
    array([2.])
    """

    written: str
    lengths: Lengths | None

    @property
    def mean(self) -> float:
        """Seconds on average."""
        return self.lengths.mean / 1e3 if self.lengths else 0.0

    def quantiles(self, shares: Any) -> Array:
        """Seconds at some quantiles."""
        if self.lengths is None:
            return np.zeros(np.shape(shares))
        return np.asarray(self.lengths.inverse(np.asarray(shares, float)), float) / 1e3


def parse_gaps(written: object, what: str = "a gap") -> Gaps:
    """The distribution of a number of seconds or a text, as of lengths with times; raises RooflineError."""
    if isinstance(written, Gaps):
        return written
    text = str(written).strip()
    if as_number(text.removesuffix("s")) == 0:
        return Gaps(text, None)
    if text.startswith("-"):
        raise RooflineError(f"{what} must be at least 0 s, got {quote(text)}")
    scaled = _TIME.sub(lambda found: f"{float(found[1]) * MILLISECONDS[found[2] or 's']:.12g}", text)
    try:
        return Gaps(text, parse_lengths(scaled))
    except RooflineError:
        examples = "a time such as 5s, or times such as exponential:mean=5s or quantiles:p50=2s,p90=24s"
        raise RooflineError(f"{what} is {examples}, got {quote(text)}") from None


class Replayed(Checked, frozen=True):
    """What the first traces of a benchmark are like, up to that of the given number of sessions, after those before.

    In a rehearsal they stay at a turn, as what they are like is measured after it. Tokens of a main agent's prompts on
    average, of outputs, seconds between turns, and sub-agents a turn: the distributions of these are moved or scaled to
    the means. None: as the workload's.
    """

    sessions: Annotated[int, Meta(ge=1, le=10_000)]
    prompt: Positive | None = None
    output: Positive | None = None
    gap: Positive | None = None
    branches: Fraction | None = None


class Workload(Checked, frozen=True):
    """Sessions of `turns`; all lengths are in tokens, distributions as of `parse_lengths`.

    The first prompt of a session has the `shared` prefix, one of `groups` different ones, and `first` tokens of its own
    (None: those of `new`); each turn adds `new` tokens and has an `output`. The next turn comes a `gap` after the end
    of one: the time of a tool or a person. `kept`: the output is in the next prompt as it was generated, so that it is
    found in the cache; else the next prompt has other tokens there, which `new` counts. The last `replaced` tokens of a
    prompt are others in the next one (reminders, a clock, the list of files). The share `asides` of turns are calls
    beside the session: of `aside` tokens, which no cache has, and the session goes on without them. A context of more
    than `limit` tokens is compacted to `compacted`. Each turn starts `branches` groups of sub-agents on average, of
    `branch_agents` beside each other: each a session of `branch_turns` with the share `branch_context` of the context
    (0: the shared prefix) and `branch_first` tokens, the first `branch_shared` of which all of a session have (tools
    and instructions); with `joined` the next turn waits for the end of all, other than of single ones in traces as
    `replayed`. Of a number of sessions, where no turn runs, the next one comes after `idle` seconds at most, and all
    others by as much sooner (a benchmark that replays them).
    Of a benchmark that lasts a `duration` of seconds each session begins at a part of its turns within `begun`, and has
    `warmup` turns before that time, and all that a `rehearsal` of some seconds takes, without gaps and with one token
    of each output; None: sessions of a random moment, without end. It takes its traces in order, so
    that those at its begin are the same for every deployment: the first of them are as `replayed`. `source` says where
    the numbers are from.
    """

    turns: Lengths
    new: Lengths
    output: Lengths
    gap: Gaps
    first: Lengths | None = None
    shared: Tokens = 0
    groups: Annotated[int, Meta(ge=1, le=10**6)] = 1
    kept: bool = True
    replaced: Tokens = 0
    asides: Fraction = 0.0
    aside: Tokens = 0
    limit: Tokens = 0
    compacted: Tokens = 0
    branches: Fraction = 0.0
    branch_turns: Lengths | None = None
    branch_first: Lengths | None = None
    branch_context: Fraction = 0.0
    branch_shared: Tokens = 0
    branch_agents: Annotated[int, Meta(ge=1, le=100)] = 1
    joined: bool = False
    idle: Positive | None = None
    duration: Positive | None = None
    begun: tuple[Fraction, Fraction] = (0.0, 1.0)
    warmup: Annotated[int, Meta(ge=0, le=1000)] = 0
    rehearsal: Positive | None = None
    replayed: tuple[Replayed, ...] = ()
    name: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for turns in (self.turns, self.branch_turns):
            if turns is not None and turns.quantile(0.999) > MAX_TURNS:
                raise RooflineError(f"sessions have at most {MAX_TURNS:,} turns, got {quote(turns.written)}")
        if self.limit and self.limit <= self.shared + self.compacted + self.new.mean:
            raise RooflineError(
                f"a context limit of {self.limit} tokens has no room for the shared prefix of {self.shared} and a turn"
            )
        if self.begun[0] > self.begun[1]:
            raise RooflineError("the parts of their turns at which sessions begin are two, the lower one first: begun")
        for name in ("replayed", "rehearsal"):
            if getattr(self, name) and self.duration is None:
                raise RooflineError(f"{name} is of a benchmark, which lasts a time: give duration beside it")
        if any(one.sessions >= two.sessions for one, two in pairwise(self.replayed)):
            raise RooflineError("the first traces of a benchmark are up to growing numbers of sessions: replayed")
        if self.asides and not self.aside:
            raise RooflineError("calls beside a session need the tokens of their prompt: aside")
        if self.branches and (self.branch_turns is None or self.branch_first is None):
            raise RooflineError("sub-agents need the lengths branch_turns and branch_first")
        if self.branch_shared and (self.branch_context or not self.branches):
            raise RooflineError("branch_shared is of sub-agents that have no part of the context: branches")

    @property
    def traces(self) -> int:
        """The first traces of which the means are known."""
        return self.replayed[-1].sessions if self.replayed else 0

    def trace(self, place: int) -> Replayed | None:
        """The trace that a benchmark replays at a place, of the first ones."""
        return next((each for each in self.replayed if place < each.sessions), None)

    @property
    def longest(self) -> float:
        """Tokens of the longest prompt and output, at the 99.9th percentile of each distribution."""
        own = (self.first or self.new).quantile(0.999)
        grown = self.new.mean + (self.output.mean if self.kept else 0.0)
        found = self.shared + own + grown * self.turns.quantile(0.999) + self.new.quantile(0.999)
        return min(found, float(self.limit) or found) + self.output.quantile(0.999)


def waits(work: Workload, known: Any) -> Any:
    """Whether turns wait for the sub-agents before them; `known` (one or many): those of a trace that is `replayed`."""
    return work.joined and (work.branch_agents > 1 or np.logical_not(known))


def plain(prompt: Lengths, output: Lengths) -> Workload:
    """Sessions of one request each, without a gap: a closed loop of requests."""
    return Workload(parse_lengths(1), prompt, output, parse_gaps(0), name="requests")
