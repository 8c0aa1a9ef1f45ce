"""Models: the records that say what a network is made of. `roofline.specs.modelspec` reads them from files.

A layer is a mixer (something that moves information between tokens) and a feed-forward block (something done to each
token), each with its norms, added to the residual stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Len
from msgspec import Struct
from pydantic import Strict

Count = Annotated[int, Strict(), Ge(1), Le(10**7)]
Natural = Annotated[int, Strict(), Ge(0), Le(10**9)]
Tokens = Annotated[int, Strict(), Ge(1), Le(10**9)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Len(1, 400)]
Activation = Literal["silu", "gelu", "relu", "relu2"]
CLOSED = {"extra": "forbid"}


# --- mixers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with `heads` query heads and `kv_heads` key and value heads of `head_dim` each.

    What a query sees: all earlier tokens, or the last `window` of them (its own included) and `extra` others (global
    or random ones), of those only the best `selected`; without `causal` later tokens as well. `kept` bounds how
    many tokens the cache keeps. `qk_norm`: a norm over each head of q and k, or over all heads together ("full"),
    or over each without learned weights ("unweighted"). `sinks`: a learned logit a head. `gate`: the output is
    gated by a second query-sized projection. `rotary` (default: as the model's positions) turns rotation off for
    single layers. `kv_shared`: keys and values are those of an earlier layer. `values` are projected; "normalised":
    then each head of them is, without learned weights; "keys": so are the projected keys, in place of a projection.
    """

    __pydantic_config__ = CLOSED

    heads: Count
    kv_heads: Count
    head_dim: Count
    window: Tokens | None = None
    extra: Natural = 0
    selected: Tokens | None = None
    kept: Tokens | None = None
    causal: Flag = True
    qkv_bias: Flag = False
    output_bias: Flag = False
    qk_norm: Flag | Literal["full", "unweighted"] = False
    sinks: Flag = False
    gate: Flag = False
    rotary: Flag | None = None
    kv_shared: Flag = False
    values: Literal["projected", "normalised", "keys"] = "projected"

    @property
    def group(self) -> int:
        """Query heads that share a key and value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Indexer:
    """DeepSeek sparse attention: a scorer of `heads` small heads picks the `selected` keys a query attends to.

    `shared`: the keys are those that an earlier layer's scorer picked (IndexShare, GLM-5.2), and nothing is scored.
    """

    __pydantic_config__ = CLOSED

    heads: Count
    head_dim: Count
    selected: Tokens
    shared: Flag = False


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): keys and values are kept as one latent vector a token.

    The cache holds `kv_rank` + `rope_dim` elements a token. Each head has a part of `nope_dim` from the latent and a
    rotary part of `rope_dim` that all heads share; values are `value_dim` wide. `q_rank`: queries are projected down
    to it and up again; None projects them directly.
    """

    __pydantic_config__ = CLOSED

    heads: Count
    kv_rank: Count
    nope_dim: Count
    rope_dim: Count
    value_dim: Count
    q_rank: Count | None = None
    indexer: Indexer | None = None

    @property
    def scorer(self) -> Indexer | None:
        """The indexer that this layer runs itself."""
        return None if self.indexer is None or self.indexer.shared else self.indexer


@dataclass(frozen=True, slots=True)
class Mamba:
    """The selective state-space layer of Mamba: `inner` channels with a state of `state` elements each.

    `dt_rank` is the width of the time-step projection, `conv` the length of the causal convolution. `norms`: the
    time step, B and C are normalised (Jamba).
    """

    __pydantic_config__ = CLOSED

    inner: Count
    state: Count
    dt_rank: Count
    conv: Count = 4
    conv_bias: Flag = True
    bias: Flag = False
    norms: Flag = False


@dataclass(frozen=True, slots=True)
class Mamba2:
    """The layer of Mamba-2: `heads` heads of `head_dim` channels, each with a head_dim x `state` matrix of state.

    B and C are shared by the heads of each of `groups` groups. A gated norm precedes the output projection.
    """

    __pydantic_config__ = CLOSED

    heads: Count
    head_dim: Count
    state: Count
    groups: Count = 1
    conv: Count = 4
    conv_bias: Flag = True
    bias: Flag = False


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta network (Qwen3-Next): `value_heads` heads, each with a key_dim x value_dim matrix of state."""

    __pydantic_config__ = CLOSED

    key_heads: Count
    value_heads: Count
    key_dim: Count
    value_dim: Count
    conv: Count = 4
    split_projections: Flag = False


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention (RetNet), or linear attention when not `gated`: `heads` heads with a key_dim x value_dim state.

    `norm_weight`: the norm over each head's output has learned weights, which the heads share.
    """

    __pydantic_config__ = CLOSED

    heads: Count
    key_dim: Count
    value_dim: Count
    gated: Flag = True
    norm_weight: Flag = False


