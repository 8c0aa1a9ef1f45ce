"""The default formats of released checkpoints, and the quantization keys of config.json."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from roofline import (
    Scenario,
    SpecError,
    UnknownNameError,
    analyze,
    load_hardware,
    load_model,
    parameters,
    parse_precision,
)
from roofline.cli.scenario_options import parse_scenarios
from roofline.core.errors import RooflineError
from roofline.reports.documents.listing import imported
from roofline.specs.checkpoint import precision_of
from roofline.specs.engine import load_engine
from roofline.specs.engine_files import parse_engine
from roofline.specs.engine_written import render
from roofline.specs.formats import find_format
from roofline.specs.huggingface import translate
from roofline.specs.modelspec import parse_model
from roofline.specs.precision import PLAIN, Precision
from roofline.specs.written import to_spec
from roofline.whatif.command_line import command_line
from tests.paths import CONFIGS

H100, A100 = load_hardware("h100-sxm"), load_hardware("a100-sxm-80gb")


def names(precision: Precision) -> tuple[str, str, str]:
    return precision.weights.name, precision.activations.name, precision.kv.name


# Bytes of all tensors of the files that OpenAI released (total_size of their index): experts in MXFP4, all else bf16.
@pytest.mark.parametrize(("model", "size"), [("gpt-oss-120b", 65_248_815_744), ("gpt-oss-20b", 13_761_264_768)])
def test_released_size(model: str, size: int) -> None:
    assert analyze(Scenario(load_model(model), H100, engine="ideal")).memory.weights == size


@pytest.mark.parametrize(("quant", "published"), [(None, 162e9), ("q4_k_m", 155e9)])
def test_files_of_four_bits_and_more_keep_experts_in_fp4(quant: str | None, published: float) -> None:
    """Unsloth's guide to DeepSeek-V4-Flash: the lossless file, and the one in four bits."""
    model = load_model("deepseek-v4-flash")
    weights = analyze(Scenario(model, load_hardware("m4-max"), engine="llama.cpp", quant=quant)).memory.weights
    assert weights == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("model", "hardware", "engine", "expected"),
    [
        ("llama-3.1-8b", "h100-sxm", "vllm", ("bf16", "bf16", "bf16")),
        ("deepseek-v3", "h100-sxm", "vllm", ("fp8_block", "fp8_group", "bf16")),
        ("deepseek-v3", "mi300x", "sglang", ("fp8_block", "fp8_group", "bf16")),
        ("deepseek-v3", "a100-sxm-80gb", "vllm", ("fp8_block", "bf16", "bf16")),  # no FP8 arithmetic: weights only
        ("deepseek-v3", "m4-max", None, ("fp16", "fp16", "fp16")),  # llama.cpp has no FP8: its conversion widens it
        ("gpt-oss-20b", "a100-sxm-80gb", None, ("mxfp4", "bf16", "bf16")),
        ("gpt-oss-20b", "m4-max", None, ("mxfp4_moe", "fp16", "fp16")),
        ("gpt-oss-20b", "a100-sxm-80gb", "gpt-fast", ("bf16", "bf16", "bf16")),
    ],
)
def test_as_released(model: str, hardware: str, engine: str | None, expected: tuple[str, str, str]) -> None:
    device = load_hardware(hardware)
    assert names(precision_of(load_model(model), device, engine)) == expected
    scenario = Scenario(load_model(model), device, engine=engine)
    assert scenario.precision is not None
    assert names(scenario.precision) == expected
    options = {} if engine is None else {"engine": engine}
    assert names(Scenario(load_model(model), device, **options).precision) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"scheme": PLAIN}, ("bf16", "bf16", "bf16")),
        ({"scheme": "bf16"}, ("bf16", "bf16", "bf16")),
        ({"scheme": "awq"}, ("awq", "bf16", "bf16")),
        ({"weights": "int8"}, ("int8", "bf16", "bf16")),
        ({"kv": "fp8"}, ("fp8_block", "fp8_group", "fp8")),
        ({"activations": "bf16"}, ("fp8_block", "bf16", "bf16")),
        ({"scheme": "awq", "kv": "fp8"}, ("awq", "bf16", "fp8")),
    ],
)
def test_requested_formats_override_the_released(asked: dict[str, str], expected: tuple[str, str, str]) -> None:
    assert names(precision_of(load_model("deepseek-v3"), H100, **asked)) == expected


