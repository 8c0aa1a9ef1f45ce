"""Tables, results of other benchmarks and files of weights that `make fuzz` mutates, and everything that reads them."""

from __future__ import annotations

import json
import math
import random
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from lab.llama_cpp.random_model import write_random_model
from lab.score.footprints import read_footprints
from lab.score.serving import read_cases
from lab.tables.closed_loop import COLUMNS as SERVING
from roofline import Scenario
from roofline.reports.documents.sessions import sessions_document
from roofline.reports.output.export import as_json
from roofline.scenario.lengths import parse_lengths
from roofline.serving.sessions.profiles import profile
from roofline.serving.sessions.recorded import as_text, hit_rates, read_recorded
from roofline.serving.sessions.served import serve_sessions
from roofline.serving.traces import read_trace
from roofline.specs.modelspec import parse_model
from roofline.specs.weight_files.gguf import read_gguf
from roofline.specs.weight_files.safetensors import read_header
from roofline.validate.fit.calibrate import fitted
from roofline.validate.imports.convert import import_files
from roofline.validate.imports.result import Given
from roofline.validate.score.end_to_end import end_to_end
from roofline.validate.score.kernels import score_file
from roofline.validate.tables.rowfile import COLUMNS, RowFile, case_of, read_rows
from roofline.validate.tables.rows import read_measurements
from tests.fuzz.files import raws
from tests.fuzzing import attempt, damaged, disordered, dumped, hostile, measured_gemms, mutated

CELLS: tuple[Any, ...] = (
    *(
        "many",
        "64",
        " ",
        None,
        True,
        b"64",
        1e300,
        5e-324,
        -1,
        0,
        0.5,
        math.nan,
        math.inf,
        -math.inf,
        "9" * 400,
        10**40,
    ),
    *([64], {"a": 64}, pd.Timestamp(0), pd.Timedelta(1), 64j, "x" * 10_000, "nan", "1e999", "=1+1", 1e15, 2**53),
)


def measurements(generator: random.Random, folder: Path) -> None:
    """A table of kernels, scored and now and then fitted."""
    frame = measured_gemms(12).astype(object)
    for _ in range(generator.randint(1, 3)):
        name, value = generator.choice(list(frame)), generator.choice(CELLS)
        whole, place = generator.random() < 0.5, list(frame).index(name)  # two columns may have one name
        cells = enumerate(frame.iloc[:, place])
        frame.isetitem(place, pd.Series([value if whole or row == 1 else cell for row, cell in cells], dtype=object))
        if generator.random() < 0.1:
            frame = frame.drop(columns=name)
        if generator.random() < 0.1:
            frame = frame.rename(
                columns={generator.choice(list(frame)): generator.choice(("m", "window", "causal", ""))}
            )
    path = folder / "rows.csv"
    if generator.random() < 0.5:
        path = folder / "rows.parquet"
        try:
            frame.to_parquet(path)
        except Exception:  # not a column that a file can hold
            return
    else:
        frame.to_csv(path, index=False)
    if generator.random() < 0.2:
        path.write_bytes(damaged(path.read_bytes(), generator))
    if attempt(lambda: read_measurements(path)) is None:
        return
    scored = attempt(lambda: score_file(path, None, ["op", "format", "regime"]))
    if scored is not None:
        attempt(lambda: as_json(scored))
    if generator.random() < 0.05:
        attempt(lambda: fitted(path, "h100-sxm", None))


def rows(generator: random.Random, folder: Path) -> None:
    """A file of `validate measure`, read and continued."""
    path = folder / "rows.csv"
    path.write_bytes(damaged(generator.choice(raws("validate/measurements/*.csv"))[1][:3000], generator))
    for row in attempt(lambda: read_rows(path)) or ():
        attempt(lambda row=row: case_of(row))  # type: ignore[misc]

    def continued() -> None:
        with RowFile(path) as file:
            file.append(dict.fromkeys(COLUMNS, "1"))

    attempt(continued)


