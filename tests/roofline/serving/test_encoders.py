"""Encoders, images and speech under load: steps against analyses, steady states against simulations."""

from __future__ import annotations

import pytest

from roofline import Scenario, analyze, serve, size
from roofline.core.errors import RooflineError
from roofline.serving.load import Load
from roofline.serving.replica import replica_of
from roofline.serving.sessions.served import serve_sessions
from roofline.serving.steps import StepTimes

BERT = Scenario("bge-m3", "l4", prompt=512)
SEEN = Scenario("qwen3-vl-8b", "h100-sxm", prompt=500, images=2)


@pytest.mark.parametrize("count", [1, 4, 16])
def test_a_step_of_an_encoder_is_the_analysis_of_its_sequences(count: int) -> None:
    found = float(StepTimes(BERT).kernel_seconds(0.0, 0.0, 512.0 * count, 0.0, float(count)))
    alone = analyze(BERT.with_(batch=count)).prefill.expected.mid
    assert found == pytest.approx(alone - BERT.profile["step"], rel=0.05)


def test_a_step_with_images_is_the_analysis_of_a_prompt_with_them() -> None:
    load = Load(rate=1.0).of(SEEN)
    assert load.means[0] == 500 + 2 * 256
    steps = replica_of(SEEN, load).steps
    with_images = float(steps.kernel_seconds(0, 0, load.means[0])) + steps.tower(2.0)
    analysed = analyze(SEEN).prefill.expected.mid - SEEN.profile["step"]
    assert with_images == pytest.approx(analysed, rel=0.06)


def test_speech_decodes_beside_the_encoded_windows() -> None:
    speech = Scenario("whisper-large-v3", "l4", generate=200)
    alone = serve(speech, concurrency=1).outcomes[0]
    assert alone.tpot.mean.mid == pytest.approx(analyze(speech).expected.tpot.mid, rel=0.06)
    assert serve(speech, concurrency=8).outcomes[0].output_tokens_per_second > 3 * alone.output_tokens_per_second


@pytest.mark.parametrize(("scenario", "rate"), [(BERT, 70.0), (SEEN, 8.0)])
def test_steady_states_are_those_of_the_simulation(scenario: Scenario, rate: float) -> None:
    steady, simulated = (serve(scenario, rate=rate, simulate=count).outcomes[0] for count in (None, 2000))
    assert steady.e2e.mean.mid == pytest.approx(simulated.e2e.mean.mid, rel=0.12)
    assert steady.ttft.p95.mid == pytest.approx(simulated.ttft.p95.mid, rel=0.2)


def test_ranks_share_images_or_the_weights_of_their_encoder() -> None:
    eight = Scenario("qwen3-vl-30b-a3b", "h100-sxm", tp=4, images=8, mm_encoder_tp_mode="data")
    two = Scenario("qwen3-vl-30b-a3b", "h100-sxm", images=2)
    towers = [analyze(scenario).prefill.passes[0] for scenario in (eight, two)]
    assert towers[0].step.batch == towers[1].step.batch == 2
    assert towers[0].placement.network.ops == towers[1].placement.network.ops


def test_seconds_of_audio_are_windows_of_the_encoder() -> None:
    heard = Scenario("voxtral-mini-3b", "l4", prompt=20, audio="61s")
    assert heard.images == 3
    assert Load(rate=1.0).of(heard).means[0] == 20 + 3 * 375
    for model, said in (("whisper-large-v3", "hears 30 s at once"), ("qwen3-8b", "no encoder of audio")):
        with pytest.raises(RooflineError, match=said):
            Scenario(model, "l4", audio="61s")


@pytest.mark.slow
def test_a_service_of_embeddings_is_sized() -> None:
    found = size("bge-m3", rate=500, prompt=512, hw=["l4", "l40s"]).choice("cheapest").best
    assert found.outcome.stable
    assert found.outcome.requests_per_second * found.replicas == pytest.approx(500)
    assert "--generate" not in found.command


def test_what_encodes_generates_nothing() -> None:
    with pytest.raises(RooflineError, match="only encodes"):
        serve(BERT.with_(generate=5), concurrency=1)
    with pytest.raises(RooflineError, match="omit tpot"):
        serve(BERT, concurrency=1, tpot="5ms")
    with pytest.raises(RooflineError, match="no images"):
        serve_sessions(SEEN, sessions=4)
    with pytest.raises(RooflineError, match="models of text"):
        serve(Scenario("sdxl-base-1.0", "l4"), concurrency=1)