def test_weight_quantization_technique_starts_from_16_bits() -> None:
    asked = Scenario(**{"model": "deepseek-v3", "hw": "h100-sxm", "tp": 8, "with": ["awq"]})
    (again,) = parse_scenarios([command_line(asked).removeprefix("roofline analyze ")])
    assert again.precision == asked.precision
    scenario = asked
    assert scenario.precision is not None
    assert scenario.precision.activations.name == "bf16"
    assert scenario.precision.weights.linear is not None
    assert scenario.precision.weights.linear.bits == find_format("awq").bits
    assert "--quant" not in command_line(asked)
    cache = Scenario(load_model("deepseek-v3"), H100, techniques=("fp8-kv",))
    assert names(cache.precision or cache.precision)[:2] == ("fp8_block", "fp8_group")


def test_unsupported_released_formats_are_dequantized() -> None:
    asked = Scenario(load_model("gpt-oss-20b"), H100)
    assert asked.precision.weights.name == "mxfp4"
    assert asked.with_(engine="llama.cpp").precision.weights.name == "mxfp4_moe"
    assert asked.with_(hw=load_hardware("m4-max")).precision.weights.name == "mxfp4_moe"


def test_released_formats_are_never_larger() -> None:
    for name in ("deepseek-v3", "deepseek-v3.2", "gpt-oss-120b", "kimi-k2", "minimax-m2"):
        model = load_model(name)
        weights = [analyze(Scenario(model, H100, precision=chosen)).memory.weights for chosen in (None, BF16)]
        assert 0.25 * weights[1] < weights[0] < 0.6 * weights[1]


BF16 = parse_precision("bf16")


# --- specs ------------------------------------------------------------------------------------------------------------


def test_quantization_key_of_a_spec() -> None:
    spec = to_spec(load_model("deepseek-v3"))
    assert spec["quantization"] == "fp8_block"
    assert parse_model(spec, "x").quantization == "fp8_block"
    with pytest.raises(SpecError, match=r"x: 'quantization': .*did you mean 'fp8_block'"):
        parse_model({**spec, "quantization": "fp8_blok"}, "x")


def test_checkpoints_key_of_an_engine_profile() -> None:
    content = {"name": "mine", "checkpoints": {"fp8_block": "fp8"}}
    engine = parse_engine(content, "x")
    assert names(precision_of(load_model("deepseek-v3"), H100, engine)) == ("fp8", "fp8", "bf16")
    assert names(precision_of(load_model("gpt-oss-20b"), H100, engine)) == ("bf16", "bf16", "bf16")
    assert "checkpoints: {fp8_block: fp8}" in render(engine)
    assert "checkpoints" not in render(load_engine("vllm"))
    assert "checkpoints: {}" in render(load_engine("gpt-fast"))
    for wrong in ({"fp8_blok": "fp8"}, {"fp8": "fp9"}, ["fp8"]):
        with pytest.raises(SpecError, match="'checkpoints'"):
            parse_engine({"name": "mine", "checkpoints": wrong}, "x")


def test_unquantized_parts_of_a_checkpoint() -> None:
    """Kimi K2 Thinking: only routed experts are in integers, in all 594 GB; Kimi K2's FP8 takes 1.03 TB."""
    weights = {}
    for name in ("kimi-k2-thinking", "kimi-k2"):
        answer = analyze(Scenario(load_model(name), H100))
        weights[name] = answer.memory.weights
    assert weights["kimi-k2-thinking"] == pytest.approx(594e9, rel=1e-3)
    assert weights["kimi-k2"] == pytest.approx(1.03e12, rel=1e-3)
    formats = precision_of(load_model("kimi-k2-thinking"), H100).weights
    found = {part: formats.format_of(part, BF16.base, 61).name for part in ("o_proj", "up_proj", "expert_up_proj")}
    assert found == {"o_proj": "bf16", "up_proj": "bf16", "expert_up_proj": "int4-g32"}
    asked = precision_of(load_model("kimi-k2-thinking"), H100, weights="int4-g32").weights
    assert asked.format_of("o_proj", BF16.base, 61).name == "int4-g32"


