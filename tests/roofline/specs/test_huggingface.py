"""Config keys beside a family's sizes: drafts, encoder classes, windows, vision encoders; and rejected files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from roofline import Model, Scenario, SpecError, analyze, load_hardware, load_model, parameters
from roofline.bound.memory import state_bytes_per_sequence
from roofline.reports.documents.listing import imported
from roofline.specs.huggingface import translate
from roofline.specs.modelspec import parse_model
from roofline.specs.precision import parse_precision
from roofline.specs.sublayers import Attention, Mamba2, Mlp
from roofline.specs.written import to_spec
from tests.paths import CONFIGS

H100 = load_hardware("h100-sxm")


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads((CONFIGS / f"{name}.json").read_text()), **changes}


def read(content: dict[str, Any]) -> Model:
    model = parse_model(translate(content, "config.json", "own"), "config.json")
    assert parse_model(to_spec(model), "again") == model
    assert analyze(Scenario(model, H100, batch=2, prompt=64)).prefill.flops > 0
    return model


def rejection(content: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as error:
        translate(content, "config.json", "own")
    message = str(error.value)
    assert message.isprintable()
    return message


def windows(model: Model) -> list[int | None]:
    """The window of each layer."""
    found = {group.name: group.layer.mixer for group in model.groups}
    mixers = [found[name] for name in model.pattern]
    return [mixer.window for mixer in mixers if isinstance(mixer, Attention)]


# --- encoders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["T5EncoderModel", "MT5EncoderModel"])
def test_t5_without_a_decoder(architecture: str) -> None:
    model = read(config("flan-t5-xxl", architectures=[architecture]))
    layer = 4 * 4096 * 4096 + 3 * 4096 * 10240 + 2 * 4096
    assert parameters(model) == 24 * layer + 32128 * 4096 + 4096 + 32 * 64
    assert (model.task, model.tower, model.lm_head, model.layers) == ("encode", None, False, 24)
    assert not any(attention.causal for attention in model.attentions)
    assert analyze(Scenario(model, H100)).decode is None


def test_t5_without_lm_head_is_rejected() -> None:
    assert "'T5Model'" in rejection(config("t5-base", architectures=["T5Model"]))
    assert read(config("t5-base", architectures=["T5WithLMHeadModel"])) == read(config("t5-base"))


@pytest.mark.parametrize(("vocabulary", "size"), [(4096, 117_068_544), (30528, 137_368_320)])
def test_bert_with_alibi(vocabulary: int, size: int) -> None:
    """DNABERT-2 and MosaicBERT: no table of positions, a gated block with a bias of its output alone, the pooler."""
    model = read(config("bert-base", alibi_starting_size=512, vocab_size=vocabulary))
    square = 768 * 768 + 768
    layer = 4 * square + 768 * 2 * 3072 + 3072 * 768 + 768 + 2 * 2 * 768
    assert parameters(model) == size == (vocabulary + 2 + 2) * 768 + 12 * layer + square
    block = model.groups[0].layer.feed_forward
    assert isinstance(block, Mlp)
    assert (model.positions.kind, block.gated, block.activation, model.max_context) == ("alibi", True, "gelu", 512)


def test_unsupported_alibi_is_rejected() -> None:
    assert "'alibi_starting_size'" in rejection(config("roberta-large", alibi_starting_size=512))
    assert "'alibi'" in rejection(config("llama-2-7b", alibi=True))
    assert read(config("baichuan2-13b", alibi=True)) == read(config("baichuan2-13b"))


@pytest.mark.parametrize(
    ("name", "changes", "score"),
    [
        ("mistral-7b", {"architectures": ["MistralModel"]}, 0),
        ("llama-3.1-8b", {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}, 4096),
        ("llama-3.1-8b", {"architectures": ["LlamaForSequenceClassification"]}, 2 * 4096),
        ("llama-3.1-8b", {"architectures": ["LlamaForTokenClassification"], "num_labels": 3}, 3 * 4097),
        ("llama-3.1-8b", {"architectures": ["LlamaForQuestionAnswering"]}, 2 * 4097),
        ("internlm2-20b", {"architectures": ["InternLM2ForRewardModel"]}, 6144),
        ("qwen2-7b", {"architectures": ["Qwen2ForRewardModel"]}, 3584 * 3585 + 3585),
        ("qwen2-7b", {"architectures": ["Qwen2ForProcessRewardModel"]}, 3584 * 3585 + 2 * 3585),
    ],
)
def test_classes_without_lm_head(name: str, changes: dict[str, Any], score: int) -> None:
    whole, model = load_model(name), read(config(name, **changes))
    assert parameters(model) == parameters(whole) - whole.vocabulary * whole.hidden + score
    assert (model.task, model.lm_head) == ("encode", False)
    assert all(attention.causal for attention in model.attentions)
    assert analyze(Scenario(model, H100)).decode is None


def test_published_sizes_of_classes_without_lm_head() -> None:
    """Skywork-Reward-Llama-3.1-8B and e5-mistral-7b-instruct (hub: safetensors total)."""
    score = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    assert parameters(read(config("llama-3.1-8b", **score))) == 7_504_928_768
    assert parameters(read(config("mistral-7b", architectures=["MistralModel"]))) == 7_110_660_096


def test_tied_embedding_is_kept() -> None:
    model = read(config("gemma-3-1b", architectures=["Gemma3TextModel"]))
    assert (model.lm_head, model.tied_embeddings, model.task) == (False, False, "encode")
    assert parameters(model) == parameters(load_model("gemma-3-1b"))


@pytest.mark.parametrize("name", ["llava-1.5-7b", "minimax-m3"])
def test_transformers_4_wrote_tied_embeddings_into_the_section_of_the_text(name: str) -> None:
    whole = config(name, tie_word_embeddings=False)
    assert not read(whole).tied_embeddings
    assert read({**whole, "text_config": {**whole["text_config"], "tie_word_embeddings": True}}).tied_embeddings


def test_generative_classes_without_lm_head() -> None:
    """BLOOM, ChatGLM and Cerebras-GPT were released as such; a file that names no class generates."""
    for name, named in (("bloom-176b", "BloomModel"), ("chatglm3-6b", "ChatGLMModel"), ("gpt2-xl", "GPT2Model")):
        assert read(config(name, architectures=[named])).task == "generate"
    content = config("llama-2-7b")
    del content["architectures"]
    assert read(content).lm_head
    assert "'LlamaForMaskedLM'" in rejection(config("llama-2-7b", architectures=["LlamaForMaskedLM"]))
    assert "'architectures'" in rejection(config("llama-2-7b", architectures="LlamaForCausalLM"))


@pytest.mark.parametrize(
    "changes",
    [{"is_causal": False}, {"use_bidirectional_attention": True}, {"architectures": ["LlamaBidirectionalModel"]}],
)
def test_bidirectional_attention(changes: dict[str, Any]) -> None:
    model = read(config("llama-3.1-8b", **changes))
    assert not any(attention.causal for attention in model.attentions)
    assert (model.task, model.lm_head) == ("encode", False)
    scores = [
        sum(op.flops * op.count for op in analyze(Scenario(found, H100, prompt=64, fusions=())).prefill.ops)
        for found in (read(config("llama-3.1-8b", architectures=["LlamaModel"])), model)
    ]
    assert scores[1] > scores[0]


def test_bidirectional_windows() -> None:
    """EmbeddingGemma: a token sees 256 on either side of it, and itself."""
    causal, model = read(config("gemma-3-1b")), read(config("gemma-3-1b", use_bidirectional_attention=True))
    assert set(windows(causal)) == {512, None}
    assert set(windows(model)) == {513, None}
    assert not any(attention.causal for attention in model.attentions)
    assert read(config("gemma-3-1b", use_bidirectional_attention="vision")) == causal
    assert "'is_causal'" in rejection(config("mistral-7b", is_causal=False))


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "mamba-130m", "jamba-v0.1", "t5-base"])
def test_bidirectional_recurrences_are_rejected(name: str) -> None:
    assert "'is_causal': only decoders" in rejection(config(name, is_causal=False))


# --- drafts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "technique"),
    [
        ("llama-3.1-8b", {"architectures": ["LlamaForCausalLMEagle3"]}, "eagle"),
        ("llama-3.1-8b", {"draft_vocab_size": 32000}, "eagle"),
        ("llama-3.1-8b", {"eagle_config": {"use_aux_hidden_state": True}}, "eagle"),
        ("gpt-oss-20b", {"architectures": ["GptOssForCausalLMEagle3"]}, "eagle"),
        ("qwen3-8b", {"architectures": ["DFlashDraftModel"]}, "eagle"),
        ("qwen3-8b", {"num_target_layers": 36}, "eagle"),
        ("qwen3-8b", {"dflash_config": {}}, "eagle"),
        ("llama-3.1-8b", {"architectures": ["LlamaMedusaModel"]}, "medusa"),
        ("deepseek-v3", {"architectures": ["DeepseekV3ForCausalLMNextN"]}, "multi-token-prediction"),
        ("deepseek-v3", {"architectures": ["DeepSeekMTPModel"]}, "multi-token-prediction"),
        ("llama-3.1-8b", {"model_type": "mimo_mtp", "architectures": ["MiMoMTPModel"]}, "multi-token-prediction"),
    ],
)
def test_draft_models_are_rejected(name: str, changes: dict[str, Any], technique: str) -> None:
    message = rejection(config(name, **changes))
    assert message.endswith(f"is a draft for another model; simulate the target model with {technique}")
    assert f"'{next(iter(reversed(changes)))}'" in message


# --- windows layer by layer -------------------------------------------------------------------------------------------


def kinds(layers: int, full: int = 1) -> list[str]:
    return ["sliding_attention"] * (layers - full) + ["full_attention"] * full


@pytest.mark.parametrize(
    ("name", "layers"),
    [("qwen2-7b", 28), ("qwen3-8b", 36), ("llama-3.1-8b", 32), ("mistral-7b", 32), ("olmo-2-7b", 32)],
)
@pytest.mark.parametrize("full", [0, 1, 2])
def test_layer_types_override_other_window_keys(name: str, layers: int, full: int) -> None:
    changes = {"layer_types": kinds(layers, full), "sliding_window": 2048, "use_sliding_window": True}
    model = read(config(name, **changes, max_window_layers=layers))
    assert windows(model) == [2048] * (layers - full) + [None] * full


def test_full_attention_layers_have_no_window() -> None:
    content = config("mistral-7b", layer_types=kinds(32, 32))
    assert windows(read(content)) == [None] * 32
    plain = {**content, "sliding_window": None}
    assert read(content) == read({key: value for key, value in plain.items() if key != "layer_types"})


def test_layer_types_of_moe_models() -> None:
    assert windows(read(config("mixtral-8x7b", layer_types=kinds(32), sliding_window=1024)))[-2:] == [1024, None]
    mixed = config("glm-4.5", layer_types=kinds(92), sliding_window=1024)
    assert "'layer_types'" in rejection(mixed)
    assert read({**mixed, "layer_types": kinds(92, 92)}) == read(config("glm-4.5"))


def test_layer_types_of_a_nested_decoder() -> None:
    content = config("qwen2.5-vl-7b", text_config=config("qwen2-7b", layer_types=kinds(28), sliding_window=512))
    del content["text_config"]["use_sliding_window"]
    assert windows(read(content)) == [512] * 27 + [None]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layer_types": ["linear_attention"] * 36}, "each one of sliding_attention, full_attention"),
        ({"layer_types": kinds(35)}, "must name 36 layers"),
        ({"layer_types": kinds(36), "use_sliding_window": None, "sliding_window": None}, "'sliding_window' is missing"),
        ({"layer_types": kinds(36), "use_sliding_window": False, "sliding_window": 9}, "'use_sliding_window'"),
    ],
)
def test_invalid_layer_types_are_rejected(changes: dict[str, Any], expected: str) -> None:
    assert expected in rejection(config("qwen3-8b", **changes))


@pytest.mark.parametrize(("name", "window"), [("command-a", 4096), ("exaone-4.0-32b", 4096), ("olmo-3-32b", 4096)])
def test_every_fourth_layer_has_no_window_without_a_list(name: str, window: int) -> None:
    content = config(name)
    content.pop("layer_types", None)
    model = read(content)
    assert windows(model) == [window, window, window, None] * (model.layers // 4)


def test_exaone_without_a_window_rotates_in_every_layer() -> None:
    """EXAONE 4.0 1.2B."""
    model = read(config("exaone-4.0-32b", layer_types=None, sliding_window=None))
    assert windows(model) == [None] * 64
    assert [attention.rotary is False for attention in model.attentions] == [False]


def test_layers_without_positions() -> None:
    assert len(read(config("smollm3-3b", no_rope_layers=None)).attentions) == 2
    assert "'no_rope_layers'" in rejection(config("smollm3-3b", no_rope_layers=[1, 0]))


def test_a_recurrent_models_width_is_that_of_its_file() -> None:
    """Copies of Falcon Mamba's configuration have `expand: 16` and the width of two."""
    changes = {"hidden_size": 4096, "intermediate_size": 8192}
    assert read(config("mamba-130m", expand=16, **changes)) == read(config("mamba-130m", expand=2, **changes))


