"""A dense Llama-like decoder in plain PyTorch with random weights, made from a `roofline.Model`.

Grouped-query attention with a KV cache, rotary positions, RMSNorm before each sub-layer, a gated SiLU feed-forward
block: the functions of `roofline.validate.kernels.eager`, one after the other, as eager code runs them. It exists to be
timed beside its prediction; its words mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import UnsupportedError
from roofline.specs.model import Model
from roofline.specs.sublayers import Attention, Mlp
from roofline.validate.kernels.benchmark import torch_dtype
from roofline.validate.kernels.eager import add_norm, angles, attend, linear, rms_norm, rotate, silu_mul

if TYPE_CHECKING:
    import torch

FUSIONS = ("residual_norm",)
"""What one kernel of the simulator computes here: an addition and the norm behind it are one function."""

SCALE = 0.02
"""Standard deviation of the weights."""


def check(model: Model) -> tuple[Attention, Mlp]:
    """The one kind of layer of a model that this decoder can be; raises UnsupportedError naming what it lacks."""
    layers = [group.layer for group in model.groups]
    attention, mlp = layers[0].mixer, layers[0].feed_forward
    reasons = {
        "it has several kinds of layers": len(set(layers)) > 1,
        "its layers have no softmax attention": not isinstance(attention, Attention),
        "its feed-forward blocks are no dense ones": not isinstance(mlp, Mlp),
        "it is no model that generates": model.task != "generate" or model.tower is not None,
        "its norms are not RMSNorm before each sub-layer": layers[0].norm.kind != "rmsnorm"
        or layers[0].norm.placement != "pre",
        "its sub-layers run in parallel": layers[0].residual != "sequential",
        "its positions are not rotary": model.positions.kind != "rope",
        "it has no output head": not model.lm_head or not model.final_norm,
        "its embeddings are not plain": bool(model.embedding_norm or model.embedding_width or model.lm_head_bias),
    }
    if isinstance(attention, Attention):
        reasons["its attention is of another kind"] = bool(
            attention.window or attention.selected or attention.extra or attention.qk_norm or attention.sinks
        ) or not (attention.causal and not attention.gate and not attention.kv_shared)
    if isinstance(mlp, Mlp):
        reasons["its feed-forward block is not a plain gated SiLU"] = (
            not mlp.gated or mlp.activation != "silu" or bool(mlp.receptance or mlp.shift) or mlp.active != 1
        )
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedError(f"{model.name} cannot be run here: {reason}; dense Llama-like models can")
    assert isinstance(attention, Attention)
    assert isinstance(mlp, Mlp)
    return attention, mlp


def with_layers(model: Model, layers: int) -> Model:
    """The model with fewer layers, all of its one kind; its published size is then another's."""
    check(model)
    group = replace(model.groups[0], count=layers)
    pattern = model.pattern[:layers]
    return replace(model, groups=(group,), pattern=pattern, parameters=None, active_parameters=None)


def layers_that_fit(model: Model, bytes: float, width: int) -> int:
    """How many layers fit in `bytes` with elements of `width` bytes, embeddings and head included; at least one."""
    attention, mlp = check(model)
    heads = attention.head_dim * (2 * attention.heads + 2 * attention.kv_heads)
    layer = width * model.hidden * (heads + 3 * mlp.width)
    ends = width * model.hidden * model.vocabulary * (1 if model.tied_embeddings else 2)
    return max(1, min(model.layers, int((bytes - ends) / layer)))


