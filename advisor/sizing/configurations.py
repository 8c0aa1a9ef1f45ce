"""Configurations: hardware, parallelism and formats that a model may be served with, and the least each can take.

The least time of a pass needs no simulation on the hardware: FLOPs and bytes of a model in given formats and degrees
are the same on all of it, and no pass is faster than its FLOPs at the highest peak, its bytes at the full bandwidth
or the host's part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.advisor.desk import consumer
from roofline.advisor.formats import gains_nothing
from roofline.advisor.search.goal import Price, Quality
from roofline.advisor.sizing.queueing import Prefill, Replica
from roofline.advisor.sizing.workload import NORMAL, Service
from roofline.advisor.support import runs
from roofline.core.errors import RooflineError
from roofline.core.search import whole_series
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.kv_capacity import Capacity, Reserve, kv_capacity, visible_memory, vllm_1
from roofline.specs.checkpoint import precision_of, released
from roofline.specs.engine import Engine, default_engine, load_engine
from roofline.specs.formats import PROMOTIONS
from roofline.specs.hardware import Hardware, list_hardware, load_hardware
from roofline.specs.model import Model
from roofline.timing.estimate import Estimate
from roofline.whatif.request import Request

Array = NDArray[np.float64]

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Batches that are simulated; a decode step between two of them is read off the line through both."""

TENSOR = (1, 2, 4, 8)
PIPELINE = (2, 4)
"""Devices of a replica within a node, and nodes in a row where the model does not fit in one."""

DESKTOP = (1, 2)
"""Devices of one computer."""

PROMPTS = 8
"""Prompts of a distribution that are simulated."""

FULL = 0.99
"""How surely the caches of all slots fit at once."""


class Configuration(Struct, frozen=True, dict=True):
    """What a replica is made of. The request has the mean lengths of the service, and a batch of 1.

    `engine` is the profile that the request names.
    """

    request: Request
    price: Price
    engine: Engine

    @property
    def hardware(self) -> Hardware:
        """Its devices."""
        return self.request.hardware

    @property
    def degrees(self) -> Mapping[str, int]:
        """Its degrees of parallelism."""
        return self.request.degrees

    @property
    def devices(self) -> int:
        """How many devices it takes."""
        return int(self.degrees.get("tensor", 1) * self.degrees.get("pipeline", 1))

    @property
    def formats(self) -> str:
        """Its formats in a word: a scheme or the weights' own format, and that of the cache where it differs."""
        scheme = self.request.formats.get("scheme") or self.request.precision.weights.name
        kv = self.request.formats.get("kv")
        return f"{scheme}, KV {kv}" if kv else scheme

    @property
    def split(self) -> str:
        """Its parallelism in a word."""
        flags = {"tensor": "tp", "pipeline": "pp"}
        return " ".join(f"{flags[name]}={value}" for name, value in self.degrees.items() if name in flags and value > 1)

    @property
    def prefill(self) -> Request:
        """The request of a prompt alone: it is not cut into micro-batches."""
        return self.request.spread(micro_batches=1)

    @property
    def key(self) -> tuple[Any, ...]:
        """What FLOPs and bytes depend on."""
        as_released = released(self.request.model, self.hardware, self.engine)
        return (*as_released.items(), *self.request.formats.items(), *self.request.degrees.items())

    @cached_property
    def arithmetic(self) -> str:
        """What the inputs of linear layers are native to, as the engine computes: no product is in a faster one."""
        return self.request.scenario().run_precision.activations.arithmetic


def formats_for(model: Model, hardware: Hardware, engine: str, quality: Quality) -> Iterator[tuple[str, str, Price]]:
    """Scheme and format of the cache ("" is as the model has it), with their price, within the quality budget.

    The formats that the model was released in cost nothing. FP8, AWQ's 4-bit weights and an FP8 cache are offered where
    a document says that the engine runs them there (`roofline.advisor.support`), llama.cpp's own formats on it; in the
    place of a quantised checkpoint only where something of them is narrower.
    """
    found = [("", "", Price.LOSSLESS)]
    schemes = [""]
    if engine == "llama.cpp":
        schemes += ["q8_0", "q4_k_m"]
    schemes += [scheme for scheme in ("fp8", "awq") if runs(scheme, engine, hardware)]
    if model.quantization is not None:
        now = precision_of(model, hardware, engine)
        asked = ((name, precision_of(model, hardware, engine, scheme=name)) for name in schemes if name)
        schemes = ["", *(name for name, other in asked if not gains_nothing(model, now, other))]
    caches = ["", *(["fp8"] if runs("fp8-kv", engine, hardware) else [])]
    found += [(scheme, kv, Price.CALIBRATION) for scheme in schemes for kv in caches]
    seen: set[tuple[str, str]] = set()
    for scheme, kv, price in found:
        if (scheme, kv) not in seen and quality.allows(price):
            seen.add((scheme, kv))
            yield scheme, kv, price


