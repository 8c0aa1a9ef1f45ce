"""A live server: its times, rows, comparison and fitted profile, and every way in which a server misbehaves."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.scenario.scenario import Scenario
from roofline.specs.engine import Engine, load_engine
from roofline.specs.hardware import load_hardware
from roofline.specs.modelspec import load_model
from roofline.validate.fit.user_profile import applied, fit_own, residuals
from roofline.validate.score.serving import score_serving
from roofline.validate.servers.client import read_address
from roofline.validate.servers.measure import Limits, Load, Measured, Point, design
from roofline.validate.servers.server import Plan, Target, case_of, measure_server
from roofline.validate.tables.published import COLUMNS
from roofline.validate.tables.serving import ServingCase
from tests.conftest import Run
from tests.paths import ROOT
from tests.validate.stub_server import PREFILL, SLOW, STEP, serving

pytest.importorskip("httpx")

COMMAND = ("--model", "llama-3.2-1b", "--hw", "l40s")
SHORT = ("--prompt", "16,32", "--generate", 8, "--concurrency", 2)


def scenario() -> Scenario:
    return Scenario(load_model("llama-3.2-1b"), load_hardware("l40s"), engine="vllm")


def plan(**limits: float) -> Plan:
    found = Limits(int(limits.get("requests", 100)), limits.get("seconds", 60.0), limits.get("answer", 30.0))
    return Plan((16, 32), 8, 2, found, limits.get("timeout", 30.0))


# --- what is measured -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_times_and_tokens_of_a_server(api: str, tmp_path: Path) -> None:
    with serving() as server:
        document = measure_server(Target(server.url, api), scenario(), plan(), tmp_path / "rows.csv")
        assert {path for path, _, _ in server.seen} <= {"/v1/models", "/v1/completions", "/v1/chat/completions"}
    loads = [(point["concurrency"], point["prompt"], point["output"]) for point in document["points"]]
    assert loads == [(1, 32, 8), (1, 16, 8), (2, 32, 8)]
    assert document["ended"] == ""
    for point in document["points"]:
        times = {figure["metric"]: figure["measured_s"] for figure in point["figures"]}
        assert times["ttft"] >= PREFILL
        assert times["e2e"] >= PREFILL + 7 * STEP
        assert times["e2e"] == pytest.approx(times["ttft"] + 7 * times["tpot"])
        assert 1 / times["throughput"] <= point["concurrency"] * 8 / times["ttft"]
    with (tmp_path / "rows.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert tuple(found[0]) == COLUMNS
    assert [row["batch"] for row in found[::4]] == [
        "closed loop 1; 5 requests",
        "closed loop 1; 5 requests",
        "closed loop 2; 6 requests",
    ]
    assert (found[0]["weights"], found[0]["kv"], found[0]["engine"]) == ("bf16", "bf16", "vllm")


@pytest.mark.slow
def test_the_command_compares_scores_and_fits(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serving() as server:
        status, out, _ = run("validate", "server", server.url, *COMMAND, *SHORT, "-o", "rows.csv", "--fit", "own.yaml")
    assert status == 0
    assert "2 in flight, 32 in, 8 out" in out
    assert "Median error of 3 loads:" in out
    assert "for loads held out of it" in out
    assert score_serving(Path("rows.csv"))["scored"] == 3
    assert run("validate", "serving", "rows.csv")[0] == 0
    own = load_engine("./own.yaml")
    assert own.name == "vllm"
    assert own.sources[-1].startswith("roofline validate server: 3 loads")
    assert run("serve", "llama-3.2-1b", "--hw", "l40s", "--engine", "./own.yaml", "--concurrency", 2)[0] == 0
    with serving() as server:  # the file grows, and a fit takes its rows of the same engine and hardware along
        other = ("--model", "qwen2.5-0.5b", "--hw", "l40s", *SHORT, "-o", "rows.csv", "--fit", "both.yaml")
        assert "Median error of 6 loads:" in run("validate", "server", server.url, *other)[1]
        other = (*COMMAND[:2], "--hw", "h100-sxm", *SHORT, "-o", "rows.csv", "--fit", "one.yaml")
        assert "Median error of 3 loads:" in run("validate", "server", server.url, *other)[1]
    assert len(Path("rows.csv").read_text().splitlines()) == 1 + 3 * 12


@pytest.mark.slow
def test_a_disturbed_answer_of_a_single_stream_counts_little(tmp_path: Path) -> None:
    with serving("one slow") as server:
        document = measure_server(Target(server.url), scenario(), plan(), tmp_path / "rows.csv")
    times = {figure["metric"]: figure["measured_s"] for figure in document["points"][0]["figures"]}
    assert times["ttft"] < SLOW / 5
    assert times["e2e"] == pytest.approx(times["ttft"] + 7 * times["tpot"])
    assert times["throughput"] == pytest.approx(times["e2e"] / 8)


def test_the_design_begins_with_the_most_informative_loads() -> None:
    assert design((128, 2048, 512), 64, 8) == [
        Point(1, 512, 64),
        Point(1, 2048, 64),
        Point(1, 128, 64),
        Point(8, 512, 64),
        Point(4, 512, 64),
        Point(2, 512, 64),
    ]
    assert design((128,), 64, 1) == [Point(1, 128, 64)]


def test_tokens_without_usage_in_the_stream_are_counted(tmp_path: Path) -> None:
    with serving("no stream usage") as server:
        document = measure_server(Target(server.url), scenario(), plan(), tmp_path / "rows.csv")
    assert [(point["prompt"], point["output"]) for point in document["points"]] == [(32, 8), (16, 8), (32, 8)]


def test_prompts_of_a_single_stream_without_usage_are_counted_each(tmp_path: Path) -> None:
    with serving("letters") as server:  # each letter is a token, so that words say little
        document = measure_server(Target(server.url), scenario(), plan(), tmp_path / "rows.csv")
        streamed = [len(body["prompt"]) for _, _, body in server.seen if body.get("stream")]
    warm_up, first, second = 1, streamed[1:6], streamed[6:11]
    assert len(streamed) == warm_up + 5 + 5 + 6
    lengths = [point["prompt"] for point in document["points"]]
    assert lengths[:2] == [pytest.approx(np.mean(first)), pytest.approx(np.mean(second))]
    assert lengths[2] == pytest.approx(32, rel=0.3)


def test_answers_that_end_early_are_told(run: Run, tmp_path: Path) -> None:
    with serving("brief") as server:
        status, out, _ = run("validate", "server", server.url, *COMMAND, *SHORT, "-o", tmp_path / "rows.csv")
    assert status == 0
    assert "Answers ended early, after 4 of 8 tokens" in out


def test_prompts_share_no_prefix_and_the_key_is_sent_but_never_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with serving() as server:
        status, out, err = run("validate", "server", server.url, *COMMAND, *SHORT, "--key-env", "MY_KEY")
        prompts = [body["prompt"].split()[0] for _, _, body in server.seen if "prompt" in body]
        assert {headers["authorization"] for _, headers, _ in server.seen} == {"Bearer sk-secret"}
    assert status == 0
    assert len(set(prompts)) == len(prompts)
    assert "sk-secret" not in out + err + Path("server.csv").read_text()
    with serving("500") as server:
        status, out, err = run("validate", "server", server.url, *COMMAND, "--key-env", "MY_KEY")
    assert (status, err.count("\n")) == (2, 1)
    assert "status 500" in err
    assert "[key]" in err
    assert "sk-secret" not in out + err
    status, _, err = run("validate", "server", server.url, *COMMAND, "--key-env", "NO_SUCH_KEY")
    assert (status, "'NO_SUCH_KEY' holds no API key" in err) == (2, True)


# --- servers that misbehave -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("500", "answers with status 500: 'no"),
        ("redirect", "redirects to 'http://203.0.113.7/v1/models', which is not followed: name that address"),
        ("garbage", "ended the connection within an answer, or does not speak HTTP"),
        ("html", "answers with '<html>"),
        ("hang", "sent nothing for 0.4 s"),
        ("large", "answers with more than 1 MiB"),
        ("list", r"answers with '\[1, 2\]', not JSON"),
        ("compressed", "not JSON"),
        ("two models", "serves 2 models: name one, such as 'a', 'b'"),
        ("no usage", "reports no 'usage.prompt_tokens'"),
        ("endless", "sends more than the 8 tokens that it was asked for"),
        ("half", "answers with '{not json', not JSON"),
        ("stalls", "sent nothing for 0.4 s"),
        ("drip", "did not finish an answer within 1 s"),
    ],
)
def test_a_server_that_misbehaves_gets_one_sentence(
    mode: str, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = time.monotonic()
    with serving(mode) as server, pytest.raises(RooflineError, match=message) as caught:
        measure_server(
            Target(server.url),
            scenario(),
            plan(timeout=0.4, answer=0.8 if mode == "drip" else 5.0),
            tmp_path / "rows.csv",
        )
    assert time.monotonic() - start < 5
    assert caught.value.options == {"two models": ("served_model",), "hang": ("timeout",), "stalls": ("timeout",)}.get(
        mode, ()
    )
    assert str(caught.value).isprintable()
    assert not caplog.records, "asyncio logs a traceback where a generator is not closed"
    assert not (tmp_path / "rows.csv").exists()


def test_a_server_that_refuses_an_extension_is_asked_without_it(tmp_path: Path) -> None:
    with serving("strict") as server:
        assert measure_server(Target(server.url), scenario(), plan(), tmp_path / "rows.csv")["left"] == 0


def test_a_server_killed_in_the_middle_keeps_the_rows_so_far(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    with serving(breaks=1 + 5 + 2) as server:  # the warm-up, the first load, two answers of the second
        status, out, _ = run("validate", "server", server.url, *COMMAND, *SHORT, "-o", rows)
    assert status == 0
    assert "Ended early, 2 loads left: 127.0.0.1" in out
    assert len(rows.read_text().splitlines()) == 1 + 4


def test_a_server_that_is_not_there(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serving() as server:
        url = server.url
    status, _, err = run("validate", "server", url, *COMMAND)
    assert (status, err.count("\n")) == (2, 1)
    assert "does not accept connections" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_client_killed_in_the_middle_keeps_the_rows_so_far(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    with serving() as server:
        options = [*COMMAND, "--prompt", "16", "--generate", "8", "--concurrency", "8", "-o", rows]
        command = [sys.executable, "-m", "roofline", "validate", "server", server.url, *map(str, options)]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and (not rows.exists() or len(rows.read_text().splitlines()) < 5):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    kept = len(rows.read_text().splitlines()) - 1
    assert kept >= 4
    if process.returncode != 0:  # it may have been faster
        assert process.returncode == 2
        assert err == f"roofline: interrupted; {rows} keeps the {kept} rows measured so far\n"


# --- limits ---------------------------------------------------------------------------------------------------------


def test_no_more_requests_than_allowed(tmp_path: Path) -> None:
    with serving() as server:
        document = measure_server(Target(server.url), scenario(), plan(requests=9), tmp_path / "rows.csv")
        assert sum(path != "/v1/models" for path, _, _ in server.seen) <= 9
        with pytest.raises(RooflineError, match="no load was measured: the limit of 7 requests"):
            measure_server(Target(server.url), scenario(), plan(requests=7), tmp_path / "other.csv")
    assert (document["left"], document["ended"]) == (2, "the limit of 9 requests")


def test_no_more_time_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        with pytest.raises(RooflineError, match="no load was measured: the limit of 1e-05 minutes"):
            measure_server(Target(server.url), scenario(), plan(seconds=6e-4), tmp_path / "rows.csv")
        monkeypatch.setattr(Load, "left", property(lambda load: 10.0 if load.sent <= 3 + 5 else 0.0))
        document = measure_server(Target(server.url), scenario(), plan(), tmp_path / "rows.csv")
    assert (document["left"], document["ended"]) == (2, "the limit of 1 minutes")


@pytest.mark.slow
def test_eight_in_flight_at_most_unless_asked(run: Run, tmp_path: Path) -> None:
    options = (*COMMAND, "--prompt", "16", "--generate", 4, "--format", "json")
    for asked, most in (((), 8), (("--concurrency", 12, "--requests", 500), 12)):
        with serving() as server:
            status, out, _ = run("validate", "server", server.url, *options, *asked, "-o", tmp_path / f"{most}.csv")
        assert status == 0
        assert max(point["concurrency"] for point in json.loads(out)["points"]) == most


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/v1", "is no URL such as"),
        ("http://", "is no URL such as"),
        ("http://host:99999", "is no URL such as"),
        ("http://user:pass@host/v1", "must not hold a password"),
        ("http://host/v1?key=a", "is no URL such as"),
        ("http://[::1", "is no URL such as"),
    ],
)
def test_invalid_urls(url: str, message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        read_address(url)


def test_addresses() -> None:
    assert read_address("localhost:8000").base == "http://localhost:8000/v1/"
    assert read_address("https://host/openai/v1/").base == "https://host/openai/v1/"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--concurrency", 0), "--concurrency must be above 0"),
        (("--requests", -1), "--requests must be above 0"),
        (("--minutes", 0), "--minutes must be above 0"),
        (("--prompt", "1,2,3,4,5"), "--prompt takes one to four lengths"),
        (("--api", "embeddings"), "--api must be completions or chat"),
        (("--fit", "own.txt"), "an engine profile is a YAML file, got 'own.txt' (--fit)"),
        (("--proxy", "nonsense"), "the URL, the key or the proxy is not valid"),
    ],
)
def test_invalid_options(options: tuple[object, ...], message: str, run: Run, tmp_path: Path) -> None:
    status, _, err = run("validate", "server", "http://127.0.0.1:9", *COMMAND, *options, "-o", tmp_path / "rows.csv")
    assert (status, message in err) == (2, True), err
    assert not list(tmp_path.iterdir())


def test_no_request_leaves_for_a_host_that_was_not_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies of the environment are not used: this one would refuse every connection."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving() as server:
        assert run("validate", "server", server.url, *COMMAND, *SHORT, "-o", tmp_path / "rows.csv")[0] == 0
    with serving() as server:
        status, _, err = run("validate", "server", server.url, *COMMAND, "--proxy", "http://127.0.0.1:9")
        assert (status, server.seen) == (2, [])
    assert "does not accept connections" in err


# --- fit ------------------------------------------------------------------------------------------------------------


def made(engine: Engine, *loads: tuple[int, int]) -> list[ServingCase]:
    """Cases of the shipped profile whose times another engine would have: concurrency and prompt of each."""
    base = scenario().changed(engine=load_engine("vllm"))
    points = [Measured(count, 3 * count, prompt, 32, 1.0, 1.0, 1.0, 1.0) for count, prompt in loads]
    cases = [case_of(point, base, index) for index, point in enumerate(points)]
    logs, owner = residuals(cases, engine)
    assert owner.tolist() == [index for index in range(len(loads)) for _ in range(3)]
    times = np.exp(logs).reshape(len(loads), 3).tolist()
    return [
        replace(case, ttft=ttft, tpot=tpot, throughput=throughput, e2e=None)
        for case, (ttft, tpot, throughput) in zip(cases, times, strict=True)
    ]


@pytest.mark.slow
def test_a_fit_predicts_other_loads_of_the_server_that_made_its_times() -> None:
    true = {"prefill": 1.5, "decode": 1.4, "step": 4e-3, "sequence": 50e-6, "latency": 40e-3, "request": 2e-3}
    engine = applied(load_engine("vllm"), {**true, "prompt_token": 1e-6})
    engine = replace(engine, scheduler=replace(engine.scheduler, sequences=1))
    found = fit_own(made(engine, (1, 128), (1, 2048), (2, 512)), "roofline validate server: a test")
    assert found.engine.scheduler.sequences == 1
    assert found.after < 0.03 < 0.3 < found.before
    assert found.held_out is not None
    assert found.held_out < found.before
    other = made(engine, (1, 1024), (4, 256))
    assert np.abs(residuals(other, load_engine("vllm"))[0]).min() > 0.3
    assert np.abs(residuals(other, found.engine)[0]).max() < 0.1


@pytest.mark.slow
def test_a_profile_that_fits_already_stays() -> None:
    found = fit_own(made(load_engine("vllm"), (1, 128), (2, 512)), "roofline validate server: a test")
    assert found.before == pytest.approx(0, abs=1e-6)
    assert found.after < 0.02
    assert found.held_out is None
    assert "sequences" not in found.changed


def test_the_command_needs_httpx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(RooflineError, match=r"pip install '.*\[server\]'"):
        measure_server(Target("http://127.0.0.1:9"), scenario(), plan(), tmp_path / "rows.csv")
    assert not list(tmp_path.iterdir())