# --- config.json ------------------------------------------------------------------------------------------------------


def config(**section: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((CONFIGS / "llama-3.1-8b.json").read_text())
    return {**content, "quantization_config": section} if section else content


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


def sparse(config_groups: dict[str, Any] | None = None, **sparsity: Any) -> dict[str, Any]:
    section = compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, {"num_bits": 8, "type": "float"})
    groups = section["config_groups"] if config_groups is None else config_groups
    return {**section, "config_groups": groups, "sparsity_config": sparsity}


@pytest.mark.parametrize(
    ("section", "scheme", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", 8 + 32 / 128**2),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", 8),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8", 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "awq", 4 + 20 / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, "awq-g64", 4 + 20 / 64),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, "awq", 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "gptq-g32", 4 + 20 / 32),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8-g128", 8 + 16 / 128),
        ({"quant_method": "gptq", "bits": 3, "group_size": -1}, "W3", 3),
        (
            compressed(
                {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}, {"num_bits": 8, "type": "float"}
            ),
            "w4afp8",
            4 + 16 / 128,
        ),
        ({"quant_method": "auto-round", "bits": 2, "group_size": 128, "sym": True}, "int2-g128", 2 + 16 / 128),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4_single", 4.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": False}, "nf4_single", 4.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4", 4.126953125),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8),
        ({"quant_method": "bitnet"}, "ternary", 2),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 8),
        (compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}), "int4-g32", 4.5),
        (compressed({"num_bits": 8, "type": "int", "strategy": "channel"}), "W8", 8),
        (
            compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, {"num_bits": 8, "type": "int"}),
            "int8",
            8,
        ),
        (
            compressed({"num_bits": 4, "type": "int", "strategy": "channel"}, {"num_bits": 8, "type": "int"}),
            "W4A8",
            4,
        ),
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, {"num_bits": 8, "type": "float"}),
            "fp8",
            8,
        ),
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "block"}, {"num_bits": 8, "type": "float"}),
            "fp8_block",
            None,
        ),
        (
            compressed(
                {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
                {"num_bits": 4, "type": "float"},
            ),
            "nvfp4",
            4.5,
        ),
    ],
)
def test_quantization_config(section: dict[str, Any], scheme: str, bits: float | None) -> None:
    model = parse_model(translate(config(**section), "x", "x"), "x")
    assert model.quantization == scheme
    linear = precision_of(model, H100, "vllm").weights.linear
    assert linear is not None
    if bits is not None:
        assert linear.bits == pytest.approx(bits, abs=1e-12)
    assert parse_model(to_spec(model), "x") == model


STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}

FLOAT = {"num_bits": 8, "type": "float"}


@pytest.mark.parametrize(
    ("section", "engine", "kv"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": STATIC}, "vllm", "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "sglang", "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "tensorrt-llm", "fp8"),
        ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}, "vllm", "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "vllm@0.13", "bf16"),
        ({**compressed(FLOAT), "kv_cache_scheme": STATIC}, "vllm", "fp8"),
        ({**compressed(FLOAT), "kv_cache_scheme": STATIC}, "vllm@0.9", "bf16"),
        ({**compressed(FLOAT), "kv_cache_scheme": STATIC}, "sglang", "bf16"),
        ({**compressed(FLOAT), "kv_cache_scheme": None}, "vllm", "bf16"),
        (
            {**compressed(FLOAT), "kv_cache_scheme": {**STATIC, "dynamic": True}},
            "vllm",
            "bf16",
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, "vllm", "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "llama.cpp", "bf16"),
    ],
)
def test_scales_of_a_cache_make_it_fp8_where_the_engine_takes_them(
    section: dict[str, Any], engine: str, kv: str
) -> None:
    model = parse_model(translate(config(**section), "x", "x"), "x")
    assert precision_of(model, H100, engine).kv.name == kv
    assert precision_of(model, H100, engine, kv="bf16").kv.name == "bf16"
    assert precision_of(model, H100, engine, scheme="bf16").kv.name == "bf16"
    assert parse_model(to_spec(model), "x") == model


