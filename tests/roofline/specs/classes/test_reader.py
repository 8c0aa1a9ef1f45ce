"""Models read off the classes of Transformers: what a reader of one's own reads, and what a hostile file cannot do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from roofline import SpecError, load_model
from roofline.bound.memory import active_parameters, kv_bytes_per_token, parameters, state_bytes_per_sequence
from roofline.specs.classes import reader
from roofline.specs.huggingface import READERS, translate
from roofline.specs.model import Model
from roofline.specs.modelspec import parse_model
from roofline.specs.precision import parse_precision

pytest.importorskip("transformers")
pytest.importorskip("torch")
BF16 = parse_precision("bf16")
SMALL = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024, "pad_token_id": 0,
}  # fmt: skip


UNREAD = next(kind for kind in ("helium", "nanochat", "arcee") if kind not in READERS)
"""A model type that has a class and no reader."""


def of_class(content: dict[str, Any]) -> Model:
    """What the class says, read in this process."""
    from roofline.specs.classes.build import build
    from roofline.specs.classes.network import read
    from roofline.specs.classes.trace import trace

    model = build(content)
    own = parse_model({"name": "own", **read(model, trace(model)).spec}, "class")
    assert parameters(own) == sum(value.numel() for value in model.parameters())
    return own


@pytest.mark.parametrize(
    "content",
    [
        {"model_type": "llama", **SMALL},
        {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True},
        {"model_type": "gemma2", **SMALL, "sliding_window": 16},
        {"model_type": "mixtral", **SMALL, "num_local_experts": 8},
        {"model_type": "qwen3_moe", **SMALL, "num_experts": 16, "moe_intermediate_size": 64},
        {"model_type": "gpt_oss", **SMALL, "num_local_experts": 8, "sliding_window": 16},
        {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 500},
    ],
    ids=lambda content: content["model_type"],
)
def test_a_class_is_what_its_own_reader_reads(content: dict[str, Any]) -> None:
    """Parameters, those of a token, and the cache of a token are those of the reader of the family."""
    own = of_class(content)
    native = parse_model(translate(content, "config.json", "own"), "native")
    assert parameters(own) == parameters(native)
    assert active_parameters(own) == active_parameters(native)
    assert kv_bytes_per_token(own, BF16) == kv_bytes_per_token(native, BF16)
    windows = {(part.window, part.heads) for part in own.attentions}
    assert windows == {(part.window, part.heads) for part in native.attentions}


def test_a_state_is_what_the_cache_of_the_class_holds() -> None:
    """A short convolution of 2 tokens in 3 of 4 layers, each of 256 channels (Lfm2ShortConv)."""
    kinds = ["conv", "conv", "full_attention", "conv"]
    own = of_class({"model_type": "lfm2", **SMALL, "layer_types": kinds, "conv_L_cache": 3})
    assert state_bytes_per_sequence(own, BF16) == 3 * 256 * 3 * 4
    assert kv_bytes_per_token(own, BF16) == 2 * 2 * 32 * 2


def test_an_encoder_and_a_decoder() -> None:
    small = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 300}
    own = of_class({"model_type": "pegasus", **small, **heads})
    assert own.tower is not None
    assert (own.layers, own.tower.layers, own.tower_kind) == (3, 2, "encoder")
    assert all(group.layer.cross is not None for group in own.groups)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reader.SWITCH, "1")


def saved(folder: Path, content: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.slow
@pytest.mark.usefixtures("on")
def test_a_file_without_a_reader_is_read_and_says_on_what_it_rests(tmp_path: Path) -> None:
    """Remote code that the file names is not run; the file's formats count."""
    (tmp_path / "own.py").write_text("raise SystemExit('this ran')")
    mapped = {"auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    formats = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    content = {"model_type": UNREAD, **SMALL, **mapped, "quantization_config": formats, "torch_dtype": "float16"}
    model = load_model(saved(tmp_path, content))
    assert (model.quantization, model.dtype, model.layers) == ("fp8_block", "fp16", 4)
    assert model.rests_on[0].startswith("its layers are read off the class of Transformers")


@pytest.mark.slow
@pytest.mark.usefixtures("on")
def test_what_a_class_does_not_make_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="unsupported model_type 'no_such_type'"):
        load_model(saved(tmp_path, {"model_type": "no_such_type"}))
    with pytest.raises(SpecError, match=r"the class that Transformers has of model_type .* is not read"):
        load_model(saved(tmp_path, {"model_type": UNREAD, **SMALL, "num_attention_heads": 0}))


@pytest.mark.slow
@pytest.mark.usefixtures("on")
def test_a_class_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SECONDS", 0.2)
    with pytest.raises(SpecError, match="was not built within"):
        load_model(saved(tmp_path, {"model_type": UNREAD, **SMALL, "num_hidden_layers": 3}))


def test_the_program_itself_imports_neither(tmp_path: Path) -> None:
    import subprocess

    check = (
        "import sys, roofline.specs.modelspec, roofline.specs.hub; print({'torch', 'transformers'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout.strip() == "set()"


def test_without_transformers_the_refusal_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(reader.SWITCH, "1")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SpecError, match=r"install Transformers, whose classes are read .*\[transformers\]"):
        load_model(saved(tmp_path, {"model_type": UNREAD, **SMALL}))
