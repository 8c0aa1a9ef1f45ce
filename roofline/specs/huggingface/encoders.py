"""Encoders (BERT and its relatives) and encoder-decoders (T5, BART, Whisper)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import (
    ATTENTION_BIAS,
    LAYER_NORM,
    RMS,
    WINDOWED,
    Config,
    Reader,
    Spec,
    attention_section,
    base_spec,
    gated_mlp,
    layer_types,
    plain_mlp,
    spec_with_pattern,
)


def _alibi_bert(config: Config) -> Spec:
    """MosaicBERT and DNABERT-2: no table of positions, and a gated block of which only the output has a bias.

    That bias has no word: it counts as stored, and is not added (mosaicml/examples, bert_layers.py).
    """
    layers, hidden = config.layers(), config.integer("hidden_size")
    spec = _absolute_bert(config, unused=hidden)
    context = config.tokens("max_position_embeddings", default=512)
    mlp = {**gated_mlp(config), "activation": config.activation("hidden_act", default="gelu")}
    return {**spec, "layers": layers, "max_context": context, "positions": "alibi", "mlp": mlp}


def _bert(config: Config) -> Spec:
    return _alibi_bert(config) if config.tokens("alibi_starting_size") else _absolute_bert(config)


def _absolute_bert(config: Config, offset: int = 0, unused: int = 0, **view: Any) -> Spec:
    """BertModel: without the heads of pre-training, with the pooler, which only some tasks use.

    `offset` rows of the position table come before the first position, `unused` weights a layer are never touched;
    `view` narrows what a query sees.
    """
    config.reject("is_decoder", "add_cross_attention")
    kind = config.text("position_embedding_type", "absolute")
    if kind != "absolute":
        raise SpecError(config.where, f"'position_embedding_type': {quote(kind)} is not supported")
    hidden, rows = config.integer("hidden_size"), config.tokens("max_position_embeddings", default=512)
    layers = config.layers()
    pooler = hidden * hidden + hidden
    biased = config.flag("use_bias", True)
    heads = config.integer("num_attention_heads")
    return base_spec(
        config,
        task="encode",
        tied_embeddings=False,
        max_context=rows - offset,
        attention={"heads": heads, "causal": False, "qkv_bias": biased, "output_bias": True, **view},
        mlp=plain_mlp(config, config.integer("intermediate_size")),
        norm={"kind": "layernorm", "placement": "post"},
        positions={"kind": "learned", "count": rows},
        token_types=config.natural("type_vocab_size", default=2),
        embedding_norm=True,
        final_norm=False,
        lm_head=False,
        extra_parameters=pooler + layers * unused,
    )


def _roberta(config: Config) -> Spec:
    """Positions are counted from the padding token's id + 1."""
    return _absolute_bert(config, offset=config.natural("pad_token_id", default=1) + 1)


def _big_bird(config: Config) -> Spec:
    """A query block sees three blocks around it, the first and the last one, and some random ones.

    The first and last block themselves see everything, and sequences up to 704 tokens are not sparse at all; neither
    is in the spec.
    """
    kind = config.text("attention_type", "block_sparse")
    if kind == "original_full":
        return _absolute_bert(config)
    block, random = config.integer("block_size", default=64), config.natural("num_random_blocks", default=3)
    return _absolute_bert(config, window=3 * block, extra=(2 + random) * block)


def _longformer(config: Config) -> Spec:
    """A query sees half a window on each side and itself; no token is global, as without a task.

    The projections of global tokens are stored in every layer all the same.
    """
    listed = isinstance(config.content.get("attention_window"), list)
    windows = set(config.integers("attention_window") if listed else [config.tokens("attention_window", default=512)])
    if len(windows) != 1:
        raise SpecError(config.where, "'attention_window': windows that differ between layers are not supported")
    hidden = config.integer("hidden_size")
    offset = config.natural("pad_token_id", default=1) + 1
    return _absolute_bert(config, offset, unused=3 * (hidden * hidden + hidden), window=windows.pop() + 1)


