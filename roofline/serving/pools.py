"""Disaggregated prefill and decode: replicas for each, and the link that carries the KV cache between them.

`Pools` is what a user asks for, `Tandem` the deployment: prompts are computed on the replicas of prefill, their KV
cache is sent once over a link of the devices, and the replicas of decode do the rest. Requests go to the replicas of a
pool in turn.

Encoders of images on devices of their own (EPD) stand before a deployment that prefills and decodes: vLLM
("disaggregated encoder"), SGLang (--encoder-only) and TensorRT-LLM (its multimodal encoder server) send images to
encoders in turn, of one device each, which send embeddings to the devices of prefill. Of n encoders that take D seconds
for the images of a request, requests leave every D / n seconds at most: they are a front end with that service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.options import SWITCHES
from roofline.graph.extents import Step
from roofline.graph.parallel import SINGLE, Parallelism
from roofline.scenario.analysis import analyze
from roofline.scenario.parts import with_network
from roofline.scenario.scenario import Scenario
from roofline.serving.load import Load
from roofline.serving.replica import Replica, copies_of, replica_of
from roofline.serving.steps import CONTEXTS
from roofline.serving.tables import Array, geometric
from roofline.specs.hardware import NETWORK, Hardware, load_hardware
from roofline.specs.scheduler import PREFILL_FIRST, Scheduler

DEGREES = {"tp": "tensor", "pp": "pipeline", "ep": "expert", "dp": "data", "dcp": "context"}
MOST = 1000
"""The most replicas of a pool, and the largest degree of its layout."""

MOST_TOKENS = 10_000_000
"""The most tokens of a prompt that is computed where it decodes."""

ATTENTION = "dp-attention"
LAYOUT = (*DEGREES, ATTENTION)
KEYS = (
    *("prefills", "decodes", "decode", *LAYOUT, *(f"prefill-{name}" for name in LAYOUT), "sequences", "link"),
    *("local", "encoders", "encoder"),
)
TOGETHER = frozenset(("encoders", "encoder", "link"))
"""Keys beside which prefill and decode have the same devices."""

OTHER_NAMES = {
    "prefill-num-workers": "prefills",
    "decode-num-workers": "decodes",
    **{f"decode-{name}": name for name in LAYOUT},
}
"""Keys of pools of InferenceX's tables, and of decode with its name."""

RATIO = re.compile(r"^(\d+)\s*(?::|p\s*:?)\s*(\d+)d?(?=,|$)", re.IGNORECASE)
"""Replicas of prefill and of decode: 2:1, 2P1D, which keys may follow."""

EXAMPLE = "prefills=2,decodes=1,tp=8"


class Pools(Struct, frozen=True):
    """The replicas (workers) of prefill and of decode: a replica has as many devices as its layout has ranks.

    `decode` is the hardware of decode, `parallel` its layout (None: those of prefill), `prefill_parallel` that of
    prefill (None: the scenario's), `sequences` the most that decode on a data-parallel rank (None: the engine's limit).
    `link` is the kind or the scope (network, node, host) of the interconnect of prefill's devices that carries the KV
    cache. Prompts of at most `local` tokens to compute are computed where they decode (Dynamo's
    max_local_prefill_length, TensorRT-LLM's conditional_disagg_config). `encoders` devices, of the hardware `encoder`
    (None: the scenario's), encode images; with no replica of prefill they do so for prefill and decode together.
    """

    prefills: int = 1
    decodes: int = 1
    decode: Hardware | None = None
    parallel: Parallelism | None = None
    link: str = "network"
    prefill_parallel: Parallelism | None = None
    sequences: int | None = None
    local: int = 0
    encoders: int = 0
    encoder: Hardware | None = None

    def __post_init__(self) -> None:
        if (self.prefills > 0) != (self.decodes > 0) or not (self.prefills or self.encoders):
            raise RooflineError("pools have replicas of prefill and of decode, or encoders before both together")


