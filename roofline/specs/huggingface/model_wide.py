"""Config keys that are common to all model families.

Draft models, encoder classes, attention direction, sliding windows and encoders beside the text decoder. Of these a key
that neither a reader nor this module reads is an error, not ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import WINDOWED, Config, Spec, layer_types, spec_with_pattern
from roofline.specs.sublayers import MIXERS

DRAFT_KEYS = ("draft_vocab_size", "eagle_config", "dflash_config", "num_target_layers", "speculators_model_type")
"""Keys of draft models (SpecForge, DFlash, speculators), which the technique eagle simulates."""

_DRAFT = re.compile(r"Eagle|DFlash|NextN|Draft|Speculator|Medusa|MTP")
_MODULES = re.compile(r"NextN|MTP")


def reject_drafts(config: Config) -> None:
    """Raise SpecError for a draft model: its layers take the hidden states of the target model."""
    for name in config.texts("architectures"):
        # Eagle is also the name of NVIDIA's vision-language models.
        if _DRAFT.search(name) and not name.endswith("ForConditionalGeneration"):
            technique = "medusa" if "Medusa" in name else "multi-token-prediction" if _MODULES.search(name) else "eagle"
            raise _draft(config, f"'architectures': {quote(name)}", technique)
    for key in DRAFT_KEYS:
        if config.content.get(key) is not None:
            raise _draft(config, f"the model with {quote(key)}", "eagle")


def _draft(config: Config, what: str, technique: str) -> SpecError:
    return SpecError(
        config.where,
        f"{what} is a draft for another model; simulate the target model with {technique}",
        options=["with"],
    )


TEXT_ONLY = (
    *("dots_ocr", "gemma3", "gemma3n", "gemma4", "glm5_next", "kimi_k25", "kimi_k3", "minimax_m3_vl"),
    *("phi3_v", "phi4mm"),
)
"""Multimodal models that are read as their text decoder alone where their file describes no tower."""

TOWERS = ("vision_config", "audio_config", "mm_vision_tower", "vision_tower")
"""Keys of encoders beside the text decoder."""

UNREAD: Mapping[str, str] = {
    "alibi": "a bias by distance",
    "alibi_starting_size": "a bias by distance",
    "mlp_layer_types": "which layers have experts",
    "add_cross_attention": "attention to another model",
    "num_kv_shared_layers": "layers that read the keys of others",
}
"""The meaning of keys that are an error if the family's reader has not read them."""


def complete_spec(config: Config, spec: Spec, name: str) -> Spec:
    """A reader's spec, completed with the keys that are common to all families; `name` is the model's.

    Raises SpecError for a key that a spec cannot express.
    """
    model_type = config.text("model_type")
    places = (config, config.section("text_config"))
    if "layer_types" not in config.read:
        nested = places[1].content.get("layer_types") is not None
        spec = _layer_types(places[nested], spec)
    for place in places:
        for key, meaning in UNREAD.items():
            if place.content.get(key) and key not in config.read and not _is_implied(place, spec, key):
                raise SpecError(config.where, f"{quote(key)}: {meaning} is not read for model_type {quote(model_type)}")
    if model_type in TEXT_ONLY and "tower" not in spec:
        spec = {**spec, "title": f"{name} (text decoder only)"}
    else:
        for key in (key for key in TOWERS if config.content.get(key) and key not in config.read):
            problem = f"not supported for model_type {quote(model_type)}"
            raise SpecError(config.where, f"{quote(key)} is {problem}; without that key the text decoder alone is read")
    if spec.get("task") == "encode":
        return spec
    turned = _bidirectional_key(config, *places)
    if turned is not None:
        return _without_lm_head(_bidirectional(config, spec, turned), 0)
    headless = _headless_class(config)
    if headless is None:
        return spec
    if spec.get("tower_kind") == "encoder":
        problem = f"{quote(headless)} is an encoder and a decoder without the output, which is not supported"
        raise SpecError(config.where, f"'architectures': {problem}")
    return _without_lm_head(spec, _head_weights(config, headless, spec["hidden"]))


def _is_implied(place: Config, spec: Spec, key: str) -> bool:
    """Whether the spec already has the effect of an unread key."""
    if key == "mlp_layer_types":
        return set(place.texts(key)) == ({"sparse"} if "moe" in spec else {"dense"} if "mlp" in spec else {key})
    return key.startswith("alibi") and spec.get("positions") in ("alibi", {"kind": "alibi"})


