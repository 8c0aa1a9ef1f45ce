"""The options of a goal by keyword, as of `advise`."""

from __future__ import annotations

from typing import TypedDict

from roofline.advisor.search.goal import Goal, Limits, Objective, Quality
from roofline.advisor.search.goodput import Demand
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.serving.options import LOAD_OPTIONS
from roofline.timing.intervals import Reading
from roofline.whatif.solve.targets import check_keywords, read_time


class GoalOptions(TypedDict, total=False):
    """An objective under limits: times in seconds or texts such as 30ms, memory per device in bytes or 80GB.

    `concurrency` or `rate` (requests/s) are the load of goodput, `gpus` devices, `budget` USD per hour of all of them.
    """

    objective: str
    concurrency: int | None
    rate: float | str | None
    ttft: float | str | None
    tpot: float | str | None
    total: float | str | None
    memory: float | str | None
    gpus: int | None
    budget: float | str | None
    quality: str
    at: Reading
    vary_batch: bool | None


def read_goal(goal: Goal | None, given: GoalOptions) -> Goal:
    """The goal of keywords, or an object in their place. Raises RooflineError."""
    check_keywords("option of a goal", given, GoalOptions, None if goal is None else "a goal")
    if goal is not None:
        return goal
    times = (read_time("ttft", given.get("ttft")), read_time("tpot", given.get("tpot")))
    rest = (read_time("total", given.get("total")), _bytes(given.get("memory")))
    limits = Limits(*times, *rest, given.get("gpus"), _usd_per_hour(given.get("budget")))
    users, rate = given.get("concurrency"), requests(given.get("rate"))
    demand = None if users is None and rate is None else Demand(users, rate)
    objective, quality = (
        _choice(kind, given.get(name, default))
        for kind, name, default in ((Objective, "objective", "total"), (Quality, "quality", "calibrated"))
    )
    return Goal(
        Objective(objective), limits, Quality(quality), given.get("at", "mid"), given.get("vary_batch"), demand=demand
    )


def quality_of(name: str) -> Quality:
    """The quality budget of a name; raises UnknownNameError."""
    return Quality(_choice(Quality, name))


def _choice(kind: type[Objective] | type[Quality], name: object) -> str:
    if name not in list(kind):
        raise UnknownNameError(kind.__name__.lower(), name, map(str, kind))
    return str(name)


def requests(rate: float | str | None) -> float | None:
    """Requests/s of a number, or of a text such as 4/s; raises RooflineError."""
    if rate is None:
        return None
    return float(LOAD_OPTIONS["rate"].number(rate.strip().removesuffix("/s") if isinstance(rate, str) else rate))


def _bytes(memory: float | str | None) -> float | None:
    return parse_quantity(memory, Dimension.BYTES).value if isinstance(memory, str) else memory


def _usd_per_hour(budget: float | str | None) -> float | None:
    """USD/h of a number, or of a text such as 20, 20/h or $20; raises RooflineError."""
    if not isinstance(budget, str):
        return budget
    number = budget.strip().removeprefix("$").removesuffix("USD/h").removesuffix("/h").strip()
    try:
        return float(number)
    except ValueError:
        raise RooflineError(f"a budget is in USD/h, such as 20/h, got {quote(budget)}") from None