def parse_pools(text: str) -> Pools:
    """The pools of `prefills=2,decodes=1,decode=h200-sxm,tp=8,sequences=64,link=node`; raises RooflineError.

    `decodes=7,dp=8,ep=8` are 7 replicas of 8 devices each, as is `decodes=7,tp=8,ep=8,dp-attention`; degrees are those
    of decode, those of prefill begin with `prefill-`. `2:1` and `2P1D` are 2 replicas of prefill and 1 of decode.
    """
    given: dict[str, str] = {}
    text = RATIO.sub(r"prefills=\1,decodes=\2", text.strip(), count=1)
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = (piece.strip() for piece in part.partition("="))
        key = key.lower().replace("_", "-")
        key = OTHER_NAMES.get(key, key)
        if key.endswith(ATTENTION) and not separator:
            separator, value = "=", "true"
        if not separator or not value:
            raise RooflineError(
                f"disaggregation takes a ratio, such as 1:1, or keys, such as {EXAMPLE}, got {quote(part)}: keys are"
                f" {', '.join(KEYS)}",
                options=["disaggregation"],
            )
        if key not in KEYS:
            raise UnknownNameError("key of disaggregation", key, KEYS)
        if key in given:
            raise RooflineError(f"disaggregation: {quote(key)} is given twice")
        given[key] = value
    if "encoder" in given and "encoders" not in given:
        raise RooflineError("disaggregation: encoder is the hardware of encoders: say how many, such as encoders=1")
    together = "encoders" in given and given.keys() <= TOGETHER
    found: dict[str, Any] = {"prefills": 0, "decodes": 0} if together else {}
    counts = {"prefills": MOST, "decodes": MOST, "sequences": MOST, "local": MOST_TOKENS, "encoders": MOST}
    found |= {key: _count(key, given[key], most) for key, most in counts.items() if key in given}
    found |= {key: load_hardware(given[key]) for key in ("decode", "encoder") if given.get(key, "same") != "same"}
    found |= {"parallel": _layout(given, ""), "prefill_parallel": _layout(given, "prefill-")}
    return Pools(link=given.get("link", "network"), **found)


