"""The settings of an engine are obeyed: under load, in a static batch, and by what it reserves of memory."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware, load_model, serve
from roofline.advisor.sizing.configurations import Given
from roofline.advisor.sizing.sizing import size
from roofline.advisor.sizing.workload import Service
from roofline.core.errors import RooflineError
from roofline.core.units import GIB
from roofline.scenario.notes import notes
from roofline.scenario.settings import Settings, gpu_layers
from roofline.serving.load import Load
from roofline.serving.outcome import Outcome, outcome_of
from roofline.serving.policies import simulate
from roofline.serving.replica import Replica, replica_of
from roofline.specs.engine import load_engine
from roofline.specs.reserve import SAMPLER_BYTES

MODEL, H100 = load_model("llama-3.1-8b"), load_hardware("h100-sxm")
LOAD = Load(prompt=2000, generate=100, concurrency=64)


def replica(engine: str = "vllm", load: Load = LOAD, **settings: object) -> Replica:
    return replica_of(Scenario(MODEL, H100, engine=engine, settings=Settings(**settings)), load)  # type: ignore[arg-type]


def outcome(**settings: object) -> Outcome:
    found = replica(**settings)
    return outcome_of(found, LOAD, simulate(found, LOAD, 300))


def test_fewer_sequences_wait_longer_and_decode_faster() -> None:
    few, many = outcome(sequences=16), outcome(sequences=64)
    assert few.ttft.mean.mid > 2 * many.ttft.mean.mid
    assert few.tpot.mean.mid < many.tpot.mean.mid
    assert few.running <= 16 + 1e-9


def test_fewer_tokens_of_a_step_stall_decode_less() -> None:
    """A prompt of 2,000 tokens takes eight steps of 256, in each of which the others decode a token."""
    assert replica(step_tokens=256).budget == 256
    short, long = outcome(step_tokens=256), outcome(step_tokens=8192)
    alone = replica(step_tokens=256, load=replace(LOAD, concurrency=1))
    served = simulate(alone, replace(LOAD, concurrency=1), 1)
    assert served.steps == 8 + 99
    assert short.ttft.mean.mid > long.ttft.mean.mid


def test_parts_of_a_prompt_are_simulated_or_refused() -> None:
    scenario = Scenario(MODEL, H100, prompt=4000, generate=100)
    parted = scenario.with_(long_prefill_token_threshold=256)
    simulated = {"rate": 2, "simulate": 60}
    for options in ({"concurrency": 16}, simulated, {**simulated, "disaggregation": "1P1D"}):
        whole, cut = (serve(each, **options).outcomes[0] for each in (scenario, parted))  # type: ignore[arg-type]
        assert cut.ttft.mean.mid > 1.5 * whole.ttft.mean.mid
    for options in ({"rate": 2}, {"rate": 2, "disaggregation": "1P1D"}, {"concurrency": 4, "disaggregation": "1P1D"}):
        with pytest.raises(RooflineError, match="simulate"):
            serve(parted, **options)  # type: ignore[arg-type]
    with pytest.raises(RooflineError, match="whole"):
        serve(Scenario("bge-m3", H100, prompt=4000, long_prefill_token_threshold=256), concurrency=4)


def test_a_static_prefill_runs_in_the_steps_of_the_engine() -> None:
    whole, cut = (
        analyze(Scenario(MODEL, H100, prompt=4096, settings=Settings(step_tokens=tokens))) for tokens in (None, 512)
    )
    assert sum(run.repeat for run in cut.prefill.passes) == pytest.approx(8)
    assert sum(run.repeat for run in whole.prefill.passes) == 1
    assert cut.prefill.flops == pytest.approx(whole.prefill.flops, rel=0.02)
    assert cut.expected.ttft.mid > whole.expected.ttft.mid


def test_a_chunk_is_not_larger_than_a_step() -> None:
    assert Settings(chunk=2048, step_tokens=512).pass_tokens == 512
    assert Settings(chunk=256, step_tokens=512).pass_tokens == 256


def test_what_the_engine_reserves_follows_its_settings() -> None:
    """The activations of the profiled pass, of that many tokens, and of the sampler, of that many sequences."""
    small = load_model("llama-3.1-8b"), load_hardware("l40s")
    few, many = (
        analyze(Scenario(*small, settings=Settings(sequences=count, step_tokens=512))).memory for count in (8, 512)
    )
    assert many.activation_peak == 512 * MODEL.vocabulary * SAMPLER_BYTES
    assert few.activation_peak < many.activation_peak
    tokens = [replica(step_tokens=count, sequences=8).kv_tokens for count in (512, 16384)]
    assert tokens[0] > tokens[1]
    assert replica(utilization=0.5).kv_tokens < replica().kv_tokens


def test_without_graphs_the_host_launches_every_kernel() -> None:
    """No step is shorter than its launches, and a step that the device takes longer for is as it was."""
    graphs, eager = replica(), replica(eager=True)
    launches = load_engine("vllm").scheduler.dispatch * graphs.steps.kernels
    few, many = 1.0, 512.0
    assert graphs.steps.seconds(few, 500.0) < launches <= eager.steps.seconds(few, 500.0)
    assert eager.steps.seconds(many, 4000.0) == pytest.approx(graphs.steps.seconds(many, 4000.0), rel=1e-9)
    assert outcome(eager=True).tpot.mean.mid > outcome().tpot.mean.mid


def test_without_graphs_their_memory_is_free() -> None:
    with_graphs, without = (
        analyze(Scenario(MODEL, H100, settings=Settings(eager=eager))).memory for eager in (False, True)
    )
    assert with_graphs.runtime - without.runtime == pytest.approx(0.5 * GIB)
    assert replica(eager=True).kv_tokens > replica().kv_tokens


@pytest.mark.parametrize(
    ("model", "hardware", "least", "most"),
    [
        # 4.3 times on an H200, 1.7 to 1.8 on an A800 (vllm-project/vllm-omni, issue 7960)
        ("qwen2.5-3b", "h200-sxm", 3.0, 7.0),
        ("qwen2.5-7b", "a800-sxm-80gb", 1.3, 2.0),
    ],
)
def test_eager_decode_is_as_much_slower_as_published(model: str, hardware: str, least: float, most: float) -> None:
    times = []
    for eager in (False, True):
        answer = analyze(Scenario(load_model(model), load_hardware(hardware), settings=Settings(eager=eager)))
        assert answer.expected.tpot is not None
        times.append(answer.expected.tpot.mid)
    assert least <= times[1] / times[0] <= most


@pytest.mark.parametrize(
    ("engine", "hardware", "reason"),
    [
        ("hf-eager", "h100-sxm", "captures none"),
        ("llama.cpp", "m2-max", "has none"),
        ("ideal", "h100-sxm", "in no time"),
        ("vllm", "h100-sxm", ""),
    ],
)
def test_switching_graphs_off_without_effect_is_said(engine: str, hardware: str, reason: str) -> None:
    device = load_hardware(hardware)
    plain, eager = (
        analyze(Scenario(MODEL, device, engine=engine, settings=Settings(eager=asked))) for asked in (False, True)
    )
    assert plain.expected.tpot is not None
    assert eager.expected.tpot is not None
    assert (plain.expected.tpot.mid == eager.expected.tpot.mid) is bool(reason)
    said = [note for note in notes(eager) if "CUDA graphs" in note]
    assert all(reason in note for note in said)
    assert bool(said) is bool(reason)
    assert not [note for note in notes(plain) if "CUDA graphs" in note]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step_tokens": 0}, "step_tokens of Settings must be a whole number of at least 1, or None, got 0"),
        ({"step_tokens": 64, "sequences": 128}, "a step of at most 64 tokens has no room for 128 sequences"),
        ({"utilization": 1.5}, "must be a number above 0 and at most 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        Settings(**settings)  # type: ignore[arg-type]


SERVICE = Service(rate=5, prompt=2000, generate=300, ttft=2, tpot=0.05)


def sized(**given: object) -> tuple[int, float]:
    """Devices, and the load of a replica."""
    best = size(MODEL, SERVICE, ["h100-sxm"], given=Given(options=given)).choice("fewest").best
    return best.devices, best.max_load


@pytest.mark.slow
def test_a_service_is_sized_with_the_settings_of_its_engine() -> None:
    plain = sized()
    assert sized(max_num_seqs=8)[0] > plain[0]
    assert sized(max_num_batched_tokens=512)[1] < plain[1]
    assert sized(gpu_memory_utilization=0.3)[1] < plain[1]
    # Full steps, which limit the load, replay no graph anyway; the last step of a prompt may.
    assert plain[1] * 0.99 < sized(enforce_eager=True)[1] < plain[1]
    with pytest.raises(RooflineError, match="2300 tokens, is longer than the limit of 2048"):
        sized(max_model_len=2048)


def test_layers_that_are_not_on_the_gpu_run_on_the_cpu() -> None:
    """llama.cpp's --n-gpu-layers: of 32 layers, 24 on the GPU are a quarter on the CPU, with their KV cache."""
    cpu = load_hardware("epyc-9654")
    host = gpu_layers(MODEL, cpu, 24)
    assert host is not None
    assert (host.work, host.memory, host.hardware.name) == (0.25, 0.25, "epyc-9654")
    assert gpu_layers(MODEL, cpu, 33) is None
    times = []
    for layers in (0, 16, 99):
        answer = analyze(
            Scenario(MODEL, H100, engine="llama.cpp", settings=Settings(host=gpu_layers(MODEL, cpu, layers)))
        )
        assert answer.expected.tpot is not None
        times.append(answer.expected.tpot.mid)
    assert times[0] > times[1] > times[2]


