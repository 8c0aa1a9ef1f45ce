"""Whole-model scores: rows as scenarios and times, skipped rows, invalid files, errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from roofline import Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.core.errors import RooflineError, SpecError, UnknownNameError
from roofline.reports.documents import accuracy as pages
from roofline.reports.output.blocks import as_markdown
from roofline.reports.output.export import as_json
from roofline.specs.engine import load_engine
from roofline.validate.score.end_to_end import Case, end_to_end, map_rows, predict, score
from roofline.validate.score.errors import Predicted
from roofline.validate.tables.names import Unmapped, find_engine, find_hardware, find_model, find_precision
from roofline.validate.tables.published import COLUMNS, PublishedRow, read_all, read_rows

PLAIN = {
    "model": "llama-2-7b",
    "hardware": "a100-sxm-80gb",
    "gpus": "1",
    "engine": "vLLM 0.5",
    "weights": "fp16",
    "kv": "fp16",
    "batch": "4",
    "input_len": "1000",
    "output_len": "100",
    "metric": "batch_latency",
    "value": "3.5",
    "unit": "s",
    "source": "made up",
}


def table(folder: Path, *changes: dict[str, str], name: str = "figures.csv") -> Path:
    path = folder / name
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({**PLAIN, **change} for change in changes)
    return path


def case(folder: Path, **change: str) -> Case:
    cases, left = map_rows(read_rows(table(folder, change)))
    assert not left
    (only,) = cases
    return only


def reason(folder: Path, **change: str) -> str:
    cases, left = map_rows(read_rows(table(folder, change)))
    assert not cases
    return left[0].reason


def plain(**change: int) -> Scenario:
    workload = {"batch": 4, "prompt": 1000, "generate": 101, **change}
    precision = parse_precision("fp16")
    return Scenario(load_model("llama-2-7b"), load_hardware("a100-sxm-80gb"), precision=precision, **workload)


# --- what a row means -------------------------------------------------------------------------------------------------


def test_batch_latency_is_prefill_and_every_output_token_a_step(tmp_path: Path) -> None:
    found = predict(case(tmp_path)).bound
    whole = analyze(plain())
    assert found == whole.generation.total
    steps = [analyze(plain(context=1000 + step)).decode.bound_time for step in range(100)]  # type: ignore[union-attr]
    assert found == pytest.approx(whole.prefill.bound_time + sum(steps))


def test_output_as_long_as_the_input(tmp_path: Path) -> None:
    assert case(tmp_path, output_len="see input_len").scenario.generate == 1001
    assert case(tmp_path, output_len="100.0").scenario.generate == 101


def test_ttft_is_the_prefill(tmp_path: Path) -> None:
    found = case(tmp_path, metric="ttft", output_len="1", value="40", unit="ms")
    assert (found.quantity, found.measured) == ("ttft", 0.04)
    assert predict(found).bound == analyze(plain()).prefill.bound_time


def test_tpot_is_the_mean_step(tmp_path: Path) -> None:
    found = case(tmp_path, metric="tpot", value="0.02")
    assert found.scenario.generate == 100
    assert predict(found).bound == analyze(plain(generate=100)).generation.tpot


def test_throughputs_are_times(tmp_path: Path) -> None:
    prompt = case(tmp_path, metric="prefill_throughput", value="8000", unit="tok/s")
    assert (prompt.quantity, prompt.measured) == ("ttft", 4 * 1000 / 8000)
    step = case(tmp_path, metric="decode_throughput", value="200", unit="tok/s")
    assert (step.quantity, step.measured) == ("tpot", 4 / 200)
    user = case(tmp_path, metric="per_user_output_speed", value="50", unit="tok/s/user (48-52)")
    assert (user.quantity, user.measured) == ("tpot", 1 / 50)
    whole = case(tmp_path, metric="output_throughput", value="100", unit="tok/s")
    assert (whole.quantity, whole.measured) == ("total", 4 * 100 / 100)


def test_throughputs_of_a_device_and_of_a_node(tmp_path: Path) -> None:
    device = case(tmp_path, metric="decode_throughput_per_gpu", value="50", unit="tok/s/GPU", gpus="4")
    assert device.measured == 4 / (50 * 4)
    assert device.scenario.settings.parallel.tensor == 4
    node = case(tmp_path, metric="prefill_input_throughput_per_node", value="8000", unit="tok/s/node (8 GPU)", gpus="4")
    assert node.measured == 4 * 1000 / (8000 / 2)


def test_decode_from_an_empty_prompt_averages_over_its_steps(tmp_path: Path) -> None:
    """llama-bench's tg128: 128 steps, the first of which finds nothing in the cache."""
    found = case(
        tmp_path, metric="decode_throughput", batch="1", input_len="0", output_len="128", value="60", unit="tok/s"
    )
    assert (found.scenario.prompt, found.scenario.generate) == (1, 129)
    steps = [analyze(plain(batch=1, context=step)).decode.bound_time for step in range(128)]  # type: ignore[union-attr]
    assert predict(found).bound == pytest.approx(sum(steps) / 128, rel=1e-4)