def test_layer_types_of_recurrent_models_are_not_ignored() -> None:
    assert "'layer_types'" in rejection(config("mamba-130m", layer_types=kinds(24), num_hidden_layers=24))


# --- towers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes"), [("gemma-3-4b", {"vision_config": None}), ("gemma-4-31b", {"vision_config": None})]
)
def test_title_of_a_text_decoder_only_spec(name: str, changes: dict[str, Any]) -> None:
    assert read(config(name, **changes)).title == "own (text decoder only)"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("chatglm3-6b", "vision_config"),
        ("llama-3.1-8b", "vision_config"),
        ("qwen2.5-vl-7b", "audio_config"),
        ("mistral-7b", "mm_vision_tower"),
    ],
)
def test_unsupported_encoders_are_rejected(name: str, key: str) -> None:
    message = rejection(config(name, **{key: "openai/clip" if key.startswith("mm") else {"hidden_size": 1792}}))
    assert f"'{key}' is not supported for model_type" in message


LLAVA = {
    "model_type": "llava",
    "architectures": ["LlavaLlamaForCausalLM"],
    "mm_vision_tower": "openai/clip-vit-large-patch14-336",
    "mm_projector_type": "mlp2x_gelu",
    "image_aspect_ratio": "pad",
}


def test_original_llava_files() -> None:
    model, known = read(config("llama-2-7b", **LLAVA)).tower, load_model("llava-1.5-7b").tower
    assert model is not None
    assert known is not None
    assert (model.groups, model.projector, model.patch) == (known.groups, known.projector, known.patch)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"mm_vision_tower": "openai/clip-vit-large-patch14"}, "mm_vision_tower"),
        ({"mm_vision_tower": "google/siglip-so400m-patch14-384"}, "mm_vision_tower"),
        ({"mm_vision_tower": None}, "mm_vision_tower"),
        ({"mm_projector_type": "mlp2x_gelu_Norm"}, "mm_projector_type"),
        ({"mm_projector_type": None}, "mm_projector_type"),
        ({"image_aspect_ratio": "anyres_max_9"}, "image_aspect_ratio"),
        ({"architectures": ["LlavaQwenForCausalLM"]}, "architectures"),
        ({"architectures": ["LlavaMistralForCausalLM"]}, "architectures"),
    ],
)
def test_unsupported_llava_files_are_rejected(changes: dict[str, Any], key: str) -> None:
    assert f"'{key}'" in rejection(config("llama-2-7b", **LLAVA) | changes)


