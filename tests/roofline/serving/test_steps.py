"""Steps: a step of decode alone, or of a prompt alone, is the pass of the phase; a mixed one lies between."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.serving.steps import StepTimes
from roofline.specs.engine import load_engine
from roofline.specs.scheduler import PLAIN_SCHEDULER
from roofline.techniques import apply_techniques


def scenario(model: str = "llama-3.1-8b", hardware: str = "h100-sxm", **parallel: int) -> Scenario:
    settings = Settings(parallel=Parallelism(**parallel))
    engine = replace(load_engine("vllm"), scheduler=PLAIN_SCHEDULER)  # the host times of a static batch
    return Scenario(load_model(model), load_hardware(hardware), settings=settings, engine=engine)


def with_prompt_logits(case: Scenario) -> Scenario:
    """A case whose engine computes the logits of all prompt tokens."""
    return case.changed(engine=replace(case.profile, prompt_logits=True))


def with_kernel_factors(case: Scenario) -> Scenario:
    """A case whose kernels of prefill and decode differ from the calibration by unlike factors."""
    profile = case.profile
    return case.changed(engine=replace(profile, parameters={**profile.parameters, "prefill": 1.3, "decode": 1.7}))


DENSE = StepTimes(scenario())
FACTORED = StepTimes(with_kernel_factors(scenario()))
LOGITS = StepTimes(with_prompt_logits(scenario()))
LATE = StepTimes(
    Scenario("deepseek-v4.1-flash", "4xb300", tp=4, engine="vllm")
)  # half its layers run last tokens alone

CASES = [
    scenario(tensor=2),
    with_kernel_factors(scenario()),
    with_prompt_logits(scenario()),
    scenario("deepseek-r1", "b200-sxm", tensor=8),
    scenario("deepseek-r1", "b200-sxm", data=8, expert=8),
    scenario("qwen3-next-80b-a3b", "h200-sxm", tensor=4),
    scenario("gpt-oss-120b", "h100-sxm", tensor=2),
    scenario("deepseek-v4.1-flash", "b200-sxm", tensor=4),
    scenario("deepseek-v4.1-flash", "b200-sxm", data=8, expert=8),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model.name} {case.settings.parallel.devices}")
def test_a_step_of_one_phase_is_the_pass_of_that_phase(case, monkeypatch) -> None:
    monkeypatch.setattr("roofline.serving.ranks.UNEVEN_EXPERTS", 0.0)  # of which `analyze` knows nothing
    steps, ranks = StepTimes(case), case.settings.parallel.data
    uneven = case.settings.parallel.expert > 1  # the busiest rank decides; a pass alone has the mean
    for batch, context in ((1, 1000), (64, 1000), (64, 9000)):
        run = analyze(
            Scenario(
                case.model,
                case.hardware,
                batch=batch * ranks,
                context=context,
                generate=2,
                settings=case.settings,
                engine=case.engine,
            )
        )
        assert run.decode is not None
        found = float(steps.seconds(batch, context)) / run.decode.expected.mid
        assert 0.99 <= found <= (1.25 if uneven else 1.01)
    for prompt in (1024, 8192):
        run = analyze(
            Scenario(
                case.model,
                case.hardware,
                batch=ranks,
                prompt=prompt,
                generate=2,
                settings=case.settings,
                engine=case.engine,
            )
        )
        alone = float(steps.seconds(0, 0, prompt)) / run.prefill.expected.mid
        assert 0.96 <= alone <= (1.06 if uneven else 1.04)


def test_copies_of_experts_even_out_the_ranks() -> None:
    """EPLB raises prefill's throughput 1.49 times on 32 ranks (lmsys.org/blog/2025-05-05-large-scale-ep)."""
    asked = Parallelism(data=32, expert=32)
    model, hardware = load_model("deepseek-v3"), load_hardware("h100-sxm")
    alone, copied = (
        StepTimes(Scenario(model, hardware, settings=Settings(parallel=each), engine="sglang"), chunk=8192)
        for each in (asked, replace(asked, redundant=32))
    )
    gain = float(alone.seconds(0, 0, 8192.0) / copied.seconds(0, 0, 8192.0))
    assert 1.15 <= gain <= 1.5


