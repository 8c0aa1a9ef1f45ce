"""A launch: the files that start a scenario's server, with its prediction, its memory, and the benchmark."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Unpack

import msgspec
import numpy as np
import yaml
from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnknownNameError, visible
from roofline.graph.blocks import EXPERTS
from roofline.launch import manifests
from roofline.launch.benchmark import RESULT, benchmark_command
from roofline.launch.command import CONFIG_FILE, Command
from roofline.launch.forecast import Bench, Forecast, forecast, forecast_lines, forecast_of, with_slots
from roofline.launch.manifests import Place
from roofline.launch.plan import Listen, Plan, plan_of
from roofline.launch.repository import name_of
from roofline.launch.settings import servers_of
from roofline.scenario.analysis import Analysis
from roofline.scenario.argument import scenario_of
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import Curve
from roofline.serving.options import LoadOptions
from roofline.serving.outcome import Outcome
from roofline.specs.servers import SERVERS
from roofline.specs.states import limit_of, lock_of
from roofline.techniques.unsupported import not_whole


class Target(StrEnum):
    """Where a server is launched."""

    SHELL = "shell"
    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    LLM_D = "llm-d"
    DYNAMO = "dynamo"


COLUMNS = 80
"""Characters of a line of comments."""

COMPARE = f"roofline validate import {RESULT} --prediction prediction.json"
"""What compares the benchmark's result with the prediction, in the folder of --output."""

NEARLY_ALL = 0.999
"""The share of requests for whose lengths a server has room where lengths are distributions."""

APART = (Target.LLM_D, Target.DYNAMO)
"""Targets that have prefill and decode apart."""

FORECAST_FILE = "prediction.json"
"""What a launched server is predicted to do, for `roofline validate import --prediction`."""


class Launch(Struct, frozen=True):
    """What starts a server and measures it.

    `command` is the server's for a shell, `benchmark` the one that measures `forecast`; `memory` says in words that it
    starts, and `notes` what the user has to replace or to know. `files` are the texts of the bundle by name.
    """

    command: str
    benchmark: str
    forecast: Forecast
    memory: tuple[str, ...]
    notes: tuple[str, ...]
    files: Mapping[str, str]

    @property
    def text(self) -> str:
        """The files one after the other, but for the prediction, which comments have in words."""
        shown = ((name, text) for name, text in self.files.items() if name != FORECAST_FILE)
        return "\n".join(f"# {'-' * 8} {name}\n{text}" for name, text in shown)

    def to_dict(self) -> dict[str, Any]:
        """The launch as a document."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def launch_command(
    scenario: Scenario, server: str | None = None, *, concurrency: int | None = None, tiers: str = ""
) -> str:
    """The command that starts a scenario's server, on one line, with the settings that differ from the engine's.

    >>> from roofline import Scenario, launch_command
    >>> launch_command(Scenario("qwen3-32b", "2xh100-sxm", max_model_len=16384))
    'vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-model-len 16384'

    `server` is another engine of `SERVERS` than the scenario's; `concurrency` the requests in flight, by default
    the batch; `tiers` those of its KV cache, as `serve` has them. Over several nodes it is the leader's command; of
    replicas on several machines, or of a mixture, whose experts data-parallel ranks of one server would share, it
    is that of each. Raises RooflineError where the server does not start, and for what the engine has no option
    for.
    """
    found, copies = servers_of(scenario_of(scenario))
    slots = -(-(concurrency or int(np.max(found.batch))) // copies)
    found = found if concurrency is None else with_slots(found, slots)
    plan = replace(plan_of(found, server, slots, _longest(found)), tiers=tiers)
    beside = f"  # each of {copies} servers behind a router" if copies > 1 else ""
    return plan.command(pinned=False, needs=False, listen=Listen.UNSAID).line + beside


def refused(scenario: Scenario, slots: int = 1) -> str:
    """Why the server of the scenario's engine cannot be told all of it; "" where it can, and of engines without one."""
    if scenario.profile.name in SERVERS:
        try:
            launch_command(scenario, concurrency=slots)
        except RooflineError as error:
            return str(error)
    return ""


