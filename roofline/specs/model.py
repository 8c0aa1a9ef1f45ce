"""Model architectures as records; `roofline.specs.modelspec` reads them from files.

A layer is a token mixer (attention or a recurrence) and a feed-forward block, each with its norms, added to the
residual stream. `roofline.specs.sublayers` has the records of mixers and feed-forward blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta, Struct

from roofline.core.checked import Checked
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.specs.formats import UNQUANTIZED_FORMATS
from roofline.specs.schemes import GGUF_SCHEMES
from roofline.specs.sublayers import (
    MIXERS,
    Attention,
    Count,
    Engram,
    FeedForward,
    Few,
    Mixer,
    MixtureOfExperts,
    Modules,
    Natural,
    Text,
    Tokens,
    UNet,
)
from roofline.specs.weight_files.stored import Stored

FRAMES = 100
"""Frames of audio features a second (Whisper's hop of 160 samples at 16 kHz)."""


class Norm(Struct, frozen=True, forbid_unknown_fields=True):
    """The norm of sub-layers and its placement.

    pre: on the input; post: after the residual addition (BERT); sandwich: on input and output; output: on the output
    only, before the residual addition (OLMo 2).
    """

    kind: Literal["rmsnorm", "layernorm"]
    placement: Literal["pre", "post", "sandwich", "output"] = "pre"
    bias: bool = True
    weight: bool = True

    @property
    def vectors(self) -> int:
        return self.weight + (self.kind == "layernorm" and self.bias and self.weight)


class Positions(Struct, frozen=True, forbid_unknown_fields=True):
    """The position encoding: RoPE, ALiBi, a learned table of `count` rows, or none.

    "relative" is T5's learned bias by distance: `count` buckets per head, stored once.
    """

    kind: Literal["rope", "alibi", "learned", "relative", "none"] = "rope"
    count: Count | None = None


class Conditioning(Struct, frozen=True, forbid_unknown_fields=True):
    """The conditioning of a diffusion transformer (DiT's adaLN-Zero) on a timestep and one of `classes`.

    Both are embedded into one vector per sample, the timestep from `frequencies` sinusoids; each layer projects that
    vector to a shift, a scale and a gate for each of its two sub-layers.
    """

    classes: Count
    frequencies: Count = 256


class AudioConvolution(Struct, frozen=True, forbid_unknown_fields=True):
    """A convolution over time in front of an audio encoder, with a bias and a GELU (Whisper).

    `channels` inputs (mel bands in the first one), `kernel` frames wide, every `stride` frames; it has as many outputs
    as the encoder's hidden size.
    """

    channels: Count
    kernel: Count
    stride: Count = 1


class ImageRule(Struct, frozen=True, forbid_unknown_fields=True):
    """How an image processor turns an image of any size into patches of `patch` x `patch` pixels.

    `merge` x `merge` patches become one token, of an image with `min_pixels` to `max_pixels` and sides of at most
    `max_side` pixels (dynamic resolution), `padded` to whole tokens and never enlarged, or resized to them, or scaled
    until `max_pixels` are `filled`; or the image is cut into at most `tiles` squares of `tile` x `tile` pixels, in
    the `grid` that scales it least or that is closest to its aspect ratio (`roofline.specs.images`).
    """

    patch: Count
    merge: Count = 1
    min_pixels: Tokens | None = None
    max_pixels: Tokens | None = None
    max_side: Count | None = None
    padded: bool = False
    filled: bool = False
    tile: Count | None = None
    tiles: Annotated[int, Meta(ge=1, le=256)] | None = None
    grid: Literal["scale", "aspect"] = "scale"


Kept = Literal["attention", "linear_attention", "mlp"]
"""Parts of a model that a scheme may leave unquantized."""


Formats = Mapping[Text, Text | Mapping[Text, Annotated[float, Meta(gt=0, le=10**5)]]]
"""The format of each component, or the number of layers in each of several."""


class DraftExperts(Struct, frozen=True, forbid_unknown_fields=True):
    """The routed experts of a draft's layers, where they are fewer than the model's (DeepSeek-V4.1's DSpark)."""

    experts: Count
    top_k: Count


class Switches(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a layer beside its parts (`Layer`)."""

    residual: Literal["sequential", "parallel"] = "sequential"
    shared_norm: bool = False
    one_all_reduce: bool = False
    streams: Few = 0
    residual_blocks: Few = 0
    tail: Natural = 0


class Layer(Switches, frozen=True):
    """One layer: a token mixer and a feed-forward block (either may be absent), sequential or in parallel.

    `cross` attends to the encoder's output between the two. `one_all_reduce`: with tensor parallelism, engines add the
    outputs of parallel attention and MLP before they reduce them. `streams`: the residual stream is so many vectors,
    which hyper-connections mix before and after each sub-layer (DeepSeek-V4's mHC; 0: a plain residual).
    `residual_blocks`: a sub-layer's input is a learned mean over the outputs of earlier blocks of layers, of which the
    model has so many (attention residuals, Kimi K3). `engram` adds to the stream in front of the layer. `tail`: of a
    prompt, or of each of its chunks, only the last so many tokens pass through the layer, since no later layer and no
    later token reads what it makes of the others (0: all do; DeepSeek-V4.1's bounded replay).
    """

    norm: Norm
    mixer: Mixer | None = None
    feed_forward: FeedForward | None = None
    cross: Attention | None = None
    engram: Engram | None = None


class LayerGroup(Checked, frozen=True):
    """`count` identical layers under one name."""

    name: str
    count: Count
    layer: Layer


class Described(Struct, frozen=True, kw_only=True):
    """What a spec file says of a model in the words of `Model`, which explains them."""

    name: Annotated[str, Meta(min_length=1, max_length=80)]
    hidden: Count
    vocabulary: Natural = 0
    title: Text = ""
    source: Text | None = None
    parameters: Annotated[int, Meta(ge=1, le=10**18)] | None = None
    active_parameters: Annotated[int, Meta(ge=1, le=10**18)] | None = None
    task: Literal["generate", "encode"] = "generate"
    dtype: str = "bf16"
    quantization: Text | None = None
    formats: Formats | None = None
    kv_scales: Literal["modelopt", "compressed-tensors"] | None = None
    block: Count = 128
    max_context: Tokens | None = None
    tied_embeddings: bool = False
    positions: Positions = Positions()
    embedding_norm: bool = False
    embedding_width: Count | None = None
    token_types: Natural = 0
    conditioning: Conditioning | None = None
    final_norm: bool = True
    lm_head: bool = True
    lm_head_bias: bool = False
    tower_kind: Literal["encoder", "vision"] | None = None
    tower_tokens: Tokens | None = None
    image: ImageRule | None = None
    pool: Count = 1
    deepstack: Annotated[int, Meta(ge=0, le=100)] = 0
    patch: Natural = 0
    patch_bias: bool = False
    extra_parameters: Annotated[int, Meta(ge=0, le=10**15)] = 0
    mtp: Natural = 0
    draft_experts: DraftExperts | None = None
    projector: tuple[Count, ...] = ()
    merger: tuple[Count, ...] = ()
    projector_bias: bool | tuple[bool, ...] = True
    convolutions: tuple[AudioConvolution, ...] = ()
    unquantized: tuple[Kept, ...] = ()
    rests_on: tuple[Text, ...] = ()


class Model(Described, Checked, frozen=True, kw_only=True, dict=True):
    """A transformer or state-space model. `pattern` is the group name of every layer, first to last.

    `task`: generate tokens, or encode a sequence in one pass. `tower`: a network that runs first, either an "encoder"
    for the layers' `cross` attention, or a "vision" encoder whose `tower_tokens` outputs per image are added to the
    prompt; `image` is the rule for images of other sizes. An encoder's `tower_tokens`, if any, are its default input
    length (Whisper's windows of 30 s). `deepstack`: earlier layers of a vision encoder whose outputs pass through
    projectors of their own, of the same widths (Qwen3-VL). `pool`: outputs of a vision encoder that are averaged to one
    token. `projector_bias`: that of all its projections, or of each. `merger`: a second projector, which merges outputs
    of the first (MiniMax-M3). `dtype`: format of the unquantized weights. `quantization`: scheme of the others, in the
    notation of `--quant`. `unquantized`: parts left unquantized beside the usual ones. `formats`: the quantized
    components, if their formats differ, each with its format or the number of layers in each. `kv_scales`: the tool
    whose scales of an FP8 cache the checkpoint has. `block`: rows and columns of a weight block of FP8.
    `draft_experts`: those of a draft of blocks. `mtp`: number of multi-token-prediction modules in the checkpoint, not
    part of the main model. `extra_parameters`: stored weights that inference does not use (poolers, unused heads).
    `parameters`: the published size, if any; the derived size is `roofline.bound.memory.parameters(model)`. `rests_on`:
    what was seen, and what not, of a model that was read off its class. `stored`: the weights of the checkpoint on disk
    that the model was read from. `gguf`: it is named as a GGUF file or a repository of them (`in_gguf`).
    """

    groups: tuple[LayerGroup, ...]
    pattern: tuple[str, ...]
    norm: Norm
    tower: Model | None = None
    stored: Stored | None = None
    gguf: bool = False

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        names = {group.name for group in self.groups}
        if not self.pattern or not names.issuperset(self.pattern):
            raise RooflineError(f"the pattern of {self.name} must name a group of layers for each of its layers")
        if self.dtype and self.dtype not in UNQUANTIZED_FORMATS:  # "" while a reader has not found it yet
            raise UnknownNameError("format of unquantized weights", self.dtype, UNQUANTIZED_FORMATS)
        if self.merger and len(self.projector) < 2:
            raise RooflineError(f"the merger of {self.name} merges outputs of a projector, of which it has none")
        projections = sum(max(0, len(widths) - 1) for widths in (self.projector, self.merger))
        if isinstance(self.projector_bias, tuple) and len(self.projector_bias) != projections:
            raise RooflineError(
                f"projector_bias of {self.name} is true or false, or as many as its {projections} projections"
            )

    def __repr__(self) -> str:
        released = "" if self.quantization is None else f", quantization {self.quantization}"
        size = f"{self.layers} layers, hidden {self.hidden}, vocabulary {self.vocabulary}"
        return f"Model({self.name}: {size}, {self.dtype}{released})"

    @property
    def in_gguf(self) -> bool:
        """Whether the weights are those of GGUF files, by name or by a scheme that only these have."""
        return self.gguf or self.quantization in GGUF_SCHEMES

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.pattern)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The distinct softmax attentions of the layers, cross-attention included."""
        mixers = (group.layer.mixer for group in self.groups)
        own = (mixer.attention if isinstance(mixer, Modules) else mixer for mixer in mixers)
        found = (*own, *(group.layer.cross for group in self.groups))
        return tuple(dict.fromkeys(part for part in found if isinstance(part, Attention)))

    @property
    def experts(self) -> tuple[MixtureOfExperts, ...]:
        """The distinct MoE blocks of the layers."""
        found = (group.layer.feed_forward for group in self.groups)
        return tuple(dict.fromkeys(part for part in found if isinstance(part, MixtureOfExperts)))

    @property
    def engrams(self) -> tuple[Engram, ...]:
        """The memories of n-grams, one for each layer that has one."""
        found = (group.layer.engram for group in self.groups for _ in range(group.count))
        return tuple(part for part in found if part is not None)

    @property
    def streams(self) -> int:
        """Vectors of the residual stream."""
        return max(1, *(group.layer.streams for group in self.groups))

    @property
    def residual_blocks(self) -> int:
        """Blocks of layers whose outputs are attended to."""
        return max(group.layer.residual_blocks for group in self.groups)

    @property
    def uses_mla(self) -> bool:
        """Whether any layer has MLA."""
        return self.mixes("latent_attention")

    def mixes(self, mixer: str) -> bool:
        """Whether any layer has such a token mixer (by its key in a spec file)."""
        return any(isinstance(group.layer.mixer, MIXERS[mixer]) for group in self.groups)

    @property
    def unet(self) -> UNet | None:
        """The U-Net, if the model is one."""
        first = self.groups[0].layer.mixer
        return first if isinstance(first, UNet) else None

    @property
    def image_tokens(self) -> int:
        """Prompt tokens per image of the spec's size."""
        return self.merged(self.tower_tokens or 0)

    @property
    def audio_seconds(self) -> float | None:
        """Seconds of audio in one window of the encoder; None for a model that hears none.

        Its convolutions see 100 frames a second (Whisper's features).
        """
        if self.tower is None or not self.tower.convolutions or self.tower_tokens is None:
            return None
        return self.tower_tokens * math.prod(part.stride for part in self.tower.convolutions) / FRAMES

    @property
    def encoded(self) -> str:
        """What an encoder beside the decoder sees at once."""
        return "image" if self.audio_seconds is None else "audio window"

    def merged(self, positions: int) -> int:
        """Prompt tokens of so many patches in the vision encoder, which its projector merges."""
        if self.tower is None or self.tower_kind != "vision":
            return 0
        merged = self.tower.projector[0] // self.tower.hidden if self.tower.projector else 1
        merged *= self.tower.pool * (self.tower.merger[0] // self.tower.projector[-1] if self.tower.merger else 1)
        return positions // max(merged, 1)

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.hidden, self.vocabulary, self.groups, self.norm, self.positions))

    def __hash__(self) -> int:
        return self._hash