@dataclass(frozen=True, slots=True)
class Rwkv:
    """The time mixing of RWKV `version` 4, 6 or 7, with `heads` heads of `head_dim`.

    Version 4 keeps vectors as state, later ones a head_dim x head_dim matrix a head. The ranks are those of the low-
    rank projections that make mixing and decay depend on the data.
    """

    __pydantic_config__ = CLOSED

    version: Literal[4, 6, 7]
    heads: Count
    head_dim: Count
    mix_rank: Natural = 0
    decay_rank: Natural = 0
    rate_rank: Natural = 0
    value_rank: Natural = 0
    gate_rank: Natural = 0


@dataclass(frozen=True, slots=True)
class Hyena:
    """The Hyena operator of `order`: gated long convolutions whose filters a small network generates."""

    __pydantic_config__ = CLOSED

    order: Count = 2
    filter_width: Count = 64
    filter_embedding: Count = 33
    filter_layers: Count = 2
    conv: Count = 3


Recurrent: TypeAlias = Mamba | Mamba2 | DeltaNet | Retention | Rwkv | Hyena
Mixer: TypeAlias = Attention | LatentAttention | Recurrent

MIXERS: dict[str, type] = {
    "attention": Attention,
    "latent_attention": LatentAttention,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "delta_net": DeltaNet,
    "retention": Retention,
    "rwkv": Rwkv,
    "hyena": Hyena,
}
"""The mixers by the key of their section in a spec file."""


# --- feed-forward blocks ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mlp:
    """The feed-forward block: up and down projections of `width`, and a gate beside the up projection if `gated`.

    `active`: the share of neurons that a token needs, where a predictor picks them (contextual sparsity).
    `receptance`: the output is gated by one more square projection, and `shift` learned vectors mix each token with
    the one before it (RWKV's channel mixing).
    """

    __pydantic_config__ = CLOSED

    width: Count
    gated: Flag
    activation: Activation
    bias: Flag = False
    receptance: Flag = False
    shift: Natural = 0
    active: Annotated[float, Gt(0), Le(1)] = 1.0


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """`experts` blocks of `width`, of which a router picks `top_k` for each token, beside one that always runs.

    `shared_width` is the total width of the shared experts (0: none); `shared_gate` a learned gate on their output.
    `router_bias`: a learned bias an expert. `bias`: biases in the experts' projections.
    """

    __pydantic_config__ = CLOSED

    experts: Count
    top_k: Count
    width: Count
    gated: Flag
    activation: Activation
    shared_width: Natural = 0
    shared_gate: Flag = False
    router_bias: Flag = False
    bias: Flag = False


FeedForward: TypeAlias = Mlp | MixtureOfExperts

FEED_FORWARDS: dict[str, type] = {"mlp": Mlp, "moe": MixtureOfExperts}
"""The feed-forward blocks by the key of their section in a spec file."""


# --- layers and networks ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Norm:
    """The norm around sub-layers: before each (pre), after each (post), both (sandwich), or on its output (output).

    Post norms come after the residual addition (BERT), output norms before it (OLMo 2).
    """

    __pydantic_config__ = CLOSED

    kind: Literal["rmsnorm", "layernorm"]
    placement: Literal["pre", "post", "sandwich", "output"] = "pre"
    bias: Flag = True
    weight: Flag = True

    @property
    def vectors(self) -> int:
        """Learned vectors of one norm: a weight, and for layernorm a bias."""
        return self.weight + (self.kind == "layernorm" and self.bias and self.weight)


@dataclass(frozen=True, slots=True)
class Positions:
    """How positions enter: rotary (rope), an attention bias (alibi), a learned table of `count` rows, or not at all.

    "relative" is T5's learned bias by distance: `count` buckets for each head, stored once.
    """

    __pydantic_config__ = CLOSED

    kind: Literal["rope", "alibi", "learned", "relative", "none"] = "rope"
    count: Count | None = None


