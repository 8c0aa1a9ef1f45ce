"""A small designed load on a server: points from the most informative to the least, measured within hard limits.

A point is a closed loop: `concurrency` requests in flight, each with a prompt and an output of the same lengths. Single
streams show the times of prefill and decode, many in flight the scheduler. Prompts are random words with a random
start, so that no prefix cache holds them; their tokens are those of `usage`. Where a stream has none, those of a single
stream are counted by a further request each, those of several in flight by a line through two counted prompts. Each
point is kept when it is finished, so that whatever ends a run leaves those before.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.validate.measure.bench import Progress
from roofline.validate.servers.client import Client, ServerError, Timing, bounded

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand"
    " part place case week company system program question work government number night point home water room"
)
"""Common words, which are one token or two for most tokenizers."""

REPEATS = 5
"""Requests of a single stream."""

ROUNDS = 3
"""Requests over the concurrency of a point with several in flight."""

CALIBRATION = (8, 48)
"""Words of the prompts whose tokens show the tokens of a word."""


class Point(Struct, frozen=True):
    """A closed loop with the wanted tokens of each prompt and output."""

    concurrency: int
    prompt: int
    output: int

    @property
    def requests(self) -> int:
        return REPEATS if self.concurrency == 1 else ROUNDS * self.concurrency


class Measured(Struct, frozen=True):
    """Means over the requests of a point: seconds, output tokens/s of all, and the tokens that were processed.

    TTFT and TPOT of a single stream are medians, from which the rest follows: its requests are alike, and one that
    something else disturbed counts little.
    """

    concurrency: int
    requests: int
    prompt: float
    output: float
    ttft: float
    tpot: float | None
    e2e: float
    throughput: float


class Limits(Struct, frozen=True):
    """Hard limits of a run: requests, seconds, and seconds of one answer."""

    requests: int
    seconds: float
    answer: float


class Ended(Struct, frozen=True):
    """How a run ended: the points that are left, and the reason in words ("" for none left)."""

    left: int
    reason: str


def design(prompts: Sequence[int], output: int, concurrency: int) -> list[Point]:
    """Points in order of information.

    First a single stream of the middle length, then the others, then most in flight, then half of it and so on.
    """
    lengths = sorted(set(prompts))
    middle = lengths[len(lengths) // 2]
    singles = [middle, *(length for length in reversed(lengths) if length != middle)]
    counts = []
    while concurrency > 1:
        counts.append(concurrency)
        concurrency //= 2
    return [*(Point(1, length, output) for length in singles), *(Point(count, middle, output) for count in counts)]


class Load:
    """A load on one model of a server; `seed` makes its prompts."""

    def __init__(self, client: Client, model: str, host: str, limits: Limits, seed: int | None = None) -> None:
        self._client, self._model, self._host, self._limits = client, model, host, limits
        self._random = random.Random(seed)  # noqa: S311 - words of prompts
        self._started, self.sent = time.monotonic(), 0
        self._line = (0.0, 1.0)

    @property
    def left(self) -> float:
        return self._limits.seconds - (time.monotonic() - self._started)

    async def warm_up(self) -> None:
        """Measure the tokens of a word with two requests, and send a streamed one that is not counted."""
        tokens = [await self._counted(self._body(words, 1)) for words in CALIBRATION]
        slope = (tokens[1] - tokens[0]) / (CALIBRATION[1] - CALIBRATION[0])
        if slope < 0.1:
            raise ServerError(f"{self._host} counts {tokens[1]} tokens in {CALIBRATION[1]} words: its usage is wrong")
        self._line = (tokens[0] - slope * CALIBRATION[0], slope)
        await self._answer(Point(1, tokens[0], 8))

    async def measure(self, point: Point) -> Measured:
        """The means of a point; raises ServerError for the first answer that fails."""
        waiting = iter(range(point.requests))
        timings: list[Timing] = []

        async def user() -> None:
            for _ in waiting:
                timings.append(await self._answer(point))

        start = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(point.concurrency):
                    group.create_task(user())
        except ExceptionGroup as errors:  # an error raised in `except*` is a group again before Python 3.11.4
            failed, others = errors.split(ServerError)
            if failed is None or others is not None:
                raise
            raise failed.exceptions[0] from None
        seconds = time.perf_counter() - start
        paces = [timing.tpot for timing in timings if timing.tpot is not None]
        single, words = point.concurrency == 1, self._words(point.prompt)
        middle = median if single else fmean
        output, ttft = fmean(timing.output for timing in timings), middle(timing.ttft for timing in timings)
        tpot = middle(paces) if paces else None
        e2e = ttft + (output - 1) * (tpot or 0.0) if single else fmean(timing.e2e for timing in timings)
        return Measured(
            concurrency=point.concurrency,
            requests=len(timings),
            prompt=fmean(timing.prompt or self._line[0] + self._line[1] * words for timing in timings),
            output=output,
            ttft=ttft,
            tpot=tpot,
            e2e=e2e,
            throughput=output / e2e if single else sum(timing.output for timing in timings) / seconds,
        )

    async def _answer(self, point: Point) -> Timing:
        self.sent += 1
        body = self._body(self._words(point.prompt), point.output)
        timing: Timing = await bounded(self._client.stream(body, point.output), self._seconds, self._host)
        if timing.prompt is None and point.concurrency == 1:
            return replace(timing, prompt=await self._counted({**body, "max_tokens": 1}))
        return timing

    async def _counted(self, body: Mapping[str, Any]) -> int:
        """The tokens of a prompt, by a request that is not streamed; where it was just sent, a cache holds it."""
        self.sent += 1
        tokens: int = await bounded(self._client.prompt_tokens(body), self._seconds, self._host)
        return tokens

    @property
    def _seconds(self) -> float:
        """The seconds that an answer may take."""
        return max(min(self._limits.answer, self.left), 0.0)

    def _words(self, tokens: int) -> int:
        return max(round((tokens - self._line[0]) / self._line[1]), 1)

    def _body(self, words: int, most: int) -> dict[str, Any]:
        text = " ".join((str(self._random.randrange(10**6)), *self._random.choices(WORDS.split(), k=max(words - 1, 0))))
        prompt: Mapping[str, Any] = (
            {"prompt": text} if self._client.api == "completions" else {"messages": [{"role": "user", "content": text}]}
        )
        return {"model": self._model, **prompt, "max_tokens": most, "temperature": 0}


async def run(
    load: Load, points: Iterable[Point], limits: Limits, keep: Callable[[Measured], None], progress: Progress
) -> Ended:
    """Measure points in order and `keep` each; ends at the first that the limits or the server do not allow.

    Raises ServerError only where no point was measured.
    """
    points = list(points)
    total = sum(point.requests for point in points)
    limit = f"the limit of {limits.seconds / 60:g} minutes"
    try:
        await load.warm_up()
    except ServerError as error:
        raise (error if load.left > 0 else ServerError(f"no load was measured: {limit}")) from None
    for index, point in enumerate(points):
        reason = ""
        if load.sent + point.requests > limits.requests:
            reason = f"the limit of {limits.requests} requests"
        elif load.left > 0:
            done = sum(earlier.requests for earlier in points[:index]) / total
            progress(done, f"{point.concurrency} in flight, prompt {point.prompt}")
            try:
                keep(await load.measure(point))
            except ServerError as error:
                reason = str(error) if load.left > 0 else limit
        else:
            reason = limit
        if reason and index == 0:
            raise ServerError(f"no load was measured: {reason}")
        if reason:
            return Ended(len(points) - index, reason)
    return Ended(0, "")


def check_limits(concurrency: int, prompts: Sequence[int], limits: Limits) -> None:
    """Raise RooflineError for a load or limits out of range."""
    for name, value, most in (
        ("concurrency", concurrency, 1024),
        ("requests", limits.requests, 100_000),
        ("minutes", limits.seconds / 60, 1440),
        ("prompt", max(prompts, default=0), 10**6),
    ):
        if not 0 < value <= most:
            raise RooflineError(f"--{name} must be above 0 and at most {most}, got {value:g}")
