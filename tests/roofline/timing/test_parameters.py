"""Sizes of the bundled models against their published checkpoints, and KV bytes a token."""

from __future__ import annotations

import pytest

from roofline import kv_bytes_per_token, load_model, parameters, parse_precision
from tests.cases import MODELS

# Written out here as well as in the specs, so that a wrong edit of a spec cannot hide.
PUBLISHED = {
    "bloom-176b": 176_247_271_424,
    "chatglm3-6b": 6_243_584_000,
    "falcon-7b": 6_921_720_704,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gpt-j-6b": 6_050_882_784,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-6.7b": 6_658_473_984,
    "phi-2": 2_779_683_840,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-32b": 32_762_123_264,
}
KV_BYTES = {  # 2 (K and V) * layers * kv_heads * head_dim * 2 bytes
    "llama-2-7b": 524_288,
    "llama-2-13b": 819_200,
    "llama-2-70b": 327_680,
    "llama-3.1-8b": 131_072,
    "falcon-7b": 2 * 32 * 1 * 64 * 2,
    "qwen3-32b": 2 * 64 * 8 * 128 * 2,
    "gemma-2-9b": 2 * 42 * 8 * 256 * 2,
    "mimo-v2-flash": (9 * 4 + 39 * 8) * (192 + 128) * 2,  # keys of 192, values of 128
    "llama-3.3-nemotron-super-49b": 2 * 49 * 8 * 128 * 2,  # 31 of the 80 layers do not attend
}
UNPUBLISHED = """
    bst flash gau h3-1.3b h3-2.7b h3-355m s4 baichuan2-13b baichuan2-7b bigbird-roberta-base command-r deepseek-ocr
    deepseek-v4.1-flash gemma-4-12b gemma-4-26b-a4b gemma-4-31b gemma-4-e2b gemma-4-e4b glam-64e glm-5 glm-5.2
    gpt-3-175b grok-1 hyena-355m internvl3.5-14b internvl3.5-2b internvl3.5-4b jina-reranker-m0 k2-horizon-7b
    kimi-k2-thinking ling-1t ling-flash-2.0 ling-mini-2.0 llama-3.1-nemotron-ultra-253b longcat-flash mamba2-1.3b
    mamba2-130m mamba2-2.7b mimo-v2-flash mimo-v2.5-pro minicpm3-4b mistral-large-3 nemotron-3-nano-30b-a3b opt-13b
    opt-30b opt-66b minicpm4-8b qwen3-vl-embedding-2b qwen3-vl-embedding-8b palm-540b qwen3.5-4b retnet-1.3b
    retnet-1.3b-100b apriel-1.5-15b granite-4.1-8b internvl3.5-241b-a28b internvl3.5-30b-a3b internvl3.5-38b
    k2-horizon-0.9b longcat-flash-lite retnet-2.7b retnet-6.7b rwkv-6-7b step-3.5-flash voxtral-small-24b
    cerebras-gpt-13b deepseek-llm-67b dots.ocr eurollm-9b granite-code-20b granite-code-34b granite-code-3b
    granite-code-8b ling-lite-1.5 llada2.0-mini mimo-7b orion-14b snowflake-arctic solar-open2-250b
    solar-pro-preview xverse-13b intern-s1-pro joyai-llm-flash command-a-plus iquest-q1 lfm2.5-8b-a1b
    llama-guard-4-12b nemotron-3-ultra-550b-a55b step-3
"""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_size(name: str) -> None:
    assert parameters(load_model(name)) == PUBLISHED[name]


@pytest.mark.parametrize("name", MODELS)
def test_the_spec_meets_its_published_size(name: str) -> None:
    model = load_model(name)
    if name in UNPUBLISHED.split():
        assert model.parameters is None
    else:
        assert parameters(model) == model.parameters


@pytest.mark.parametrize("name", KV_BYTES)
def test_kv_bytes_per_token(name: str) -> None:
    assert kv_bytes_per_token(load_model(name), parse_precision("bf16")) == KV_BYTES[name]


def test_kv_bytes_follow_the_cache_format() -> None:
    model = load_model("llama-2-7b")
    assert kv_bytes_per_token(model, parse_precision("fp16", kv="fp8")) == 262_144
    assert kv_bytes_per_token(model, parse_precision("fp16", "W4KV4")) == 131_072 + 16_384  # 32 bits a group of 64
