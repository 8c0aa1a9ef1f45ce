"""Blocks of FP8 weights that tensor parallelism would cut, with which engines do not start."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.graph.parallel import Parallelism
from roofline.specs.model import Layer, Model
from roofline.specs.precision import Precision
from roofline.specs.sublayers import Attention, LatentAttention, Mlp

WHOLE_BLOCKS = "vllm", "sglang"
"""Engines that load weights with a scale for each block of so many rows and columns only where every device has whole
blocks: of experts, of the columns and rows of an MLP, and of the heads' outputs (vLLM's validate_fp8_block_shape and
Fp8MoEMethod: issues 25292 and 54178, pull request 39046; its recipes of MiniMax-M2 and Qwen3-235B-A22B have four
devices for it), SGLang's copies of them (issue 26107)."""

EXPERTS = "experts"


def cut_blocks(model: Model, precision: Precision, engine: str, parallel: Parallelism) -> Iterator[tuple[str, int]]:
    """What tensor ranks cut inside blocks of its weights, and its width: experts, MLP, shared experts, attention.

    Expert parallelism keeps experts whole; shared ones are divided like an MLP.
    """
    linear, ranks = precision.weights.linear, parallel.tensor
    if linear is None or linear.name != "fp8_block" or engine not in WHOLE_BLOCKS or ranks == 1:
        return
    experts = precision.weights.special.get("expert_gate_proj", linear)
    for what, width in dict.fromkeys(part for group in model.groups for part in _widths(group.layer)):
        whole = what == EXPERTS and (parallel.expert > 1 or experts != linear)
        if width and width % (model.block * ranks) and not whole:
            yield what, width


def _widths(layer: Layer) -> Iterator[tuple[str, int]]:
    mixer, feed = layer.mixer, layer.feed_forward
    if isinstance(mixer, Attention):
        yield "the heads' outputs", mixer.heads * (mixer.value_dim or mixer.head_dim)
    elif isinstance(mixer, LatentAttention):
        yield "the heads' outputs", mixer.heads * mixer.value_dim
    if isinstance(feed, Mlp):
        yield "an MLP", feed.width
    elif feed is not None:
        yield EXPERTS, feed.width
        yield "shared experts", feed.shared_width