# --- families ---------------------------------------------------------------------------------------------------------

GUARD = {"interleave_moe_layer_step": 0, "num_local_experts": 0, "moe_layers": [], "intermediate_size_mlp": 8192}


@pytest.mark.parametrize(
    "changes",
    [
        GUARD,
        {**GUARD, "moe_layers": None},
        {**GUARD, "num_local_experts": 1},
        {**GUARD, "interleave_moe_layer_step": 1},
    ],
)
def test_llama_4_without_experts(changes: dict[str, Any]) -> None:
    """Llama Guard 4: Scout's layers with a dense block each; 12.0 billion weights, tower included."""
    whole = config("llama-4-maverick")
    text = {**whole["text_config"], **changes}
    model = read({**whole, "text_config": text})
    assert not model.experts
    layer = 5120 * 128 * (2 * 40 + 2 * 8) + 3 * 5120 * 8192 + 2 * 5120
    assert model.tower is not None
    assert parameters(model) - parameters(model.tower) == 48 * layer + 2 * 202048 * 5120 + 5120


def test_chunked_attention_layer_types() -> None:
    whole = config("llama-4-maverick")["text_config"]
    listed = [("full" if index % 4 == 3 else "chunked") + "_attention" for index in range(48)]
    assert read({**whole, "layer_types": listed}) == read(whole)
    assert "'layer_types'" in rejection({**whole, "layer_types": ["full_attention"] * 48})


