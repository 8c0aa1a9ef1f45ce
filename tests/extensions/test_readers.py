"""Readers of `config.json` of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roofline import RooflineError, SpecError, load_model, parameters
from roofline.specs.huggingface import register
from roofline.whatif.study import make_study
from tests.extensions.conftest import LoadModule

OURS = """
from roofline.specs.huggingface import Config, Spec, attention_section, base_spec, gated_mlp

def read(config: Config) -> Spec:
    config.reject("use_memory_tokens")
    attention = attention_section(config, head_dim=HEAD_DIM)
    return base_spec(config, tied=True, attention=attention, mlp=gated_mlp(config))
"""

CONFIG = {
    "model_type": "ours",
    "architectures": ["OursForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "torch_dtype": "float16",
}


def saved(folder: Path, **changes: object) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}), encoding="utf-8")
    return str(path)


def weights(head_dim: int) -> int:
    """The parameters of the model by hand."""
    attention = 1024 * head_dim * (8 + 2 + 2 + 8)
    return 32000 * 1024 + 1024 + 8 * (attention + 3 * 1024 * 4096 + 2 * 1024)


def test_a_reader_of_a_module_reads_its_model_type_until_it_is_undone(module: LoadModule, tmp_path: Path) -> None:
    path, ours = saved(tmp_path), module(f"HEAD_DIM = 64{OURS}")
    with pytest.raises(SpecError, match="unsupported model_type 'ours'"):
        load_model(path)
    with register("ours", ours.read):
        model = load_model(path)
        assert (model.dtype, parameters(model)) == ("fp16", weights(64))
        with register("ours", module(f"HEAD_DIM = 32{OURS}").read, replace=True):
            assert parameters(load_model(path)) == weights(32)
        assert load_model(path) == model
    with pytest.raises(SpecError, match="unsupported model_type 'ours'"):
        load_model(path)


def test_a_shipped_reader_can_be_replaced(module: LoadModule, tmp_path: Path) -> None:
    path = saved(tmp_path, model_type="llama", tie_word_embeddings=True)
    shipped = load_model(path)
    with register("llama", module(f"HEAD_DIM = 32{OURS}").read, replace=True):
        assert parameters(load_model(path)) == weights(32)
    assert load_model(path) == shipped


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_taken_type_is_replaced_on_request_only(model_type: str, module: LoadModule) -> None:
    message = f"^the reader of the model_type '{model_type}' exists already; replace=True replaces it$"
    with pytest.raises(RooflineError, match=message):
        register(model_type, module(f"HEAD_DIM = 64{OURS}").read)


def test_mistakes_in_a_file_are_reported_with_their_key(module: LoadModule, tmp_path: Path) -> None:
    with register("ours", module(f"HEAD_DIM = 64{OURS}").read):
        with pytest.raises(SpecError, match=r"config\.json: 'use_memory_tokens' of ours is not supported"):
            load_model(saved(tmp_path, use_memory_tokens=True))
        with pytest.raises(SpecError, match=r"config\.json: the key 'hidden_size' is missing"):
            load_model(saved(tmp_path, hidden_size=None))


def test_results_of_studies_have_another_key(module: LoadModule, tmp_path: Path) -> None:
    path, keys = saved(tmp_path), []
    for head_dim in (64, 32):
        with register("ours", module(f"HEAD_DIM = {head_dim}{OURS}").read):
            keys.append(make_study({"batch": "1,2"}, model=path, hw="h100-sxm").key)
    assert keys[0] != keys[1]