# --- what is predicted ------------------------------------------------------------------------------------------------


def test_the_expected_time_is_that_of_the_rows_engine(tmp_path: Path) -> None:
    row = case(tmp_path, engine="TensorRT-LLM v0.9")
    found = predict(row)
    answer = analyze(plain().changed(engine="tensorrt-llm@0.9"))
    assert (found.low, found.mid, found.high) == answer.expected.total
    assert found.bound == answer.generation.total < found.low < found.mid < found.high
    assert predict(row, "hf-eager").mid > found.mid


def test_the_bound_is_in_the_formats_that_the_rows_engine_computes_in(tmp_path: Path) -> None:
    """llama.cpp multiplies integers, faster than FP16 with sums in 16 bits; a published RTX 4090 is below both."""
    conditions = {"hardware": "RTX 4090 24GB", "engine": "llama.cpp CUDA", "weights": "Q4_0", "batch": "1"}
    figure = {"input_len": "512", "output_len": "0", "metric": "prefill_throughput", "unit": "tok/s", "value": "14771"}
    row = case(tmp_path, **conditions, **figure)
    assert predict(row).bound < predict(row, "vllm").bound < row.measured


def test_a_batch_that_does_not_fit_is_served_in_waves(tmp_path: Path) -> None:
    """Llama-2-7B's cache takes 0.5 MiB a token: 22 sequences of 2048 tokens fit beside it on an A100 of 40 GB."""
    row = case(tmp_path, hardware="a100-sxm-40gb", batch="64", input_len="1024", output_len="1024")
    assert row.waves == (22, 22, 20)
    parts = [analyze(row.scenario.changed(batch=size, engine=row.engine)).expected.total for size in (22, 20)]
    found = predict(row)
    assert found.mid == pytest.approx(2 * parts[0].mid + parts[1].mid)
    assert found.bound == analyze(row.scenario).generation.total
    assert case(tmp_path, batch="16", input_len="1024", output_len="1024").waves == (16,)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100-sxm", "h100-sxm"),
        ("RTX 5090", "rtx-5090"),
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000-workstation"),
        ("Apple M3 Max (40-core GPU)", "m3-max"),
        ("Apple M2", "m2"),
        ("DGX Spark GB10", "dgx-spark"),
        ("B200 180GB", "b200-sxm"),
        ("A40", "a40"),
    ],
)
def test_hardware_names(text: str, name: str) -> None:
    assert find_hardware(text).hardware.name == name


def test_assumed_variants_are_reported() -> None:
    assert "SXM" in find_hardware("H100 80 GB").assumed
    assert "cores" in find_hardware("Apple M4 Max").assumed
    assert not find_hardware("Apple M4 Max (40-core GPU)").assumed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("H100/H200 SXM", "not the name of one accelerator"),
        ("Voodoo 2", "no bundled spec of 'Voodoo 2'"),
        ("Apple M3 Max (30-core GPU)", "is not 'Apple M3 Max"),
        ("Apple M9", "no bundled spec"),
        ("../secrets.yaml", "'../secrets.yaml'"),
    ],
)
def test_unknown_hardware(text: str, said: str) -> None:
    with pytest.raises(Unmapped, match=said.replace("(", r"\(")):
        find_hardware(text)


def test_model_names() -> None:
    assert find_model("DeepSeek-V3/R1 671B").name == "deepseek-v3"
    assert find_model("Mistral-7B (zephyr)").name == "mistral-7b"
    assert find_model("Llama-3.1 405B").name == "llama-3.1-405b"
    with pytest.raises(Unmapped, match=r"no bundled model is 'granite 3\.68B'"):
        find_model("granite 3.68B")


