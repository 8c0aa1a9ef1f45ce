"""The command line: commands, output formats and flags."""

import csv
import io
import json
import math
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from roofline import __version__, list_hardware, list_models, load_hardware, load_model
from roofline.cli import program
from roofline.scenario.options import OPTIONS
from tests.cases import sampled
from tests.paths import CONFIGS, ROOT

FILES = sorted(CONFIGS.glob("*.json"))
ANALYZE = ("analyze", "llama-2-7b", "--hw", "a6000")

Run = Callable[..., tuple[int, str, str]]
Analyze = Callable[..., dict[str, Any]]


@pytest.fixture
def ok(run: Run) -> Callable[..., str]:
    """Runs `roofline ARGS`, which must succeed with empty stderr; stdout."""

    def call(*args: object) -> str:
        status, out, err = run(*args)
        assert (status, err) == (0, "")
        return out

    return call


@pytest.fixture
def analysis(ok: Callable[..., str]) -> Analyze:
    """The JSON document of `roofline analyze MODEL ARGS`, by default on an A6000."""

    def call(*args: object, model: object = "llama-2-7b", hw: object = "a6000") -> dict[str, Any]:
        document: dict[str, Any] = json.loads(ok("analyze", model, "--hw", hw, "--format", "json", *args))
        return document

    return call


def names(phase: dict[str, Any]) -> list[str]:
    return [op["name"] for op in phase["ops"]]


def op(document: dict[str, Any], name: str, phase: str = "prefill") -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in document["phases"][phase]["ops"] if entry["name"] == name)
    return found


# Analyze: the JSON contract

NUMBER = (int, float)
DOCUMENT = {
    "schema": str,
    "model": str,
    "hardware": str,
    "scenario": dict,
    "phases": dict,
    "memory": dict,
    "generation": dict,
}
MEMORY = {
    "reading": str,
    "weights_bytes": NUMBER,
    "kv_cache_bytes": NUMBER,
    "activation_peak_bytes": NUMBER,
    "runtime_bytes": NUMBER,
    "total_bytes": NUMBER,
    "budget_bytes": NUMBER,
    "capacity_bytes": NUMBER,
    "headroom_bytes": NUMBER,
    "fits": bool,
}
GENERATION = {
    "batch": int,
    "prompt": int,
    "generated": int,
    "ttft_s": float,
    "tpot_s": float,
    "total_s": float,
    "tokens_per_s": float,
}
PHASE = {"flops": NUMBER, "bytes": NUMBER, "bound": str, "bound_time_s": float, "ops": list}
OP = {
    "name": str,
    "count": int,
    "busy": NUMBER,
    "flops": NUMBER,
    "bytes": NUMBER,
    "weight_bytes": NUMBER,
    "activation_bytes": NUMBER,
    "kv_bytes": NUMBER,
    "intensity": float,
    "attainable_flops_per_s": NUMBER,
    "bound": str,
    "bound_time_s": float,
    "share": float,
    "tensors": list,
}
TENSOR = {"name": str, "role": str, "shape": list, "format": str, "bytes": NUMBER}

UNFUSED = [
    *("embedding", "attn_norm", "q_proj", "k_proj", "v_proj", "rope", "qk_matmul", "softmax", "sv_matmul", "o_proj"),
    *("attn_add", "mlp_norm", "gate_proj", "up_proj", "mlp_act", "down_proj", "mlp_add", "final_norm", "lm_head"),
]
FLASH = [*UNFUSED[:6], "fused_attention", *UNFUSED[9:]]

WORKLOADS = [
    pytest.param("llama-2-7b", (), id="default"),
    pytest.param("llama-2-7b", ("--no-flash", "--batch", 8, "--prompt", 2048), id="unfused batch"),
    pytest.param("llama-2-7b", ("--quant", "W4A16KV8", "--prefix", 100), id="quantized with a prefix"),
    pytest.param("gemma-2-9b", ("--prompt", 8192, "--context", 9000), id="windows"),
    pytest.param("opt-6.7b", ("--convention", "llm-viewer"), id="LLM-Viewer's counting"),
    pytest.param("falcon-7b", ("--fuse", "qkv", "--fuse", "residual_norm"), id="further fusions"),
]


def check_types(record: dict[str, Any], expected: dict[str, Any]) -> None:
    for key, kind in expected.items():
        assert isinstance(record[key], kind), key
        if kind is not bool and isinstance(record[key], NUMBER):
            assert not isinstance(record[key], bool), key
            assert math.isfinite(record[key]), key
            assert record[key] >= 0, key


