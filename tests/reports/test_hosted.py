"""The page that a team hosts: many clients at once, and hostile ones, which cost the others nothing."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("uvicorn", reason="the live page needs uvicorn and Starlette")
pytest.importorskip("starlette", reason="the live page needs uvicorn and Starlette")

from roofline.reports.view import hosted, limits
from roofline.reports.view.hosted import SharedServer
from roofline.reports.view.limits import AT_ONCE, Budget, Clients
from roofline.reports.view.server import HEADERS
from roofline.reports.view.setups import Specs
from roofline.specs.hardware import list_hardware
from tests.conftest import Run
from tests.paths import ROOT

SETUP = {"model": "llama-68m", "hw": "l4"}


@pytest.fixture(scope="module")
def team() -> Iterator[SharedServer]:
    server = SharedServer(SETUP, "127.0.0.1", 0, 1)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server
    assert server.uvicorn is not None
    server.uvicorn.should_exit = True
    thread.join(10)


def ask(
    server: SharedServer, name: str, setup: Any, client: str, body: Any = None, **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """Status, document and headers of the answer to a client, which is told by the proxy before the server."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    sent = json.dumps({"setups": [setup]}).encode() if body is None else body
    told = {"X-Forwarded-For": client, **{key.replace("_", "-"): text for key, text in headers.items()}}
    connection.request("POST", name if name.startswith("/") else f"/ask/{name}", sent, told)
    response = connection.getresponse()
    found = response.status, response.read(), {key.lower(): text for key, text in response.getheaders()}
    connection.close()
    return found[0], json.loads(found[1]) if found[1].startswith(b"{") else found[1], found[2]


