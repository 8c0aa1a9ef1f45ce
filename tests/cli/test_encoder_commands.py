"""Output for encoder models, for options without effect, and for device counts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ok = Callable[..., str]

BERT = ("bert-base", "--hw", "a100-sxm-80gb")
LLAMA = ("llama-3.1-8b", "--hw", "a100-sxm-80gb")


@pytest.fixture
def ok(run: Callable[..., tuple[int, str, str]]) -> Ok:
    def call(*args: object) -> str:
        status, out, err = run(*args)
        assert status == 0, err
        return out

    return call


def document(ok: Ok, *args: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok(*args, "--format", "json"))
    return found


def header(text: str) -> list[str]:
    """The lines before the operators."""
    return text.split("\n\n")[0].replace(" \n", " ").splitlines()


def test_header_of_an_encoder(ok: Ok) -> None:
    encoder = ok("analyze", *BERT, "--generate", 500, "--context", 400)
    assert header(encoder)[1] == "batch 1, prompt 512; weights fp16, activations fp16, KV fp16; FlashAttention"
    assert "note: --generate 500 has no effect: bert-base only encodes" in encoder
    recurrent = ok("analyze", "mamba2-2.7b", "--hw", "a100-sxm-80gb", "--kv", "fp8", "--offload", "kv=1")
    assert header(recurrent)[1] == "batch 1, prompt 512, generate 128; weights fp16, activations fp16"
    assert recurrent.count("has no effect: mamba2-2.7b has no KV cache") == 2
    assert "note" not in ok("analyze", *LLAMA, "--kv", "fp8", "--generate", 500)


def test_json_has_the_notes(ok: Ok) -> None:
    assert document(ok, "analyze", *LLAMA)["notes"] == []
    encoder = document(ok, "analyze", *BERT, "--generate", 500)
    assert encoder["notes"] == ["--generate 500 has no effect: bert-base only encodes"]
    assert (encoder["scenario"]["generate"], encoder["scenario"]["context"]) == (None, None)
    recurrent = document(ok, "analyze", "mamba2-2.7b", "--hw", "a100-sxm-80gb")
    assert (recurrent["scenario"]["kv"], recurrent["scenario"]["flash"]) == (None, False)
    assert [note for note in recurrent["notes"] if "not measured: " not in note] == []


def test_an_encoder_has_a_rate_of_sequences(ok: Ok) -> None:
    found = document(ok, "analyze", *BERT, "--batch", 8)
    times = found["generation"]
    assert times["tokens_per_s"] is times["expected_tokens_per_s"] is None
    assert times["sequences_per_s"] == pytest.approx(8 / times["total_s"])
    rate, time = times["expected_sequences_per_s"], times["expected_time_s"]
    assert rate == pytest.approx({"low": 8 / time["high"], "mid": 8 / time["mid"], "high": 8 / time["low"]})
    text = ok("analyze", *BERT, "--batch", 8)
    assert "tokens/s" not in text
    assert f"{times['sequences_per_s']:,.0f} sequences/s" in text
    assert f"{rate['mid']:,.0f} ({rate['low']:,.0f} to {rate['high']:,.0f}) sequences/s" in text
    assert "per prompt token" in text
    assert "per million prompt tokens" in text
    decoder = document(ok, "analyze", *LLAMA)["generation"]
    assert decoder["sequences_per_s"] * 128 == pytest.approx(decoder["tokens_per_s"])


def test_the_energy_of_a_prompt_is_at_most_that_of_the_tdp(ok: Ok) -> None:
    energy = document(ok, "analyze", "bert-base", "--hw", "mi300x")["energy"]
    assert energy["prefill_j_per_prompt_token"] is None
    assert energy["tdp_prefill_j_per_prompt_token"] > 0
    assert "energy: at most" in ok("analyze", "bert-base", "--hw", "mi300x")


@pytest.mark.parametrize("convention", ["physical", "llm-viewer"])
def test_compare_has_sequences_per_s(ok: Ok, convention: str) -> None:
    first = f"{' '.join(BERT)} --convention {convention} --context 99"
    alike, mixed = ok("compare", first, "--batch 8"), ok("compare", first, "llama-3.1-8b --batch 8")
    assert "sequences/s" in alike
    assert "tokens/s" not in alike
    assert " 0 " not in alike.partition("From 1")[0]
    assert "note on 2: --context 99 has no effect: bert-base only encodes" in alike
    assert "tokens/s" in mixed
    assert "sequences/s" in mixed
    assert "note on 2" not in mixed
    found = document(ok, "compare", first, "llama-3.1-8b")["scenarios"]
    assert [entry["tokens_per_s"] is None for entry in found] == [True, False]
    assert [entry["generate"] for entry in found] == [None, 128]
    assert found[0]["notes"] == ["--context 99 has no effect: bert-base only encodes"]
    assert "tokens/s" in ok("compare", " ".join(LLAMA), "--batch 8")
    assert "sequences/s" not in ok("compare", " ".join(LLAMA), "--batch 8")


def check_tables(*texts: str) -> None:
    """An encoder has one time, the total."""
    for text in texts:
        heads = [line.replace("|", " ").split() for line in text.splitlines() if "." not in line and ";" not in line]
        heads = [words for words in heads if "memory" in words and {"total", "TTFT"} & set(words)]
        assert heads
        assert not any({"TTFT", "TPOT", "decode"} & set(words) for words in heads)


def test_tables_of_an_encoder_have_one_time(ok: Ok) -> None:
    advice = ok("advise", *BERT, "--batch", 8)
    check_tables(
        ok("compare", " ".join(BERT), "--batch 8"),
        ok("solve", "max-batch", *BERT, "--ttft", "10ms"),
        advice,
    )
    assert "TPOT" not in advice
    both = ok("compare", " ".join(BERT), "llama-3.1-8b --batch 8")
    assert "TTFT" in both
    assert "TPOT" in both


@pytest.mark.parametrize("at", ["bound", "low", "mid", "high"])
def test_solve_has_sequences_per_s(ok: Ok, at: str) -> None:
    question = ("solve", "max-batch", *BERT, "--ttft", "10ms", "--at", at)
    found = document(ok, *question)
    for entry in (found["answer"], found["neighbour"]):
        assert entry["tokens_per_s"] is None
        assert entry["sequences_per_s"] == pytest.approx(entry["value"] / entry["total_s"])
    assert "sequences/s" in ok(*question)
    assert "tokens/s" not in ok(*question)
    assert "tokens/s" in ok("solve", "max-batch", *LLAMA, "--ttft", "1s", "--at", at)


def test_default_metrics_of_an_encoder_sweep(ok: Ok) -> None:
    asked = ("sweep", *BERT, "--over", "batch=1,8")
    assert "sequences_per_s" in ok(*asked)
    chosen = (*asked, "--metrics", "tokens_per_s,tokens_per_s_per_gpu,sequences_per_s")
    (row, _) = csv.DictReader(io.StringIO(ok(*chosen, "--format", "csv")))
    assert (row["tokens_per_s"], row["tokens_per_s_per_gpu"]) == ("", "")
    assert float(row["sequences_per_s"]) > 0
    first = json.loads(ok(*chosen, "--format", "jsonl").splitlines()[0])
    assert first["tokens_per_s"] is None
    assert ok("sweep", *LLAMA, "--over", "batch=1,8").count("tokens_per_s") > 0


@pytest.mark.slow
def test_report_of_an_encoder(ok: Ok, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    ok("report", *BERT, "--generate", 500, "-o", page)
    text = page.read_text(encoding="utf-8")
    check_tables(text)
    assert "sequences/s**" in text or "sequences/s." in text.partition("## ")[0]
    assert "note: --generate 500 has no effect: bert-base only encodes" in text
    assert "0 tokens/s" not in text
    assert "| sequences/s |" in text


def test_disaggregated_decode_devices_are_counted(ok: Ok) -> None:
    asked = ("llama-3.1-70b", "--hw", "h100-sxm", "--tp", 4, "--with", "disaggregation")
    assert header(ok("analyze", *asked))[2].startswith("on 4 devices (tensor 4), and 4 more for decode;")
    found = document(ok, "analyze", *asked)
    assert (found["parallelism"]["devices"], found["parallelism"]["decode_devices"]) == (4, 4)
    assert found["cost"]["devices"] == 8
    alone = ok("analyze", "llama-3.1-8b", "--hw", "h100-sxm", "--with", "disaggregation")
    assert header(alone)[2].startswith("on 1 device for prefill and 1 for decode;")


def test_images_need_a_vision_encoder(run: Callable[..., tuple[int, str, str]]) -> None:
    status, _, err = run("analyze", "llama-3.1-8b", "--hw", "h100-sxm", "--images", 1)
    assert (status, err) == (2, "roofline: llama-3.1-8b has no vision encoder for images\n")
