"""A replica of an engine: the times of its steps, its scheduler, and the room of its KV cache.

Where there are more adapters (LoRA) than a device has slots for, a batch has at most as many as slots, and the others
are in host memory. The slots are taken to hold the most popular adapters; a request for another one waits until its
weights are read over each device's link to its host, one request after the other. At most as many sequences run as use,
on average, one adapter for each slot (vLLM fills batches further where many wait: it passes over requests whose adapter
finds no slot).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import cached_property, partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.graph.extents import popularity, touched
from roofline.graph.parallel import Parallelism
from roofline.graph.rewrite import Adapter
from roofline.scenario.analysis import analyze
from roofline.scenario.kv_capacity import Capacity, kv_capacity
from roofline.scenario.memory import hardware_name
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Settings
from roofline.serving.load import Load
from roofline.serving.sessions.tiers import parse_tiers
from roofline.serving.steps import StepTimes
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.reserve import Reserve
from roofline.specs.scheduler import PREFILL_FIRST, Scheduler

ALL_MODELS = "alpaserve"
"""The policy under which a replica has the models of several tenants."""

MOST_COUNTED = 4096
"""The most sequences for which the number of their different adapters is computed."""

UNLIMITED = 1 << 40
"""In place of a number of tokens or sequences that nothing limits."""


class DoesNotFitError(RooflineError):
    """The model, or no request, fits in the memory of its devices: those of `scenario` under `load`, where known."""

    def __init__(self, message: str, scenario: Scenario | None = None, load: Load | None = None) -> None:
        super().__init__(message)
        self.scenario, self.load = scenario, load


class Replica(Struct, frozen=True, dict=True):
    """A deployment of a scenario's model, formats, parallelism and engine.

    `scheduler` is the engine's policy; its `tokens` and `sequences` are of one data-parallel rank. `kv_tokens` are the
    tokens that the KV caches of all ranks hold in sequences of the load's mean length, `logged` those that the engine
    prints at its start. `copies` is the number of data-parallel ranks that share no experts, of
    which all else describes one: they do not wait for each other, and requests are divided among them. `received`: the
    KV cache of prompts comes from other devices, and requests begin to decode when they are admitted. `capacity` is the
    memory of a rank. `encoders`: the hardware and the number of devices that encode images for it, if any. `beside`:
    replicas on other devices that share its load (`roofline.serving.unequal`).
    """

    steps: StepTimes
    scheduler: Scheduler
    kv_tokens: int
    logged: int | None = None
    copies: int = 1
    received: bool = False
    capacity: Capacity | None = None
    encoders: tuple[tuple[Hardware, int], ...] = ()
    beside: tuple[Replica, ...] = ()

    @property
    def members(self) -> tuple[Replica, ...]:
        """All replicas that share its load, one for each copy."""
        return (*(self,) * self.copies, *(member for other in self.beside for member in other.members))

    @property
    def scenario(self) -> Scenario:
        """The scenario whose workload is replaced by a load, with all copies."""
        found = self.steps.scenario
        settings = found.settings
        if self.copies == 1:
            return found
        parallel = replace(settings.parallel, data=self.copies, nodes=None)
        return found.changed(settings=replace(settings, parallel=parallel))

    @property
    def data(self) -> int:
        """The data-parallel ranks that share experts, and run in lockstep."""
        return self.steps.data

    @property
    def pools(self) -> tuple[tuple[Hardware, int], ...]:
        """Hardware and devices, also of several kinds; of prefill and decode apart see `Tandem`."""
        settings = self.steps.scenario.settings
        each = settings.parallel.devices * self.copies
        mixed = tuple((stage.hardware, each * stage.devices) for stage in settings.mixed)
        others = (pool for other in self.beside for pool in other.pools)
        return (*(mixed or ((self.steps.scenario.hardware, each),)), *self.encoders, *others)

    @property
    def devices(self) -> int:
        """The devices of the replica, with all copies."""
        return sum(devices for _, devices in self.pools)

    @cached_property
    def budget(self) -> int:
        """The most tokens of a step on one rank; of a pipeline those of all batches in flight."""
        return (self.scheduler.tokens or UNLIMITED) * self.steps.flight

    @cached_property
    def crowded(self) -> bool:
        """Whether one decoding sequence fills the budget of a step, so that prompts wait until it ends."""
        return self.scheduler.order != PREFILL_FIRST and not self.received and self.budget <= self.steps.decode_tokens

    @cached_property
    def sequences(self) -> int:
        """The most running sequences of all ranks."""
        return self.scheduler.sequences * self.data or UNLIMITED

    def pace(self, prompt: float, output: float) -> float:
        """Seconds that a request of such lengths takes of a replica that is as full as memory and engine allow."""
        single, context = self.steps.single, prompt + output / 2
        batch = max(int(min(self.kv_tokens / (prompt + output), self.sequences) / self.data), 1)
        prefill = float(single(0, 0.0, prompt, prompt / 2, 1, None))
        return (prefill + output * float(self.steps.decode_of(batch)(context)) / batch) / self.data

    def routed(self, sequences: Any) -> Any:
        """Tokens that experts compute for a rank with so many sequences; None: as many as for the fullest rank."""
        return sequences * self.steps.decode_tokens if self.scheduler.masked and self.data > 1 else None


def budget_of(scenario: Scenario, policy: Scheduler) -> int | None:
    """The most tokens of a step: as set, of the scheduler, of chunked prefill, or of the engine's memory settings."""
    settings, reserve = scenario.settings, scenario.profile.memory.on(scenario.hardware)
    least = reserve.pass_tokens(settings.longest_of(scenario.model))
    return settings.step_tokens or policy.tokens or settings.chunk or least


