"""The network: every operator of a forward pass and how often it runs, symbolic in the workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

from msgspec import Struct
from msgspec.structs import replace

from roofline.graph.convention import Convention, viewer_inputs, viewer_ops
from roofline.graph.extents import Convolution, Rule, View, latent_view, view_of
from roofline.graph.fusion import FUSIONS, apply_fusion
from roofline.graph.layers.basic import Formats, activation, collective
from roofline.graph.layers.embedding import embedding, head
from roofline.graph.layers.layer import layer_ops
from roofline.graph.layers.mlp import neurons_of, pool_of
from roofline.graph.op import Op, shared
from roofline.graph.parallel import SINGLE, Collective, Parallelism, check_stages, rank_model
from roofline.graph.rewrite import Rewrite
from roofline.graph.tensor import Tensor
from roofline.specs.formats import Format
from roofline.specs.model import Attention, Hyena, LatentAttention, Layer, MixtureOfExperts, Mlp, Model
from roofline.specs.precision import Precision

TURNS = 2
"""The batches that a batch is cut into where what one's experts exchange is sent while another is computed on."""


class Section(Struct, frozen=True):
    """A run of operators that is executed `count` times: one make of layer, or one end of the network."""

    name: str
    count: float
    ops: tuple[Op, ...]


class Network(Struct, frozen=True, dict=True):
    """A model's operators under one precision, in the order they run. One graph serves prefill and decode.

    `rules` turn a workload into the extents that its sizes depend on; `base` is the arithmetic of what is not
    quantised; `compute` forces an arithmetic on every product (None: the operands decide). `overlapped`: what its
    experts exchange is sent while the device computes on another batch.
    """

    sections: tuple[Section, ...]
    rules: tuple[Rule, ...]
    base: str
    compute: str | None
    overlapped: bool = False

    @property
    def ops(self) -> tuple[tuple[Op, float, str], ...]:
        """Every operator with how often it runs and the section it belongs to."""
        return tuple((op, section.count, section.name) for section in self.sections for op in section.ops)

    @property
    def turns(self) -> int:
        """The batches that take turns in a pass."""
        return TURNS if self.overlapped else 1

    @property
    def knees(self) -> tuple[int, ...]:
        """Cached tokens at which the cost of a decode step stops growing in some layer."""
        return tuple(sorted({knee for rule in self.rules if isinstance(rule, View) for knee in rule.knees}))

    @cached_property
    def _hash(self) -> int:
        return hash((self.sections, self.rules, self.base, self.compute, self.overlapped))

    def __hash__(self) -> int:
        return self._hash


class Build(Struct, frozen=True):
    """How a model is turned into a graph: fusions, counting, parallelism, routing.

    `decode`: the graph is for single queries, where latent attention works on the latents themselves and sequence
    parallelism divides the cache. `every_position`: logits are wanted at all positions, as verification needs them,
    not only at the last. `skew` and `capacity` are those of expert routing. `rewrites` replace linear layers
    by others (low-rank factors, adapters). `bridge` cards are joined by a bridge, where there is one. `overlapped` is
    that of the network.
    """

    fusions: tuple[str, ...] = ()
    convention: Convention = Convention.PHYSICAL
    parallel: Parallelism = SINGLE
    decode: bool = False
    skew: float = 0.0
    capacity: float = 1.0
    rewrites: tuple[Rewrite, ...] = ()
    every_position: bool = False
    bridge: int | None = None
    overlapped: bool = False


PLAIN = Build()

EMBEDDING, HEAD, PIPELINE = "embedding", "head", "pipeline"
_FAR = ("", "_beyond", "_beyond_node")
ENDS = frozenset({EMBEDDING, HEAD, *(f"{PIPELINE}{far}" for far in _FAR)})
"""The sections that are no layers: before and after them, and what stages send, to a neighbour and farther."""


@lru_cache(maxsize=512)
def network(model: Model, precision: Precision, build: Build = PLAIN) -> Network:
    """The graph of `model`: of one rank, where the build is parallel."""
    if build.convention is Convention.LLM_VIEWER:
        model, precision = viewer_inputs(model, precision)
    check_stages(model, build.parallel)
    graph = _stage(model, precision, replace(build, parallel=build.parallel.of_stage, bridge=None))
    transfers = tuple(_transfers(model.hidden, precision, build))
    return replace(graph, sections=graph.sections + transfers) if transfers else graph


