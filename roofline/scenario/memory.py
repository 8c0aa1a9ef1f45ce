"""Memory of a scenario on the fullest device: what the engine reserves, or the static reading.

An engine runs prompts in passes of limited tokens (`roofline.specs.reserve`), so that activations do not grow with the
batch, and holds the KV cache in whole blocks. One that profiles at its start reserves

    activations = max(a pass of all its tokens and images, sequences x vocabulary x bytes per logit of the sampler)

with as many of the largest images as such a pass may have, at least one, whose patches and outputs it keeps.

Encoders run whole sequences, and attention scores that a scenario keeps (`--no-flash`) are those of whole prompts. The
static reading (`--memory-reading static`, the LLM-Viewer convention) counts one pass over all prompts, no runtime, and
the capacity of the datasheet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np

from roofline.bound.held import Held, held_bytes
from roofline.bound.memory import (
    Memory,
    Stages,
    activation_peak,
    pipeline_stages,
    resident_bytes,
    stored_tensors,
    viewer_weight_bytes,
    weight_bytes,
)
from roofline.core.errors import RooflineError
from roofline.core.units import si
from roofline.graph.convention import Convention
from roofline.graph.extents import Step, on_grid
from roofline.graph.network import Network
from roofline.graph.tensor import Role
from roofline.scenario.parts import Part, filtered
from roofline.scenario.passes import Pass
from roofline.scenario.scenario import Scenario
from roofline.scenario.schedule import Schedule
from roofline.specs.hardware import Hardware
from roofline.specs.images import largest_image
from roofline.specs.model import Model
from roofline.specs.reserve import NO_RESERVE, STATIC, Reserve, visible_memory

UTILIZATION, UTILIZED = "gpu_memory_utilization", 0.95
"""The share of a device's memory that an engine may be told to take where nothing fits in its default.

As vLLM's recipes do for gpt-oss-120b on one H100 (vllm-project/recipes, OpenAI/GPT-OSS.md).
"""

LOGIT_BYTES = 4
"""Bytes of a logit in llama.cpp's compute buffer: 512 x 248,320 are 485 of Qwen3.5 35B-A3B's 489 MiB (its logs)."""

INDEX_SCORES = "index_scores"
"""The scores of the DSA indexer, of all keys for each query: engines compute them for a part of the queries at once."""

INDEX_SCORE_BYTES = 512 * 2.0**20
"""The most bytes of the indexer's scores (fp32) at once: VLLM_SPARSE_INDEXER_MAX_LOGITS_MB, by default 512."""


def _padding(schedule: Schedule, reserve: Reserve) -> float:
    """Bytes by which experts in MXFP4 are larger as loaded than as stored, of the fullest pipeline stage."""
    model, graph = schedule.model, schedule.networks[0]
    factors = {spec.experts: reserve.padded(spec.latent or model.hidden, spec.width) - 1 for spec in model.experts}
    if reserve.padding == (1, 1) or len(factors) != 1:
        return 0.0
    stored = stored_tensors(graph.sections, Role.WEIGHT)
    experts = [
        (tensor, count) for tensor, count in stored
        if tensor.name.startswith("expert_") and tensor.name.endswith(".weight") and tensor.format.name == "mxfp4"
    ]  # fmt: skip
    size = sum(tensor.stored_elements.evaluate({}) * count * tensor.format.bytes for tensor, count in experts)
    stages = pipeline_stages(model, schedule.settings.parallel.on(schedule.hardware))
    return float(size) * next(iter(factors.values())) * max(map(len, stages), default=model.layers) / model.layers


def _weights(schedule: Schedule, convention: Convention, reserve: Reserve, sees: bool) -> float:
    """Bytes of the weights of the fullest pipeline stage, of the encoder, and of draft and cascade models.

    A vision encoder counts where the scenario `sees` images, or the engine loads it with the model. Offloading, a host
    and devices of other kinds leave a part of the model's own weights on the device, devices of experts all but theirs.
    """
    model, settings, base, graph = schedule.model, schedule.settings, schedule.precision.base, schedule.networks[0]
    layers = pipeline_stages(model, settings.parallel.on(schedule.hardware))
    weights = weight_bytes(graph, layers, settings.offload.tables_kept) + model.extra_parameters * base.bytes
    if model.stored is not None and model.stored.loaded:
        weights += model.stored.left_out.bytes
    if settings.parallel.apart:
        weights -= weight_bytes(filtered(graph, Part.EXPERTS, inside=True), layers)
    if convention is Convention.LLM_VIEWER:
        weights = viewer_weight_bytes(graph)
    if convention is Convention.PHYSICAL:
        weights += _padding(schedule, reserve)
    if model.tower is not None and (sees or model.tower_kind != "vision" or not reserve.vision_apart):
        weights += weight_bytes(schedule.tower) + model.tower.extra_parameters * base.bytes
    _check_host(schedule.hardware, weights * settings.offload.weights)
    weights *= 1 - settings.offload.weights
    if settings.host is not None:
        weights *= 1 - settings.host.memory
    if settings.mixed:
        weights *= settings.mixed[0].held
    return weights + sum(weight_bytes(auxiliary) for auxiliary in schedule.auxiliary_networks)


