"""The network: the operators of a forward pass and how often each runs, symbolic in the workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.checked import expect
from roofline.graph.convention import Convention, viewer_inputs, viewer_ops
from roofline.graph.extents import AttentionMask, Pool, Rule, Tail
from roofline.graph.fusion import FUSIONS, apply_fusion, check_fusions
from roofline.graph.layers.basic import Formats, activation, collective
from roofline.graph.layers.embedding import embedding, head
from roofline.graph.layers.layer import layer_ops
from roofline.graph.layers.unet import unet_blocks
from roofline.graph.op import Link, Op, Section, extent_rules, shared
from roofline.graph.parallel import SINGLE, Collective, Parallelism
from roofline.graph.ranks import check_stages, rank_model, with_copies
from roofline.graph.rewrite import Rewrite
from roofline.graph.tensor import Tensor
from roofline.specs.formats import Format
from roofline.specs.model import Layer, Model
from roofline.specs.precision import Precision
from roofline.specs.sublayers import MixtureOfExperts

OVERLAP_BATCHES = 2
"""Micro-batches of two-batch overlap: one computes during the all-to-all of the other."""


class Network(Struct, frozen=True, dict=True, cache_hash=True):
    """A model's operators in one precision, in execution order.

    `base` is the arithmetic of unquantized operands; `compute`
    forces an arithmetic on every GEMM (None: the operands determine it). `two_batch_overlap`: all-to-alls overlap with
    computation on another micro-batch. `ping_pong`: micro-batches that go back and forth between devices of attention
    and of experts (0: none). `uneven`: that of its experts' loads (`Pool`).
    """

    sections: tuple[Section, ...]
    base: str
    compute: str | None
    two_batch_overlap: bool = False
    ping_pong: int = 0
    uneven: float = 0.0

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """What derives the extents of its sizes from a workload."""
        rules = dict.fromkeys(rule for section in self.sections for rule in extent_rules(section.ops))
        return tuple(
            replace(rule, uneven=self.uneven) if isinstance(rule, Pool) and rule.routed else rule for rule in rules
        )

    @cached_property
    def exchange(self) -> Link | None:
        """The link over which expert ranks exchange tokens; None without such ranks."""
        links = (op.link for section in self.sections for op in section.ops if op.link is not None)
        return next((link for link in links if link.routed is not None), None)

    @property
    def ops(self) -> tuple[tuple[Op, float, str], ...]:
        """Every operator, its count and its section."""
        return tuple((op, section.count, section.name) for section in self.sections for op in section.ops)

    @property
    def overlap_batches(self) -> int:
        """The micro-batches that overlap in a pass."""
        return self.ping_pong or (OVERLAP_BATCHES if self.two_batch_overlap else 1)

    @property
    def saturation_points(self) -> tuple[int | range, ...]:
        """Cached tokens at which the decode cost of some layer stops growing; a range where it does so periodically."""
        rules = (rule.rule if isinstance(rule, Tail) else rule for rule in self.rules)
        masks = (rule for rule in rules if isinstance(rule, AttentionMask))
        return tuple(dict.fromkeys(point for mask in masks for point in mask.saturation_points))


class Build(Struct, frozen=True):
    """The options of a graph: fusions, counting convention, parallelism, expert routing, rewrites.

    `decode`: a graph for single queries, with absorbed MLA, and a KV cache sharded over sequence ranks. `skew`,
    `uneven` and `capacity`: the laws of expert routing (`Pool`) and its capacity factor. `every_position`: logits at
    all positions, for verification, instead of the last. `bridge`: the number of cards that an NVLink bridge joins, if
    any.
    """

    fusions: tuple[str, ...] = ()
    convention: Convention = Convention.PHYSICAL
    parallel: Parallelism = SINGLE
    decode: bool = False
    skew: float = 0.0
    uneven: float = 0.0
    capacity: float = 1.0
    rewrites: tuple[Rewrite, ...] = ()
    every_position: bool = False
    bridge: int | None = None
    two_batch_overlap: bool = False
    ping_pong: int = 0


PLAIN = Build()

EMBEDDING, HEAD, PIPELINE = "embedding", "head", "pipeline"
_FAR = ("", "_far", "_farthest")
TRANSFERS = frozenset(f"{PIPELINE}{far}" for far in _FAR)
"""Sections of the transfers between pipeline stages."""

ENDS = TRANSFERS | {EMBEDDING, HEAD}
"""The sections that are not layers: both ends, and send/receive between pipeline stages, by distance."""


@lru_cache(maxsize=512)
def network(model: Model, precision: Precision, build: Build = PLAIN) -> Network:
    """The graph of one rank of `model`."""
    expect(model, Model, "model")
    expect(precision, Precision, "precision")
    check_fusions(build.fusions)
    if build.convention is Convention.LLM_VIEWER:
        model, precision = viewer_inputs(model, precision)
    check_stages(model, build.parallel)
    parallel = with_copies(build.parallel.of_stage, model)
    graph = _stage(model, precision, replace(build, parallel=parallel, bridge=None))
    transfers = tuple(_send_receives(model.hidden * model.streams, precision, build))
    return replace(graph, sections=graph.sections + transfers) if transfers else graph


@lru_cache(maxsize=512)
def _stage(model: Model, precision: Precision, build: Build) -> Network:
    """The graph of one rank with all layers, cached for all pipeline degrees."""
    grouped = next((attention.group for attention in model.attentions), 1)
    conditioned = model.conditioning is not None
    setting = (build.parallel, build.decode, build.skew, build.capacity, conditioned)
    precision = replace(precision, weights=precision.weights.of_model(bool(model.experts)))
    formats = Formats(precision, model.layers, grouped, *setting)
    rank = rank_model(model, build.parallel)
    return Network(
        sections=tuple(section for section in _sections(rank, formats, build) if section.ops),
        base=precision.base.arithmetic,
        compute=precision.compute,
        two_batch_overlap=build.two_batch_overlap,
        ping_pong=build.ping_pong,
        uneven=build.uneven,
    )


def _sections(model: Model, formats: Formats, build: Build) -> Iterator[Section]:
    rotary = model.positions.kind == "rope"
    layer_build = Build(build.fusions, build.convention, rewrites=build.rewrites)
    end_build, end_formats = _end_build(build), formats.without_cache.without_experts
    dense_formats = formats.without_experts
    if model.unet is not None:
        for block in unet_blocks(model.unet, model.norm, dense_formats):
            block_build = end_build if block.name in ENDS else layer_build
            yield replace(block, ops=_transformed(block.ops, model.hidden, block_build))
        return
    yield Section(EMBEDDING, 1, _embedding(model, end_formats, end_build))
    for group in model.groups:
        routed = isinstance(group.layer.feed_forward, MixtureOfExperts)
        layer_formats = formats if routed else dense_formats
        yield Section(group.name, group.count, _layer(group.layer, model.hidden, rotary, layer_formats, layer_build))
    yield Section(HEAD, 1, _head(model, end_formats, build.every_position, end_build))


# Cached apart from each other and with only the options that matter, so that different graphs share their operators.


@lru_cache(maxsize=512)
def _embedding(model: Model, formats: Formats, build: Build) -> tuple[Op, ...]:
    return _transformed(embedding(model, _residual(model.hidden, formats.base), formats), model.hidden, build)


@lru_cache(maxsize=1024)
def _layer(layer: Layer, hidden: int, rotary: bool, formats: Formats, build: Build) -> tuple[Op, ...]:
    return _transformed(layer_ops(layer, hidden, rotary, formats), hidden, build)


@lru_cache(maxsize=512)
def _head(model: Model, formats: Formats, every: bool, build: Build) -> tuple[Op, ...]:
    stream = _residual(model.hidden * model.streams, formats.base)
    return _transformed(head(model, stream, formats, every), model.hidden, build)


def _residual(hidden: int, base: Format) -> Tensor:
    return activation("hidden", base, hidden)


def _end_build(build: Build) -> Build:
    """The build of operators outside the layers, which are not rewritten."""
    return Build(build.fusions, build.convention)


def _send_receives(hidden: int, precision: Precision, build: Build) -> Iterator[Section]:
    """Send/receive between pipeline stages: to a neighbour, beyond a bridge, and beyond the node."""
    parallel = build.parallel
    stream = _residual(hidden, precision.base)
    arrived, share = replace(stream, name="hidden_received"), 1 / parallel.tensor
    for far, (reach, count) in zip(_FAR, parallel.stage_transfers(build.bridge).items(), strict=False):
        kind = Collective.POINT_TO_POINT
        send = collective(f"send_receive{far}", kind, stream, arrived, 2, reach, share)
        yield Section(f"{PIPELINE}{far}", count, _transformed([send], hidden, _end_build(build)))


def _transformed(ops: Sequence[Op], hidden: int, build: Build) -> tuple[Op, ...]:
    """The operators in the build's counting convention, rewritten and fused."""
    if build.convention is Convention.LLM_VIEWER:
        ops = viewer_ops(tuple(ops), hidden)
    for rewrite in build.rewrites:
        ops = [new for op in ops for new in rewrite.apply(op)]
    for name in build.fusions:
        ops = apply_fusion(list(ops), FUSIONS[name])
    return tuple(map(shared, ops))
