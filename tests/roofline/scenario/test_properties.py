"""Laws that hold for every model, device and workload (metamorphic tests)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import (
    Analysis,
    Hardware,
    Model,
    Scenario,
    analyze,
    list_hardware,
    list_models,
    load_hardware,
    load_model,
    parse_precision,
)
from roofline.bound.memory import resident_bytes
from roofline.graph.extents import Step
from roofline.graph.fusion import FUSIONS
from roofline.graph.network import network
from roofline.graph.tensor import Role
from roofline.scenario.phase import Phase
from roofline.scenario.settings import Settings
from roofline.specs.sublayers import Attention, CompressedAttention, Hyena, Mamba2
from tests.cases import HARDWARE

models = st.sampled_from(list_models()).map(load_model)
generators = models.filter(lambda model: model.task == "generate" and model.tower_kind != "encoder")
dense = models.filter(lambda model: all(type(group.layer.mixer) is Attention for group in model.groups))
decoders = generators.filter(lambda model: not model.uses_mla and type(model.groups[0].layer.mixer) is not Hyena)
devices = st.sampled_from(list_hardware()).map(load_hardware)
batches = st.integers(1, 512)
lengths = st.integers(1, 20_000)
RELATIVE = 1e-12


def with_attention(model: Model, name: str, change: Callable[[Attention], Attention]) -> Model:
    """`model` with its softmax attention changed in every layer."""
    groups = tuple(
        replace(group, layer=replace(group.layer, mixer=change(group.layer.mixer)))
        if isinstance(group.layer.mixer, Attention)
        else group
        for group in model.groups
    )
    return replace(model, name=f"{model.name}-{name}", groups=groups)


def phases(answer: Analysis) -> tuple[Phase, ...]:
    return tuple(phase for phase in (answer.prefill, answer.decode) if phase)


@given(models, devices, batches, lengths, st.sets(st.sampled_from(sorted(FUSIONS))))
def test_fusion_never_adds_bytes_nor_time_nor_memory(
    model: Model, hardware: Hardware, batch: int, length: int, fusions: set[str]
) -> None:
    static = Settings(memory="static")  # an engine profiles passes of its own length with FlashAttention
    plain = analyze(Scenario(model, hardware, batch=batch, prompt=length, fusions=(), settings=static))
    fused = analyze(Scenario(model, hardware, batch=batch, prompt=length, fusions=fusions, settings=static))
    for before, after in zip(phases(plain), phases(fused), strict=True):
        assert after.bytes <= before.bytes * (1 + RELATIVE)
        assert after.bound_time <= before.bound_time * (1 + RELATIVE)
        assert after.flops == pytest.approx(before.flops, rel=RELATIVE)
    assert fused.memory.activation_peak <= plain.memory.activation_peak
    assert fused.memory.weights == plain.memory.weights


@given(models, devices, batches, lengths)
def test_flash_attention_is_never_slower(model: Model, hardware: Hardware, batch: int, length: int) -> None:
    with_flash = analyze(Scenario(model, hardware, batch=batch, prompt=length, fusions=("attention",)))
    without = analyze(Scenario(model, hardware, batch=batch, prompt=length, fusions=()))
    assert with_flash.prefill.bound_time <= without.prefill.bound_time
    if with_flash.decode is not None:
        assert with_flash.decode.bound_time <= without.decode.bound_time
    assert with_flash.generation.total <= without.generation.total * (1 + RELATIVE)


@given(models, devices, batches, lengths)
def test_gqa_never_costs_more_than_mha(model: Model, hardware: Hardware, batch: int, length: int) -> None:
    def with_full_heads(model: Model) -> Model:
        return with_attention(model, "mha", lambda attention: replace(attention, kv_heads=attention.heads))

    grouped = analyze(Scenario(model, hardware, batch=batch, prompt=length))
    full = analyze(Scenario(with_full_heads(model), hardware, batch=batch, prompt=length))
    for few, many in zip(phases(grouped), phases(full), strict=True):
        assert few.bytes <= many.bytes
        assert few.flops <= many.flops
        assert few.bound_time <= many.bound_time * (1 + RELATIVE)
    assert grouped.memory.kv_cache <= full.memory.kv_cache


@given(models, devices, batches, lengths, st.floats(1.0, 10.0), st.sampled_from(["bandwidth", "tensor", "vector"]))
def test_better_hardware_is_never_slower(
    model: Model, hardware: Hardware, batch: int, length: int, factor: float, part: str
) -> None:
    if part == "bandwidth":
        better = replace(hardware, memory_bandwidth=hardware.memory_bandwidth * factor)
    else:
        better = replace(hardware, **{part: {name: peak * factor for name, peak in getattr(hardware, part).items()}})
    slow = analyze(Scenario(model, hardware, batch=batch, prompt=length))
    fast = analyze(Scenario(model, better, batch=batch, prompt=length))
    for before, after in zip(phases(slow), phases(fast), strict=True):
        assert after.bound_time <= before.bound_time * (1 + RELATIVE)
        assert after.flops == before.flops


@given(models, devices, batches, lengths, st.integers(0, 500), st.integers(0, 20_000))
def test_time_is_monotone_in_batch_and_length(
    model: Model, hardware: Hardware, batch: int, length: int, more_batch: int, more_length: int
) -> None:
    small = analyze(Scenario(model, hardware, batch=batch, prompt=length))
    large = analyze(Scenario(model, hardware, batch=batch + more_batch, prompt=length + more_length))
    for before, after in zip(phases(small), phases(large), strict=True):
        assert before.bound_time <= after.bound_time * (1 + RELATIVE)
        assert before.flops <= after.flops
        assert before.bytes <= after.bytes
    assert small.generation.total <= large.generation.total * (1 + RELATIVE)
    assert small.memory.total <= large.memory.total


@given(models, batches, lengths, st.integers(1, 7), st.integers(1, 8))
def test_bytes_are_monotone_in_bits(model: Model, batch: int, length: int, weights: int, kv: int) -> None:
    def at(weights: int, kv: int) -> Analysis:
        precision = parse_precision("bf16", f"W{weights}KV{kv}")
        return analyze(Scenario(model, load_hardware("a100-sxm-80gb"), batch=batch, prompt=length, precision=precision))

    narrow, wide = at(weights, kv), at(weights + 1, 8)
    for few, many in zip(phases(narrow), phases(wide), strict=True):
        assert few.bytes <= many.bytes
        # Weight-only quantization never raises the compute roof: time falls with the bits or stays.
        assert few.bound_time <= many.bound_time * (1 + RELATIVE)
    assert narrow.memory.weights < wide.memory.weights


@given(decoders, devices, batches, st.integers(1, 5000), st.integers(0, 5000))
def test_prefill_then_decode_is_a_longer_prefill(
    model: Model, hardware: Hardware, batch: int, length: int, prefix: int
) -> None:
    """What a decode step adds is what one more prompt token adds.

    The output head aside, which runs in both, and the scan of Mamba-2, which prefill computes in chunks.
    """
    chunked = any(isinstance(group.layer.mixer, Mamba2) for group in model.groups)

    def body(phase: Phase, *, attention: bool) -> tuple[float, float]:
        ops = [op for op in phase.ops if op.section != "head" and (op.kind == "attention") == attention]
        ops = [op for op in ops if not (chunked and op.name == "scan")]
        return sum(op.count * op.flops for op in ops), sum(op.count * op.kv_bytes for op in ops)

    shorter = analyze(Scenario(model, hardware, batch=batch, prompt=length, prefix=prefix))
    longer = analyze(Scenario(model, hardware, batch=batch, prompt=length + 1, prefix=prefix))
    for attention in (True, False):
        step, _ = body(shorter.decode, attention=attention)
        before, _ = body(shorter.prefill, attention=attention)
        after, _ = body(longer.prefill, attention=attention)
        assert before + step == pytest.approx(after, rel=1e-9)
    # A prefill of one token on a cache is a decode step on that cache, to the last figure.
    single = analyze(Scenario(model, hardware, batch=batch, prompt=1, prefix=prefix + length))
    assert single.prefill.bound_time == shorter.decode.bound_time
    assert single.prefill.bytes == shorter.decode.bytes


@given(models, devices, st.lists(batches, min_size=1, max_size=4), st.lists(lengths, min_size=1, max_size=4))
def test_arrays_equal_scalars(model: Model, hardware: Hardware, many: list[int], long: list[int]) -> None:
    grid = analyze(
        Scenario(
            model,
            hardware,
            batch=np.array(many)[:, None],
            prompt=np.array(long)[None, :],
            generate=np.array(long)[None, ::-1],
        )
    )
    assert grid.prefill.bound_time.shape == (len(many), len(long))
    for row, batch in enumerate(many):
        for column, length in enumerate(long):
            one = analyze(Scenario(model, hardware, batch=batch, prompt=length, generate=long[::-1][column]))
            at = (row, column)
            for whole, single in zip(phases(grid), phases(one), strict=True):
                assert whole.bound_time[at] == pytest.approx(single.bound_time, rel=RELATIVE)
                assert whole.flops[at] == pytest.approx(single.flops, rel=RELATIVE)
                assert whole.bytes[at] == pytest.approx(single.bytes, rel=RELATIVE)
                assert whole.bound[at] == single.bound
            assert grid.memory.total[at] == pytest.approx(one.memory.total, rel=RELATIVE)
            assert bool(grid.memory.fits[at]) == one.memory.fits
            assert grid.generation.total[at] == pytest.approx(one.generation.total, rel=1e-11)


@given(models, devices, batches, lengths)
def test_operator_figures_add_up_to_the_phase(model: Model, hardware: Hardware, batch: int, length: int) -> None:
    answer = analyze(Scenario(model, hardware, batch=batch, prompt=length))
    for phase in phases(answer):
        assert sum(op.count * op.bound_time for op in phase.ops) == pytest.approx(phase.bound_time, rel=RELATIVE)
        assert sum(op.count * op.flops for op in phase.ops) == pytest.approx(phase.flops, rel=RELATIVE)
        assert sum(op.share for op in phase.ops) == pytest.approx(1, rel=RELATIVE)
        for op in phase.ops:
            by_role = (op.weight_bytes, op.activation_bytes, op.kv_bytes, op.state_bytes)
            assert sum(by_role) == pytest.approx(op.bytes, rel=RELATIVE)
            assert sum(tensor.bytes for tensor in op.tensors) == pytest.approx(op.bytes, rel=RELATIVE)
            # The speed of light: no operator moves or computes faster than the hardware.
            assert op.bound_time >= op.bytes / hardware.memory_bandwidth * (1 - RELATIVE)
            if op.ridge is not None:
                assert op.attainable <= op.ridge * hardware.memory_bandwidth * (1 + RELATIVE)


@given(
    models.filter(lambda model: model.task == "generate"), devices, batches, st.integers(1, 4000), st.integers(1, 300)
)
def test_generation_is_the_sum_of_its_steps(
    model: Model, hardware: Hardware, batch: int, prompt: int, generate: int
) -> None:
    answer = analyze(Scenario(model, hardware, batch=batch, prompt=prompt, generate=generate))
    total = answer.prefill.bound_time
    first = answer.scenario.first_cached
    for context in range(first, first + generate - 1):
        total += analyze(Scenario(model, hardware, batch=batch, prompt=prompt, context=context)).decode.bound_time
    # The logarithm in Hyena's transforms is no straight line, nor whole compressed entries: sums are at the middle.
    smooth = any(type(group.layer.mixer) in (Hyena, CompressedAttention) for group in model.groups)
    assert answer.generation.total == pytest.approx(total, rel=1e-3 if smooth else 1e-11)


@given(dense, batches, lengths, lengths)
def test_a_window_caps_the_cache(model: Model, batch: int, tokens: int, window: int) -> None:
    """With the further keys that each query sees: BigBird's global and random blocks."""
    cap = window + max(getattr(group.layer.mixer, "extra", 0) for group in model.groups)
    windowed = with_attention(model, f"window-{window}", lambda attention: replace(attention, window=window))
    graph = network(windowed, parse_precision("bf16"))

    def cache(tokens: int) -> float:
        return float(resident_bytes(graph, Role.KV, Step(batch, 1, tokens - 1))[0])

    assert cache(tokens) == cache(min(tokens, cap)) <= cache(cap)


@pytest.mark.parametrize("name", HARDWARE)
def test_every_model_and_every_device_runs(name: str) -> None:
    """Every 48th of the models on each device, in turn: models meet devices of all kinds. Warnings are errors."""
    hardware = load_hardware(name)
    for model in map(load_model, list_models()[list_hardware().index(name) % 48 :: 48]):
        answer = analyze(Scenario(model, hardware))
        figures = (
            *(value for phase in phases(answer) for value in (phase.flops, phase.bytes, phase.bound_time)),
            *(answer.generation.ttft, answer.memory.weights, answer.memory.activation_peak),
            *((answer.generation.tpot, answer.generation.tokens_per_second) if answer.decode else ()),
        )
        assert all(np.isfinite(figure) and figure > 0 for figure in figures), model.name
        assert (answer.memory.kv_cache + answer.memory.state > 0) == (answer.decode is not None), model.name
        assert not answer.beyond_max_context