def test_quantized_file_has_fewer_bytes() -> None:
    section = {"quant_method": "awq", "bits": 4, "group_size": 128}
    plain, quantized = (
        analyze(Scenario(parse_model(translate(content, "x", "x"), "x"), H100)).memory.weights
        for content in (config(), config(**section))
    )
    vocabulary = 2 * 128256 * 4096 * 2
    assert (quantized - vocabulary) / (plain - vocabulary) == pytest.approx((4 + 20 / 128) / 16, rel=1e-3)


def test_quantization_of_a_nested_text_model() -> None:
    content = json.loads((CONFIGS / "gemma-3-4b.json").read_text())
    content["text_config"]["quantization_config"] = {"quant_method": "fp8"}
    assert translate(content, "x", "x")["quantization"] == "fp8"
    del content["text_config"]["quantization_config"]
    layers = content["text_config"]["num_hidden_layers"]
    for named, parts in ((1, []), (layers, ["attention"])):
        listed = [f"language_model.model.layers.{layer}.self_attn" for layer in range(named)]
        content["quantization_config"] = ignoring(*listed)
        assert translate(content, "x", "x").get("unquantized", []) == parts


def ignoring(*modules: str) -> dict[str, Any]:
    return {"quant_method": "fp8", "modules_to_not_convert": list(modules)}


@pytest.mark.parametrize(
    ("modules", "parts"),
    [
        (["lm_head", "gate", "e_score_correction_bias"], []),
        (["lm_head", "re:.*mlp.gate$", "re:.*kv_a_proj_with_mqa$"], []),
        (["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"], ["attention"]),  # gpt-oss
        (
            [
                "lm_head",
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            ],
            ["attention", "mlp"],
        ),  # Kimi K2 Thinking
        (["model.layers.3.mlp.shared_expert_gate", "model.layers.3.mlp.gate"], []),
        ([f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(32) for name in "qkvo"], ["attention"]),
        ([f"model.layers.{layer}.self_attn.{name}_proj" for layer in (0, 31) for name in "qkvo"], []),
        ([f"model.layers.{layer}.self_attn" for layer in range(32)], ["attention"]),
        ([f"model.layers.{layer}.linear_attn" for layer in range(32)], []),  # the model has none
    ],
)
def test_lists_of_unquantized_modules(modules: list[str], parts: list[str]) -> None:
    found = translate(config(**ignoring(*modules)), "x", "x")
    assert found.get("unquantized", []) == parts
    assert parse_model(found, "x").unquantized == tuple(parts)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"quant_method": "aqlm"}, "the method 'aqlm'"),
        ({"bits": 4}, "'quant_method' is missing"),
        ({"quant_method": "awq"}, "'bits' is missing"),
        ({"quant_method": "gptq", "bits": 4, "group_size": "x"}, "'group_size' must be a whole number"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "the algorithm 'MIXED_PRECISION'"),
        (ignoring("re:(a+)+$" * 5), "is not read"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp6"}}}, "type 'fp6'"),
        ({"group_size": 32, "bits": 8, "mode": "mxfp8"}, "MLX's mode 'mxfp8'"),
        ({"quant_method": "compressed-tensors"}, "without 'config_groups'"),
        (sparse(sparsity_structure="2:4", format="dense"), "sparse weights ('2:4') are not supported"),
        (sparse(sparsity_structure="unstructured", format="sparse-bitmask"), "sparse weights ('unstructured')"),
        (compressed({"num_bits": 3, "type": "float"}), "3-bit floating-point weights and 16-bit activations"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": []}}, "'group_0' must be a mapping"),
    ],
)
def test_unknown_quantization_is_rejected(section: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError) as error:
        translate(config(**section), "x", "x")
    assert expected in str(error.value)
    assert str(error.value).count("\n") == 0