def figures(generator: random.Random, folder: Path) -> None:
    """Results of other benchmarks, the tables made of them, tables of serving, traces and histograms."""
    ending, raw = generator.choice(raws("tests/data/benchmarks/*"))
    path = folder / f"result{ending}"
    if ending == ".json" and generator.random() < 0.7:
        content = mutated({"all": json.loads(raw)}, generator).get("all")
        raw = dumped(content, partial(json.dumps, default=str)).encode("utf-8", "surrogatepass")
    else:
        raw = damaged(raw, generator)
    path.write_bytes(raw)
    given = Given("llama-3.1-8b", "h100-sxm", "vllm", "bf16")
    table = attempt(lambda: import_files([path], given))
    if table is not None:
        (folder / "table.csv").write_text(table.text, "utf-8", "backslashreplace")
        found = attempt(lambda: end_to_end(folder / "table.csv"))
        if found is not None:
            attempt(lambda: as_json(found))
    line = dict.fromkeys(SERVING, "1") | {"backend": "vllm", "backend_version": "0.20", "system": "h100_sxm"}
    line |= {"model_path": "Qwen/Qwen3-32B", "isl": "1024", "osl": "128", "silicon_ttft_ms": "90"}
    line[generator.choice(list(line))] = dumped(hostile(generator), str)[:200].replace("\udcff", "")
    text = pd.DataFrame([line]).to_csv(index=False).encode("utf-8", "replace")
    text = damaged(text, generator) if generator.random() < 0.3 else text
    for name, read in (("serving.csv", read_cases), ("footprints.csv", read_footprints)):
        (folder / name).write_bytes(text)
        attempt(lambda name=name, read=read: read(folder / name))  # type: ignore[misc]
    requests = [{"timestamp": i, "input_length": 100, "output_length": 20, "hash_ids": [1, 2, i]} for i in range(4)]
    lines = "".join(json.dumps(request) + "\n" for request in requests).encode()
    for name, raw in (("trace.jsonl", lines), ("trace.csv", b"arrival,prompt,output\n0,12,3\n1.5,14,2\n")):
        (folder / name).write_bytes(damaged(raw, generator))
        attempt(lambda name=name: read_trace(folder / name))  # type: ignore[misc]
    (folder / "lengths.csv").write_bytes(damaged(b"length,count\n100,3\n200,5\n", generator))
    attempt(lambda: parse_lengths(str(folder / "lengths.csv"), "prompt"))
    attempt(lambda: parse_lengths(dumped(hostile(generator), str), "prompt"))


def _recorded() -> tuple[Any, ...]:
    """Recorded requests of two sessions in the formats that workloads are read from."""
    places = [(name, turn) for name in ("a", "b") for turn in range(3)]
    lengths = [{"input_length": 900 + 600 * turn, "output_length": 50 + turn} for _, turn in places]
    logs = [
        {"session_id": name, "timestamp": 20.0 * turn, "latency": 3.0, **row}
        for (name, turn), row in zip(places, lengths, strict=True)
    ]
    blocks = [
        {"timestamp": 20000 * turn, "hash_ids": [f"{name}{block}" for block in range(turn + 2)], **row}
        for (name, turn), row in zip(places, lengths, strict=True)
    ]
    delays = [{"session_id": "s", "input_length": 100, "output_length": 50, "delay": delay} for delay in (0, 2000)]
    calls = [
        {"t": 9.0 * turn, "type": "n", "in": 640, "out": 10, "api_time": 1.0, "hash_ids": [1, turn]} for turn in (0, 1)
    ]
    weka = [{"id": "x", "block_size": 64, "requests": [*calls, {"t": 20.0, "type": "s", "requests": calls}]}]
    chat = [{"messages": [{"role": "user", "content": "x" * 40}, {"role": "assistant", "content": "y" * 8}] * 2}]
    values = {"input_sequence_length": {"value": 100}, "output_sequence_length": {"value": 10}}
    ends = {"request_start_ns": 0, "request_end_ns": 10**9, "conversation_id": "c"}
    return logs, blocks, delays, weka, chat, [{"metrics": values, "metadata": ends}]