def _check_host(hardware: Hardware, streamed: float) -> None:
    """Raise RooflineError for more bytes of weights in CPU memory than the host of a device has."""
    if streamed > hardware.host_memory:
        raise RooflineError(
            f"{si(streamed, 'B')} of weights a device do not fit in the memory of its host,"
            f" {si(hardware.host_memory, 'B')} a {hardware.name}",
            options=["offload"],
        )


class _Held(NamedTuple):
    """The KV cache and recurrent states in bytes."""

    cache: Any
    state: Any


def _beside(schedule: Schedule, layers: Stages, reserve: Reserve, last: Step) -> tuple[Any, Any]:
    """Bytes of cache and of states that the engine's layout takes beside what the sequences hold."""
    parallel = schedule.settings.parallel.on(schedule.hardware)
    speculation, share = schedule.settings.speculation, reserve.window_share(schedule.model.name)
    copies = 1 + (speculation.length if speculation and reserve.pages else 0)  # a state of each drafted token
    plain, paged = (
        held_bytes(schedule.model, schedule.precision, parallel, layers, *layout)
        for layout in ((), (reserve.pages, share, None, copies))
    )
    tokens = np.asarray(last.cached) + last.queries
    whole = np.ceil(tokens / paged.block) * paged.block
    cache = paged.tokens * whole - plain.tokens * tokens
    for most, size in paged.windows:
        cache = cache + size * (whole if reserve.keeps_all else np.minimum(whole, reserve.window_kept(most)))
    for most, size in plain.windows:
        cache = cache - size * np.minimum(tokens, most)

    def flat(size: Any) -> Any:
        return np.ravel(np.broadcast_to(last.batch * size, last.shape or (1,)))

    state = paged.state
    if reserve.state_ratio and paged.parted:  # a pool of states, whose part of the memory is fixed
        keys, part = paged.tokens * tokens, reserve.state_part
        slots = reserve.slots(speculation.verified + 1 if speculation else 0)
        state = np.maximum(keys / (1 - part), slots * state / part) - keys
    return flat(cache), flat(state - plain.state)


def attention_buffer(held: Held, reserve: Reserve, bits: float) -> float:
    """Bytes of a token of the cache, of `bits`, in the mask of a pass, and in 16 bits where one layer is widened."""
    wide = held.layer * 16 / bits if reserve.widened and bits < 16 else 0.0
    return wide + (reserve.mask * (reserve.tokens or 1) if held.layer else 0.0)


def _attention_buffers(schedule: Schedule, reserve: Reserve, last: Step, shape: tuple[int, ...]) -> Any:
    """Bytes of `attention_buffer` for the tokens of all sequences."""
    if not (reserve.mask or reserve.widened):
        return 0.0
    parallel, precision = schedule.settings.parallel.on(schedule.hardware), schedule.precision
    held = held_bytes(schedule.model, precision, parallel, pipeline_stages(schedule.model, parallel))
    keys = last.batch * (np.asarray(last.cached) + last.queries)
    size = keys * attention_buffer(held, reserve, precision.kv.bits)
    return on_grid(np.ravel(np.broadcast_to(size, last.shape or (1,))), last, shape)


def _held(schedule: Schedule, prompt: Step, last: Step, shape: tuple[int, ...], reserve: Reserve) -> _Held:
    """The KV cache and states after the step `last`, of a generation from `prompt`."""
    settings, graph = schedule.settings, schedule.networks[1]
    layers = pipeline_stages(schedule.model, settings.parallel.on(schedule.hardware))

    def resident(graph: Network, role: Role, step: Step, layers: Stages = ()) -> Any:
        return on_grid(resident_bytes(graph, role, step, layers), step, shape)

    cache, state = (resident(graph, role, last, layers) for role in (Role.KV, Role.STATE))
    for shared in schedule.shared_steps(prompt, last):
        cache = cache - resident(graph, Role.KV, shared, layers)
    if reserve.window_cells or reserve.pages or reserve.keeps_all or reserve.window_shares:
        beside = _beside(schedule, layers, reserve, last)
        cache, state = (held + on_grid(size, last, shape) for held, size in zip((cache, state), beside, strict=True))
    cache = cache * settings.resident_kv
    for auxiliary in schedule.auxiliary_networks:
        cache = cache + resident(auxiliary, Role.KV, last)
        state = state + resident(auxiliary, Role.STATE, last)
    return _Held(cache * 0.0 if schedule.model.task == "encode" else cache, state)


