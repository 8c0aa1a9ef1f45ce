"""A deployment with the cache of its sessions: what the simulation and the theory of them are of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.scenario.lengths import parse_lengths
from roofline.scenario.scenario import Scenario
from roofline.serving.load import Load, served_scenario, told
from roofline.serving.options import load_values
from roofline.serving.pools import Pools, Tandem, tandem_of
from roofline.serving.replica import DoesNotFitError, Replica, replica_of
from roofline.serving.sessions.options import SESSION_OPTIONS
from roofline.serving.sessions.profiles import profile
from roofline.serving.sessions.routing import SESSION
from roofline.serving.sessions.store import Store, store_of
from roofline.serving.sessions.tiers import Tier, parse_tiers
from roofline.serving.sessions.workload import Workload, parse_gaps, plain
from roofline.specs.hardware import Hardware


class Deployed(Struct, frozen=True):
    """A replica with its cache, under sessions of a workload; with a `tandem` it is the prefill of that."""

    replica: Replica
    store: Store
    workload: Workload
    tandem: Tandem | None = None
    routing: str = SESSION

    @property
    def scenario(self) -> Scenario:
        """The scenario with all copies, or with the hardware of prefill and decode."""
        return self.replica.scenario if self.tandem is None else self.tandem.scenario

    @property
    def decode(self) -> Replica:
        """The replica whose steps decode."""
        return self.replica if self.tandem is None else self.tandem.decode

    @property
    def whole(self) -> Replica | Tandem:
        """All of the deployment: its `devices` and `pools`."""
        return self.tandem or self.replica

    @property
    def pools(self) -> tuple[tuple[Hardware, int], ...]:
        """Hardware and devices of all of it."""
        return self.whole.pools


def deployed_of(
    scenario: Scenario, workload: Workload | None, asked: Mapping[str, Any], pools: Pools | None = None
) -> Deployed:
    """The deployment of a scenario under a workload, or under that of options as `read_sessions` has them.

    With `pools`, prefill and decode are apart: the cache is that of the workers of prefill.
    """
    scenario = served_scenario(scenario)
    if scenario.images or scenario.model.task == "encode" or scenario.model.tower_kind == "encoder":
        raise RooflineError("sessions are of text that a decoder reads: no images, audio or encoders")
    work = within(workload_of(scenario, asked) if workload is None else workload, scenario)
    longest = max(round(work.longest), 2)
    output = max(min(round(work.output.mean), longest - 1), 1)
    load = Load(prompt=float(longest - output), generate=float(output), concurrency=1)
    bare = scenario.without("prompt", "generate") if scenario.asked else scenario
    tandem = None if pools is None else tandem_of(bare, load.of(bare), pools)
    replica = replica_of(bare, load.of(bare)) if tandem is None else replace(tandem.prefill, copies=tandem.prefills)
    tiers = asked.get("tiers") or ()
    pool = asked.get("pool")
    below = parse_tiers(tiers, replica.steps.scenario) if isinstance(tiers, str) else tuple(tiers)
    store = store_of(replica, below, pool, max(round(load.held), 1))
    room = store.tokens / replica.data - store.own
    if longest > room or (store.states is not None and store.states < store.slots * replica.data):
        held = " beside the model's states" if store.snapshot else ""
        raise DoesNotFitError(
            f"the longest turn, {longest:,} tokens, does not fit in the KV cache of {max(room, 0.0):,.0f} tokens{held}:"
            " take shorter sessions or more memory"
        )
    return Deployed(replica, store, work, tandem, asked.get("routing") or SESSION)


def within(work: Workload, scenario: Scenario) -> Workload:
    """The workload with contexts that are compacted where the model, or the engine as set, takes no longer ones."""
    most = scenario.settings.longest_of(scenario.model)
    if most is None or work.longest <= most:
        return work
    limit = most - math.ceil(work.output.quantile(0.999))
    compacted = work.compacted or round((work.first or work.new).mean)
    if limit <= work.shared + compacted + work.new.mean:
        raise RooflineError(f"prompts of these sessions are longer than the {most} tokens that the model takes")
    return replace(work, limit=limit, compacted=compacted)


def workload_of(scenario: Scenario, asked: Mapping[str, Any]) -> Workload:
    """The workload of a profile and of options that change it; by default requests of the scenario's lengths."""
    name = asked.get("profile")
    lengths = dict(zip(("new", "output"), scenario.lengths, strict=True))
    found = plain(lengths["new"], lengths["output"]) if name is None else profile(name)
    changes: dict[str, Any] = {
        key: parse_lengths(asked[key], key) for key in ("turns", "first", "new") if asked.get(key) is not None
    }
    own = told(scenario, ("prompt", "generate")) if name is not None else []
    if "prompt" in own:
        if "new" in changes:
            raise RooflineError("prompt and new are both the tokens that a turn adds: give one of them")
        changes["new"] = lengths["new"]
    if "generate" in own:
        changes["output"] = lengths["output"]
    if asked.get("gap") is not None:
        changes["gap"] = parse_gaps(asked["gap"], "a gap between turns")
    if asked.get("shared") is not None:
        changes["shared"] = int(asked["shared"])
    if changes:  # the means of recorded traces are no longer theirs
        changes["replayed"] = ()
    return replace(found, **changes)


NUMBERS = ("sessions", "session_rate")
"""The options of which there may be several values."""


def read_sessions(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options; of sessions and rates there may be several, and objects of the library stay."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in SESSION_OPTIONS:
            raise UnknownNameError("option of sessions", name, SESSION_OPTIONS)
        if value is None:
            continue
        option = SESSION_OPTIONS[name]
        if name in NUMBERS and not isinstance(value, (int, float)):
            found[name] = (
                load_values(option, value) if isinstance(value, str) else [option.number(each) for each in value]
            )
        elif isinstance(value, (str, int, float)):
            found[name] = option.read(value)
        else:
            found[name] = value
        tiers = name == "tiers" and not isinstance(value, str)
        if tiers and not (isinstance(value, Sequence) and all(isinstance(entry, Tier) for entry in value)):
            raise RooflineError("tiers are a text such as dram=1TB, or objects Tier")
    return found
