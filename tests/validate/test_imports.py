"""Result files of other benchmarks: one fixture a tool, converted to rows, and scored like any other rows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.core.errors import RooflineError, SpecError
from roofline.validate.imports.convert import import_files
from roofline.validate.imports.fields import MAX_DOCUMENTS
from roofline.validate.imports.result import Given
from roofline.validate.score.end_to_end import end_to_end
from roofline.validate.score.serving import score_serving
from roofline.validate.tables.names import Unmapped
from roofline.validate.tables.serving import benchmark_load, closed_loop, parse_load
from tests.conftest import Run

DATA = Path(__file__).parents[1] / "data" / "benchmarks"
LACKING = Given(hw="h100-sxm", engine="vLLM 0.24.0", model="llama-3.1-8b")


def rows(path: Path, options: Given = LACKING) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(import_files([path], options).text)))


def figures(path: Path, options: Given = LACKING) -> dict[tuple[str, str], float]:
    return {(row["batch"], row["metric"]): float(row["value"]) for row in rows(path, options)}


# --- what each tool states ------------------------------------------------------------------------------------------


def test_vllm_bench_serve() -> None:
    found = rows(DATA / "vllm-serve.json", Given(hw="2xh100-sxm"))
    assert {row["metric"]: row["value"] for row in found} == {
        "ttft_mean": "95",
        "tpot_mean": "9",
        "output_throughput_total": "760",
    }
    assert found[0] | {"metric": "", "value": "", "unit": ""} == {
        "model": "llama-3.1-8b",
        "hardware": "h100-sxm",
        "gpus": "2",
        "engine": "vLLM",
        "weights": "as released",
        "kv": "",
        "batch": "closed loop 8; 80 requests",
        "input_len": "1024",
        "output_len": "128",
        "metric": "",
        "value": "",
        "unit": "",
        "source": "vllm bench serve: vllm-serve.json",
    }


def test_vllm_bench_latency_and_throughput() -> None:
    lengths = Given(hw="h100-sxm", model="llama-3.1-8b", batch="8", prompt=1024, generate=128)
    assert figures(DATA / "vllm-latency.json", lengths) == {("8", "batch_latency"): 1200}
    found = figures(
        DATA / "vllm-throughput.json", Given(hw="h100-sxm", model="llama-3.1-8b", prompt=1024, generate=128)
    )
    assert found == {("all 200 requests at once", "output_throughput_total"): 5.0 * 128}


def test_vllm_bench_serve_of_embeddings(tmp_path: Path) -> None:
    found = {"model_id": "BAAI/bge-m3", "tokenizer_id": "BAAI/bge-m3", "backend": "openai-embeddings", "completed": 10}
    found |= {"max_concurrency": 1, "request_rate": "inf", "total_input_tokens": 5120, "mean_e2el_ms": 31.0}
    (tmp_path / "measured.json").write_text(json.dumps({**found, "request_throughput": 32.0}), encoding="utf-8")
    metrics = {
        row["metric"]: (row["value"], row["output_len"]) for row in rows(tmp_path / "measured.json", Given(hw="l4"))
    }
    assert metrics == {"e2e_mean": ("31", "1"), "output_throughput_total": ("32", "1")}


def test_sglang_bench_serving() -> None:
    found = rows(DATA / "sglang.jsonl", Given(hw="h100-sxm"))
    assert {(row["model"], row["engine"], row["batch"]) for row in found} == {
        ("qwen3-8b", "SGLang 0.5.3", "closed loop 16; 64 requests"),
        ("qwen3-8b", "SGLang 0.5.3", "open loop 2 req/s"),
    }
    assert {row["metric"]: float(row["value"]) for row in found}["e2e_mean"] == 4100


def test_guidellm() -> None:
    found = figures(DATA / "guidellm.json", Given(hw="l40s", engine="vLLM"))
    assert {batch for batch, _ in found} == {
        "closed loop 1; 50 requests",
        "closed loop 8; 50 requests",
        "open loop 2.5 req/s",
        "all 50 requests at once",
    }
    assert found["closed loop 8; 50 requests", "tpot_mean"] == 18.2
    assert found["closed loop 8; 50 requests", "e2e_mean"] == 2400


def test_aiperf_and_genai_perf() -> None:
    found = figures(DATA / "aiperf.json", Given(hw="l40s", engine="vLLM"))
    assert found["closed loop 4; 40 requests", "e2e_mean"] == pytest.approx(2620.71)  # stated in seconds
    older = rows(DATA / "genai-perf.json", Given(hw="l40s", engine="vLLM"))
    assert {(row["model"], row["batch"], row["input_len"]) for row in older} == {
        ("llama-3.1-8b", "closed loop 1", "550")
    }


def test_trtllm_bench_states_everything() -> None:
    found = rows(DATA / "trtllm.json", Given())
    assert (found[0]["hardware"], found[0]["engine"], found[0]["weights"], found[0]["kv"]) == (
        "h200-sxm",
        "TensorRT-LLM 1.1.0",
        "fp8",
        "fp8",
    )


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv"])
def test_llama_bench(suffix: str) -> None:
    found = rows(DATA / f"llama-bench.{suffix}", Given())
    assert {(row["model"], row["hardware"], row["engine"], row["weights"]) for row in found} == {
        ("llama-3.1-8b", "rtx-4090", "llama.cpp b5163", "q4_k_m")
    }
    assert [(row["metric"], row["input_len"], row["output_len"], float(row["value"])) for row in found] == [
        ("prefill_throughput", "512", "", 11000),
        ("decode_throughput", "0", "128", 140),
        ("decode_throughput", "2048", "64", 132),
        ("batch_latency", "512", "128", pytest.approx(1e3 * 640 / 620, rel=1e-4)),
    ]


def test_what_is_no_row_is_left_out_and_told(tmp_path: Path) -> None:
    tests = json.loads((DATA / "llama-bench.json").read_text())
    path = tmp_path / "deep.json"
    path.write_text(json.dumps([tests[1], {**tests[0], "n_depth": 4096}]))
    found = import_files([path], Given())
    assert found.notes == [
        f"{path}: llama-bench, 1 row",
        f"{path}: 1 left out: a prompt behind cached tokens (n_depth)",
    ]
    path.write_text(json.dumps({**tests[0], "n_depth": 4096}))
    with pytest.raises(SpecError, match="has no results but of a prompt behind cached tokens"):
        import_files([path], Given())


def test_tgi_benchmark() -> None:
    found = figures(DATA / "tgi.md", Given(hw="h100-sxm"))
    assert found == {("1", "ttft"): 41.2, ("4", "ttft"): 130, ("1", "tpot"): 9.1, ("4", "tpot"): 9.8}


def test_mlperf_summary() -> None:
    lengths = Given(hw="8xh100-sxm", model="llama-2-70b", engine="TensorRT-LLM", prompt=295, generate=256)
    found = figures(DATA / "mlperf-server.txt", lengths)
    assert found["open loop 14.5 req/s", "ttft_mean"] == 250
    assert found["open loop 14.5 req/s", "tpot_mean"] == 35
    assert figures(DATA / "mlperf-offline.txt", lengths) == {("open loop INF req/s", "output_throughput_total"): 5120}


def test_an_invalid_mlperf_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "summary.txt"
    path.write_text((DATA / "mlperf-server.txt").read_text().replace("Result is : VALID", "Result is : INVALID"))
    with pytest.raises(SpecError, match="'Result is' must be VALID"):
        rows(path)


# --- round trip -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.iterdir()))
def test_every_file_becomes_a_score(name: str, tmp_path: Path) -> None:
    lacking = {"vllm-latency.json": {"batch": "8"}}.get(name, {})
    if name.startswith(("vllm-latency", "vllm-throughput", "mlperf")):
        lacking |= {"prompt": 1024.0, "generate": 128.0}  # type: ignore[dict-item]
    path = tmp_path / "rows.csv"
    options: Any = {"hw": "h100-sxm", "engine": "vLLM 0.24.0", "model": "llama-3.1-8b", **lacking}
    path.write_text(import_files([DATA / name], Given(**options)).text)
    static = name.startswith(("vllm-latency", "llama-bench", "tgi"))
    document = end_to_end(path, by=("metric",)) if static else score_serving(path)
    assert document["scored"] == document["rows"] > 0
    for row in document["predictions"]:
        assert 0 < row["low_s"] <= row["mid_s"] <= row["high_s"]


def test_imported_rows_are_guarded_by_the_check(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = (DATA / "vllm-serve.json", DATA / "vllm-latency.json")
    assert run("validate", "import", files[0], "--hw", "h100-sxm", "-o", "rows.csv")[0] == 0
    options = ("--model", "llama-3.1-8b", "--hw", "h100-sxm", "--batch", 8, "--prompt", "1k", "--generate", 128)
    status, out, err = run("validate", "import", files[1], *options)
    assert status == 0
    assert "vllm bench latency, 1 row" in err
    with Path("rows.csv").open("a") as file:
        file.write(out.partition("\n")[2])
    check = ("validate", "check", "--anchors", "rows.csv", "--predictions", "golden.yaml")
    assert run(*check, "--accept")[0] == 0
    status, out, _ = run(*check, "--format", "json")
    assert status == 0
    found = {row["metric"]: row for row in json.loads(out)["anchors"]}
    assert set(found) == {"ttft", "tpot", "tokens_per_s", "total"}
    assert found["total"]["bound"] < found["total"]["mid"]
    rate = found["tokens_per_s"]
    assert rate["low"] < rate["mid"] < rate["high"]
    assert rate["error"] == pytest.approx(rate["published"] / rate["mid"] - 1)
    golden = Path("golden.yaml").read_text()
    Path("golden.yaml").write_text(golden.replace("high: ", "high: 1", 1))
    assert run(*check)[0] == 1
    assert run("validate", "end-to-end", "rows.csv")[0] == 0
    assert run("validate", "serving", "rows.csv")[0] == 0


def test_a_profile_is_fitted_to_imported_rows(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("validate", "import", DATA / "llama-bench.json", "-o", "rows.csv")[0] == 0
    status, _, err = run("validate", "fit", "rows.csv", "-o", "own.yaml")
    assert status == 0
    assert "4 rows or loads, median error" in err
    shipped, own = (end_to_end(Path("rows.csv"), engine)["total"]["mape"] for engine in (None, "./own.yaml"))
    assert own < min(0.02, shipped)
    text = Path("rows.csv").read_text()
    Path("rows.csv").write_text(text + text.splitlines()[1].replace("llama.cpp b5163", "vLLM 0.24.0") + "\n")
    status, _, err = run("validate", "fit", "rows.csv")
    assert (status, "a profile is fitted to rows of one engine; these are of" in err) == (2, True)
    Path("kernels.csv").write_text("hardware,op\n")
    status, _, err = run("validate", "fit", "kernels.csv")
    assert (status, "name the hardware of the kernels with --hw" in err) == (2, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (closed_loop(8, 80), (8, 10, None, None)),
        (closed_loop(8, 4), (8, 1, None, None)),
        (benchmark_load(2.5, None, None), (None, None, 2.5, None)),
        ("open loop 2 req/s; mean in flight 10", (None, None, 2, None)),
        (benchmark_load(None, None, 7), (None, None, None, 7)),
    ],
)
def test_loads_are_read_back(text: str, expected: tuple[float | None, ...]) -> None:
    load = parse_load(text, 100, 10)
    assert (load.concurrency, load.rounds, load.rate, load.offline) == expected
    assert load.means == (100, 10)


def test_a_rate_with_a_limit_is_no_load() -> None:
    with pytest.raises(Unmapped, match="at most 8 in flight"):
        parse_load(benchmark_load(2.0, 8, None), 100, 10)


# --- what files lack, and hostile files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message", "help"),
    [
        ("vllm-serve.json", Given(), "does not state the hardware", "hw"),
        (
            "vllm-latency.json",
            Given(hw="l40s", model="llama-3.1-8b"),
            "the batch size or the concurrency",
            "batch",
        ),
        ("vllm-throughput.json", Given(hw="l40s", model="llama-3.1-8b"), "the output length", "generate"),
        (
            "guidellm.json",
            Given(hw="l40s", engine="vLLM", batch="8"),
            "several values that --batch would replace",
            None,
        ),
        ("vllm-serve.json", Given(hw="l4000"), "unknown hardware 'l4000'", None),
    ],
)
def test_what_is_lacking_is_named(name: str, options: Given, message: str, help: str | None) -> None:
    """With the option that gives it, which the command line names."""
    with pytest.raises(RooflineError, match=message) as caught:
        rows(DATA / name, options)
    if help is not None:
        assert caught.value.options == (help,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is no result of vllm bench serve"),
        (b"[]", "is no result of"),
        (b"[" * 100_000, "is neither JSON nor JSONL"),
        (b"a,b\n1,2\n", "is no result of"),
        (b"{}\n" * (MAX_DOCUMENTS + 1), "has more than"),
    ],
)
def test_other_files_are_refused(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(text)
    with pytest.raises(SpecError, match=message) as caught:
        rows(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mean_ttft_ms", float("nan"), "'mean_ttft_ms' must be a number of at least 0"),
        ("output_throughput", "fast", "'output_throughput' must be a number of at least 0, got 'fast'"),
        ("completed", 0, "'completed': no request succeeded"),
        ("model_id", ["a", "b"] * 10, "names the model 'a'"),
        ("model_id", "x" * 1000, "'model_id' must be a short text"),
        ("model_id", "./config.json", "names the model './config.json', which is not bundled"),
    ],
)
def test_a_wrong_value_is_named(key: str, value: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**json.loads((DATA / "vllm-serve.json").read_text()), key: value}))
    with pytest.raises(SpecError, match=message) as caught:
        rows(path, Given(hw="h100-sxm"))
    assert "\n" not in str(caught.value)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, entry in value.items() for leaf in leaves(entry, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, entry in enumerate(value) for leaf in leaves(entry, (*path, index))]
    return [path]


JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just([]), st.just({}))


@given(data=st.data())
def test_any_change_gives_rows_or_one_sentence(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    name = data.draw(st.sampled_from(sorted(path.name for path in DATA.glob("*.json"))))
    document = json.loads((DATA / name).read_text())
    *outer, key = data.draw(st.sampled_from(leaves(document)))
    target = document
    for step in outer:
        target = target[step]
    target[key] = data.draw(JUNK)
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_text(json.dumps(document))
    found, message = list[dict[str, str]](), ""
    try:
        found = rows(path, Given(hw="h100-sxm", engine="vLLM", model="llama-3.1-8b"))
    except RooflineError as error:
        message = str(error)
    assert bool(found) != bool(message)
    assert "\n" not in message
    assert all(float(row["value"]) > 0 for row in found)