def _with_policy(settings: Settings, policy: Scheduler, own: Scheduler) -> Settings:
    """The settings with the limits of a policy that are not the engine's `own`: it reserves memory by them, too."""
    tokens, sequences = settings.step_tokens, settings.sequences
    if tokens is None and policy.tokens != own.tokens:
        tokens = policy.tokens
    if sequences is None and policy.sequences != own.sequences:
        sequences = policy.sequences or None
    return replace(settings, step_tokens=tokens, sequences=sequences)


def copies_of(parallel: Parallelism) -> int:
    """The replicas of a layout: its data-parallel ranks, where they share no experts."""
    return 1 if parallel.expert > 1 or parallel.nodes else parallel.data


def replica_of(scenario: Scenario, load: Load, scheduler: Scheduler | None = None) -> Replica:
    """The replica of a scenario, with tables that cover a load; `scheduler` replaces the engine's policy.

    The limits of the scenario's settings hold with either. Raises DoesNotFitError where the model does not fit, or not
    even the shortest request, and RooflineError where a request is longer than the limit.
    """
    engine, parallel = scenario.profile, scenario.settings.parallel
    if (copies := copies_of(parallel)) > 1:
        one = scenario.changed(settings=replace(scenario.settings, parallel=replace(parallel, data=1)))
        return replace(replica_of(one, load, scheduler), copies=copies)
    policy, settings = _policy_of(scenario, load, scheduler or engine.scheduler)
    policy, adapters = with_slots(scenario, policy)
    reserve = settings.reserved(engine.memory.on(scenario.hardware), scenario.model)
    model = replace(scenario.model, max_context=settings.longest_of(scenario.model))
    capacity = _capacity_of(scenario, load, model, settings, reserve, adapters)
    _check_requests(scenario, load, settings.longest, capacity)
    policy = _with_states(engine.name, policy, settings.sequences, capacity, reserve)
    longest, budget = load.longest, policy.tokens
    chunk = min(budget or longest, max(longest, budget or 0))
    step = scenario.changed(batch=1).tower_step if scenario.images else None
    density = 0.0 if step is None else step.batch / load.means[0]
    steps = StepTimes(scenario, context=longest, chunk=max(chunk, 64), density=density)
    policy = replace(policy, latency=policy.latency + steps.waiting(min(load.means[0], chunk)))
    kv_tokens = min(_room(scenario, capacity, load.held) * parallel.data, UNLIMITED)
    ahead = (reserve.pass_tokens(model.max_context) or 0) * reserve.in_flight
    logged = None if kv_tokens >= UNLIMITED else capacity.logged(int(model.max_context or longest), ahead, reserve)
    logged = None if logged is None else logged * parallel.data
    return Replica(steps, policy, int(kv_tokens), logged, capacity=capacity)


def _policy_of(scenario: Scenario, load: Load, policy: Scheduler) -> tuple[Scheduler, Settings]:
    """A policy on the ranks of a scenario with the limits of its settings, and the settings with those of the policy.

    Raises RooflineError for prompts in pieces where the engine computes them whole.
    """
    engine, encodes = scenario.profile, scenario.model.task == "encode" or scenario.model.tower_kind == "encoder"
    if encodes:
        policy = replace(policy, whole=True)  # both directions of a prompt are seen at once
    if scenario.model.task == "encode":
        policy = replace(policy, request=policy.encoding or policy.request)
    policy = policy.for_ranks(scenario.settings.parallel.data)
    settings = _with_policy(scenario.settings, policy, engine.scheduler)
    if policy.whole and settings.piece:
        raise RooflineError(
            f"{engine.name} computes these prompts whole: no step has a part of one",
            options=["long_prefill_token_threshold"],
        )
    pause, piece = (settings.interval or policy.pause + 1) - 1, settings.piece or policy.piece
    budget = budget_of(scenario, policy)
    if policy.whole and budget:  # a step has room for the longest prompt, of an encoder for the longest sequence (vLLM)
        limit = scenario.settings.longest_of(scenario.model) if encodes else None
        budget = max(budget, math.ceil(load.longest), limit or 0)
    sequences = settings.sequences or policy.sequences
    return replace(policy, pause=pause, piece=piece, tokens=budget, sequences=sequences), settings


