"""What the page asks: set-ups with the load, the targets and what else they ask for, and the words that repeat it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from roofline.core.errors import UnknownNameError
from roofline.reports.view.setups import Read, Setup, Specs
from roofline.scenario.scenario import Scenario
from roofline.serving.sessions.options import SESSION_OPTIONS

OF_A_BATCH = ("batch", "context")
"""Options of a set-up that a load replaces; serving refuses other options of a static batch."""

GOALS = ("ttft", "tpot")

ADVICE = {"objective": "total", "quality": "calibrated"}
"""What the advice is for, where the set-up does not say."""

OF_SESSIONS = tuple(name for name in SESSION_OPTIONS if name != "session_rate")
"""Options of a load of sessions."""

KEYS = {
    *(f"goal.{name}" for name in GOALS),
    *("asked.users", "asked.rate", "asked.sessions", "run.as", "run.engine", "deploy.pools"),
    *(f"load.{name}" for name in ("by", "concurrency", "rate", "hits", *OF_SESSIONS)),
    *(f"advice.{name}" for name in ADVICE),
}
"""The keys of a set-up that set a goal, the load, its launch, pools, the axis of loads, and the advice."""


class Question(Struct, forbid_unknown_fields=True):
    """What the page asks: set-ups, an operator of the first by `phase` and `place`, or a dropped file."""

    setups: list[dict[str, str]] = []
    phase: str = "prefill"
    place: int = 0
    name: str = ""
    text: str = ""


Answer = Callable[[Question, Specs], Any]


def first(question: Question, specs: Specs) -> Read:
    """The first set-up of a question. Raises RooflineError, also if there is none."""
    return specs.read(first_setup(question))


def first_setup(question: Question) -> Setup:
    """The first set-up, or an empty one."""
    return question.setups[0] if question.setups else {}


def given(scenario: Scenario, name: str) -> int:
    """A count of the scenario before techniques, which may shorten a prompt or split a batch."""
    return int(getattr(scenario.plain, name))


def goals(setup: Setup) -> dict[str, str]:
    """The targets that are set, as texts such as 30ms."""
    for name in setup:
        if name.partition(".")[0] in ("goal", "asked", "run", "load", "advice", "deploy") and name not in KEYS:
            raise UnknownNameError("key", name, KEYS)
    return {name: text for name in GOALS if (text := setup.get(f"goal.{name}", "").strip())}


def pools_of(setup: Setup) -> str:
    """The replicas of prefill and of decode of a set-up, as `--disaggregation` has them; "" for both together."""
    return setup.get("deploy.pools", "").strip()


def of_pools(apart: str) -> dict[str, Any]:
    """The option of pools, where there are any."""
    return {"disaggregation": apart} if apart else {}


def words(options: Mapping[str, str]) -> list[str]:
    """Options of a command."""
    return [word for name, text in options.items() for word in (f"--{name.replace('_', '-')}", text)]


def python(values: Any, call: str, imports: str) -> str:
    """Python that computes the same: `call` with the option values in the place of @."""
    return f"{imports}\n\nanswer = {call.replace('@', repr(values))}"