def test_mlp_layer_types_override_counts() -> None:
    for name, layers in (("glm-5", 78), ("deepseek-v3", 61), ("glm-4.5", 92)):
        listed = ["dense"] + ["sparse"] * (layers - 1)
        model = read(config(name, mlp_layer_types=listed))
        assert model.pattern[0] != model.pattern[1] == model.pattern[-1]
        assert read(config(name, first_k_dense_replace=1)) == model
        assert "'mlp_layer_types'" in rejection(config(name, mlp_layer_types=listed[1:]))
    assert "'mlp_layer_types'" in rejection(config("mixtral-8x7b", mlp_layer_types=["dense"] + ["sparse"] * 31))
    assert read(config("mixtral-8x7b", mlp_layer_types=["sparse"] * 32)) == read(config("mixtral-8x7b"))


DEEPSEEK_OCR = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "use_mla": False,
    "vocab_size": 129280,
    "hidden_size": 1280,
    "intermediate_size": 6848,
    "moe_intermediate_size": 896,
    "num_hidden_layers": 12,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 8192,
    "kv_lora_rank": None,
    "qk_nope_head_dim": 0,
}


def test_deepseek_ocr_names_no_type_of_its_decoder_which_has_no_mla() -> None:
    model = read({"model_type": "deepseek_vl_v2", "language_config": DEEPSEEK_OCR})
    assert parameters(model) == parameters(load_model("deepseek-ocr"))