def _capacity_of(
    scenario: Scenario, load: Load, model: Model, settings: Settings, reserve: Reserve, adapters: float
) -> Capacity:
    """The memory of a rank, with the models of all tenants that it serves and `adapters`, in bytes.

    `model` has the longest sequence of the `settings`. Raises DoesNotFitError where nothing is left for a KV cache.
    """
    parallel = settings.parallel
    capacity = kv_capacity(
        model,
        scenario.hardware,
        scenario.run_precision,
        parallel,
        reserve,
        settings.offload,
        settings.host,
        settings.speculation,
        cached=load.hits > 0,
        mixed=settings.mixed,
    )
    models = (load.models or max(len(load.tenants), 1)) if load.policy == ALL_MODELS else 1
    capacity = replace(capacity, weights=models * capacity.weights + adapters)
    if capacity.cache > 0:
        return capacity
    where = f"{parallel.devices} {scenario.hardware.title or scenario.hardware.name}"
    where = hardware_name(scenario) if settings.mixed else where
    raise DoesNotFitError(
        f"{model.name} does not fit on {where}: {-capacity.cache / 1e9:.1f} GB of each device are missing",
        scenario,
        load,
    )


def _room(scenario: Scenario, capacity: Capacity, length: float) -> int:
    """The tokens that fit on a rank in sequences of `length` tokens."""
    found = None if scenario.model.task == "encode" else capacity.tokens_of(length)
    return UNLIMITED if found is None else found


def _check_requests(scenario: Scenario, load: Load, limit: int | None, capacity: Capacity) -> None:
    """Raise RooflineError for requests longer than the `limit` of a sequence, and DoesNotFitError where none fits."""
    if limit is not None and load.longest > limit:
        raise RooflineError(f"the longest request, {load.longest:.0f} tokens, is longer than max_model_len {limit}")
    if limit is not None and limit > _room(scenario, capacity, limit):
        raise DoesNotFitError(
            f"{scenario.profile.name} does not start: a sequence of max_model_len {limit} does not fit in memory"
        )
    least = load.shortest
    if least > (room := _room(scenario, capacity, least)):
        raise DoesNotFitError(
            f"no request fits: {least:.0f} tokens of prompt and output, and the KV cache of a device has room for"
            f" {room}",
            scenario,
            load,
        )


def _with_states(engine: str, policy: Scheduler, asked: int | None, capacity: Capacity, reserve: Reserve) -> Scheduler:
    """The policy with at most as many sequences as there is room for recurrent states.

    Raises DoesNotFitError where that is none, or fewer than were `asked` for of an engine that then does not start.
    """
    states = capacity.states if reserve.states else None
    if states is not None and states < policy.sequences:
        if asked:
            raise DoesNotFitError(
                f"{engine} does not start with max_num_seqs {asked}: {max(states, 0)} sequences have"
                " room for their recurrent states"
            )
        policy = replace(policy, sequences=states)
    if capacity.running is not None and capacity.running < (policy.sequences or math.inf):
        if not capacity.running:
            raise DoesNotFitError(f"{engine} does not start: its pool of states has room for no sequence")
        policy = replace(policy, sequences=capacity.running)
    return policy


def with_slots(scenario: Scenario, policy: Scheduler) -> tuple[Scheduler, float]:
    """The scheduler with the limits of the slots of adapters, and the bytes that these take of a device.

    The time of reading adapters without a slot is one of the front end.
    """
    adapter = next((each for each in scenario.settings.rewrites if isinstance(each, Adapter)), None)
    if adapter is None:
        return policy, 0.0
    whole = scenario.changed(
        batch=scenario.settings.parallel.data, prompt=1, generate=2, prefix=0, images=0, context=None
    )
    others = tuple(each for each in scenario.settings.rewrites if each is not adapter)
    plain = whole.changed(settings=replace(scenario.settings, rewrites=others))
    held = float(analyze(whole).memory.weights - analyze(plain).memory.weights)
    slots = adapter.slots or adapter.adapters
    if slots >= adapter.adapters:
        return policy, held
    (memory,) = parse_tiers("dram=1TB", scenario)
    missed = 1 - float(popularity(adapter.adapters, 1, adapter.skew)[:slots].sum())
    reading = missed * held / slots * scenario.settings.parallel.devices / memory.bandwidth
    most = max(
        bisect_right(range(1, MOST_COUNTED + 1), slots, key=partial(touched, adapter.adapters, 1, skew=adapter.skew)), 1
    )
    limits = replace(policy, request=policy.request + reading, sequences=min(policy.sequences or MOST_COUNTED, most))
    return limits, held
