"""`roofline serve --sessions` and `roofline solve max-sessions`."""

from __future__ import annotations

import json

import pytest

ASKED = ("serve", "llama-3.1-8b", "--hw", "h100-sxm", "--simulate", 150, "--pool", "60k")


@pytest.mark.slow
def test_a_line_for_each_number_of_sessions(run) -> None:
    status, out, err = run(*ASKED, "--sessions", "4,16", "--profile", "chat", "--tiers", "dram=8GB")
    assert (status, err) == (0, "")
    firsts = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert [first for first in firsts if first.isdigit()] == ["4", "16"]
    assert "dram" in out


def test_json_has_the_workload_the_tiers_and_the_hits(run) -> None:
    more = ("--session-rate", "0.2", "--turns", 5, "--gap", "2s", "--prompt", 300, "--tiers", "ssd=1TB:bandwidth=9GB/s")
    status, out, _ = run(*ASKED, *more, "--format", "json")
    assert status == 0
    document = json.loads(out)
    assert document["workload"]["turns"] == "5"
    (point,) = document["points"]
    assert point["session_rate"] == 0.2
    assert point["hit"] == pytest.approx(sum(point["hits"].values()))
    assert set(point["hits"]) == {"pool", "ssd"}
    assert 0 < point["hit"] <= point["endless"] < 1


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (("--profile", "chat"), "give one"),
        (("--sessions", 4, "--rate", 2), "two kinds of load"),
        (("--sessions", 4, "--over", "tp=1,2"), "--over"),
        (("--sessions", 0), "sessions"),
        (("--sessions", 4, "--profile", "chats"), "chat"),
    ],
)
def test_what_does_not_go_together_is_refused(run, more, part) -> None:
    status, out, err = run(*ASKED, *more)
    assert (status, out) == (2, "")
    assert part in err


def test_only_max_sessions_takes_what_sessions_are_like(run) -> None:
    status, _, err = run(
        "solve", "max-batch", "llama-3.1-8b", "--hw", "h100-sxm", "--tpot", "20ms", "--profile", "chat"
    )
    assert status == 2
    assert "--profile" in err


@pytest.mark.slow
def test_the_most_sessions_meet_the_targets_and_the_next_do_not(run) -> None:
    words = ("llama-3.1-8b", "--hw", "h100-sxm", "--profile", "chat", "--pool", "20k", "--ttft", "1s", "--tpot", "9ms")
    status, out, err = run("solve", "max-sessions", *words, "--format", "json")
    assert (status, err) == (0, "")
    found = json.loads(out)["answer"]
    assert 0 < found["sessions"] < found["next"]
    assert found["missed"]
    assert found["outcome"]["tpot_s"]["p95"]["mid"] <= 9e-3


@pytest.mark.slow
def test_what_each_tier_adds(run) -> None:
    words = ("llama-3.1-8b", "--hw", "h100-sxm", "--profile", "chat", "--ttft", "1s", "--tpot", "9ms")
    tiers = "dram=8GB:price=0.2USD/h,ssd=1TB:bandwidth=9GB/s"
    status, out, err = run("choose", "offload", *words, "--tiers", tiers)
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if " adds " in line] == ["dram", "ssd"]
    for more in (("--users", 4), ("--objective", "cost")):
        assert run("choose", "offload", *words, "--tiers", tiers, *more)[0] == 2
    assert run("choose", "layout", *words)[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize(("sessions", "shown"), [("2,8", "hit rate of prompt tokens"), ("4", "tokens of the prompt")])
def test_answers_are_drawn(run, tmp_path, sessions, shown) -> None:
    path = tmp_path / "sessions.svg"
    assert run(*ASKED, "--sessions", sessions, "--profile", "chat", "--output", path)[0] == 0
    assert shown in path.read_text()


@pytest.mark.slow
def test_prefill_and_decode_apart(run) -> None:
    more = ("--sessions", 8, "--profile", "chat", "--disaggregation", "prefills=1,decodes=1", "--format", "json")
    document = json.loads(run(*ASKED[:-2], *more)[1])
    assert document["devices"] == 2
    assert document["points"][0]["hit"] > 0.5