def configurations(
    model: Model, service: Service, hardware: Sequence[str] | None, quality: Quality, engine: str | None
) -> Iterator[Configuration]:
    """Everything that may serve the model: on `hardware`, or all that is known (one user: what stands on a desk)."""
    alone = service.rate is None
    names = list_hardware() if hardware is None else hardware
    profiles: dict[str, Engine] = {}
    for name in names:
        device = load_hardware(name)
        if hardware is None and alone and not consumer(device):
            continue
        chosen = engine or default_engine(device)
        if chosen not in profiles:
            profiles[chosen] = load_engine(chosen)
        for scheme, kv, price in formats_for(model, device, chosen, quality):
            formats = {**({"scheme": scheme} if scheme else {}), **({"kv": kv} if kv else {})}
            for degrees in _degrees(device, alone):
                options = {"prompt": round(service.prompts.mean), "generate": _generated(service), "engine": chosen}
                written = {"hardware": name}
                yield Configuration(
                    Request(model, device, formats, degrees, {}, (), options, written), price, profiles[chosen]
                )


def _generated(service: Service) -> int:
    """Tokens of the answers met at a random moment, whose contexts decode steps have."""
    return max(2, round(service.answers.biased))


def _degrees(hardware: Hardware, alone: bool) -> Iterator[dict[str, int]]:
    scopes = {link.scope for link in hardware.interconnects}
    linked = "node" in scopes or "host" in scopes
    widest = hardware.node_devices if linked else 1
    within = [count for count in (DESKTOP if alone else TENSOR) if count <= widest]
    for count in within:
        yield {"tensor": count} if count > 1 else {}
    if "network" in scopes and not alone:
        for stages in PIPELINE:
            yield {
                **({"tensor": within[-1]} if within[-1] > 1 else {}),
                "pipeline": stages,
                "nodes": stages,
                "micro_batches": stages,
            }


REFERENCE = "h100-sxm"
"""Any hardware with all links: what is counted here does not depend on it."""


class Counted:
    """FLOPs, bytes and memory of the service in given formats and degrees, on whatever hardware.

    Raises RooflineError where the model cannot be divided so.
    """

    def __init__(self, example: Configuration, service: Service) -> None:
        reference = replace(example.request.on(load_hardware(REFERENCE)), written={})
        batches = np.array(BATCHES)
        context = reference.options["prompt"]
        decode = analyze(reference.with_options(batch=batches, context=context).scenario()).decode
        assert decode is not None
        self.lengths = prompt_lengths(service)
        alone = reference.spread(micro_batches=1)
        prefill = analyze(alone.with_options(prompt=self.lengths, generate=1).scenario()).prefill
        self.decode = np.array([decode.flops, decode.bytes])
        self.prefill = np.array(
            [np.broadcast_to(value, self.lengths.shape) for value in (prefill.flops, prefill.bytes)]
        )
        self.memory = analyze(alone.scenario()).memory
        self._request = reference
        self._capacities: dict[Reserve, Capacity] = {}

    @property
    def sequence(self) -> float:
        """Bytes that one sequence of mean length keeps on a device."""
        return float(self.memory.kv_cache + self.memory.state)

    def capacity(self, hardware: Hardware, reserve: Reserve) -> Capacity:
        """What is left for caches on a device, as the engine finds it: only the budget differs between hardware."""
        if reserve not in self._capacities:
            scenario = self._request.scenario()
            self._capacities[reserve] = kv_capacity(
                scenario.model, scenario.hardware, scenario.precision, scenario.settings.parallel, reserve
            )
        return replace(self._capacities[reserve], budget=reserve.utilisation * visible_memory(hardware))


def prompt_lengths(service: Service) -> NDArray[np.int64]:
    """The prompts that are simulated, from the shortest to the longest of the distribution."""
    sample = service.prompts.sample
    longest = max(sample[-1], service.prompts.quantile(service.quantile or 0.5))
    return whole_series(sample[0], longest, PROMPTS if sample.size > 1 else 1)


def prefill_times(times: Array, lengths: NDArray[np.int64], service: Service) -> Prefill:
    """Mean, mean square and promised quantile of the prefill, from its times at some lengths."""
    spent = np.interp(service.prompts.sample, lengths, times)
    mean = float(spent.mean())
    share = service.quantile
    promised = mean if share is None else float(np.interp(service.prompts.quantile(share), lengths, times))
    return Prefill(mean, float((spent**2).mean()), promised)