@pytest.mark.parametrize(("model", "args"), WORKLOADS)
def test_json_has_every_key_of_the_contract(analysis: Analyze, model: str, args: tuple[object, ...]) -> None:
    document = analysis(*args, model=model)
    check_types(document, DOCUMENT)
    assert (document["schema"], document["model"], document["hardware"]) == (
        "roofline.analysis/1",
        model,
        "a6000",
    )
    check_types(document["memory"], MEMORY)
    check_types(document["generation"], GENERATION)
    assert list(document["phases"]) == ["prefill", "decode"]
    for phase in document["phases"].values():
        check_types(phase, PHASE)
        assert phase["bound"] in ("compute", "memory")
        for entry in phase["ops"]:
            check_types(entry, OP)
            assert entry["bound"] in ("compute", "memory")
            for tensor in entry["tensors"]:
                check_types(tensor, TENSOR)
                assert tensor["role"] in ("weight", "activation", "kv")


@pytest.mark.parametrize(("model", "args"), WORKLOADS)
def test_json_adds_up(analysis: Analyze, model: str, args: tuple[object, ...]) -> None:
    document = analysis(*args, model=model)
    for phase in document["phases"].values():
        for total in ("flops", "bytes", "bound_time_s"):
            assert math.fsum(entry["count"] * entry[total] for entry in phase["ops"]) == pytest.approx(phase[total])
        host = phase["host_time_s"] / phase["expected_time_s"]["mid"] if "host_time_s" in phase else 0.0
        assert math.fsum(entry["share"] for entry in phase["ops"]) + host == pytest.approx(1)
        for entry in phase["ops"]:
            roles = [entry[f"{role}_bytes"] for role in ("weight", "activation", "kv")]
            assert sum(roles) == pytest.approx(entry["bytes"]), entry["name"]
            for role, size in zip(("weight", "activation", "kv"), roles, strict=True):
                own = [tensor["bytes"] for tensor in entry["tensors"] if tensor["role"] == role]
                assert sum(own) == pytest.approx(size), entry["name"]
            assert entry["intensity"] == pytest.approx(entry["flops"] / entry["bytes"])
    memory, generation = document["memory"], document["generation"]
    parts = (memory[f"{part}_bytes"] for part in ("weights", "kv_cache", "activation_peak", "runtime"))
    assert memory["total_bytes"] == pytest.approx(sum(parts))
    assert memory["headroom_bytes"] == pytest.approx(memory["budget_bytes"] - memory["total_bytes"])
    assert memory["fits"] is (memory["total_bytes"] <= memory["budget_bytes"])
    assert generation["ttft_s"] == document["phases"]["prefill"]["bound_time_s"]
    steps = generation["generated"] - 1
    assert generation["total_s"] == pytest.approx(generation["ttft_s"] + steps * generation["tpot_s"])
    tokens = generation["batch"] * generation["generated"]
    assert generation["tokens_per_s"] == pytest.approx(tokens / generation["total_s"])


@pytest.mark.parametrize("more", [(), ("--micro-batches", 4, "--batch", 8)])
def test_operators_of_a_pipeline_add_up(analysis: Analyze, more: tuple[object, ...]) -> None:
    """A device does its stage's part of the work, while the phase takes the time of all stages."""
    whole, piped = (analysis(*more, *degree, hw="mi325x", model="gpt-oss-120b") for degree in ((), ("--pp", 8)))
    for name, phase in piped["phases"].items():
        for total in ("flops", "bytes", "link_bytes"):
            done = math.fsum(entry["count"] * entry["busy"] * entry[total] for entry in phase["ops"])
            assert done == pytest.approx(phase[total]), total
        taken = math.fsum(entry["count"] * entry["bound_time_s"] for entry in phase["ops"])
        assert taken == pytest.approx(phase["bound_time_s"])
        assert phase["flops"] == pytest.approx(whole["phases"][name]["flops"] / 8, rel=1e-3)
        assert all(entry["busy"] == 1 for entry in whole["phases"][name]["ops"])


@pytest.mark.parametrize(
    "words",
    [
        "analyze llama-2-7b a6000 --prompt 64 --format json",
        "analyze --format json --prompt 64 llama-2-7b a6000",
        "analyze llama-2-7b --prompt 64 a6000 --format json",
    ],
)
def test_hardware_may_follow_the_model(ok: Callable[..., str], words: str) -> None:
    assert ok(*words.split()) == ok(*ANALYZE, "--prompt", "64", "--format", "json")


def test_a_second_word_beside_hw_is_none_of_a_command(run: Run) -> None:
    status, _, message = run(*ANALYZE, "h100-sxm")
    assert (status, "h100-sxm" in message) == (2, True)