def launch(
    scenario: Scenario,
    server: str | None = None,
    target: Target | str = Target.SHELL,
    *,
    trust_remote_code: bool = False,
    tiers: str | None = None,
    **load: Unpack[LoadOptions],
) -> Launch:
    """The bundle of a scenario's server under a load: a concurrency (by default the batch) or a rate.

    >>> from roofline import Scenario
    >>> from roofline.launch import launch
    >>> bundle = launch(Scenario("llama-3.1-8b", "h100-sxm", prompt=1024, generate=256), concurrency=16)
    >>> sorted(bundle.files)
    ['benchmark.sh', 'prediction.json', 'serve.sh']

    `server` is another engine of `SERVERS` than the scenario's; `tiers` of its KV cache are those of `serve`, which the
    benchmark's prompts, each of which comes once, do not use. Raises RooflineError where the model does not fit, and
    for what the engine or the target cannot be told.
    """
    found = scenario_of(scenario)
    if target not in list(Target):
        raise UnknownNameError("target of a launch", target, list(Target))
    if too_long := Analysis(found).too_long:
        raise RooflineError(too_long)
    bench, curve, steady = forecast(found, load)
    apart = curve.tandem is not None
    one, copies = (found, 1) if apart else servers_of(found)
    slots = -(-(bench.concurrency or 1) // copies)
    one = one if bench.concurrency is None else with_slots(one, slots)
    plan = plan_of(one, server, slots, _longest(found), bool(bench.hits), trust_remote_code)
    if tiers and apart:
        raise RooflineError("pools hand over the KV cache by a connector of their own: omit tiers", options=["tiers"])
    plan = replace(plan, copies=copies, tiers=tiers or "")
    if plan.server.allots and bench.concurrency is None and found.plain.settings.sequences is None:
        raise RooflineError(f"{plan.server.title} has slots: say how many", options=["max_num_seqs", "concurrency"])
    for part in not_whole(one):
        instead = "--enable-expert-parallel keeps them whole" if part.startswith(EXPERTS) else "fewer ranks do"
        raise RooflineError(f"{plan.server.title} does not start with {part}: {instead}", options=["tp"])
    return _bundle(plan, found, bench, curve, steady, Target(target))


def _longest(scenario: Scenario) -> int:
    """The tokens of the longest request; of distributions, of nearly all requests."""
    prompt, output = scenario.lengths
    return math.ceil(prompt.quantile(NEARLY_ALL) + output.quantile(NEARLY_ALL))


def _bundle(plan: Plan, whole: Scenario, bench: Bench, curve: Curve, steady: Outcome, target: Target) -> Launch:
    """The bundle of a plan, whose copies together are the `whole` scenario."""
    if (curve.tandem is not None) != (target in APART):
        if target in APART:
            raise RooflineError(f"{target} has prefill and decode apart", options=["disaggregation"])
        raise RooflineError("prefill and decode apart are launched as llm-d or dynamo", options=["as"])
    if curve.replica.beside:
        raise RooflineError("launch starts equal replicas: ask for each kind of devices alone", options=["beside"])
    if curve.replica.encoders or (curve.tandem is not None and (curve.tandem.encoders or curve.tandem.local)):
        raise RooflineError(
            "launch has no servers of encoders, and sends every prompt to those of prefill: omit encoders and local",
            options=["disaggregation"],
        )
    scenario, server, version = plan.scenario, plan.server, plan.version
    engine, notes = f"{server.title} {version}".rstrip(), tuple(plan.notes())
    found = forecast_of(scenario, curve, steady, bench, engine, plan.scheme)
    measuring = benchmark_command(server, version, bench, plan.checkpoint[0] or "MODEL", server.port, whole)
    places = " + ".join(f"{count} x {spec.title or spec.name}" for spec, count in curve.pools)
    named = name_of(scenario)
    title = scenario.model.title if named == scenario.model.name else ""
    head = [f"{title or named} on {places}, {engine}"]
    head += [*plan.room.memory, *forecast_lines(found, bench), *notes]
    remark = "".join(map(_comment, head))
    compare = "" if server.benchmark == "roofline" else f"{COMPARE}\n"
    files = _shell_files(plan, remark) if target is Target.SHELL else _manifest(plan, curve, target, remark)
    files["benchmark.sh"] = f"#!/bin/sh\n{measuring.text}\n{compare}"
    files[FORECAST_FILE] = msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"
    return Launch(plan.command().line, measuring.line, found, tuple(plan.room.memory), notes, files)


def _comment(line: str) -> str:
    """A line of text as lines of comments, with what follows indented."""
    wrapped = textwrap.wrap(
        visible(line), COLUMNS, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False
    )
    return "".join(f"{part}\n" for part in wrapped)


def _shell_files(plan: Plan, remark: str) -> dict[str, str]:
    """The script of the server, one for all nodes, and its file of settings."""
    command, script = plan.command(), f"#!/bin/sh\n{remark}"
    if plan.scenario.hardware.vendor == "NVIDIA":
        if (watts := limit_of(plan.scenario.hardware)) is not None:
            script += f"# The power limit of the prediction, which root sets: nvidia-smi -pl {watts}\n"
        if (megahertz := lock_of(plan.scenario.hardware)) is not None:
            script += f"# The clock of the prediction, which root locks: nvidia-smi -lgc {megahertz}\n"
    if plan.nodes > 1:
        others = "the other has 1" if plan.nodes == 2 else f"the others have 1 to {plan.nodes - 1}"
        script += f"# LEADER: the address of the node whose NODE_RANK is 0; {others}.\n"
        script += f'if [ "$NODE_RANK" = 0 ]; then\n  {command.text}\nelse\n  {plan.command(node=1).text}\nfi\n'
    elif plan.device_sets:
        own = plan.server.port
        ports = [own + 1 + index for index in range(plan.copies)]
        script += "trap 'kill 0' EXIT\n"  # which ends the servers with their router
        for port, only in zip(ports, plan.device_sets, strict=True):
            script += f"{plan.command(port=port, only=only).text} &\n"
        script += f'nginx -p "$(mktemp -d)" -c "$PWD/{manifests.ROUTER_FILE}" -g "daemon off;"\n'
        route = manifests.router(own, [f"127.0.0.1:{port}" for port in ports])
        return {"serve.sh": script, manifests.ROUTER_FILE: route, **_config(command)}
    else:
        script += f"{command.text}\n"
    return {"serve.sh": script, **_config(command)}


def _config(command: Command) -> dict[str, str]:
    """The file of settings of a command that names one."""
    return {CONFIG_FILE: command.config_text} if command.config else {}


def _manifest(plan: Plan, curve: Curve, target: Target, remark: str) -> dict[str, str]:
    """The YAML file of a plan for a target other than a shell, below the `remark`; pools apart have a server each."""
    tandem, documents = curve.tandem, []
    if tandem is None:
        place = _place(plan)
        documents = [manifests.compose(place)] if target is Target.COMPOSE else manifests.kubernetes(place)
    else:
        prefill, decode = (_place(plan.pool(part.scenario), Listen.UNSAID) for part in (tandem.prefill, tandem.decode))
        replicas, model = (tandem.prefills, tandem.decodes), plan.checkpoint[0]
        if target is Target.DYNAMO:
            documents = [manifests.dynamo(prefill, decode, replicas, model)]
        else:
            size = plan.room.weights * tandem.prefill.devices
            documents = [manifests.llm_d(prefill, decode, replicas, model, size)]
    name = "values.yaml" if target is Target.LLM_D else f"{target}.yaml"
    return {name: remark + yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=110)}


def _place(plan: Plan, listen: Listen = Listen.EVERYWHERE) -> Place:
    """The server of a manifest."""
    commands = [plan.command(node=node, listen=listen) for node in range(min(plan.nodes, 2))]
    name = manifests.safe_name(f"{name_of(plan.scenario)}-{plan.server.name}")
    hardware, model = plan.scenario.hardware, plan.checkpoint[0]
    copies, sets = plan.copies, plan.device_sets
    return Place(name, plan.server, plan.version, commands, hardware, plan.devices, plan.nodes, model, copies, sets)


class _Plain(yaml.SafeDumper):
    """Safe YAML without anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature of its class
        return True
