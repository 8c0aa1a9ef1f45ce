"""Dense decoders of the GPT generation: LayerNorm, biases, an MLP of two matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.specs.huggingface.config import LAYER_NORM, Config, Reader, Spec, base_spec, plain_mlp


def _opt(config: Config) -> Spec:
    pre = config.flag("do_layer_norm_before", True)
    hidden = config.integer("hidden_size")
    width = config.integer("word_embed_proj_dim", default=hidden)
    context = config.integer("max_position_embeddings")
    biased = config.flag("enable_bias", True)
    return base_spec(
        config,
        tied=True,
        attention={"heads": config.integer("num_attention_heads"), "qkv_bias": biased, "output_bias": biased},
        mlp={
            "width": config.integer("ffn_dim"),
            "gated": False,
            "activation": config.activation("activation_function", default="relu"),
            "bias": biased,
        },
        norm={
            "kind": "layernorm",
            "placement": "pre" if pre else "post",
            "weight": config.flag("layer_norm_elementwise_affine", True),
        },
        positions={"kind": "learned", "count": context + 2},  # the table starts with two unused rows
        final_norm=pre and not config.flag("_remove_final_layer_norm", False),
        **({"embedding_width": width} if width != hidden else {}),
    )


def _falcon(config: Config) -> Spec:
    config = config.renamed(hidden_size="n_embed", num_hidden_layers="n_layer", num_attention_heads="n_head")
    heads = config.integer("num_attention_heads")
    grouped = config.flag("new_decoder_architecture", False)
    given = config.integer("num_kv_heads", "n_head_kv", default=heads)
    # Older decoders ignore num_kv_heads and have one key and value head if multi_query, else as many as heads.
    kv_heads = given if grouped or not config.flag("multi_query", True) else 1
    parallel = grouped or config.flag("parallel_attn", True)
    two_norms = config.integer("num_ln_in_parallel_attn", default=2 if grouped else 1) == 2
    hidden, biased = config.integer("hidden_size"), config.flag("bias", False)
    return base_spec(
        config,
        tied=True,
        max_context=config.tokens("max_position_embeddings", default=2048),
        attention={"heads": heads, "kv_heads": kv_heads, "qkv_bias": biased, "output_bias": biased},
        mlp={
            "width": config.integer("ffn_hidden_size", default=4 * hidden),
            "gated": False,
            "activation": config.activation("activation", default="gelu"),
            "bias": biased,
        },
        norm=LAYER_NORM,
        positions="alibi" if config.flag("alibi", False) else "rope",
        **({"residual": "parallel", "shared_norm": not two_norms, "one_all_reduce": True} if parallel else {}),
    )


def _gpt_spec(config: Config, *, tied: bool, biased: bool, **parts: Any) -> Spec:
    """What GPT-2, GPT-J and BLOOM share, under the names of their generation or today's; `biased`: attention."""
    config = config.renamed(hidden_size="n_embed", num_hidden_layers="n_layer", num_attention_heads="n_head")
    config = config.renamed(hidden_size="n_embd")
    biases = {"qkv_bias": True, "output_bias": True} if biased else {}
    return base_spec(
        config,
        tied=tied,
        attention={"heads": config.integer("num_attention_heads"), **biases},
        mlp=plain_mlp(config, config.integer("n_inner", default=4 * config.integer("hidden_size"))),
        norm=LAYER_NORM,
        **parts,
    )


def _gptj(config: Config) -> Spec:
    context = config.tokens("n_positions", "max_position_embeddings", default=2048)
    parallel = {"residual": "parallel", "shared_norm": True}
    return _gpt_spec(config, tied=False, biased=False, max_context=context, lm_head_bias=True, **parallel)


def _gpt2(config: Config) -> Spec:
    context = config.tokens("n_positions", "max_position_embeddings", default=1024)
    positions = {"kind": "learned", "count": context}
    spec = _gpt_spec(config, tied=True, biased=True, max_context=context, positions=positions)
    if config.flag("add_cross_attention", False):
        # Stored, and not run without an encoder: projections of query, key, value and output, and a norm.
        spec["extra_parameters"] = spec["layers"] * (4 * spec["hidden"] ** 2 + 6 * spec["hidden"])
    return spec


def _bloom(config: Config) -> Spec:
    """Blocks are four times as wide as the model, whatever `n_inner` says."""
    context = config.tokens("seq_length", default=2048)
    spec = _gpt_spec(config, tied=True, biased=True, max_context=context, positions="alibi", embedding_norm=True)
    return {**spec, "mlp": {**plain_mlp(config, 4 * spec["hidden"]), "activation": "gelu_new"}}


def _gpt_bigcode(config: Config) -> Spec:
    """StarCoder: GPT-2 with one KV head."""
    spec = _gpt2(config)
    one = {"kv_heads": 1} if config.flag("multi_query", True) else {}
    return {**spec, "attention": {**spec["attention"], **one}}


def _mpt(config: Config) -> Spec:
    """No biases; blocks are four times as wide as the model, whatever `expansion_ratio` says."""
    attention = config.section("attn_config")
    attention.reject("qk_ln", "clip_qkv")
    hidden, context = config.integer("d_model"), config.tokens("max_seq_len", default=2048)
    return base_spec(
        config.renamed(hidden_size="d_model", num_hidden_layers="n_layers"),
        tied=True,
        max_context=context,
        attention={"heads": config.integer("n_heads")},
        mlp=plain_mlp(config, 4 * hidden, bias=False),
        norm={"kind": "layernorm", "bias": False},
        positions="alibi" if attention.flag("alibi", True) else {"kind": "learned", "count": context},
    )


READERS: Mapping[str, Reader] = {
    "bloom": _bloom,
    "falcon": _falcon,
    "gpt-sw3": _gpt2,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gptj": _gptj,
    "mpt": _mpt,
    "opt": _opt,
}
