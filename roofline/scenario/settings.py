"""The settings of a scenario besides model, hardware and workload: what techniques and options change."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from roofline.core.checked import Checked, Count, Fraction, Positive
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.graph.offload import RESIDENT, Offload
from roofline.graph.parallel import SINGLE, Parallelism
from roofline.graph.rewrite import Rewrite
from roofline.scenario.parts import Part
from roofline.scenario.speculation import Speculation
from roofline.specs.engine import PHASES
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.reserve import MEMORY_READINGS, check_memory


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

    `chunk`: tokens per pass of prefill, of all sequences together (None: all). `decode_hardware`: the hardware of
    decode where phases are disaggregated; the KV cache is transferred to it. `depth`: fraction of the layers that a
    decoded token (or a sequence of an encoder) runs through. `beams`: sequences decoded per prompt. `useful`: useful
    tokens per generated token: below 1 with padding in a static batch, above 1 where beams are parts of one answer.
    `padding`: prompt tokens computed per prompt token. KV memory is allocated in blocks of `kv_block` tokens, with at
    least `kv_reserved` tokens per sequence; with `shared_prefix` the prefix is stored once for all sequences and the
    prompt once for all its beams. `two_batch_overlap`: the phases in which one micro-batch computes during the
    all-to-all of another.
    `memory`: what the engine reserves, or the "static" reading: one pass over all prompts, and the whole device.
    `utilization`: the fraction of device memory that the engine may use, by default its profile's. Under load at most
    `sequences` run on a data-parallel rank, by default the engine's, and requests have at most `longest` tokens.
    `stages`:
    fractions of the layers in order, each with the share of the tokens that they process; () for all. `propagate_keys`:
    layers that a decoded token skips (`depth`) still compute its keys and values. `fetch`: the prefix's KV cache is
    loaded over a network.
    """

    parallel: Parallelism = SINGLE
    offload: Offload = RESIDENT
    host: Host | None = None
    speculation: Speculation | None = None
    cascade: Cascade | None = None
    chunk: Count | None = None
    decode_hardware: Hardware | None = None
    depth: Annotated[float, Meta(gt=0, le=1)] = 1.0
    beams: Count = 1
    useful: Any = 1.0
    padding: Positive = 1.0
    kv_block: Count = 1
    kv_reserved: Any = None
    shared_prefix: bool = False
    expert_skew: float = 0.0
    expert_capacity: Positive = 1.0
    rewrites: tuple[Rewrite, ...] = ()
    two_batch_overlap: frozenset[str] = frozenset()
    memory: str = MEMORY_READINGS[0]
    utilization: float | None = None
    sequences: int | None = None
    longest: int | None = None
    stages: tuple[tuple[float, float], ...] = ()
    propagate_keys: bool = False
    fetch: Fetch | None = None

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        check_memory(self.memory)
        if not _within(self.useful, 0.0) or np.any(np.asarray(self.useful) == 0):
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
        if self.utilization is not None and not 0 < self.utilization <= 1:
            raise RooflineError(f"--gpu-memory-utilization must be above 0 and at most 1, got {self.utilization}")
        for option, count in (("--max-num-seqs", self.sequences), ("--max-model-len", self.longest)):
            if count is not None and not (type(count) is int and count >= 1):
                raise RooflineError(f"{option} must be an integer of at least 1, got {count}")
        if not 0 <= self.expert_skew <= 10:
            raise RooflineError(f"--expert-skew must be between 0 and 10, got {self.expert_skew}")
        if self.stages and any((self.chunk, self.host, self.speculation, self.cascade, self.depth != 1)):
            raise RooflineError(
                "layers with fewer tokens than others are simulated for whole passes of one model alone"
            )

    @property
    def kept_tokens(self) -> float:
        """Mean share of the tokens that layers process and keep."""
        return sum(layers * share for layers, share in self.stages) if self.stages else 1.0


def _within(values: Any, least: float) -> bool:
    """Whether a number, or every number of an array, is finite and at least `least`."""
    array = np.asarray(values)
    return array.dtype.kind in "iuf" and bool(np.all(np.isfinite(array) & (array >= least)))


PLAIN_SETTINGS = Settings()
