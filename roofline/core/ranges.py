"""Numbers of an option written as text: a list (1,2,4) or a range.

A range is of whole numbers (1:256, both ends included), in steps (0:4096:512), in equal ratios (1:256:log16) or in
equal steps (0:1:lin5).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from roofline.core.errors import RooflineError, quote
from roofline.core.options import Option
from roofline.core.units import parse_count

MAX_VALUES = 10_000_000
"""Maximum values of one list."""

_NUMBER = r"[+-]?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+|[kmgKMG])?"
_RANGE = re.compile(
    rf"(?P<first>{_NUMBER})\s*:\s*(?P<last>{_NUMBER})(?:\s*:\s*(?P<how>log|lin)?(?P<step>{_NUMBER}))?", re.ASCII
)
FORMS = "write it like 1,2,4 or 1:8 or 0:4096:512 or 1:256:log16 or 0:1:lin5"


def numbers(option: Option, entry: object) -> Sequence[Any]:
    """The numbers of one part of a list: a number or a range. Raises RooflineError."""
    if not isinstance(entry, str) or ":" not in entry:
        return (option.number(entry),)
    match = _RANGE.fullmatch(entry)
    if match is None:
        raise RooflineError(f"cannot read the range {quote(entry)} of {option.name}; {FORMS}")
    first, last = option.number(match["first"]), option.number(match["last"])
    if first > last:
        raise RooflineError(f"the range {quote(entry)} of {option.name} runs backwards")
    spaced = _spaced(entry, match, first, last, option)
    if option.kind.counts:
        return tuple(np.unique(np.round(spaced).astype(np.int64)).tolist())
    return [float(value) for value in spaced]


def _spaced(entry: str, match: re.Match[str], first: float, last: float, option: Option) -> Any:
    """The values of a range; the last is included if a step reaches it."""
    where = f"the range {quote(entry)} of {option.name}"
    try:
        step = parse_count(match["step"] or "1")
    except ValueError:
        raise RooflineError(f"cannot read the step of {where}; {FORMS}") from None
    if match["how"] is None:
        if step <= 0 or (option.kind.counts and step != int(step)):
            whole = "a whole number " if option.kind.counts else ""
            raise RooflineError(f"the step of {where} must be {whole}above 0")
        _check_size(math.floor((last - first) / step) + 1, where)
        return first + step * np.arange(math.floor((last - first) / step + 1e-9) + 1)
    if step < 1 or step != int(step):
        raise RooflineError(f"{where} needs a number of values, like 1:256:{match['how']}16")
    _check_size(step, where)
    if match["how"] == "lin":
        return np.linspace(first, last, int(step))
    if first <= 0:
        raise RooflineError(f"{where} starts at {first:g}; a log range must start above 0")
    return np.geomspace(first, last, int(step))


def _check_size(values: float, where: str) -> None:
    if values > MAX_VALUES:
        raise RooflineError(f"{where} has {values:.3g} values; the maximum is {MAX_VALUES}")
