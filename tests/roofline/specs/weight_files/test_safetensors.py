"""Folders of safetensors: exact bytes by component for each quantization format, and damaged files in one sentence."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.core.errors import SpecError
from roofline.scenario.stored import mismatch, stored_notes
from roofline.specs.engine import load_engine
from roofline.specs.weight_files.safetensors import read_header
from tests.paths import ROOT

HIDDEN, WIDTH, HEADS, VOCABULARY = 256, 512, 4, 1000

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}

PROJECTIONS = {
    **dict.fromkeys((f"self_attn.{name}_proj" for name in "qkvo"), (HIDDEN, HIDDEN)),
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (WIDTH, HIDDEN)),
    "mlp.down_proj": (HIDDEN, WIDTH),
}

Arrays = dict[str, np.ndarray[Any, Any]]


def zeros(*shape: int, dtype: str = "float16") -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype=dtype)


def awq(outputs: int, inputs: int) -> Arrays:
    """AutoAWQ, groups of 128: eight weights in an int32, fp16 scales, packed zero points."""
    groups = inputs // 128
    return {
        "qweight": zeros(inputs, outputs // 8, dtype="int32"),
        "qzeros": zeros(groups, outputs // 8, dtype="int32"),
        "scales": zeros(groups, outputs),
    }


def gptq(outputs: int, inputs: int) -> Arrays:
    groups = inputs // 128
    return {
        "qweight": zeros(inputs // 8, outputs, dtype="int32"),
        "qzeros": zeros(groups, outputs // 8, dtype="int32"),
        "scales": zeros(groups, outputs),
        "g_idx": zeros(inputs, dtype="int32"),
    }


def compressed(outputs: int, inputs: int) -> Arrays:
    """compressed-tensors, pack-quantized W4A16 in groups of 128."""
    return {
        "weight_packed": zeros(outputs, inputs // 8, dtype="int32"),
        "weight_scale": zeros(outputs, inputs // 128),
        "weight_shape": zeros(2, dtype="int64"),
    }


def nvfp4(outputs: int, inputs: int) -> Arrays:
    """ModelOpt: two weights in a byte, an FP8 scale for 16, an fp32 scale for all and one for the inputs."""
    return {
        "weight": zeros(outputs, inputs // 2, dtype="uint8"),
        "weight_scale": zeros(outputs, inputs // 16, dtype="uint8"),
        "weight_scale_2": zeros(1, dtype="float32"),
        "input_scale": zeros(1, dtype="float32"),
    }


def nf4(outputs: int, inputs: int) -> Arrays:
    """bitsandbytes: two weights in a byte, an fp32 absmax for 64, a table of 16 values."""
    count = outputs * inputs
    return {
        "weight": zeros(count // 2, 1, dtype="uint8"),
        "weight.absmax": zeros(count // 64, dtype="float32"),
        "weight.quant_map": zeros(16, dtype="float32"),
        "weight.quant_state.bitsandbytes__nf4": zeros(80, dtype="uint8"),
    }


GROUP = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}}
KINDS: Mapping[str, tuple[Any, dict[str, Any] | None]] = {
    "plain": (lambda outputs, inputs: {"weight": zeros(outputs, inputs)}, None),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 128}),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 128}),
    "compressed-tensors": (
        compressed,
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": GROUP},
    ),
    "modelopt": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "bitsandbytes": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
}


def write_folder(folder: Path, kind: str, layers: int = 2, config: Mapping[str, Any] | None = None) -> int:
    """A checkpoint of two shards with an index; bytes of its tensors."""
    make, quantization = KINDS[kind]
    first = {"model.embed_tokens.weight": zeros(VOCABULARY, HIDDEN), "lm_head.weight": zeros(VOCABULARY, HIDDEN)}
    second = {"model.norm.weight": zeros(HIDDEN)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        second |= {f"{prefix}{name}.weight": zeros(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")}
        for name, shape in PROJECTIONS.items():
            second |= {f"{prefix}{name}.{part}": array for part, array in make(*shape).items()}
    folder.mkdir(exist_ok=True)
    files = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    for name, tensors in files.items():
        save_file(tensors, folder / name)
    weights = {tensor: name for name, tensors in files.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    section = {"quantization_config": quantization} if quantization else {}
    (folder / "config.json").write_text(json.dumps({**CONFIG, **section, **(config or {})}))
    return sum(array.nbytes for tensors in files.values() for array in tensors.values())


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_files_to_the_byte(kind: str, tmp_path: Path) -> None:
    stored = write_folder(tmp_path / "m", kind)
    model = load_model(str(tmp_path / "m"))
    assert mismatch(model) == ""
    weights = analyze(Scenario(model, load_hardware("h100-sxm"), engine="vllm")).memory.weights
    if kind == "bitsandbytes":  # vLLM's profile runs it in the format of the checkpoint, too
        assert model.quantization == "nf4_single"
    assert round(weights) == stored
    assert model.stored is not None
    assert model.stored.bytes == stored
    assert model.stored.header + stored == model.stored.size


def test_experts_in_mxfp4_beside_layers_in_bf16(tmp_path: Path) -> None:
    """The layout of gpt-oss-20b: fused experts as blocks and scales, biases everywhere, a sink a head."""
    config = (ROOT / "tests/data/configs/gpt-oss-20b.json").read_text()
    hidden, experts = 2880, 32
    shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (hidden,)}
    shapes |= dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (201088, hidden))
    for layer in range(24):
        prefix = f"model.layers.{layer}"
        for name, width in (("q_proj", 4096), ("k_proj", 512), ("v_proj", 512)):
            shapes |= {
                f"{prefix}.self_attn.{name}.weight": (width, hidden),
                f"{prefix}.self_attn.{name}.bias": (width,),
            }
        shapes |= {f"{prefix}.self_attn.o_proj.weight": (hidden, 4096), f"{prefix}.self_attn.o_proj.bias": (hidden,)}
        shapes |= {f"{prefix}.self_attn.sinks": (64,), f"{prefix}.mlp.router.weight": (experts, hidden)}
        shapes |= {f"{prefix}.{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        shapes |= {f"{prefix}.mlp.router.bias": (experts,)}
        for name, width in (("gate_up_proj", 2 * hidden), ("down_proj", hidden)):
            shapes |= {f"{prefix}.mlp.experts.{name}_blocks": (experts, width, hidden // 32, 16)}
            shapes |= {f"{prefix}.mlp.experts.{name}_scales": (experts, width, hidden // 32)}
            shapes |= {f"{prefix}.mlp.experts.{name}_bias": (experts, width)}
    header, end = {}, 0
    for name, shape in shapes.items():
        packed = name.endswith(("_blocks", "_scales"))
        start, end = end, end + math.prod(shape) * (1 if packed else 2)
        header[name] = entry(start, end, shape, "U8" if packed else "BF16")
    write_raw(tmp_path / "model.safetensors", header)
    os.truncate(tmp_path / "model.safetensors", (tmp_path / "model.safetensors").stat().st_size + end)
    (tmp_path / "config.json").write_text(config)
    model = load_model(str(tmp_path))
    assert mismatch(model) == ""
    assert round(analyze(Scenario(model, load_hardware("h100-sxm"), engine="sglang")).memory.weights) == end
    assert end / 2**30 == pytest.approx(12.8, abs=0.05)  # gpt-oss model card (OpenAI, 2025), Table 1


def test_bits_of_awq_are_those_of_its_groups(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "awq")
    stored = load_model(str(tmp_path / "m")).stored
    assert stored is not None
    assert stored.scheme.special["q_proj"].bits == 4 + (16 + 4) / 128  # type: ignore[union-attr]
    assert stored.scheme.special["lm_head"].name == "fp16"  # type: ignore[union-attr]


def test_formats_that_only_modelopts_file_names(tmp_path: Path) -> None:
    stored = write_folder(tmp_path / "m", "modelopt", config={"quantization_config": None})
    (tmp_path / "m" / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    model = load_model(str(tmp_path / "m"))
    assert (model.quantization, mismatch(model)) == ("nvfp4", "")
    assert round(analyze(Scenario(model, load_hardware("b200-sxm"))).memory.weights) == stored


def test_what_an_engine_dequantizes_is_said(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "awq")
    notes = list(stored_notes(load_model(str(tmp_path / "m")), load_engine("llama.cpp")))
    assert "llama.cpp does not keep the formats of the checkpoint: awq, which runs as W16A16" in notes


def test_layers_that_the_config_does_not_have_are_said(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "plain", layers=1)
    model = load_model(str(tmp_path / "m"))
    assert mismatch(model) == (
        "the checkpoint and its config differ: up_proj has 131,072 elements in the tensors and 262,144 in the config"
    )


def test_tied_embeddings_are_stored_once(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "plain", config={"tie_word_embeddings": True})
    assert "lm_head has 512,000 elements in the tensors and 256,000" in mismatch(load_model(str(tmp_path / "m")))


def test_adapters_are_found_beside_and_refused_alone(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "plain")
    adapter = tmp_path / "m" / "chat"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"r": 16, "base_model_name_or_path": "meta-llama/Llama-2-7b-hf"}')
    save_file({"base.lora_A.weight": zeros(16, HIDDEN)}, adapter / "adapter_model.safetensors")
    notes = list(stored_notes(load_model(str(tmp_path / "m")), load_engine("vllm")))
    described = "LoRA adapter 'chat' of 'meta-llama/Llama-2-7b-hf', 8.19 kB: simulate it --with lora:rank=16"
    assert notes[-1] == f"beside it is the {described}"
    with pytest.raises(SpecError, match=r"is no model but a LoRA adapter 'chat' of .* --with lora:rank=16"):
        load_model(str(adapter))


def write_raw(path: Path, header: Any, size: int = 0, length: int | None = None) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(size))


def entry(first: int = 0, last: int = 4, shape: Any = (1,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


DAMAGED: Mapping[str, tuple[Any, int, int | None, str]] = {
    "length": ({}, 0, 2**63, f"its header has {2**63} bytes"),
    "not JSON": (b"{", 0, None, "is not valid JSON"),
    "nested": (b"[" * 10**5, 0, None, "is not valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', 0, None, "its header is not UTF-8 text"),
    "twice": (b'{"a": 1, "a": 2}', 0, None, "the key 'a' appears twice"),
    "list": ([], 0, None, "must be a mapping of tensors"),
    "entry": ({"a": 1}, 0, None, "tensor 'a' must be a mapping"),
    "type": ({"a": entry(dtype="Q4")}, 4, None, "tensor 'a' has the unknown type 'Q4'"),
    "negative": ({"a": entry(shape=[-1])}, 4, None, "tensor 'a' needs a 'shape'"),
    "huge": ({"a": entry(last=2**63)}, 4, None, "tensor 'a' needs a 'shape'"),
    "shape": ({"a": entry(shape=[2])}, 4, None, "which are not those of its shape in F32"),
    "overlap": ({"a": entry(), "b": entry(2, 6)}, 6, None, "tensor 'b' overlaps another"),
    "gap": ({"a": entry(4, 8)}, 8, None, "tensor 'a' has a gap before it"),
    "cut": ({"a": entry()}, 3, None, "it is incomplete"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_headers_get_one_sentence(case: str, tmp_path: Path) -> None:
    header, size, length, problem = DAMAGED[case]
    write_raw(tmp_path / "bad.safetensors", header, size, length)
    with pytest.raises(SpecError) as found:
        read_header(tmp_path / "bad.safetensors")
    assert problem in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a\0b", "..", "missing.safetensors"])
def test_an_index_names_files_of_its_folder_only(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "plain")
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(SpecError, match="'weight_map' names"):
        load_model(str(tmp_path / "m"))


def test_a_folder_is_read_without_tensors_but_not_without_config(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has no config\.json: it is no folder of a Hugging Face model"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert load_model(str(tmp_path)).stored is None


def test_400_gigabytes_take_less_than_a_second(tmp_path: Path) -> None:
    """A mixture of experts in 80 shards with 25,000 tensors, as sparse files."""
    sizes = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 80,
        "num_local_experts": 104,
        "num_key_value_heads": 4,
    }
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **sizes, "model_type": "mixtral"}))
    bytes = 2 * 2048 * 4096
    for layer in range(80):
        prefix = f"model.layers.{layer}.block_sparse_moe.experts"
        names = [f"{prefix}.{expert}.{part}.weight" for expert in range(104) for part in ("w1", "w2", "w3")]
        header = {
            name: entry(index * bytes, (index + 1) * bytes, (2048, 4096), "BF16") for index, name in enumerate(names)
        }
        path = tmp_path / f"model-{layer:05}.safetensors"
        write_raw(path, header)
        os.truncate(path, path.stat().st_size + len(names) * bytes)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.safetensors")) > 400e9
    start = time.process_time()
    model = load_model(str(tmp_path))
    assert time.process_time() - start < 1
    assert model.stored is not None
    assert model.stored.formats["BF16"].tensors == 24960
