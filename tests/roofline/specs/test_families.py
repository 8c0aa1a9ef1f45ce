"""Rows of model families: expressions over the keys of a file, and which layer has which block."""

from __future__ import annotations

import json
from typing import Any

import pytest

from roofline import SpecError
from roofline.specs.huggingface import translate
from roofline.specs.huggingface.config import Config
from roofline.specs.huggingface.expressions import FLAG, NUMBER, Kind, Scope, evaluate
from roofline.specs.modelspec import parse_model
from tests.paths import CONFIGS


def value(text: str, content: dict[str, Any], kind: Kind = NUMBER, **defaults: Any) -> Any:
    return evaluate(text, kind, Scope(Config(content, "file", defaults=defaults)))


def test_the_class_counts_before_the_alternative_and_a_spelling_before_the_class() -> None:
    assert value("a | 7", {}) == 7
    assert value("a | 7", {"a": None}, a=5) == 7
    assert value("a | 7", {}, a=5) == 5
    assert value("a / b | 7", {"b": 3}, a=5) == 3
    assert value("a | auto | 2 * b", {"a": "auto", "b": 4}) == 8
    with pytest.raises(SpecError, match="'a' must be a whole number, got 'auto'"):
        value("a | 2 * b", {"a": "auto", "b": 4})


def test_a_key_of_a_section_and_a_condition() -> None:
    content = {"part": {"size": 6}, "on": True, "kind": "own"}
    assert value("part.size * 2 if on and kind == 'own' else 1", content) == 12
    assert value("not (off | false) and given(on)", content, FLAG) is True


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("a", {}),
        ("a", {"a": 0}),
        ("a // b", {"a": 4, "b": 0}),
        ("a", {"a": 1.5}),
        ("within(a | 4, 2, 16)", {"a": 1}),
        ("2 * within(a | 4, 1, 16)", {"a": 17}),
        ("1 + positive(a | 4)", {"a": 0}),
    ],
)
def test_a_key_out_of_its_bounds_is_an_error_that_names_it(text: str, content: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"'[ab]'"):
        value(text, content)


def test_lists_have_an_entry_for_each_layer() -> None:
    config = Config({"some": [0, 1]}, "file")
    assert evaluate("some[index] | 1", NUMBER, Scope(config, 2)).tolist() == [0, 1]
    with pytest.raises(SpecError, match="each of 3 layers"):
        evaluate("some[index] | 1", NUMBER, Scope(config, 3))


def test_an_error_names_a_key_as_the_file_does() -> None:
    content = json.loads((CONFIGS / "dbrx.json").read_text())
    with pytest.raises(SpecError, match="'n_heads'"):
        translate({**content, "n_heads": -1}, "file", "own")


def test_widths_listed_for_another_number_of_layers_are_refused() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "vocab_size": 100}
    with pytest.raises(SpecError, match=r"'intermediate_size' .* 5 layers"):
        translate({**sizes, "model_type": "gemma3n_text", "intermediate_size": [8, 8, 8]}, "file", "own")


def test_windows_of_qwen_begin_after_the_first_layers() -> None:
    content = json.loads((CONFIGS / "qwen3-8b.json").read_text())
    given = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 30, "layer_types": None}
    model = parse_model(translate({**content, **given}, "file", "own"), "file")
    assert [attention.window for attention in model.attentions] == [None, 64]
    assert model.pattern.index("windowed") == 30


@pytest.mark.parametrize(
    ("kind", "key"),
    [("rwkv7", "decay_low_rank_dim"), ("rwkv7", "v_low_rank_dim"), ("minimax_m3", "shared_intermediate_size")],
)
def test_sizes_of_what_a_model_has_are_not_0(kind: str, key: str) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    content = {**sizes, "vocab_size": 100, "intermediate_size": 128, "model_type": kind}
    parse_model(translate(content, "file", "own"), "file")
    with pytest.raises(SpecError, match=f"'{key}' must be between 1"):
        translate({**content, key: 0}, "file", "own")


def test_a_hundred_thousand_layers_of_a_pattern_are_few_sections() -> None:
    content = json.loads((CONFIGS / "deepseek-v3.json").read_text())
    spec = translate({**content, "num_hidden_layers": 100_000}, "file", "own")
    assert spec["layers"]["pattern"].count("dense") == 3
    assert len(spec["blocks"]) == 2