def _layer_types(config: Config, spec: Spec) -> Spec:
    """The spec with the sliding windows of `layer_types`, which overrides all other window keys.

    If layers differ in other ways too, the family's reader handles the list.
    """
    kinds = layer_types(config, WINDOWED)
    if kinds is None:
        return spec
    windowed = "local" in kinds
    if "blocks" in spec or "attention" not in spec:
        if windowed or _window_sizes(spec):
            raise SpecError(config.where, "'layer_types': windows are not read where layers differ in other ways too")
        return spec
    attention = dict(spec["attention"])
    own = attention.pop("window", None)
    window = config.window() or own
    base = {**spec, "attention": attention}
    if not windowed:
        return base
    if config.content.get("use_sliding_window") is False:
        raise SpecError(config.where, "'layer_types' has windows that 'use_sliding_window' turns off")
    if window is None:
        raise SpecError(config.where, "'layer_types' has windows, and the key 'sliding_window' is missing")
    return spec_with_pattern(base, {"local": {"attention": {"window": window}}, "global": {}}, kinds)


def _attention_sections(spec: Spec) -> list[Spec]:
    """The attention sections of a spec's top level and blocks."""
    sections = (place.get("attention") for place in (spec, *spec.get("blocks", {}).values()))
    return [section for section in sections if section]


def _window_sizes(spec: Spec) -> list[int]:
    return [section["window"] for section in _attention_sections(spec) if section.get("window")]


_GENERATES = re.compile(r"For(Causal|Conditional)|LMHead|ModelLM")
_HEADLESS = re.compile(r"(Model|For(Sequence|Token)Classification|For\w*Reward\w*|ForQuestionAnswering)$")

RELEASED_HEADLESS = ("BloomModel", "ChatGLMModel", "GPT2Model", "InternVLChatModel")
"""Classes named as if without an LM head under which generative models were released.

BLOOM and Cerebras-GPT use the embedding as the LM head; the released code of ChatGLM and InternVL adds one.
"""


def _headless_class(config: Config) -> str | None:
    """The class of a model that ends in its last hidden state or a score; None if the model generates.

    Transformers loads `XModel` without LM head, and classification and reward classes with a small head instead; a file
    without `architectures` is assumed to generate.
    """
    names = config.texts("architectures")
    if not names or any(_GENERATES.search(name) or name in RELEASED_HEADLESS for name in names):
        return None
    found = next((name for name in names if _HEADLESS.search(name)), None)
    if found is None:
        problem = f"{quote(names[0])} is not known to generate or to encode; without that key it is assumed to generate"
        raise SpecError(config.where, f"'architectures': {problem}")
    return found


def _head_weights(config: Config, name: str, hidden: int) -> int:
    """Weights of the head that replaces the LM head in the classes of Transformers.

    Qwen2's reward models have a head of two layers (vLLM, model_executor/models/qwen2_rm.py).
    """
    labels = config.integer("num_labels", default=len(config.section("id2label").content) or 2)
    if "Reward" in name:
        labels = labels if "Process" in name else 1
        return hidden * hidden + hidden + (hidden + 1) * labels if name.startswith("Qwen2") else hidden
    if "Classification" in name:
        return int((hidden + ("Token" in name)) * labels)
    return 2 * (hidden + 1) if "Answering" in name else 0


def _without_lm_head(spec: Spec, score: int) -> Spec:
    """The model as an encoder; the `score` weights of its head are stored but not run."""
    kept = {key: value for key, value in spec.items() if key not in ("lm_head_bias", "mtp")}
    extra = {"extra_parameters": spec.get("extra_parameters", 0) + score} if score else {}
    return {**kept, "task": "encode", "lm_head": False, "tied_embeddings": False, **extra}


def _bidirectional_key(config: Config, *places: Config) -> str | None:
    """The key that enables bidirectional attention for all tokens; for image tokens only ("vision") it is ignored."""
    for place in places:
        if not place.flag("is_causal", True):
            return "is_causal"
        key = "use_bidirectional_attention"
        given: Any = place.content.get(key)
        if given in ("all", "vision"):
            given = given == "all"
        elif given is not None:
            given = place.flag(key, False)
        if given:
            return key
    return "architectures" if any("Bidirec" in name for name in config.texts("architectures")) else None


def _bidirectional(config: Config, spec: Spec, key: str) -> Spec:
    """The model with bidirectional attention over the sequence, or over two-sided windows.

    Gemma halves the window: each side has half of it (configuration_gemma3.py).
    """
    blocks: Mapping[str, Spec] = spec.get("blocks", {})
    sections = {name for place in (spec, *blocks.values()) for name in place}
    if spec.get("tower_kind") == "encoder" or sections & (set(MIXERS) - {"attention"}):
        raise SpecError(config.where, f"{quote(key)}: only decoders of softmax attention are read as encoders")
    if _window_sizes(spec) and not config.text("model_type").startswith("gemma"):
        raise SpecError(config.where, f"{quote(key)}: windows of attention in both directions are not supported")

    def turned(place: Spec) -> Spec:
        attention = place.get("attention")
        if not attention:
            return place
        window = attention.get("window")
        wide = {"window": 2 * (window // 2) + 1} if window else {}
        return {**place, "attention": {**attention, "causal": False, **wide}}

    whole = turned(spec)
    return {**whole, "blocks": {name: turned(block) for name, block in blocks.items()}} if blocks else whole
