"""Constants on hardware of vendors of which few kernels are measured."""

from __future__ import annotations

import pytest

from roofline import Scenario, analyze, serve
from roofline.reports.documents.answer import answer_document
from roofline.reports.documents.serving import serving_document
from roofline.reports.documents.sessions import sessions_document
from roofline.scenario.notes import notes
from roofline.serving.sessions.profiles import profile
from roofline.serving.sessions.served import serve_sessions
from roofline.verdict.asked import answer


@pytest.mark.parametrize("hardware", ["mi300x", "mi325x"])
def test_an_fp8_cache_of_mla_is_no_slower_than_one_of_16_bits(hardware: str) -> None:
    """AITER's kernels read it; NVIDIA's, which never split the keys of a sequence, took 40 times as long there."""
    scenario = Scenario("deepseek-r1", hardware, tp=8, quant="fp8", engine="sglang", batch=4, prompt=5000, generate=2)
    plain, stored = (analyze(scenario.with_(kv=kv)).expected.tpot for kv in ("bf16", "fp8"))
    assert stored.mid == pytest.approx(plain.mid, rel=0.1)


def test_versions_of_aiter_differ_in_the_time_between_kernels() -> None:
    """SGLang on MI325X, DeepSeek-R1 in FP8, four requests in flight: 27.3 ms with 0.5.5, 14.2 with 0.5.12."""
    scenario = Scenario("deepseek-r1", "mi325x", tp=8, quant="fp8", batch=4, prompt=1024, generate=1024)
    old, new = (analyze(scenario.with_(engine=f"sglang@{version}")).expected.tpot for version in ("0.5.5", "0.5.12"))
    assert old.mid == pytest.approx(27.3e-3, rel=0.2)
    assert new.mid == pytest.approx(14.2e-3, rel=0.2)


UNTUNED = Scenario("deepseek-v4-pro", "mi355x", tp=8, engine="vllm@0.26", prompt=4096, generate=16)
"""Sparse attention in Triton, which nobody measured; from 0.29 on decode has kernels for the device."""


def test_kernels_in_place_of_tuned_ones_are_slower_and_less_sure() -> None:
    before, since = (analyze(UNTUNED.with_(engine=f"vllm@{version}")).expected.tpot for version in ("0.26", "0.29"))
    assert before.mid > since.mid
    assert before.high / before.mid > since.high / since.mid


@pytest.mark.parametrize("hardware", ["b200", "mi300x"])
def test_a_version_has_the_kernels_of_another_elsewhere(hardware: str) -> None:
    """On CDNA3 no release has tuned ones, on NVIDIA's devices all have: the middle is the same in both."""
    scenario = UNTUNED.with_(hardware=hardware)
    before, since = (analyze(scenario.with_(engine=f"vllm@{version}")).expected.tpot for version in ("0.27", "0.29"))
    assert before.mid == pytest.approx(since.mid, rel=0.02)


def test_each_answer_says_that_kernels_were_not_measured() -> None:
    """The analysis, a server under load, sessions and the short answer; none does so where all were measured."""
    for scenario, said in ((UNTUNED, True), (UNTUNED.with_(hardware="b200"), False)):
        sessions = serve_sessions(scenario, profile("chat"), sessions=2, simulate=40)
        documents = (
            {"notes": notes(analyze(scenario))},
            serving_document(serve(scenario, concurrency=2)),
            sessions_document(sessions),
        )
        for document in documents:
            assert any("in place of tuned kernels" in note for note in document["notes"]) is said
        short = answer("deepseek-v4-pro", scenario.hardware_name, tp=8, engine="vllm@0.26")
        assert bool(answer_document(short, better=False)["unmeasured_kernels"]) is said