def test_the_decoder_of_llava_onevision_stands_at_the_top_level() -> None:
    content = config("qwen2-7b", model_type="llava_qwen", mm_vision_tower="google/siglip-so400m-patch14-384")
    assert parameters(read(content)) == parameters(load_model("qwen2-7b"))


LING_2_5 = {
    "architectures": ["BailingMoeV2_5ForCausalLM"],
    "model_type": "bailing_hybrid",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "head_dim": 64,
    "num_experts": 16,
    "num_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "first_k_dense_replace": 1,
    "layer_group_size": 4,
    "q_lora_rank": 96,
    "kv_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "max_position_embeddings": 4096,
}


def test_ling_2_5_has_lightning_attention_under_the_type_of_ling_3() -> None:
    """Counted by the modules of modeling_bailing_moe_v2_5.py (inclusionAI/Ring-V2.5)."""
    hidden, heads, width = 256, 4, 64
    linear = 5 * hidden * heads * width + heads * width + 2 * width  # query, key, value, gate, output; norms
    latent = hidden * 96 + 96 + 96 * heads * 48 + hidden * 64 + 48 + 48 * heads * 64 + heads * 32 * hidden
    dense, expert = 3 * hidden * 512, 3 * hidden * 128
    layers = 6 * linear + 2 * latent + dense + 7 * (17 * expert + 16 * (hidden + 1)) + 16 * hidden
    assert parameters(read(LING_2_5)) == 2 * 1000 * hidden + layers + hidden
    kinds = {group.name: type(group.layer.mixer).__name__ for group in read(LING_2_5).groups}
    assert set(kinds.values()) == {"Retention", "LatentAttention"}