@dataclass(frozen=True, slots=True)
class Conditioning:
    """What a diffusion transformer is told beside the image (DiT's adaLN-Zero): a timestep and one of `classes`.

    Both are embedded into one vector a sample, the timestep from `frequencies` of it; every layer projects that vector
    to a shift, a scale and a gate for each of its two sub-layers.
    """

    __pydantic_config__ = CLOSED

    classes: Count
    frequencies: Count = 256


class Layer(Struct, frozen=True):
    """One layer: a mixer and a feed-forward block, either of which may be missing, added to the residual stream.

    They run one after the other or in parallel. `cross` attends to the encoder's output between the two.
    """

    norm: Norm
    mixer: Mixer | None = None
    feed_forward: FeedForward | None = None
    cross: Attention | None = None
    residual: Literal["sequential", "parallel"] = "sequential"
    shared_norm: bool = False


class LayerGroup(Struct, frozen=True):
    """`count` layers of one make; `name` tells groups apart where a model has several."""

    name: str
    count: int
    layer: Layer


class Model(Struct, frozen=True, dict=True):
    """A transformer or one of its relatives. `pattern` names the group of every layer, first to last.

    `task` says what it does: generate tokens, or encode a sequence in one pass. `tower` is a network that runs first:
    an "encoder" whose output the layers' `cross` attends to, or a "vision" encoder whose `tower_tokens` outputs an
    image join the prompt. `dtype` is the format of what the checkpoint keeps unquantised, `quantization` the scheme of
    the rest as `--quant` has it; `unquantised` are parts that it leaves out beside the usual ones. `mtp` counts the
    multi-token-prediction modules of a checkpoint, which are not part of the main model. `conditioning` is a diffusion
    transformer's. `extra_parameters` are stored weights that no operator of inference touches (poolers, unused heads).
    `parameters` is the published size where one exists; the derived one is `roofline.bound.memory.parameters(model)`.
    """

    name: str
    hidden: int
    vocabulary: int
    groups: tuple[LayerGroup, ...]
    pattern: tuple[str, ...]
    norm: Norm
    positions: Positions
    task: Literal["generate", "encode"] = "generate"
    dtype: str = "bf16"
    quantization: str | None = None
    unquantised: tuple[str, ...] = ()
    max_context: int | None = None
    tied_embeddings: bool = False
    embedding_norm: bool = False
    embedding_width: int | None = None
    token_types: int = 0
    conditioning: Conditioning | None = None
    final_norm: bool = True
    lm_head: bool = True
    lm_head_bias: bool = False
    tower: Model | None = None
    tower_kind: Literal["encoder", "vision"] | None = None
    tower_tokens: int | None = None
    projector: tuple[int, ...] = ()
    projector_bias: bool = True
    patch: int = 0
    patch_bias: bool = False
    extra_parameters: int = 0
    mtp: int = 0
    title: str = ""
    source: str | None = None
    parameters: int | None = None
    active_parameters: int | None = None

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return len(self.pattern)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The distinct softmax attentions of its layers, cross attention included."""
        found = (part for group in self.groups for part in (group.layer.mixer, group.layer.cross))
        return tuple(dict.fromkeys(part for part in found if isinstance(part, Attention)))

    @property
    def experts(self) -> tuple[MixtureOfExperts, ...]:
        """The distinct mixtures of experts of its layers."""
        found = (group.layer.feed_forward for group in self.groups)
        return tuple(dict.fromkeys(part for part in found if isinstance(part, MixtureOfExperts)))

    @property
    def latent(self) -> bool:
        """Whether any layer has latent attention."""
        return any(isinstance(group.layer.mixer, LatentAttention) for group in self.groups)

    @property
    def image_tokens(self) -> int:
        """Tokens that one image adds to the prompt: the vision tower's positions, merged where its projector does."""
        if self.tower is None or self.tower_kind != "vision" or not self.tower_tokens:
            return 0
        merged = self.tower.projector[0] // self.tower.hidden if self.tower.projector else 1
        return self.tower_tokens // max(merged, 1)

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.hidden, self.vocabulary, self.groups, self.norm, self.positions))

    def __hash__(self) -> int:
        return self._hash