def sampler_bytes(model: Model, reserve: Reserve) -> float:
    """The peak of the sampler while the engine profiles it, over the whole vocabulary."""
    sampled = reserve.profiles and model.task == "generate"
    return reserve.sequences * model.vocabulary * reserve.sampled if sampled else 0.0


PIXEL_BYTES = 6
"""Bytes of a number of a patch that vLLM's profile keeps: in fp32 as made, and in 16 bits.

With Qwen3.8 27B on an RTX 5090 activations peak at 2.21, 2.32, 2.42 and 2.84 GiB for passes of 2,048, 3,072, 4,096 and
8,192 tokens, those of the tokens beside a constant (vllm-project/vllm, issue 52872).
"""


def _profiled_images(schedule: Schedule, reserve: Reserve, tokens: float) -> float:
    """Bytes of the images in the pass of `tokens` tokens that an engine profiles: patches, outputs, the encoder's peak.

    vllm/v1/worker/gpu_model_runner.py, profile_run.
    """
    model = schedule.model
    tower, (tiles, positions) = model.tower, largest_image(model)
    each = tiles * model.merged(positions)
    if tower is None or model.tower_kind != "vision" or not each:
        return 0.0
    images = max(1, min(int(tokens / each), reserve.sequences or 1))
    patches = images * tiles * positions * (tower.patch or 0) * PIXEL_BYTES
    outputs = max(tokens, images * each) * model.hidden * schedule.precision.base.bytes
    return (
        patches
        + outputs
        + float(activation_peak(schedule.tower, Step(images * tiles, positions, 0), Convention.PHYSICAL)[0])
    )


def _pass_peak(run: Pass, convention: Convention = Convention.PHYSICAL) -> Any:
    """The activation peak of a pass in bytes, for all micro-batches that overlap."""
    graph = run.placement.network
    return activation_peak(graph, run.step, convention) * graph.overlap_batches


def _chunk_peak(graph: Network, step: Step) -> Any:
    """The activation peak of a prefill pass whose sequences an engine cuts; the indexer's scores in parts."""
    peak = activation_peak(graph, step, Convention.PHYSICAL, INDEX_SCORES) * graph.overlap_batches
    indexed = any(op.name == INDEX_SCORES for section in graph.sections for op in section.ops)
    return peak + INDEX_SCORE_BYTES if indexed else peak


@lru_cache(maxsize=512)
def _profiled_peak(graph: Network, tokens: float) -> float:
    """The activation peak of the pass of `tokens` tokens that an engine profiles."""
    return float(_chunk_peak(graph, Step(1, tokens, 0))[0])


def _limited_pass(
    run: Pass,
    tokens: int,
    reserve: Reserve,
    vocabulary: int,
    ranks: int,
    splits: bool,
    grid: Callable[[Any, Step], Any],
) -> Any:
    """The activation peak of a prefill pass that an engine limits to `tokens` tokens over `ranks`, on the `grid`.

    An engine that profiles reserves a pass of all `tokens`. Bidirectional attention (an encoder, or no `splits`) needs
    whole sequences, and so does the decoder that projects an encoder's output.
    """
    graph, step = run.placement.network, run.step
    logits = tokens * vocabulary * LOGIT_BYTES if reserve.logits else 0.0
    if not splits or run.label.startswith("encoder") or np.any(np.asarray(step.source)):
        length = np.maximum(step.queries, step.source)
        step = step._replace(batch=np.minimum(step.batch, np.maximum(tokens / length, 1)))
        return grid(_pass_peak(run._replace(step=step)), step)
    limit = tokens / ranks / graph.overlap_batches
    if reserve.profiles:
        return _profiled_peak(graph, limit)
    step = Step(1, np.minimum(limit, step.batch * step.queries), 0)
    return grid(np.maximum(_chunk_peak(graph, step), logits), step)


