"""Recorded requests as workloads: what is recorded of a known workload has its distributions again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roofline.core.errors import RooflineError
from roofline.scenario.lengths import parse_lengths
from roofline.serving.sessions.drawn import Draw, Session, Turn, grown, turn_of
from roofline.serving.sessions.profiles import profile
from roofline.serving.sessions.recorded import as_text, read_recorded
from roofline.serving.sessions.workload import Workload, parse_gaps
from tests.conftest import Run

WORK = Workload(
    turns=parse_lengths("uniform:4:12"),
    first=parse_lengths("uniform:3000:9000"),
    new=parse_lengths("uniform:600:2400"),
    output=parse_lengths("uniform:100:500"),
    gap=parse_gaps("exponential:mean=8s"),
    shared=2048,
    asides=0.05,
    aside=700,
)
SERVICE = 3.0


def turns(session: Session) -> list[Turn]:
    found = []
    while session.place < len(session.new):
        found.append(turn_of(session, WORK))
        grown(session, WORK)
    return found


def recorded(kind: str, number: int = 80) -> list[dict[str, Any]]:
    """Rows of sessions that begin one after the other; each turn takes SERVICE seconds."""
    draw, rows = Draw(WORK, 3), []
    for name in range(number):
        now = 7.0 * name
        for turn in turns(draw.session()):
            row: dict[str, Any] = {"session_id": f"alice-{name}", "timestamp": now, "latency": SERVICE}
            row |= {"input_length": turn.prompt, "output_length": turn.output}
            if kind == "mooncake":
                whole, own = turn.prompt // 512, f"{name}-{'aside' if turn.aside else ''}"
                blocks = [place if place < 4 and not turn.aside else f"{own}{place}" for place in range(whole)]
                row = {"timestamp": round(now * 1000), "hash_ids": [*blocks, f"{own}-{now}"]} | {
                    name: row[name] for name in ("input_length", "output_length")
                }
            rows.append(row)
            now += SERVICE + turn.gap
    return rows


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_log_has_the_distributions_of_its_workload(tmp_path: Path) -> None:
    found = read_recorded(written(tmp_path / "log.jsonl", recorded("log")))
    work = found.workload
    assert found.sessions == pytest.approx(80, abs=4)  # a side call at the end is a session of its own
    assert work.kept
    for one, two in ((work.turns, WORK.turns), (work.new, WORK.new), (work.output, WORK.output)):
        assert one.mean == pytest.approx(two.mean, rel=0.1)
    assert work.asides == pytest.approx(0.05, abs=0.03)
    assert work.aside == 700
    assert work.gap.quantiles(np.array([0.5]))[0] == pytest.approx(8 * np.log(2), rel=0.25)
    assert "alice" not in as_text(work)


def test_sessions_of_a_mooncake_trace_are_found_by_their_blocks(tmp_path: Path) -> None:
    found = read_recorded(written(tmp_path / "trace.jsonl", recorded("mooncake")))
    log = read_recorded(written(tmp_path / "log.jsonl", recorded("log")))
    assert found.kind == "Mooncake trace"
    assert found.workload.new.mean == pytest.approx(log.workload.new.mean, rel=0.15)
    # Side calls have no block of their session.
    assert found.sessions == pytest.approx(80 * (1 + 0.05 * 8), rel=0.1)


def test_other_formats(tmp_path: Path) -> None:
    weka = {"id": "x", "block_size": 64, "requests": [
        {"t": 0.0, "type": "n", "in": 6400, "out": 100, "api_time": 5.0, "hash_ids": list(range(100))},
        {"t": 9.0, "type": "s", "requests": [{"t": 9.0, "in": 640, "out": 10, "api_time": 1.0}]},
        {"t": 15.0, "type": "n", "in": 7040, "out": 200, "api_time": 5.0, "hash_ids": list(range(110))},
    ]}  # fmt: skip
    found = read_recorded(written(tmp_path / "weka.json", [weka]))
    assert (found.sessions, found.requests, found.workload.gap.written) == (2, 3, "10s")
    record = {"metrics": {"input_sequence_length": {"value": 100}, "output_sequence_length": {"value": 10}}}
    ends = {"request_start_ns": 0, "request_end_ns": 10**9, "conversation_id": "c"}
    assert read_recorded(written(tmp_path / "a.jsonl", [record | {"metadata": ends}])).workload.output.mean == 10
    session = [{"session_id": "s", "input_length": 100, "output_length": 50, "delay": delay} for delay in (0, 2000)]
    grown_by = read_recorded(written(tmp_path / "b.jsonl", session)).workload
    assert (grown_by.new.mean, grown_by.gap.written) == (100, "2s")
    chat = {"messages": [{"role": "user", "content": "x" * 400}, {"role": "assistant", "content": "y" * 80}] * 2}
    path = written(tmp_path / "c.json", [chat])
    assert read_recorded(path, 4.0).workload.output.mean == 20
    with pytest.raises(RooflineError, match="characters"):
        read_recorded(path)


@pytest.mark.parametrize("name", ["input_length", "output_length", "latency", "delay"])
@pytest.mark.parametrize("value", ["soon", 10**400, -1])
def test_a_recorded_number_that_is_none_is_refused(name: str, value: object, tmp_path: Path) -> None:
    row = {"session_id": "s", "timestamp": 0, "latency": 3.0, "input_length": 100, "output_length": 50, "delay": 0}
    with pytest.raises(RooflineError, match="tokens or seconds"):
        read_recorded(written(tmp_path / "a.jsonl", [row, row | {name: value}]))


def test_a_servers_histograms(tmp_path: Path) -> None:
    lines = ["# TYPE vllm:request_prompt_tokens histogram"]
    for name, bounds in (("prompt", (100, 1000)), ("generation", (10, 50))):
        for bound, value in zip((*bounds, "+Inf"), (50, 90, 100), strict=True):
            lines.append(f'vllm:request_{name}_tokens_bucket{{model_name="m",le="{bound}"}} {value}')
    path = tmp_path / "metrics"
    path.write_text("\n".join(lines))
    found = read_recorded(path)
    assert found.workload.new.written == "quantiles:p50=100,p90=1000"
    assert found.requests == 100


@pytest.mark.parametrize(("le", "value"), [("10", "+"), ("1O", "5"), ("10", "NaN"), ("10", "1e999")])
def test_a_bucket_that_is_no_number_is_named(le: str, value: str, tmp_path: Path) -> None:
    lines = [f'sglang:{name}_tokens_histogram_bucket{{le="{le}"}} {value}' for name in ("prompt", "generation")]
    lines += [f'vllm:request_{name}_tokens_bucket{{le="{le}"}} {value}' for name in ("prompt", "generation")]
    path = tmp_path / "metrics"
    path.write_text("\n".join(["# TYPE x histogram", *lines]))
    with pytest.raises(RooflineError, match="tokens has a bucket that is no number"):
        read_recorded(path)


@pytest.mark.parametrize("name", ["coding-agent", "chat", "rag"])
def test_a_workload_is_a_file_and_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / "work.json"
    path.write_text(as_text(profile(name)))
    found = profile(str(path))
    assert found == profile(name)


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2", '{"requests": [1]}', '{"prompt": 5}', '[{"input": -1, "output": 2}]', "# HELP x"]
)
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(RooflineError):
        read_recorded(path)


def test_the_command_and_serve(tmp_path: Path, run: Run) -> None:
    log, work = written(tmp_path / "log.jsonl", recorded("log", 30)), tmp_path / "work.json"
    assert run("workload", str(log), "--output", str(work))[0] == 0
    status, out, _ = run(
        "serve", "llama-3.1-8b", "--hw", "h100-sxm", "--sessions", "4", "--profile", str(work), "--simulate", "300"
    )
    assert status == 0
    assert "Sessions (recorded)" in out
