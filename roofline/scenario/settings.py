"""The settings of a scenario besides model, hardware and workload: what techniques and options change."""

from __future__ import annotations

import math
import sys
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from roofline.core.checked import Checked, Count, Fraction, NotNegative, Positive, Share
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.graph.offload import RESIDENT, Offload
from roofline.graph.parallel import SINGLE, Parallelism
from roofline.graph.rewrite import Rewrite
from roofline.scenario.parts import Part
from roofline.scenario.speculation import Speculation
from roofline.specs.engine import PHASES, Engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.reserve import CLIP, MEMORY_READINGS, Reserve, Use, check_memory


class Host(Checked, frozen=True):
    """A CPU that computes the fraction `work` of one `part` of every pass, in turn with the accelerator.

    Its memory holds the fraction `memory` of the weights and `kv` of the KV cache (None: the same). `compute` forces an
    arithmetic on its GEMMs (None: the operands determine it).
    """

    hardware: Hardware
    work: Fraction
    memory: Fraction
    kv: Fraction | None = None
    part: Part = Part.ALL
    compute: str | None = None


class Stage(Checked, frozen=True):
    """Equal `devices` that hold the fraction `share` of the layers beside devices of other kinds.

    They divide each of these layers (`tensor`), or the layers, and take turns.
    """

    hardware: Hardware
    share: Fraction
    devices: Count = 1
    tensor: bool = False

    @property
    def held(self) -> float:
        """The fraction of the weights and of the KV cache in the memory of each device."""
        return self.share / self.devices

    @property
    def ranks(self) -> int:
        """The devices that compute a layer together."""
        return self.devices if self.tensor else 1


class Cascade(Checked, frozen=True):
    """A smaller `model` that answers first, and the fraction of requests that it `answered`; the model runs the rest.

    Times are means over requests; the remaining requests are gathered into full batches.
    """

    model: Model
    answered: Fraction


class Fetch(Checked, frozen=True):
    """A KV cache that is loaded instead of computed: its `tokens` a sequence, `ratio` times smaller, at `bandwidth`."""

    tokens: Any
    ratio: Positive
    bandwidth: Positive


