"""`roofline sweep`: output formats, files, interruptions, workers and clusters."""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from roofline import cli
from roofline.core.errors import RooflineError
from roofline.core.files import lock
from tests.cases import sampled
from tests.fuzzing import HOSTILE, dumped
from tests.paths import ROOT

BASE = ("sweep", "llama-3.1-8b", "--hw", "h100-sxm")
GRID = (*BASE, "--over", "batch=1:64:log7", "--over", "quant=W16,W4KV8", "--over", "prompt=100:2000:100")
MANY = (*BASE, "--over", "batch=1:20", "--over", "prompt=1:400", "--over", "quant=W16,W4", "--chunk", "200")

Run = Callable[..., tuple[int, str, str]]
Complain = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `roofline ARGS` in this process, in a temporary folder; (exit status, stdout, stderr)."""
    monkeypatch.delenv("ROOFLINE_SPECS", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["roofline", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert isinstance(stop.value.code, int)
        return (stop.value.code, *capfd.readouterr())

    return call


@pytest.fixture
def complain(run: Run, tmp_path: Path) -> Complain:
    """Runs `roofline ARGS`, which must fail with one sentence and leave no file; the sentence."""

    def call(*args: object) -> str:
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        status, out, err = run(*args)
        assert (status, out) == (2, ""), err
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        message = err.removesuffix("\n")
        assert message.startswith("roofline: ")
        assert message.isprintable(), message
        assert len(message) < 600
        return message

    return call


def start(*args: object, **options: Any) -> subprocess.Popen[str]:
    """`roofline ARGS` in its own process, which handles SIGINT even if the tests run in the background."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    interruptible = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import cli; cli.main()"
    command = [sys.executable, "-c", interruptible, *map(str, args)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)


