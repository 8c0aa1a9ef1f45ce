"""The parts of a layer as records: token mixers, which move information between tokens, and feed-forward blocks."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from roofline.core.checked import Share

Count = Annotated[int, Meta(ge=1, le=10**7)]
Natural = Annotated[int, Meta(ge=0, le=10**9)]
Few = Annotated[int, Meta(ge=0, le=100)]
"""A number of operators or operands of a block, each of which the simulator holds by itself."""

Tokens = Annotated[int, Meta(ge=1, le=10**9)]
Text = Annotated[str, Meta(min_length=1, max_length=400)]
Activation = Literal["silu", "gelu", "gelu_new", "relu", "relu2"]


class Indexer(Struct, frozen=True, forbid_unknown_fields=True):
    """The indexer of sparse attention: `heads` small heads score the keys and select the top `selected` for a query.

    `shared`: the layer reuses the selection of an earlier layer's indexer (IndexShare, GLM-5.2). `block`: keys are
    selected in blocks of so many, by the greatest score in a block, for each KV head on its own (MiniMax-M3).
    `candidates`: it scores only so many keys, which an earlier layer's indexer left (DeepSeek-V4.1).
    """

    heads: Count
    head_dim: Count
    selected: Tokens
    shared: bool = False
    block: Count = 1
    candidates: Tokens | None = None


class Attention(Struct, frozen=True, forbid_unknown_fields=True):
    """Softmax attention with `heads` query heads and `kv_heads` KV heads of `head_dim` each (MHA, GQA or MQA).

    A query attends to all earlier tokens, or to the last `window` of them (its own included) and `extra` others (global
    or random), of those only to the top `selected`; without `causal` to later tokens as well. With `chunk` it attends
    to the earlier tokens of its own chunk only: the sequence is cut every `chunk` tokens (Llama 4). `kept`: maximum
    number of tokens in the KV cache. `page`: the top `selected` keys are found in decode alone, by the bounds of pages
    of so many keys (Quest). `qk_norm`: a norm over each head of q and k, over all heads together ("full"), or over each
    head without learned weights ("unweighted"). `sinks`: a learned logit per head. `gate`: a query-sized projection
    gates the output, or one number for each head ("head"). `rotary` (default: as the model's positions) disables RoPE
    for single layers. `qkv_bias`: biases of the three projections, or "query_value": none of the key's (Whisper).
    `kv_shared`: keys and values are those of an earlier layer. `source_width`: that of what cross-attention reads, if
    not the model's (the text of a U-Net). `values`: "projected"; "normalised": also normalised per head without learned
    weights; "keys": the projected keys, normalised, instead of a value projection. `value_dim`: elements of a value,
    and of a head of the output, if not `head_dim` (MiMo-V2-Flash). `indexer`: selects the keys of every query. `unit`:
    a gated attention unit, whose queries are the projected keys, scaled and shifted, and which with a `chunk` also has
    linear attention to earlier chunks (GAU and FLASH, Hua et al. 2022). `query_rank`: queries are projected by two
    factors of this rank with a norm between (MFA of Step-3).
    """

    heads: Count
    kv_heads: Count
    head_dim: Count
    window: Tokens | None = None
    extra: Natural = 0
    chunk: Tokens | None = None
    selected: Tokens | None = None
    kept: Tokens | None = None
    page: Count | None = None
    causal: bool = True
    qkv_bias: bool | Literal["query_value"] = False
    output_bias: bool = False
    qk_norm: bool | Literal["full", "unweighted"] = False
    sinks: bool = False
    gate: bool | Literal["head"] = False
    rotary: bool | None = None
    kv_shared: bool = False
    source_width: Count | None = None
    values: Literal["projected", "normalised", "keys"] = "projected"
    value_dim: Count | None = None
    indexer: Indexer | None = None
    unit: bool = False
    query_rank: Count | None = None

    @property
    def value_width(self) -> int:
        return self.value_dim or self.head_dim

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return bool(self.qkv_bias), self.qkv_bias is True, bool(self.qkv_bias)


class LatentAttention(Struct, frozen=True, forbid_unknown_fields=True):
    """Multi-head latent attention (MLA, DeepSeek-V2): the KV cache holds one latent vector per token.

    The cache holds `kv_rank` + `rope_dim` elements per token. The key of a head has `nope_dim` elements projected from
    the latent and a rotary part of `rope_dim` that all heads share; values are `value_dim` wide. `q_rank`: rank of the
    query projection; None projects queries directly. `gate`: a projection gates the output, of all values
    (Kimi K3) or of each "head" (Ling 3.0). `rotary`: whether the rotary parts are rotated.
    """

    heads: Count
    kv_rank: Count
    nope_dim: Count
    rope_dim: Natural
    value_dim: Count
    q_rank: Count | None = None
    indexer: Indexer | None = None
    gate: bool | Literal["head"] = False
    rotary: bool = True

    @property
    def own_indexer(self) -> Indexer | None:
        """The indexer that this layer runs; None without one, or if it reuses an earlier layer's selection."""
        return None if self.indexer is None or self.indexer.shared else self.indexer


StateFormat = Literal["fp32", "bf16", "fp16"]
"""The format in which a recurrent state is kept: fp32 in the reference implementations."""


class CompressedAttention(Struct, frozen=True, forbid_unknown_fields=True):
    """Attention over the last `window` tokens and over compressed entries, each of `ratio` tokens (DeepSeek-V4).

    Keys and values are one vector of `head_dim` elements that all heads share, `rope_dim` of them rotary. An entry is
    the mean of its tokens' vectors with learned weights. Heavily compressed attention (HCA) attends to all entries;
    compressed sparse attention (CSA) to those that an `indexer` selects, and its entries also pool the tokens of the
    entry before. Without `ratio` the window is all. The output projection has two steps: each of `output_groups` groups
    of heads to `output_rank`, and all of them to the model's width. `shared`: entries and index keys are those that an
    earlier layer stores. `projected`: entries do not overlap, and an indexer's keys are projected from them
    (DeepSeek-V4.1).
    """

    heads: Count
    head_dim: Count
    rope_dim: Count
    q_rank: Count
    output_groups: Count
    output_rank: Count
    window: Tokens
    ratio: Count | None = None
    indexer: Indexer | None = None
    shared: bool = False
    projected: bool = False

    @property
    def overlap(self) -> int:
        """Entries that a token is pooled in: two in DeepSeek-V4's CSA."""
        return 1 if self.indexer is None or self.projected else 2

    @property
    def own_indexer(self) -> Indexer | None:
        """The indexer that this layer runs; None without one, or if it reuses an earlier layer's selection."""
        return None if self.indexer is None or self.indexer.shared else self.indexer


class Mamba(Struct, frozen=True, forbid_unknown_fields=True):
    """The selective SSM of Mamba: `inner` channels with a state of `state` elements each.

    `dt_rank`: rank of the time-step projection. `conv`: length of the causal convolution. `norms`: the time step, B and
    C are normalised (Jamba).
    """

    inner: Count
    state: Count
    dt_rank: Count
    conv: Count = 4
    conv_bias: bool = True
    bias: bool = False
    norms: bool = False
    state_format: StateFormat = "fp32"


class Mamba2(Struct, frozen=True, forbid_unknown_fields=True):
    """The SSM of Mamba-2: `heads` heads of `head_dim` channels, each with a head_dim x `state` state matrix.

    The heads of each of `groups` groups share B and C. A gated norm precedes the output projection, or without `norm`
    the gate alone (Falcon-H1). Prompts are computed in chunks of `chunk` tokens; 256 by default (mamba_ssm,
    Transformers' Mamba2Config.chunk_size).
    """

    heads: Count
    head_dim: Count
    state: Count
    groups: Count = 1
    conv: Count = 4
    conv_bias: bool = True
    bias: bool = False
    norm: bool = True
    chunk: Count = 256
    state_format: StateFormat = "fp32"


class DeltaNet(Struct, frozen=True, forbid_unknown_fields=True):
    """Gated DeltaNet (Qwen3-Next): `value_heads` heads, each with a key_dim x value_dim state matrix."""

    key_heads: Count
    value_heads: Count
    key_dim: Count
    value_dim: Count
    conv: Count = 4
    state_format: StateFormat = "fp32"


class KimiDelta(Struct, frozen=True, forbid_unknown_fields=True):
    """Kimi Delta Attention: the delta rule with a decay for each channel of a key (Kimi Linear, 2025, section 3).

    `heads` heads with a head_dim x head_dim state matrix each. The decay is projected through a rank of `head_dim`, or
    by one full matrix (`full_decay`, Ling 3.0); the output gate through a rank of `gate_rank` (None: by one full
    matrix, Kimi K3).
    """

    heads: Count
    head_dim: Count
    conv: Count = 4
    gate_rank: Count | None = None
    full_decay: bool = False


class Retention(Struct, frozen=True, forbid_unknown_fields=True):
    """Retention (RetNet), or linear attention if not `gated`: `heads` heads with a key_dim x value_dim state.

    `norm_weight`: the norm over each head's output has learned weights, shared by the heads.
    """

    heads: Count
    key_dim: Count
    value_dim: Count
    gated: bool = True
    norm_weight: bool = False


class Rwkv(Struct, frozen=True, forbid_unknown_fields=True):
    """The time mixing of RWKV `version` 4 to 7, with `heads` heads of `head_dim`.

    The state of version 4 is vectors, that of later versions a head_dim x head_dim matrix per head. The ranks are those
    of the low-rank projections for data-dependent mixing and decay, which version 5 has not.
    """

    version: Literal[4, 5, 6, 7]
    heads: Count
    head_dim: Count
    mix_rank: Natural = 0
    decay_rank: Natural = 0
    rate_rank: Natural = 0
    value_rank: Natural = 0
    gate_rank: Natural = 0


class StateSpace(Struct, frozen=True, forbid_unknown_fields=True):
    """A state space whose parameters do not depend on the input, with `state` elements of state a channel.

    S4 has one (Gu et al. 2021; `state` real numbers are half as many complex ones), whose output a gated linear layer
    mixes. H3 (Fu et al. 2023) projects queries, keys and values: keys pass a shift, their products with values a
    diagonal state space, and queries gate what comes out.
    """

    state: Count = 64
    kind: Literal["s4", "h3"] = "s4"


class Hyena(Struct, frozen=True, forbid_unknown_fields=True):
    """The Hyena operator of `order`: gated long convolutions whose filters a small network generates."""

    order: Count = 2
    filter_width: Count = 64
    filter_embedding: Count = 33
    filter_layers: Few = 2
    conv: Count = 3


class UNet(Struct, frozen=True, forbid_unknown_fields=True):
    """The U-Net of a latent diffusion model (Stable Diffusion): a whole model, which predicts the noise of an image.

    Level i has `channels[i]` channels at 1/4^i of the positions of the latent image. On the way down it has `blocks`
    residual blocks, on the way up one more, each before `depths[i]` transformer blocks (0: none) of `heads[i]` heads;
    between both ways, at the last level, `middle` of them are between two residual blocks. Cross-attention is to
    `text_tokens` vectors of `text_width`. `inputs` and `outputs` are the channels of the latent image; `added` is the
    width of a condition that is embedded beside the timestep (SDXL: pooled text and sizes; 0: none).
    """

    channels: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=10)]
    depths: tuple[Few, ...]
    heads: tuple[Count, ...]
    middle: Few
    text_width: Count
    text_tokens: Count = 77
    blocks: Annotated[int, Meta(ge=1, le=20)] = 2
    inputs: Count = 4
    outputs: Count = 4
    added: Natural = 0

    def __post_init__(self) -> None:
        if not len(self.channels) == len(self.depths) == len(self.heads):
            raise ValueError("channels, depths and heads have one entry for each level")
        if any(width % heads for width, heads in zip(self.channels, self.heads, strict=True)):
            raise ValueError("the channels of each level are divisible by its heads")

    @property
    def time_width(self) -> int:
        """The width of the embedded timestep: four times the channels of the first level."""
        return 4 * self.channels[0]


