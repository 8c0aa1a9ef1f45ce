"""The schedule: the forward passes of prefill and of a decode iteration.

A plain scenario runs one pass per phase. An encoder adds a pass before prefill, chunked prefill several, speculative
decoding those of the draft; pipelines run micro-batches, and disaggregated phases run on different hardware. Each is a
list of passes: a network on hardware, its step, and how often it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

from msgspec.structs import replace

from roofline.bound.memory import stored_tensors
from roofline.bound.roof import Placement, place
from roofline.core import numeric as np
from roofline.core.errors import RooflineError
from roofline.graph.extents import Step
from roofline.graph.network import EMBEDDING, HEAD, OVERLAP_BATCHES, TRANSFERS, Build, Network, network
from roofline.graph.op import Kind, Link, Op, Section
from roofline.graph.parallel import SINGLE, Nodes, Parallelism, auxiliary_parallelism, micro_batches
from roofline.graph.size import total
from roofline.graph.tensor import Role
from roofline.scenario.chunks import chunks
from roofline.scenario.parts import Part, divided, filtered, truncated, with_network, without
from roofline.scenario.passes import Pass
from roofline.scenario.settings import Settings
from roofline.specs.checkpoint import draft_precision, tower_precision
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import Precision


class Schedule:
    """The passes of a model with one precision and one set of settings."""

    def __init__(
        self, model: Model, hardware: Hardware, precision: Precision, build: Build, settings: Settings
    ) -> None:
        self.model, self.hardware, self.precision, self.settings = model, hardware, precision, settings
        self._build = build
        self._verifiers: dict[float, Placement] = {}

    @classmethod
    def of(cls, model: Model, hardware: Hardware, precision: Precision, build: Build, settings: Settings) -> Schedule:
        """The schedule, with the graphs of others that differ in batch and lengths alone."""
        try:
            return _known(model, hardware, precision, build, settings)
        except TypeError:  # settings with arrays of a grid have no hash
            return cls(model, hardware, precision, build, settings)

    def _graph(
        self,
        hardware: Hardware,
        phase: str,
        *,
        decode: bool,
        every_position: bool = False,
        parallel: Parallelism | None = None,
    ) -> Network:
        settings = self.settings
        build = replace(
            self._build,
            parallel=parallel or settings.parallel.on(hardware),
            decode=decode,
            skew=settings.expert_skew,
            uneven=settings.uneven_experts,
            capacity=settings.expert_capacity,
            rewrites=settings.rewrites,
            every_position=every_position or self._build.every_position,
            bridge=hardware.bridge if settings.parallel.pipeline > 1 else None,
            two_batch_overlap=phase in settings.two_batch_overlap,
            ping_pong=settings.ping_pong if phase == "decode" else 0,
        )
        return network(self.model, self.precision, build)

    def _place_auxiliary(
        self, model: Model, hardware: Hardware, *, decode: bool, every_position: bool = False, head: bool = True
    ) -> Placement:
        """A draft or cascade model on the same devices; techniques and offloading do not apply to it."""
        parallel = auxiliary_parallelism(self.settings.parallel.on(hardware), model)
        speculation = self.settings.speculation
        build = replace(self._build, parallel=parallel, decode=decode and model.uses_mla, every_position=every_position)
        beside = speculation is not None and model is speculation.draft and speculation.shared_ends
        graph = network(model, draft_precision(self.precision) if beside else self.precision, build)
        return place(graph if head else without(graph, HEAD), hardware, parallel.node_layout)

    def _place(self, graph: Network, hardware: Hardware) -> Placement:
        return place(graph, hardware, self.settings.parallel.on(hardware).node_layout, self.settings.offload)

    @property
    def decoder(self) -> Hardware:
        return self.settings.decode_hardware or self.hardware

    @cached_property
    def networks(self) -> tuple[Network, Network]:
        """The graphs of prefill and decode, the same object unless decode computes differently."""
        prefill, own = self._graph(self.hardware, "prefill", decode=False), self._own_decode_graph
        if not (own or self.settings.two_batch_overlap or self.settings.ping_pong) and self.decoder is self.hardware:
            return prefill, prefill
        return prefill, self._graph(self.decoder, "decode", decode=own)

    @property
    def _own_decode_graph(self) -> bool:
        """Whether decode has a graph of its own: absorbed MLA, selected pages, or a KV cache sharded over ranks."""
        paged = any(attention.page is not None for attention in self.model.attentions)
        return self.model.uses_mla or paged or self.settings.parallel.cache_parts(decode=True)[1] > 1

    @cached_property
    def draft(self) -> Placement | None:
        """The draft model on the hardware of decode."""
        speculation = self.settings.speculation
        if speculation is None or speculation.draft is None:
            return None
        return self._place_auxiliary(
            speculation.draft, self.decoder, decode=True, every_position=speculation.draft_width > 1
        )

    @cached_property
    def _extending(self) -> Placement:
        """The first draft pass of an iteration, which reads the hidden states of the tokens that were verified."""
        speculation = self.settings.speculation
        assert speculation is not None
        assert speculation.draft is not None
        return self._place_auxiliary(speculation.draft, self.decoder, decode=True)

    @cached_property
    def cascade(self) -> Placement | None:
        """The smaller model of a cascade on the hardware of decode."""
        cascade = self.settings.cascade
        return None if cascade is None else self._place_auxiliary(cascade.model, self.decoder, decode=True)

    @property
    def auxiliary_networks(self) -> tuple[Network, ...]:
        """The graphs of draft and cascade models, without the ends that they share with the main model."""
        graphs = [placed.network for placed in (self.draft, self.cascade) if placed is not None]
        if self.settings.speculation is not None and graphs:
            graphs[0] = without(graphs[0], *self.settings.speculation.shared_ends)
        return tuple(graphs)

    @cached_property
    def _verifier_graph(self) -> Network:
        return self._graph(self.decoder, "decode", decode=self._own_decode_graph, every_position=True)

    def _verifier(self, depth: float) -> Placement:
        """The fraction `depth` of the model's layers, with logits at every position for verification."""
        if depth not in self._verifiers:
            self._verifiers[depth] = self._place(truncated(self._verifier_graph, depth), self.decoder)
        return self._verifiers[depth]

    @cached_property
    def tower(self) -> Network:
        """The graph of the model's encoder, tensor-parallel as the model is.

        A vision encoder that the ranks do not divide runs whole on each, as in engines (Kimi K3: 12 heads on 8 GPUs),
        and so does one whose images they share.
        """
        tower = self.model.tower
        assert tower is not None
        # Formats and rewrites apply to the encoder of an encoder-decoder, not to a vision encoder.
        whole = self.model.tower_kind == "encoder"
        precision = self.precision if whole else tower_precision(tower, self.precision)
        ranks, rewrites = Parallelism(tensor=self.settings.parallel.tensor), self.settings.rewrites if whole else ()
        if not whole and self.settings.towers == "data":
            ranks = Parallelism()
        build = Build(self._build.fusions, parallel=ranks, rewrites=rewrites)
        try:
            return network(tower, precision, build)
        except RooflineError:
            if whole:
                raise
            return network(tower, precision, replace(build, parallel=Parallelism()))

    @cached_property
    def _prefill_placement(self) -> Placement:
        depth = self.settings.depth if self.model.task == "encode" else 1.0
        return self._place(truncated(self.networks[0], depth), self.hardware)

    @cached_property
    def _chunk_placement(self) -> Placement:
        """A pass in which no prompt ends, so that it needs no logits."""
        return self._place(without(self.networks[0], HEAD), self.hardware)

    @cached_property
    def _decode_placement(self) -> Placement:
        return self._place(truncated(self.networks[1], self.settings.depth), self.decoder)

    def prefill(self, step: Step, tower: Step | None) -> tuple[Pass, ...]:
        """The passes of prefill: encoder, chunks of the prompt, KV cache transfer, and the draft's own prefill."""
        return self._launched(self._prefill(step, tower))

    def _launched(self, passes: tuple[Pass, ...]) -> tuple[Pass, ...]:
        return tuple(run._replace(eager=True) for run in passes) if self.settings.eager else passes

    def _prefill(self, step: Step, tower: Step | None) -> tuple[Pass, ...]:
        passes: list[Pass] = []
        if tower is not None and self.model.tower is not None:
            runs: Any = 1.0
            if isinstance(tower.batch, np.ndarray):  # points of a grid without images have no pass
                runs, tower = (tower.batch > 0) * 1.0, tower._replace(batch=np.maximum(tower.batch, 1))
            if self.settings.towers == "data":  # vLLM's run_dp_sharded_vision_model
                tower = tower._replace(batch=np.ceil(tower.batch / self.settings.parallel.tensor))
            placed, local = self._place(self.tower, self.hardware), self._local(tower, micro=False)
            passes.append(Pass(placed, local, runs, "encoder", self._single_stage))
        if self.settings.padding != 1:
            step = step._replace(queries=np.ceil(step.queries * self.settings.padding))
        for run in self._prompt_passes(step):
            passes += self._with_host(run, decode=False)
        if self.settings.decode_hardware is not None:
            sent = self._transfer(self.hardware, 1.0)
            passes.append(Pass(sent, self._local(step, micro=False), 1.0, "transfer", self._single_stage))
        if (fetch := self.settings.fetch) is not None:
            loaded = self._transfer(with_network(self.hardware, fetch.bandwidth), 1 / fetch.ratio)
            local = self._local(step._replace(queries=fetch.tokens, cached=0), micro=False)
            passes.append(Pass(loaded, local, 1.0, "fetch", self._single_stage, host="none"))
        speculation, cascade = self.settings.speculation, self.settings.cascade
        whole = self._local(step, micro=False)
        if speculation and speculation.draft and any(group.layer.mixer for group in speculation.draft.groups):
            # A draft with attention or a state has a prefill of its own, without logits.
            placed = self._place_auxiliary(speculation.draft, self.decoder, decode=False, head=False)
            passes.append(Pass(placed, whole, 1.0, "draft", self._single_stage))
        if cascade is None:
            return tuple(passes)
        placed = self._place_auxiliary(cascade.model, self.hardware, decode=False)
        return self._cascaded(tuple(passes), Pass(placed, whole, busy=self._single_stage))

    def _cascaded(self, passes: tuple[Pass, ...], first: Pass) -> tuple[Pass, ...]:
        """The smaller model's pass for all requests, and the model's passes for the remaining ones."""
        assert self.settings.cascade is not None
        left = 1 - self.settings.cascade.answered
        return first._replace(label="cascade"), *(run._replace(repeat=run.repeat * left) for run in passes)

    def _transfer(self, hardware: Hardware, size: float) -> Placement:
        """The transfer of a prompt's KV cache and states over the network of `hardware`, `size` times as large."""
        graph = self.networks[0]
        kept = [pair for role in (Role.KV, Role.STATE) for pair in stored_tensors(graph.sections, role)]
        sent = total(tensor.stored_elements * (count * tensor.format.bytes * size) for tensor, count in kept)
        parallel = self.settings.parallel.on(self.hardware)
        send = Op("kv_transfer", Kind.COLLECTIVE, (), (), link=Link(sent, 1, 2, parallel.devices + 1))
        moving = replace(graph, sections=(Section("transfer", 1, (send,)),))
        return place(moving, hardware, Nodes(parallel.devices_per_node))

    def _prompt_passes(self, step: Step) -> Iterator[Pass]:
        """The passes over the prompts: one, one for each micro-batch, or one for each chunk.

        N chunks follow each other through p pipeline stages in the time of (N + p - 1) / p passes. Every pass in which
        a prompt ends computes logits, as the last one does.
        """
        budget = self.settings.pass_tokens
        if budget is None:
            bubbles, busy = self._bubbles(step, decode=False)
            whole = Pass(self._prefill_placement, self._local(step, split=True), bubbles, busy=busy)
            yield from self._staged(whole, self.networks[0])
            return
        parallel, overlap = self.settings.parallel, self._overlap_batches("prefill")
        ranked = step._replace(batch=np.ceil(step.batch / parallel.data))
        stretches = chunks(ranked, budget, self.networks[0].saturation_points)
        number = sum(runs for _, runs in stretches)
        filled = number + parallel.pipeline - 1
        # The prompts that end before the last pass, as a share of the sequences in these passes.
        before = sum(part.batch * runs for part, runs in stretches[:-1])
        ends = np.minimum((ranked.batch - stretches[-1][0].batch) / np.maximum(before, 1), 1)
        for index, (part, runs) in enumerate(stretches, 1):
            repeat, busy = overlap * filled / (number * parallel.pipeline) * runs, number / filled
            local = divided(part, overlap)
            local = local._replace(queries=local.queries / parallel.sequence)
            share = 1.0 if index == len(stretches) else ends
            if np.any(share < 1):
                yield Pass(self._chunk_placement, local, repeat * (1 - share), busy=busy)
            if np.any(share > 0):
                yield Pass(self._prefill_placement, local, repeat * share, busy=busy)

    def decode(self, step: Step) -> tuple[Pass, ...]:
        """The passes of one decode iteration: the decode step, or draft passes and verification."""
        return self._launched(self._decode(step))

    def _decode(self, step: Step) -> tuple[Pass, ...]:
        step = step._replace(batch=step.batch * self.settings.beams)
        if self.cascade is None:
            return self._iteration(step)
        # The smaller model decodes one token per pass, the model several per iteration with speculative decoding.
        first = Pass(self.cascade, self._local(step, micro=False), self.tokens_per_iteration, busy=self._single_stage)
        return self._cascaded(self._iteration(step), first)

    def _iteration(self, step: Step) -> tuple[Pass, ...]:
        speculation, local = self.settings.speculation, self._local(step)
        repeat, busy = self._bubbles(step, decode=True)
        if speculation is None:
            run = Pass(self._decode_placement, local, repeat, busy=busy)
            parts = (part for cut in self._staged(run, self.networks[1]) for part in self._with_host(cut))
            return (*parts, *self._propagated(run))
        drafted = self._local(step, micro=False) if self.draft else local
        middle = drafted._replace(queries=speculation.draft_width, cached=drafted.cached + (speculation.length - 1) / 2)
        passes: list[Pass] = []
        if self.draft is not None:
            drafts = Pass(self.draft, middle, float(speculation.drafts), "draft", self._single_stage, host="draft")
            if speculation.extends:
                first = drafts.step._replace(queries=speculation.length + 1, cached=drafted.cached)
                passes.append(drafts._replace(placement=self._extending, step=first, repeat=1.0))
                drafts = drafts._replace(repeat=drafts.repeat - 1)
            if drafts.repeat:
                passes.append(drafts)
        elif speculation.draft_depth:
            self_draft = self._verifier(speculation.draft_depth)
            drafts = Pass(self_draft, middle, repeat * speculation.drafts, "draft", busy, host="draft")
            passes += self._with_host(drafts)
        verifier, several = self._verifier(self.settings.depth), local._replace(queries=speculation.verified + 1)
        verification = Pass(verifier, several, repeat, "verify", busy, slowdown=speculation.slowdown)
        return (*passes, *self._with_host(verification))

    def _staged(self, run: Pass, graph: Network) -> tuple[Pass, ...]:
        """A pass in parts, whose layers process a share of the tokens each (`Settings.stages`)."""
        parts = []
        for index, (layers, share) in enumerate(self.settings.stages):
            other_ends = ([EMBEDDING] if index else []) + ([HEAD] if index < len(self.settings.stages) - 1 else [])
            placed = self._place(without(truncated(graph, layers), *other_ends), run.placement.hardware)
            queries = np.maximum(np.ceil(run.step.queries * share), 1.0)
            step = run.step._replace(queries=queries, cached=run.step.cached * share)
            parts.append(run._replace(placement=placed, step=step, host="none" if index else run.host))
        return tuple(parts) or (run,)

    def _propagated(self, run: Pass) -> tuple[Pass, ...]:
        """The projections of keys and values of the layers that a decoded token skips."""
        if not self.settings.propagate_keys or self.settings.depth == 1:
            return ()
        skipped = filtered(truncated(self.networks[1], 1 - self.settings.depth), Part.KEYS, inside=True)
        if not skipped.sections:
            return ()
        return (run._replace(placement=self._place(skipped, self.decoder), label="skipped", host="none"),)

    def _with_host(self, run: Pass, *, decode: bool = True) -> tuple[Pass, ...]:
        """A pass divided between device and host: what only the device runs, then the fraction that each runs."""
        if self.settings.mixed:
            return self._on_stages(run, decode)
        host = self.settings.host
        if host is None or (host.part is Part.ATTENTION and not decode):
            return (run._replace(part=0),)
        label, graph = f"{run.label} host".strip(), run.placement.network
        passes: list[Pass] = []
        if host.part is not Part.ALL:
            rest = self._place(filtered(graph, host.part, inside=False), run.placement.hardware)
            passes.append(run._replace(placement=rest))
            graph = replace(filtered(graph, host.part, inside=True), compute=host.compute or graph.compute)
        if host.work < 1:
            own = self._place(graph, run.placement.hardware)
            passes.append(run._replace(placement=own, repeat=run.repeat * (1 - host.work)))
        if host.work > 0:
            placed = place(without(graph, *TRANSFERS), host.hardware)
            passes.append(run._replace(placement=placed, repeat=run.repeat * host.work, label=label))
        return tuple(each._replace(part=part) for part, each in enumerate(passes))

    def _on_stages(self, run: Pass, decode: bool) -> tuple[Pass, ...]:
        """A pass divided among devices of several kinds; tensor-parallel ones send to each other over the network."""
        passes, number, whole = [], len(self.settings.mixed), run.placement.network
        for part, stage in enumerate(self.settings.mixed):
            parallel, graph = SINGLE, whole
            if stage.tensor:
                parallel = Parallelism(tensor=stage.ranks, pipeline=number, nodes=number)
                phase, every = "decode" if decode else "prefill", run.label.startswith("verify")
                own = decode and self._own_decode_graph
                graph = self._graph(stage.hardware, phase, decode=own, every_position=every, parallel=parallel)
                if decode:
                    graph = truncated(graph, self.settings.depth)
                if all(section.name != HEAD for section in whole.sections):
                    graph = without(graph, HEAD)
            placed = place(graph, stage.hardware, parallel.node_layout, self.settings.offload)
            label = f"{run.label} stage {part + 1}".strip() if part else run.label
            repeat = run.repeat * stage.share
            passes.append(run._replace(placement=placed, repeat=repeat, label=label, part=part, ranks=stage.ranks))
        return tuple(passes)

    @property
    def tokens_per_iteration(self) -> float:
        speculation = self.settings.speculation
        return speculation.accepted if speculation else 1.0

    def allocated_step(self, step: Step, block: int = 1) -> Step:
        """The last step on one rank with sequences of their allocated length, in blocks of at least `block` tokens."""
        settings = self.settings
        tokens = step.cached + step.queries
        if settings.kv_reserved is not None:
            tokens = np.maximum(tokens, settings.kv_reserved)
        tokens = tokens * settings.kept_tokens
        if (block := max(settings.kv_block, block)) > 1:
            tokens = np.ceil(tokens / block) * block
        local = self._local(step._replace(batch=step.batch * settings.beams), micro=False)
        return local._replace(queries=1, cached=tokens - 1)

    def shared_steps(self, prompt: Step, last: Step) -> tuple[Step, ...]:
        """Steps whose KV cache is what sharing saves: copies of the prefix, and of the prompt with beams."""
        if not self.settings.shared_prefix:
            return ()
        prefix = last._replace(batch=last.batch - 1, queries=0, cached=prompt.cached)
        if self.settings.beams == 1:
            return (prefix,)
        prompts = last.batch / self.settings.beams
        whole = last._replace(batch=last.batch - prompts, queries=0, cached=prompt.cached + prompt.queries)
        return prefix._replace(batch=prompts - 1), whole

    def _local(self, step: Step, *, micro: bool = True, split: bool = False) -> Step:
        """The step of one rank: its part of the batch and, where sequence ranks `split` them in prefill, the tokens."""
        parallel = self.settings.parallel
        overlap = self._overlap_batches("prefill" if split else "decode")
        cuts = parallel.data * (micro_batches(parallel, step.batch) * overlap if micro else 1)
        batch = step.batch if np.all(cuts == 1) else np.maximum(np.ceil(step.batch / cuts), 1)
        ranks = parallel.sequence if split else 1
        return step._replace(batch=batch, queries=step.queries if ranks == 1 else step.queries / ranks)

    def _bubbles(self, step: Step, *, decode: bool) -> tuple[Any, Any]:
        """Passes through the whole pipeline per phase, and the fraction of them in which a stage has work.

        One pass is one micro-batch through all p stages. With m micro-batches prefill takes (m + p - 1) / p passes,
        bubbles included, and a decode step max(m, p) / p.
        """
        parallel = self.settings.parallel
        stages, batches = parallel.pipeline, micro_batches(parallel, step.batch)
        passes = np.maximum(batches, stages) if decode else batches + stages - 1
        return self._overlap_batches("decode" if decode else "prefill") * passes / stages, batches / passes

    @property
    def _single_stage(self) -> float:
        """The busy fraction of a pass that runs on a single pipeline stage."""
        return 1 / self.settings.parallel.pipeline

    def _overlap_batches(self, phase: str) -> int:
        apart = self.settings.ping_pong if phase == "decode" else 0
        return apart or (OVERLAP_BATCHES if phase in self.settings.two_batch_overlap else 1)


_known = lru_cache(maxsize=256)(Schedule)
