"""The options of sessions: how many, what they are like, and where their cache is; the keywords of `serve`.

They continue the tables of `roofline.scenario.options` and `roofline.serving.options`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from roofline.core.options import Option, read_table
from roofline.serving.sessions.routing import ROUTINGS

if TYPE_CHECKING:
    from roofline.scenario.lengths import Lengths
    from roofline.serving.sessions.tiers import Tier
    from roofline.serving.sessions.workload import Gaps

SESSIONS = "Sessions"
"""The group of the options."""


class SessionShape(TypedDict, total=False):
    """What sessions are like and where their cache is, by keyword."""

    profile: str | None
    turns: float | str | Lengths | None
    first: float | str | Lengths | None
    new: float | str | Lengths | None
    gap: float | str | Gaps | None
    shared: int | None
    tiers: str | Sequence[Tier] | None
    pool: float | None
    routing: str | None


class SessionOptions(SessionShape, total=False):
    """The options of sessions by keyword: one of `sessions` and `session_rate`, and what they are like."""

    sessions: int | Sequence[int] | None
    session_rate: float | Sequence[float] | None


SESSION_OPTIONS: Mapping[str, Option] = read_table("serving/sessions/options.yaml", SESSIONS, ROUTINGS=ROUTINGS)
"""The options by name: keywords of `serve`, and with dashes the command line's."""