@given(batch=st.integers(1, 512), context=st.integers(16, 20000), chunk=st.integers(1, 8192))
def test_a_mixed_step_takes_more_than_either_and_less_than_both(batch, context, chunk) -> None:
    decode, prompt = float(DENSE.seconds(batch, context)), float(DENSE.seconds(0, 0, chunk))
    mixed = float(DENSE.seconds(batch, context, chunk))
    # Weights are read once, and the tokens of both fill the tiles of one GEMM.
    assert max(decode, prompt) * (1 - 0.02) <= mixed <= decode + prompt


@given(batch=st.integers(1, 1000), context=st.integers(16, 20000), chunk=st.integers(0, 8000))
def test_more_work_never_takes_less(batch, context, chunk) -> None:
    kernels = DENSE.kernel_seconds
    base = float(kernels(batch, context, chunk))
    # Tiles and waves of GEMMs leave dips of a few percent.
    for more in (
        kernels(2 * batch, context, chunk),
        kernels(batch, 2 * context, chunk),
        kernels(batch, context, 2 * chunk + 64),
    ):
        assert float(more) >= base * (1 - 0.06)


def test_cached_tokens_before_a_chunk_cost_attention() -> None:
    first, later = DENSE.seconds(0, 0, 1024, 0), DENSE.seconds(0, 0, 1024, 16384)
    assert float(later) > 1.1 * float(first)


def test_verification_has_the_draft_tokens_of_every_sequence() -> None:
    plain = scenario("deepseek-r1", "b200-sxm", tensor=8)
    drafted = apply_techniques(plain, ("multi-token-prediction:length=3,acceptance=0.7",))
    steps = StepTimes(drafted)
    assert steps.decode_tokens == 4
    assert steps.accepted == pytest.approx((1 - 0.7**4) / 0.3)
    one, four = StepTimes(plain).seconds(16, 2000), steps.seconds(16, 2000)
    assert float(one) < float(four) < 3 * float(one)


def test_drafts_wait_for_no_scheduler() -> None:
    plain = scenario("deepseek-r1", "b200-sxm", tensor=8)
    steps = StepTimes(apply_techniques(plain, ("multi-token-prediction:length=3,acceptance=0.7",)))
    engine = steps.engine
    slower = replace(engine, parameters={**engine.parameters, "step": engine["step"] + 1e-3})
    drafting = replace(engine, parameters={**engine.parameters, "draft_step": engine["draft_step"] + 1e-3})
    once, thrice = (float(steps.of(other).seconds(16, 2000) - steps.seconds(16, 2000)) for other in (slower, drafting))
    assert (once, thrice) == (pytest.approx(1e-3), pytest.approx(3e-3))
    assert steps.of(drafting).single(16, 2000, 0, 0, 0, None) == pytest.approx(
        float(steps.of(drafting).seconds(16, 2000))
    )


def test_intervals_surround_one() -> None:
    low, high, low_prefill, high_prefill = DENSE.spread
    for batch in (1, 100):
        assert float(low(batch, 2000)) < 1 < float(high(batch, 2000))
        assert float(low_prefill(1000, 0)) < 1 < float(high_prefill(1000, 0))


def test_arrays_are_evaluated_point_by_point() -> None:
    batches = np.array([1.0, 30.0, 200.0])
    assert DENSE.seconds(batches, 1000.0).tolist() == [float(DENSE.seconds(batch, 1000.0)) for batch in batches]


@given(batch=st.integers(0, 500), context=st.integers(0, 30000), chunk=st.integers(1, 9000), prompts=st.integers(1, 9))
def test_single_steps_are_those_of_arrays(batch, context, chunk, prompts) -> None:
    for times in (DENSE, FACTORED, LOGITS, LATE):
        for mean in (None, batch + chunk / 8):
            one = times.single(batch, context, chunk, 100, prompts, mean)
            assert one == pytest.approx(float(times.seconds(batch, context, chunk, 100, prompts, mean)))


def test_graphs_of_pieces_are_of_twice_as_many_tokens_as_decode() -> None:
    """vLLM captures no more of them, so that few sequences have none for their prompts."""
    many, few = (StepTimes(Scenario("llama-3.1-8b", "h100-sxm", engine="vllm", sequences=n)) for n in (None, 16))
    assert float(few.seconds(8, 500, 200)) > 1.5 * float(many.seconds(8, 500, 200))
    assert float(few.seconds(8, 500, 20)) == pytest.approx(float(many.seconds(8, 500, 20)))