class Prospect(Struct, frozen=True, dict=True):
    """A configuration with what it can be at best: the sequences that fit, and a replica at the speed of light.

    `hosted` adds the host's part, below which the middle of expected times does not lie, but their low end may.
    """

    configuration: Configuration
    counted: Counted
    service: Service
    hosted: bool = True

    @cached_property
    def slots(self) -> int:
        """Sequences that fit in memory at once, up to what the engine runs; of a single user 1 or none.

        The caches of c sequences of mean length m and deviation d fit with 99% if c m + 2.33 d sqrt(c) tokens do, and
        so must the longest of a hundred.
        """
        counted, hardware = self.counted, self.configuration.hardware
        if self.service.rate is None:
            return int(counted.memory.total <= hardware.memory_capacity)
        reserve = vllm_1(hardware)
        capacity = counted.capacity(hardware, reserve)
        if capacity.cache <= 0:
            return 0
        prompts, answers = self.service.prompts, self.service.answers
        spread = NORMAL.inv_cdf(FULL) * capacity.bytes_per_token * np.hypot(prompts.deviation, answers.deviation)
        if counted.sequence + spread > capacity.cache:
            return 0
        mean = max(counted.sequence, 1e-9)
        root = (-spread + np.sqrt(spread**2 + 4 * mean * capacity.cache)) / (2 * mean)
        return int(min(root**2 + 1e-9, reserve.sequences, BATCHES[-1]))

    @cached_property
    def best(self) -> Replica:
        """The replica at the speed of light; no slots where nothing fits."""
        flops, moved = (np.interp(np.arange(1, self.slots + 1), BATCHES, row) for row in self.counted.decode)
        engine, stages = self.configuration.engine, self.configuration.degrees.get("pipeline", 1)
        light = self._light(flops, moved)
        host = engine["step"] + engine.waited(light, np.arange(1, self.slots + 1) / stages)
        step = light + host * self.hosted
        prefill = self._light(*self.counted.prefill) + engine["step"] * self.hosted
        return Replica(
            prefill_times(prefill, self.counted.lengths, self.service),
            step,
            self.service.steps,
            self.service.inverse_steps,
        )

    @property
    def capable(self) -> bool:
        """Whether it fits, and meets each target at the speed of light with one sequence."""
        if not self.slots:
            return False
        return self.best.prefill.quantile <= (self.service.ttft or np.inf) and self.best.step[0] <= (
            self.service.tpot or np.inf
        )

    @cached_property
    def ceiling(self) -> float:
        """No more requests a second than this does one replica serve within the targets."""
        fast = np.flatnonzero(self.best.step <= (self.service.tpot or np.inf))
        return float(self.best.ceilings[fast[-1]]) if fast.size else 0.0

    def _light(self, flops: Array, moved: Array) -> Array:
        hardware = self.configuration.hardware
        inputs = self.configuration.arithmetic
        formats = {"bf16", "fp16", *PROMOTIONS[inputs]}
        peaks = [unit[name] for unit in (hardware.tensor, hardware.vector) for name in formats if name in unit]
        peak = max(peaks) if peaks else np.inf
        return np.maximum(flops / peak, moved / hardware.memory_bandwidth)


class Simulated:
    """A configuration at expected times: the replica at each reading.

    `analyses` are what it rests on, for `roofline.scenario.analysis.expect`. Raises RooflineError where the hardware
    cannot run it, here or with the first replica.
    """

    def __init__(self, prospect: Prospect) -> None:
        self.prospect = prospect
        configuration, lengths, slots = prospect.configuration, prospect.counted.lengths, prospect.slots
        self._batches = np.array([batch for batch in BATCHES if batch < slots] + [slots])
        decode, prefill = configuration.request, configuration.prefill
        if prefill.degrees == decode.degrees:
            # One grid for both: decode steps of all batches, then prompts of all lengths.
            grid = {
                "batch": np.append(self._batches, np.ones_like(lengths)),
                "prompt": np.append(np.full_like(self._batches, decode.options["prompt"]), lengths),
            }
            requests = [decode.with_options(engine=configuration.engine, **grid)]
        else:
            requests = [decode.with_options(batch=self._batches), prefill.with_options(prompt=lengths, generate=1)]
        self.analyses = tuple(analyze(request.scenario()) for request in requests)

    @cached_property
    def _replicas(self) -> Mapping[str, Replica]:
        prospect, service = self.prospect, self.prospect.service
        decode = self.analyses[0].expected.tpot
        assert decode is not None
        prefill, count, lengths = self.analyses[-1].prefill.expected, self._batches.size, prospect.counted.lengths
        return {
            reading: Replica(
                prefill_times(prefill_at[-lengths.size :], lengths, service),
                np.interp(np.arange(1, prospect.slots + 1), self._batches, decode_at[:count]),
                service.steps,
                service.inverse_steps,
            )
            for reading, prefill_at, decode_at in zip(Estimate._fields, prefill, decode, strict=True)
        }

    def replica(self, reading: str) -> Replica:
        """The replica at the optimistic end, middle or pessimistic end of expected times."""
        return self._replicas[reading]

    def alone(self, batch: int) -> Analysis:
        """The same at one batch, as `roofline analyze` shows it."""
        return analyze(self.prospect.configuration.request.with_options(batch=batch).scenario())


class Prospects:
    """All configurations that a service may choose of; what is counted is counted once for all hardware."""

    def __init__(self, service: Service, hosted: bool = True) -> None:
        self.service, self.hosted = service, hosted
        self.refused: RooflineError | None = None
        self._counted: dict[Any, Counted | None] = {}

    def of(self, configuration: Configuration) -> Prospect | None:
        """A configuration's prospect; None where the model cannot be divided so."""
        key = configuration.key
        if key not in self._counted:
            try:
                self._counted[key] = Counted(configuration, self.service)
            except RooflineError as error:
                self._counted[key], self.refused = None, error
        counted = self._counted[key]
        return None if counted is None else Prospect(configuration, counted, self.service, self.hosted)
