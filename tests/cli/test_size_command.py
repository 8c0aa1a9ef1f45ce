"""`roofline size`: summary, line widths, documents and user errors."""

import json
import re
import sys

import pytest

from roofline.advisor.search.goal import usd_per_hour
from roofline.advisor.sizing import sizing

ASKED = ("size", "llama-3.1-8b", "--rate", 5, "--prompt", 2000, "--generate", 300, "--ttft", "2s", "--tpot", "50ms")
FEW = ("--hw", "l40s,h100-sxm,a100-pcie-80gb")
SIZED: dict[tuple[str, ...], sizing.Sizing] = {}
"""What was found, by the command but its format: each is searched once."""


@pytest.fixture(autouse=True)
def searched_once(monkeypatch) -> None:
    search = sizing.size

    def size(*asked, **options):
        command = tuple(word for word in sys.argv if word not in ("--format", "json"))
        if command not in SIZED:
            SIZED[command] = search(*asked, **options)
        return SIZED[command]

    monkeypatch.setattr(sizing, "size", size)


def test_summary_comes_first_and_lines_fit_100_columns(run) -> None:
    status, out, err = run(*ASKED, *FEW)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("size: llama-3.1-8b for 5 requests/s, 2000 + 300 tokens, within TTFT 2 s and TPOT 50")
    assert lines[1].startswith("cheapest: ")
    assert "USD/h (p95: TTFT " in lines[1]
    assert any(line.startswith("fewest: ") for line in lines[2:4])
    shown = [line for line in lines if "roofline serve" not in line]
    assert max(len(line.rstrip()) for line in shown) <= 100
    for word in ("TTFT:", "TPOT:", "tp:", "pp:", "awq:", "fp8:", "J/token:", "running:", "load:"):
        assert out.count(f"{word} ") >= 1


def test_json_document_is_complete(run) -> None:
    status, out, _ = run(*ASKED, *FEW, "--format", "json")
    assert status == 0
    document = json.loads(out)
    assert document["schema"] == "roofline.size/2"
    assert [choice["objective"] for choice in document["choices"]] == ["cheapest", "fewest", "fastest", "efficient"]
    for choice in document["choices"]:
        best = choice["best"]
        assert best["devices"] == best["replicas"] * best["devices_per_replica"]
        assert 0 < best["utilisation"] < 1
        assert best["tpot_s"]["p95"]["low"] <= best["tpot_s"]["p95"]["mid"] <= 0.05
        assert best["ttft_s"]["p50"]["mid"] <= best["ttft_s"]["p95"]["mid"] <= 2
        assert best["command"].startswith("roofline serve llama-3.1-8b --hw ")
        assert choice["changes"]
    cheapest = document["choices"][0]
    assert {cheapest["best"]["hardware"], cheapest["runner_up"]["hardware"]} <= {"l40s", "h100-sxm", "a100-pcie-80gb"}


@pytest.mark.slow
def test_energy_per_token_has_its_reading(run) -> None:
    status, out, _ = run(*ASKED, "--hw", "h100-sxm,a100-pcie-80gb,l40s", "--quality", "lossless")
    assert status == 0
    efficient = next(line for line in out.splitlines() if line.startswith("efficient: "))
    best = re.search(r"at most 0\.4 J/token, (0\.\d+) modelled", efficient)
    assert best is not None
    less = re.search(r"by modelled energy h100-sxm is better: (0\.\d+) against (0\.\d+) J/token", out)
    assert less is not None
    assert float(less[1]) < float(less[2]) == float(best[1])
    _, out, _ = run(*ASKED, "--hw", "h100-sxm,l40s", "--format", "json")
    for choice in json.loads(out)["choices"]:
        for setup in (choice["best"], choice["runner_up"]):
            modelled, most = (setup[f"joules_per_token_{reading}"] for reading in ("modelled", "tdp"))
            assert (modelled is None) == (setup["hardware"] == "l40s")
            assert modelled is None or modelled < most
        assert choice["runner_up_has_lower_modelled_energy"] is False