def test_engines_by_prefix() -> None:
    names = {
        "TensorRT-LLM v0.8.0": "tensorrt-llm@0.8.0",
        "TensorRT-LLM 1.3.0rc10": "tensorrt-llm@1.3.0rc10",
        "TensorRT-LLM (2025)": "tensorrt-llm@0.20",
        "llama.cpp CUDA 8cf6b42": "llama.cpp",
        "llama.cpp CUDA 9c35706": "llama.cpp",
        "SGLang (May 2025)": "sglang",
        "SGLang 0.5.10": "sglang@0.5.10",
        "LMDeploy TurboMind": "lmdeploy",
        "DeepSpeed-MII (2024)": "deepspeed-mii",
        "vLLM": "vllm",
        "vLLM (2024)": "vllm@0.5",
        "vLLM of 2025 (ML.ENERGY v3)": "vllm@0.11",
        "vLLM (Feb 2026)": "vllm",
        "vLLM Apr 2024 (torch 2.2)": "vllm@0.5",
        "vLLM 0.8.3dev": "vllm@0.8.3dev",
        "vLLM 0.24.0": "vllm@0.24.0",
    }
    assert {text: find_engine(text) for text in names} == names
    assert all(load_engine(name).name == name.split("@")[0] for name in names.values())
    with pytest.raises(Unmapped, match="no engine profile is for 'pegainfer'"):
        find_engine("pegainfer")


def test_formats() -> None:
    llama, hardware = load_model("llama-2-7b"), load_hardware("h100-sxm")

    def formats(weights: str, kv: str, engine: str = "vLLM") -> tuple[str, str, str]:
        found = find_precision(weights, kv, llama, hardware, engine)
        return found.weights.name, found.activations.name, found.kv.name

    assert formats("bf16", "fp16") == ("bf16", "bf16", "bf16")  # 16 bits of either kind are the cache's own
    assert formats("fp8", "fp8") == ("fp8", "fp8", "fp8")
    assert formats("AWQ INT4", "-") == ("awq", "fp16", "fp16")
    assert formats("Q4_0", "F16", "llama.cpp CUDA 1") == ("q4_0", "fp16", "fp16")
    assert formats("int8", "fp8", "TensorRT-LLM (2024)") == ("int8", "int8", "fp8")
    assert formats("int4_g32", "bf16", "gpt-fast (torch.compile)") == ("int4 g32 (gpt-fast)", "bf16", "bf16")


def test_gpt_fast_quantizes_the_output_head() -> None:
    found = find_precision("int4_g32", "bf16", load_model("llama-2-7b"), load_hardware("h100-sxm"), "gpt-fast")
    assert found.weights.format_of("lm_head", found.base, 32).bits == 5
    assert found.weights.format_of("embedding", found.base, 32).bits == 16


# --- rows that are no scenario ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "nosuch"}, "no bundled model is 'nosuch'"),
        ({"hardware": "nosuch"}, "no bundled spec of 'nosuch'"),
        ({"engine": "nosuch"}, "no engine profile is for 'nosuch'"),
        ({"weights": "nosuch"}, "no weight format is 'nosuch'"),
        ({"weights": "Q9_9", "engine": "llama.cpp"}, "no file type 'Q9_9'"),
        ({"kv": "nosuch"}, "no cache format is 'nosuch'"),
        ({"gpus": "3"}, "tensor parallelism of 3 does not divide"),
        ({"gpus": "32"}, "more than one node"),
        ({"batch": "EP32 unit, ~?"}, "the batch is not stated ('EP32 unit, ~?')"),
        ({"input_len": "2000?"}, "the prompt length is not stated"),
        ({"output_len": "-"}, "the output length is not stated"),
    ],
)
def test_skipped_rows_have_a_reason(tmp_path: Path, change: dict[str, str], said: str) -> None:
    found = end_to_end(table(tmp_path, {}, change))
    assert (found["rows"], found["scored"]) == (2, 1)
    (left,) = found["unmapped"]
    assert said in left["reason"]
    assert left["row"] == 2


def test_contradictory_rows_are_skipped(tmp_path: Path) -> None:
    figures = read_rows(table(tmp_path, {"value": "3"}, {"value": "3.3"}, {"value": "9"}, {"batch": "8"}))
    cases, left = map_rows(figures)
    assert [row.line.number for row in left] == [1, 2, 3]
    assert len(cases) == 1
    assert not map_rows(figures[:2])[1]