class Settings(Checked, frozen=True):
    """The settings of a scenario besides model, hardware and workload.

    Where the model runs:

    * `parallel`, `offload`: degrees of parallelism, and what is streamed from CPU memory.
    * `host`: a CPU that computes a part of every pass; `mixed`: devices of several kinds, in the place of the
      scenario's, with layers of their own.
    * `decode_hardware`: the hardware of decode where phases are disaggregated; the KV cache is transferred to it.
    * `towers`: tensor-parallel ranks share the weights of the vision encoder, or its images ("data").
    * `fetch`: the prefix's KV cache is loaded over a network.

    What is computed:

    * `speculation`, `cascade`: a draft, or a smaller model that answers first.
    * `depth`: fraction of the layers that a decoded token (or a sequence of an encoder) runs through; `propagate_keys`:
      the layers that it skips still compute its keys and values.
    * `stages`: fractions of the layers in order, each with the share of the tokens that they process; () for all.
    * `beams`: sequences decoded per prompt; `useful`: useful tokens per generated token, below 1 with padding in a
      static batch, above 1 where beams are parts of one answer; `padding`: prompt tokens computed per prompt token.
    * `expert_skew`, `uneven_experts`: how unevenly experts are chosen, as the exponent of rank^-skew, and as the
      deviation of the logarithm of their loads (`Pool`); `expert_capacity`: the capacity factor, by which the rows of
      experts are multiplied.
    * `rewrites`: rules that replace operators of the graph, as of adapters.
    * `two_batch_overlap`: the phases in which one micro-batch computes during the all-to-all of another; `ping_pong`:
      micro-batches of decode between devices of attention and of experts (`Parallelism.apart`).

    Memory and steps, all by default the engine's:

    * `memory`: what the engine reserves, or the "static" reading: one pass over all prompts, and the whole device;
      `utilization`: the fraction of device memory that the engine may use.
    * `kv_block`, `kv_reserved`: tokens in whose multiples KV memory is allocated, and those that each sequence has at
      least; `shared_prefix`: the prefix is stored once for all sequences and the prompt once for all its beams.
    * `sequences`: the most that run on a data-parallel rank; `longest`: the most tokens of a request; `step_tokens`:
      the most of a step; `chunk`: the most of a pass of prefill, of all sequences together (None: all).
    * `interval`: steps from one with prompts to the next under a load, while sequences decode; `piece`: the most tokens
      of one prompt in a step.
    * `eager`: the engine replays no CUDA graphs.
    """

    parallel: Parallelism = SINGLE
    offload: Offload = RESIDENT
    host: Host | None = None
    mixed: tuple[Stage, ...] = ()
    speculation: Speculation | None = None
    cascade: Cascade | None = None
    chunk: Count | None = None
    decode_hardware: Hardware | None = None
    depth: Share = 1.0
    beams: Count = 1
    useful: Any = 1.0
    padding: Positive = 1.0
    kv_block: Count = 1
    kv_reserved: Any = None
    shared_prefix: bool = False
    expert_skew: Annotated[float, Meta(ge=0, le=10)] = 0.0
    uneven_experts: NotNegative = 0.0
    expert_capacity: Positive = 1.0
    rewrites: tuple[Rewrite, ...] = ()
    two_batch_overlap: frozenset[str] = frozenset()
    ping_pong: int = 0
    memory: str = MEMORY_READINGS[0]
    utilization: Share | None = None
    sequences: Count | None = None
    longest: Count | None = None
    step_tokens: Count | None = None
    interval: Count | None = None
    piece: Count | None = None
    eager: bool = False
    stages: tuple[tuple[float, float], ...] = ()
    propagate_keys: bool = False
    towers: Literal["weights", "data"] = "weights"
    fetch: Fetch | None = None

    @property
    def prompt_steps(self) -> dict[str, int]:
        """How steps have prompts, where it is not the engine's own, by the options that say it."""
        given = {"prefill_schedule_interval": self.interval, "long_prefill_token_threshold": self.piece}
        return {name: value for name, value in given.items() if value is not None}

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        check_memory(self.memory)
        if not _within(self.useful, sys.float_info.min):
            raise RooflineError(f"useful of Settings must be numbers above 0, got {self.useful}")
        if self.kv_reserved is not None and not _within(self.kv_reserved, 0.0):
            raise RooflineError(f"kv_reserved of Settings must be numbers of at least 0, got {self.kv_reserved}")
        if unknown := self.two_batch_overlap - set(PHASES):
            raise UnknownNameError("phase", min(unknown), PHASES)
        layers = sum(part for part, _ in self.stages)
        if any(not 0 < part <= 1 or not 0 <= share <= 1 for part, share in self.stages) or layers > 1 + 1e-9:
            raise RooflineError(
                f"stages of Settings must be fractions of the layers and of the tokens, got {self.stages}"
            )
        if self.step_tokens and self.sequences and self.step_tokens < self.sequences:
            raise RooflineError(
                f"a step of at most {self.step_tokens} tokens has no room for {self.sequences} sequences, which decode"
                " at least one token each"
            )
        beside = self.host or self.decode_hardware
        if self.mixed and (beside or replace(self.parallel, data=1, nodes=None) != SINGLE):
            raise RooflineError(
                "devices of several kinds divide the layers: no other parallelism or hardware does so beside them"
            )
        if self.stages and any(
            (self.pass_tokens, self.host, self.mixed, self.speculation, self.cascade, self.depth != 1)
        ):
            raise RooflineError(
                "layers with fewer tokens than others are simulated for whole passes of one model alone"
            )

    def reserved(self, reserve: Reserve, model: Model | None = None) -> Reserve:
        """An engine's memory settings on a device for a model, with those that are given in their place."""
        parallel, seen = self.parallel, 0.0
        if model is not None and model.tower is not None and model.tower_kind == "vision":
            seen = model.tower.layers * model.tower.hidden**2 / CLIP
        ranks = parallel.data if parallel.data > 1 and (parallel.expert > 1 or parallel.nodes) else 1
        drafts = self.speculation is not None and self.speculation.draft is not None
        use = Use(parallel.tensor * ranks, ranks, drafts, seen)
        found = reserve.limited(self.utilization, self.step_tokens, self.sequences, use)
        return found.without_graphs() if self.eager else found

    def longest_of(self, model: Model) -> int | None:
        """The longest sequence of a model that the engine is set to run; None where nothing limits it."""
        return min((limit for limit in (self.longest, model.max_context) if limit), default=None)

    @property
    def pass_tokens(self) -> int | None:
        """The most tokens of a pass of prefill, of all sequences together; None where nothing asks for a limit."""
        return min((limit for limit in (self.chunk, self.step_tokens) if limit), default=None)

    @property
    def resident_kv(self) -> float:
        """The fraction of the KV cache on the devices: the rest is in CPU memory."""
        host = self.host
        kept = 1.0 if host is None else 1 - (host.memory if host.kv is None else host.kv)
        return kept * (1 - self.offload.kv) * (self.mixed[0].held if self.mixed else 1.0)

    @property
    def kept_tokens(self) -> float:
        """Mean share of the tokens that layers process and keep."""
        return sum(layers * share for layers, share in self.stages) if self.stages else 1.0


def _within(values: Any, least: float) -> bool:
    """Whether a number, or every number of an array, is finite and at least `least`."""
    if type(values) is float:
        return least <= values < math.inf
    array = np.asarray(values)
    return array.dtype.kind in "iuf" and bool(np.all(np.isfinite(array) & (array >= least)))


def gpu_layers(model: Model, cpu: Hardware, count: int) -> Host | None:
    """The host of a model with `count` layers on the GPU (llama.cpp's --n-gpu-layers); None where it has them all.

    The other layers are computed on the `cpu`, and their weights and KV cache stay in its memory. llama.cpp counts the
    output head as a further layer; here it is divided like the layers.
    """
    layers = model.layers
    if not count >= 0:
        raise RooflineError(f"the layers on the GPU must be at least 0, got {count}")
    share = max(layers - count, 0) / layers
    return Host(cpu, work=share, memory=share) if share else None


PLAIN_SETTINGS = Settings()


def placed_tables(offload: Offload, model: Model, hardware: Hardware, engine: Engine) -> Offload:
    """`offload` with the model's tables of n-grams where the engine puts them, unless it says where."""
    if offload.tables is not None or engine.memory.tables != "cpu" or hardware.kind in ("cpu", "soc"):
        return offload
    beside = any(link.scope == "host" for link in hardware.interconnects)
    return replace(offload, tables=1.0) if beside and model.engrams else offload
