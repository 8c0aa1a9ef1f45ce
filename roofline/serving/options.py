"""The options of a load: how requests arrive, how long, and the targets that they have; the keywords of `serve`.

They continue the table of `roofline.scenario.options`, with the question itself first: a load has the lengths of its
scenario.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from roofline.core.errors import RooflineError, quote
from roofline.core.options import Option, numbers, read_table
from roofline.core.units import PERIODS

if TYPE_CHECKING:
    from roofline.serving.load import Rollouts, Trace
    from roofline.serving.pools import Pools

LOAD, TARGETS = "Load", "Targets"
"""The groups of the options."""

FCFS, DEDICATED, PLACEMENT = "fcfs", "dedicated", "placement"
ORDERS = (FCFS, "priority", "shortest", "vtc", "fastserve")
"""Policies of which request is next (`roofline.serving.policies`)."""

ROUTES = ("balanced", "least-loaded", "round-robin", "random", "power-of-two")
"""Policies of where a plain request goes among replicas (`roofline.serving.replicas`)."""

OF_FLEETS = ("llumnix", DEDICATED, "alpaserve", "reroute", "spotserve", "petals")
"""Policies of fleets that do more; PLACEMENT searches where models are (`roofline.serving.placement`)."""


class LoadOptions(TypedDict, total=False):
    """The options of a load by keyword: one of `concurrency`, `rate`, `offline` and `trace`, and how."""

    concurrency: int | Sequence[int] | None
    rate: float | Sequence[float] | None
    offline: int | None
    rollouts: str | Rollouts | None
    trace: str | os.PathLike[str] | Trace | None
    burstiness: float | None
    prefix_hits: float | None
    rounds: float | None
    tenants: str | Sequence[float] | None
    policy: str | None
    beside: str | None
    models: int | None
    loss: float | None
    startup: float | str | None
    simulate: int | None
    seed: int | None
    disaggregation: str | Pools | None
    ttft: float | str | None
    tpot: float | str | None


LOAD_OPTIONS: Mapping[str, Option] = read_table(
    "serving/load.yaml", LOAD, POLICIES=(*ORDERS, *ROUTES, *OF_FLEETS, PLACEMENT)
)
"""The options by name: the keywords of `serve`, and with dashes the command line's."""


def spellings(options: Mapping[str, Option]) -> dict[str, str]:
    """The names of options by others that they have."""
    return {flag.lstrip("-").replace("-", "_"): option.name for option in options.values() for flag in option.flags}


SPELLINGS = spellings(LOAD_OPTIONS)
"""The options by the names that engines have for them."""


def shares_of(asked: str | Sequence[float] | None) -> tuple[float, ...]:
    """The shares of tenants, of a text such as 1,3; () without any. Raises RooflineError."""
    if asked is None:
        return ()
    try:
        return tuple(float(part) for part in asked.split(",")) if isinstance(asked, str) else tuple(asked)
    except (TypeError, ValueError):
        raise RooflineError(f"tenants are shares such as 1,3, got {quote(asked)}", options=["tenants"]) from None


_RATE = re.compile(r"(\S+?)\s*(?:rps|qps|(?:req|requests?)?\s*(?:/|\bper\b)\s*(\w+))")


def per_second(text: str) -> str:
    """A rate in requests/s as a text without its unit, of such as 4/s, 5rps or 20000 per day; others as they are."""
    if (match := _RATE.fullmatch(text.strip().lower())) is None or (match[2] or "s") not in PERIODS:
        return text
    try:
        return match[1] if (seconds := PERIODS[match[2] or "s"]) == 1 else repr(float(match[1]) / seconds)
    except ValueError:
        return text


def load_values(option: Option, text: str) -> list[int] | list[float]:
    """The values of an option of a load: 1,8,64 or 1:256:log9, or 4/s or 600/min of a rate. Raises RooflineError."""
    read = per_second if option.unit.endswith("/s") else str
    found = [value for part in text.split(",") for value in numbers(option, read(part).strip())]
    if len(found) != len(set(found)):
        raise RooflineError(f"{option.name} has a value twice in {quote(text)}", options=[option.name])
    return found


def by_own_name(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are given, by the options' own names; raises RooflineError for two names of one option."""
    found: dict[str, Any] = {}
    for given, value in options.items():
        name = SPELLINGS.get(given, given)
        if value is not None and name in found:
            raise RooflineError(f"{given} and another name of {name} are given: give one of them")
        if value is not None:
            found[name] = value
    return found