# --- bad files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metric": "speed"}, r"unknown metric 'speed'.*\(row 2\)"),
        ({"value": "1e999"}, "no finite number"),
        ({"value": "0"}, "not above zero"),
        ({"gpus": "some"}, r"'gpus' is no count \(row 2\)"),
        ({"unit": "furlong"}, "does not fit the metric"),
        ({"model": ""}, "'model' is empty"),
    ],
)
def test_bad_rows(tmp_path: Path, change: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read_rows(table(tmp_path, {}, change))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (",".join(COLUMNS).encode(), "has no rows"),
        (b"model,hardware\nllama-2-7b,h100-sxm\n", "lacks the columns 'gpus', 'engine'"),
        (b"PAR1\x15\xff\xfe\x00", "is no CSV file"),
        (b"{}", "lacks the columns"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "figures.csv"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=said):
        read_all(path)


def test_a_folder_reads_its_tables_and_lists_other_files(tmp_path: Path) -> None:
    table(tmp_path, {}, name="one.csv")
    table(tmp_path, {}, {}, name="two.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    document = end_to_end(tmp_path)
    assert [(group["file"], group["rows"]) for group in document["groups"]] == [("one.csv", 1), ("two.csv", 2)]
    assert document["other_files"][0]["file"] == "other.csv"


def test_a_folder_without_tables(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no CSV file"):
        read_all(tmp_path)


def test_nothing_to_score(tmp_path: Path) -> None:
    with pytest.raises(RooflineError, match=r"none of the 1 rows.*no bundled model"):
        score(read_rows(table(tmp_path, {"model": "nosuch"})))


def test_an_unknown_grouping(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'metric'"):
        score(read_rows(table(tmp_path, {})), by=("metrics",))


# --- errors and pages -------------------------------------------------------------------------------------------------


def tenth_too_high(row: Case) -> Predicted:
    factor = 1.1 if row.row.line.number == 1 else 0.7
    return Predicted(*(row.measured * scale for scale in (0.5, 0.95 * factor, factor, 1.05 * factor)))


def test_errors_are_of_prediction_over_measurement(tmp_path: Path) -> None:
    figures = read_rows(table(tmp_path, {}, {"batch": "8"}))
    (group,), predicted, left = score(figures, predictor=tenth_too_high)
    assert (group.rows, len(predicted), left) == (2, 2, [])
    assert group.mape == pytest.approx(0.2)
    assert group.bias == pytest.approx(-0.1)
    assert group.median_ape == pytest.approx(0.2)
    assert group.bound_mape == pytest.approx(0.5)
    assert group.interval_coverage == 0
    assert (group["file"], group["engine"]) == ("figures.csv", "all")


def test_groups_follow_the_keys(tmp_path: Path) -> None:
    figures = read_rows(table(tmp_path, {}, {"engine": "SGLang 1", "metric": "ttft", "output_len": "1"}))
    groups, _, _ = score(figures, by=("engine", "metric"))
    assert [(group["engine"], group["metric"], group["file"]) for group in groups] == [
        ("vLLM", "batch_latency", "all"),
        ("SGLang", "ttft", "all"),
    ]


def test_pages(tmp_path: Path) -> None:
    document = end_to_end(table(tmp_path, {}, {"hardware": "H100 80 GB"}, {"model": "no|such"}), by=("hardware",))
    assert json.loads(as_json(document))["scored"] == 2
    rows = list(csv.DictReader(io.StringIO(pages.as_csv(document))))
    assert [row["hardware"] for row in rows] == ["a100-sxm-80gb", "h100-sxm"]
    page = as_markdown(pages.accuracy_blocks(document))
    assert "| h100-sxm | 1 |" in page
    assert "no\\|such" in page
    assert "2 of 3 rows simulated" in page
    assert "SXM" in page


def test_file_names_are_escaped_in_csv(tmp_path: Path) -> None:
    document = end_to_end(table(tmp_path, {}, name="=1+2.csv"))
    assert "'=1+2.csv" in pages.as_csv(document)


def test_one_engine_for_all_rows(tmp_path: Path) -> None:
    cases, left = map_rows(read_rows(table(tmp_path, {"engine": "nosuch"})), engine="vllm")
    assert (cases[0].engine, left) == ("vllm", [])


def test_rows_keep_their_text(tmp_path: Path) -> None:
    (figure,) = read_rows(table(tmp_path, {"unit": "ms", "value": "3500"}))
    assert isinstance(figure, PublishedRow)
    assert figure.value == 3.5
    assert figure.cell("source") == "made up"
