"""`roofline serve`: curves, formats, traces, and user errors."""

import csv
import json
from typing import Any

import pytest

from tests.cases import sampled

ASKED = ("serve", "llama-3.1-8b", "--hw", "h100-sxm", "--prompt", 1000, "--generate", 200)


def test_a_curve_has_a_line_for_each_concurrency(run) -> None:
    status, out, err = run(*ASKED, "--concurrency", "1:64:log4")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if line.strip()[:1].isdigit()][:4] == ["1", "4", "16", "64"]
    assert "TTFT" in out
    assert "tok/s/user" in out


@pytest.mark.parametrize("prompt", sampled([10, 1000, 100_000, 200_000], 2))
def test_json_has_every_statistic_with_its_interval(run, prompt) -> None:
    status, out, _ = run(*ASKED, "--prompt", prompt, "--rate", "0.03/s", "--ttft", "60s", "--format", "json")
    assert status == 0
    document = json.loads(out)
    assert document["schema"] == "roofline.serve/1"
    (point,) = document["points"]
    for latency in ("ttft_s", "tpot_s", "e2e_s"):
        for statistic in ("mean", "p50", "p95", "p99"):
            found = point[latency][statistic]
            assert 0 < found["low"] <= found["mid"] <= found["high"]
    assert 0 < point["goodput_requests_per_s"] <= 1
    assert point["usd_per_million_tokens"] > 0


@pytest.mark.parametrize(
    "more",
    sampled(
        [
            "--with medusa --prompt 512 --generate 128 --rate 10.2",
            "--with eagle-2 --chunk 64 --rate 0.1,1 --prompt 512",
            "--with eagle-2 --chunk 2 --concurrency 1,5",
            "--chunk 1 --concurrency 1",
            "--chunk 1 --rate 0.01",
            "--chunk 8 --rate 0.5,1,2 --prompt 512",
        ],
        1,
    ),
)
def test_steps_with_little_room_for_prompts(run, more) -> None:
    status, out, err = run("serve", "llama-3.2-1b", "--hw", "rtx-4090", *more.split(), "--format", "json")
    assert (status, err) == (0, "")
    assert json.loads(out)["points"][0]["ttft_s"]["mean"]["mid"] > 0


def test_one_token_has_no_tpot(run) -> None:
    status, out, _ = run("serve", "llama-3.2-1b", "--hw", "h100-sxm", "--generate", 1, "--rate", "1,1000")
    assert status == 0
    few, many = (line.split() for line in out.splitlines() if line.startswith((" 1 ", " 1000 ")))
    assert "-" in few
    assert "unbounded" in many
    assert "interval of the mean TPOT" not in out
    status, out, _ = run("serve", "llama-3.2-1b", "--hw", "h100-sxm", "--generate", 1, "--format", "json")
    assert {point["tpot_s"]["mean"]["mid"] for point in json.loads(out)["points"]} == {None}
    status, _, err = run("plot", "frontier", "llama-3.2-1b", "--hw", "h100-sxm", "--generate", 1, "-o", "a.svg")
    assert (status, "at least two generated tokens" in err) == (2, True)


def test_few_sequences_whose_random_lengths_do_not_fit(run) -> None:
    more = ("--prompt", 100, "--generate", 300, "--rate", 0.1)
    assert run("serve", "llama-2-7b", "--hw", "rtx-4080", *more)[0] == 0


@pytest.mark.parametrize("text", ["1e300,1", "1e10,1", "5,nan", "5"])
def test_lengths_that_no_sequence_has(run, tmp_path, text) -> None:
    (tmp_path / "l.csv").write_text(f"length,count\n{text}\n5,2\n")
    status, _, err = run("serve", "llama-3.2-1b", "--hw", "h100-sxm", "--prompt", tmp_path / "l.csv")
    assert (status, "is not length,count" in err) == (2, True)
    assert "Warning" not in err


def test_a_price_of_nothing_is_none(run) -> None:
    for command in (("analyze",), ("serve", "--concurrency", 1), ("advise", "--objective", "cost")):
        name, *more = command
        status, _, err = run(name, "llama-3.2-1b", "--hw", "a6000", *more, "--price", 0)
        assert (status, err) == (2, "roofline: --price must be between 0.0001 and 1000000, got '0'\n")


@pytest.mark.slow
def test_advice_on_goodput_with_speculation(run) -> None:
    status, out, err = run("advise", "llama-3.2-1b", "--hw", "rtx-4090", "--objective", "goodput", "--format", "json")
    assert (status, err) == (0, "")
    assert json.loads(out)["recommendations"]


def test_notes_of_the_longest_request_are_printed(run) -> None:
    asked = (*ASKED, "--concurrency", 2, "--engine", "vllm@0.31")
    _, out, _ = run(*asked, "--prompt", "uniform:1000:140000")
    assert "tokens (prompt + output), not" in out
    assert "note: vLLM 0.31: the profile is the newest one" in out
    assert "maximum context" not in run(*asked)[1]


