"""Configurations: hardware, parallelism and formats that may serve a model, and bounds of their times.

The bounds need no simulation on each device: FLOPs and bytes of a model in given formats and parallelism are the same
on all hardware, and no pass is faster than its FLOPs at the highest peak, its bytes at full bandwidth, or its host
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.advisor.formats import no_narrower
from roofline.advisor.search.goal import Price, Quality
from roofline.advisor.search.moves import is_consumer
from roofline.advisor.sizing.queueing import Prefill, Replica
from roofline.advisor.sizing.workload import Service
from roofline.core.errors import RooflineError
from roofline.core.search import integer_geomspace
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.kv_capacity import Capacity, kv_capacity
from roofline.serving.lengths import NORMAL
from roofline.specs.checkpoint import precision_of, released
from roofline.specs.engine import Engine, default_engine, load_engine
from roofline.specs.formats import PROMOTIONS
from roofline.specs.hardware import Hardware, list_hardware, load_hardware
from roofline.specs.model import Model
from roofline.specs.reserve import Reserve, visible_memory
from roofline.techniques.support import runs
from roofline.timing.intervals import Estimate
from roofline.whatif.request import Request

Array = NDArray[np.float64]

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Batches simulated; decode steps between them are interpolated linearly."""

TENSOR = (1, 2, 4, 8)
PIPELINE = (2, 4)
"""Tensor-parallel devices within a node, and pipeline stages over nodes where a model does not fit in one."""

DESKTOP = (1, 2)
"""Devices of a desktop computer."""

PROMPTS = 8
"""Prompt lengths of a distribution that are simulated."""

CACHE_FIT_PROBABILITY = 0.99
"""Probability with which the KV caches of all slots fit."""