def test_dense_format_is_not_sparse() -> None:
    for sparsity in ({}, {"format": "dense", "sparsity_structure": "0:0"}, {"sparsity_structure": "unstructured"}):
        assert translate(config(**sparse(**sparsity)), "x", "x")["quantization"] == "fp8"


def test_compression_config_is_read() -> None:
    section = compressed({"num_bits": 8, "type": "int"})
    assert translate({**config(), "compression_config": section}, "x", "x")["quantization"] == "W8"


def test_mxfp4_experts_of_compressed_tensors() -> None:
    section = compressed({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32})
    found = translate(config(**section, ignore=["re:.*self_attn.*"]), "x", "x")
    assert (found["quantization"], found["unquantized"]) == ("mxfp4", ["attention"])


def test_unquantized_without_quantization_is_rejected() -> None:
    spec = to_spec(load_model("llama-3.1-8b"))
    with pytest.raises(SpecError, match="'unquantized' needs 'quantization'"):
        parse_model({**spec, "unquantized": ["attention"]}, "x")
    with pytest.raises(SpecError, match="unquantized"):
        parse_model({**spec, "quantization": "fp8", "unquantized": ["experts"]}, "x")


def test_several_format_groups_are_rejected() -> None:
    section = compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128})
    section["config_groups"]["group_1"] = {"weights": {"num_bits": 8, "type": "int"}}
    with pytest.raises(SpecError, match="2 groups of formats"):
        translate(config(**section), "x", "x")


def test_grouped_integer_formats() -> None:
    assert find_format("int4-g32").bits == 4.5
    assert find_format("INT8_G128").arithmetic == "int8"
    with pytest.raises(RooflineError, match="group size"):
        find_format("int4-g0")
    with pytest.raises(UnknownNameError):
        find_format("int9-g32")


# --- ModelOpt's file beside a config.json -----------------------------------------------------------------------------


def beside(folder: Path, **quantization: Any) -> str:
    """The path of a config.json with ModelOpt's file beside it."""
    written = {"producer": {"name": "modelopt", "version": "0.33.0"}, "quantization": quantization}
    (folder / "config.json").write_text(json.dumps(config()))
    (folder / "hf_quant_config.json").write_text(json.dumps(written))
    return str(folder / "config.json")


def test_the_formats_of_a_file_beside_the_config(tmp_path: Path) -> None:
    path = beside(tmp_path, quant_algo="NVFP4", group_size=16, exclude_modules=["lm_head", "model.layers.*.self_attn*"])
    model = load_model(path)
    assert (model.quantization, model.unquantized) == ("nvfp4", ("attention",))
    attention, mlp = 32 * 2 * 4096 * (4096 + 1024), 32 * 3 * 4096 * 14336
    rest = 2 * 128256 * 4096 + 65 * 4096
    assert analyze(Scenario(model, H100)).memory.weights == mlp * 4.5 / 8 + 2 * (attention + rest)
    assert "quantization: nvfp4" in imported(tmp_path / "config.json", None)
    assert load_model(beside(tmp_path, quant_algo="FP8")).quantization == "fp8"  # the file changed, not the config


def test_the_config_decides_before_the_file_beside_it(tmp_path: Path) -> None:
    path = beside(tmp_path, quant_algo="NVFP4")
    Path(path).write_text(json.dumps(config(quant_method="fp8")))
    assert load_model(path).quantization == "fp8"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(config()))
    assert load_model(str(other)).quantization is None
    cache = load_model(beside(tmp_path, quant_algo=None, kv_cache_quant_algo="FP8"))
    assert (cache.quantization, cache.kv_scales) == (None, "modelopt")


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [({"quant_algo": "NVFP3"}, "'quantization': .*'NVFP3'"), ({"quant_algo": 4}, "'quant_algo' must be text")],
)
def test_an_unknown_algorithm_beside_the_config_names_that_file(
    tmp_path: Path, quantization: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SpecError, match=f"hf_quant_config.json: {expected}"):
        load_model(beside(tmp_path, **quantization))


