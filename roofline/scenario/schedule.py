"""The schedule: the forward passes that a scenario's phases are made of.

A plain scenario runs one pass a phase. A tower runs before prefill; a prompt may be cut into chunks; speculation runs
drafts before each verifying pass; a pipeline runs micro-batches; disaggregated phases run on different hardware. Every
one of them is a list of passes: a network on hardware, its step, and how often it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.memory import stored_tensors
from roofline.bound.roof import Placement, place
from roofline.core.errors import RooflineError
from roofline.graph.extents import Step
from roofline.graph.network import EMBEDDING, HEAD, TURNS, Build, Network, Section, network
from roofline.graph.op import Kind, Link, Op
from roofline.graph.parallel import RESIDENT, SINGLE, Nodes, Offload, Parallelism, beside, micro_batches
from roofline.graph.rewrite import Rewrite
from roofline.graph.size import total
from roofline.graph.tensor import Role
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import Precision


class Speculation(Struct, frozen=True):
    """Drafting several tokens and verifying them in one pass of the target.

    An iteration drafts `length` tokens and verifies `verified` of them and one more (a tree has more than its depth).
    It yields `accepted` tokens on average, the one that the target adds included: either given, or from the chance
    `acceptance` that a token of a sequence is accepted, (1 - a^(g+1)) / (1 - a) (Leviathan et al. 2023).
    `draft` is the model that drafts, run once a token of the length over `draft_width` tokens; None drafts for free
    (n-grams, retrieval). `draft_depth` drafts with that share of the target's own layers. `shares_ends`: the draft uses
    the target's embedding and output head, so that they are stored once.
    """

    length: int
    accepted: float
    verified: int
    draft: Model | None = None
    draft_width: int = 1
    draft_depth: float | None = None
    draft_passes: int | None = None
    shares_ends: bool = False

    @property
    def drafts(self) -> int:
        """Passes of the draft in an iteration: one a token of the length, unless it proposes several at once."""
        return self.length if self.draft_passes is None else self.draft_passes


def accepted_tokens(acceptance: float, length: int) -> float:
    """Expected tokens of an iteration that drafts a sequence of `length`, each accepted with this chance."""
    if not 0 <= acceptance <= 1:
        raise RooflineError(f"the acceptance rate must be between 0 and 1, got {acceptance}")
    if acceptance == 1:
        return length + 1.0
    return (1 - acceptance ** (length + 1)) / (1 - acceptance)


class Part(StrEnum):
    """What a second processor shares in: everything, the products with the cache in decode, or feed-forward blocks."""

    ALL = "all"
    ATTENTION = "attention"
    BLOCKS = "blocks"

    def covers(self, op: Op) -> bool:
        """Whether an operator is of this part."""
        match self:
            case Part.ATTENTION:
                return op.kind is Kind.ATTENTION or op.name.endswith("softmax")
            case Part.BLOCKS:
                return op.name.startswith(("gate_proj", "gate_up", "up_proj", "down_proj", "mlp_act"))
        return True


class Host(Struct, frozen=True):
    """A second processor: it does a share `work` of one `part` of every pass.

    It keeps the shares `memory` of the weights and `kv` of the cache (None: the same). The two work one after the
    other.
    """

    hardware: Hardware
    work: float
    memory: float
    kv: float | None = None
    part: Part = Part.ALL


class Cascade(Struct, frozen=True):
    """A smaller model that answers first; the model itself is asked for the rest only.

    `answered` is the share of requests that the smaller one settles. Times are means over requests, those of the
    second round gathered into full batches.
    """

    model: Model
    answered: float


class Settings(Struct, frozen=True):
    """How a scenario runs, beside model, hardware and workload.

    `chunk`: tokens of a prompt that are prefilled at once (None: all). `decode_hardware`: where decode runs, if not
    where prefill does; the cache is sent over. `depth`: the share of layers that a decoded token runs through, or a
    sequence of a model that only encodes.
    `beams`: sequences that are decoded for each one prefilled. `useful`: tokens that anyone wants for each that a
    sequence generates: below 1 where the rest pads a static batch, above 1 where beams are parts of one answer.
    `padding`: prompt tokens computed over those wanted. KV memory: `kv_block` tokens
    are allocated at a time, `kv_reserved` tokens for every sequence whatever its length, and if `shared_prefix` the
    prefix is kept once for all sequences and the prompt once for all its beams. `overlapped` are the phases in which a
    batch is cut into two that take turns, so that one computes while what experts exchange is sent for the other.
    """

    parallel: Parallelism = SINGLE
    offload: Offload = RESIDENT
    host: Host | None = None
    speculation: Speculation | None = None
    cascade: Cascade | None = None
    chunk: int | None = None
    decode_hardware: Hardware | None = None
    depth: float = 1.0
    beams: int = 1
    useful: Any = 1.0
    padding: float = 1.0
    kv_block: int = 1
    kv_reserved: Any = None
    shared_prefix: bool = False
    expert_skew: float = 0.0
    expert_capacity: float = 1.0
    rewrites: tuple[Rewrite, ...] = ()
    overlapped: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not 0 <= self.expert_skew <= 10:
            raise RooflineError(f"the skew of expert routing must be between 0 and 10, got {self.expert_skew}")


PLAIN_SETTINGS = Settings()


class Pass(NamedTuple):
    """One forward pass of a phase: a network on hardware, its step, and how often it runs.

    `busy` is the share of those times, and of the stages of a pipeline, that have work: the others are bubbles.
    """

    placement: Placement
    step: Step
    repeat: Any = 1.0
    label: str = ""
    busy: Any = 1.0


def hiding(passes: Iterable[Pass]) -> bool:
    """Whether any of the passes hides exchanges behind other work."""
    return any(run.placement.exchanges.size for run in passes)


def _shallow(graph: Network, depth: float) -> Network:
    """The graph with that share of its layers run, and its ends whole."""
    if depth == 1:
        return graph
    ends = (EMBEDDING, HEAD)
    sections = (part if part.name in ends else replace(part, count=part.count * depth) for part in graph.sections)
    return replace(graph, sections=tuple(sections))


def _without(graph: Network, *ends: str) -> Network:
    """The graph without some of its ends."""
    return replace(graph, sections=tuple(section for section in graph.sections if section.name not in ends))


def _filtered(graph: Network, part: Part, inside: bool) -> Network:
    """The operators of a graph that belong to a part, or those that do not."""
    sections = (
        replace(section, ops=tuple(op for op in section.ops if part.covers(op) is inside)) for section in graph.sections
    )
    return replace(graph, sections=tuple(section for section in sections if section.ops))


class Schedule:
    """The passes of a model under one precision and settings."""

    def __init__(
        self, model: Model, hardware: Hardware, precision: Precision, build: Build, settings: Settings
    ) -> None:
        self.model = model
        self.hardware = hardware
        self.precision = precision
        self.settings = settings
        self._build = build
        self._placed: dict[str, Placement] = {}

    def _graph(self, hardware: Hardware, phase: str, *, decode: bool, every_position: bool = False) -> Network:
        settings = self.settings
        build = replace(
            self._build,
            parallel=settings.parallel.on(hardware),
            decode=decode,
            skew=settings.expert_skew,
            capacity=settings.expert_capacity,
            rewrites=settings.rewrites,
            every_position=every_position,
            bridge=hardware.bridge if settings.parallel.pipeline > 1 else None,
            overlapped=phase in settings.overlapped,
        )
        return network(self.model, self.precision, build)

    def _second(
        self, model: Model, hardware: Hardware, *, decode: bool, every_position: bool = False, head: bool = True
    ) -> Placement:
        """Another model beside the main one, which no technique changes and which stays on the device."""
        parallel = beside(self.settings.parallel.on(hardware), model)
        build = replace(self._build, parallel=parallel, decode=decode and model.latent, every_position=every_position)
        graph = network(model, self.precision, build)
        return place(graph if head else _without(graph, HEAD), hardware, parallel.housing)

    def _place(self, graph: Network, hardware: Hardware) -> Placement:
        return place(graph, hardware, self.settings.parallel.on(hardware).housing, self.settings.offload)

    @property
    def decoder(self) -> Hardware:
        """Where decode runs."""
        return self.settings.decode_hardware or self.hardware

    @cached_property
    def networks(self) -> tuple[Network, Network]:
        """The graphs of prefill and decode: another one only where decode computes differently."""
        prefill, apart = self._graph(self.hardware, "prefill", decode=False), self._decodes_apart
        if not apart and self.decoder is self.hardware and not self.settings.overlapped:
            return prefill, prefill
        return prefill, self._graph(self.decoder, "decode", decode=apart)

    @property
    def _decodes_apart(self) -> bool:
        """Whether a step for single queries computes differently."""
        return self.model.latent or self.settings.parallel.sequence > 1

    @cached_property
    def draft(self) -> Placement | None:
        """The model that drafts, on the hardware that decodes."""
        speculation = self.settings.speculation
        if speculation is None or speculation.draft is None:
            return None
        return self._second(speculation.draft, self.decoder, decode=True, every_position=speculation.draft_width > 1)

    @cached_property
    def cascade(self) -> Placement | None:
        """The smaller model that is asked first."""
        cascade = self.settings.cascade
        return None if cascade is None else self._second(cascade.model, self.decoder, decode=True)

    @property
    def others(self) -> tuple[Network, ...]:
        """The graphs of further models in memory, without the ends that they share with the main one."""
        graphs = [placed.network for placed in (self.draft, self.cascade) if placed is not None]
        if self.settings.speculation is not None and self.settings.speculation.shares_ends:
            graphs[0] = _without(graphs[0], EMBEDDING, HEAD)
        return tuple(graphs)

    @cached_property
    def _checked(self) -> Network:
        """The graph of decode with logits at every position, as verification needs them."""
        return self._graph(self.decoder, "decode", decode=self._decodes_apart, every_position=True)

    def _verifier(self, depth: float) -> Placement:
        """The model, or the share `depth` of its layers, with logits at every position."""
        key = f"verifier {depth}"
        if key not in self._placed:
            self._placed[key] = self._place(_shallow(self._checked, depth), self.decoder)
        return self._placed[key]

    @cached_property
    def tower(self) -> Network:
        """The graph of the model's tower, which tensor ranks share as they share the model."""
        assert self.model.tower is not None
        ranks = Parallelism(tensor=self.settings.parallel.tensor)
        # An encoder's layers are rewritten with the model's, a vision tower's are not.
        rewrites = self.settings.rewrites if self.model.tower_kind == "encoder" else ()
        return network(self.model.tower, self.precision, Build(self._build.fusions, parallel=ranks, rewrites=rewrites))

    @cached_property
    def _prefiller(self) -> Placement:
        """The model as it reads the prompt."""
        depth = self.settings.depth if self.model.task == "encode" else 1.0
        return self._place(_shallow(self.networks[0], depth), self.hardware)

    @cached_property
    def _stepper(self) -> Placement:
        """The model as it decodes a token at a time."""
        return self._place(_shallow(self.networks[1], self.settings.depth), self.decoder)

    def prefill(self, step: Step, tower: Step | None) -> tuple[Pass, ...]:
        """The passes of prefill: the tower's, if there is one, and the prompt's, whole or in chunks."""
        passes: list[Pass] = []
        if tower is not None and self.model.tower is not None:
            graph = self.tower
            placed, local = self._place(graph, self.hardware), self._local(tower, micro=False)
            passes.append(Pass(placed, local, 1.0, "tower", self._aside))
        bubbles, busy = self._bubbles(step, decode=False)
        if self.settings.padding != 1:
            step = step._replace(queries=np.ceil(step.queries * self.settings.padding))
        *chunks, last = self._chunks(step)
        for part, runs in chunks:
            local = self._local(part, split=True)
            passes += self._split(Pass(self._headless, local, bubbles * runs, busy=busy), decode=False)
        local = self._local(last[0], split=True)
        passes += self._split(Pass(self._prefiller, local, bubbles * last[1], busy=busy), decode=False)
        if self.settings.decode_hardware is not None:
            passes.append(Pass(self._transfer, self._local(step, micro=False), 1.0, "transfer", self._aside))
        speculation, cascade = self.settings.speculation, self.settings.cascade
        whole = self._local(step, micro=False)
        if speculation and speculation.draft and any(group.layer.mixer for group in speculation.draft.groups):
            # A draft that attends needs the prompt in its own cache; nobody asks for its logits there.
            placed = self._second(speculation.draft, self.decoder, decode=False, head=False)
            passes.append(Pass(placed, whole, 1.0, "draft", self._aside))
        if cascade is None:
            return tuple(passes)
        first = Pass(self._second(cascade.model, self.hardware, decode=False), whole, busy=self._aside)
        return self._cascaded(tuple(passes), first)

    @cached_property
    def _headless(self) -> Placement:
        """Prefill of a chunk that more follow: nobody asks for its logits."""
        return self._place(_without(self.networks[0], HEAD), self.hardware)

    def _cascaded(self, passes: tuple[Pass, ...], first: Pass) -> tuple[Pass, ...]:
        """A pass of the smaller model for all requests, and the passes of the model for those that it leaves."""
        assert self.settings.cascade is not None
        left = 1 - self.settings.cascade.answered
        return first._replace(label="cascade"), *(run._replace(repeat=run.repeat * left) for run in passes)

    @cached_property
    def _transfer(self) -> Placement:
        """Sending a prompt's cache and states to the hardware that decodes, over the network."""
        graph = self.networks[0]
        kept = [pair for role in (Role.KV, Role.STATE) for pair in stored_tensors(graph.sections, role)]
        sent = total(tensor.stored_elements * (count * tensor.format.bytes) for tensor, count in kept)
        parallel = self.settings.parallel.on(self.hardware)
        send = Op("kv_transfer", Kind.COLLECTIVE, (), (), link=Link(sent, 1, 2, parallel.devices + 1))
        moving = replace(graph, sections=(Section("transfer", 1, (send,)),))
        return place(moving, self.hardware, Nodes(parallel.devices_per_node))

    def _chunks(self, step: Step) -> list[tuple[Step, Any]]:
        """The prompt in chunks: all whole ones as the one in their middle, then the rest.

        The cost of a chunk grows linearly with what is cached before it, so that the middle one stands for all.
        """
        size = self.settings.chunk
        if size is None:
            return [(step, 1.0)]
        if np.max(step.queries) <= size:
            return [(step, 1.0)]
        whole = np.floor((step.queries - 1) / size)
        middle = np.maximum(step.cached + (whole - 1) / 2 * size, step.cached)
        full = step._replace(queries=np.minimum(size, step.queries), cached=middle)
        last = step._replace(queries=step.queries - whole * size, cached=step.cached + whole * size, encoded=0)
        return [(full, whole), (last, 1.0)]

    def decode(self, step: Step) -> tuple[Pass, ...]:
        """The passes of one decode iteration: drafts, if any, and the step or the verification."""
        step = step._replace(batch=step.batch * self.settings.beams)
        if self.cascade is None:
            return self._iteration(step)
        # An iteration of the model yields several tokens where it speculates, one of the smaller model a single one.
        first = Pass(self.cascade, self._local(step, micro=False), self.tokens_per_iteration, busy=self._aside)
        return self._cascaded(self._iteration(step), first)

    def _iteration(self, step: Step) -> tuple[Pass, ...]:
        speculation, local = self.settings.speculation, self._local(step)
        repeat, busy = self._bubbles(step, decode=True)
        if speculation is None:
            return self._split(Pass(self._stepper, local, repeat, busy=busy))
        drafted = self._local(step, micro=False) if self.draft else local
        middle = drafted._replace(queries=speculation.draft_width, cached=drafted.cached + (speculation.length - 1) / 2)
        passes: list[Pass] = []
        if self.draft is not None:
            passes.append(Pass(self.draft, middle, float(speculation.drafts), "draft", self._aside))
        elif speculation.draft_depth:
            shallow = self._verifier(speculation.draft_depth)
            passes += self._split(Pass(shallow, middle, repeat * speculation.drafts, "draft", busy))
        verifier, several = self._verifier(self.settings.depth), local._replace(queries=speculation.verified + 1)
        verify = Pass(verifier, several, repeat, "verify", busy)
        return (*passes, *self._split(verify))

    def _split(self, run: Pass, *, decode: bool = True) -> tuple[Pass, ...]:
        """A pass shared with the host, one after the other: what is not shared, and the shares of what is."""
        host = self.settings.host
        if host is None or (host.part is Part.ATTENTION and not decode):
            return (run,)
        label, graph = f"{run.label} host".strip(), run.placement.network
        passes: list[Pass] = []
        if host.part is not Part.ALL:
            rest = self._place(_filtered(graph, host.part, False), run.placement.hardware)
            passes.append(run._replace(placement=rest))
            graph = _filtered(graph, host.part, True)
        if host.work < 1:
            own = self._place(graph, run.placement.hardware)
            passes.append(run._replace(placement=own, repeat=run.repeat * (1 - host.work)))
        if host.work > 0:
            passes.append(Pass(place(graph, host.hardware), run.step, run.repeat * host.work, label, run.busy))
        return tuple(passes)

    @property
    def tokens_per_iteration(self) -> float:
        """Tokens that one decode iteration yields for each sequence."""
        speculation = self.settings.speculation
        return speculation.accepted if speculation else 1.0

    def kept_step(self, step: Step) -> Step:
        """The step after which the cache is measured, on one rank: sequences as long as they are allocated."""
        settings = self.settings
        tokens = step.cached + step.queries
        if settings.kv_reserved is not None:
            tokens = np.maximum(tokens, settings.kv_reserved)
        if settings.kv_block > 1:
            tokens = np.ceil(tokens / settings.kv_block) * settings.kv_block
        local = self._local(step._replace(batch=step.batch * settings.beams), micro=False)
        return local._replace(queries=1, cached=tokens - 1)

    def shared_steps(self, prompt: Step, last: Step) -> tuple[Step, ...]:
        """Steps after which the cache is as large as what sharing spares: of the prefix, and of the prompt by beams."""
        if not self.settings.shared_prefix:
            return ()
        answers = last.batch / self.settings.beams
        prefix = last._replace(batch=last.batch - 1, queries=0, cached=prompt.cached)
        if self.settings.beams == 1:
            return (prefix,)
        copies = last.batch - answers
        whole = last._replace(batch=copies, queries=0, cached=prompt.cached + prompt.queries)
        return prefix._replace(batch=answers - 1), whole

    def _local(self, step: Step, *, micro: bool = True, split: bool = False) -> Step:
        """The step of one rank: its share of the batch and, where the tokens are `split` as in prefill, of those."""
        parallel = self.settings.parallel
        turns = self._turns("prefill" if split else "decode")
        cuts = parallel.data * (micro_batches(parallel, step.batch) * turns if micro else 1)
        batch = step.batch if np.all(cuts == 1) else np.maximum(np.ceil(step.batch / cuts), 1)
        ranks = parallel.sequence if split else 1
        return step._replace(batch=batch, queries=step.queries if ranks == 1 else step.queries / ranks)

    def _bubbles(self, step: Step, *, decode: bool) -> tuple[Any, Any]:
        """Passes of the whole pipeline that a phase takes, and the share of them in which a stage has work.

        One pass is all stages in a row for one micro-batch. With m micro-batches and p stages prefill takes
        (m + p - 1) / p of them, bubbles at both ends included. Decode goes round: a step takes m / p once there are
        enough micro-batches to fill the pipeline.
        """
        parallel = self.settings.parallel
        stages, batches = parallel.pipeline, micro_batches(parallel, step.batch)
        passes = np.maximum(batches, stages) if decode else batches + stages - 1
        return self._turns("decode" if decode else "prefill") * passes / stages, batches / passes

    @property
    def _aside(self) -> float:
        """The share of a pipeline that is busy in a pass which runs on a single stage."""
        return 1 / self.settings.parallel.pipeline

    def _turns(self, phase: str) -> int:
        """The batches that take turns on a device."""
        return TURNS if phase in self.settings.overlapped else 1
