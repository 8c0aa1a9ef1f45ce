"""GGUF files: read to the byte, within a second, and damaged ones in one sentence."""

from __future__ import annotations

import contextlib
import os
import struct
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lab.llama_cpp.random_model import write_random_model
from roofline import Scenario, analyze, load_hardware, load_model
from roofline.core.errors import RooflineError, SpecError
from roofline.scenario.notes import notes
from roofline.scenario.stored import mismatch
from roofline.specs.weight_files.ggml import TYPES
from roofline.specs.weight_files.gguf import read_gguf
from roofline.validate.measure.decoder import with_layers
from tests.roofline.specs.weight_files.conftest import Write, llama_layers

LLAMA_2_7B = {
    "block_count": 32,
    "context_length": 4096,
    "embedding_length": 4096,
    "feed_forward_length": 11008,
    "attention.head_count": 32,
    "attention.head_count_kv": 32,
    "rope.dimension_count": 128,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
"""The metadata of Llama 2 7B as llama.cpp's converter writes it."""


def more_bits(layer: int) -> bool:
    """llama.cpp's `use_more_bits` for 32 layers (src/llama-quant.cpp)."""
    return layer < 4 or layer >= 28 or (layer - 4) % 3 == 2


def q4_k_m(name: str, layer: int) -> str:
    return "Q6_K" if name in ("attn_v", "ffn_down") and more_bits(layer) else "Q4_K"


def llama_2_7b(write_gguf: Write) -> Path:
    ends = [("token_embd.weight", (32000, 4096), "Q4_K"), ("output.weight", (32000, 4096), "Q6_K")]
    tensors = [*ends, ("output_norm.weight", (4096,), "F32"), *llama_layers(32, 4096, 32, 32, 11008, q4_k_m)]
    return write_gguf("llama", {**LLAMA_2_7B, "general.file_type": 15}, [*tensors, ("rope_freqs.weight", (64,), "F32")])


def test_types_are_those_of_the_library() -> None:
    for number, (name, block, bytes) in TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert gguf.GGML_QUANT_SIZES[kind] == (block, bytes), name


def test_weights_of_a_real_layout_are_those_of_the_file_to_the_byte(write_gguf: Write) -> None:
    path = llama_2_7b(write_gguf)
    model = load_model(str(path))
    tensors = gguf.GGUFReader(path).tensors
    weights = analyze(Scenario(model, load_hardware("m2-ultra"), engine="llama.cpp")).memory.weights
    assert round(weights) == sum(tensor.n_bytes for tensor in tensors)
    assert weights / 2**30 == pytest.approx(3.80, abs=0.005)  # llama.cpp's README: Llama 2 7B Q4_K_M
    stored = model.stored
    assert stored is not None
    assert stored.header + stored.padding + stored.bytes == stored.size == path.stat().st_size
    assert 0 <= stored.padding < 32 * (len(tensors) + 1)
    assert model.groups == load_model("llama-2-7b").groups
    assert model.quantization == "q4_k_m"
    assert stored.left_out.bytes == 256


@pytest.mark.parametrize("format", ["fp16", "q8_0", "q4_0"])
def test_random_models_are_read_back(format: str, tmp_path: Path) -> None:
    network = replace(with_layers(load_model("qwen2.5-0.5b"), 1), vocabulary=4096)
    path = write_random_model(network, format, tmp_path / "model.gguf")
    model = load_model(str(path))
    assert (model.groups, model.vocabulary, model.tied_embeddings) == (network.groups, network.vocabulary, True)
    analysis = analyze(Scenario(model, load_hardware("m2-ultra"), engine="llama.cpp"))
    assert round(analysis.memory.weights) == sum(tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors)


ATTENTION = {"attention.head_count": 32, "attention.head_count_kv": 4, "attention.key_length": 128}
METADATA: Mapping[str, tuple[str, dict[str, Any], tuple[int, int], bool]] = {
    "llama-3.1-8b": (
        "llama",
        {"block_count": 32, "context_length": 131072, "embedding_length": 4096, "feed_forward_length": 14336}
        | {"attention.head_count": 32, "attention.head_count_kv": 8},
        (128256, 4096),
        False,
    ),
    "mixtral-8x7b": (
        "llama",
        {"block_count": 32, "context_length": 32768, "embedding_length": 4096, "feed_forward_length": 14336}
        | {"attention.head_count": 32, "attention.head_count_kv": 8, "expert_count": 8, "expert_used_count": 2},
        (32000, 4096),
        False,
    ),
    "qwen2-7b": (
        "qwen2",
        {"block_count": 28, "context_length": 131072, "embedding_length": 3584, "feed_forward_length": 18944}
        | {"attention.head_count": 28, "attention.head_count_kv": 4},
        (152064, 3584),
        False,
    ),
    "qwen3-30b-a3b": (
        "qwen3moe",
        {"block_count": 48, "context_length": 40960, "embedding_length": 2048, "feed_forward_length": 6144}
        | {**ATTENTION, "expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768},
        (151936, 2048),
        False,
    ),
    "gemma-3-1b": (
        "gemma3",
        {"block_count": 26, "context_length": 32768, "embedding_length": 1152, "feed_forward_length": 6912}
        | {"attention.head_count": 4, "attention.head_count_kv": 1, "attention.key_length": 256}
        | {"attention.sliding_window": 512},
        (262144, 1152),
        True,
    ),
    "phi-3-mini": (
        "phi3",
        {"block_count": 32, "context_length": 4096, "embedding_length": 3072, "feed_forward_length": 8192}
        | {"attention.head_count": 32, "attention.head_count_kv": 32, "attention.sliding_window": 2047},
        (32064, 3072),
        False,
    ),
    "gpt-oss-20b": (
        "gpt-oss",
        {"block_count": 24, "context_length": 131072, "embedding_length": 2880, "feed_forward_length": 2880}
        | {"attention.head_count": 64, "attention.head_count_kv": 8, "attention.key_length": 64}
        | {"attention.sliding_window": 128, "expert_count": 32, "expert_used_count": 4}
        | {"expert_feed_forward_length": 2880},
        (201088, 2880),
        False,
    ),
    "deepseek-v3": (
        "deepseek2",
        {"block_count": 61, "context_length": 163840, "embedding_length": 7168, "feed_forward_length": 18432}
        | {"attention.head_count": 128, "attention.head_count_kv": 1, "attention.key_length": 576}
        | {"attention.value_length": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128}
        | {"attention.q_lora_rank": 1536, "attention.kv_lora_rank": 512, "rope.dimension_count": 64}
        | {"expert_count": 256, "expert_used_count": 8, "expert_shared_count": 1, "expert_feed_forward_length": 2048}
        | {"leading_dense_block_count": 3, "expert_group_count": 8, "expert_group_used_count": 4},
        (129280, 7168),
        False,
    ),
}
"""The metadata of published files by architecture, their embedding, and whether it is tied."""


@pytest.mark.parametrize("name", METADATA)
def test_metadata_describe_the_same_layers_as_the_bundled_spec(name: str, write_gguf: Write) -> None:
    architecture, metadata, table, tied = METADATA[name]
    tensors = [("token_embd.weight", table, "F16")] + ([] if tied else [("output.weight", table, "F16")])
    tensors += [("blk.3.exp_probs_b.bias", (256,), "F32")] if name == "deepseek-v3" else []
    model, spec = load_model(str(write_gguf(architecture, metadata, tensors))), load_model(name)
    assert model.groups == spec.groups
    assert model.pattern == spec.pattern
    assert (model.hidden, model.vocabulary, model.tied_embeddings) == (spec.hidden, spec.vocabulary, tied)


def test_a_difference_of_header_and_tensors_is_said(write_gguf: Write) -> None:
    tensors = [("token_embd.weight", (32000, 4096), "F16"), *llama_layers(31, 4096, 32, 32, 11008, lambda *_: "F16")]
    model = load_model(str(write_gguf("llama", LLAMA_2_7B, tensors)))
    assert mismatch(model) == (
        "the checkpoint and its config differ: up_proj has 1,397,751,808 elements in the tensors and 1,442,840,576 in"
        " the config"
    )


@pytest.mark.slow
def test_400_gigabytes_take_less_than_a_second(write_gguf: Write) -> None:
    words = [f"word {index}" for index in range(150_000)]
    ends = [("token_embd.weight", (150_000, 16384), "F16"), ("output.weight", (150_000, 16384), "F16")]
    layers = llama_layers(126, 16384, 128, 8, 53248, lambda *_: "Q8_0")
    metadata = {"block_count": 126, "embedding_length": 16384, "feed_forward_length": 53248, "context_length": 4096}
    metadata |= {"attention.head_count": 128, "attention.head_count_kv": 8}
    tokens: dict[str, Any] = {"tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": words}
    path = write_gguf("llama", {**metadata, **tokens}, [*ends, *layers])
    assert path.stat().st_size > 400e9
    start = time.process_time()
    assert load_model(str(path)).layers == 126
    assert time.process_time() - start < 1


def test_parts_of_a_split_file_are_read_together(write_gguf: Write, tmp_path: Path) -> None:
    first = [("token_embd.weight", (32000, 4096), "F16"), ("output.weight", (32000, 4096), "F16")]
    write_gguf("llama", LLAMA_2_7B, first).rename(tmp_path / "a-00001-of-00002.gguf")
    with pytest.raises(SpecError, match=r"a-00002-of-00002\.gguf: is missing"):
        load_model(str(tmp_path / "a-00001-of-00002.gguf"))
    layers = llama_layers(32, 4096, 32, 32, 11008, lambda *_: "F16")
    write_gguf("llama", {}, layers).rename(tmp_path / "a-00002-of-00002.gguf")
    model = load_model(str(tmp_path / "a-00001-of-00002.gguf"))
    assert (model.name, model.stored and model.stored.files) == ("a", 2)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def header(tensors: int = 0, keys: int = 0, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + body


def tensor(name: bytes = b"a", sizes: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


KEY = string(b"k")
HUGE = 2**63
DAMAGED = {
    "empty": (b"", "is no GGUF file"),
    "another format": (b"PK\3\4" + bytes(100), "is no GGUF file"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "other byte order"),
    "cut": (header()[:12], "its header would end behind the file"),
    "keys": (header(keys=HUGE), f"its header has {HUGE} keys"),
    "tensors": (header(tensors=HUGE), f"its header has {HUGE} tensors"),
    "key": (header(keys=1, body=struct.pack("<Q", HUGE)), f"key 1 of the metadata has {HUGE} bytes"),
    "value": (header(keys=1, body=KEY + struct.pack("<IQ", 8, HUGE)), f"the value of 'k' has {HUGE} bytes"),
    "type": (header(keys=1, body=KEY + struct.pack("<I", 77)), "unknown type 77"),
    "array": (header(keys=1, body=KEY + struct.pack("<IIQ", 9, 4, HUGE)), "would end behind the file"),
    "texts": (header(keys=1, body=KEY + struct.pack("<IIQ", 9, 8, HUGE)), "entries in 'k'"),
    "nested": (header(keys=1, body=KEY + struct.pack("<IIQ", 9, 9, 1)), "an array of the unknown type 9"),
    "not UTF-8": (header(tensors=1, body=tensor(b"\xff\xfe")), "the name of tensor 1 is not UTF-8 text"),
    "dimensions": (header(tensors=1, body=string(b"a") + struct.pack("<I", 2**31)), "ggml has at most 4"),
    "sizes": (header(tensors=1, body=tensor(sizes=(HUGE, HUGE))), "tensor 'a' would end behind the file"),
    "blocks": (header(tensors=1, body=tensor(sizes=(33,), kind=2)), "no whole blocks of q4_0"),
    "ggml type": (header(tensors=1, body=tensor(kind=4)), "tensor 'a' has the unknown type 4"),
    "outside": (header(tensors=1, body=tensor(offset=1 << 20) + bytes(512)), "behind the file: it is incomplete"),
    "overlap": (header(tensors=2, body=tensor() + tensor(b"b", offset=32) + bytes(512)), "'b' overlaps 'a'"),
    "twice": (header(tensors=2, body=tensor() + tensor() + bytes(512)), "the tensor 'a' appears twice"),
    "alignment": (
        header(1, 1, string(b"general.alignment") + struct.pack("<II", 4, 0) + tensor() + bytes(512)),
        "must be a power of two, got '0'",
    ),
    "unaligned": (header(tensors=1, body=tensor(offset=7) + bytes(512)), "not aligned to 32 bytes"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_headers_get_one_sentence_in_bounded_memory(case: str, tmp_path: Path) -> None:
    content, problem = DAMAGED[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    if case in ("array", "texts"):
        os.truncate(path, 1 << 40)  # a sparse terabyte of zeros
        problem = problem if case == "texts" else "behind the file"
    tracemalloc.start()
    with pytest.raises(SpecError) as found:
        read_gguf(path)
    assert tracemalloc.get_traced_memory()[1] < 4e6
    tracemalloc.stop()
    assert problem in str(found.value)
    assert "\n" not in str(found.value)


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    network = replace(with_layers(load_model("qwen2.5-0.5b"), 1), vocabulary=300, hidden=256)
    return write_random_model(network, "q8_0", tmp_path_factory.mktemp("small") / "model.gguf").read_bytes()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_is_a_roofline_error_or_analysed(small_model: bytes, data: st.DataObject) -> None:
    damaged, hardware = bytearray(small_model), load_hardware("m2-ultra")
    names = small_model.index(b"token_embd.weight")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 600) | st.integers(names - 30, names + 900))
        damaged[place] = data.draw(st.integers(0, 255))
    with TemporaryDirectory() as folder, contextlib.suppress(RooflineError):
        path = Path(folder, "fuzzed.gguf")
        path.write_bytes(damaged[: data.draw(st.none() | st.integers(0, len(damaged)))])
        analysis = analyze(Scenario(load_model(str(path)), hardware, engine="llama.cpp"))
        assert analysis.memory.weights >= 0
        assert all("\n" not in note for note in notes(analysis))


@pytest.mark.parametrize("hardware", ["rtx-4090", "h100-sxm", "mi300x"])
def test_a_file_is_run_by_llama_cpp_unless_an_engine_is_named(write_gguf: Write, hardware: str) -> None:
    path = str(llama_2_7b(write_gguf))
    device = load_hardware(hardware)
    default = Scenario(load_model(path), device)
    assert default.profile.name == "llama.cpp"
    assert analyze(default).memory == analyze(Scenario(load_model(path), device, engine="llama.cpp")).memory
    assert Scenario(load_model(path), device, engine="vllm").profile.name == "vllm"
    assert Scenario(load_model("llama-2-7b"), device).profile.name == "vllm"
