"""The U-Net of a latent diffusion model (Rombach et al. 2022; SDXL: Podell et al. 2023), as diffusers computes it.

The queries of a pass are the positions of the latent image; level i has 1/4^i of them. Operators are built for the
first level, and placed at level i by the extents of a pass of QUERIES / 4^i tokens beside a text of fixed length.
Transformer blocks are ordinary layers (`roofline.graph.layers.layer`). One pass is one denoising step, in which the
keys and values of the text are projected again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, AttentionMask, Step, extents
from roofline.graph.layers.basic import Formats, Ops, activation, add, convolution, elementwise, linear, normalise
from roofline.graph.layers.flops import ACTIVATION_FLOPS
from roofline.graph.layers.layer import layer_ops
from roofline.graph.op import Kind, Op, Section, with_sizes, with_tensors
from roofline.graph.size import as_size, total
from roofline.graph.tensor import Role, Tensor
from roofline.specs.model import Layer, Norm
from roofline.specs.sublayers import Attention, Mlp, UNet

TAPS = 9
"""Positions of a 3 x 3 window."""

FEED_FORWARD = 4
"""The width of a transformer block's GEGLU over its channels."""

MASKS = (AttentionMask(causal=False), AttentionMask(causal=False, cross=True))


def unet_blocks(spec: UNet, norm: Norm, formats: Formats) -> list[Section]:
    """The distinct blocks of a denoising step in the order of their first runs, with the most that each has held."""
    found: dict[str, Section] = {}
    for block in _Builder(spec, norm, formats).blocks():
        known = found.get(block.name, replace(block, count=0))
        held = max(known.held, block.held, key=lambda size: sum(size.terms.values()))
        found[block.name] = replace(known, count=known.count + block.count, held=held)
    return list(found.values())