@pytest.mark.parametrize("names", [("mamba", "attention"), ("linear_attention", "full_attention")])
def test_nemotron_layer_names(names: tuple[str, str]) -> None:
    content = config("nemotron-3-nano-30b-a3b")
    spelt = dict(zip("M*-E", (*names, "mlp", "moe"), strict=True))
    listed = [spelt[letter] for letter in content.pop("hybrid_override_pattern")]
    del content["num_hidden_layers"]
    assert read({**content, "layers_block_type": listed}) == read(config("nemotron-3-nano-30b-a3b"))
    assert "'layers_block_type': unknown layer 'hyena'" in rejection({**content, "layers_block_type": ["hyena"]})


def test_granite_without_experts_has_the_shared_block() -> None:
    """The sizes of Granite 4.0 H Micro."""
    sizes = {"hidden_size": 2048, "num_attention_heads": 32, "mamba_n_heads": 64, "shared_intermediate_size": 8192}
    content = config("granite-4.0-h-small", num_local_experts=0, num_experts_per_tok=0, **sizes)
    model = read(content)
    assert not model.experts
    mamba = 2048 * (2 * 4096 + 2 * 128 + 64) + 5 * (4096 + 2 * 128) + 3 * 64 + 4096 + 4096 * 2048
    attention = 2 * 2048 * 32 * 64 + 2 * 2048 * 8 * 64
    block = 3 * 2048 * 8192 + 2 * 2048
    assert parameters(model) == 36 * mamba + 4 * attention + 40 * block + 100352 * 2048 + 2048
    assert "'layer_types' is missing" in rejection({**content, "layer_types": None})


def test_hunyuan_lists_must_be_the_same_for_all_layers() -> None:
    plain = {"moe_intermediate_size": None, "moe_topk": 8, "num_shared_expert": 1}
    assert read(config("hunyuan-a13b", **plain)) == read(config("hunyuan-a13b"))
    assert "'moe_topk': layers that differ" in rejection(config("hunyuan-a13b", moe_topk=[8] * 31 + [4]))


def test_ministral_3_is_read_as_a_text_decoder() -> None:
    content = config("mistral-small-3.2-24b")
    content["text_config"] |= {"model_type": "ministral3"}
    assert read(content) == read(config("mistral-small-3.2-24b"))


# --- other files, and layers by their numbers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B", "r": 16},
            "give 'Qwen/Qwen3-8B' with lora:rank=16",
        ),
        ({"metadata": {}, "weight_map": {"lm_head.weight": "a"}}, "the index of a checkpoint's files"),
        ({"dim": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 32000}, "in its maker's own format"),
        ({"tokenizer_class": "LlamaTokenizer", "model_max_length": 8192}, "the settings of a tokenizer"),
        ({"do_sample": True, "temperature": 0.6, "transformers_version": "4.51.0"}, "the settings of generation"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, "description of formats"),
        ({"speculators_model_type": "eagle3", "speculators_version": "0.1"}, "is a draft for another model"),
        ({"hidden_size": 4096}, "the key 'model_type' is missing"),
    ],
)
def test_other_files_of_a_folder_are_named(content: dict[str, Any], expected: str) -> None:
    assert expected in rejection(content)


def test_keys_of_single_layers() -> None:
    """Layer 1 has one KV head and a narrower MLP; transformers names it by a number with zeros before it."""
    plain = config("llama-2-7b")
    model = read({**plain, "per_layer_config": {"01": {"num_key_value_heads": 1, "intermediate_size": 1024}}})
    less = 2 * 4096 * 31 * 128 + 3 * 4096 * (11008 - 1024)
    assert parameters(read(plain)) - parameters(model) == less
    for wrong in ({"32": {"intermediate_size": 8}}, {"1": {"hidden_size": 8}}, {"1": {"skip": ["mlp"]}}, {"x": {}}):
        assert "'per_layer_config'" in rejection({**plain, "per_layer_config": wrong})


