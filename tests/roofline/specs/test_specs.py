"""The bundled specs: complete, sourced, and self-consistent; and the Hugging Face readers against them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import Model, kv_bytes_per_token, list_hardware, list_models, load_hardware, load_model, parameters
from roofline.core.errors import SpecError
from roofline.specs.huggingface import READERS
from roofline.specs.huggingface.unet import CLASS
from roofline.specs.library import spec_files
from roofline.specs.modelspec import parse_model
from roofline.specs.precision import parse_precision
from roofline.specs.written import to_spec
from tests.cases import CLASSES, HARDWARE, MODELS, architecture, sampled
from tests.paths import CONFIGS, DATA

FILES = sorted(CONFIGS.glob("*.json"))

REQUIRED_HARDWARE = """
    a6000 a100-sxm-40gb a100-sxm-80gb a800-sxm-80gb a40 h100-sxm h100-pcie l40 core-i9-13900k t4 a10 a30 l4 l40s h20
    h800-sxm h200-sxm gh200 b200-sxm b300-sxm gb200 gb300 rtx-3090 rtx-4090 rtx-5090 rtx-pro-6000-workstation
    rtx-pro-6000-server dgx-spark jetson-agx-orin-64gb mi210 mi250x mi300x mi325x mi355x gaudi-2 gaudi-3 tpu-v4
    tpu-v5e tpu-v5p tpu-v6e trainium-1 trainium-2 inferentia-2 m1 m1-pro m1-max m1-ultra m2 m2-pro m2-max m2-ultra
    m3 m3-pro m3-max m3-ultra m4 m4-pro m4-max xeon-platinum-8480plus epyc-9654 arc-b60 v100-sxm2-16gb
    vr200 mi455x ryzen-ai-max-395
"""


@pytest.mark.slow
def test_every_architecture_is_among_the_cases() -> None:
    assert {architecture(load_model(name)) for name in list_models()} == {
        architecture(load_model(name)) for name in CLASSES.split()
    }


def test_required_hardware_is_bundled() -> None:
    assert set(REQUIRED_HARDWARE.split()) <= set(list_hardware())


@pytest.mark.parametrize("name", HARDWARE)
def test_every_hardware_number_has_a_source(name: str) -> None:
    path = spec_files("hwspecs")[name]
    content = yaml.safe_load(path.read_text())
    hardware = load_hardware(name)
    assert hardware.name == name
    expected = {"memory.capacity", "memory.bandwidth"}
    expected |= {f"compute.{key}" for key in ("units", "clock") if key in content["compute"]}
    expected |= {f"{unit}.{key}" for unit in ("tensor", "vector") for key in content["compute"].get(unit, {})}
    expected |= {f"interconnects.{i}.bandwidth" for i in range(len(content.get("interconnects", [])))}
    expected |= {f"power.{key}" for key in content.get("power", {})}
    assert expected <= set(hardware.sources)


@pytest.mark.parametrize(
    ("name", "units", "clock", "rates"),
    [
        ("mi455x", 256, 2.4e9, {"fp8": 32768, "fp4": 65536, "bf16": 8192}),
        ("ryzen-ai-max-395", 40, 2.9e9, {"fp16": 512, "bf16": 512}),
    ],
)
def test_peaks_are_units_times_clock_times_rate(name: str, units: int, clock: float, rates: dict[str, int]) -> None:
    hardware = load_hardware(name)
    for number_format, rate in rates.items():
        assert hardware.matrix_peak(number_format) == pytest.approx(units * clock * rate, rel=2e-3)


def test_a_rubin_gpu_is_the_72nd_part_of_the_published_rack() -> None:
    """3,600 PFLOP/s count compression; dense are 2,520 (NVFP4), 1,260 (FP8) and 288 (BF16); 20.7 TB, 1,580 TB/s."""
    gpu = load_hardware("vr200")
    rack = {"fp4": 2520e15, "fp8": 1260e15, "bf16": 288e15, "int8": 18e15}
    for number_format, peak in rack.items():
        assert 72 * gpu.matrix_peak(number_format) == pytest.approx(peak)
    assert 72 * gpu.memory_capacity == pytest.approx(20.7e12, rel=5e-3)
    assert 72 * gpu.memory_bandwidth == pytest.approx(1580e12, rel=5e-3)


@pytest.mark.parametrize("name", HARDWARE)
def test_hardware_is_plausible(name: str) -> None:
    hardware = load_hardware(name)
    sixteen = [hardware.matrix_peak(name) for name in ("bf16", "fp16") if hardware.supports(name)]
    wide = hardware.matrix_peak("fp32") if hardware.supports("fp32") else None
    if sixteen and wide:
        assert max(sixteen) >= wide
    for narrow in ("fp8", "fp4"):
        if hardware.supports(narrow):
            assert hardware.matrix_peak(narrow) >= max(sixteen)
    if hardware.tensor and hardware.vector_peak:
        assert hardware.vector_peak <= max(hardware.tensor.values())


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("h100-sxm", {"int4", "fp4"}),
        ("a100-sxm-80gb", {"fp8", "fp4"}),
        ("v100-sxm2-16gb", {"bf16", "tf32", "int8", "fp8", "int4"}),
        ("t4", {"bf16", "tf32", "fp8"}),
        ("b200-sxm", {"int4"}),
        ("mi250x", {"fp8"}),
        ("m2-ultra", {"bf16", "fp8", "int8"}),
    ],
)
def test_unsupported_formats_are_absent(name: str, absent: set[str]) -> None:
    assert not absent & set(load_hardware(name).formats)


@pytest.mark.parametrize("name", MODELS)
def test_model_specs_round_trip(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert parse_model(to_spec(model), name) == model


def layers(model: Model) -> Model:
    return replace(model, name="", title="", source=None, parameters=None, active_parameters=None, dtype="")


@pytest.mark.parametrize("path", sampled(FILES), ids=lambda path: path.stem)
def test_config_json_describes_the_same_model_as_the_spec(path: Path) -> None:
    read, spec = load_model(str(path)), load_model(path.stem)
    if path.stem == "gemma-4-26b-a4b":  # the file of its decoder alone
        tower = {name: getattr(read, name) for name in ("tower", "tower_kind", "tower_tokens", "image")}
        spec = replace(spec, **tower)
    if path.stem == "mistral-small-4-119b":  # the file without the format, which the recipe of the model says
        spec = replace(spec, quantization=None)
    assert layers(read) == layers(spec)
    assert parameters(read) == parameters(spec)
    precision = parse_precision("bf16")
    assert kv_bytes_per_token(read, precision) == kv_bytes_per_token(spec, precision)


NOT_RUN = {"dots1", "gemma3n", "glm5_next_text", "hunyuan_v1_dense", "nemotron", "qwen3_omni_moe"}
"""Types whose class has no defaults to run with, and the wrappers of others."""

DECODERS = {"glm4v_moe_text", "glm4v_text", "minimax_m3", "minimax_m3_vl_text", "step3_text"}
"""Decoders of multimodal models, which the classes of these are counted with."""

REMOTE = {"aquila", "phi3_v", "phi4mm", "sdar", "sdar_moe", "telechat", "telechat3"}
"""Types of code that Transformers has not, like another's row and without a bundled model."""