class _Builder:
    """The blocks of one pass. `skips` are the skip connections still to be read: the level and channels of each."""

    def __init__(self, spec: UNet, norm: Norm, formats: Formats) -> None:
        self.spec, self.norm, self.formats = spec, norm, formats
        self.skips: list[tuple[int, int]] = []

    def blocks(self) -> Iterator[Section]:
        """All blocks, in the order in which they run."""
        spec, last, width = self.spec, len(self.spec.channels) - 1, self.spec.channels[0]
        yield self._block("embedding", 0, self._entry())
        self.skips.append((0, width))
        for level, channels in enumerate(spec.channels):
            for _ in range(spec.blocks):
                yield self._block(*self._residual(level, width, channels), self.skips[:-1])
                yield from self._transformer(level, spec.depths[level])
                self.skips.append((level, channels))
                width = channels
            if level < last:
                yield self._block(f"level_{level}_down", level, self._down(channels), self.skips[:-1])
                self.skips.append((level + 1, channels))
        yield self._block(*self._residual(last, width, width), self.skips[:-1])
        yield from self._transformer(last, spec.middle)
        yield self._block(*self._residual(last, width, width), self.skips)
        for level, channels in reversed(list(enumerate(spec.channels))):
            for _ in range(spec.blocks + 1):
                _, skip = self.skips.pop()
                yield self._block(*self._residual(level, width + skip, channels, skip), self.skips)
                yield from self._transformer(level, spec.depths[level])
                width = channels
            if level:
                yield self._block(f"level_{level}_up", level - 1, self._up(channels), self.skips)
        yield self._block("head", 0, self._exit())

    def _block(
        self, name: str, level: int, ops: list[Op], held: Sequence[tuple[int, int]] = (), count: int = 1
    ) -> Section:
        """Operators placed at a level, beside activations of other blocks, each given by its level and channels."""
        text = self.spec.text_tokens
        values = extents(Step(BATCH, QUERIES * 0.25**level, 0, text, text), MASKS)
        kept = total(BATCH * QUERIES * (0.25**at * channels * self.formats.base.bytes) for at, channels in held)
        return Section(name, count, tuple(_placed(op, values) for op in ops), kept)

    def _map(self, name: str, channels: int) -> Tensor:
        """A feature map of the level."""
        return activation(name, self.formats.base, channels)

    def _vector(self, name: str, width: int | None = None) -> Tensor:
        """A vector of each image, by default of the condition's width."""
        return Tensor(name, Role.ACTIVATION, (BATCH, width or self.spec.time_width), self.formats.base)

    def _entry(self) -> list[Op]:
        """The condition of all residual blocks, from the timestep and an added condition, and the first convolution."""
        spec, ops = self.spec, Ops(self.formats)
        given = self._embedded("time", self.spec.channels[0], ops)
        if spec.added:
            added = self._embedded("added", spec.added, ops)
            given = ops.run(add("added_add", given, added, self._vector("time_and_added")))
        ops.append(_silu("condition_act", given, self._vector("condition")))
        latent, hidden = self._map("latent", spec.inputs), self._map("hidden_out", spec.channels[0])
        return [*ops, convolution("convolution_in", latent, hidden, TAPS, self.formats)]

    def _embedded(self, name: str, width: int, ops: Ops) -> Tensor:
        """An embedding by two linear layers with SiLU between."""
        given, hidden = self._vector(f"{name}_given", width), self._vector(f"{name}_hidden")
        ops.append(linear(f"{name}_in_proj", given, hidden, self.formats, bias=True, component="embedding"))
        acted = ops.run(_silu(f"{name}_act", hidden, self._vector(f"{name}_activated")))
        return ops.run(
            linear(f"{name}_out_proj", acted, self._vector(name), self.formats, bias=True, component="embedding")
        )

    def _exit(self) -> list[Op]:
        norm = self._normed("out", self._map("hidden", self.spec.channels[0]))
        noise = self._map("noise", self.spec.outputs)
        return [norm, convolution("convolution_out", norm.writes[0], noise, TAPS, self.formats)]

    def _normed(self, name: str, source: Tensor) -> Op:
        """GroupNorm and SiLU in one kernel, as ONNX Runtime, TensorRT and AITemplate have."""
        op = normalise(f"{name}_norm", self.norm, source, replace(source, name=f"{name}_normed"), self.formats)
        return replace(op, vector_flops=op.vector_flops + ACTIVATION_FLOPS["silu"] * source.elements)

    def _residual(self, level: int, inputs: int, outputs: int, skip: int = 0) -> tuple[str, int, list[Op]]:
        """A residual block: two convolutions, the condition added between; `skip` of the inputs are concatenated."""
        ops, source = Ops(self.formats), self._map("hidden", inputs)
        if skip:
            parts, joined = (self._map("hidden", inputs - skip), self._map("skip", skip)), self._map("joined", inputs)
            source = ops.run(elementwise("concatenate", Kind.ELEMENTWISE, parts, joined))
        first, shifted, second = (self._map(name, outputs) for name in ("convolved", "shifted", "convolved_twice"))
        shift = self._vector("shift", outputs)
        normed = ops.run(self._normed("first", source))
        ops.append(convolution("first_convolution", normed, first, TAPS, self.formats))
        ops.append(linear("condition_proj", self._vector("condition"), shift, self.formats, bias=True))
        ops.append(add("condition_add", first, shift, shifted))
        normed = ops.run(self._normed("second", shifted))
        ops.append(convolution("second_convolution", normed, second, TAPS, self.formats))
        if inputs != outputs:
            source = ops.run(convolution("shortcut", source, self._map("shortcut", outputs), 1, self.formats))
        ops.append(add("residual_add", source, second, self._map("hidden_out", outputs)))
        suffix = "_with_skip" if skip else ""
        return f"level_{level}_residual_{inputs}_{outputs}{suffix}", level, ops

    def _transformer(self, level: int, depth: int) -> Iterator[Section]:
        """A norm and a projection, `depth` transformer blocks, and a projection that is added to the feature map."""
        if not depth:
            return
        spec, width, name = self.spec, self.spec.channels[level], f"level_{level}_transformer"
        hidden, normed, tokens, updated = (self._map(part, width) for part in ("hidden", "normed", "tokens", "updated"))
        entering = [
            normalise("transformer_norm", self.norm, hidden, normed, self.formats),
            linear("transformer_in_proj", normed, tokens, self.formats, bias=True),
        ]
        leaving = [
            linear("transformer_out_proj", tokens, updated, self.formats, bias=True),
            add("transformer_add", hidden, updated, self._map("hidden_out", width)),
        ]
        heads = spec.heads[level]
        attention = Attention(heads, heads, width // heads, causal=False, output_bias=True)
        feed_forward = Mlp(FEED_FORWARD * width, gated=True, activation="gelu", bias=True)
        layer = Layer(self.norm, attention, feed_forward, replace(attention, source_width=spec.text_width))
        ops = layer_ops(layer, width, rotary=False, formats=self.formats)
        yield self._block(f"{name}_in", level, entering, self.skips)
        yield self._block(name, level, ops, [*self.skips, (level, width)], depth)
        yield self._block(f"{name}_out", level, leaving, self.skips)

    def _down(self, channels: int) -> list[Op]:
        """A convolution with stride 2, from the level to the next."""
        target = Tensor("hidden_out", Role.ACTIVATION, (BATCH, QUERIES * 0.25, channels), self.formats.base)
        return [convolution("downsample", self._map("hidden", channels), target, TAPS, self.formats)]

    def _up(self, channels: int) -> list[Op]:
        """Every position four times and a convolution, to the level from the next."""
        source = Tensor("hidden", Role.ACTIVATION, (BATCH, QUERIES * 0.25, channels), self.formats.base)
        upsampled, target = self._map("upsampled", channels), self._map("hidden_out", channels)
        copied = elementwise("upsample", Kind.ELEMENTWISE, (source,), upsampled)
        return [copied, convolution("upsample_convolution", upsampled, target, TAPS, self.formats)]


def _silu(name: str, source: Tensor, target: Tensor) -> Op:
    return elementwise(name, Kind.ACTIVATION, (source,), target, ACTIVATION_FLOPS["silu"] * source.elements)


def _placed(op: Op, values: Mapping[str, Any]) -> Op:
    """`op` with these extents in place of those of the pass, and keys and values that no cache keeps."""

    def uncached(of: Tensor) -> Tensor:
        if of.role is not Role.KV:
            return of
        return replace(of, name=of.name.removesuffix("_cache"), role=Role.ACTIVATION, stored=None)

    return with_sizes(with_tensors(op, uncached), lambda size: as_size(size.evaluate(values)))
