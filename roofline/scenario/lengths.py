"""Distributions of token counts: lengths of prompts and outputs.

A length is a number or a distribution, written as

    2000                            constant (every length may be written like 2k or 2K, `units.parse_count`); outputs
                                    of requests in flight vary about it (`Load.apart`)
    fixed:2000                      constant, and exactly so
    uniform:128:1024                uniform between two lengths
    lognormal:mean=512,p95=1500     lognormal, from two of mean, median and a percentile
    exponential:mean=300            memoryless
    quantiles:p50=400,p90=2k        published percentiles: geometric between them, and as far beyond the ends
    lengths.csv                     a histogram: lines of length,count
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.core.documents import MAX_BYTES
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.inputs import read_text
from roofline.core.limits import MAX_LENGTH
from roofline.core.units import parse_count

Array = NDArray[np.float64]
NORMAL = NormalDist()


class Lengths(Struct, frozen=True, dict=True):
    """A distribution of token counts: its mean, its second moment and its quantile function, all in tokens.

    >>> parse_lengths("uniform:100:300").mean
    200.0
    >>> round(parse_lengths("lognormal:mean=512,p95=1500").quantile(0.95))
    1500
    """

    written: str
    mean: float
    second: float
    inverse: Callable[[Any], Any]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lengths):
            return NotImplemented
        return (self.written, self.mean, self.second) == (other.written, other.mean, other.second)

    def __hash__(self) -> int:
        return hash((self.written, self.mean, self.second))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.written, self.is_scattered)

    def quantile(self, share: float) -> float:
        return float(np.maximum(self.inverse(np.asarray(share, float)), 1.0))

    @property
    def ends(self) -> tuple[float, float]:
        """The 0.1st and the 99.9th percentile; of a number that number, also where it is `scattered`."""
        if as_number(self.written) is not None:
            return self.mean, self.mean
        return self.quantile(0.001), self.quantile(0.999)

    @property
    def is_scattered(self) -> bool:
        """Whether they vary about a number."""
        return self.varies and as_number(self.written) is not None

    @property
    def scattered(self) -> Lengths:
        """Lengths within `SCATTER` of a number, evenly and under the same text; others as they are."""
        spread = round(SCATTER * self.mean)
        if not spread or self.varies or as_number(self.written) is None:
            return self
        found = parse_lengths(f"uniform:{self.mean - spread:.12g}:{self.mean + spread:.12g}")
        return replace(found, written=self.written)

    def beyond(self, lengths: Any) -> Any:
        """The shares longer than each of some lengths, to 1e-6."""
        low, high = np.zeros(np.shape(lengths)), np.ones(np.shape(lengths))
        for _ in range(20):
            share = (low + high) / 2
            above = np.maximum(self.inverse(share), 1.0) > lengths
            low, high = np.where(above, low, share), np.where(above, share, high)
        return 1 - np.where(low > 0, high, 0.0)

    def times(self, factor: float) -> Lengths:
        """The distribution scaled by a factor; its text has whole tokens unless it is a file."""
        if not self.written.endswith(".csv"):
            text = _NUMBER.sub(lambda found: str(max(1, int(parse_count(found[0]) * factor))), self.written)
            with suppress(RooflineError):
                return parse_lengths(text)
        return replace(
            self,
            mean=self.mean * factor,
            second=self.second * factor**2,
            inverse=lambda share: factor * self.inverse(share),
        )

    @property
    def varies(self) -> bool:
        return self.deviation > 1e-9 * self.mean

    @property
    def deviation(self) -> float:
        return math.sqrt(max(self.second - self.mean**2, 0.0))

    @property
    def biased(self) -> float:
        """The length-biased mean, E[x^2] / E[x]: that of the sequences in progress at a random moment."""
        return self.second / self.mean

    @property
    def least_of_two(self) -> float:
        """The mean of the shorter of two."""
        shares = (np.arange(self.sample.size)[::-1] + 0.5) / self.sample.size
        return float(2 * (np.sort(self.sample) * shares).mean())

    @cached_property
    def sample(self) -> Array:
        """Quantiles of equal weight, to average functions of the length."""
        if not self.varies:
            return np.array([self.mean])
        return np.asarray(np.maximum(self.inverse((np.arange(SAMPLES) + 0.5) / SAMPLES), 1.0))


SAMPLES = 1000
"""Quantiles that stand for a distribution of lengths."""

SCATTER = 1 / 9
"""The most that lengths are off a number that is their mean, over it, where they vary as those of benchmarks do.

InferenceX draws lengths from 0.8 to 1 of the longest, evenly (SemiAnalysisAI/InferenceX, --random-range-ratio 0.8).
"""

_NUMBER = re.compile(r"(?<![\w.])\d[\d_.]*(?:e[+-]?\d+|[kmg])?", re.IGNORECASE)
"""A number of tokens in a distribution's text, not the 95 of p95."""