class Configuration(Struct, frozen=True, dict=True):
    """The configuration of a replica; its request has the service's mean lengths and batch 1.

    `engine` is the profile that the request names.
    """

    request: Request
    price: Price
    engine: Engine

    @property
    def hardware(self) -> Hardware:
        """The device type."""
        return self.request.hardware

    @property
    def degrees(self) -> Mapping[str, int]:
        """The degrees of parallelism."""
        return self.request.degrees

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return int(self.degrees.get("tensor", 1) * self.degrees.get("pipeline", 1))

    @property
    def formats(self) -> str:
        """Text: the scheme or the weights' format, and the KV cache's if set."""
        scheme = self.request.formats.get("scheme") or self.request.precision.weights.name
        kv = self.request.formats.get("kv")
        return f"{scheme}, KV {kv}" if kv else scheme

    @property
    def split(self) -> str:
        """Text: the parallelism, such as `tp=2 pp=4`."""
        flags = {"tensor": "tp", "pipeline": "pp", "expert": "ep"}
        return " ".join(f"{flags[name]}={value}" for name, value in self.degrees.items() if name in flags and value > 1)

    @property
    def prefill(self) -> Request:
        """The request of a single prompt, without micro-batches."""
        return self.request.spread(micro_batches=1)

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of all that FLOPs and bytes depend on."""
        as_released = released(self.request.model, self.hardware, self.engine)
        return (*as_released.items(), *self.request.formats.items(), *self.request.degrees.items())

    @cached_property
    def arithmetic(self) -> str:
        """The arithmetic native to the inputs of linear layers: no GEMM runs in a faster one."""
        return self.request.scenario().run_precision.activations.arithmetic


OFFERED = {"fp8": "fp8", "nvfp4": "nvfp4", "smoothquant": "w8a8", "awq": "awq"}
"""Schemes by the technique whose support by an engine is documented."""


class Fixed(Struct, frozen=True):
    """What a sizing leaves no choice of: tensor- and expert-parallel degrees, and the quantization scheme."""

    tensor: int | None = None
    expert: int | None = None
    scheme: str | None = None


NOTHING_FIXED = Fixed()


def formats_for(
    model: Model, hardware: Hardware, engine: Engine, quality: Quality, scheme: str | None = None
) -> Iterator[tuple[str, str, Price]]:
    """Yields scheme and KV cache format ("" is as released) with their price, within the quality budget.

    Released formats cost nothing. FP8, NVFP4, INT8, 4-bit AWQ weights and FP8 KV cache are offered where a document
    states that the engine runs them on this hardware (`roofline.techniques.support`), GGUF formats on llama.cpp;
    instead of a quantized checkpoint only if they are narrower. A given `scheme` is the only one, within any budget.
    """
    if scheme is not None:
        yield scheme, "", Price.CALIBRATION
        if quality.allows(Price.CALIBRATION) and runs("fp8-kv", engine.name, hardware):
            yield scheme, "fp8", Price.CALIBRATION
        return
    found = [("", "", Price.LOSSLESS)]
    schemes = [""]
    if engine.name == "llama.cpp":
        schemes += ["q8_0", "q4_k_m"]
    schemes += [name for technique, name in OFFERED.items() if runs(technique, engine.name, hardware)]
    if model.quantization is not None:
        now = precision_of(model, hardware, engine)
        asked = ((name, precision_of(model, hardware, engine, scheme=name)) for name in schemes if name)
        schemes = ["", *(name for name, other in asked if not no_narrower(model, now, other))]
    caches = ["", *(["fp8"] if runs("fp8-kv", engine.name, hardware) else [])]
    found += [(scheme, kv, Price.CALIBRATION) for scheme in schemes for kv in caches]
    seen: set[tuple[str, str]] = set()
    for scheme, kv, price in found:
        if (scheme, kv) not in seen and quality.allows(price):
            seen.add((scheme, kv))
            yield scheme, kv, price


def configurations(
    model: Model,
    service: Service,
    hardware: Sequence[str] | None,
    quality: Quality,
    engine: str | None,
    fixed: Fixed = NOTHING_FIXED,
) -> Iterator[Configuration]:
    """All configurations that may serve the model, on `hardware` or all hardware (one user: consumer hardware)."""
    alone = service.rate is None
    names = list_hardware() if hardware is None else hardware
    profiles: dict[str, Engine] = {}
    for name in names:
        device = load_hardware(name)
        if hardware is None and alone and not is_consumer(device):
            continue
        chosen = default_engine(device) if engine is None else engine
        if chosen not in profiles:
            profiles[chosen] = load_engine(chosen)
        for scheme, kv, price in formats_for(model, device, profiles[chosen], quality, fixed.scheme):
            formats = {**({"scheme": scheme} if scheme else {}), **({"kv": kv} if kv else {})}
            for degrees in _degrees(device, alone, fixed):
                options = {"prompt": round(service.prompts.mean), "generate": _generated(service), "engine": chosen}
                written = {"hardware": name}
                yield Configuration(
                    Request(model, device, formats, degrees, {}, (), options, written), price, profiles[chosen]
                )


def _generated(service: Service) -> int:
    """Output tokens of the answers in progress at a random moment."""
    return max(2, round(service.answers.biased))


def _degrees(hardware: Hardware, alone: bool, fixed: Fixed) -> Iterator[dict[str, int]]:
    for degrees in _splits(hardware, alone, fixed.tensor):
        if fixed.expert is None:
            yield degrees
        elif degrees.get("tensor", 1) % fixed.expert == 0:
            yield {**degrees, "expert": fixed.expert}


def _splits(hardware: Hardware, alone: bool, tensor: int | None) -> Iterator[dict[str, int]]:
    scopes = {link.scope for link in hardware.interconnects}
    linked = "node" in scopes or "host" in scopes
    widest = hardware.node_devices if linked else 1
    counts = (DESKTOP if alone else TENSOR) if tensor is None else (tensor,)
    within = [count for count in counts if count <= widest]
    if not within:
        return
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
"""Any hardware with all links: FLOPs and bytes do not depend on it."""


class WorkloadCost:
    """FLOPs, bytes and memory of the service in given formats and parallelism, on any hardware.

    Raises RooflineError if the model does not allow this parallelism.
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
        """Bytes of KV cache and state of a sequence of mean length, per device."""
        return float(self.memory.kv_cache + self.memory.state)

    def capacity(self, hardware: Hardware, reserve: Reserve) -> Capacity:
        """The KV cache capacity of a device by the engine's settings; only the budget depends on the hardware."""
        if reserve not in self._capacities:
            scenario = self._request.scenario()
            self._capacities[reserve] = kv_capacity(
                scenario.model, scenario.hardware, scenario.precision, scenario.settings.parallel, reserve
            )
        found, visible = self._capacities[reserve], visible_memory(hardware)
        budget = reserve.budget(visible, found.weights, found.activations, found.context)
        return replace(found, visible=visible, budget=float(budget))


def prompt_lengths(service: Service) -> NDArray[np.int64]:
    """Simulated prompt lengths, from the shortest to the longest of the distribution."""
    sample = service.prompts.sample
    longest = max(sample[-1], service.prompts.quantile(service.quantile or 0.5))
    return integer_geomspace(sample[0], longest, PROMPTS if sample.size > 1 else 1)


def prefill_times(times: Array, lengths: NDArray[np.int64], service: Service) -> Prefill:
    """Mean, mean square and target quantile of the prefill time, from its times at some lengths."""
    spent = np.interp(service.prompts.sample, lengths, times)
    mean = float(spent.mean())
    share = service.quantile
    target = mean if share is None else float(np.interp(service.prompts.quantile(share), lengths, times))
    return Prefill(mean, float((spent**2).mean()), target)