AWQ_FILE = {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
GPTQ_FILE = {"bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": False, "sym": True}


@pytest.mark.parametrize(
    ("name", "content", "scheme"),
    [
        ("quant_config.json", AWQ_FILE, "awq"),
        ("quant_config.json", AWQ_FILE | {"q_group_size": 64}, "awq-g64"),
        ("quantize_config.json", AWQ_FILE, "awq"),
        ("quantize_config.json", GPTQ_FILE, "gptq"),
        ("quantize_config.json", GPTQ_FILE | {"bits": 8, "group_size": 32, "quant_method": "gptq"}, "int8-g32"),
    ],
)
def test_formats_of_awq_and_gptq_in_a_file_of_their_own(
    tmp_path: Path, name: str, content: dict[str, Any], scheme: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config()))
    assert load_model(str(path)).quantization is None
    (tmp_path / name).write_text(json.dumps(content))
    assert load_model(str(path)).quantization == scheme
    path.write_text(json.dumps(config(quant_method="fp8")))
    assert load_model(str(path)).quantization == "fp8"


@pytest.mark.parametrize(
    "content", [{"quant_method": "aqlm2"}, {"scales": "per_channel"}, {"bits": 4, "desc_act": 1, "group_size": "x"}]
)
def test_a_file_of_formats_that_is_not_understood_is_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config()))
    (tmp_path / "quantize_config.json").write_text(json.dumps(content))
    with pytest.raises(SpecError, match=r"quantize_config\.json: "):
        load_model(str(tmp_path / "config.json"))


def test_modelopt_without_its_name() -> None:
    assert translate(config(quant_algo="FP8", ignore=["lm_head"]), "x", "x")["quantization"] == "fp8"


# --- ModelOpt's mixed precision ---------------------------------------------------------------------------------------


def mixed(modules: dict[str, str], name: str = "llama-3.1-8b") -> dict[str, Any]:
    """A config.json in which each of these modules has an algorithm of its own."""
    layers = {module: {"quant_algo": algorithm} for module, algorithm in modules.items()}
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    return {**json.loads((CONFIGS / f"{name}.json").read_text()), "quantization_config": section}


def each(part: str, names: Iterable[str], algorithm: str, layers: Iterable[int] = range(32)) -> dict[str, str]:
    return {f"model.layers.{layer}.{part}.{name}": algorithm for layer in layers for name in names}


QKVO, MLP = [f"{name}_proj" for name in "qkvo"], ["gate_proj", "up_proj", "down_proj"]
Q, KV, FEED = 32 * 2 * 4096 * 4096, 32 * 2 * 4096 * 1024, 32 * 3 * 4096 * 14336  # q and o; k and v; the MLP
HEAD, REST = 128256 * 4096, 128256 * 4096 + 65 * 4096


@pytest.mark.parametrize(
    ("modules", "scheme", "bits"),
    [
        (each("mlp", MLP, "NVFP4"), "nvfp4", 4.5 * FEED + 16 * (Q + KV + HEAD)),
        (
            each("self_attn", QKVO, "FP8") | each("mlp", MLP, "NVFP4"),
            "nvfp4",
            8 * (Q + KV) + 4.5 * FEED + 16 * HEAD,
        ),
        (  # the first and last layers in more bits, one projection in 16
            each("self_attn", QKVO[:3], "FP8")
            | each("mlp", MLP, "W4A16_NVFP4", range(2, 31))
            | each("mlp", MLP, "FP8", (0, 1, 31)),
            "w4a16_nvfp4",
            8 * (Q / 2 + KV) + 16 * (Q / 2 + HEAD) + (29 * 4.5 + 3 * 8) / 32 * FEED,
        ),
        (  # fewer layers than there are: the others are unquantized
            each("mlp", MLP, "FP8", range(8)) | {"lm_head": "FP8"},
            "fp8",
            16 * (Q + KV) + 8 * HEAD + (8 * 8 + 24 * 16) / 32 * FEED,
        ),
    ],
)
def test_formats_module_by_module(modules: dict[str, str], scheme: str, bits: float) -> None:
    model = parse_model(translate(mixed(modules), "x", "x"), "x")
    assert model.quantization == scheme
    assert parse_model(to_spec(model), "x") == model
    answer = analyze(Scenario(model, H100))
    assert answer.memory.weights == pytest.approx((bits + 16 * REST) / 8, rel=1e-12)
    requested = analyze(Scenario(model, H100, precision=parse_precision("bf16", "fp8")))
    assert requested.memory.weights == (8 * (Q + KV + FEED) + 16 * (HEAD + REST)) / 8