def records(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# Formats


def test_csv_on_stdout(run: Run) -> None:
    status, out, err = run(*GRID, "--format", "csv", "--metrics", "ttft,tpot,bound,fits")
    assert (status, err) == (0, "280 points, 280 rows\n")
    found = records(out)
    assert list(found[0]) == ["batch", "quant", "prompt", "ttft", "tpot", "prefill_bound", "decode_bound", "fits"]
    assert (len(found), found[0]["fits"], found[0]["decode_bound"]) == (280, "true", "memory")
    document = json.loads(run("analyze", *BASE[1:], "--batch", 4, "--prompt", 300, "--format", "json")[1])
    row = next(row for row in found if (row["batch"], row["quant"], row["prompt"]) == ("4", "W16", "300"))
    assert float(row["ttft"]) == pytest.approx(document["generation"]["expected_ttft_s"]["mid"], rel=1e-9)
    assert float(row["tpot"]) == pytest.approx(document["generation"]["expected_tpot_s"]["mid"], rel=1e-9)


def test_all_formats_have_equal_values(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pandas as pd

    tables = []
    for name, read in (("a.csv", pd.read_csv), ("a.jsonl", lambda path: pd.read_json(path, lines=True))):
        assert run(*GRID, "--over", "tp=1,3", "--invalid", "keep", "--generate", 1, "-o", name)[0] == 0
        tables.append(read(tmp_path / name))
    assert run(*GRID, "--over", "tp=1,3", "--invalid", "keep", "--generate", 1, "-o", "a.parquet")[0] == 0
    tables.append(pd.read_parquet(tmp_path / "a.parquet"))
    for table in tables:
        assert len(table) == 560
        assert table["tpot"].isna().all()  # one token only
        assert table["error"].isna().sum() == 280
        assert table["fits"].isna().tolist() == table["error"].notna().tolist()
        assert str(table["batch"].dtype) == "int64"
        for column in ("ttft", "tokens_per_s", "memory"):
            assert table[column].tolist() == pytest.approx(tables[0][column].tolist(), rel=1e-12, nan_ok=True)
        for column in ("quant", "prefill_bound", "error"):  # no formulas in CSV
            texts, others = (entry[column].astype(object).fillna("") for entry in (table, tables[0]))
            assert [text.lstrip("'") for text in texts] == [text.lstrip("'") for text in others]


def test_versions_of_an_engine(run: Run) -> None:
    _, out, _ = run(*BASE, "--batch", 64, "--over", "engine=vllm@0.5,vllm@0.11,vllm@0.24", "--format", "csv")
    slowest, middle, fastest = records(out)
    assert [row["engine"] for row in (slowest, middle, fastest)] == ["vllm@0.5", "vllm@0.11", "vllm@0.24"]
    assert float(slowest["tpot"]) > float(middle["tpot"]) > float(fastest["tpot"])


def test_a_version_is_shown(run: Run) -> None:
    document = json.loads(run("analyze", *BASE[1:], "--engine", "vllm@0.11", "--format", "json")[1])
    assert document["scenario"]["engine"] == "vllm 0.11"
    profile, kernels = document["notes"]
    assert profile == "vLLM 0.11: the profile is that of 0.8 to before 0.14"
    assert kernels.endswith("were not measured: times are those of vllm 0.14.0 on h100-sxm, with wider intervals")
    text = run("analyze", *BASE[1:], "--engine", "vllm@0.11")[1]
    assert "expected on vllm 0.11: TTFT" in text
    assert "note: vLLM 0.11: the profile is that of 0.8 to before 0.14" in text


def test_a_table_has_units(run: Run) -> None:
    status, out, _ = run(*BASE, "--over", "batch=1,8", "--over", "with=none,eagle+awq")
    assert status == 0
    assert "eagle+awq" in out
    assert " ms " in out
    assert " GB " in out
    assert len([line for line in out.splitlines() if "yes" in line]) == 4


def test_no_column_is_cut_off(run: Run) -> None:
    metrics = (
        "ttft,ttft.low,ttft.high,tpot,total,tokens_per_s,tokens_per_s_per_gpu,memory,memory.kv,headroom,fits,bound"
    )
    loops = ("--over", "hw=h100-sxm,mi300x", "--over", "with=speculative-decoding:draft=llama-3.2-1b")
    grid = ("--over", "batch=1,64", "--over", "prompt=100", "--over", "generate=3")
    status, out, _ = run(*BASE[:2], *loops, *grid, "--metrics", metrics)
    assert status == 0
    assert len({len(line) for line in out.splitlines() if "yes" in line}) == 1
    for words in ("speculative-decoding:draft=llama-3.2-1b", "mi300x", "compute", "tokens_per_s", "_per_gpu", " MB"):
        assert words in out


def test_long_table_counts_omitted_rows(run: Run) -> None:
    _, out, err = run(*GRID)
    assert "180 more rows" in out
    assert err == "280 points, 280 rows\n"


def test_closing_line_counts_invalid_points(run: Run) -> None:
    status, _, err = run(*BASE, "--over", "tp=1,3", "--over", "batch=1:5")
    assert status == 0
    assert err == (
        "10 points, 5 rows; 5 points cannot run: tensor parallelism of 3 does not divide the 32 attention heads of"
        " llama-3.1-8b\n"
    )


def test_progress_is_shown_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.reports.tables.sweep.on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    status, out, err = run(*GRID, "--chunk", 20, "--format", "csv", "--metrics", "ttft")
    assert (status, len(records(out))) == (0, 280)
    assert "100%" in err
    assert "points/s" in err
    assert err.endswith("280 points, 280 rows\n")


def test_top_where_and_pareto(run: Run) -> None:
    options = ("--format", "csv", "--where", "fits and ttft < 100ms")
    _, out, err = run(*GRID, *options, "--top", 3, "--by", "tokens_per_s_per_gpu")
    assert len(records(out)) == 3
    assert err == "280 points, 3 rows\n"
    _, out, _ = run(*GRID, *options, "--pareto", "ttft,tokens_per_s_per_gpu")
    figures = [(float(row["ttft"]), float(row["tokens_per_s_per_gpu"])) for row in records(out)]
    assert figures == sorted(figures) and len(figures) > 2  # noqa: PT018
    assert sorted(rate for _, rate in figures) == [rate for _, rate in figures]


def test_a_study_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "model: llama-3.1-8b\nhw: h100-sxm\nover:\n  batch: 1:64:log7\n  quant: [W16, W4KV8]\n  prompt: 100:2000:100\n"
    )
    assert run("sweep", "study.yaml", "--format", "csv") == run(*GRID, "--format", "csv")
    _, out, _ = run("sweep", "study.yaml", "--format", "csv", "--metrics", "total", "--at", "bound", "--batch", 3)
    assert (len(records(out)), list(records(out)[0])) == (40, ["quant", "prompt", "total"])


def test_the_options_of_a_scenario_are_those_of_analyze(run: Run) -> None:
    _, analyze, _ = run("analyze", "--help-all")
    _, sweep, _ = run("sweep", "--help-all")
    flags = {word.rstrip(",") for word in analyze.split() if word.startswith("--")}
    assert flags - {word.rstrip(",") for word in sweep.split()} == {"--phase", "--ops", "--verbose"}


# Mistakes


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (BASE, ["axis"]),
        ((*BASE, "--over", "bacth=1"), ["'batch'"]),
        ((*BASE, "--over", "batch=1", "--over", "batch=2"), ["twice"]),
        ((*BASE, "--over", "hw=h100-sxm"), ["hw is an axis"]),
        ((*BASE, "--over", "batch=1", "--where", "ttft <"), ["cannot read"]),
        ((*BASE, "--over", "batch=1", "--where", "not fits", "-o", "a.csv"), ["none of the 1 points"]),
        ((*BASE, "--over", "tp=3", "--format", "csv"), ["can run: tensor parallelism of 3 does not divide"]),
        ((*BASE, "--over", "batch=1", "--format", "parquet"), ["--output"]),
        ((*BASE, "--over", "batch=1", "--format", "csv", "--resume"), ["--output"]),
        ((*BASE, "--over", "batch=1", "--workers", "2", "--dask", "tcp://x:1"), ["exclude each other"]),
        ((*BASE, "--over", "batch=1", "-o", "no/such/a.csv", "--resume"), ["No such file"]),
        (("sweep", "--over", "batch=1", "--hw", "h100-sxm"), ["a model"]),
        (("sweep", "no-study.yaml", "--over", "batch=1", "--hw", "h100-sxm"), ["no-study.yaml"]),
    ],
)
def test_user_errors_are_one_sentence(complain: Complain, args: tuple[object, ...], words: list[str]) -> None:
    message = complain(*args)
    assert [word for word in words if word not in message] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("format", ["table", "csv", "jsonl", "parquet"])