class LinearModule(Struct, frozen=True, forbid_unknown_fields=True):
    """A linear layer of `outputs` x `inputs` under its name in the class, which runs on `rows` rows a token.

    `shared`: its weights are those of another layer, which stores them.
    """

    name: Text
    inputs: Count
    outputs: Count
    bias: bool = False
    rows: Annotated[float, Meta(gt=0, le=10**6)] = 1.0
    shared: bool = False


class NormModule(Struct, frozen=True, forbid_unknown_fields=True):
    """A norm over `width` elements with so many learned `vectors`, which runs on `rows` rows a token."""

    width: Count
    vectors: Few = 1
    rows: Annotated[float, Meta(gt=0, le=10**6)] = 1.0


class TableModule(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of `rows` x `width`, of which each token takes a row."""

    rows: Annotated[int, Meta(ge=1, le=10**9)]
    width: Natural


class Modules(Struct, frozen=True, forbid_unknown_fields=True):
    """A layer as the modules of its class (`roofline.specs.classes`), where no reader knows its architecture.

    All linear layers of the layer, routed experts apart, in the order they run; `before` counts those before the
    softmax `attention`, whose projections are among them. `latent`: elements of a token in the cache of the attention,
    where that is not one key and one value a KV head. `weights`: further learned elements, read once a pass;
    `state`: elements of a sequence's state, read and written once a pass; `scan`: matrix FLOPs of a token beside those
    of linear layers and of the attention.
    """

    linears: Annotated[tuple[LinearModule, ...], Meta(max_length=1000)] = ()
    norms: Annotated[tuple[NormModule, ...], Meta(max_length=1000)] = ()
    tables: Annotated[tuple[TableModule, ...], Meta(max_length=100)] = ()
    attention: Attention | None = None
    before: Annotated[int, Meta(ge=0, le=1000)] = 0
    latent: Natural = 0
    weights: Annotated[int, Meta(ge=0, le=10**12)] = 0
    state: Natural = 0
    scan: Annotated[float, Meta(ge=0, le=10**15)] = 0.0


Recurrent: TypeAlias = Mamba | Mamba2 | DeltaNet | KimiDelta | Retention | Rwkv | StateSpace | Hyena
Mixer: TypeAlias = Attention | LatentAttention | CompressedAttention | Recurrent | UNet | Modules

MIXERS: dict[str, type] = {
    "attention": Attention,
    "latent_attention": LatentAttention,
    "compressed_attention": CompressedAttention,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "delta_net": DeltaNet,
    "kimi_delta": KimiDelta,
    "retention": Retention,
    "rwkv": Rwkv,
    "state_space": StateSpace,
    "hyena": Hyena,
    "unet": UNet,
    "modules": Modules,
}
"""Token mixers by their section key in a spec file."""


class Mlp(Struct, frozen=True, forbid_unknown_fields=True):
    """A dense MLP: up and down projections of `width`, and a gate projection if `gated`.

    `active`: fraction of the neurons that a predictor activates per token (contextual sparsity). `receptance`: a
    further square projection gates the output, and `shift` learned vectors mix each token with the previous one
    (RWKV's channel mixing).
    """

    width: Count
    gated: bool
    activation: Activation
    bias: bool = False
    receptance: bool = False
    shift: Few = 0
    active: Share = 1.0


class MixtureOfExperts(Struct, frozen=True, forbid_unknown_fields=True):
    """`experts` routed experts of `width`, of which each token is sent to `top_k`, and optional shared experts.

    `shared_width`: total width of the shared experts (0: none). `shared_gate`: a learned gate on their output,
    `shared_bias`: biases in their projections.
    `router_bias`: a learned bias per expert. `bias`: biases in the experts' projections. `groups`: groups of
    neighbouring experts, of which a token's experts are in at most `top_groups` (group-limited routing; DeepSeek-V2,
    2024, section 2.2.2). `latent`: width of the projection of a token on which the routed experts compute (0: none);
    `latent_norm`: their sum is normalised before it is projected back.
    """

    experts: Count
    top_k: Count
    width: Count
    gated: bool
    activation: Activation
    shared_width: Natural = 0
    shared_gate: bool = False
    shared_bias: bool = False
    router_bias: bool = False
    bias: bool = False
    groups: Count = 1
    top_groups: Count = 1
    latent: Natural = 0
    latent_norm: bool = False


class Engram(Struct, frozen=True, forbid_unknown_fields=True):
    """A memory of n-grams in front of a layer (Engram; DeepSeek-V4.1): a table of `rows` vectors of `width` elements.

    The last 2 to `longest` tokens hash to `heads` rows each, which one projection turns into a value, and into a key
    for each vector of the residual stream, whose product with that vector gates the value. `format`: that of the
    table, if not the model's unquantized one.
    """

    rows: Tokens
    width: Count
    heads: Count
    longest: Annotated[int, Meta(ge=2, le=16)]
    format: Literal["mxfp8"] | None = None

    @property
    def taken(self) -> int:
        """Rows that a token takes."""
        return (self.longest - 1) * self.heads


FeedForward: TypeAlias = Mlp | MixtureOfExperts

FEED_FORWARDS: dict[str, type] = {"mlp": Mlp, "moe": MixtureOfExperts}
"""Feed-forward blocks by their section key in a spec file."""
