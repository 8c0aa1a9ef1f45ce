"""Recurrent models: Mamba, RWKV, RetNet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from roofline.core.errors import SpecError, quote, suggest
from roofline.specs.huggingface.config import FORMATS, LAYER_NORM, Config, Reader, Spec, base_spec, spec_with_pattern


def _mamba(config: Config) -> Spec:
    """Tied where the file does not say; `n_layer` and `d_inner` stand in files without effect.

    `intermediate_size` is the class's width where a file has it: copies of Falcon Mamba say 8192 beside `expand: 16`.
    """
    hidden = config.integer("hidden_size")
    given = config.content.get("time_step_rank", "auto")
    dt_rank = -(-hidden // 16) if given == "auto" else config.integer("time_step_rank")
    return base_spec(
        config,
        tied=True,
        mamba={
            "inner": config.integer("intermediate_size", default=int(config.factor("expand", 2) * hidden)),
            "state": config.integer("state_size", default=16),
            "dt_rank": dt_rank,
            "conv": config.integer("conv_kernel", default=4),
            "conv_bias": config.flag("use_conv_bias", True),
            "bias": config.flag("use_bias", False),
        },
        positions="none",
    )


def _mamba2(config: Config) -> Spec:
    heads, head_dim = config.integer("num_heads", default=128), config.integer("head_dim", default=64)
    inner = int(config.factor("expand", 2) * config.integer("hidden_size"))
    if heads * head_dim != inner:
        raise SpecError(config.where, f"'num_heads': {heads} heads of {head_dim} do not make expand * hidden = {inner}")
    return base_spec(config, mamba2=mamba2_section(config, heads, head_dim, "state_size", 256), positions="none")


def mamba2_section(config: Config, heads: int, head_dim: int, state: str, chunk: int) -> Spec:
    """The mamba2 section, under the names of mamba_ssm; `state` is the key of its size, `chunk` a class default."""
    return {
        "heads": heads,
        "head_dim": head_dim,
        "state": config.integer(state, default=128),
        "groups": config.integer("n_groups", default=8),
        "conv": config.integer("conv_kernel", default=4),
        "conv_bias": config.flag("use_conv_bias", True),
        "bias": config.flag("use_bias", False),
        "chunk": config.integer("chunk_size", default=chunk),
        **state_format(config),
    }


def state_format(config: Config) -> Spec:
    """The format of the states that the file asks engines to keep (vLLM's `mamba_ssm_cache_dtype`), if it does."""
    name = "mamba_ssm_dtype" if "mamba_ssm_dtype" in config.content else "mamba_ssm_cache_dtype"
    given = config.text(name, "float32")
    if given not in FORMATS:
        raise SpecError(config.where, f"{quote(name)}: unknown format {quote(given)}{suggest(given, FORMATS)}")
    return {} if given == "float32" else {"state_format": FORMATS[given]}


def _rwkv_frame(config: Config, rwkv: Spec, width: int, **mlp: object) -> Spec:
    """What the versions of RWKV share: layer norms with biases, one more after the embedding, squared ReLU."""
    return base_spec(
        config,
        max_context=config.tokens("context_length", "max_position_embeddings"),
        rwkv=rwkv,
        mlp={"width": width, "gated": False, "activation": "relu2", **mlp},
        norm=LAYER_NORM,
        positions="none",
        embedding_norm=True,
    )


def _rwkv4(config: Config) -> Spec:
    """Channels have a state each, so there are no heads."""
    hidden = config.integer("hidden_size")
    inner = config.integer("attention_hidden_size", default=hidden)
    width = config.integer("intermediate_size", default=4 * hidden)
    return _rwkv_frame(config, {"version": 4, "heads": 1, "head_dim": inner}, width, receptance=True, shift=2)


def _rwkv6(config: Config, version: int = 6) -> Spec:
    """The ranks have no key: the code doubles them for the 7B model. `num_attention_heads` is 64 in all files.

    Version 5 has no ranks.
    """
    hidden, head_dim = config.integer("hidden_size"), config.integer("head_size", default=64)
    inner = config.integer("attention_hidden_size", default=hidden)
    mix_rank, decay_rank = (64, 128) if hidden == 4096 else (32, 64)
    width = config.integer("intermediate_size", default=int(hidden * 3.5) // 32 * 32)
    heads = inner // head_dim
    ranks = {} if version == 5 else {"mix_rank": mix_rank, "decay_rank": decay_rank}
    rwkv = {"version": version, "heads": heads, "head_dim": head_dim, **ranks}
    return _rwkv_frame(config, rwkv, width, receptance=True, shift=2)


def _rwkv7(config: Config) -> Spec:
    """The first layer has no low-rank mix of its values, which are what later layers mix with."""
    config.reject("attn")
    for name in ("norm_first", "norm_bias"):
        if not config.flag(name, True):
            raise SpecError(config.where, f"{name!r}: rwkv7 without it is not supported")
    hidden, head_dim = config.integer("hidden_size"), config.integer("head_dim", default=64)
    rwkv = {
        "version": 7,
        "heads": hidden // head_dim,
        "head_dim": head_dim,
        "decay_rank": config.integer("decay_low_rank_dim", default=64),
        "rate_rank": config.integer("a_low_rank_dim", default=64),
        "gate_rank": config.integer("gate_low_rank_dim", default=128),
    }
    width = config.integer("intermediate_size", default=int(hidden * config.factor("hidden_ratio", 4)))
    base = _rwkv_frame(config, rwkv, width, shift=1)
    later = {"rwkv": {"value_rank": config.integer("v_low_rank_dim", default=16)}}
    kinds = ["first"] + ["later"] * (config.layers() - 1)
    return spec_with_pattern(base, {"first": {}, "later": later}, kinds)


def _retnet(config: Config) -> Spec:
    """The files of flash-linear-attention: a gated MLP and learned norms of the heads, unlike the paper."""
    config.reject("feature_map", "use_short_conv", "num_kv_heads", "attn")
    hidden, heads = config.integer("hidden_size"), config.integer("num_heads", default=8)
    ratio = config.factor("hidden_ratio", 2)
    width = config.integer("intermediate_size", default=256 * -(-int(hidden * ratio * 2 / 3) // 256))
    return base_spec(
        config,
        retention={
            "heads": heads,
            "key_dim": int(hidden * config.factor("expand_k", 1)) // heads,
            "value_dim": int(hidden * config.factor("expand_v", 2)) // heads,
            "gated": config.flag("use_output_gate", True),
            "norm_weight": config.flag("elementwise_affine", True),
        },
        mlp={"width": width, "gated": True, "activation": config.activation("hidden_act", default="silu")},
    )


READERS: Mapping[str, Reader] = {
    "mamba": _mamba,
    "mamba2": _mamba2,
    "retnet": _retnet,
    "rwkv": _rwkv4,
    "rwkv5": partial(_rwkv6, version=5),
    "rwkv6": _rwkv6,
    "rwkv7": _rwkv7,
}