def get(server: SharedServer, path: str, **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    found = response.status, response.read().decode()
    connection.close()
    return found


def test_a_hundred_clients_are_all_answered(team: SharedServer) -> None:
    devices = [name for name in list_hardware() if name[0] in "ahmr"][:12]

    def visit(number: int) -> list[tuple[int, str]]:
        setup = {"model": "llama-68m", "hw": devices[number % len(devices)]}
        found = [ask(team, name, setup, f"10.0.0.{number}")[:2] for name in ("verdict", "answer")]
        return [(status, document.get("analysis", document)["hardware"]) for status, document in found]

    with ThreadPoolExecutor(100) as pool:
        found = list(pool.map(visit, range(100)))
    assert found == [[(200, devices[number % len(devices)])] * 2 for number in range(100)]


def test_one_client_cannot_fill_the_queue(team: SharedServer) -> None:
    def flood(number: int) -> tuple[int, str]:
        setup = {"model": "llama-68m", "hw": "a6000", "batch": str(number + 1)}
        status, _, headers = ask(team, "answer", setup, "192.0.2.1")
        return status, headers.get("retry-after", "")

    with ThreadPoolExecutor(64) as pool:
        flooded = [pool.submit(flood, number) for number in range(300)]
        assert ask(team, "answer", {**SETUP, "batch": "3"}, "192.0.2.2")[0] == 200
    counts = Counter(each.result() for each in flooded)
    assert counts.keys() == {(200, ""), (429, "1")}
    assert counts[200, ""] >= AT_ONCE


def test_work_and_bytes_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    budget = Budget(10, 2)
    budget.take(14)
    assert budget.left == -4
    now += 3
    assert budget.left == 2
    now += 100
    assert budget.left == 10


def test_a_network_of_ipv6_is_one_client_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENTS", 3)
    clients = Clients()
    assert clients.of("2001:db8::1") is clients.of("2001:db8::2") is not clients.of("2001:db8:0:1::1")
    for number in range(9):
        clients.of(f"10.0.0.{number}")
    assert len(clients.known) == 3


def test_used_up_work_is_refused_until_it_comes_back(team: SharedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORK", 1e-6)
    monkeypatch.setattr(limits, "WORK_RATE", 1e-3)
    assert ask(team, "answer", {**SETUP, "batch": "5"}, "192.0.2.3")[0] == 200
    status, document, headers = ask(team, "answer", {**SETUP, "batch": "6"}, "192.0.2.3")
    assert status == 429
    assert re.fullmatch(r"your share of work is used up for \d+ s", document["error"])
    assert int(headers["retry-after"]) > 10


@pytest.mark.slow
def test_an_answer_that_takes_too_long_is_ended_and_the_next_is_given(
    team: SharedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(hosted, "TIME", 0.05)
        status, document, _ = ask(team, "load", {"model": "deepseek-v3", "hw": "8xh200", "quant": "fp8"}, "192.0.2.4")
    assert (status, document["error"][:31]) == (503, "the answer takes longer than 0.")
    assert ask(team, "answer", {**SETUP, "batch": "7"}, "192.0.2.4")[0] == 200


def test_bodies_are_bounded_also_without_a_length(team: SharedServer) -> None:
    large = b" " * (hosted.QUESTION + 1)
    for body in (large, iter([large])):
        status, document, _ = ask(team, "answer", {}, "192.0.2.5", body)
        assert (status, document) == (422, {"error": "the question is too large"})
    status, document, _ = ask(team, "/checkpoint?name=x.gguf&size=10", {}, "192.0.2.5", b" " * (hosted.HEAD + 1))
    assert (status, document) == (422, {"error": "the question is too large"})
    with socket.create_connection(("127.0.0.1", team.port)) as slow:  # which waits with the rest of its request
        slow.sendall(b"POST /ask/answer HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        assert get(team, "/healthz")[0] == 200


def test_files_of_no_length_are_charged_as_the_largest(team: SharedServer) -> None:
    found = [ask(team, "/checkpoint?name=x.gguf&size=10", {}, "192.0.2.8", iter([b"x"]))[0] for _ in range(4)]
    assert found == [422, 422, 422, 429]


def test_idle_connections_of_one_address_leave_room_for_others(
    team: SharedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "EACH", 5)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "")
    with ExitStack() as held:
        for _ in range(9):
            one = held.enter_context(socket.create_connection(("127.0.0.1", team.port), timeout=10))
        with suppress(ConnectionResetError):
            assert one.recv(1) == b""
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.0.0.0/8,127.0.0.0/8")
        assert get(team, "/healthz")[0] == 200


@pytest.mark.parametrize("option", ["model", "hw", "engine", "prompt"])
def test_no_file_is_read(team: SharedServer, tmp_path: Path, option: str) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("password: hunter2\n")
    for text in (str(secret), str(tmp_path), "/etc/passwd", "../../etc/passwd", f"{team.specs.folder}/../x.yaml"):
        status, document, _ = ask(team, "answer", {**SETUP, option: text}, "192.0.2.6")
        assert (status, "hunter2" in str(document), "root:" in str(document)) == (422, False, False)


HOSTILE = (
    b"",
    b"[" * 100_000,
    b'{"setups": [{"model": "llama-68m", "hw": "l4", "with": "' + b"+" * 1000 + b'x"}]}',
    b'{"setups": [{"model": "x", "model.spec": "a: &a [*a, *a]", "hw": "l4"}]}',
    b'{"setups": [{"model": "llama-68m", "hw": "l4", "load.concurrency": "1:9999999:log999999"}]}',
    b'{"setups": [{"model": "llama-68m", "hw": "l4", "batch": "1e400"}]}',
    b'{"setups": [{"model": "llama-68m\\u0000", "hw": "\\ud800"}]}',
)


@pytest.mark.parametrize("name", ["answer", "load", "run", "csv", "dropped", "nothing"])
def test_hostile_questions_are_refused_in_a_sentence(team: SharedServer, name: str) -> None:
    for number, body in enumerate(HOSTILE):
        status, document, headers = ask(team, name, {}, f"192.0.2.{100 + number}", body)
        assert status in (200, 404, 422), (body[:80], document)
        assert status == 200 or list(document) == ["error"]
        assert {key: headers[key] for key in HEADERS} == HEADERS


def test_any_host_and_no_other_site(team: SharedServer) -> None:
    assert get(team, "/", Host="roofline.team.example")[0] == 200
    origin = {"Host": "roofline.team.example", "Origin": "https://roofline.team.example"}
    assert ask(team, "answer", SETUP, "192.0.2.7", **origin)[0] == 200
    for other in ("https://elsewhere.example", "http://[", "null"):
        assert get(team, "/", Origin=other)[0] == 403


def test_health_and_metrics(team: SharedServer) -> None:
    ask(team, "answer", SETUP, "192.0.2.8")
    assert get(team, "/healthz") == get(team, "/readyz") == (200, "ok\n")
    status, text = get(team, "/metrics")
    assert status == 200
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r'[a-z_]+(\{[a-z]+="\w+"(,[a-z]+="\w+")*\})? [\d.e+-]+', line) for line in lines)
    assert "roofline_running 0" in lines
    assert next(line for line in lines if line.startswith('roofline_requests_total{question="answer",status="200"}'))
    assert get(team, "/../../etc/passwd")[0] == 404
    assert json.loads(get(team, "/catalogue")[1])["opening"] == SETUP


def test_the_manifest_is_valid() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    documents = list(yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["Deployment", "Service", "NetworkPolicy"]
    for document in documents:
        validate.validate(document, "1.33", strict=True)


def test_what_is_held_is_bounded(tmp_path: Path) -> None:
    specs = Specs(str(tmp_path), 200_000)
    for number in range(30):
        specs.write(f"{number}" * 20_000, "x.yaml")
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.yaml")) < 300_000
    specs.close()
    assert list(tmp_path.iterdir())  # they are the server's


@pytest.mark.slow
def test_options_of_a_team_are_refused_without_it(run: Run) -> None:
    status, _, err = run("view", "llama-68m", "--hw", "l4", "--listen", "0.0.0.0")
    assert (status, "--shared" in err) == (2, True)