def _mpnet(config: Config) -> Spec:
    """RoBERTa with one table of biases by distance for all layers, which is stored, and without token types."""
    buckets = config.integer("relative_attention_num_buckets", default=32)
    spec = _absolute_bert(config, offset=config.natural("pad_token_id", default=1) + 1)
    stored = spec["extra_parameters"] + buckets * config.integer("num_attention_heads")
    return {**spec, "token_types": 0, "extra_parameters": stored}


def _modernbert(config: Config) -> Spec:
    """Every third layer sees all, the others half a window on each side.

    The norm behind the embedding takes the place of the first layer's, which the class leaves out.
    """
    every, layers = config.integer("global_attn_every_n_layers", default=3), config.layers()
    half = config.tokens("local_attention", default=2 * config.tokens("sliding_window", default=64)) // 2
    kinds = layer_types(config, WINDOWED) or ["local" if index % every else "global" for index in range(layers)]
    base = base_spec(
        config,
        task="encode",
        tied_embeddings=False,
        lm_head=False,
        attention=attention_section(config, ATTENTION_BIAS, causal=False),
        mlp={
            **gated_mlp(config, config.flag("mlp_bias", False)),
            "activation": config.activation("hidden_activation", default="gelu"),
        },
        norm={"kind": "layernorm", "bias": config.flag("norm_bias", False)},
    )
    return spec_with_pattern(base, {"local": {"attention": {"window": 2 * half + 1}}, "global": {}}, kinds)