def longer(one: Lengths, other: Lengths, tokens: float) -> float:
    """The probability that two independent lengths sum to more than a number of tokens."""
    return float(np.mean(one.beyond(tokens - other.sample)))


def parse_lengths(written: float | str | Lengths, what: str = "a length") -> Lengths:
    """The distribution of a number or text; raises RooflineError, which names it `what`."""
    if isinstance(written, Lengths):
        return written
    try:
        return _parsed(written, what)
    except OverflowError:
        raise RooflineError(f"{what} must be 1 to {MAX_LENGTH:,} on average, got {quote(written)}") from None


def _again(written: str, scattered: bool) -> Lengths:
    """Lengths that were stored."""
    found = parse_lengths(written)
    return found.scattered if scattered else found


def _parsed(written: float | str, what: str) -> Lengths:
    number = as_number(written)
    if number is not None:
        return _checked(_constant(f"{number:.12g}", number), what)
    text = str(written).strip()
    kind, _, rest = text.partition(":")
    if kind in MAKERS and rest:
        return _checked(MAKERS[kind](text, rest, what), what)
    if text.endswith(".csv"):
        return _checked(_histogram(text, what), what)
    if kind.isidentifier() and rest:
        raise UnknownNameError("distribution", kind, MAKERS)
    raise RooflineError(
        f"{what} is a number of tokens, fixed:512, uniform:128:1024, lognormal:mean=512,p95=1500, exponential:mean=300,"
        f" quantiles:p50=400,p90=2k or a .csv file of length,count, got {quote(written)}"
    )


def as_number(written: object) -> float | None:
    """The number that a text or value is; None for anything else."""
    if isinstance(written, bool):
        return None
    try:
        return parse_count(written) if isinstance(written, str) else float(written)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _checked(found: Lengths, what: str) -> Lengths:
    if not (math.isfinite(found.mean) and 1 <= found.mean <= MAX_LENGTH and math.isfinite(found.second)):
        raise RooflineError(f"{what} must be 1 to {MAX_LENGTH:,} on average, got {quote(found.written)}")
    return found


def _constant(text: str, number: float) -> Lengths:
    return Lengths(text, number, number**2, lambda share: np.full(np.shape(share), number))


def _fixed(text: str, rest: str, what: str) -> Lengths:
    number = as_number(rest)
    if number is None or not float(number).is_integer():
        raise RooflineError(f"{what}: exactly one length is fixed:TOKENS in whole tokens, got {quote(text)}")
    return _constant(text, number)


def _uniform(text: str, rest: str, what: str) -> Lengths:
    ends = [number for part in rest.split(":") if (number := as_number(part)) is not None]
    if len(ends) != 2 or not 1 <= ends[0] < ends[1] < math.inf:
        raise RooflineError(f"{what}: a uniform distribution is uniform:LOW:HIGH in tokens, got {quote(text)}")
    low, high = ends
    second = (low**2 + low * high + high**2) / 3
    return Lengths(text, (low + high) / 2, second, lambda share: low + (high - low) * np.asarray(share))


def _exponential(text: str, rest: str, what: str) -> Lengths:
    given = _given(text, rest, what)
    if set(given) != {"mean"}:
        raise RooflineError(f"{what}: an exponential distribution is exponential:mean=TOKENS, got {quote(text)}")
    mean = given["mean"]
    return Lengths(text, mean, 2 * mean**2, lambda share: -mean * np.log1p(-np.asarray(share)))


def _lognormal(text: str, rest: str, what: str) -> Lengths:
    """From mean and a percentile, median and a percentile, or mean and median.

    With z the normal quantile: ln p = mu + z sigma, ln median = mu, ln mean = mu + sigma^2 / 2.
    """
    given = _given(text, rest, what)
    percentiles = [name for name in given if name.startswith("p")]
    if len(given) != 2 or len(percentiles) > 1:
        raise RooflineError(
            f"{what}: a lognormal distribution takes two of mean, median and p95 (or another), got {quote(text)}"
        )
    if not percentiles:
        mu, square = math.log(given["median"]), 2 * math.log(given["mean"] / given["median"])
        if square <= 0:
            raise RooflineError(f"{what}: a lognormal distribution's mean must exceed its median, got {quote(text)}")
        sigma = math.sqrt(square)
    else:
        z, at = NORMAL.inv_cdf(float(percentiles[0][1:]) / 100), given[percentiles[0]]
        if "median" in given:
            mu, sigma = math.log(given["median"]), math.log(at / given["median"]) / z
            farthest = math.inf
        else:
            apart = math.log(at / given["mean"])
            farthest = math.exp(z**2 / 2)
            sigma = z - math.sqrt(z**2 - 2 * apart) if 2 * apart <= z**2 else math.nan
            mu = math.log(given["mean"]) - sigma**2 / 2
        if not sigma > 0:
            limit = "" if math.isinf(farthest) else f" and at most {farthest:.3g} times the mean"
            raise RooflineError(f"{what}: {percentiles[0]} must exceed the mean or median{limit}, got {quote(text)}")
    mean = math.exp(mu + sigma**2 / 2)
    normal = np.frompyfunc(lambda share: NORMAL.inv_cdf(min(max(share, 1e-12), 1 - 1e-12)), 1, 1)
    return Lengths(
        text, mean, mean**2 * math.exp(sigma**2), lambda share: np.exp(mu + sigma * np.asarray(normal(share), float))
    )