def test_a_pipeline_says_what_adds_up(ok: Callable[..., str]) -> None:
    said = "work is that of one device, which runs 0.25 of the instances; times are those of all stages"
    plain = ("analyze", "llama-3.1-8b", "--hw", "h100-sxm")
    for format in ("table", "markdown"):
        assert ok(*plain, "--pp", 4, "--ops", "--format", format).count(said) == 2
    assert said not in ok(*plain)


def test_operator_figures_are_per_instance(analysis: Analyze) -> None:
    document = analysis("--batch", 2, "--prompt", 2048)
    q_proj = op(document, "q_proj")
    tokens, hidden, peak, bandwidth = 2 * 2048, 4096, 154.8e12, 768e9
    assert q_proj["count"] == 32
    assert q_proj["flops"] == 2 * tokens * hidden * hidden
    assert q_proj["weight_bytes"] == 2 * hidden * hidden
    assert q_proj["activation_bytes"] == 2 * 2 * tokens * hidden
    assert q_proj["kv_bytes"] == 0
    assert q_proj["bound"] == "compute"
    assert q_proj["attainable_flops_per_s"] == peak
    assert q_proj["bound_time_s"] == pytest.approx(q_proj["flops"] / peak)
    step = op(document, "q_proj", "decode")
    assert step["bound"] == "memory"
    assert step["bound_time_s"] == pytest.approx(step["bytes"] / bandwidth)
    assert step["attainable_flops_per_s"] == pytest.approx(step["intensity"] * bandwidth)
    assert document["memory"]["weights_bytes"] == 2 * 6_738_415_616
    assert document["memory"]["kv_cache_bytes"] == 2 * 524_288 * 2176  # 2048 + 127 tokens in blocks of 16
    assert document["memory"]["capacity_bytes"] == 48e9
    static = analysis("--batch", 2, "--prompt", 2048, "--memory-reading", "static")["memory"]
    assert static["kv_cache_bytes"] == 2 * 524_288 * (2048 + 128 - 1)
    assert static["budget_bytes"] == 48e9


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), FLASH),
        (("--flash",), FLASH),
        (("--no-flash",), UNFUSED),
        (("--no-flash", "--fuse", "attention"), FLASH),
        (
            ("--no-flash", "--fuse", "qkv", "--fuse", "gate_up"),
            [*UNFUSED[:2], "qkv_proj", *UNFUSED[5:12], "gate_up_proj", *UNFUSED[14:]],
        ),
    ],
)
def test_op_names(analysis: Analyze, args: tuple[str, ...], expected: list[str]) -> None:
    document = analysis(*args)
    assert names(document["phases"]["prefill"]) == expected
    assert names(document["phases"]["decode"]) == expected
    assert document["scenario"]["flash"] is ("fused_attention" in expected)


def test_model_that_does_not_fit_has_a_result(run: Run, analysis: Analyze) -> None:
    memory = analysis(model="llama-3.1-405b", hw="t4")["memory"]
    assert memory["fits"] is False
    assert memory["total_bytes"] > memory["capacity_bytes"] == 16e9
    status, out, err = run("analyze", "llama-3.1-405b", "--hw", "t4")
    assert (status, err) == (0, "")
    assert "DOES NOT FIT" in out


# Analyze: flags


@pytest.mark.parametrize(
    ("choice", "expected"), [("prefill", ["prefill"]), ("decode", ["decode"]), ("both", ["prefill", "decode"])]
)
def test_phase(analysis: Analyze, ok: Callable[..., str], choice: str, expected: list[str]) -> None:
    document = analysis("--phase", choice)
    assert list(document["phases"]) == expected
    everything = analysis()
    assert document["phases"] == {name: everything["phases"][name] for name in expected}
    assert document["generation"] == everything["generation"]
    table = ok(*ANALYZE, "--ops", "--phase", choice)
    assert [name for name in ("prefill", "decode") if f"{name.capitalize()}: " in table] == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), {"weights": "fp16", "activations": "fp16", "kv": "fp16"}),
        (("--quant", "W4"), {"weights": "int4", "activations": "fp16", "kv": "fp16"}),
        (("--quant", "W8A8"), {"weights": "int8", "activations": "int8", "kv": "fp16"}),
        (("--quant", "w4a16kv8"), {"weights": "int4", "activations": "fp16", "kv": "int8"}),
        (("--quant", "bf16"), {"base": "bf16", "weights": "bf16", "activations": "bf16", "kv": "bf16"}),
        (("--weights", "int8"), {"weights": "int8", "activations": "fp16", "kv": "fp16"}),
        (("--kv", "fp8"), {"weights": "fp16", "activations": "fp16", "kv": "fp8"}),
        (("--activations", "int8"), {"weights": "fp16", "activations": "int8", "kv": "fp16"}),
        (("--quant", "W4KV4", "--kv", "int8"), {"weights": "int4", "kv": "int8"}),
        (("--quant", "q4_k_m"), {"weights": "q4_k_m", "activations": "int8", "kv": "fp16", "engine": "llama.cpp"}),
    ],
)
def test_formats(analysis: Analyze, args: tuple[str, ...], expected: dict[str, str]) -> None:
    scenario = analysis(*args)["scenario"]
    assert {key: scenario[key] for key in expected} == expected