def test_mixed_precision_of_experts_and_linear_attention() -> None:
    """Qwen3.6 35B-A3B as NVIDIA released it: FP8 mixers under a wrapper's names, experts and lm_head in NVFP4."""
    content = mixed({}, "qwen3.5-35b-a3b")
    modules = {"lm_head": "W4A16_NVFP4", "mtp.layers.0.mlp.experts": "FP8", "model.visual.blocks.0.attn.qkv": "FP8"}
    for layer in range(40):
        mixer = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
        linear = ["linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj"]
        prefix = f"model.language_model.layers.{layer}"
        modules |= {f"{prefix}.{name}": "FP8" for name in (linear if (layer + 1) % 4 else mixer)}
        modules |= {f"{prefix}.mlp.experts.{expert}.{name}": "W4A16_NVFP4" for expert in range(4) for name in MLP}
    content["quantization_config"] = mixed(modules)["quantization_config"]
    model = parse_model(translate(content, "x", "x"), "x")
    formats = precision_of(model, H100, "vllm").weights
    found = {
        part: formats.format_of(part, BF16.base, 40).name
        for part in ("q_proj", "o_proj", "in_proj", "gate_in_proj", "out_proj", "up_proj", "expert_up_proj", "lm_head")
    }
    assert found == {
        **dict.fromkeys(("q_proj", "o_proj", "in_proj", "out_proj"), "fp8"),
        **dict.fromkeys(("gate_in_proj", "up_proj"), "bf16"),
        **dict.fromkeys(("expert_up_proj", "lm_head"), "nvfp4"),
    }
    assert {"fp8", "nvfp4"} <= set(formats.name.split("/"))


@pytest.mark.parametrize(
    "modules", [{}, {"model.layers.0.mlp.up_proj": "NVFP3"}, {"model.visual.blocks.0.attn.proj": "FP8"}]
)
def test_mixed_precision_that_is_not_read(modules: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="no scheme is known for the algorithm"):
        translate(mixed(modules), "x", "x")


@pytest.mark.parametrize(
    ("formats", "expected"),
    [
        ({"up_prj": "fp8"}, "did you mean 'up_proj'"),
        ({"up_proj": "fp9"}, "'formats.up_proj': .*'fp9'"),
        ({"up_proj": {"fp8": 0}}, "'formats' must be a number > 0"),
        ({"up_proj": {}}, "'formats.up_proj' is empty"),
    ],
)
def test_formats_of_a_spec_are_checked(formats: dict[str, Any], expected: str) -> None:
    spec = to_spec(load_model("llama-3.1-8b"))
    with pytest.raises(SpecError, match=expected):
        parse_model({**spec, "quantization": "nvfp4", "formats": formats}, "x")
    with pytest.raises(SpecError, match="'formats' needs 'quantization'"):
        parse_model({**spec, "formats": {"up_proj": "fp8"}}, "x")


# --- modules by name --------------------------------------------------------------------------------------------------


def weights_of(content: dict[str, Any]) -> float:
    return analyze(Scenario(parse_model(translate(content, "x", "x"), "x"), H100)).memory.weights


GROUP = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}
EIGHT = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
AFFINE = 4 + 32 / 64


