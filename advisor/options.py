"""The options of a goal by keyword, as of `advise`."""

from __future__ import annotations

from typing import Any, TypedDict

from roofline.advisor.search.goal import Demand, Goal, Limits
from roofline.core.checked import object_of
from roofline.core.errors import RooflineError, quote
from roofline.serving.options import LOAD_OPTIONS, per_second
from roofline.serving.sessions.options import SESSION_OPTIONS
from roofline.timing.intervals import Reading
from roofline.whatif.solve.targets import TIMES, check_keywords


class GoalOptions(TypedDict, total=False):
    """An objective under limits: times as of `solve.TargetOptions`, memory per device in bytes or a text such as 80GB.

    `concurrency`, `rate` (requests/s) or `sessions` (of a `profile`, with `tiers` and `routing`) are the load of
    goodput, `gpus` devices, `budget` USD per hour of all of them.
    """

    objective: str
    concurrency: int | None
    rate: float | str | None
    sessions: int | None
    profile: str | None
    tiers: str | None
    routing: str | None
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
        return object_of(goal, Goal, "a goal is a Goal, or keywords such as objective='tpot'")
    asked: dict[str, Any] = {**given}
    asked |= {name: option.read(asked.get(name)) for name, option in TIMES.items()}
    limits = Limits(**{name: asked.pop(name, None) for name in Limits.__struct_fields__})
    users, rate = LOAD_OPTIONS["concurrency"].read(asked.pop("concurrency", None)), requests(asked.pop("rate", None))
    names = ("sessions", "profile", "tiers", "routing")
    of_sessions = {name: SESSION_OPTIONS[name].read(asked.pop(name, None)) for name in names}
    if isinstance(of_sessions["sessions"], list):
        raise RooflineError("advice is of one number of sessions", options=["sessions"])
    load: dict[str, Any] = {"concurrency": users, "rate": rate} | of_sessions
    demand = Demand(**load) if any(value is not None for value in load.values()) else None
    return Goal(limits=limits, demand=demand, **asked)


def requests(rate: float | str | None) -> float | None:
    """Requests/s of a number, or of a text such as 4/s, 600/min or 20000/day; raises RooflineError."""
    if rate is None:
        return None
    if not isinstance(rate, str):
        return float(LOAD_OPTIONS["rate"].number(rate))
    text = per_second(rate).strip()
    if "/" in text:
        raise RooflineError(f"a rate is in requests/s, such as 4, 0.5 or 600/min, got {quote(rate)}", options=["rate"])
    return float(LOAD_OPTIONS["rate"].number(text))
