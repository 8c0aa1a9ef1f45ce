"""The server of the live page: its answers are those of the commands, and it answers only its own page."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from urllib.request import urlopen

import pytest
import yaml

pytest.importorskip("uvicorn", reason="the live page needs uvicorn and Starlette")
pytest.importorskip("starlette", reason="the live page needs uvicorn and Starlette")

from roofline import analyze
from roofline.cli.program import with_flags
from roofline.core.errors import RooflineError
from roofline.reports.documents.analysis import analysis_document
from roofline.reports.view.server import HEADERS, Server
from roofline.reports.view.setups import Specs, opening
from roofline.scenario.options import OPTIONS
from roofline.scenario.scenario import Scenario
from roofline.techniques import techniques
from tests.cases import sampled
from tests.conftest import Run
from tests.paths import ROOT
from tests.reports.hostile import hostile_specs
from tests.reports.live import BASE, ask, request, serving, words
from tests.roofline.specs.weight_files.conftest import Write, write_gguf  # noqa: F401 - the fixture
from tests.roofline.specs.weight_files.test_gguf import llama_2_7b


def answer(server: Server, *setups: Mapping[str, str], name: str = "answer", **more: object) -> dict[str, Any]:
    status, document = ask(server, name, *setups, **more)
    assert status == 200, document
    return document


CHOICES: Mapping[str, tuple[str, ...]] = {
    "model": ("llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "bert-base", "mamba-130m"),
    "hw": ("h100-sxm", "mi300x", "rtx-4090", "b200-sxm", "m4-max", "8xH200"),
    "batch": ("1", "16", "512"),
    "prompt": ("1", "4k", "131072"),
    "generate": ("1", "300"),
    "prefix": ("0", "1000"),
    "quant": ("fp8", "awq", "W4A16KV8", "nonsense"),
    "kv": ("fp8", "int4"),
    "weights": ("int8",),
    "tp": ("1", "2", "8"),
    "pp": ("2",),
    "dp": ("2",),
    "engine": ("vllm", "vllm@0.8", "sglang", "llama.cpp"),
    "with": ("eagle-3", "fp8-kv+fp8", "flexgen:kv=0"),
    "flash": ("false",),
    "expert_skew": ("0.5",),
    "gpu_memory_utilization": ("0.5",),
    "convention": ("llm-viewer",),
}


def setups(count: int) -> Iterator[dict[str, str]]:
    chance = random.Random(31)
    for _ in range(count):
        chosen = {name: chance.choice(values) for name, values in CHOICES.items() if chance.random() < 0.3}
        yield {"model": chance.choice(CHOICES["model"]), "hw": chance.choice(CHOICES["hw"]), **chosen}


@pytest.mark.slow
def test_random_setups_are_those_of_roofline_analyze(server: Server, run: Run) -> None:
    valid = 0
    for setup in setups(30):
        status, out, err = run("analyze", *words(setup), "--format", "json")
        found, document = ask(server, "answer", setup)
        if status:
            assert found == 422, setup
            told = with_flags(document["error"], ())  # the page names no flags, and no options that help
            assert re.sub(r" \((--[a-z-]+(, )?)+\)$", "", err.strip()) == f"roofline: {told}"
            continue
        valid += 1
        assert found == 200, (setup, document)
        assert document["analysis"] == json.loads(out), setup
    assert valid >= 10


OPENED: Mapping[str, dict[str, str]] = {
    "one user": {},
    "users": {"concurrency": "4"},
    "a rate within targets": {"rate": "0.5", "ttft": "20s", "tpot": "1s"},
    "a rate above what it sustains": {"rate": "900/s"},
}


@pytest.mark.parametrize("load", sampled(OPENED.values(), 1), ids=OPENED)
def test_the_page_opens_on_the_answer_of_the_command(server: Server, run: Run, load: Mapping[str, str]) -> None:
    words = [word for name, text in load.items() for word in (f"--{name}", text)]
    _, out, _ = run("llama-3.3-70b", "2x4090", *words, "--format", "json")
    known = json.loads(out)
    setup = opening({"model": "llama-3.3-70b", "hw": "2x4090"}, load)
    assert setup["quant"] == "awq"
    found = answer(server, setup, name="verdict")
    # The page asks for the next change apart, so that its lines have room for words that the command's drop.
    assert found["lines"][0].split(" on ")[0] == known["lines"][0].split(" on ")[0]
    # Figures of one batch and of several at once are summed in another order.
    figures = {
        name
        for name, value in known.items()
        if isinstance(value, float) or (isinstance(value, dict) and "mid" in value)
    }
    assert figures or not known["fits"]
    for name in figures:
        assert found[name] == pytest.approx(known[name]), name
    same = known.keys() - {"lines", "better", "chosen", "rival_layout"} - figures  # the page states what was chosen
    assert {name: found.get(name) for name in same} == {name: known[name] for name in same}
    change = answer(server, setup, name="better")
    told = known.get("better")
    assert bool(change["set"]) == (told is not None)
    assert told is None or told["option"] in change["text"]


def test_each_change_that_makes_it_fit_does(server: Server) -> None:
    setup = {"model": "llama-3.3-70b", "hw": "rtx-4090"}
    ways = answer(server, setup, name="verdict")["ways"]
    assert [way["tokens_per_s"] for way in ways] == sorted((way["tokens_per_s"] for way in ways), reverse=True)
    for way in ways:
        assert answer(server, {**setup, **way["set"]}, name="verdict")["fits"], way


@pytest.mark.parametrize(
    "more", sampled([{}, {"run.as": "kubernetes"}, {"run.engine": "sglang"}, {"asked.rate": "2"}], 1)
)
def test_what_starts_it_is_what_launch_writes(server: Server, run: Run, more: dict[str, str]) -> None:
    found = answer(server, {**BASE, **more}, name="run")
    status, out, err = run(*shlex.split(found["command"])[1:])
    assert status == 0, err
    assert all(file["text"] in out for file in found["files"] if file["name"] != "prediction.json")


def test_names_of_others_are_read_and_told(server: Server) -> None:
    for _ in range(2):
        found = answer(server, {"model": "Qwen/Qwen3-32B-AWQ", "hw": "8xH200"})
        assert found["analysis"]["parallelism"]["tensor"] == 8
        assert found["taken"] == [
            "'Qwen/Qwen3-32B-AWQ' is taken as qwen3-32b (quantization awq)",
            "'8xH200' is taken as 8 x h200-sxm",
        ]


def test_the_command_and_the_python_of_an_answer_reproduce_it(server: Server, run: Run) -> None:
    found = answer(server, {**BASE, "with": "eagle-3+fp8", "quant": "KV8"})
    _, out, _ = run(*shlex.split(found["command"])[1:], "--format", "json")
    assert json.loads(out) == found["analysis"]
    names: dict[str, Any] = {}
    exec(found["python"], names)
    assert names["answer"].expected.total.mid == found["analysis"]["generation"]["expected_time_s"]["mid"]


def test_curves_pass_through_the_answer(server: Server) -> None:
    analysis = answer(server, BASE)["analysis"]
    for axis, curve in answer(server, BASE, name="curves").items():
        place = curve["values"].index(int(BASE[axis]))
        for name in ("ttft", "tpot", "tokens_per_s"):
            expected = analysis["generation"][f"expected_{name}" + ("" if name == "tokens_per_s" else "_s")]
            assert {end: curve["figures"][name][end][place] for end in expected} == pytest.approx(expected)
        assert curve["fits"][place] is True
        assert curve["fits"][-1] is False


def test_the_command_and_the_python_of_a_curve_give_its_points(server: Server, run: Run) -> None:
    curve = answer(server, {**BASE, "with": "fp8-kv"}, name="curves")["prompt"]
    status, out, err = run(*shlex.split(curve["command"])[1:], "--format", "jsonl")
    assert status == 0, err
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [row["prompt"] for row in rows] == curve["values"]
    names: dict[str, Any] = {}
    exec(curve["python"], names)
    columns = names["answer"].columns
    for name, readings in curve["figures"].items():
        for reading, values in readings.items():
            assert [row[f"{name}.{reading}"] for row in rows] == pytest.approx(values)
            assert columns[f"{name}.{reading}"].tolist() == pytest.approx(values)
    assert columns["fits"].tolist() == curve["fits"]


def test_a_load_by_rate_is_that_of_its_command(server: Server, run: Run) -> None:
    load = answer(server, {**BASE, "load.by": "rate", "load.hits": "0.5", "goal.ttft": "1s"}, name="load")
    assert load["serving"] == [json.loads(run(*shlex.split(load["command"])[1:], "--format", "json")[1])]
    points = load["serving"][0]["points"]
    assert all(point["stable"] for point in points)
    assert points[-1]["rate"] > 0.9 * points[-1]["saturation_requests_per_s"]
    assert ask(server, "load", {**BASE, "load.by": "constructor"})[0] == 422


@pytest.mark.slow
def test_a_load_of_sessions_is_that_of_its_command(server: Server, run: Run) -> None:
    setup = {**BASE, "load.by": "sessions", "load.sessions": "2,4", "load.tiers": "dram=20GB", "goal.ttft": "1s"}
    load = answer(server, setup, name="load")
    (found,) = load["sessions"]
    assert found == json.loads(run(*shlex.split(load["command"])[1:], "--format", "json")[1])
    assert set(found["points"][0]["hits"]) == {"pool", "dram"}
    for wrong in ({"load.profile": "/etc/passwd.json"}, {"load.sessions": "100000"}, {"load.tiers": "ssd=1TB"}):
        assert ask(server, "load", {**setup, **wrong})[0] == 422


def test_users_beyond_the_sequences_at_once_wait_as_in_the_terminal(server: Server, run: Run) -> None:
    setup = opening({"model": "qwen3-8b", "hw": "h100-sxm", "max_num_seqs": 8}, {"concurrency": "16"})
    found = answer(server, setup, name="verdict")
    known = json.loads(run("qwen3-8b", "h100-sxm", "--max-num-seqs", "8", "--users", "16", "--format", "json")[1])
    assert found["users"] == known["users"] == 16
    assert found["output_tokens_per_s"] == pytest.approx(known["output_tokens_per_s"])
    assert "--max-concurrency 16" in answer(server, setup, name="run")["benchmark"]


def test_sessions_that_are_asked_for_are_in_the_headline_and_in_the_launch(server: Server, run: Run) -> None:
    asked = {"sessions": "4", "profile": "chat", "tiers": "dram=20GB", "ttft": "2s"}
    setup = opening({"model": "llama-3.1-8b", "hw": "h100-sxm"}, asked)
    assert "--kv-offloading-size" in (found := answer(server, setup, name="verdict"))["lines"][-1]
    load = answer(server, setup, name="load")
    (point,) = json.loads(run(*shlex.split(load["command"])[1:], "--format", "json")[1])["points"]
    for name in ("ttft_s", "tpot_s"):
        assert found[name] == {part: point[name][part] for part in ("p50", "p95")}
    late = answer(server, {**setup, "goal.ttft": "1ms"}, name="verdict")["lines"][0]
    assert [late[:4], found["lines"][0][:4]] == ["No: ", "Yes:"]
    launched = answer(server, setup, name="run")
    assert "--kv-offloading-size" in launched["serve"]
    assert run(*shlex.split(launched["command"])[1:])[0] == 0
    for wrong in ({"rate": "1"}, {"concurrency": "4"}, {"profile": "log.json"}):
        with pytest.raises(RooflineError):
            opening({"model": "llama-3.1-8b", "hw": "h100-sxm"}, {**asked, **wrong})
    with pytest.raises(RooflineError):
        opening({"model": "llama-3.1-8b", "hw": "h100-sxm"}, {"tiers": "dram=20GB"})


def test_pools_of_prefill_and_decode_are_those_of_the_commands(server: Server, run: Run) -> None:
    load = {"concurrency": "16", "disaggregation": "prefills=1,decodes=1,tp=2,prefill-tp=1"}
    setup = opening({"model": "llama-3.1-8b", "hw": "h100-sxm", "tp": 1}, load)
    words = [word for name, text in load.items() for word in (f"--{name}", text)]
    known = json.loads(run("llama-3.1-8b", "h100-sxm", "--tp", "1", *words, "--format", "json")[1])
    found = answer(server, setup, name="verdict")
    assert [found[name] for name in ("devices", "ttft_s", "run")] == [
        known[name] for name in ("devices", "ttft_s", "run")
    ]
    served = answer(server, {**setup, "load.concurrency": "4,16"}, name="load")
    assert served["serving"] == [json.loads(run(*shlex.split(served["command"])[1:], "--format", "json")[1])]
    launched = answer(server, setup, name="run")
    assert "dynamo.yaml" in [file["name"] for file in launched["files"]]
    assert run(*shlex.split(launched["command"])[1:])[0] == 0
    assert ask(server, "run", {**setup, "deploy.pool": "1:1"})[0] == 422
    divided = opening({"model": "gpt-oss-120b", "hw": "8xh200"}, {"concurrency": "64", "disaggregation": "1:1"})
    assert divided["tp"] == "4"


def test_the_work_of_sessions_is_bounded(server: Server) -> None:
    long = {**BASE, "load.by": "sessions", "load.sessions": "2,4", "load.first": "110k", "load.turns": "50"}
    several = [{**BASE, "hw": name} for name in ("h200-sxm", "b200-sxm", "mi300x")]
    alone, beside = (answer(server, long, *more, name="load") for more in ([], several))
    turns = [int(shlex.split(found["command"])[-1]) for found in (alone, beside)]
    assert turns[0] > turns[1]
    assert ask(server, "load", {**long, "load.sessions": "1,2,3,4"}, *several)[0] == 422


def test_comparison_load_and_explanation_are_those_of_their_commands(server: Server, run: Run) -> None:
    other = {**BASE, "hw": "h200-sxm", "goal.tpot": "50ms"}
    found = answer(server, BASE, other, name="compare")
    document = json.loads(run(*shlex.split(found["command"])[1:], "--format", "json")[1])
    assert [entry["expected_total_s"] for entry in found["comparison"]["scenarios"]] == [
        entry["expected_total_s"] for entry in document["scenarios"]
    ]
    load = answer(server, other, name="load")
    assert load["serving"] == [json.loads(run(*shlex.split(load["command"])[1:], "--format", "json")[1])]
    explained = answer(server, BASE, name="explain", phase="decode", place=5)
    document = json.loads(run(*shlex.split(explained["command"])[1:], "--format", "json")[1])
    assert explained["explanation"]["lines"] == document["lines"]
    assert ask(server, "explain", BASE, phase="decode", place=10_000)[0] == 422


@pytest.mark.slow
def test_the_python_of_every_view_runs(server: Server) -> None:
    shortened = {**BASE, "with": "llmlingua", "goal.ttft": "2 s"}
    for name in ("answer", "compare", "advice", "load"):
        names: dict[str, Any] = {}
        exec(answer(server, shortened, BASE, {**BASE, "kv": "fp8"}, name=name)["python"], names)
        assert names["answer"]


@pytest.mark.slow
def test_an_advised_change_gains_what_the_advice_says(server: Server) -> None:
    found = answer(server, {**BASE, "advice.quality": "lossy"}, name="advice")
    assert found["advice"]["quality"] == "lossy"
    before = answer(server, BASE)["analysis"]["generation"]["expected_time_s"]["mid"]
    entries = [*found["advice"]["recommendations"], *found["advice"]["other_hardware"]]
    assert len(entries) > 5
    for entry in entries:
        change = found["changes"][entry["move"]]
        setup = {name: text for name, text in {**BASE, **change}.items() if text is not None}
        after = answer(server, setup)["analysis"]["generation"]["expected_time_s"]["mid"]
        assert after == pytest.approx(entry["figures"]["total"]["mid"])
    plan = {**BASE, **found["plan"][-1]}
    after = answer(server, plan)["analysis"]["generation"]["expected_time_s"]["mid"]
    assert before / after == pytest.approx(found["advice"]["plan"]["times_better"]["mid"], rel=0.05)


def test_an_edited_bandwidth_scales_a_memory_bound_step(server: Server) -> None:
    edited = answer(server, {**BASE, "hw.memory.bandwidth": "6.7 TB/s"})
    texts = {entry["key"]: entry["text"] for entry in edited["hardware"]}
    assert (texts["hw.memory.bandwidth"], texts["hw.memory.capacity"]) == ("6.7 TB/s", "80 GB")
    (file,) = edited["files"]
    assert "--hw my-h100-sxm.yaml" in edited["command"]
    assert yaml.safe_load(file["text"])["memory"]["bandwidth"] == "6.7 TB/s"
    norms = [
        next(op for op in found["analysis"]["phases"]["decode"]["ops"] if op["name"] == "attn_norm")
        for found in (answer(server, BASE), edited)
    ]
    assert norms[0]["bound_time_s"] == pytest.approx(2 * norms[1]["bound_time_s"])
    status, document = ask(server, "answer", {**BASE, "hw.memory.bandwidth": "fast"})
    assert status == 422
    assert document["error"].startswith("my-h100-sxm.yaml: 'memory.bandwidth'")


def test_dropped_files_become_part_of_the_setup(server: Server, tmp_path: Path) -> None:
    text = (ROOT / "tests/data/configs/llama-3.1-8b.json").read_text()
    status, spec = post_dropped(server, "C:\\..\\../config.json", text)
    assert (status, spec["option"]) == (200, "model")
    dropped = answer(server, {**BASE, "model": spec["name"], "model.spec": spec["text"]})
    bundled = answer(server, {**BASE, "model": "llama-3.1-8b"})
    assert dropped["analysis"]["generation"] == bundled["analysis"]["generation"]
    for path in hostile_specs(tmp_path):
        status, spec = post_dropped(server, path.name, path.read_text())
        assert status == 200
        found_hostile = answer(
            server,
            {"model": "llama-68m", "hw": "l4", spec["option"]: spec["name"]} | {f"{spec['option']}.spec": spec["text"]},
        )
        assert all("/" not in file["name"] and "<" not in file["name"] for file in found_hostile["files"])
    for name, content in (
        ("a.safetensors", "{}"),
        ("a.txt", "name: a"),
        ("a.yaml", "!!python/object/apply:os.system [ls]"),
        ("a.json", "["),
    ):
        status, problem = post_dropped(server, name, content)
        assert status == 422
        assert "/tmp" not in problem["error"]
        assert name in problem["error"]


def post_dropped(server: Server, name: str, text: str) -> tuple[int, dict[str, Any]]:
    body = json.dumps({"name": name, "text": text}).encode()
    status, _, content = request(server, "POST", f"/{server.token}/ask/dropped", body)
    return status, json.loads(content)


def test_the_page_reads_no_other_files_of_this_machine(server: Server, tmp_path: Path) -> None:
    _, hardware = hostile_specs(tmp_path)
    for name, text in (("hw", str(hardware)), ("engine", "../vllm.yaml"), ("model", str(tmp_path))):
        status, document = ask(server, "answer", {**BASE, name: text})
        assert status == 422
        assert document["error"].startswith("the page reads no files of this machine")


SECRET = "password: hunter2\nname: x\n"

READS: Mapping[str, Mapping[str, str]] = {
    "an engine": {"engine": "{}"},
    "an engine's version": {"engine": "{}@1"},
    "an option by another spelling": {"engine_": "{}"},
    "an option as on the command line": {"--host": "{}"},
    "a host": {"host": "{}"},
    "hardware": {"hw": "{}"},
    "a model": {"model": "{}"},
    "a model's folder": {"model": "{folder}"},
    "a technique's hardware": {"tp": "1", "with": "fastdecode:hardware={}"},
    "a technique's model": {"with": "fp8+speculative-decoding:draft={}"},
    "a technique's folder": {"with": "speculative-decoding:draft={folder}"},
    "devices for decode": {"with": "disaggregation:decode={}"},
    "a spec's host": {"hw": "x", "hw.spec": "{spec}"},
}


@pytest.mark.parametrize("made", READS.values(), ids=READS)
def test_no_text_of_the_page_opens_a_file(server: Server, tmp_path: Path, made: Mapping[str, str]) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text(SECRET)
    (tmp_path / "config.json").write_text(json.dumps({"password": "hunter2"}))
    spec = (ROOT / "hwspecs/l4.yaml").read_text() + f"\nhost: {secret}\n"
    setup = {key: text.replace("{spec}", spec).format(secret, folder=tmp_path) for key, text in made.items()}
    for question in ("answer", "load", "advice", "csv"):
        status, document = ask(server, question, {**BASE, **setup})
        assert (status, "password" in str(document)) == (422, False)
        assert "the page reads no files of this machine" in document["error"]
    secret.unlink()  # that there is no such file is not told either
    assert ask(server, "answer", {**BASE, **setup}) == (422, document)
    for path in (f"{secret}\0", f"{tmp_path}/{'x' * 5000}"):
        assert ask(server, "answer", {**BASE, "engine": path})[0] == 422


WATCHED: list[str] = []
"""The beginning of the paths that may not be opened."""
OPENED: list[str] = []


def _watch(event: str, details: tuple[Any, ...]) -> None:
    if WATCHED and event in ("open", "os.listdir", "os.scandir") and str(details[0]).startswith(tuple(WATCHED)):
        OPENED.append(str(details[0]))


def test_no_option_and_no_parameter_of_a_technique_opens_a_path(tmp_path: Path) -> None:
    for name in ("x.yaml", "x.csv", "x.gguf", "config.json", "model.safetensors"):
        (tmp_path / name).write_text(SECRET)
    paths = [tmp_path, f"{tmp_path}/x", f"{tmp_path}/x.yaml@1", *sorted(tmp_path.iterdir())]
    parameters = [(one.name, name) for one in techniques().values() for name in (*one.parameters, "draft", "hardware")]
    setups = [{name: str(path)} for name in OPTIONS for path in paths]
    setups += [{"with": f"{one}:{name}={path}"} for one, name in parameters for path in paths]
    sys.addaudithook(_watch)  # it stays, and watches nothing
    specs = Specs()
    try:
        WATCHED.append(str(tmp_path))
        for setup in setups:
            with specs.guarded(), contextlib.suppress(RooflineError):
                specs.read({"model": "llama-3.2-1b", "hw": "h100-sxm", **setup})
    finally:
        WATCHED.clear()
        specs.close()
    assert not OPENED


def test_what_is_refused_and_what_killed_servers_left_is_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "roofline-view-dead" / "x").mkdir(parents=True)
    with serving() as server:
        assert not (tmp_path / "roofline-view-dead").exists()
        (folder,) = tmp_path.iterdir()
        assert post_dropped(server, "x.yaml", "name: x\n")[0] == 422
        assert request(server, "POST", f"/{server.token}/checkpoint?name=x.gguf&size=90", b"GGUF")[0] == 422
        assert not list(folder.iterdir())
        other = Specs()  # of a second server, which leaves the first one's
        other.close()
        assert folder.is_dir()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sent", [b"", b"POST /x HTTP/1.1\r\nHost: ", b"body"], ids=["nothing", "half a head", "body"])
def test_a_request_that_does_not_arrive_ends(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr("roofline.reports.view.server.PATIENCE", 0.2)
    with serving() as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        host = f"Host: 127.0.0.1:{server.port}\r\nConnection: close\r\n"
        head = f"POST /{server.token}/ask/answer HTTP/1.1\r\n{host}Content-Length: 9\r\n\r\n{{".encode()
        client.sendall(head if sent == b"body" else sent)
        answer = b"".join(iter(lambda: client.recv(4096), b""))
        assert (b"did not arrive" in answer) == (sent == b"body")


def test_files_that_the_command_named_stay_readable(tmp_path: Path) -> None:
    engine, draft = tmp_path / "mine.yaml", tmp_path / "draft.yaml"
    engine.write_text((ROOT / "roofline/specs/engines/ideal.yaml").read_text())
    draft.write_text((ROOT / "modelspecs/llama-3.2-1b.yaml").read_text())
    technique = f"speculative-decoding:draft={draft}"
    with serving({**BASE, "engine": str(engine), "with": technique}) as server:
        setup = dict(parse_qsl(urlsplit(server.address).fragment))
        assert answer(server, setup)["analysis"]["techniques"] == [technique]
        draft.write_text(draft.read_text() + "\n")  # edited while the page is open
        assert answer(server, {**setup, "batch": "2"})
        other = tmp_path / "other.yaml"
        other.write_text(SECRET)
        assert ask(server, "answer", {**setup, "engine": str(other)})[0] == 422


def test_files_of_the_command_are_in_its_address(tmp_path: Path) -> None:
    model, hardware = hostile_specs(tmp_path)
    with serving({"model": str(model), "hw": str(hardware)}) as server:
        setup = dict(parse_qsl(urlsplit(server.address).fragment))
        assert setup["hw.spec"] == hardware.read_text()
        found = answer(server, setup)
        assert found["analysis"]["model"] == setup["model"] == yaml.safe_load(model.read_text())["name"]


def test_a_checkpoint_of_the_command_stays_a_file(write_gguf: Write, run: Run) -> None:  # noqa: F811
    path = str(llama_2_7b(write_gguf))
    with serving({"model": path, "hw": "rtx-4090", "engine": "llama.cpp"}) as server:
        setup = dict(parse_qsl(urlsplit(server.address).fragment))
        assert setup["model"] == path
        found = answer(server, setup)
        _, out, _ = run("analyze", path, "--hw", "rtx-4090", "--engine", "llama.cpp", "--format", "json")
        assert found["analysis"] == json.loads(out)
        assert shlex.split(found["command"])[2] == path
        assert ask(server, "answer", {**setup, "model": path.replace("model", "other")})[0] == 422


def test_a_dropped_checkpoint_is_read_from_its_header(server: Server, write_gguf: Write) -> None:  # noqa: F811
    path = llama_2_7b(write_gguf)
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(1 << 20)

    def dropped(name: str, size: object, body: bytes = head) -> tuple[int, dict[str, Any]]:
        address = f"/{server.token}/checkpoint?name={name}&size={size}"
        status, _, text = request(server, "POST", address, body)
        return status, json.loads(text)

    status, options = dropped("..%2Fllama-2-7b.Q4_K_M.gguf", size)
    assert status == 200
    setup = {"hw": "rtx-4090", "engine": "llama.cpp", **options}
    found = answer(server, setup)
    assert found["analysis"]["generation"] == analysed(path)
    assert shlex.split(found["command"])[2] == "llama-2-7b.Q4_K_M.gguf"
    assert found["files"] == []
    wrong = (("a.gguf", 10), ("a.gguf", "x"), ("a.gguf", 1 << 60), ("a.yaml", size), ("a.gguf", size - 64))
    assert [dropped(*one)[0] for one in wrong] == [422] * len(wrong)
    assert dropped("a.gguf", size, b"GGUF")[0] == 422
    for text in ("../../a", f"{'0' * 16}/a.gguf", f"{'0' * 16}/../a"):
        status, problem = ask(server, "answer", {**setup, "model.file": text})
        assert (status, problem["error"].split(":")[-1]) == (422, " drop the file again")


def analysed(path: Path) -> dict[str, Any]:
    """The generation of a checkpoint that is read in place."""
    scenario = Scenario(model=str(path), hw="rtx-4090", engine="llama.cpp")
    found: dict[str, Any] = analysis_document(analyze(scenario))["generation"]
    return found


@pytest.mark.parametrize("kind", sampled(["html", "markdown", "csv"], ["csv"]))
def test_exports(server: Server, kind: str) -> None:
    pytest.importorskip("jinja2")
    found = answer(server, {"model": "llama-68m", "hw": "l4"}, name=kind)
    assert found["name"].startswith("operators" if kind == "csv" else "report")
    assert "down" in found["text"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "roofline.example"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://roofline.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_pages_are_refused(server: Server, headers: dict[str, str], method: str) -> None:
    path = f"/{server.token}/" if method == "GET" else f"/{server.token}/ask/answer"
    body = None if method == "GET" else json.dumps({"setups": [BASE]}).encode()
    assert request(server, method, path, body, **headers)[0] == 403


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/ask/answer", "//", "/favicon.ico", "/%C3%A9/"])
def test_requests_without_the_token_are_refused(server: Server, path: str) -> None:
    status, headers, text = request(server, "GET", path)
    assert status == 403
    assert server.token.encode() not in text
    assert headers["content-security-policy"] == HEADERS["content-security-policy"]


def test_every_response_forbids_scripts_and_requests_elsewhere(server: Server) -> None:
    for path in ("", "view.js", "drawing.js", "catalogue", "missing.js", "ask/answer", "ask/nothing"):
        status, headers, _ = request(server, "GET", f"/{server.token}/{path}")
        assert status in (200, 404, 405), path
        assert {name: headers[name] for name in HEADERS} == HEADERS
    page = request(server, "GET", f"/{server.token}/")[2].decode()
    assert "<script>" not in page
    assert "://" not in page


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"setups": [{"batch": 1}]}', b'{"more": 1}', b'{"setups": []}', b'{"name":"\xff"}']
)
def test_other_bodies_are_errors_of_one_sentence(server: Server, body: bytes) -> None:
    status, _, text = request(server, "POST", f"/{server.token}/ask/answer", body)
    assert status == 422
    assert list(json.loads(text)) == ["error"]


def test_a_body_without_end_is_cut_off(server: Server) -> None:
    status, _, text = request(server, "POST", f"/{server.token}/ask/answer", b" " * (9 << 20))
    assert (status, json.loads(text)) == (422, {"error": "the question is too large"})


def test_the_server_listens_on_this_machine_alone(server: Server) -> None:
    assert server.address.startswith(f"http://127.0.0.1:{server.port}/{server.token}/#model=llama-3.1-70b&hw=h100-sxm")
    assert len(server.token) >= 32
    with pytest.raises(RooflineError, match=f"cannot listen on port {server.port}"):
        Server(BASE, server.port)


def test_the_command_prints_the_address_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "roofline", "view", "llama-68m", "--hw", "l4", "--no-open"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            interrupted(process)
        finally:
            process.kill()
    assert list(tmp_path.iterdir()) == []


def interrupted(process: subprocess.Popen[str]) -> None:
    """Read the address that the command prints, open it, and press Ctrl-C."""
    assert process.stdout is not None
    address = urlsplit(process.stdout.readline().strip())
    assert address.fragment == "model=llama-68m&hw=l4"
    assert address.port is not None
    with urlopen(f"http://127.0.0.1:{address.port}{address.path}") as response:
        assert response.status == 200
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")


def test_an_unknown_model_ends_the_command(run: Run) -> None:
    status, out, err = run("view", "lama-3.1-8b", "--no-open")
    assert (status, out) == (2, "")
    assert "llama-3.1-8b" in err