def _activations(
    scenario: Scenario, schedule: Schedule, reserve: Reserve, prefill: Iterable[Pass], decode: Iterable[Pass]
) -> Any:
    """The activation peak of all passes, or what the engine reserves for them."""
    convention, model = scenario.convention, scenario.model
    tokens = reserve.pass_tokens(schedule.settings.longest_of(model))
    if schedule.settings.pass_tokens is not None and tokens is not None:
        tokens = schedule.settings.pass_tokens
    if "attention" not in scenario.fusions:
        tokens = None
    ranks, splits = schedule.settings.parallel.sequence, model.task == "generate"

    def grid(flat: Any, step: Step) -> Any:
        return on_grid(flat, step, scenario.shape)

    def limited(run: Pass) -> Any:
        return (
            whole(run) if tokens is None else _limited_pass(run, tokens, reserve, model.vocabulary, ranks, splits, grid)
        )

    def whole(run: Pass) -> Any:
        return grid(_pass_peak(run, convention), run.step)

    seen = _profiled_images(schedule, reserve, tokens) if reserve.profiles and tokens is not None else 0.0
    peaks = [limited(run) * (np.asarray(run.repeat) > 0)[()] + seen for run in prefill]
    return reduce(np.maximum, [*peaks, *map(whole, decode)], sampler_bytes(model, reserve))


def more_memory(scenario: Scenario) -> dict[str, Any]:
    """The option with which an engine takes more of the memory than by default; {} where it has none to take."""
    usual = scenario.profile.memory.on(scenario.hardware)
    given = scenario.given(UTILIZATION) is not None
    if given or not usual.profiles or usual.utilization >= UTILIZED:  # others have activations beside it
        return {}
    return {UTILIZATION: UTILIZED}


def memory_reserve(scenario: Scenario) -> Reserve:
    """What the engine reserves on the scenario's smallest device; nothing in the static reading."""
    if memory_is_static(scenario):
        return NO_RESERVE
    return scenario.settings.reserved(scenario.profile.memory.on(_smallest_device(scenario)), scenario.model)


def memory_is_static(scenario: Scenario) -> bool:
    """Whether memory is the static reading: as chosen, or by the LLM-Viewer convention."""
    return scenario.settings.memory == STATIC or scenario.convention is Convention.LLM_VIEWER


def _smallest_device(scenario: Scenario) -> Hardware:
    """The device of prefill or decode with less memory."""
    return min((scenario.hardware, scenario.settings.decode_hardware or scenario.hardware), key=visible_memory)


def hardware_name(scenario: Scenario, joint: str = "+") -> str:
    """The name of the hardware; of devices of several kinds all, as `load_mixed` reads them."""
    counts: list[tuple[str, int]] = []
    for stage in scenario.settings.mixed:
        name, before = stage.hardware.name, counts[-1] if counts else ("", 0)
        if before[0] == name and not stage.tensor:  # of those that take turns one is the scenario's
            counts[-1] = name, before[1] + stage.devices
        else:
            counts.append((name, stage.devices))
    return joint.join(f"{count}x{name}" if count > 1 else name for name, count in counts) or scenario.hardware.name


def scenario_memory(scenario: Scenario, schedule: Schedule, prefill: Iterable[Pass], decode: Iterable[Pass]) -> Memory:
    """Memory of the fullest device at the end of the generation, with the passes of both phases."""
    device, reserve = _smallest_device(scenario), memory_reserve(scenario)
    weights = _weights(schedule, scenario.convention, reserve, bool(np.any(scenario.images)))
    last = schedule.allocated_step(scenario.last_step, reserve.block)
    held = _held(schedule, scenario.prefill_step, last, scenario.shape, reserve)
    peak = _activations(scenario, schedule, reserve, prefill, decode)
    peak = peak + _attention_buffers(schedule, reserve, last, scenario.shape)
    runtime = reserve.runtime(schedule.settings.parallel.devices)
    visible = device.memory_capacity if memory_is_static(scenario) else visible_memory(device)
    budget = reserve.budget(visible, weights, peak, runtime)
    for stage in scenario.settings.mixed[1:]:  # in bytes of the first device, which holds more or less of everything
        there = reserve.budget(visible_memory(stage.hardware), weights, peak, runtime)
        budget = np.minimum(budget, there * scenario.settings.mixed[0].held / max(stage.held, 1e-9))
    plain: Callable[[Any], Any] = (lambda value: value) if scenario.shape else float
    return Memory(
        weights, plain(held.cache), plain(held.state), plain(peak), runtime, plain(budget), device.memory_capacity
    )