def _t5(config: Config) -> Spec:
    """Both halves share the embedding table; each has one table of relative positions, in its first layer.

    Files of the encoder alone (T5EncoderModel: text encoders of diffusion models) have the keys of both.
    """
    heads, hidden = config.integer("num_heads", default=8), config.integer("d_model", default=512)
    kind, _, activation = config.text("feed_forward_proj", "relu").rpartition("-")
    if kind not in ("", "gated"):
        raise SpecError(config.where, f"'feed_forward_proj': unsupported block {quote(kind)}")
    attention = {"heads": heads, "head_dim": config.integer("d_kv", default=64)}
    layers = config.integer("num_layers", default=6)
    vocabulary = config.integer("vocab_size")
    half: Spec = {
        "hidden": hidden,
        "vocabulary": vocabulary,
        "mlp": {
            "width": config.integer("d_ff", default=2048),
            "gated": kind == "gated",
            "activation": Config({"activation": activation}, config.where).activation("activation", default="relu"),
        },
        "norm": RMS,
        "positions": {"kind": "relative", "count": config.integer("relative_attention_num_buckets", default=32)},
    }
    encoder = {**half, "layers": layers, "tied_embeddings": True, "attention": {**attention, "causal": False}}
    if any(name.endswith("T5EncoderModel") for name in config.texts("architectures")):
        context = config.tokens("n_positions")
        return {**encoder, "task": "encode", "lm_head": False, "tied_embeddings": False, "max_context": context}
    return {
        **half,
        "layers": config.integer("num_decoder_layers", default=layers),
        "max_context": config.tokens("n_positions"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "attention": attention,
        "cross": attention,
        "tower_kind": "encoder",
        "tower": encoder,
    }


def _halves(config: Config, **parts: Any) -> tuple[Spec, Spec]:
    """The encoder and the decoder of BART and Whisper, with the sizes that their files give for each half."""
    if not config.flag("is_encoder_decoder", True):
        raise SpecError(config.where, "'is_encoder_decoder': a half of the model alone is not supported")
    hidden = config.integer("d_model")
    activation = {"gated": False, "activation": config.activation("activation_function", default="gelu"), "bias": True}

    def half(name: str, **attention: Any) -> Spec:
        return {
            "hidden": hidden,
            "layers": config.integer(f"{name}_layers", most=10**5),
            "attention": {
                "heads": config.integer(f"{name}_attention_heads"),
                "qkv_bias": True,
                "output_bias": True,
                **attention,
            },
            "mlp": {"width": config.integer(f"{name}_ffn_dim"), **activation},
            **parts,
        }

    decoder = half("decoder")
    whole = {**decoder, "cross": decoder["attention"], "vocabulary": config.integer("vocab_size")}
    return half("encoder", causal=False), {**whole, "tower_kind": "encoder"}


def _bart(config: Config) -> Spec:
    """Norms after each sub-layer and after the embedding; the table is shared by both halves and the LM head.

    Two rows of the learned positions come before the first position. A bias of logits, always zero, is not counted.
    """
    context = config.tokens("max_position_embeddings", default=1024)
    parts: Spec = {
        "norm": {"kind": "layernorm", "placement": "post"},
        "positions": {"kind": "learned", "count": context + 2},
        "embedding_norm": True,
        "final_norm": False,
    }
    for name in ("normalize_before", "add_final_layer_norm"):
        config.reject(name)
    if not config.flag("normalize_embedding", True):
        parts["embedding_norm"] = False
    return _sharing(config, context, **parts)


def _sharing(config: Config, context: int, **parts: Any) -> Spec:
    """Two halves that share their table of embeddings."""
    encoder, decoder = _halves(config, **parts)
    tied = config.flag("tie_word_embeddings", True)
    encoder |= {"vocabulary": decoder["vocabulary"], "tied_embeddings": tied}
    # The class keeps the table that both halves would share.
    unused = {} if tied else {"extra_parameters": decoder["vocabulary"] * decoder["hidden"]}
    return {**decoder, "max_context": context, "tied_embeddings": tied, "tower": encoder, **unused}


def _mbart(config: Config) -> Spec:
    """BART with norms before each sub-layer and after the last."""
    context = config.tokens("max_position_embeddings", default=1024)
    positions = {"kind": "learned", "count": context + 2}
    return _sharing(config, context, norm=LAYER_NORM, positions=positions, embedding_norm=True)


def _m2m_100(config: Config) -> Spec:
    """M2M-100 and NLLB: positions are sinusoids, which are not stored."""
    context = config.tokens("max_position_embeddings", default=1024)
    return _sharing(config, context, norm=LAYER_NORM, positions="none")


def _whisper(config: Config) -> Spec:
    """Two convolutions halve the mel frames (100 a second) in front of the encoder; its sinusoids are stored.

    The key projections have no bias. Every window of 30 s is padded to `max_source_positions`.
    """
    frames = config.tokens("max_source_positions", default=1500)
    context = config.tokens("max_target_positions", default=448)
    encoder, decoder = _halves(config, norm={"kind": "layernorm"})
    bands, hidden = config.integer("num_mel_bins", default=80), encoder["hidden"]
    for place in (encoder["attention"], decoder["attention"], decoder["cross"]):
        place["qkv_bias"] = "query_value"
    encoder |= {
        "max_context": frames,
        "positions": {"kind": "learned", "count": frames},
        "convolutions": [{"channels": bands, "kernel": 3}, {"channels": hidden, "kernel": 3, "stride": 2}],
    }
    return {
        **decoder,
        "max_context": context,
        "positions": {"kind": "learned", "count": context},
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "tower_tokens": frames,
        "tower": encoder,
    }


READERS: Mapping[str, Reader] = {
    "bart": _bart,
    "bert": _bert,
    "big_bird": _big_bird,
    "camembert": _roberta,
    "data2vec-text": _roberta,
    "longformer": _longformer,
    "m2m_100": _m2m_100,
    "mbart": _mbart,
    "modernbert": _modernbert,
    "mpnet": _mpnet,
    "mt5": _t5,
    "roberta": _roberta,
    "t5": _t5,
    "whisper": _whisper,
    "xlm-roberta": _roberta,
}