# --- what is not supported, and names ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model_type",
    [
        "gpt_neo",
        "olmo1",
        "mllama",
        "ibert",
        "LLaDA",
        "umt5",
        "gemmoe",
    ],
)
def test_no_other_model_is_suggested(model_type: str) -> None:
    message = rejection({"model_type": model_type})
    assert message.endswith(f"unsupported model_type '{model_type}'; describe it in a model spec (YAML) instead")


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_the_text_decoder_of_an_unknown_wrapper_is_read(key: str) -> None:
    """With the quantization and the format of the whole file; a section that is no known decoder is refused."""
    whole = {"model_type": "ovis2_5", key: config("qwen2-7b"), "quantization_config": {"quant_method": "fp8"}}
    model = read(whole)
    assert model.title == "own (text decoder only)"
    assert parameters(model) == parameters(load_model("qwen2-7b"))
    assert model.quantization == "fp8"
    assert "(YAML)" in rejection({"model_type": "ovis2_5", key: {"model_type": "other"}})
    assert "(YAML)" in rejection({"model_type": "ovis2_5", key: []})


# Published totals of the safetensors files; Qwen's and DeepSeek's are older than Transformers' names.
REMOTE_CODE = {
    "qwen": (7_721_324_544, {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "seq_length": 8192, "kv_channels": 128}),
    "minicpm": (2_724_880_896, {"vocab_size": 122753, "hidden_size": 2304, "intermediate_size": 5760,
        "num_hidden_layers": 40, "num_attention_heads": 36, "num_key_value_heads": 36}),
    "deepseek": (16_375_728_128, {"vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "num_hidden_layers": 28, "num_attention_heads": 16, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1}),
    "spark2_5": (4_112_079_360, {"vocab_size": 131072, "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
        "sliding_window": 512, "headwise_attn_output_gate": True, "tie_word_embeddings": True, "hidden_act": "gelu"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", REMOTE_CODE)
def test_models_of_remote_code_have_their_published_sizes(kind: str) -> None:
    total, content = REMOTE_CODE[kind]
    assert parameters(read({"model_type": kind, **content})) == total


@pytest.mark.parametrize("place", ["wrapper", "section"])
def test_kimi_k25_is_kimi_k2_and_a_tower_in_the_formats_of_the_whole(place: str) -> None:
    """Kimi K2.5 to K2.7: DeepSeek-V3's layers in a wrapper with a vision tower."""
    groups = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}
    ignored = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj.*"]
    section = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignored}
    text = {**config("kimi-k2"), "model_type": "deepseek_v3", "quantization_config": None}
    whole = {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"], "text_config": text}
    (whole if place == "wrapper" else text)["quantization_config"] = section
    model = read({**whole, "vision_config": {"vt_num_hidden_layers": 27}, "tie_word_embeddings": False})
    assert (model.quantization, model.unquantized) == ("int4-g32", ("attention", "mlp"))
    assert model.tower is not None
    assert parameters(model) == parameters(load_model("kimi-k2")) + parameters(model.tower)
    weights = analyze(Scenario(model, H100)).memory.weights - 2 * parameters(model.tower)
    assert weights == pytest.approx(analyze(Scenario(load_model("kimi-k2-thinking"), H100)).memory.weights)
    text_alone = read({**whole, "tie_word_embeddings": False})
    assert (text_alone.title, text_alone.tower) == ("own (text decoder only)", None)


@pytest.mark.parametrize("kind", ["deepseek_sparse_attention", "indexed_attention"])
@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5", "glm-5.2"])
def test_sparse_layers_by_their_names(name: str, kind: str) -> None:
    plain = config(name)
    layers = plain["num_hidden_layers"]
    assert read({**plain, "layer_types": [kind] * layers}) == read(plain)
    for wrong in ([kind], ["sliding_attention"] * layers):
        assert "'layer_types'" in rejection({**plain, "layer_types": wrong})


def test_model_name_from_file_or_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    content = json.dumps(config("llama-2-7b", _name_or_path="meta-llama/Llama-2-7b-hf"))
    for name, path in (("my-model", folder / "config.json"), ("mine", tmp_path / "mine.json")):
        path.write_text(content)
        assert load_model(str(path)).name == yaml.safe_load(imported(path, None))["name"] == name
    assert translate(json.loads(content), "x", "")["name"] == "llama-2-7b-hf"


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("deepseek-v3", {}, (8, 4)),
        ("deepseek-v3", {"n_group": None, "topk_group": None}, (1, 1)),
        ("deepseek-v3", {"topk_method": "greedy"}, (1, 1)),
        ("kimi-k2", {}, (1, 1)),
    ],
)
def test_group_limited_routing(name: str, changes: dict[str, Any], expected: tuple[int, int]) -> None:
    experts = read(config(name, **changes)).experts[0]
    assert (experts.groups, experts.top_groups) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_group": 7}, "256 experts are not divisible into 7 groups"),
        ({"topk_group": 9}, "9 of 8 groups cannot be selected"),
        ({"n_group": 64, "topk_group": 1}, "hold 4 experts, fewer than the 8 of top_k"),
    ],
)
def test_impossible_groups_are_rejected(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read(config("deepseek-v3", **changes))


@pytest.mark.parametrize(("name", "chunk"), [("mamba-codestral-7b", 256), ("nemotron-h-56b", 128)])
def test_the_chunk_of_a_scan_is_read(name: str, chunk: int) -> None:
    def found(model: Model) -> set[int]:
        return {group.layer.mixer.chunk for group in model.groups if isinstance(group.layer.mixer, Mamba2)}

    assert found(read(config(name))) == {chunk}
    assert found(read(config(name, chunk_size=64))) == {64}


def test_the_format_of_states_is_that_of_the_file() -> None:
    """`mamba_ssm_dtype` of Qwen3.5: half the bytes of the recurrent states, but for those of the convolutions."""
    whole = config("qwen3.5-27b")
    half = {**whole, "text_config": {**whole["text_config"], "mamba_ssm_dtype": "bfloat16"}}
    full, less = (state_bytes_per_sequence(read(content), parse_precision("bf16")) for content in (whole, half))
    assert 0.5 * full < less < 0.6 * full


@pytest.mark.parametrize(
    ("name", "section", "key", "value"),
    [
        *(("deepseek-v3", "quantization_config", "weight_block_size", value) for value in ([], [1], [0, 128])),
        *(("deepseek-v4-flash", "", "expert_dtype", value) for value in ("x", 0, [])),
        ("deepseek-v4.1-flash", "quantization_config", "expert_dtype", "int3"),
        ("deepseek-v4.1-flash", "text_config", "engram_num_embeddings", [1]),
        *(("gemma-3-4b", "", "vision_config", value) for value in (0, [])),
    ],
)
def test_values_that_cannot_be_are_refused_by_key(name: str, section: str, key: str, value: Any) -> None:
    content = config(name)
    (content[section] if section else content)[key] = value
    assert repr(key) in rejection(content)


def test_a_type_of_its_own_is_read_as_the_class_that_engines_run() -> None:
    """jdopensource/JoyAI-LLM-Flash says `joyai_llm_flash`, and that its class is DeepSeek-V3's."""
    own = {"model_type": "of_its_own", "architectures": ["DeepseekV3ForCausalLM"]}
    assert read(config("deepseek-v3", **own)) == read(config("deepseek-v3"))
    for classes in (["UnheardOfForCausalLM"], ["LlamaForCausalLM", "DeepseekV3ForCausalLM"]):
        message = rejection(config("deepseek-v3", **own | {"architectures": classes}))
        assert "unsupported model_type 'of_its_own'" in message
