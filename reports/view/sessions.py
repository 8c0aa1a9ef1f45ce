"""Sessions on the page: their load, and the requests that their turns are, which the headline and the launch take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.units import seconds
from roofline.launch.bundle import launch_command
from roofline.launch.repository import name_of
from roofline.reports.documents.analysis import interval
from roofline.reports.documents.sentences import RUN, devices_text, inverse
from roofline.reports.view.questions import OF_A_BATCH, OF_SESSIONS, goals, of_pools, pools_of, python, words
from roofline.reports.view.setups import Read, Setup
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import serve
from roofline.serving.options import load_values
from roofline.serving.sessions.deployed import read_sessions, within, workload_of
from roofline.serving.sessions.options import SESSION_OPTIONS
from roofline.serving.sessions.profiles import CHAT, PROFILES
from roofline.serving.sessions.served import SessionCurve
from roofline.verdict.verdict import WORTH, Change

MOST_VALUES, MOST_POINTS, MOST_SESSIONS = 6, 12, 1024
"""Numbers of sessions on the page, of one set-up and of all, and the largest of them."""

LEAST_TURNS, OF_EACH, MOST_TURNS = 800, 8, 4000
"""Turns that it simulates: so many of each session, between limits."""

FEWEST_TURNS, MOST_TOKENS = 100, 500_000_000
"""The turns of very long prompts, and the tokens of all prompts of a question: some five seconds of work."""

LENGTHS = ("prompt", "generate")
"""Options of a set-up that the profile of sessions replaces."""


def sessions(setup: Setup, reads: Sequence[Read], pools: Sequence[str]) -> dict[str, Any]:
    """The documents of `roofline serve --sessions` for set-ups, each with its pools; the first has the options."""
    options = _options(setup)
    values = load_values(SESSION_OPTIONS["sessions"], options["sessions"])
    if len(values) > MOST_VALUES or len(values) * len(reads) > MOST_POINTS or max(values) > MOST_SESSIONS:
        most = f"{MOST_VALUES} numbers of at most {MOST_SESSIONS} sessions, and {MOST_POINTS} of all set-ups"
        raise RooflineError(f"the page has at most {most}")
    bare = [replace(read, scenario=_bare(read.scenario)) for read in reads]
    options["simulate"] = min(_turns(read.scenario, options, len(values) * len(reads)) for read in bare)
    found = [_curve(read.scenario, tuple(options.items()), apart) for read, apart in zip(bare, pools, strict=True)]
    told = {**options, **of_pools(pools[0])}
    fixed = {name: value for name, value in bare[0].values.items() if name not in (*OF_A_BATCH, *LENGTHS)}
    arguments = ", ".join(f"{name}={value!r}" for name, value in told.items())
    return {
        "sessions": [curve.to_dict() for curve in found],
        "command": bare[0].command("serve", *words({name: str(value) for name, value in told.items()})),
        "python": python(fixed, f"serve(Scenario(**@), {arguments})", "from roofline import Scenario, serve"),
    }


def turns(scenario: Scenario, setup: Setup) -> tuple[Scenario, dict[str, Any], SessionCurve]:
    """The sessions that are asked for, and their turns as requests: a scenario of their mean lengths, and a load.

    As many are in flight as turns run and wait on average, with the part of their prompts that the cache has.
    """
    bare, options = _bare(scenario), {**_options(setup), "sessions": setup["asked.sessions"].strip()}
    if len(values := load_values(SESSION_OPTIONS["sessions"], options["sessions"])) > 1 or values[0] > MOST_SESSIONS:
        raise RooflineError(f"an answer is of one number of at most {MOST_SESSIONS:,} sessions: serve has more")
    options["simulate"] = _turns(bare, options, 1)
    curve = _curve(bare, tuple(options.items()), pools_of(setup))
    (found,) = curve.outcomes
    tokens = (found.input_tokens_per_second, found.output_tokens_per_second)
    prompt, output = (max(1, round(each / found.turns_per_second)) for each in tokens)
    load = {"concurrency": max(1, round(found.running + found.waiting)), "prefix_hits": round(min(found.hit, 0.99), 2)}
    return bare.with_(prompt=prompt, generate=output), load, curve


def of_sessions(document: dict[str, Any], scenario: Scenario, curve: SessionCurve, tiers: str) -> dict[str, Any]:
    """The document of the verdict on turns as requests, with the figures, the headline and the cost of sessions."""
    (found,), count, price = curve.outcomes, round(curve.values[0]), curve.outcomes[0].cost
    many = f"{count:,} session{'s' * (count != 1)} of {curve.workload.name or 'requests'}"
    where = f"{name_of(scenario)} on {devices_text(scenario, curve.whole.devices)}"
    late = [f"{name.upper()} {seconds(limit)} ({seconds(value)} at p95)" for name, value, limit in _late(curve)]
    headline = f"Yes: {where} serves {many}"
    if late:
        headline = f"No: {where} misses {' and '.join(late)} with {many}"
    elif found.thrashes:
        headline = f"Not well: {many} outgrow the cache of {where}"
    cache = f"Cache: {found.hit:.0%} of prompt tokens are in it, {found.endless:.0%} if it lost none"
    cost = [] if price is None else [f"Cost: {price.session:.3g} USD a session; {price.output:.3g} USD/M output tokens"]
    *kept, last = (line for line in document["lines"][1:] if not line.startswith(("Cost: ", "Speed: ")))
    if last.startswith(RUN) and tiers:
        with suppress(RooflineError):  # a connector that no option names
            last = f"{RUN}{launch_command(scenario, concurrency=max(1, round(found.running)), tiers=tiers)}"
    return {
        **document,
        "lines": [headline, cache, *kept, *cost, last],
        "sessions": many,
        "stable": True,
        "ttft_s": {name: interval(getattr(found.ttft, name)) for name in ("p50", "p95")},
        "tpot_s": {name: interval(getattr(found.tpot, name)) for name in ("p50", "p95")},
        "decode_tokens_per_s_per_user": interval(inverse(found.tpot.p50)),
        "output_tokens_per_s": found.output_tokens_per_second,
        "usd_per_million_tokens": None if price is None else price.output,
    }


def change_of_sessions(curve: SessionCurve, change: Change, setup: Setup) -> str:
    """What a change of the turns as requests does to their sessions; "" where turns are not 5% faster."""
    _, _, changed = turns(change.scenario, setup)
    before, after = (float(found.outcomes[0].e2e.mean.mid) for found in (curve, changed))
    meets = bool(_late(curve)) and not _late(changed)
    if not meets and before < WORTH * after:
        return ""
    gained = "meets the target" if meets else f"{before / after:.2g} times faster"
    return f"{change.option}, {gained}{', still too slow' * bool(_late(changed))}; {change.gives_up}"


def _late(curve: SessionCurve) -> list[tuple[str, float, float]]:
    """The targets that turns miss at p95, with the value and the limit."""
    (found,) = curve.outcomes
    values = (float(found.ttft.p95.mid), float(found.tpot.p95.mid))
    told = zip(("ttft", "tpot"), values, curve.targets, strict=True)
    return [(name, value, limit) for name, value, limit in told if not value <= limit]


def _bare(scenario: Scenario) -> Scenario:
    """The scenario without the lengths and the batch that sessions replace."""
    return scenario.without(*OF_A_BATCH, *LENGTHS)


def _options(setup: Setup) -> dict[str, Any]:
    """The options of sessions as the set-up has them, and its targets."""
    asked = {name: text for name in OF_SESSIONS if (text := setup.get(f"load.{name}", "").strip())}
    if "sessions" not in asked:
        asked["sessions"] = setup.get("asked.sessions", "").strip() or SESSION_OPTIONS["sessions"].example
    asked = {"profile": CHAT, **asked, **goals(setup)}
    if asked["profile"] not in PROFILES:  # a page reads no files
        raise UnknownNameError("profile of sessions", asked["profile"], PROFILES)
    return asked


def _turns(scenario: Scenario, options: Mapping[str, Any], points: int) -> int:
    """The turns of each of so many runs: fewer where there are many, or prompts are long."""
    read = read_sessions({name: value for name, value in options.items() if name in SESSION_OPTIONS})
    work = within(workload_of(scenario, read), scenario)
    mean = work.shared + (work.first or work.new).mean + work.turns.mean / 2 * (work.new.mean + work.output.mean)
    room = MOST_TOKENS / (points * max(min(mean, work.limit or mean), 1.0))
    wanted = min(max(LEAST_TURNS, OF_EACH * max(read["sessions"])), MOST_TURNS)
    return max(int(min(wanted, room)), FEWEST_TURNS)


@lru_cache(maxsize=32)
def _curve(scenario: Scenario, options: tuple[tuple[str, Any], ...], apart: str) -> SessionCurve:
    """The sessions of a deployment; kept, as the headline, its better change and the launch ask in turn."""
    found: SessionCurve = serve(scenario, **dict(options), **of_pools(apart))
    return found
