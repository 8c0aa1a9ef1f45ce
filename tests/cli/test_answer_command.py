"""`roofline MODEL HW`: what people type, without the name of a command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from roofline.reports.documents.answer import LINES
from tests.cases import sampled

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    "words",
    sampled(
        [
            "llama-3.3-70b 2x4090",
            "llama-3.3-70b 2x 4090",
            "llama-3.3-70b 4090 x2",
            "llama-3.3-70b --hw 2x4090",
            "--hw 2x4090 llama-3.3-70b",
            "answer llama-3.3-70b 2xRTX-4090",
            "meta-llama/Llama-3.3-70B-Instruct 2xrtx-4090",
        ],
        1,
    ),
)
def test_a_count_before_hardware_is_a_count(run: Run, words: str) -> None:
    status, out, err = run(*words.split())
    assert (status, err) == (0, "")
    assert out.startswith("Yes: llama-3.3-70b runs on 2 x rtx-4090, ")


def test_of_words_beside_hardware_the_model_is_unknown(run: Run) -> None:
    assert "unknown model 'glm 4.6 air'" in run("glm", "4.6", "air", "h100")[2]


@pytest.mark.parametrize("words", ["2x4090 llama-3.3-70b", "Llama 3.3 70B 2x4090", "two 4090s Llama 3.3 70B"])
def test_the_order_of_words_and_blanks_in_them_do_not_matter(run: Run, words: str) -> None:
    status, out, err = run(*words.split())
    assert status == 0
    assert err.startswith("roofline: read as ")
    assert out.startswith("Yes: llama-3.3-70b runs on 2 x rtx-4090, ")


def test_a_file_type_of_gguf_runs_in_llama_cpp(run: Run) -> None:
    assert ", q4_k_m on llama.cpp, " in run("qwen3-32b", "3090", "--quant", "Q4_K_M")[1]


def test_the_document_has_what_is_printed(run: Run) -> None:
    words = ("llama-3.1-8b", "l40s", "--users", 50, "--tpot", "30ms")
    found: dict[str, Any] = json.loads(run(*words, "--format", "json")[1])
    assert run(*words)[1].split() == " ".join(found["lines"]).split()
    assert list(found["missed"]) == ["tpot"]
    assert found["decode_tokens_per_s_per_user"]["mid"] == pytest.approx(1 / found["tpot_s"]["p50"]["mid"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("analize", "llama-3.1-8b", "--hw", "l4"), "Did you mean 'analyze'"),
        (("llama-3.1-8b",), "hardware is missing"),
        (("llama-3.1-8b", "l4", "--hw", "l40s"), "the hardware is given twice"),
        (("compare", "llama-3.1-8b", "--hw", "l4,h100"), "a scenario is in quotation marks"),
        (("llama-3.1-8b", "l4", "--users", "3", "--rate", "2"), "two loads"),
        (("sweep", "llama-3.1-8b", "--hw", "l4", "--over", "batch=1", "--where", "tpot < 5"), "write 5ms or 5s"),
    ],
)
def test_mistakes_are_explained_in_a_sentence(run: Run, words: tuple[str, ...], told: str) -> None:
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert told in err


@pytest.mark.slow
def test_the_usual_variant_is_said(run: Run) -> None:
    status, out, err = run("llama-3.1-8b", "8xH100")
    assert status == 0
    assert "8 x h100-sxm" in out
    assert err == "roofline: '8xH100' is taken as 8 x h100-sxm, as most are (not h100-pcie)\n"
    assert run("llama-3.1-8b", "8xH200")[2] == ""


def test_help_has_ten_options_first_and_all_on_request(run: Run) -> None:
    _, short, _ = run("serve", "--help")
    _, long, _ = run("serve", "--help-all")
    flags = short.partition("Most used:")[2].partition("\n\n")[0].split("\n  --")[1:]
    assert [f"--{flag.split()[0]}" for flag in flags] == [
        *("--hw", "--concurrency", "--rate", "--prompt", "--generate", "--ttft", "--tpot", "--quant", "--tp"),
        "--engine",
    ]
    assert "--help-all" in short
    assert "--expert-skew" not in short
    assert "--expert-skew" in long


def test_several_kinds_of_hardware_and_none_are_pointed_elsewhere(run: Run) -> None:
    status, _, err = run("qwen3-32b", "h100", "vs", "b200")
    assert (status, "roofline compare qwen3-32b h100 b200" in err) == (2, True)
    status, out, _ = run("compare", "qwen3-32b", "h100", "b200")
    assert (status, "Verdict" in out) == (0, True)
    assert "is hardware" in run("h100")[2]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (("--fp8",), "--quant fp8"),
        (("--rps", "5"), "--rate"),
        (("--ctx", "4k"), "--context"),
        (("--draft", "llama-3.2-1b"), "--with"),
        (("--batch", "8"), "--users"),
        (("--budget", "9"), "roofline size"),
    ],
)
def test_options_by_other_names_are_told(run: Run, option: tuple[str, ...], told: str) -> None:
    status, _, err = run("llama-3.1-8b", "h100-sxm", *option)
    assert (status, told in err) == (2, True)


def test_a_family_of_instances_names_its_types(run: Run) -> None:
    _, _, err = run("llama-3.1-8b", "p5")
    assert "p5.48xlarge" in err


@pytest.mark.parametrize("rate", ["600/min", "864000/Day", "10 / s", "10rps", "36000 requests per hour"])
def test_a_rate_has_a_unit_of_time(run: Run, rate: str) -> None:
    words = ("llama-3.1-8b", "l40s", "--format", "json", "--rate")
    assert run(*words, rate) == run(*words, "10")


def test_a_figure_beyond_its_target_is_told_apart_from_it(run: Run) -> None:
    """Two digits make 102 ms one with its target of 100 ms."""
    _, out, _ = run("qwen3-32b", "2xl40s", "--users", "50")
    late, target = re.search(r"TPOT\s+(\S+)\s+ms of\s+(\S+)\s+ms", out).groups()  # type: ignore[union-attr]
    assert float(late) > float(target)


def test_the_command_with_which_a_model_fits_names_the_plugin_of_the_devices(run: Run) -> None:
    _, out, _ = run("llama-3.3-70b", "inferentia-2")
    assert "vllm-neuron" in out.partition("Run it:")[2]


def test_sessions_are_answered_with_what_serves_them(run: Run) -> None:
    words = ("qwen3-32b", "2xh100-sxm", "--sessions", "8", "--profile", "chat")
    status, out, err = run(*words)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "8 sessions of chat" in lines[0]
    assert {"Cache", "Chosen", "Speed", "Limited by", "Run it"} <= {line.partition(":")[0] for line in lines}
    assert "; cost: " in out
    assert "how many" in run("qwen3-32b", "2xh100-sxm", "--profile", "chat")[2]
    assert len(run("kimi-k2.5", "8xh200-sxm", "--sessions", "20")[1].splitlines()) <= LINES


def test_a_format_that_was_chosen_for_sessions_was_not_asked_for(run: Run) -> None:
    words = ("llama-3.3-70b", "h100-sxm", "--profile", "chat")
    chosen = run(*words, "--sessions", "4")[1]
    assert "nvfp4" in chosen
    assert "as asked" not in chosen
    assert "as asked" in run(*words, "--sessions", "4", "--quant", "nvfp4")[1]
    status, _, err = run(*words, "--sessions", "0")
    assert (status, "sessions must be" in err) == (2, True)


@pytest.mark.parametrize("lengths", [("--context", "4k"), ("--prompt", "4k"), ("--generate", "64")])
def test_lengths_that_sessions_do_not_take_are_refused(run: Run, lengths: tuple[str, str]) -> None:
    status, _, err = run("qwen3-8b", "h100-sxm", "--sessions", "4", *lengths)
    assert (status, lengths[0] in err) == (2, True)


@pytest.mark.parametrize("hardware", ["rtx-4090", "m4-max"])
def test_a_server_that_allots_its_slots_has_one_for_each_session_that_fits(run: Run, hardware: str) -> None:
    """A slot keeps the cache of its last turn: sessions that share one evict each other."""
    out = run("llama-3.1-8b", hardware, "--engine", "llama.cpp", "--sessions", "2", "--profile", "chat")[1]
    assert "--parallel 2" in " ".join(out.split())


def test_sessions_that_outgrow_the_cache_may_have_memory_below_it(run: Run) -> None:
    out = run("gpt-oss-120b", "2xh100-sxm", "--sessions", "40", "--profile", "swe-agent")[1]
    assert "outgrow the cache" in out
    size = re.search(r"Better: --tiers dram=(\d+)GB", out)
    assert size is not None
    with_it = run("gpt-oss-120b", "2xh100-sxm", "--sessions", "40", "--tiers", f"dram={size[1]}GB")[1]
    assert "outgrow the cache" not in with_it


def test_sessions_that_wait_long_are_not_served_well(run: Run) -> None:
    """Without targets that are asked for, the usual ones of a load hold, as in `solve max-sessions`."""
    words = ("llama-3.1-8b", "h100-sxm", "--sessions", "64", "--profile", "coding-agent")
    assert run(*words)[1].startswith("Not well")  # no prompt finds its prefix, and all are computed again
    assert run(*words, "--tiers", "dram=1TB")[1].startswith("Slowly")