def _quantiles(text: str, rest: str, what: str) -> Lengths:
    """From at least two percentiles; the logarithm of the length is linear between them, and flat beyond the last."""
    shares, lengths = [0.0], [1.0]
    for part in rest.split(","):
        name, _, value = part.partition("=")
        share, number = as_number(name.strip().removeprefix("p")), as_number(value.strip())
        if share is None or number is None or not (shares[-1] < share / 100 <= 1 and lengths[-1] <= number < math.inf):
            raise RooflineError(f"{what}: percentiles and lengths that grow, such as p50=400,p90=2k, got {quote(text)}")
        shares.append(share / 100)
        lengths.append(number)
    if len(shares) < 3:
        raise RooflineError(f"{what}: a distribution by quantiles has at least two, got {quote(text)}")
    # Below the first as steep as between the first two.
    steep = math.log(lengths[2] / lengths[1]) / (shares[2] - shares[1])
    lengths[0] = max(lengths[1] / math.exp(steep * shares[1]), 1.0)
    logs = np.log(lengths)

    def inverse(share: Any) -> Any:
        return np.exp(np.interp(share, shares, logs))

    sample = inverse((np.arange(100_000) + 0.5) / 100_000)
    return Lengths(text, float(sample.mean()), float((sample**2).mean()), inverse)


MAKERS: Mapping[str, Callable[[str, str, str], Lengths]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "lognormal": _lognormal,
    "exponential": _exponential,
    "quantiles": _quantiles,
}
"""What reads a distribution, by its name."""


def _given(text: str, rest: str, what: str) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for part in rest.split(","):
        name, _, value = part.partition("=")
        number, name = as_number(value.strip()), name.strip()
        share = as_number(name[1:]) if name.startswith("p") else None
        if name not in ("mean", "median") and not (share is not None and 50 < share < 100):
            raise RooflineError(f"{what}: {quote(name)} is not mean, median or a percentile from p51 to p99.9")
        if number is None or not (math.isfinite(number) and number >= 1):
            raise RooflineError(f"{what}: {name} must be a number of tokens, at least 1, got {quote(text)}")
        found[name] = number
    return found


def _histogram(text: str, what: str) -> Lengths:
    try:
        rows = [row for row in csv.reader(io.StringIO(read_text(Path(text), MAX_BYTES), newline="")) if row]
    except csv.Error as error:
        raise RooflineError(f"{what}: {quote(text, 200)} is no CSV file ({error})") from None
    if rows and as_number(rows[0][0]) is None:
        rows = rows[1:]  # a header
    pairs = [tuple(map(as_number, row)) for row in rows]
    for line, pair in enumerate(pairs, 1):
        length, count = pair if len(pair) == 2 else (None, None)
        if length is None or count is None or not (1 <= length <= MAX_LENGTH and 0 <= count < math.inf):
            raise RooflineError(f"{what}: row {line} of {quote(text)} is not length,count")
    values, weights = np.array(pairs, float).reshape(-1, 2).T
    if not weights.sum() > 0:
        raise RooflineError(f"{what}: the counts of {quote(text)} sum to 0")
    order = np.argsort(values)
    values, weights = values[order], weights[order] / weights.sum()
    shares = np.cumsum(weights)

    def inverse(share: Any) -> Any:
        index = np.searchsorted(shares, np.asarray(share) * (1 - 1e-12))
        return values[np.minimum(index, values.size - 1)]

    return Lengths(text, float(values @ weights), float(values**2 @ weights), inverse)


def with_mean(name: str, count: Any, drawn: Lengths | None) -> Lengths:
    """The lengths of a count, or of a distribution, of which techniques may have changed the mean."""
    if drawn is None:
        return parse_lengths(count, name)
    mean = max(1, round(drawn.mean))
    return drawn if count == mean else drawn.times(count / mean)