@pytest.mark.parametrize(
    ("section", "bits"),
    [
        (  # groups by expression and by name; the first layer's MLP is left alone
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"targets": ["Linear"], **GROUP},
                    "group_1": {"targets": ["re:.*self_attn.*_proj$"], **EIGHT},
                },
                "ignore": ["lm_head", "re:.*layers\\.0\\.mlp.*"],
            },
            8 * (Q + KV) + (31 * (4 + 16 / 128) + 16) / 32 * FEED + 16 * HEAD,
        ),
        (  # mlp.gate is a router's name, and no part of gate_proj's
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.*.mlp.gate", "*o_proj"]},
            4.5 * (Q / 2 + KV + FEED) + 16 * (Q / 2 + HEAD),
        ),
        (
            {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": 128,
                "dynamic": {r"+:.*\.v_proj": {"bits": 8}, "-:.*down_proj": {}},
            },
            (4 + 20 / 128) * (Q + KV / 2 + FEED * 2 / 3) + (8 + 16 / 128) * KV / 2 + 16 * (FEED / 3 + HEAD),
        ),
        (
            {
                "quant_method": "intel/auto-round",
                "bits": 2,
                "group_size": 128,
                "extra_config": {"model.layers.3.mlp.down_proj": {"bits": 16}},
            },
            (2 + 16 / 128) * (Q + KV + FEED * (1 - 1 / 96)) + 16 * (FEED / 96 + HEAD),
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}},
                "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}},
                "exclude": ["lm_head", "*v_proj"],
            },
            8 * (Q + KV / 2) + 4.25 * FEED + 16 * (KV / 2 + HEAD),
        ),
        (
            {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}},
            8 * (Q + KV + FEED) + 16 * HEAD,
        ),
        (
            {
                "quant_method": "torchao",
                "quant_type": {
                    "default": {
                        "_type": "IntxWeightOnlyConfig",
                        "_data": {
                            "weight_dtype": {"_type": "torch.dtype", "_data": "int4"},
                            "granularity": {"_type": "PerGroup", "_data": {"group_size": 64}},
                        },
                    }
                },
            },
            None,
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": 128, "modules_in_block_to_quantize": [["mlp.up_proj"]]},
            (8 + 16 / 128) * FEED / 3 + 16 * (Q + KV + FEED * 2 / 3 + HEAD),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"},
            16 * (Q + KV + FEED + HEAD),
        ),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, None),
    ],
)
def test_schemes_of_modules(section: dict[str, Any], bits: float | None) -> None:
    expected = AFFINE * (Q + KV + FEED) + 16 * HEAD if bits is None else bits
    assert weights_of(config(**section)) == pytest.approx((expected + 16 * REST) / 8, rel=1e-12)


def test_mlx_quantizes_the_embedding() -> None:
    """Qwen3-14B-MLX-4bit: its index has 8,307,783,680 bytes of tensors."""
    content = json.loads((CONFIGS / "llama-3.1-8b.json").read_text())
    content["quantization"] = {"group_size": 64, "bits": 4, "lm_head": False}
    own = 16 * (HEAD + 65 * 4096) + AFFINE * (Q + KV + FEED + 128256 * 4096)
    assert weights_of(content) == pytest.approx(own / 8, rel=1e-12)


def test_vision_encoders_stay_in_16_bits() -> None:
    content = json.loads((CONFIGS / "qwen2.5-vl-7b.json").read_text())
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    fp8 = compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, {"num_bits": 8, "type": "float"})
    for section, quantized in (
        (awq, None),
        (fp8, "fp8"),
        (fp8 | {"ignore": ["re:visual.*", "lm_head"]}, None),
        (fp8 | {"ignore": ["visual"]}, None),
    ):
        model = parse_model(translate({**content, "quantization_config": section}, "x", "x"), "x")
        assert model.tower is not None
        assert model.tower.quantization == quantized
        assert parse_model(to_spec(model), "x") == model
    whole, requested = (
        analyze(Scenario(load_model("qwen2.5-vl-7b"), H100, precision=precision)).memory.weights
        for precision in (None, parse_precision("bf16", "awq"))
    )
    text = parameters(load_model("qwen2.5-vl-7b")) - parameters(model.tower) - 2 * 152064 * 3584
    assert whole - requested == pytest.approx(text * (16 - 4 - 20 / 128) / 8, rel=1e-3)


def test_an_old_bert_says_what_it_is_by_its_class_alone() -> None:
    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    old = {**sizes, "vocab_size": 30522, "hidden_act": "gelu", "architectures": ["BertModel"]}
    assert translate(old, "x", "x") == translate({**old, "model_type": "bert"}, "x", "x")
    with pytest.raises(SpecError, match="model_type"):
        translate({**old, "architectures": ["RobertaModel"]}, "x", "x")