def test_formats_change_the_bytes(analysis: Analyze) -> None:
    plain, quantized = analysis(), analysis("--quant", "W4KV8")
    assert op(quantized, "q_proj")["weight_bytes"] == op(plain, "q_proj")["weight_bytes"] / 4
    assert op(quantized, "fused_attention")["kv_bytes"] == op(plain, "fused_attention")["kv_bytes"] / 2
    assert quantized["memory"]["kv_cache_bytes"] == plain["memory"]["kv_cache_bytes"] / 2
    assert quantized["memory"]["weights_bytes"] < plain["memory"]["weights_bytes"] / 3


def test_context_and_prefix(analysis: Analyze) -> None:
    per_token = 2 * 4096 * 2
    short, long = (op(analysis("--context", n), "fused_attention", "decode") for n in (1000, 3000))
    assert long["kv_bytes"] - short["kv_bytes"] == 2000 * per_token
    plain, prefixed = analysis("--prompt", 256), analysis("--prompt", 256, "--prefix", 768)
    assert (plain["scenario"]["context"], prefixed["scenario"]["context"]) == (256, 1024)
    read = [op(document, "fused_attention")["kv_bytes"] for document in (plain, prefixed)]
    assert read[1] - read[0] == 768 * per_token
    assert op(plain, "q_proj") | {"share": 0} == op(prefixed, "q_proj") | {"share": 0}
    assert prefixed["memory"]["kv_cache_bytes"] == 32 * per_token * 1152  # 768 + 256 + 127 tokens in blocks of 16


def test_single_generated_token_has_no_tpot(analysis: Analyze, ok: Callable[..., str]) -> None:
    generation = analysis("--generate", 1)["generation"]
    assert generation["tpot_s"] is None
    assert generation["total_s"] == generation["ttft_s"]
    assert "TPOT -" in ok(*ANALYZE, "--generate", 1)


def test_the_llm_viewer_convention(analysis: Analyze, ok: Callable[..., str]) -> None:
    document = analysis("--convention", "llm-viewer", "--prompt", 2048)
    assert document["scenario"]["convention"] == "llm-viewer"
    assert document["scenario"]["flash"] is False
    assert names(document["phases"]["prefill"]) == [
        name for name in UNFUSED if name not in ("embedding", "rope", "final_norm")
    ]
    assert op(document, "qk_matmul")["flops"] == 2 * 2048 * 2048 * 4096  # no causal halving
    assert op(document, "attn_norm")["flops"] == 7 * 2048 * 4096
    assert "llm-viewer convention" in ok(*ANALYZE, "--convention", "llm-viewer")
    assert names(analysis("--convention", "llm-viewer", "--flash")["phases"]["decode"]).count("fused_attention") == 1


# Analyze: formats and files


def test_csv_has_the_numbers_of_the_json(ok: Callable[..., str], analysis: Analyze) -> None:
    document = analysis("--no-flash", "--batch", 3)
    rows = list(csv.DictReader(io.StringIO(ok(*ANALYZE, "--no-flash", "--batch", 3, "--format", "csv"))))
    expected = [(phase, entry) for phase, content in document["phases"].items() for entry in content["ops"]]
    assert len(rows) == len(expected) == 2 * len(UNFUSED)
    for row, (phase, entry) in zip(rows, expected, strict=True):
        assert None not in row
        assert (row["model"], row["hardware"], row["phase"]) == ("llama-2-7b", "a6000", phase)
        for column in OP.keys() - {"tensors"}:
            given = row[column] if isinstance(entry[column], str) else float(row[column])
            assert given == entry[column], column


def test_csv_of_one_phase(ok: Callable[..., str]) -> None:
    rows = list(csv.DictReader(io.StringIO(ok(*ANALYZE, "--phase", "decode", "--format", "csv"))))
    assert [row["name"] for row in rows] == FLASH
    assert {row["phase"] for row in rows} == {"decode"}