@pytest.mark.slow
def test_deployments_on_the_same_hardware_are_distinguished(run) -> None:
    asked = ("llama-3.1-70b", "--rate", 0.001, *ASKED[4:], "--hw", "h100-sxm")
    status, out, _ = run("size", *asked)
    assert status == 0
    cheapest = (
        "cheapest: 1 x h100-sxm, awq, 3.94 USD/h (p95: TTFT 1.1 s, TPOT 24 ms); tied with 1 x h100-sxm, awq, KV fp8"
    )
    assert cheapest in " ".join(out.split())
    changes = out[out.index("What changes") : out.index("Commands that")]
    assert "cheapest: h100-sxm (awq) needs more replicas" in changes
    for word in ("is the choice below", "against", "h100-sxm is", "h100-sxm needs"):
        assert word not in changes
    document = json.loads(run("size", *asked, "--format", "json")[1])
    assert [choice["differs"] for choice in document["choices"]] == [["formats"]] * 4
    for choice in document["choices"]:
        assert not {change["what"] for change in choice["changes"]} & {"price", "price_ratio"}


@pytest.mark.slow
def test_parallelism_is_shown_if_it_differs(run) -> None:
    asked = ("size", "llama-3.1-8b", "--rate", 300, *ASKED[4:], "--hw", "l4", "--quality", "lossless")
    status, out, _ = run(*asked)
    assert status == 0
    told = " ".join(out.split())
    for choice in json.loads(run(*asked, "--format", "json")[1])["choices"]:
        assert "parallelism" in choice["differs"]
        assert "hardware" not in choice["differs"]
        best, other = choice["best"], choice["runner_up"]
        verb = "misses" if choice["objective"] == "fastest" else "needs more replicas for"
        assert f"{choice['objective']}: l4 ({best['parallelism']}) {verb} a target" in told
        assert (
            f"{choice['objective']}: {best['devices']} x l4 {best['parallelism']} ({best['replicas']} replicas)" in told
        )
        assert f"tied with {other['devices']} x l4 {other['parallelism']} ({other['replicas']} replicas), bf16" in told


@pytest.mark.slow
def test_a_tail_beyond_the_context_is_noted(run) -> None:
    asked = ("size", "llama-3.1-8b", "--rate", 1, "--hw", "h100-sxm", "--quality", "lossless", "--prompt")
    status, out, _ = run(*asked, "lognormal:mean=20000,p95=60000")
    assert status == 0
    assert re.search(r"note: 0\.\d+% of requests exceed the maximum context", out)
    _, out, _ = run(*asked, "lognormal:mean=2000,p95=6000")
    assert "maximum context" not in out
    document = json.loads(run(*asked, "lognormal:mean=20000,p95=60000", "--format", "json")[1])
    assert 1e-3 < document["beyond_context"] < 0.01
    assert document["max_context"] == 131072


@pytest.mark.slow
def test_many_replicas_fit_100_columns(run) -> None:
    asked = ("--rate", 20, "--prompt", 3000, "--generate", 500, "--ttft", "4s", "--tpot", "50ms")
    status, out, _ = run("size", "deepseek-v3", *asked, "--hw", "h100-sxm,b200-sxm", "--quality", "lossless")
    assert status == 0
    assert "replicas of 8)" in out
    assert max(len(line.rstrip()) for line in out.splitlines() if "roofline serve" not in line) <= 100


def test_too_little_memory_lists_tried_configurations(run) -> None:
    status, out, _ = run("size", "deepseek-v3", "--hw", "rtx-4090")
    assert status == 0
    assert "no deployment fits in memory" in out


@pytest.mark.slow
def test_markdown_and_one_user(run) -> None:
    status, out, _ = run("size", "llama-2-13b", "--prompt", 200, "--generate", 1000, "--format", "markdown")
    assert status == 0
    assert out.startswith("# size: llama-2-13b for one user, 200 + 1000 tokens")
    assert "- best value: " in out


def test_unreachable_targets_have_a_result(run) -> None:
    status, out, _ = run(*ASKED[:-1], "1ms", "--hw", "h100-sxm,l4")
    assert status == 0
    assert "TPOT is binding: the target is 1.000 ms, the lowest feasible " in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rate", "0"], "rate must be between"),
        (["--prompt", "many"], "prompt is a number of tokens"),
        (["--hw", "h100-sxn"], "did you mean 'h100-sxm'?"),
        (["--price", "h100-sxm"], "a price is written NAME=USD"),
        (["--quantile", "some"], "the quantile must be 0.5, 0.95, 0.99 or mean"),
        (["--ttft", "2"], "takes a time with its unit, got '2': write 2ms or 2s"),
        (["--prompt", "uniform:100:250000"], "prompts of uniform:52:130000, 0.52 times as long, would do"),
    ],
)
def test_user_errors_are_one_sentence(options, said, run) -> None:
    status, out, err = run("size", "llama-3.1-8b", *options)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    status, _, err = run("size", "bert-base")
    assert status == 2
    assert "only encodes: say how many requests/s" in err