def test_csv_and_markdown(run) -> None:
    status, out, _ = run(*ASKED, "--concurrency", "4,8", "--format", "csv")
    assert status == 0
    header, *rows = out.splitlines()
    assert header.startswith("concurrency,stable,ttft_mean_s")
    assert len(rows) == 2
    assert run(*ASKED, "--concurrency", 4, "--format", "markdown")[1].startswith("# llama-3.1-8b on 1 h100-sxm")


def test_a_rate_beyond_saturation_is_answered_with_the_largest(run) -> None:
    status, out, _ = run(*ASKED, "--rate", "1,500")
    assert status == 0
    assert "500/s: above " in out
    assert run(*ASKED, "--rate", 500, "--format", "json")[0] == 0


def test_simulations_are_reproducible(run) -> None:
    asked = (*ASKED, "--rate", 5, "--simulate", 200, "--format", "json")
    assert run(*asked)[1] == run(*asked)[1]
    assert run(*asked)[1] != run(*asked, "--seed", 1)[1]


def test_a_trace_and_an_offline_batch(run, tmp_path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt,output\n0,100,10\n1,300,20\n")
    status, out, _ = run("serve", "llama-3.1-8b", "--hw", "h100-sxm", "--trace", path, "--format", "json")
    assert status == 0
    assert json.loads(out)["points"][0]["requests"] == 2
    assert run(*ASKED, "--offline", 50)[0] == 0


def test_engine_policies_apply(run) -> None:
    def ttft(*options):
        out = run(*ASKED, "--concurrency", 64, "--format", "json", *options)[1]
        return json.loads(out)["points"][0]["ttft_s"]["mean"]["mid"]

    assert ttft("--chunk", 64) > ttft()
    assert ttft("--prefix-hits", 0.9) < ttft()
    assert ttft("--sequences", 8) > ttft()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--concurrency", 4, "--rate", 1),
            "a load is one of concurrency, rate, offline and trace, got concurrency and rate",
        ),
        (("--rate", "fast"), "rate takes a number, got 'fast'"),
        (("--concurrency", 4, "--prefix-hits", 1), "--prefix-hits must be at least 0 and below 1"),
        (("--concurrency", 4, "--simulate", 0), "simulate must be between 1 and"),
        (("--concurrency", 4, "--prompt", "nan"), "prompt must be 1 to"),
        (("--trace", "none.csv"), "cannot be read"),
    ],
)
def test_user_errors_are_one_sentence(run, options, message) -> None:
    status, out, err = run(*ASKED, *options)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_prefill_and_decode_apart(run) -> None:
    asked = (*ASKED, "--rate", "2,6", "--disaggregation", "prefills=1,decodes=2,decode=h200-sxm,tp=2")
    status, out, err = run(*asked)
    assert (status, err) == (0, "")
    assert "Apart: prefill 1 x 1 h100-sxm, decode 2 x 2 h200-sxm; KV cache of a mean prompt over network" in out
    document = json.loads(run(*asked, "--format", "json")[1])
    assert document["devices"] == 5
    assert document["disaggregation"]["decode"] == {"replicas": 2, "devices": 4, "hardware": "h200-sxm"}
    simulated = json.loads(run(*asked, "--simulate", 500, "--format", "json")[1])
    for quick, slow in zip(document["points"], simulated["points"], strict=True):
        assert quick["tpot_s"]["mean"]["mid"] == pytest.approx(slow["tpot_s"]["mean"]["mid"], rel=0.1)
    assert run(*ASKED, "--rate", 2, "--with", "disaggregation")[0] == 0
    status, _, err = run(*ASKED, "--rate", 2, "--disaggregation", "prefill=1")
    assert (status, err.count("\n")) == (2, 1)