def test_layers_on_the_cpu_leave_their_memory_to_the_kv_cache() -> None:
    """Llama 3.3 70B in Q4_K_M takes 42 GB: 30 of 80 layers on 24 GB leave room, all of them do not fit."""
    scenario = Scenario("llama-3.3-70b", "rtx-4090", engine="llama.cpp", quant="q4_k_m")
    with pytest.raises(RooflineError, match="does not fit"):
        serve(scenario, concurrency=1)
    few, more = (serve(scenario.with_(n_gpu_layers=count), concurrency=1) for count in (20, 30))
    assert few.replica.kv_tokens > more.replica.kv_tokens > 0


def test_slots_of_llama_cpp_displace_no_request() -> None:
    """Requests without room wait for a slot: none is computed again, which takes long on a card with slow prompts."""
    scenario = Scenario("mistral-7b", "arc-a580", engine="llama.cpp", quant="nvfp4", prompt=1, generate=323)
    full, crowded = serve(scenario, concurrency=(60, 300)).outcomes
    assert crowded.output_tokens_per_second > 0.98 * full.output_tokens_per_second
    assert serve(scenario, concurrency=300, simulate=400).outcomes[0].preemptions == 0


def test_the_values_of_a_load_are_written_as_on_the_command_line() -> None:
    scenario = Scenario(MODEL, H100)
    assert serve(scenario, concurrency="1:64:log3").values == (1, 8, 64)
    assert serve(scenario, concurrency="1,16").values == serve(scenario, concurrency=[1, 16]).values
    assert serve(scenario, rate="0.5:2:lin2").values == (0.5, 2)
    for wrong in ("1,1", "8:1", "0:4", "1:x", ""):
        with pytest.raises(RooflineError):
            serve(scenario, concurrency=wrong)


def test_a_curve_says_what_has_no_effect() -> None:
    curve = serve(Scenario(MODEL, H100, micro_batches=4), concurrency=1)
    assert "--micro-batches 4 has no effect" in str(curve)


@pytest.mark.parametrize(
    "load", [{"concurrency": [1, 64]}, {"rate": [0.2, 3]}, {"offline": 20}, {"rate": 1, "simulate": 50}]
)
def test_what_most_requests_take_is_no_surer_to_be_short_than_what_half_of_them_take(load: dict[str, object]) -> None:
    """Ends of intervals are in the order of the percentiles, though a median is surer than a mean."""
    for found in serve(Scenario("gpt-oss-120b", "mi300x", engine="vllm", prompt=1000, generate=300), **load).outcomes:
        for times in (found.ttft, found.tpot, found.e2e):
            for one, other in ((times.p50, times.p95), (times.p95, times.p99)):
                assert one.low <= other.low <= other.mid <= other.high
                assert one.high <= other.high
            assert times.p50.high - times.p50.low < times.p95.high - times.p95.low
