"""One question, 50 users of one deployment: every command gives the same answer, or says why not and which does."""

import json
import re
import shlex

import pytest

from tests.cases import sampled

MODEL, LENGTHS = "qwen3-235b-a22b", ("--prompt", 2048, "--generate", 512)
DEPLOYMENT = ("--hw", "h200-sxm", "--tp", 4, "--quant", "fp8")
LIMITS = ("--ttft", "2s", "--tpot", "60ms")


def document(run, *words) -> dict:
    status, out, err = run(*words, "--format", "json")
    assert (status, err) == (0, "")
    return json.loads(out)


def text(run, *words) -> str:
    status, out, _ = run(*words)
    assert status == 0
    return out


@pytest.fixture
def served(run, known={}):  # noqa: B006 - one answer for all tests
    if not known:
        (known["point"],) = document(run, "serve", MODEL, *DEPLOYMENT, *LENGTHS, "--concurrency", 50)["points"]
    return known["point"]


def test_size_has_the_figures_of_serve(run, served) -> None:
    asked = ("size", MODEL, *DEPLOYMENT, *LENGTHS, *LIMITS, "--concurrency", 50, "--quality", "lossless")
    best = next(entry["best"] for entry in document(run, *asked)["choices"] if entry["objective"] == "fewest")
    assert (best["replicas"], best["devices"]) == (1, 4)
    for name in ("ttft_s", "tpot_s"):
        assert best[name] == served[name]


def test_solve_finds_the_users_whom_serve_meets_the_limits_for(run, served) -> None:
    found = document(run, "solve", "max-concurrency", MODEL, *DEPLOYMENT, *LENGTHS, *LIMITS)
    assert served["ttft_s"]["p95"]["mid"] < 2
    assert served["tpot_s"]["p95"]["mid"] < 0.06
    assert found["value"] > 50
    at = document(run, "serve", MODEL, *DEPLOYMENT, *LENGTHS, "--concurrency", f"{found['value']:.0f}")["points"][0]
    assert at["tpot_s"]["p95"]["mid"] == pytest.approx(found["answer"]["tpot_p95_s"], rel=1e-2)


@pytest.mark.slow
def test_advise_starts_from_the_throughput_of_serve(run, served) -> None:
    """Outputs vary by a ninth, so that drafts, which part requests, are compared with none."""
    varied = ("--prompt", 2048, "--generate", "uniform:455:569")
    (alike,) = document(run, "serve", MODEL, *DEPLOYMENT, *varied, "--concurrency", 50)["points"]
    asked = ("--objective", "goodput", "--concurrency", 50, "--quality", "lossless", "--top", 1)
    base = document(run, "advise", MODEL, *DEPLOYMENT, *LENGTHS, *asked)
    assert base["figures"]["goodput"] == pytest.approx(alike["requests_per_s"] / 4, rel=1e-9)
    assert base["figures"]["tpot"] == alike["tpot_s"]["p95"]
    assert alike["output_tokens_per_s"] == pytest.approx(served["output_tokens_per_s"], rel=0.1)


def test_analyze_says_that_its_batch_is_static_and_names_the_command_that_serves(run, served) -> None:
    asked = ("analyze", MODEL, *DEPLOYMENT, *LENGTHS)
    (note,) = document(run, *asked, "--batch", 50)["notes"]
    said, command = note.split("Under load: ")
    assert said == "a static batch: all 50 prompts are prefilled at once. "
    assert document(run, *shlex.split(command)[1:])["points"] == [served]
    assert "Under load: roofline serve" in text(run, *asked, "--batch", 50)
    for batch in (("--batch", 1), ("--batch", 2, "--prompt", 16)):
        assert "static batch" not in text(run, *asked, *batch)


@pytest.mark.parametrize(
    ("question", "deployment", "options", "names"),
    sampled(
        [
            ("max-batch", (*DEPLOYMENT, *LENGTHS), LIMITS, "solve max-concurrency"),
            ("min-gpus", ("--hw", "h200-sxm", "--quant", "fp8", *LENGTHS), ("--batch", 50, *LIMITS), "size"),
            ("max-context", (*DEPLOYMENT, "--generate", 512), ("--batch", 50, "--ttft", "2s"), "serve"),
        ],
        1,
    ),
)
def test_solve_says_that_its_batch_is_static_and_names_the_command_that_serves(
    run, question, deployment, options, names
) -> None:
    asked = ("solve", question, MODEL, *deployment, *options)
    out = text(run, *asked)
    assert "A static batch: all prompts are prefilled at once. Under load:" in out
    command = document(run, *asked)["under_load"]
    assert re.match(f"roofline {names} {MODEL} ", command)
    status, _, err = run(*shlex.split(command)[1:])
    assert (status, err) == (0, "")
    assert "static batch" not in text(run, "solve", question, MODEL, *deployment)