def test_every_reader_has_a_fixture() -> None:
    """A released file, or a small one with the counts of its class (`test_class_counts`)."""
    import json

    configs = [json.loads(path.read_text()) for path in FILES]
    sections = [section for config in configs for section in (config, config.get("text_config", {}))]
    released = {section.get("model_type", section.get("_class_name")) for section in sections}
    counted = {json.loads(line)["type"] for line in (DATA / "classes.jsonl").read_text().splitlines()}
    assert {*READERS, CLASS} <= released | counted | NOT_RUN | DECODERS | REMOTE


# Small files that would explode


@pytest.mark.parametrize(
    ("name", "section", "key"),
    [("rwkv-4-169m", "mlp", "shift"), ("hyena-355m", "hyena", "filter_layers")],
)
def test_operators_of_a_block_are_few(name: str, section: str, key: str) -> None:
    spec = to_spec(load_model(name))
    for count in (101, 10**6, 10**9):
        spec[section][key] = count
        with pytest.raises(SpecError, match=f"'{section}.{key}' must be a whole number <= 100"):
            parse_model(spec, "own.yaml")


def test_relative_positions_need_attention() -> None:
    spec = to_spec(load_model("mamba-130m")) | {"positions": {"kind": "relative", "count": 32}}
    with pytest.raises(SpecError, match="'positions': relative positions need layers with 'attention'"):
        parse_model(spec, "own.yaml")


def test_different_blocks_are_few() -> None:
    spec = to_spec(load_model("llama-3.2-1b"))
    names = [f"b{index}" for index in range(10_000)]
    blocks = {name: {"mlp": {"width": 128 + index}} for index, name in enumerate(names)}
    spec |= {"layers": {"count": len(names), "pattern": names}, "blocks": blocks, "parameters": None}
    with pytest.raises(SpecError, match="10000 different blocks; at most 200"):
        parse_model(spec, "own.yaml")


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=12))
def test_patterns_are_written_by_their_shortest_period(pattern: list[str]) -> None:
    spec = to_spec(load_model("llama-3.2-1b"))
    blocks = {"a": {}, "b": {"mlp": {"width": 128}}}
    spec |= {"layers": {"count": len(pattern), "pattern": pattern}, "blocks": blocks, "parameters": None}
    model = parse_model(spec, "own.yaml")
    written = to_spec(model)
    assert parse_model(written, "own.yaml") == model
    if isinstance(written["layers"], dict):
        runs = [entry.split(" x ") for entry in written["layers"]["pattern"]]
        period = sum(int(run[0]) if len(run) == 2 else 1 for run in runs)
        shorter = range(1, period)
        assert not any(all(name == pattern[at % size] for at, name in enumerate(pattern)) for size in shorter)


def test_an_unknown_key_with_a_line_break_is_refused_in_one_line() -> None:
    with pytest.raises(SpecError, match=r"unknown key 'a\\nb' in 'norm'") as refused:
        parse_model({**to_spec(load_model("llama-3.1-8b")), "norm": {"kind": "rmsnorm", "a\nb": 1}}, "spec.yaml")
    assert "\n" not in str(refused.value)