@lru_cache(maxsize=512)
def _stage(model: Model, precision: Precision, build: Build) -> Network:
    """The graph of one rank that has all layers; stages that do the same share it."""
    grouped = next((attention.group for attention in model.attentions), 1)
    conditioned = model.conditioning is not None
    setting = (build.parallel, build.decode, build.skew, build.capacity, conditioned)
    formats = Formats(precision, model.layers, grouped, *setting)
    rank = rank_model(model, build.parallel)
    return Network(
        sections=tuple(section for section in _sections(rank, formats, build) if section.ops),
        rules=_rules(rank, build),
        base=precision.base.arithmetic,
        compute=precision.compute,
        overlapped=build.overlapped,
    )


def _rules(model: Model, build: Build) -> tuple[Rule, ...]:
    """The extents that the sizes of a model depend on beside batch and queries."""
    rules: list[Rule] = []
    ranks = build.parallel.sequence
    ring, shards = (1, ranks) if build.decode else (ranks, 1)
    for group in model.groups:
        layer = group.layer
        if isinstance(layer.mixer, Attention):
            rules.append(view_of(layer.mixer, ring=ring, shards=shards))
        if isinstance(layer.mixer, LatentAttention):
            rules += [latent_view(layer.mixer), *([View()] if layer.mixer.scorer else [])]
        if isinstance(layer.mixer, Hyena):
            rules += [Convolution(), View()]
        if layer.cross is not None:
            rules.append(view_of(layer.cross, cross=True))
        if isinstance(layer.feed_forward, Mlp) and layer.feed_forward.active < 1:
            rules.append(neurons_of(layer.feed_forward))
        if isinstance(layer.feed_forward, MixtureOfExperts):
            rules.append(pool_of(layer.feed_forward, build.parallel, build.skew))
    return tuple(dict.fromkeys(rules))


def _sections(model: Model, formats: Formats, build: Build) -> Iterator[Section]:
    rotary = model.positions.kind == "rope"
    making = Build(build.fusions, build.convention, rewrites=build.rewrites)
    ends, of_ends = _of_ends(build), formats.without_cache.without_experts
    plain = formats.without_experts
    yield Section(EMBEDDING, 1, _embedding(model, of_ends, ends))
    for group in model.groups:
        routed = isinstance(group.layer.feed_forward, MixtureOfExperts)
        of_layer = formats if routed else plain
        yield Section(group.name, group.count, _layer(group.layer, model.hidden, rotary, of_layer, making))
    yield Section(HEAD, 1, _head(model, of_ends, build.every_position, ends))


@lru_cache(maxsize=512)
def _embedding(model: Model, formats: Formats, build: Build) -> tuple[Op, ...]:
    """The operators before the layers; graphs that differ in those share them."""
    return _counted(embedding(model, _stream(model.hidden, formats.base), formats), model.hidden, build)


@lru_cache(maxsize=512)
def _head(model: Model, formats: Formats, every: bool, build: Build) -> tuple[Op, ...]:
    """The operators after the layers."""
    return _counted(head(model, _stream(model.hidden, formats.base), formats, every), model.hidden, build)


def _stream(hidden: int, base: Format) -> Tensor:
    """What flows from layer to layer."""
    return activation("hidden", base, hidden)


def _of_ends(build: Build) -> Build:
    """How operators beside the layers are made: products there stay as they are."""
    return Build(build.fusions, build.convention)


def _transfers(hidden: int, precision: Precision, build: Build) -> Iterator[Section]:
    """What stages send to each other: at most to a neighbour, beyond a bridge, and beyond the node."""
    parallel = build.parallel
    stream = _stream(hidden, precision.base)
    arrived, share = replace(stream, name="hidden_received"), 1 / parallel.tensor
    for far, (reach, count) in zip(_FAR, parallel.stage_transfers(build.bridge).items(), strict=False):
        kind = Collective.POINT_TO_POINT
        send = collective(f"stage_transfer{far}", kind, stream, arrived, 2, reach, share)
        yield Section(f"{PIPELINE}{far}", count, _counted([send], hidden, _of_ends(build)))


@lru_cache(maxsize=1024)
def _layer(layer: Layer, hidden: int, rotary: bool, formats: Formats, build: Build) -> tuple[Op, ...]:
    """The operators of one make of layer; graphs that differ elsewhere share them."""
    return _counted(layer_ops(layer, hidden, rotary, formats), hidden, build)


def _counted(ops: Sequence[Op], hidden: int, build: Build) -> tuple[Op, ...]:
    """The operators as the build's convention counts them, its linear layers rewritten, its fusions applied."""
    if build.convention is Convention.LLM_VIEWER:
        ops = viewer_ops(tuple(ops), hidden)
    for rewrite in build.rewrites:
        ops = [new for op in ops for new in rewrite.apply(op)]
    for name in build.fusions:
        ops = apply_fusion(list(ops), FUSIONS[name])
    return tuple(map(shared, ops))