def sessions(generator: random.Random, folder: Path) -> None:
    """Recorded requests and a server's histograms as workloads, a workload's own file, and a run of its sessions."""
    path = folder / "log.jsonl"
    if generator.random() < 0.1:
        ends = [(name, le) for name in ("prompt", "generation") for le in (10, 100, "+Inf")]
        buckets = [f'vllm:request_{name}_tokens_bucket{{le="{le}"}} 2' for name, le in ends]
        raw = "\n".join(["# TYPE vllm:request_prompt_tokens histogram", *buckets]).encode()
        path.write_bytes(damaged(raw, generator))
    else:
        content = mutated({"rows": generator.choice(_recorded())}, generator).get("rows")
        rows = content if isinstance(content, list) else [content]
        lines = [dumped(row, partial(json.dumps, default=str)) for row in rows]
        raw = "\n".join(lines).encode("utf-8", "surrogatepass")
        path.write_bytes(damaged(raw, generator) if generator.random() < 0.3 else raw)
    found = attempt(lambda: read_recorded(path, generator.choice((None, 4.0))))
    attempt(lambda: hit_rates(path, (0.0, 1e4, 1e9)))
    attempt(lambda: read_trace(path))
    work = profile("chat") if found is None else found.workload
    text = as_text(work)
    if generator.random() < 0.5:
        text = dumped(mutated(json.loads(text), generator), partial(json.dumps, default=str))
    (folder / "work.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    read = attempt(lambda: profile(str(folder / "work.json")))
    if read is not None:
        scenario = Scenario("llama-3.2-1b", "h100-sxm")
        answer = attempt(lambda: serve_sessions(scenario, read, sessions=2, simulate=20))
        if answer is not None:
            document = attempt(lambda: sessions_document(answer))
            assert not (wrong := disordered(document)), wrong[:3]


@cache
def weight_files() -> tuple[bytes, bytes]:
    """A small GGUF file, and a safetensors file."""
    shape = {"hidden": 64, "vocabulary": 64, "layers": 1, "max_context": 64, "dtype": "bf16", "source": "none"}
    parts = {"attention": {"heads": 2, "kv_heads": 1}, "mlp": {"width": 128, "gated": True, "activation": "silu"}}
    tiny = parse_model({"name": "tiny", "title": "Tiny", **shape, **parts, "norm": {"kind": "rmsnorm"}}, "tiny")
    with tempfile.TemporaryDirectory() as folder:
        gguf = write_random_model(tiny, "fp16", Path(folder) / "tiny.gguf").read_bytes()
    header = json.dumps({"a": {"dtype": "BF16", "shape": [4, 4], "data_offsets": [0, 32]}, "__metadata__": {"x": "y"}})
    return gguf, len(header).to_bytes(8, "little") + header.encode() + bytes(32)


def weights(generator: random.Random, folder: Path) -> None:
    """The headers of GGUF and safetensors files."""
    for name, raw, read in zip(("a.gguf", "a.safetensors"), weight_files(), (read_gguf, read_header), strict=True):
        changed = raw
        for _ in range(generator.randint(1, 3)):
            at = generator.randrange(min(len(changed), 4000))
            match generator.randrange(3):
                case 0:
                    changed = changed[:at] + generator.randbytes(generator.randrange(1, 9)) + changed[at + 4 :]
                case 1:
                    changed = changed[:at] + b"\xff" * generator.randrange(1, 9) + changed[at + 8 :]
                case 2:
                    changed = changed[:at]
            changed = changed or raw[:1]
        (folder / name).write_bytes(changed)
        attempt(lambda name=name, read=read: read(folder / name))  # type: ignore[misc, operator]