def test_a_full_disk_is_one_sentence(complain: Complain, format: str) -> None:
    message = complain(*GRID, "--format", format, "-o", "/dev/full")
    assert "No space left" in message


@pytest.mark.slow
def test_a_full_stdout_is_one_sentence() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("w") as full:
        process = start(*GRID, "--format", "csv", stdout=full)
        _, err = process.communicate()
    assert process.returncode == 2
    assert err.startswith("roofline: cannot write the output: No space left")
    assert err.count("\n") == 1


def test_an_unreachable_scheduler_is_one_sentence(complain: Complain, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("distributed") is None:
        message = complain(*GRID, "--dask", "tcp://127.0.0.1:1")
        assert "[cluster]'" in message
        return
    process = start(*GRID, "--dask", "tcp://127.0.0.1:1", stdout=subprocess.PIPE)
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert err == "roofline: no Dask scheduler answers at 'tcp://127.0.0.1:1'; write it like tcp://host:8786\n"


# Interruptions


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 60) -> None:
    """Waits until a condition holds, while a process runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < end
        time.sleep(0.01)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "selection"),
    [
        ("csv", ()),
        ("jsonl", ()),
        ("parquet", ()),
        ("csv", ("--pareto", "ttft,tokens_per_s_per_gpu,memory")),
        ("parquet", ("--top", "50", "--by", "tokens_per_s")),
    ],
)
def test_killed_and_resumed_sweep_is_complete(
    run: Run, tmp_path: Path, suffix: str, selection: tuple[str, ...]
) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    command = (*MANY, *selection)
    whole, output = tmp_path / f"whole.{suffix}", tmp_path / f"answer.{suffix}"
    manifest = tmp_path / f"answer.{suffix}.part.manifest"
    assert run(*command, "-o", whole)[0] == 0
    process = start(*command, "-o", output, "--resume", stdout=subprocess.PIPE)
    wait_for(lambda: lines(manifest) > 10, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not output.exists()
    done = lines(manifest) - 1
    assert 10 <= done < 80
    status, _, err = run(*command, "-o", output, "--resume")
    assert status == 0
    assert err.startswith("16,000 points, ")
    assert output.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [output.name, whole.name]


def cut_off(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, bytes]:
    """A sweep of 8 chunks, interrupted after 5: the partial file, its manifest, and the complete output."""
    from roofline.reports.tables import resumable

    command = (*GRID, "--chunk", 35, "-o", "answer.csv")
    assert run(*command)[0] == 0
    whole = (tmp_path / "answer.csv").read_bytes()
    (tmp_path / "answer.csv").unlink()
    append, calls = resumable.Spool.append, []

    def limited(self: resumable.Spool, *args: Any) -> None:
        calls.append(args)
        if len(calls) > 5:
            raise RooflineError("cut off")
        append(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(resumable.Spool, "append", limited)
        assert run(*command, "--resume") == (2, "", "roofline: cut off\n")
    return tmp_path / "answer.csv.part", tmp_path / "answer.csv.part.manifest", whole


@pytest.mark.parametrize(
    "damage", sampled(["nothing", "torn data", "torn manifest", "flipped", "lost end", "no part", "gap"], 3)
)
def test_rows_outside_the_manifest_are_computed_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    part, manifest, whole = cut_off(run, tmp_path, monkeypatch)
    data, log = part.read_bytes(), manifest.read_bytes().splitlines(keepends=True)
    assert len(log) == 6
    assert whole.startswith(data)
    match damage:
        case "torn data":
            part.write_bytes(data + b"1,W16,10")
        case "torn manifest":
            manifest.write_bytes(b"".join(log)[:-20])
        case "flipped":
            part.write_bytes(data[:-100] + b"9" + data[-99:])
        case "lost end":
            part.write_bytes(data[:-300])
        case "no part":
            part.unlink()
        case "gap":
            manifest.write_bytes(b"".join(log[:3] + log[4:]))
    status, _, err = run(*GRID, "--chunk", 35, "-o", "answer.csv", "--resume")
    assert (status, err) == (0, "280 points, 280 rows\n")
    assert (tmp_path / "answer.csv").read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["answer.csv"]


def test_resume_rejects_another_sweep(
    run: Run, complain: Complain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, manifest, _ = cut_off(run, tmp_path, monkeypatch)
    assert "another sweep" in complain(*GRID, "--chunk", 35, "-o", "answer.csv", "--resume", "--at", "bound")
    assert "another sweep" in complain(*GRID, "--chunk", 36, "-o", "answer.csv", "--resume")
    manifest.write_text("what?\n")
    assert "not the manifest" in complain(*GRID, "--chunk", 35, "-o", "answer.csv", "--resume")


RESUMED = (*GRID, "--chunk", 35, "-o", "answer.csv", "--resume")


@pytest.mark.parametrize("name", ["answer.csv.part", "answer.csv.part.manifest"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "text"])
def test_files_of_others_are_left_alone(complain: Complain, tmp_path: Path, name: str, kind: str) -> None:
    target, planted = tmp_path / "target", tmp_path / name
    if kind == "link":
        target.write_text("precious\n")
    match kind:
        case "pipe":
            os.mkfifo(planted)
        case "text":
            planted.write_text("precious\n")
        case _:
            planted.symlink_to(target)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert "delete it" in complain(*RESUMED)
    assert set(before) <= {path.name for path in tmp_path.iterdir()}
    assert not (tmp_path / "answer.csv").exists()
    for path in (target, planted):
        assert not path.is_file() or path.read_text() == "precious\n"


@pytest.mark.slow
def test_tampered_manifests_are_noticed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mutant of the manifest gives the whole output and its true counts, or one sentence."""
    part, manifest, whole = cut_off(run, tmp_path, monkeypatch)
    data, log = part.read_bytes(), manifest.read_bytes()
    records = [json.loads(line) for line in log.splitlines()]
    generator = random.Random(0)
    for _ in range(60):
        changed = copy.deepcopy(records)
        record = generator.choice(changed)
        record[generator.choice(list(record))] = generator.choice((*HOSTILE, {"why": 2}, {"why": -1}, {"why": "x"}))
        text = "".join(dumped(record, partial(json.dumps, default=str)) + "\n" for record in changed).encode()
        if generator.random() < 0.2:
            at = generator.randrange(len(log))
            text = log[:at] + bytes(generator.choices(range(256), k=3)) + log[at + generator.randrange(20) :]
        manifest.write_bytes(text)
        part.write_bytes(data)
        status, out, err = run(*RESUMED)
        assert (status, out, err.count("\n")) in ((0, "", 1), (2, "", 1)), (text, err)
        if status == 0:
            assert err == "280 points, 280 rows\n"
            assert (tmp_path / "answer.csv").read_bytes() == whole


