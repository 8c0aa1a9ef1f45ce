"""Counting conventions: physical, or that of the LLM-Viewer paper, to reproduce its printed results.

The paper (Yuan et al. 2024, "LLM Inference Unveiled") counts no causal halving, one operand of a residual addition,
7 operations an element for any norm without reading its weight, the MLP activation at the hidden width, and only the
operators of its block plus a simplified lm_head. The code here runs only with `--convention llm-viewer`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec.structs import replace

from roofline.core.errors import UnsupportedError
from roofline.graph.op import Kind, Op
from roofline.graph.tensor import Tensor
from roofline.specs.formats import without_scales
from roofline.specs.model import Layer, LayerGroup, Model, Positions
from roofline.specs.precision import Precision
from roofline.specs.schemes import WeightScheme
from roofline.specs.sublayers import Attention, Mlp

NORM_OPERATIONS, ACTIVATION_OPERATIONS = 7, 2
"""FLOPs of an element of a norm and of an activation, as LLM-Viewer counts them (hahnyuan/LLM-Viewer)."""

UNCOUNTED = frozenset({"embedding", "embedding_norm", "final_norm", "q_norm", "k_norm", "v_norm"})
"""Operators that LLM-Viewer leaves out."""


class Convention(StrEnum):
    """A convention for counting FLOPs, bytes and memory."""

    PHYSICAL = "physical"
    LLM_VIEWER = "llm-viewer"

    @property
    def context_includes_new_token(self) -> bool:
        """Whether the context of a decode step includes its new token."""
        return self is Convention.LLM_VIEWER

    @property
    def block_activations(self) -> bool:
        """Whether activation memory is the sum of all tensors that a block writes, instead of the liveness peak."""
        return self is Convention.LLM_VIEWER


def viewer_inputs(model: Model, precision: Precision) -> tuple[Model, Precision]:
    """The model without RoPE, head norms and biases, which the paper omits, and the paper's precision.

    The paper has one width each for weights, activations and KV cache; arithmetic is INT8 if all three are at most 8
    bits, else FP16.
    """

    def plain(layer: Layer) -> Layer:
        if not isinstance(layer.mixer, Attention) or not isinstance(layer.feed_forward, Mlp) or layer.cross:
            raise UnsupportedError(f"the llm-viewer convention counts dense attention models only, not {model.name}")
        mixer = replace(layer.mixer, causal=False, qk_norm=False, qkv_bias=False, output_bias=False, sinks=False)
        return replace(layer, mixer=mixer, feed_forward=replace(layer.feed_forward, bias=False))

    groups = tuple(LayerGroup(group.name, group.count, plain(group.layer)) for group in model.groups)
    linear, kv = precision.weights.format_of("q_proj", precision.base, model.layers), without_scales(precision.kv)
    narrow = max(linear.bits, precision.activations.bits, kv.bits) <= 8
    return (
        replace(model, groups=groups, positions=Positions("none"), lm_head_bias=False, embedding_norm=False),
        Precision(
            base=precision.activations,
            weights=WeightScheme(f"{linear.name}-everywhere", linear, unquantized=frozenset()),
            activations=precision.activations,
            kv=kv,
            compute="int8" if narrow else None,
        ),
    )


def viewer_ops(ops: tuple[Op, ...], hidden: int) -> tuple[Op, ...]:
    """`ops` of a model of width `hidden` with the paper's counts."""
    return tuple(_recount(op, hidden) for op in ops if op.name not in UNCOUNTED)


def _recount(op: Op, hidden: int) -> Op:
    if op.kind is Kind.NORM:
        source = op.reads[0]
        return replace(op, reads=(source,), vector_flops=source.elements * NORM_OPERATIONS)
    if op.kind is Kind.ELEMENTWISE:
        return replace(op, reads=op.reads[1:])
    if op.kind is Kind.ACTIVATION:
        # Two inputs and one output, at the hidden width instead of the MLP's.
        written = op.writes[0]
        narrow = replace(written, shape=(*written.shape[:-1], hidden))
        return replace(
            op,
            reads=(replace(narrow, name="gate"), replace(narrow, name="up")),
            writes=(narrow,),
            vector_flops=narrow.elements * ACTIVATION_OPERATIONS,
        )
    if op.name == "lm_head":
        # A multiply-add counts as one operation; inputs and logits have one row whatever the batch.
        source, weight = op.operands
        row = _single(source)
        return replace(
            op,
            reads=(row, weight),
            writes=tuple(_single(tensor) for tensor in op.writes),
            matrix_flops=op.matrix_flops / 2,
            operands=(row, weight),
        )
    return op


def _single(tensor: Tensor) -> Tensor:
    return replace(tensor, shape=(1, *tensor.shape[1:]))