class Candidate(Struct, frozen=True, dict=True):
    """A configuration with its bounds: the sequences that fit, and a replica at its roofline bound.

    `host_time` adds host time, which is a bound of mid times but not of low ones.
    """

    configuration: Configuration
    counted: WorkloadCost
    service: Service
    host_time: bool = True

    @cached_property
    def slots(self) -> int:
        """Sequences that fit in memory, up to the engine's limit; 1 or 0 for a single user.

        The KV caches of c sequences of mean length m and standard deviation d fit with 99% probability if
        c m + 2.33 d sqrt(c) tokens fit; one sequence of the 99th percentile must fit as well.
        """
        counted, hardware = self.counted, self.configuration.hardware
        reserve = self.configuration.engine.memory.on(hardware)
        capacity = counted.capacity(hardware, reserve)
        if self.service.rate is None:
            return int(counted.sequence <= capacity.cache)
        if capacity.cache <= 0:
            return 0
        prompts, answers = self.service.prompts, self.service.answers
        spread = (
            NORMAL.inv_cdf(CACHE_FIT_PROBABILITY)
            * capacity.bytes_per_token
            * np.hypot(prompts.deviation, answers.deviation)
        )
        if counted.sequence + spread > capacity.cache:
            return 0
        mean = max(counted.sequence, 1e-9)
        root = (-spread + np.sqrt(spread**2 + 4 * mean * capacity.cache)) / (2 * mean)
        return int(min(root**2 + 1e-9, reserve.sequences or BATCHES[-1], BATCHES[-1]))

    @cached_property
    def best(self) -> Replica:
        """The replica at its roofline bound; without slots if nothing fits."""
        flops, moved = (np.interp(np.arange(1, self.slots + 1), BATCHES, row) for row in self.counted.decode)
        engine, stages = self.configuration.engine, self.configuration.degrees.get("pipeline", 1)
        bound = self._bound_time(flops, moved)
        host = engine["step"] + engine.host_wait(bound, np.arange(1, self.slots + 1) / stages)
        step = bound + host * self.host_time
        prefill = self._bound_time(*self.counted.prefill) + engine["step"] * self.host_time
        return Replica(
            prefill_times(prefill, self.counted.lengths, self.service),
            step,
            self.service.steps,
            self.service.inverse_steps,
        )

    @property
    def capable(self) -> bool:
        """Whether it fits and its bound with one sequence meets each target."""
        if not self.slots:
            return False
        return self.best.prefill.quantile <= (self.service.ttft or np.inf) and self.best.step[0] <= (
            self.service.tpot or np.inf
        )

    @cached_property
    def ceiling(self) -> float:
        """An upper bound of the requests/s that one replica serves within the targets."""
        fast = np.flatnonzero(self.best.step <= (self.service.tpot or np.inf))
        return float(self.best.ceilings[fast[-1]]) if fast.size else 0.0

    def _bound_time(self, flops: Array, moved: Array) -> Array:
        hardware = self.configuration.hardware
        inputs = self.configuration.arithmetic
        formats = {"bf16", "fp16", *PROMOTIONS[inputs]}
        peaks = [unit[name] for unit in (hardware.tensor, hardware.vector) for name in formats if name in unit]
        peak = max(peaks) if peaks else np.inf
        return np.maximum(flops / peak, moved / hardware.memory_bandwidth)


class Simulated:
    """A configuration simulated at expected times: the replica at each reading.

    `analyses` are its simulations, for `prefetch_expected`. Raises RooflineError if the hardware cannot run it, here or
    with the first replica.
    """

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        configuration, lengths, slots = candidate.configuration, candidate.counted.lengths, candidate.slots
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
        candidate, service = self.candidate, self.candidate.service
        decode = self.analyses[0].expected.tpot
        assert decode is not None
        prefill, count, lengths = self.analyses[-1].prefill.expected, self._batches.size, candidate.counted.lengths
        return {
            reading: Replica(
                prefill_times(prefill_at[-lengths.size :], lengths, service),
                np.interp(np.arange(1, candidate.slots + 1), self._batches, decode_at[:count]),
                service.steps,
                service.inverse_steps,
            )
            for reading, prefill_at, decode_at in zip(Estimate._fields, prefill, decode, strict=True)
        }

    def replica(self, reading: str) -> Replica:
        """The replica at low, mid or high expected times."""
        return self._replicas[reading]

    def alone(self, batch: int) -> Analysis:
        """The analysis at one batch, as of `roofline analyze`."""
        return analyze(self.candidate.configuration.request.with_options(batch=batch).scenario())


class Candidates:
    """Candidates of a service; FLOPs and bytes are counted once for all hardware."""

    def __init__(self, service: Service, host_time: bool = True) -> None:
        self.service, self.host_time = service, host_time
        self.refused: RooflineError | None = None
        self._costs: dict[Any, WorkloadCost | None] = {}

    def of(self, configuration: Configuration) -> Candidate | None:
        """The candidate of a configuration; None if the model does not allow its parallelism."""
        key = configuration.key
        if key not in self._costs:
            try:
                self._costs[key] = WorkloadCost(configuration, self.service)
            except RooflineError as error:
                self._costs[key], self.refused = None, error
        counted = self._costs[key]
        return None if counted is None else Candidate(configuration, counted, self.service, self.host_time)