def test_one_writer_of_a_file(complain: Complain, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from roofline.reports.tables.resumable import Spool

    with Spool(tmp_path / "answer.csv", "another"):
        assert "another process is writing" in complain(*RESUMED)
    whole_file, left = tmp_path / "whole.csv", tmp_path / f".whole.csv.{'0a' * 8}"
    left.write_text("of a killed run")
    with left.open("r+b") as file:
        lock(file.fileno(), left)
        os.utime(left, (0, 0))
        assert run(*GRID, "-o", whole_file)[0] == 0
        assert left.exists()
    assert run(*GRID, "-o", whole_file)[0] == 0
    assert not left.exists()


def test_an_interrupted_sweep_leaves_nothing(tmp_path: Path) -> None:
    process = start(*MANY, "-o", tmp_path / "answer.csv", stdout=subprocess.PIPE)
    wait_for(lambda: any(tmp_path.iterdir()), process)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


# Workers and clusters


@pytest.mark.slow
def test_workers_write_what_one_process_writes(run: Run, tmp_path: Path) -> None:
    assert run(*MANY, "-o", "serial.csv")[0] == 0
    assert run(*MANY, "-o", "workers.csv", "--workers", 2)[0] == 0
    assert (tmp_path / "workers.csv").read_bytes() == (tmp_path / "serial.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path: Path, sent: int) -> None:
    process = start(*MANY, "-o", tmp_path / "answer.csv", "--resume", "--workers", "2", stdout=subprocess.PIPE)
    wait_for(lambda: lines(tmp_path / "answer.csv.part.manifest") > 3, process)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(workers) >= 2
    os.kill(process.pid, sent)
    process.communicate(timeout=20)  # until no process holds the pipe
    end = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < end
        time.sleep(0.05)


class Cluster:
    """A Dask scheduler and two worker processes on the loopback interface."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._options: dict[str, Any] = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        where = folder / "scheduler.json"
        self.processes = [self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", where)]
        end = time.monotonic() + 60
        while not (where.exists() and where.read_text().strip().endswith("}")):
            assert time.monotonic() < end
            time.sleep(0.05)
        self.address = json.loads(where.read_text())["address"]
        for _ in range(2):
            self.processes.append(
                self._start("worker", self.address, "--no-nanny", "--nthreads", "1", "--host", "127.0.0.1")
            )

    def _start(self, what: str, *args: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *map(str, args), "--no-dashboard"]
        return subprocess.Popen(command, cwd=self.folder, **self._options)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if find_spec("distributed") is None:
        pytest.skip("distributed is not installed: pip install 'llm-roofline[cluster]'")
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.stop()


def test_a_cluster_that_loses_a_worker_loses_nothing(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    assert run(*MANY, "-o", "serial.csv")[0] == 0
    manifest = tmp_path / "answer.csv.part.manifest"
    process = start(*MANY, "-o", tmp_path / "answer.csv", "--resume", "--dask", cluster.address, stdout=subprocess.PIPE)
    wait_for(lambda: lines(manifest) > 10, process)
    cluster.processes[1].kill()
    assert lines(manifest) < 70, "it was killed midway"
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "16,000 points, 16,000 rows\n")
    assert (tmp_path / "answer.csv").read_bytes() == (tmp_path / "serial.csv").read_bytes()
