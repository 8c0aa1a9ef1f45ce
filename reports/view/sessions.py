"""Sessions on the page: their load, and the requests that their turns are, which the headline and the launch take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.units import count_text, seconds
from roofline.launch.bundle import launch_command
from roofline.launch.memory import padded
from roofline.launch.repository import name_of
from roofline.reports.documents.analysis import interval
from roofline.reports.documents.answer import first_short
from roofline.reports.documents.sentences import WIDTH, Brief, Sentences, devices_text, inverse, run_text
from roofline.reports.view.questions import OF_A_BATCH, OF_SESSIONS, goals, of_pools, pools_of, python, words
from roofline.reports.view.setups import Read, Setup, changes
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import serve
from roofline.serving.options import load_values
from roofline.serving.outcome import Targets, targets_or_usual
from roofline.serving.sessions.deployed import read_sessions, within, workload_of
from roofline.serving.sessions.options import SESSION_OPTIONS
from roofline.serving.sessions.profiles import CHAT, PROFILES
from roofline.serving.sessions.served import SessionCurve
from roofline.serving.sessions.simulation import HOST
from roofline.specs.servers import SERVERS, server_of
from roofline.techniques.unsupported import not_started
from roofline.verdict.verdict import WORTH, Verdict

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
    return _seated(bare, curve).with_(prompt=prompt, generate=output), load, curve


def _seated(scenario: Scenario, curve: SessionCurve) -> Scenario:
    """The scenario with a slot for each session, as far as the cache has room, of a server that allots them.

    A slot keeps what its last turn had in the cache: a turn of another session in it would evict that.
    """
    name, given = scenario.profile.name, scenario.given
    said = any(given(option) is not None for option in ("max_num_seqs", "max_model_len", "ctx_size"))
    if said or curve.tandem is not None or name not in SERVERS or not server_of(name).allots:
        return scenario
    longest = padded(math.ceil(curve.workload.longest))
    longest = min(longest, scenario.settings.longest_of(scenario.model) or longest)
    room = int(curve.store.tokens // longest)
    slots = max(1, min(math.ceil(curve.values[0] / curve.replica.copies), room))
    return scenario.with_(max_num_seqs=slots, max_model_len=longest)


def of_sessions(
    document: dict[str, Any], verdict: Verdict, curve: SessionCurve, tiers: str, change: str = "", said: bool = True
) -> dict[str, Any]:
    """The document of the verdict on turns as requests, with the lines and the figures of their sessions.

    `change` is what to change next, in words. `said`: whether the formats of the scenario were asked for.
    """
    (found,), price = curve.outcomes, curve.outcomes[0].cost
    latencies = {"ttft": found.ttft, "tpot": found.tpot}
    many, user, rate = _many(curve), inverse(found.tpot.p50), count_text(found.output_tokens_per_second)
    headline = _headline(curve, f"{name_of(verdict.scenario)} on {devices_text(verdict.scenario, curve.whole.devices)}")
    times = ", ".join(f"{name.upper()} {seconds(each.p95.mid, 2)}" for name, each in latencies.items())
    session = "" if price is None else f"{price.session:.3g} USD a session"

    def lines(brief: Brief) -> list[str]:
        told = Sentences(verdict, better=False, brief=brief, said=said)
        cost = told.cost if price is None else f"{session}; {price.output:.3g} USD/M output tokens"
        return [
            headline,
            f"Cache: {found.hit:.0%} of prompt tokens are in it, {found.endless:.0%} if it lost none",
            f"Chosen: {told.chosen}",
            f"Speed: {rate} tokens/s, {count_text(user.mid)} a user; p95 {times}",
            f"Limited by: {told.limit}; cost: {session if session and brief > Brief.JOINED else cost}",
            *([f"Better: {change}"] if change else []),
            *([] if not_started(verdict.scenario) else [_run(told, curve, tiers)]),
        ]

    return {
        **document,
        "lines": first_short(map(lines, (Brief.JOINED, Brief.TERSE, Brief.LEAST)), WIDTH),
        "sessions": many,
        "stable": True,
        **{f"{name}_s": {at: interval(getattr(each, at)) for at in ("p50", "p95")} for name, each in latencies.items()},
        "decode_tokens_per_s_per_user": interval(user),
        "output_tokens_per_s": found.output_tokens_per_second,
        "usd_per_million_tokens": None if price is None else price.output,
    }


def _run(told: Sentences, curve: SessionCurve, tiers: str) -> str:
    """The command that starts the server, with the tiers of its cache where its options name them."""
    with suppress(RooflineError):
        if tiers:
            running = max(1, round(curve.outcomes[0].running))
            return run_text(launch_command(told.scenario, concurrency=running, tiers=tiers), told.scenario)
    return told.run


def _many(curve: SessionCurve) -> str:
    count = round(curve.values[0])
    return f"{count:,} session{'s' * (count != 1)} of {curve.workload.name or 'requests'}"


def _headline(curve: SessionCurve, where: str) -> str:
    """Whether the deployment holds the sessions, within their targets."""
    late = [f"{name.upper()} {seconds(limit)} ({seconds(value)} at p95)" for name, value, limit in _late(curve)]
    if late:
        return f"No: {where} misses {' and '.join(late)} with {_many(curve)}"
    if curve.outcomes[0].thrashes:
        return f"Not well: {_many(curve)} outgrow the cache of {where}"
    slow = any(_late(curve, targets_or_usual(*curve.targets)))
    return f"{'Slowly' if slow else 'Yes'}: {where} serves {_many(curve)}"


def best_change(verdict: Verdict, curve: SessionCurve, setup: Setup) -> tuple[str, dict[str, Any]] | None:
    """The change that helps sessions most, in words, and the options that it sets; None where turns gain nothing.

    Beside the change of their turns as requests, sessions that outgrow the cache may have the hosts' memory below it.
    """
    tried: list[tuple[str, str, Scenario, dict[str, Any]]] = []
    if (change := verdict.better) is not None:
        tried.append((change.option, change.gives_up, change.scenario, changes(verdict.scenario, change.scenario)))
    if curve.outcomes[0].thrashes and not curve.store.tiers:
        size = f"{math.ceil(curve.values[0] * curve.workload.longest * curve.store.token_bytes / 1e9)}GB"
        tiers = {"load.tiers": f"{HOST}={size}"}
        tried.append((f"--tiers {HOST}={size}", "takes so much of the hosts' memory", verdict.scenario, tiers))
    best, most = None, (False, 0.0)
    before = float(curve.outcomes[0].e2e.mean.mid)
    for option, gives_up, scenario, told in tried:
        with suppress(RooflineError):
            _, _, changed = turns(scenario, {**setup, **{key: str(each) for key, each in told.items() if "." in key}})
            after, late = float(changed.outcomes[0].e2e.mean.mid), bool(_late(changed))
            met = bool(_late(curve)) and not late
            if (met or before >= WORTH * after) and (met, before / after) > most:
                most = met, before / after
                gained = "meets the target" if met else f"{before / after:.2g} times faster"
                best = f"{option}, {gained}{', still too slow' * late}; {gives_up}", told
    return best


def _late(curve: SessionCurve, targets: Targets | None = None) -> list[tuple[str, float, float]]:
    """The targets that turns miss at p95, with the value and the limit; by default those that were asked for."""
    (found,) = curve.outcomes
    values = (float(found.ttft.p95.mid), float(found.tpot.p95.mid))
    told = zip(("ttft", "tpot"), values, targets or curve.targets, strict=True)
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