@pytest.mark.slow
def test_degrees_and_formats_can_be_told(run) -> None:
    told = ("--hw", "h200-sxm", "--tp", 8, "--ep", 8, "--quant", "fp8")
    status, out, _ = run("size", "qwen3-235b-a22b", "--rate", 1, *told, "--format", "json")
    assert status == 0
    for choice in json.loads(out)["choices"]:
        command = choice["best"]["command"]
        assert all(flag in command for flag in ("--tp 8", "--ep 8", "--quant fp8"))


@pytest.mark.slow
def test_techniques_and_settings_of_the_engine_can_be_told(run) -> None:
    told = ("--hw", "h100-sxm", "--with", "eagle-3", "--max-num-seqs", 64, "--enforce-eager")
    status, out, _ = run(*ASKED, *told, "--format", "json")
    assert status == 0
    for choice in json.loads(out)["choices"]:
        command = choice["best"]["command"]
        assert all(flag in command for flag in ("--with eagle-3", "--max-num-seqs 64", "--enforce-eager"))


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (("--tp", 3), "tensor parallelism of 3 does not divide the 64 attention heads of llama-3.1-70b (--tp)"),
        (("--ep", 3, "--tp", 2), "3 expert-parallel devices are not divisible by 2 tensor-parallel ones (--ep, --tp)"),
        (("--ep", 8), "has no experts"),
        (("--quant", "w3z"), "unknown quantization scheme 'w3z'"),
    ],
)
def test_degrees_and_formats_that_cannot_be(run, told, message: str) -> None:
    status, _, err = run("size", "llama-3.1-70b", "--rate", 1, "--hw", "b200-sxm", *told)
    assert status == 2
    assert message in err


def test_a_budget_limits_the_rent_of_all_devices(run) -> None:
    asked = ("size", "llama-3.1-8b", "--rate", 5, "--hw", "l4,l40s,h100-sxm")
    _, out, _ = run(*asked, "--format", "json")
    free = json.loads(out)["choices"]
    cheapest = next(each["best"]["usd"] for each in free if each["objective"] == "cheapest")
    status, out, err = run(*asked, "--budget", f"{1.01 * cheapest}/h", "--format", "json")
    assert status == 0, err
    assert all(each["best"]["usd"] <= 1.01 * cheapest for each in json.loads(out)["choices"])
    _, out, _ = run("size", "llama-3.1-8b", "--users", 1, "--hw", "l4", "--budget", "3000")
    assert "3,000 USD/h" in out  # and not 3,000 USD to buy it
    status, _, err = run(*asked, "--budget", f"{0.9 * 730 * cheapest}/month")
    assert (status, "nothing within" in err) == (2, True)


def test_a_budget_of_all_devices_pays_for_them(run) -> None:
    """In binary 6 x 0.14 is more than 0.84, and 1.17 / 0.39 less than 3; the fastest has as many as it pays for."""
    price = ("size", "llama-3.1-8b", "--hw", "rtx-3060", "--price", "rtx-3060=0.14", "--rate", 24)
    status, out, err = run(*price, "--budget", "0.84/h")
    assert (status, err) == (0, "")
    assert "cheapest: 6 x rtx-3060" in out
    asked = ("size", "llama-3.1-8b", "--hw", "rtx-4090", "--price", "rtx-4090=0.39", "--rate", 80, "--budget", "1.17/h")
    assert "fastest: 3 x rtx-4090" in run(*asked)[1]


def test_a_budget_needs_prices(run) -> None:
    status, _, err = run("size", "llama-3.1-8b", "--rate", 1, "--hw", "m4-max", "--budget", "10/h")
    assert (status, "(--price)" in err) == (2, True)


@pytest.mark.parametrize("budget", ["0", "-5", "12,50/h", "20/year"])
def test_a_budget_that_is_none_is_refused(run, budget: str) -> None:
    """A decimal comma is not one of thousands, and nothing is not no limit."""
    status, _, err = run("size", "llama-3.1-8b", "--rate", 5, "--hw", "l4", f"--budget={budget}")
    assert (status, "(--budget)" in err) == (2, True)


@pytest.mark.parametrize("budget", ["$1,460/month", "USD 48/day", "2e0/h", "2"])
def test_a_budget_has_a_currency_thousands_and_a_unit_of_time(budget: str) -> None:
    assert usd_per_hour(budget) == pytest.approx(2)
