"""The options of a load: how requests arrive, how long, and the targets that they have; the keywords of `serve`.

They continue the table of `roofline.scenario.options`, with the question itself first: a load has the lengths of its
scenario.
"""

# Annotations are evaluated here, at once: their metadata is the table.
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from roofline.core.errors import RooflineError, quote
from roofline.core.limits import MAX_CONCURRENCY, MAX_RATE
from roofline.core.options import Kind, Option, numbers, table

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

    concurrency: Annotated[
        int | Sequence[int] | None,
        Option(
            "Requests in flight: 64, 1,8,64 or 1:256:log9.",
            Kind.INTEGER,
            metavar="VALUES",
            short="requests in flight",
            unit="requests",
            low=1,
            high=MAX_CONCURRENCY,
            flags=("--users", "--max-concurrency"),
            example="1:256:log9",
        ),
    ]
    rate: Annotated[
        float | Sequence[float] | None,
        Option(
            "Requests/s that arrive: 4/s, 1,2,4 or 0.5:8:log9.",
            Kind.NUMBER,
            metavar="VALUES",
            short="requests/s that arrive",
            unit="requests/s",
            low=1e-6,
            high=MAX_RATE,
            flags=("--request-rate",),
            example="1,2,4",
        ),
    ]
    offline: Annotated[
        int | None, Option("All N requests at once.", Kind.INTEGER, low=1, high=MAX_CONCURRENCY, example="512")
    ]
    rollouts: Annotated[
        "str | Rollouts | None",
        Option(
            "Repeat an offline load in STEPS of reinforcement learning (8), or steps=8,over=1.5,sync=3s: requests begun"
            " over those that a step waits for, and the time in which new weights come.",
            metavar="STEPS",
            example="steps=4,over=1.5",
        ),
    ]
    trace: Annotated[
        "str | os.PathLike[str] | Trace | None",
        Option("A trace (CSV or JSONL: Azure, Mooncake, ShareGPT lengths).", metavar="FILE", example="trace.csv"),
    ]
    burstiness: Annotated[
        float | None,
        Option(
            "Of the rate: 1 is Poisson, less is burstier.",
            Kind.NUMBER,
            low=1e-6,
            high=1e6,
            default="1.0",
            example="0.5",
        ),
    ]
    prefix_hits: Annotated[
        float | None,
        Option(
            "Fraction of each prompt in the prefix cache.",
            Kind.NUMBER,
            short="Prefix hits",
            low=0,
            high=1,
            default="0.0",
            example="0.5",
        ),
    ]
    rounds: Annotated[
        float | None,
        Option(
            "Simulate a benchmark of ROUNDS x concurrency requests, all sent at the start.",
            Kind.NUMBER,
            low=1e-6,
            high=1e6,
            example="10",
        ),
    ]
    tenants: Annotated[
        "str | Sequence[float] | None",
        Option("Shares of requests by tenant, the first the most urgent: 1,3.", metavar="SHARES", example="1,3"),
    ]
    policy: Annotated[
        str | None,
        Option(
            "Which request a simulation admits next: fcfs, priority or vtc among tenants, shortest, fastserve; or where"
            " it goes among replicas (--dp): balanced (least-loaded), round-robin, random, power-of-two, also of pools;"
            " llumnix; dedicated or alpaserve with a model for each tenant (placement: with the layout of the devices"
            " and the models of each group searched); reroute, spotserve or petals with instances that are lost.",
            metavar="NAME",
            default="fcfs",
            choices=(*ORDERS, *ROUTES, *OF_FLEETS, PLACEMENT),
            example="vtc",
        ),
    ]
    beside: Annotated[
        str | None,
        Option(
            "Replicas of the model on other devices, which share the load behind balanced or another router: so many of"
            " each, with those joined by a plus as stages of one (HexGen's pools).",
            metavar="N*HW,...",
            example="2*8xa5000,4xa6000+4xrtx-3090-ti",
        ),
    ]
    models: Annotated[
        int | None,
        Option(
            "Models on each replica under alpaserve, of those of the tenants.",
            Kind.INTEGER,
            low=1,
            high=1000,
            otherwise="all",
            flags=("--models-per-replica",),
            example="2",
        ),
    ]
    loss: Annotated[
        float | None,
        Option(
            "Instances lost an hour, of each, under reroute, spotserve and petals.",
            Kind.NUMBER,
            metavar="PER_HOUR",
            low=0,
            high=1e4,
            default="0.0",
            example="2",
        ),
    ]
    startup: Annotated[
        float | str | None,
        Option("From the loss of an instance until another one serves.", metavar="TIME", default="2min", example="90s"),
    ]
    simulate: Annotated[
        int | None,
        Option(
            "Simulate N requests one by one, at each value.",
            Kind.INTEGER,
            low=1,
            high=10**6,
            flags=("--num-prompts",),
            example="300",
        ),
    ]
    seed: Annotated[
        int | None, Option("Seed of the simulation.", Kind.INTEGER, low=0, high=2**63, default="0", example="7")
    ]
    disaggregation: Annotated[
        "str | Pools | None",
        Option(
            "Prefill and decode on devices of their own: replicas of both (prefills=2,decodes=7), hardware and layout"
            " of a replica of decode (decode=h200-sxm,dp=8,ep=8 or tp=8,ep=8,dp-attention), sequences that decode on a"
            " rank (sequences=64), layout of one of prefill (prefill-tp=4), the link of the KV cache (link=network or"
            " node), prompts that are computed where they decode (local=1000 tokens at most, not in the prefix cache),"
            " devices that encode images (encoders=2,encoder=l40s; alone: before prefill and decode together).",
            metavar="KEY=VALUE,...",
            example="prefills=2,decodes=1",
        ),
    ]
    ttft: Annotated[
        float | str | None,
        Option("Maximum TTFT, such as 500ms.", Kind.TIME, TARGETS, short="TTFT", example="2s", bare=60),
    ]
    tpot: Annotated[
        float | str | None,
        Option("Maximum TPOT, such as 30ms.", Kind.TIME, TARGETS, short="TPOT", example="50ms", bare=1),
    ]


LOAD_OPTIONS: Mapping[str, Option] = table(LoadOptions, LOAD)
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


def load_values(option: Option, text: str) -> list[int] | list[float]:
    """The values of an option of a load: 1,8,64 or 1:256:log9, or 4/s of a rate. Raises RooflineError."""
    found = [value for part in text.replace("/s", "").split(",") for value in numbers(option, part.strip())]
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