def test_axes_serve_one_load_on_each_deployment(run) -> None:
    asked = ("serve", "llama-3.1-8b", "--concurrency", "8,32", "--generate", 200)
    axes = ("--over", "hw=l40s,h100-sxm", "--over", "prompt=500,1k")
    status, out, err = run(*asked, *axes, "--format", "json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "roofline.serve-sweep/1"
    for found in document["deployments"]:
        hardware, prompt = found["axes"].values()
        alone = json.loads(run(*asked, "--hw", hardware, "--prompt", prompt, "--format", "json")[1])
        assert found == {"axes": found["axes"], **alone}
    rows = list(csv.DictReader(run(*asked, *axes, "--format", "csv")[1].splitlines()))
    assert [(row["hw"], row["prompt"], row["concurrency"]) for row in rows] == [
        (hardware, prompt, users)
        for hardware in ("l40s", "h100-sxm")
        for prompt in ("500", "1000")
        for users in ("8.0", "32.0")
    ]
    assert float(rows[3]["tpot_p95_s"]) == document["deployments"][1]["points"][1]["tpot_s"]["p95"]["mid"]


def test_deployments_that_cannot_serve_are_told_apart(run) -> None:
    asked = ("serve", "llama-3.1-70b", "--hw", "h100-sxm", "--concurrency", 8)
    status, out, _ = run(*asked, "--over", "tp=1,4")
    assert status == 0
    assert "Not served\ntp 1: llama-3.1-70b does not fit" in out
    status, out, err = run(*asked, "--over", "tp=1")
    assert (status, out) == (2, "")
    assert "no combination of the axes can be served: llama-3.1-70b does not fit" in err
    for axis, said in (
        ("batch=1,2", "batch is no option of a load"),
        ("tp", "cannot read the axis"),
        ("tp=x", "tp takes a whole number"),
        ("size=1", "unknown option"),
    ):
        status, _, err = run(*asked, "--over", axis)
        assert status == 2
        assert said in err


@pytest.mark.parametrize("how", [(), ("--simulate", 400)])
def test_data_parallel_ranks_without_experts_do_not_wait_for_each_other(run, how) -> None:
    """Four replicas with 64 requests are one with 16, four times; MoE ranks that share experts run in lockstep."""

    def point(*options: object) -> dict[str, Any]:
        status, out, err = run(*ASKED, *options, *how, "--format", "json")
        assert (status, err) == (0, "")
        return json.loads(out)["points"][0]

    four, one = point("--dp", 4, "--concurrency", 64), point("--concurrency", 16)
    for latency in ("ttft_s", "tpot_s", "e2e_s"):
        assert four[latency]["mean"] == pytest.approx(one[latency]["mean"])
    for name in ("requests_per_s", "output_tokens_per_s", "running"):
        assert four[name] == pytest.approx(4 * one[name])
    assert four["kv_use"] == pytest.approx(one["kv_use"])
    assert four["output_tokens_per_s_per_device"] == pytest.approx(one["output_tokens_per_s_per_device"])


def served(run, *more: object) -> dict[str, Any]:
    """The document of `serve`, without what was written of the load."""
    status, out, err = run(*ASKED, *more, "--format", "json")
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


LOADS = (("--concurrency", 64), ("--rate", 2), ("--rate", 2, "--simulate", 50), ("--offline", 50))


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_max_num_seqs_is_sequences(run, load) -> None:
    limited = served(run, *load, "--max-num-seqs", 4)
    assert limited == served(run, *load, "--sequences", 4)
    assert limited["scheduler"]["sequences"] == 4
    assert limited["points"] != served(run, *load)["points"]


def test_limits_hold_for_pools_ranks_and_axes(run) -> None:
    apart = ("--disaggregation", "prefills=1,decodes=1", "--rate", 1)
    assert served(run, *apart, "--max-num-seqs", 4) == served(run, *apart, "--sequences", 4)
    ranks = ("--dp", 2, "--concurrency", 64)
    assert served(run, *ranks, "--max-num-seqs", 4) == served(run, *ranks, "--sequences", 4)
    status, out, _ = run(*ASKED, "--concurrency", 64, "--over", "max_num_seqs=4,64", "--format", "csv")
    assert status == 0
    few, many = csv.DictReader(out.splitlines())
    assert float(few["ttft_mean_s"]) > 2 * float(many["ttft_mean_s"])


def test_gpu_memory_utilization_is_the_room_of_the_kv_cache(run) -> None:
    rooms = [
        served(run, "--concurrency", 300, *more)["scheduler"]["kv_tokens"]
        for more in ((), ("--gpu-memory-utilization", "0.92"), ("--gpu-memory-utilization", "0.4"))
    ]
    assert rooms[0] == rooms[1] > 4 * rooms[2] > 0
    as_asked = ("--engine", "vllm", "--quant", "fp8", "--kv", "bf16")
    status, _, err = run(*ASKED, *as_asked, "--concurrency", 1, "--gpu-memory-utilization", "0.1")
    assert (status, "does not fit" in err) == (2, True)


def test_max_model_len_limits_the_requests_of_the_load(run, tmp_path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,50\n1,300,60\n")
    asked = ("serve", "llama-3.1-8b", "--hw", "h100-sxm", "--max-model-len")
    assert run(*asked, 360, "--trace", trace)[0] == 0
    assert run(*asked, 120, "--prompt", 100, "--generate", 20, "--rate", 1)[0] == 0
    for more in ((359, "--trace", trace), (119, "--prompt", 100, "--generate", 20, "--rate", 1), (600, "--rate", 1)):
        status, out, err = run(*asked, *more)
        assert (status, out, "--max-model-len" in err) == (2, "", True)
    status, _, err = run("serve", "llama-3.1-8b", "--hw", "l4", "--max-model-len", "128K", "--rate", 1)
    assert (status, "vllm does not start" in err) == (2, True)


def test_two_limits_of_the_sequences_are_refused(run) -> None:
    status, out, err = run(*ASKED, "--sequences", 4, "--max-num-seqs", 8)
    assert (status, out) == (2, "")
    assert "--sequences" in err
    assert "--max-num-seqs" in err