def _layout(given: Mapping[str, str], pool: str) -> Parallelism | None:
    """The layout of a pool's replica; None where no degree is given.

    With attention data parallelism dp of the tp devices attend to sequences of their own, by default all, and the
    experts are divided among all, as SGLang and InferenceX count them.
    """
    degrees = {name: _count(name, given[pool + name]) for name in DEGREES if pool + name in given}
    attention = given.get(pool + ATTENTION, "false").lower()
    if attention not in SWITCHES:
        raise RooflineError(f"disaggregation: {pool}{ATTENTION} is true or false, got {quote(attention)}")
    if SWITCHES[attention]:
        ranks = degrees.get("tp", degrees.get("dp", 1))
        data = degrees.get("dp", ranks)
        if ranks % data or degrees.get("ep", ranks) != ranks:
            raise RooflineError(
                f"disaggregation: with {ATTENTION} tp counts the devices of a replica, which dp divides and ep equals"
            )
        degrees |= {"tp": ranks // data, "dp": data, "ep": ranks}
    named: dict[str, Any] = {DEGREES[name]: count for name, count in degrees.items()}
    return Parallelism(**named) if named else None


def _count(key: str, text: str, most: int = MOST) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise RooflineError(f"disaggregation: {key} is a whole number from 1 to {most}, got {quote(text)}")
    return int(text)


class Tandem(Struct, frozen=True, dict=True):
    """Replicas of prefill and of decode, one after the other.

    `prefill` and `decode` are one replica of each; `scenario` has the hardware of both. `tokens` and `seconds` tabulate
    the transfer of a prompt's KV cache, which a replica of prefill sends one after the other. `local` as of `Pools`;
    `encoders` are their hardware and number, if any.
    """

    scenario: Scenario
    prefill: Replica
    decode: Replica
    prefills: int
    decodes: int
    link: str
    tokens: Array
    seconds: Array
    local: int = 0
    encoders: tuple[tuple[Hardware, int], ...] = ()

    @property
    def pools(self) -> tuple[tuple[Hardware, int], ...]:
        """Hardware and devices of prefill and of decode, and of encoders."""
        parts = ((self.prefill, self.prefills), (self.decode, self.decodes))
        found = [(part.scenario.hardware, part.devices * count) for part, count in parts]
        return (*found, *self.encoders)

    @property
    def devices(self) -> int:
        """The devices of all."""
        return sum(devices for _, devices in self.pools)

    def transfer(self, prompt: Any) -> Array:
        """Seconds in which the KV cache of a prompt of so many tokens is sent."""
        return np.asarray(np.interp(prompt, self.tokens, self.seconds))


def tandem_of(scenario: Scenario, load: Load, pools: Pools, scheduler: Scheduler | None = None) -> Tandem:
    """The deployment of a scenario's model with prefill and decode apart; raises RooflineError."""
    settings = scenario.settings
    hardware = pools.decode or settings.decode_hardware or scenario.hardware
    own = _prefill_layout(scenario, pools)
    parallel = pools.parallel or replace(own, nodes=None)
    first = scenario.changed(settings=replace(settings, decode_hardware=None, parallel=own))
    second = first.changed(hardware=hardware, settings=replace(first.settings, parallel=parallel))
    policy = scheduler or scenario.profile.scheduler
    if pools.sequences is not None:
        second = second.changed(settings=replace(second.settings, sequences=pools.sequences))
    prefill, decode = prefill_replica(first, load, policy), decode_replica(second, load, policy)
    if scenario.devices_for_replicas not in (
        0,
        total := pools.prefills * own.devices + pools.decodes * parallel.devices,
    ):
        raise RooflineError(
            f"{pools.prefills} replicas of prefill with {own.devices} devices and {pools.decodes} of decode with"
            f" {parallel.devices} have {total}, not {scenario.devices_for_replicas}",
            options=["hw", "disaggregation"],
        )
    ends = (first, second)
    tokens = geometric(1, load.longest, CONTEXTS)
    seconds = np.max(
        [_sent(end, other.hardware, pools.link, tokens) for end, other in zip(ends, ends[::-1], strict=True)], 0
    )
    apart = scenario.changed(settings=replace(settings, decode_hardware=hardware))
    return Tandem(
        apart,
        replace(prefill, copies=1),
        replace(decode, copies=1),
        pools.prefills * prefill.copies,
        pools.decodes * decode.copies,
        pools.link,
        tokens,
        seconds,
        pools.local,
    )


def _prefill_layout(scenario: Scenario, pools: Pools) -> Parallelism:
    """The layout of a replica of prefill; of one that fills the devices, the data-parallel ranks are replicas."""
    parallel = scenario.settings.parallel
    return pools.prefill_parallel or (replace(parallel, data=1) if scenario.devices_for_replicas else parallel)


def prefill_replica(scenario: Scenario, load: Load, policy: Scheduler) -> Replica:
    """The replica of prefill: only prompts run on its devices, and the front end is theirs."""
    return replica_of(scenario, only_prompts(load), replace(policy, order=PREFILL_FIRST, stream=1, gather=0, pause=0))


def decode_replica(scenario: Scenario, load: Load, policy: Scheduler) -> Replica:
    """The replica of decode, which receives the prompts' KV cache.

    It looks for a request, and for its cache when that is sent, between steps: every one, or at every poll.
    """
    none = dict.fromkeys(("latency", "token_latency", "request", "prompt_token", "spacing"), 0.0)
    after = replace(policy, **none, gather=0, pause=0, lag=policy.lag + policy.poll)
    return replace(replica_of(scenario, load, after), received=True)


def only_prompts(load: Load) -> Load:
    """The load with the first token of each output alone."""
    if load.trace is None:
        return replace(load, generate=1)
    return replace(load, trace=replace(load.trace, output=(1,) * len(load.trace.output)))


def _sent(scenario: Scenario, other: Hardware, link: str, tokens: Array) -> Array:
    """Seconds in which each rank of a replica sends, or receives, its part of the KV cache of so many tokens."""
    settings = replace(scenario.settings, decode_hardware=other, chunk=None)
    carrier = over_link(scenario.hardware, link)
    one = scenario.changed(
        hardware=carrier, batch=1, prompt=1, generate=2, prefix=0, images=0, context=None, settings=settings
    )
    answer, each = analyze(one), np.ones_like(tokens)
    step = Step(each * answer.parallel.data, tokens, 0 * each)
    run = next(run for run in answer.schedule.prefill(step, None) if run.label == "transfer")
    timing = answer.prefill.timed(run)
    spent: Array = timing.spent(timing.detail(run.step)).sum(axis=0)
    return np.broadcast_to(spent, tokens.shape)


def over_link(hardware: Hardware, link: str) -> Hardware:
    """The hardware whose network is one of its links; raises RooflineError where it has none of that name."""
    if link == "network":
        hardware.link(NETWORK)
        return hardware
    named = {name.lower(): each for each in reversed(hardware.interconnects) for name in (each.scope, each.kind)}
    if link.lower() not in named:
        raise UnknownNameError(f"link of {hardware.name}", link, [*named])
    return with_network(hardware, named[link.lower()].bandwidth)


WITH_ENCODERS = ("vllm", "sglang", "tensorrt-llm")
"""Engines that have encoders apart (docs.vllm.ai, features/disagg_encoder; SGLang, EPD disaggregation; TensorRT-LLM,
examples/disaggregated)."""

EMBEDDING = 2
"""Bytes of an element of an embedding that is sent: 16 bits."""


def encoder_of(scenario: Scenario, pools: Pools) -> Hardware:
    """The hardware of the encoders; raises RooflineError where the engine has none apart, or prompts have no images."""
    if scenario.profile.name not in WITH_ENCODERS:
        raise RooflineError(f"{scenario.profile.heading} has no encoders apart: {', '.join(WITH_ENCODERS)} have")
    if scenario.tower_step is None or scenario.model.tower_kind == "encoder":
        raise RooflineError("encoders apart are of images: say how many a prompt has", options=["images"])
    return pools.encoder or scenario.hardware


def seconds_of(scenario: Scenario, pools: Pools) -> tuple[float, float]:
    """Seconds in which an encoder encodes the images of a request, and in which their embeddings are sent."""
    hardware = encoder_of(scenario, pools)
    settings = replace(scenario.settings, parallel=SINGLE, decode_hardware=None)
    one = analyze(scenario.changed(hardware=hardware, batch=1, prompt=1, generate=1, prefix=0, settings=settings))
    run = next(run for run in one.prefill.passes if run.label == "encoder")
    timing = one.prefill.timed(run)
    encoded = float(np.sum(timing.spent(timing.detail(run.step))))
    sizes = scenario.images * scenario.image_tokens * scenario.model.hidden * EMBEDDING
    links = [over_link(end, pools.link).link(NETWORK) for end in (hardware, scenario.hardware)]
    return encoded, max(float(sizes) / link.bandwidth + (link.latency or 0.0) for link in links)


def behind_encoders(scenario: Scenario, load: Load, pools: Pools, policy: Scheduler) -> tuple[Scenario, Scheduler]:
    """The deployment behind encoders, whose prompts have embeddings for images, and its policy with their front end.

    Each of its replicas has a front end, which gets its share of what the encoders send.
    """
    encoded, sent = seconds_of(scenario, pools)
    layout = _prefill_layout(scenario, pools) if pools.prefills else scenario.settings.parallel
    copies = copies_of(layout)
    policy = policy.for_ranks(layout.data // copies)
    own, each = policy.front(load.means[0]), encoded / pools.encoders * copies * max(pools.prefills, 1)
    slowest, alone = max(own, each), own + encoded + sent
    request = policy.request + min(slowest, alone) - own
    latency, spacing = policy.latency + max(alone - slowest, 0.0), policy.spacing + max(slowest - alone, 0.0)
    return scenario.changed(images=0), replace(policy, request=request, latency=latency, spacing=spacing)
