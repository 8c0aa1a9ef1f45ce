"""The options of sessions: how many, what they are like, and where their cache is; the keywords of `serve`.

They continue the tables of `roofline.scenario.options` and `roofline.serving.options`.
"""

# Annotations are evaluated here, at once: their metadata is the table.
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypedDict

from roofline.core.limits import MAX_CONCURRENCY, MAX_LENGTH, MAX_RATE
from roofline.core.options import Kind, Option, table
from roofline.serving.sessions.profiles import PROFILES
from roofline.serving.sessions.routing import PREFIX, ROUTINGS, SESSION

if TYPE_CHECKING:
    from roofline.scenario.lengths import Lengths
    from roofline.serving.sessions.tiers import Tier
    from roofline.serving.sessions.workload import Gaps

SESSIONS = "Sessions"
"""The group of the options."""


class SessionShape(TypedDict, total=False):
    """What sessions are like and where their cache is, by keyword."""

    profile: Annotated[
        str | None,
        Option(
            f"What sessions are like, which further options change: {', '.join(PROFILES)}, or a file of `roofline"
            " workload`. [default: requests of --prompt and --generate]",
            metavar="NAME|FILE",
            example="coding-agent",
        ),
    ]
    turns: Annotated[
        "float | str | Lengths | None", Option("Turns of a session, or their distribution.", example="uniform:12:18")
    ]
    first: Annotated[
        "float | str | Lengths | None",
        Option("Tokens of its own in a session's first prompt.", metavar="TOKENS", example="20k"),
    ]
    new: Annotated[
        "float | str | Lengths | None", Option("Tokens that a turn adds to the prompt.", metavar="TOKENS", example="2k")
    ]
    gap: Annotated[
        "float | str | Gaps | None",
        Option(
            "From the end of a turn to the next one: 5s or exponential:mean=5s.",
            metavar="TIME",
            flags=("--think-time", "--think"),
            example="exponential:mean=5s",
        ),
    ]
    shared: Annotated[
        int | None,
        Option(
            "Tokens that all first prompts begin with.", Kind.GRID, unit="tokens", low=0, high=MAX_LENGTH, example="10k"
        ),
    ]
    tiers: Annotated[
        "str | Sequence[Tier] | None",
        Option(
            "Further tiers of the KV cache, nearest first: dram=1TB,ssd=8TB:bandwidth=50GB/s; of a connector that"
            " is not the engine's own: lmcache:dram=64GB.",
            metavar="NAME=SIZE,...",
            example="dram=1TB",
        ),
    ]
    pool: Annotated[
        float | None,
        Option(
            "Tokens of the KV cache on the devices. [default: those that fit]",
            Kind.GRID,
            unit="tokens",
            low=1,
            high=10**12,
            example="1m",
        ),
    ]
    routing: Annotated[
        str | None,
        Option(
            "To data-parallel ranks: sessions stay where they began, or turns go by prefix or by the fewest requests.",
            choices=ROUTINGS,
            metavar="NAME",
            default=SESSION,
            example=PREFIX,
        ),
    ]


class SessionOptions(SessionShape, total=False):
    """The options of sessions by keyword: one of `sessions` and `session_rate`, and what they are like."""

    sessions: Annotated[
        int | Sequence[int] | None,
        Option(
            "Sessions at a time, each followed by another one: 64 or 8,16,32.",
            Kind.INTEGER,
            metavar="VALUES",
            short="sessions",
            unit="sessions",
            low=1,
            high=MAX_CONCURRENCY,
            example="8,16,32",
        ),
    ]
    session_rate: Annotated[
        float | Sequence[float] | None,
        Option(
            "New sessions a second.",
            Kind.NUMBER,
            metavar="VALUES",
            short="new sessions/s",
            unit="sessions/s",
            low=1e-6,
            high=MAX_RATE,
            example="0.1,0.2",
        ),
    ]


SESSION_OPTIONS: Mapping[str, Option] = table(SessionOptions, SESSIONS)
"""The options by name: keywords of `serve`, and with dashes the command line's."""