def cells(line: str) -> list[str]:
    return [cell.strip().replace("\\", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_markdown_has_one_well_formed_table_a_phase(ok: Callable[..., str]) -> None:
    text = ok(*ANALYZE, "--format", "markdown")
    assert text.startswith("# llama-2-7b on a6000\n")
    sections = text.split("\n## ")[1:]
    assert [section.split("\n", 1)[0] for section in sections] == ["Prefill", "Decode"]
    for section in sections:
        table = [line for line in section.splitlines() if line.startswith("|")]
        header, rule, *rows = map(cells, table)
        assert all(re.fullmatch(":?-+:?", cell) for cell in rule)
        assert {len(row) for row in (header, rule, *rows)} == {len(header)}
        assert [row[0] for row in rows] == FLASH
        assert [row[1] for row in rows[:2]] == ["1", "32"]


def test_table_has_the_bound_of_each_operator(ok: Callable[..., str]) -> None:
    lines = ok(*ANALYZE, "--no-flash", "--ops").splitlines()
    assert lines[0] == "llama-2-7b on a6000"
    shown = [line.split() for line in lines if line.split()[:1] and line.split()[0] in UNFUSED]
    assert [row[0] for row in shown] == 2 * UNFUSED
    assert all({"compute", "memory"} & set(row) and row[-1].endswith("%") for row in shown)


@pytest.mark.parametrize("kind", ["json", "csv", "markdown"])
def test_output_file_equals_stdout(ok: Callable[..., str], tmp_path: Path, kind: str) -> None:
    target = tmp_path / "answer"
    assert ok(*ANALYZE, "--format", kind, "--output", target) == ""
    assert target.read_bytes().decode() == ok(*ANALYZE, "--format", kind)
    assert list(tmp_path.iterdir()) == [target]


def test_output_of_a_table_has_no_colours(ok: Callable[..., str], tmp_path: Path) -> None:
    ok(*ANALYZE, "--ops", "-o", tmp_path / "answer.txt")
    text = (tmp_path / "answer.txt").read_text("utf-8")
    assert "fused_attention" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_output_replaces_a_file_and_keeps_its_mode(ok: Callable[..., str], tmp_path: Path, mode: int) -> None:
    target, link = tmp_path / "answer.json", tmp_path / "link.json"
    target.write_text("x" * 10**6)
    target.chmod(mode)
    link.symlink_to(target)
    ok(*ANALYZE, "--format", "json", "--output", link)
    assert link.is_symlink()
    assert json.loads(target.read_text())["model"] == "llama-2-7b"
    assert stat.S_IMODE(target.stat().st_mode) == mode
    assert sorted(tmp_path.iterdir()) == [target, link]


def test_a_new_output_has_the_mode_of_the_umask(ok: Callable[..., str], tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        ok(*ANALYZE, "--output", tmp_path / "answer")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "answer").stat().st_mode) == 0o640


@pytest.mark.parametrize("step", ["replace", "chmod"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_output_is_atomic(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    target = tmp_path / "answer.json"
    target.write_text("old")

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"roofline.core.files.os.{step}", fail)
        status, out, err = run(*ANALYZE, "--output", target)
    assert status == (130 if isinstance(error, KeyboardInterrupt) else 2)
    assert out == ""
    assert "Traceback" not in err
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


# Analyze: whose spec

OWN_HARDWARE = """
name: toy
vendor: ACME
family: toy
kind: npu
memory: {capacity: 16 GB, bandwidth: 100 GB/s}
compute:
  tensor: {fp16: 10 TFLOP/s, bf16: 10 TFLOP/s}
  vector: {fp32: 1 TFLOP/s}
"""
OWN_MODEL = """
name: tiny
hidden: 64
vocabulary: 1000
layers: 2
attention: {heads: 4, kv_heads: 2}
mlp: {width: 256, gated: true, activation: silu}
norm: {kind: rmsnorm}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a custom model and hardware."""
    for name, text in (("toy", OWN_HARDWARE), ("tiny", OWN_MODEL)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def test_own_specs_by_path(analysis: Analyze, own: Path) -> None:
    document = analysis("--context", 100, model=own / "tiny.yaml", hw=own / "toy.yaml")
    assert (document["model"], document["hardware"]) == ("tiny", "toy")
    assert document["memory"]["capacity_bytes"] == 16e9
    step = op(document, "down_proj", "decode")
    assert step["count"] == 2
    assert step["weight_bytes"] == 2 * 64 * 256
    assert step["bound_time_s"] == pytest.approx(step["bytes"] / 100e9)


def test_a_changed_file_is_read_again(analysis: Analyze, own: Path) -> None:
    before = analysis(hw=own / "toy.yaml")["memory"]["capacity_bytes"]
    (own / "toy.yaml").write_text(OWN_HARDWARE.replace("16 GB", "32 GB"))
    os.utime(own / "toy.yaml", ns=(0, 0))
    assert analysis(hw=own / "toy.yaml")["memory"]["capacity_bytes"] == 2 * before


@pytest.mark.parametrize("name", ["llama-2-7b", "gemma-2-9b", "opt-6.7b"])
def test_a_config_json_is_analysed_like_the_bundled_model(analysis: Analyze, tmp_path: Path, name: str) -> None:
    config = tmp_path / name / "config.json"
    config.parent.mkdir()
    config.write_bytes((ROOT / "tests" / "data" / "configs" / f"{name}.json").read_bytes())
    assert analysis(model=config) == analysis(model=name)


def test_a_config_json_may_window_every_layer(analysis: Analyze, tmp_path: Path) -> None:
    config = json.loads((ROOT / "tests" / "data" / "configs" / "qwen2-7b.json").read_text())
    windowed = {**config, "use_sliding_window": True, "max_window_layers": 0, "sliding_window": 1024}
    (tmp_path / "config.json").write_text(json.dumps(windowed))
    step = op(analysis("--context", 5000, model=tmp_path / "config.json"), "fused_attention", "decode")
    assert step["count"] == 28
    assert step["kv_bytes"] == 1024 * 2 * 4 * 128 * 2


@pytest.mark.parametrize("layout", sampled(["flat", "split", "file", "list"], 1))
def test_roofline_specs_adds_own_specs(
    ok: Callable[..., str], analysis: Analyze, own: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    if layout == "split":
        for package, name in (("hwspecs", "toy"), ("modelspecs", "tiny")):
            (own / package).mkdir()
            (own / f"{name}.yaml").rename(own / package / f"{name}.yaml")
    files = {"file": [own / "toy.yaml"], "list": [own / "toy.yaml", own / "tiny.yaml"]}.get(layout, [own])
    monkeypatch.setenv("ROOFLINE_SPECS", os.pathsep.join(map(str, files)))
    hardware = json.loads(ok("specs", "list", "hardware", "--format", "json"))["hardware"]
    assert "toy" in [entry["name"] for entry in hardware]
    assert ("tiny" in list_models()) is (layout != "file")
    model = "llama-2-7b" if layout == "file" else "tiny"
    assert analysis(model=model, hw="toy")["hardware"] == "toy"
    assert json.loads(ok("specs", "show", "toy", "--format", "json"))["memory_capacity"] == 16e9


def test_roofline_specs_come_before_the_bundled_ones(
    analysis: Analyze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, capacity in (("first", "8 GB"), ("second", "9 GB")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a6000.yaml").write_text(OWN_HARDWARE.replace("16 GB", capacity))
    monkeypatch.setenv("ROOFLINE_SPECS", os.pathsep.join(str(tmp_path / folder) for folder in ("first", "second")))
    assert analysis(hw="a6000")["memory"]["capacity_bytes"] == 8e9
    assert analysis(hw="l40s")["hardware"] == "l40s"


# Specs


@pytest.mark.parametrize(
    ("kind", "package", "least", "known"),
    sampled([("hardware", "hwspecs", 45, list_hardware), ("models", "modelspecs", 30, list_models)], 1),
)
def test_specs_list(
    ok: Callable[..., str], kind: str, package: str, least: int, known: Callable[[], list[str]]
) -> None:
    document = json.loads(ok("specs", "list", kind, "--format", "json"))
    assert list(document) == [kind]
    listed = [entry["name"] for entry in document[kind]]
    assert listed == known() == sorted(path.stem for path in (ROOT / package).glob("*.yaml"))
    assert len(listed) >= least
    assert set(listed) <= set(ok("specs", "list", kind).split())


def test_specs_show_a_model(ok: Callable[..., str]) -> None:
    document = json.loads(ok("specs", "show", "llama-3-8b", "--format", "json"))
    assert (document["name"], document["hidden"], document["layers"]) == ("llama-3-8b", 4096, 32)
    assert document["parameters"] == document["active_parameters"] == 8_030_261_248
    assert document["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    card = ok("specs", "show", "llama-3-8b")
    assert "8,030,261,248" in card
    assert "attention.kv_heads" in card


def test_specs_show_hardware(ok: Callable[..., str]) -> None:
    document = json.loads(ok("specs", "show", "a100-sxm-80gb", "--format", "json"))
    assert document["memory_bandwidth"] == 2039e9
    assert document["tensor"]["bf16"] == 312e12
    assert "datasheet" in document["sources"]["memory.capacity"].lower()
    assert "NVLink 3" in ok("specs", "show", "a100-sxm-80gb")


def test_specs_check(ok: Callable[..., str], run: Run, own: Path) -> None:
    config = FILES[0]
    lines = ok("specs", "check", own / "toy.yaml", own / "tiny.yaml", config, "llama-2-7b", "a6000").splitlines()
    assert len(lines) == 5
    assert lines[0].startswith(f"{own / 'toy.yaml'}: hardware toy")
    assert "no published size" in lines[1]
    assert lines[3].startswith("llama-2-7b: model llama-2-7b: 6,738,415,616 parameters, matches the published size")
    (own / "tiny.yaml").write_text(f"parameters: 5{OWN_MODEL}")
    status, out, err = run("specs", "check", own / "tiny.yaml")
    assert (status, out) == (2, "")
    assert re.fullmatch(r"roofline: .*tiny\.yaml: 'parameters': the spec has [\d,]+ parameters, .* 5\n", err)


@pytest.mark.slow
def test_all_bundled_specs_pass_their_check(ok: Callable[..., str]) -> None:
    everything = [*list_models(), *list_hardware()]
    assert len(ok("specs", "check", *everything).splitlines()) == len(everything)


@pytest.mark.parametrize("config", sampled(FILES, 12), ids=lambda path: path.stem)
def test_specs_import_writes_what_reads_back(ok: Callable[..., str], tmp_path: Path, config: Path) -> None:
    target = tmp_path / "imported.yaml"
    assert ok("specs", "import", config, "--output", target) == ""
    assert target.read_text("utf-8") == ok("specs", "import", config)
    assert load_model(str(target)) == load_model(str(config))


def test_specs_import_takes_a_name(ok: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_bytes(FILES[0].read_bytes())
    assert yaml.safe_load(ok("specs", "import", folder / "config.json"))["name"] == "my-llama"
    assert yaml.safe_load(ok("specs", "import", folder / "config.json", "--name", "other"))["name"] == "other"


# The command itself


def test_version(ok: Callable[..., str]) -> None:
    assert ok("--version") == f"roofline {__version__}\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", ["analyze", "specs", "--version"]),
        ("analyze", ["MODEL", "--hw", "--batch", "--prompt", "--generate", "--context", "--prefix", "--quant"]),
        ("analyze", ["--weights", "--activations", "--kv", "--flash", "--no-flash", "--convention", "--phase"]),
        ("analyze", ["--format", "--output", "table", "json", "csv", "markdown", "prefill", "decode", "both"]),
        ("specs", ["list", "show", "check", "import"]),
        ("specs list", ["models", "hardware", "--format"]),
        ("specs show", ["NAME", "--format"]),
        ("specs check", ["FILE..."]),
        ("specs import", ["CONFIG", "--name", "--output"]),
    ],
)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(ok: Callable[..., str], command: str, words: list[str], flag: str) -> None:
    text = ok(*command.split(), flag if command != "analyze" else "--help-all")
    assert text.startswith("Usage: ")
    assert [word for word in words if word not in text] == []


PROGRAM = [sys.executable, "-c", "from roofline.cli import main; main()"]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "ROOFLINE_SPECS"}
LONG = ("analyze", "gemma-2-9b", "--hw", "a6000", "--no-flash", "--format", "json")  # more than a pipe holds

needs_devices = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's devices")


def launch(*args: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    """Runs `roofline ARGS` in its own process."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(
        [*PROGRAM, *args], cwd=ROOT, env=ENVIRONMENT, text=True, encoding="utf-8", timeout=60, check=False, **streams
    )


def assert_same(found: Any, expected: Any) -> None:
    """Two documents are the same but for the rounding of their numbers, which earlier questions of a process decide.

    Operators are cached by content, and one that a grid of workloads made adds its terms in another order.
    """
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == (pytest.approx(expected, rel=1e-12) if isinstance(expected, float) else expected)


def test_as_a_process(ok: Callable[..., str]) -> None:
    done = launch(*ANALYZE, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert_same(json.loads(done.stdout), json.loads(ok(*ANALYZE, "--format", "json")))
    module = subprocess.run([sys.executable, "-m", "cli", "--version"], cwd=ROOT, capture_output=True, check=True)
    assert module.stdout.decode().strip() == f"roofline {__version__}"


@pytest.mark.slow
def test_user_errors_of_a_process() -> None:
    done = launch("analyze", "llama-2-7b", "--hw", "a60000")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "roofline: unknown hardware 'a60000'; did you mean 'a6000'?\n"


@pytest.mark.slow
def test_early_end_of_reader_is_no_error() -> None:
    with subprocess.Popen(
        [*PROGRAM, *LONG], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"{\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.slow
def test_a_closed_pipe_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = launch(*ANALYZE, stdout=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("args", [ANALYZE, ("--help",)])
@needs_devices
def test_full_disk_is_a_user_error(args: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = launch(*args, stdout=full)
    assert (done.returncode, done.stderr) == (2, "roofline: cannot write the output: No space left on device\n")


@pytest.mark.slow
@needs_devices
def test_a_closed_stdout_ends_without_a_traceback() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, *ANALYZE], cwd=ROOT, stderr=subprocess.PIPE, check=False
    )
    assert done.returncode in (0, 2)
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("device", ["/dev/stdout", "/dev/fd/1"])
@needs_devices
def test_output_to_a_device_goes_through_it(ok: Callable[..., str], device: str, tmp_path: Path) -> None:
    expected = ok(*ANALYZE, "--format", "csv")
    piped = launch(*ANALYZE, "--format", "csv", "--output", device)
    assert (piped.returncode, piped.stderr, piped.stdout) == (0, "", expected)
    with (tmp_path / "redirected").open("w") as file:
        assert launch(*ANALYZE, "--format", "csv", "--output", device, stdout=file).returncode == 0
    assert (tmp_path / "redirected").read_text("utf-8") == expected


@pytest.mark.slow
@needs_devices
def test_output_to_a_pipe_and_to_nowhere(tmp_path: Path) -> None:
    assert launch(*ANALYZE, "--output", "/dev/null").returncode == 0
    full = launch(*ANALYZE, "--output", "/dev/full")
    assert (full.returncode, full.stderr) == (2, "roofline: cannot write '/dev/full': No space left on device\n")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen([*PROGRAM, *LONG, "--output", str(fifo)], cwd=ROOT, env=ENVIRONMENT) as process:
        assert json.loads(fifo.read_text("utf-8"))["model"] == "gemma-2-9b"
        assert process.wait(60) == 0
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert list(tmp_path.iterdir()) == [fifo]


@pytest.mark.slow
def test_unprintable_text_is_no_traceback(tmp_path: Path) -> None:
    folder = tmp_path / "模型"
    folder.mkdir()
    (folder / "config.json").write_bytes(FILES[0].read_bytes())
    done = subprocess.run(
        [*PROGRAM, "analyze", str(folder / "config.json"), "--hw", "a6000"],
        cwd=ROOT,
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 2)
    assert b"Traceback" not in done.stderr


def test_api_and_command_line_agree(analysis: Analyze) -> None:
    from roofline import Scenario, analyze

    answer = analyze(Scenario(load_model("llama-2-7b"), load_hardware("a6000"), batch=4, prompt=1000, generate=50))
    document = analysis("--batch", 4, "--prompt", 1000, "--generate", 50)
    assert document["phases"]["decode"]["bound_time_s"] == answer.decode.bound_time
    assert document["generation"]["total_s"] == answer.generation.total
    assert document["memory"]["total_bytes"] == answer.memory.total


def test_a_figure_is_drawn(ok: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    assert ok("plot", "batch", "llama-3.1-8b", "--hw", "h100-sxm", "--output", str(path)) == f"wrote {path}\n"
    assert path.read_bytes().startswith(b"<?xml")


@pytest.mark.slow
def test_a_figure_of_another_ending(tmp_path: Path) -> None:
    done = launch("plot", "memory", "llama-3.1-8b", "--hw", "h100-sxm", "--output", str(tmp_path / "figure.gif"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "svg, png, pdf" in done.stderr
    assert not list(tmp_path.iterdir())


def test_only_the_called_command_is_imported() -> None:
    code = (
        "import sys, typer\nfrom roofline.cli import program\n"
        "made = typer.main.get_command(program.app).commands\n"
        "assert made['advise'].name == 'advise'\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('roofline.cli.', 'roofline.validate'))))\n"
        "print(*made)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules, names = done.stdout.splitlines()
    assert modules.split() == [
        "roofline.cli.advice",
        "roofline.cli.draft_flags",
        "roofline.cli.engine_flags",
        "roofline.cli.options",
        "roofline.cli.program",
        "roofline.cli.scenario_options",
    ]
    assert names.split() == list(program.COMMANDS)


@pytest.mark.slow
def test_help_answers_questions_in_whole_sentences(ok: Callable[..., str]) -> None:
    for width in ("60", "80", "200"):
        done = subprocess.run(
            [sys.executable, "-m", "roofline", "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": width},
        )
        shown = " ".join(done.stdout.split())
        assert max(map(len, done.stdout.splitlines())) <= int(width)
        for question, commands in program.QUESTIONS.items():
            assert f" {question} " in shown
            for name in commands:
                sentence = str(program.LazyCommands()[name].help).partition("\n\n")[0]
                assert sentence.endswith("."), name
                assert f" {name} {' '.join(sentence.split())}" in shown
    assert ok("--help")


def test_what_errors_name_exists() -> None:
    for kind, known in (("model", list_models()), ("hw", list_hardware())):
        names = re.findall(r"[a-z0-9.]+(?:-[a-z0-9.]+)+|mi300x", OPTIONS[kind].needed.partition(" (")[0])
        assert len(names) >= 4
        assert set(names) <= set(known)
