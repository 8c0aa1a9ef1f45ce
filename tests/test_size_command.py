"""`roofline size`: the answer first, in 100 columns; documents, mistakes."""

import json

import pytest

ASKED = ("size", "llama-3.1-8b", "--rate", 5, "--prompt", 2000, "--generate", 300, "--ttft", "2s", "--tpot", "50ms")
FEW = ("--hw", "l40s,h100-sxm,a100-pcie-80gb")


def test_the_first_lines_answer_and_all_fits_in_100_columns(run) -> None:
    status, out, err = run(*ASKED, *FEW)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "size: llama-3.1-8b for 5 requests/s, 2000 + 300 tokens"
    assert lines[1].startswith("cheapest: ")
    assert lines[1].rstrip(")").endswith("USD/h") or "a tie" in lines[1]
    assert lines[2].startswith("fewest: ")
    shown = [line for line in lines if "roofline analyze" not in line]
    assert max(len(line.rstrip()) for line in shown) <= 100
    for word in ("TTFT:", "TPOT:", "tp:", "pp:", "awq:", "fp8:", "J/token:", "as modelled:", "batch:", "load:"):
        assert out.count(f"{word} ") >= 1


def test_the_json_document_holds_all(run) -> None:
    status, out, _ = run(*ASKED, *FEW, "--format", "json", "--price", "l40s=0.9")
    assert status == 0
    document = json.loads(out)
    assert document["schema"] == "roofline.size/1"
    assert [choice["aim"] for choice in document["choices"]] == ["cheapest", "fewest", "fastest", "efficient"]
    for choice in document["choices"]:
        best = choice["best"]
        assert best["devices"] == best["replicas"] * best["devices_per_replica"]
        assert 0 < best["utilisation"] < 1
        assert best["tpot_s"]["low"] <= best["tpot_s"]["mid"] <= 0.05
        assert best["command"].startswith("roofline analyze llama-3.1-8b --hw ")
        assert choice["changes"]
    cheapest = document["choices"][0]
    assert {cheapest["best"]["hardware"], cheapest["runner_up"]["hardware"]} <= {"l40s", "h100-sxm", "a100-pcie-80gb"}


def test_joules_a_token_say_which_reading_they_are(run) -> None:
    status, out, _ = run(*ASKED, "--hw", "h100-sxm,a100-pcie-80gb,l40s")
    assert status == 0
    efficient = next(line for line in out.splitlines() if line.startswith("efficient: "))
    assert "at most 0.4 J/token, 0.34 as modelled" in efficient
    table = out[out.index("Joules a token") : out.index("What would change")]
    assert table.split()[3:9] == ["devices", "formats", "as", "modelled", "at", "most"]
    assert "as modelled h100-sxm draws less, 0.29 against 0.34 J/token" in out
    _, out, _ = run(*ASKED, "--hw", "h100-sxm,l40s", "--format", "json")
    for choice in json.loads(out)["choices"]:
        for setup in (choice["best"], choice["runner_up"]):
            modelled, most = (setup[f"joules_per_token_{reading}"] for reading in ("modelled", "at_most"))
            assert (modelled is None) == (setup["hardware"] == "l40s")
            assert modelled is None or modelled < most
        assert choice["otherwise_modelled"] is False


def test_many_replicas_are_told_in_100_columns(run) -> None:
    asked = ("--rate", 20, "--prompt", 3000, "--generate", 500, "--ttft", "4s", "--tpot", "50ms")
    status, out, _ = run("size", "deepseek-v3", *asked, "--hw", "h100-sxm,b200-sxm,a100-sxm-80gb")
    assert status == 0
    assert "replicas of 8)" in out
    assert max(len(line.rstrip()) for line in out.splitlines() if "roofline analyze" not in line) <= 100


def test_too_little_memory_says_what_was_tried(run) -> None:
    status, out, _ = run("size", "deepseek-v3", "--hw", "rtx-4090")
    assert status == 0
    assert "divided over as many devices as are offered" in out


def test_markdown_and_one_user(run) -> None:
    status, out, _ = run("size", "llama-2-13b", "--prompt", 200, "--generate", 1000, "--format", "markdown")
    assert status == 0
    assert out.startswith("# size: llama-2-13b for one user, 200 + 1000 tokens")
    assert "- best value: " in out


def test_what_cannot_be_met_is_an_answer(run) -> None:
    status, out, _ = run(*ASKED[:-1], "1ms", "--hw", "h100-sxm,l4")
    assert status == 0
    assert "TPOT binds: 1.000 ms is asked for, the nearest that can be met is" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rate", "0"], "the request rate must be above 0"),
        (["--prompt", "many"], "the prompt is a number of tokens"),
        (["--generate", "uniform:5"], "the generation: a uniform distribution is uniform:LOW:HIGH"),
        (["--hw", "h100-sxn"], "did you mean 'h100-sxm'?"),
        (["--hw", ""], "no hardware to choose from"),
        (["--price", "h100-sxm"], "a price is written NAME=USD"),
        (["--price", "h100-sxn=3"], "unknown hardware"),
        (["--quantile", "some"], "the quantile is a share such as 0.95, or mean"),
        (["--engine", "vlm"], "unknown engine"),
        (["--ttft", "2"], "no unit"),
    ],
)
def test_mistakes_are_told_in_a_sentence(options, said, run) -> None:
    status, out, err = run("size", "llama-3.1-8b", *options)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    status, _, err = run("size", "bert-base", "--rate", 1)
    assert status == 2
    assert "only encodes" in err