class Cache(Struct):
    """Keys and values of every layer, (batch, kv_heads, capacity, head_dim), and how many tokens they hold."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    length: int = 0


class Decoder:
    """The network with its weights on a device, in `dtype` (`fp32`, `bf16`, `fp16`)."""

    def __init__(self, model: Model, dtype: str, device: str, seed: int = 0) -> None:
        import torch

        self.model = model
        self.attention, self.mlp = check(model)
        self.device = device
        self.dtype: Any = torch_dtype(dtype)
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self.embedding = self._weight(model.vocabulary, model.hidden)
        self.head = self.embedding if model.tied_embeddings else self._weight(model.vocabulary, model.hidden)
        self.final = self._ones(model.hidden)
        self.layers = [dict(self._layer()) for _ in range(model.layers)]

    def _weight(self, outputs: int, inputs: int) -> torch.Tensor:
        import torch

        empty = torch.empty(outputs, inputs, dtype=self.dtype, device=self.device)
        return empty.uniform_(-SCALE, SCALE, generator=self._generator)

    def _ones(self, width: int) -> torch.Tensor:
        import torch

        return torch.ones(width, dtype=self.dtype, device=self.device)

    def _layer(self) -> Iterator[tuple[str, torch.Tensor]]:
        hidden, attention, mlp = self.model.hidden, self.attention, self.mlp
        inner, kept = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
        shapes = {"q": (inner, hidden), "k": (kept, hidden), "v": (kept, hidden), "o": (hidden, inner)}
        shapes |= {"gate": (mlp.width, hidden), "up": (mlp.width, hidden), "down": (hidden, mlp.width)}
        for name, (outputs, inputs) in shapes.items():
            yield name, self._weight(outputs, inputs)
        biased = ["q", "k", "v"] if attention.qkv_bias else []
        biased += ["o"] if attention.output_bias else []
        biased += ["gate", "up", "down"] if mlp.bias else []
        for name in biased:
            yield f"{name}_bias", self._ones(shapes[name][0])
        yield "attn_norm", self._ones(hidden)
        yield "mlp_norm", self._ones(hidden)

    def cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache for so many tokens a sequence."""
        import torch

        shape = (batch, self.attention.kv_heads, capacity, self.attention.head_dim)
        keys, values = (
            [torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in self.layers] for _ in range(2)
        )
        return Cache(keys, values)

    def forward(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """The logits (batch, vocabulary) after the last of `tokens` (batch, queries), which join the cache."""
        batch, queries = tokens.shape
        width = self.attention.head_dim
        start, end = cache.length, cache.length + queries
        cosines, sines = angles(cache.keys[0].shape[2], width, self.dtype, tokens.device)
        turn = cosines[start:end], sines[start:end]
        stream = self.embedding[tokens.reshape(-1)]
        normed = rms_norm(stream, self.layers[0]["attn_norm"])
        for index, weights in enumerate(self.layers):
            attended = self._attend(normed, weights, cache.keys[index], cache.values[index], (batch, start, end), turn)
            stream, normed = add_norm(stream, attended, weights["mlp_norm"])
            gated = silu_mul(self._linear(normed, weights, "gate"), self._linear(normed, weights, "up"))
            last = index + 1 == len(self.layers)
            following = self.final if last else self.layers[index + 1]["attn_norm"]
            stream, normed = add_norm(stream, self._linear(gated, weights, "down"), following)
        cache.length = end
        return linear(normed.view(batch, queries, -1)[:, -1], self.head)

    @staticmethod
    def _linear(source: torch.Tensor, weights: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        return linear(source, weights[name], weights.get(f"{name}_bias"))

    def _attend(
        self,
        normed: torch.Tensor,
        weights: Mapping[str, torch.Tensor],
        keys: torch.Tensor,
        values: torch.Tensor,
        span: tuple[int, int, int],
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        batch, start, end = span
        queries, width = end - start, self.attention.head_dim
        query, key, value = (
            self._linear(normed, weights, name).view(batch, queries, -1, width).transpose(1, 2) for name in "qkv"
        )
        keys[:, :, start:end] = rotate(key, *turn)
        values[:, :, start:end] = value
        found = attend(rotate(query, *turn), keys[:, :, :end], values[:, :, :end])
        return self._linear(found.transpose(1, 2).reshape(batch * queries, -1), weights, "o")


def decode_step(decoder: Decoder, batch: int, context: int, capacity: int) -> Callable[[], None]:
    """A call that computes one step with `context` tokens in the cache, again and again."""
    import torch

    cache = decoder.cache(batch, capacity)
    tokens = torch.zeros((batch, 1), dtype=torch.long, device=decoder.device)

    def step() -> None:
        cache.length = context
        with torch.inference_mode():
            decoder.forward(tokens, cache)

    return step


def prefill(decoder: Decoder, batch: int, prompt: int, capacity: int) -> Callable[[], None]:
    """A call that computes a whole prompt."""
    import torch

    cache = decoder.cache(batch, capacity)
    tokens = torch.zeros((batch, prompt), dtype=torch.long, device=decoder.device)

    def run() -> None:
        cache.length = 0
        with torch.inference_mode():
            decoder.forward(tokens, cache)

    return run
