"""Inverse questions: against brute force over grids, at edges, and verdicts never and always."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import RooflineError, analyze, list_hardware, load_hardware, load_model
from roofline.core.search import (
    WINDOW,
    largest_satisfying,
    last_before_failure,
    last_before_failure_scalar,
    smallest_satisfying,
)
from roofline.scenario.scenario import Scenario
from roofline.timing.intervals import READINGS
from roofline.timing.kernels.common import units
from roofline.whatif.solve import (
    Targets,
    break_even,
    crossover,
    max_batch,
    max_bits,
    max_context,
    max_draft,
    min_bandwidth,
    min_bits,
    min_gpus,
    min_memory,
    min_peak,
)
from roofline.whatif.solve.targets import figures, ratios, used
from roofline.whatif.variation import scaled_bandwidth, scaled_peaks, scaled_vector_peaks, with_hardware

SMALL = replace(load_hardware("rtx-4090"), memory_capacity=8e9, memory_visible=None)
MODEL = load_model("gpt2-xl")
PLAIN = Scenario(MODEL, SMALL, prompt=100, generate=20)


def brute(make: Any, targets: Targets, limit: int) -> int:
    """The last count before the first that misses a target, by brute force."""
    met = np.broadcast_to(used(make(np.arange(1, limit + 1)), targets) <= 1, limit)
    return limit if met.all() else int(np.argmin(met))


@given(
    prompt=st.integers(1, 900),
    generate=st.integers(2, 100),
    at=st.sampled_from(READINGS),
    name=st.sampled_from(("ttft", "tpot", "total")),
    share=st.floats(0.01, 1.2),
)
def test_largest_batch_equals_brute_force(prompt: int, generate: int, at: Any, name: str, share: float) -> None:
    request = Scenario(MODEL, SMALL, prompt=prompt, generate=generate)
    make = lambda batch: request.at(batch=batch)  # noqa: E731
    most = brute(make, Targets(), 5000)
    reference = float(getattr(figures(analyze(make(max(most, 1))), at), name))
    targets = Targets(**{name: reference * share}, at=at)
    expected = brute(make, targets, min(most + 1, WINDOW)) if most else 0
    assume(expected < WINDOW)
    answer = max_batch(request, targets)
    assert (answer.value or 0) == expected
    if answer.verdict == "found":
        assert answer.check.meets
        assert answer.neighbour is not None
        assert answer.neighbour.value == expected + 1
        assert not answer.neighbour.meets
    else:
        assert (answer.verdict, answer.check.meets) == ("never", False)


@given(batch=st.integers(1, 40), generate=st.integers(2, 100), at=st.sampled_from(READINGS), share=st.floats(0.02, 1.2))
def test_longest_prompt_equals_brute_force(batch: int, generate: int, at: Any, share: float) -> None:
    request = Scenario(MODEL, SMALL, batch=batch, generate=generate)
    longest = 1024 - generate + 1
    make = lambda prompt: request.at(prompt=prompt)  # noqa: E731
    targets = Targets(ttft=float(figures(analyze(make(longest)), at).ttft) * share, at=at)
    expected = brute(make, targets, longest)
    answer = max_context(request, targets)
    assert (answer.value or 0) == expected
    assert answer.check.meets is (expected > 0)
    if expected == longest:
        assert "maximum context" in answer.note


@given(share=st.floats(0.05, 1.3), at=st.sampled_from(READINGS))
def test_throughput_target_is_met_by_the_largest_batch(share: float, at: Any) -> None:
    batches = np.arange(1, max_batch(PLAIN, Targets()).value + 1)
    rates = figures(analyze(PLAIN.at(batch=batches)), at).tokens_per_second
    targets = Targets(tokens_per_second=float(rates.max() * share), at=at)
    reached = np.flatnonzero(rates >= targets.tokens_per_second)
    answer = max_batch(PLAIN, targets)
    assert answer.value == (int(batches[reached[-1]]) if reached.size else None)


def test_answer_meets_the_targets_and_its_neighbour_misses() -> None:
    batch, plain = 37, PLAIN.with_(memory_reading="static")
    need = float(analyze(plain.at(batch=batch)).memory.total)
    exact = plain.with_(hw=replace(SMALL, memory_capacity=need))
    answer = max_batch(exact, Targets())
    assert (answer.verdict, answer.value, answer.limited_by) == ("found", batch, ("memory",))
    below = plain.with_(hw=replace(SMALL, memory_capacity=float(np.nextafter(need, 0))))
    assert max_batch(below, Targets()).value == batch - 1
    edge = float(figures(analyze(PLAIN.at(batch=batch)), "mid").tpot)
    assert max_batch(PLAIN, Targets(tpot=edge)).value >= batch
    assert max_batch(PLAIN, Targets(tpot=edge * (1 - 1e-9))).value < batch


def test_verdicts_never_and_always() -> None:
    assert max_batch(PLAIN, Targets(ttft=1e-7)).verdict == "never"
    assert max_batch(PLAIN.with_(hw=replace(SMALL, memory_capacity=1e6)), Targets()).limited_by == ("memory",)
    assert max_batch(PLAIN, Targets(tokens_per_second=1e9)).verdict == "never"
    always = max_batch(PLAIN, Targets(total=1e6, fits=False))
    assert (always.verdict, always.neighbour) == ("always", None)
    assert min_bandwidth(PLAIN, Targets(tpot=1e-9), chips=()).verdict == "never"
    assert min_bandwidth(PLAIN, Targets(tpot=1e5), chips=()).verdict == "always"
    assert (
        min_bandwidth(PLAIN.with_(hw=replace(SMALL, memory_capacity=1e6)), Targets(tpot=1), chips=()).verdict == "never"
    )
    assert max_bits(PLAIN, Targets(tpot=1e-9)).verdict == "never"
    assert min_gpus(PLAIN, Targets(tpot=1e-9)).verdict == "never"


@settings(max_examples=3, deadline=None)
@given(factor=st.floats(0.3, 3), at=st.sampled_from(READINGS))
def test_minimum_bandwidth_and_peak(factor: float, at: Any) -> None:
    asked = PLAIN
    for ask, scaled, name in ((min_bandwidth, scaled_bandwidth, "tpot"), (min_peak, scaled_peaks, "ttft")):
        changed = with_hardware(asked, lambda device, scaled=scaled: scaled(device, factor))
        targets = Targets(**{name: float(getattr(figures(analyze(changed), at), name))}, at=at)
        answer = ask(PLAIN, targets, chips=())
        if answer.verdict == "found":
            assert answer.check.meets
            assert answer.neighbour is not None
            assert not answer.neighbour.meets
        else:
            assert answer.verdict == "always"
    figure = min_bandwidth(PLAIN, replace(targets, ttft=None, tpot=1.0), chips=())
    assert figure.check.meets


NO_UNITS = (
    replace(load_hardware("h100-nvl"), units=None),
    replace(load_hardware("a100-sxm-80gb"), units=None),
    load_hardware("gaudi-2"),
)


@pytest.mark.parametrize("device", NO_UNITS, ids=lambda device: device.name)
@pytest.mark.parametrize("scaled", [scaled_peaks, scaled_vector_peaks])
def test_a_higher_peak_of_as_many_units_is_never_slower(device: Any, scaled: Any) -> None:
    asked = Scenario(load_model("llama-3.1-8b"), device)
    varied = [
        with_hardware(asked, lambda device, factor=factor: scaled(device, factor)) for factor in (1, 10, 1e3, 1e6)
    ]
    assert analyze(varied[0]).expected.tpot.mid == analyze(asked).expected.tpot.mid
    for name in ("ttft", "tpot"):
        spent = np.array([getattr(analyze(each).expected, name).mid for each in varied])
        assert (spent[1:] <= spent[:-1] * (1 + 1e-9)).all()


def test_units_are_a_fact_or_unknown_and_no_matter_of_peaks() -> None:
    for device in map(load_hardware, list_hardware()):
        unknown = replace(device, units=None)
        assert units(replace(unknown, tensor=dict.fromkeys(device.tensor, 1e16))) == units(unknown)
        assert device.units is None or device.kind == "npu" or units(device) == device.units


@pytest.mark.parametrize("device", NO_UNITS, ids=lambda device: device.name)
def test_a_target_that_the_device_meets_needs_less_than_its_peak(device: Any) -> None:
    request = Scenario(load_model("llama-3.1-8b"), device)
    targets = Targets(tpot=2 * analyze(request).expected.tpot.mid)
    answer = min_peak(request, targets, chips=())
    assert answer.verdict == "found"
    assert answer.value < device.matrix_peak("bf16")
    assert answer.check.meets


def test_minimum_bandwidth_of_a_memory_bound_step() -> None:
    request = Scenario(load_model("llama-2-7b"), load_hardware("a100-sxm-80gb"), prompt=8, generate=2)
    target = 20e-3
    found = min_bandwidth(request, Targets(tpot=target, at="bound"), chips=()).value
    moved = analyze(request).decode
    assert moved is not None
    assert found == pytest.approx(moved.bytes / target, rel=1e-6)


def test_minimum_memory_is_the_total() -> None:
    static = PLAIN.with_(memory_reading="static")
    exact = min_memory(static, Targets(), chips=("h100-sxm", "a6000"))
    assert exact.value == pytest.approx(analyze(static).memory.total, rel=1e-6)
    answer = min_memory(PLAIN, Targets(), chips=("h100-sxm", "a6000"))
    device = replace(PLAIN.hardware, memory_capacity=answer.value)
    fitted = analyze(PLAIN.with_(hw=device)).memory
    assert fitted.total == pytest.approx(fitted.budget, rel=1e-6)
    assert answer.check.meets
    assert answer.neighbour is not None
    assert answer.neighbour.missed == ("memory",)
    assert {entry.value for entry in answer.candidates} == {"h100-sxm", "a6000"}


def test_suitable_hardware_is_simulated() -> None:
    request = Scenario(load_model("llama-3.1-8b"), load_hardware("l40s"), prompt=256, generate=8)
    names = ("l4", "a100-sxm-80gb", "h100-sxm", "b200-sxm", "v100-sxm2-16gb")
    answer = min_bandwidth(request, Targets(tpot=10e-3), chips=names)
    for name in names:
        met = used(request.with_(hw=load_hardware(name)), Targets(tpot=10e-3)) <= 1
        assert met == (name in {entry.value for entry in answer.candidates})


@pytest.mark.parametrize("tpot", [30e-3, 15e-3, 9e-3])
def test_fewest_devices_equal_brute_force(tpot: float) -> None:
    request = Scenario(load_model("llama-3.1-70b"), load_hardware("h100-sxm"), generate=8)
    answer = min_gpus(request, Targets(tpot=tpot))
    degrees = [1, 2, 4, 8]
    met = [degree for degree in degrees if used(request.with_(tp=degree), Targets(tpot=tpot)) <= 1]
    assert met[:1] == ([answer.value] if answer.value is not None and answer.value <= 8 else [])


def test_bits_equal_brute_force_over_schemes() -> None:
    schemes = ("fp8", "awq", "q8_0", "int8", "KV8")
    request = Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), generate=8)
    targets = Targets(tpot=6e-3)
    met = {}
    for name in (*schemes, "bf16"):
        scenario = request.with_(quant=name)
        if used(scenario, targets) <= 1:
            met[name] = float(analyze(scenario).memory.weights)
    most, fewest = max_bits(request, targets, schemes), min_bits(request, targets, schemes)
    assert met[most.value] == max(met.values())
    assert met[fewest.value] == min(met.values())
    with pytest.raises(RooflineError, match="omit the scheme"):
        max_bits(request.with_(quant="awq"), targets)


@pytest.mark.parametrize(
    ("model", "options", "released"),
    [
        ("gpt-oss-20b", {}, "mxfp4"),
        ("gpt-oss-20b", {"engine": "llama.cpp"}, "mxfp4_moe"),
        ("deepseek-v3", {}, "fp8_block"),
    ],
)
def test_bits_do_not_exceed_the_released_format(model: str, options: dict[str, str], released: str) -> None:
    request = Scenario(load_model(model), load_hardware("h200-sxm"), tp=8, **options)
    answer = max_bits(request, Targets())
    assert (answer.value, [entry.value for entry in answer.candidates]) == (released, [released])
    widest = analyze(request).memory.weights
    tried = [min_bits(request, Targets(), [scheme]).value for scheme in ("fp8", "bf16", "q4_k_m")]
    assert all(analyze(request.with_(quant=str(name))).memory.weights <= widest for name in tried)


def test_largest_draft_length_that_pays_off() -> None:
    request = Scenario(
        load_model("llama-3.1-70b"),
        load_hardware("h100-sxm"),
        tp=4,
        generate=32,
        techniques=("speculative-decoding:draft=llama-3.2-1b,acceptance=0.7",),
    )
    answer = max_draft(request, Targets())

    def step(*techniques: str) -> float:
        return float(figures(analyze(request.with_(techniques=techniques)), "mid").tpot)

    draft = "speculative-decoding:draft=llama-3.2-1b,acceptance=0.7,length="
    assert step(f"{draft}{answer.value}") <= step() < step(f"{draft}{answer.value + 1}")
    assert answer.neighbour is not None
    assert answer.neighbour.missed == ("tpot without draft",)
    assert max_draft(request.with_(techniques=draft.replace("0.7,length=", "0.02")), Targets()).verdict == "never"
    for wrong in (("awq",), ("eagle",), ("speculative-decoding:draft=llama-3.2-1b",)):
        with pytest.raises(RooflineError, match="max-draft needs"):
            max_draft(request.with_(techniques=wrong), Targets())


def test_break_even_equals_brute_force() -> None:
    request = Scenario(load_model("llama-2-7b"), load_hardware("a6000"), prompt=64, generate=16)
    drafting = request.with_(techniques="prompt-lookup:accept=2")
    answer = break_even(drafting, request, Targets(at="bound", fits=False), "tpot")

    def steps(some: Scenario, batch: int) -> float:
        return float(figures(analyze(some.at(batch=batch)), "bound").tpot)

    assert answer.verdict == "found"
    batch = answer.value
    assert steps(drafting, batch) <= steps(request, batch)
    assert steps(drafting, batch + 1) > steps(request, batch + 1)
    turned = break_even(request, drafting, Targets(at="bound", fits=False), "tpot")
    assert (turned.verdict, turned.value) == ("found", batch)
    assert "the others are faster up to this batch" in turned.note
    slower = request.with_(hw=scaled_bandwidth(scaled_peaks(request.hardware, 0.5), 0.5))
    assert break_even(request, slower, Targets()).verdict == "always"
    assert break_even(slower, request, Targets()).verdict == "never"
    with pytest.raises(RooflineError, match="does not fit"):
        break_even(request.with_(hw=replace(SMALL, memory_capacity=1e6)), request, Targets())


def test_crossovers_equal_single_workloads() -> None:
    request = Scenario(load_model("llama-2-7b"), load_hardware("a6000"), prompt=128)
    found = crossover(request)
    for entry in found:
        for change in entry.changes[1:]:
            for value, at_edge in ((change.start, True), (change.start - 1, False)):
                options: dict[str, Any] = {entry.axis: value}
                if entry.phase == "decode" and entry.axis == "batch":
                    options["context"] = 128
                phase = getattr(analyze(request.at(**options)), entry.phase)
                ops = {op.name: op.bound for op in phase.ops} | {phase.name: phase.bound}
                assert (str(ops[entry.name]) == change.bound) is at_edge
    gemm = next(entry for entry in found if (entry.phase, entry.name, entry.axis) == ("decode", "q_proj", "batch"))
    device = request.hardware
    ridge = device.matrix_peak("fp16") / device.memory_bandwidth  # 2 m n k / (2 n k + 2 m (n + k)) with n = k = 4096
    assert gemm.at == (int(np.ceil(ridge * 4096 / (4096 - 2 * ridge))),)


# The search itself


@given(edge=st.integers(0, 10**6), low=st.integers(1, 50), extra=st.integers(1, 10**5))
@settings(max_examples=200, deadline=None)
def test_last_before_failure(edge: int, low: int, extra: int) -> None:
    high = low + edge + extra
    assert last_before_failure(lambda values: values < low + edge, low, high) == low + edge - 1
    assert last_before_failure_scalar(lambda value: value < low + edge, low, high) == low + edge - 1


@given(edge=st.integers(2, WINDOW), lapse=st.data())
@settings(max_examples=100, deadline=None)
def test_largest_satisfying_beyond_a_failure(edge: int, lapse: Any) -> None:
    hole = lapse.draw(st.integers(1, edge - 1))
    assert last_before_failure(lambda values: (values != hole) & (values <= edge), 1, 10**6) == hole - 1
    assert largest_satisfying(lambda values: values <= hole, 1, edge) == hole


@given(edge=st.floats(1e-5, 1e5), power=st.floats(0.1, 3))
@example(edge=16.0, power=1.0)  # a trial value of the search, with an inexact logarithm
@settings(max_examples=100, deadline=None)
def test_smallest_satisfying(edge: float, power: float) -> None:
    tried = []

    def excess(value: float) -> float:
        tried.append(value)
        return float(power * np.log(edge / value))

    found = smallest_satisfying(excess, 1.0, 1e-6, 1e6)
    assert found is not None
    assert edge <= found <= edge * (1 + 1e-6)
    assert len(tried) < 60
    assert smallest_satisfying(lambda value: 1.0, 1.0, 1e-6, 1e6) is None


def test_invalid_targets() -> None:
    with pytest.raises(RooflineError, match="above 0"):
        Targets(ttft=0)
    with pytest.raises(RooflineError, match="reading of times"):
        Targets(at="sometimes")  # type: ignore[arg-type]
    with pytest.raises(RooflineError, match="needs a target"):
        max_batch(PLAIN, Targets(fits=False))
    with pytest.raises(RooflineError, match="needs a latency or throughput target"):
        min_bandwidth(PLAIN, Targets())
    with pytest.raises(RooflineError, match="two generated tokens"):
        ratios(analyze(PLAIN.at(generate=1)), Targets(tpot=1))
    with pytest.raises(RooflineError, match="only encodes"):
        max_batch(Scenario(load_model("bert-base"), SMALL), Targets(tpot=1))
    with pytest.raises(RooflineError, match="no expected times"):
        max_batch(Scenario(MODEL, SMALL, convention="llm-viewer"), Targets(tpot=1))
    with pytest.raises(RooflineError, match="maximum context"):
        max_context(Scenario(MODEL, SMALL, prefix=1023), Targets())
