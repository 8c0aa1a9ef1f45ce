"""What an engine reserves of a device's memory, and what a program can allocate of it.

    weights + KV cache + states + activations + runtime <= budget

The budget is the fraction `utilization` of the visible memory, or of what is left beside weights, activations and
runtime. A profile states its settings under `memory` (`Reserve`); without them a program may use all visible memory.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta, field
from msgspec.structs import replace

from roofline.core.checked import Checked
from roofline.core.errors import RooflineError, located, quote
from roofline.core.units import GIB
from roofline.specs.engine_versions import version_in
from roofline.specs.hardware import Hardware, unified_share
from roofline.specs.library import as_mapping
from roofline.specs.records import record
from roofline.specs.version import Version

NOMINAL_SHARES = {"NVIDIA": 0.99, "AMD": 1.0}
"""Fraction of n GiB that a runtime reports for a card of nominally n GB.

CUDA: 79.15 to 79.22 of 80, 47.54 of 48, 23.58 to 23.69 of 24 (`total_gpu_memory` in vLLM's profiling logs, vLLM pull
requests 10511, 10909, 12126 and 14447). ROCm: 288 GiB of an MI355X (SemiAnalysisAI/InferenceX, pull request 2522).
"""

ECC_SHARE = 15 / 16
"""Usable fraction of GDDR6 with in-band ECC (44.5 of an L40S's 48 GiB)."""

ECC_CARDS = frozenset({"a10", "a40", "l4", "l40", "l40s", "t4"})
"""GDDR6 cards with ECC on by default."""

SAMPLER_BYTES = 41.0
"""Bytes per logit while vLLM profiles sampling: logits, sorted logits, probabilities, their cumulative sums,
log-probabilities, noise and the scattered result (fp32), indices and their copy (int64), a mask.

vLLM pull request 10511: a peak of 1.26 GiB for 256 sequences of 128,256 logits; 0.15: 1.40 GiB for 256 of 151,936.
"""

MEMORY_READINGS = _, STATIC = ("engine", "static")
"""What `Analysis.memory` counts: what the engine reserves, or all prompts in one pass on the whole device."""


def check_memory(reading: str) -> None:
    """Raise RooflineError for an unknown reading of memory."""
    if reading not in MEMORY_READINGS:
        raise RooflineError(
            f"the reading of memory must be {' or '.join(MEMORY_READINGS)}, got {quote(reading)}",
            options=["memory_reading"],
        )


Count = Annotated[int, Meta(ge=1, le=10**9)]
Natural = Annotated[int, Meta(ge=0, le=10**9)]
Size = Annotated[float, Meta(ge=0, le=1024 * GIB)]


class LargeDevice(Checked, frozen=True):
    """Other `tokens` and `sequences` on devices of at least `memory` bytes, but for names that start like `except_`."""

    tokens: Count
    sequences: Count
    memory: Annotated[float, Meta(ge=0, le=1e6 * GIB)]
    except_: tuple[Annotated[str, Meta(min_length=1)], ...] = field(default=(), name="except")


class DeviceSize(Checked, frozen=True):
    """Devices of less than `below` GiB: the `tokens` of a pass, and the most sequences that CUDA graphs replay.

    The latter is for few devices that divide a layer, and for MANY or more.
    """

    below: Annotated[float, Meta(gt=0, le=1e6)]
    tokens: Count
    replayed: tuple[Count, Count]


MANY = 4
"""Tensor-parallel ranks from which SGLang captures CUDA graphs for more sequences (_handle_gpu_memory_settings in
python/sglang/srt/server_args.py)."""


class Outside(Checked, frozen=True):
    """MiB of a device outside of weights and KV cache, from which the fraction that these may use follows.

    `fixed`; for each `token` of a pass, `replayed` sequence, `device` that divides the model; of ranks of attention for
    each replayed sequence of each `rank`, half as much again beyond WIDE; `least` where a device has more than LARGE
    GiB; then `drafts`. Devices that are no GPU have the fraction `otherwise`. With a vision encoder the fraction is
    VISION of it, and less by a tenth for each time that the encoder is larger than CLIP's.
    """

    fixed: Annotated[float, Meta(ge=0, le=1e6)]
    token: Annotated[float, Meta(ge=0, le=1e6)]
    replayed: Annotated[float, Meta(ge=0, le=1e6)]
    device: Annotated[float, Meta(ge=0, le=1e6)]
    rank: Annotated[float, Meta(ge=0, le=1e6)]
    least: Annotated[float, Meta(ge=0, le=1e6)]
    drafts: Annotated[float, Meta(ge=0, le=1e6)]
    otherwise: Annotated[float, Meta(gt=0, le=1)]

    def utilization(self, visible: float, tokens: int, replayed: tuple[int, int], use: Use) -> float:
        """The fraction of `visible` bytes that weights and KV cache may take, of an engine's `use` of the device."""
        sequences = replayed[use.tensor >= MANY]
        size = self.fixed + self.token * tokens + self.replayed * sequences + self.device * use.tensor
        if use.ranks > 1:
            size += self.rank * sequences * use.ranks * (1.5 if sequences > WIDE else 1.0)
        if visible > LARGE * GIB:
            size = max(size, self.least)
        share = max(1 - (size + self.drafts * use.drafts) * 2**20 / visible, 0.01)
        seen = VISION * min(max(1.1 - use.vision / 10, 0.8), 1.05) if use.vision else 1.0
        return round(share * seen, 3)


WIDE, LARGE, VISION = 300, 60, 0.95
"""Sequences in graphs, GiB of a device, and the factor for a vision encoder at which SGLang's rule changes (the same
file, with adjust_mem_fraction_for_vlm)."""

CLIP = 24 * 1024**2
"""Layers times the squared width of CLIP's ViT-L."""


class Use(NamedTuple):
    """How a model uses a device.

    `tensor`: the devices that divide a layer; `ranks`: those of data-parallel attention; `drafts`: whether a network
    drafts; `vision`: how large an encoder is over CLIP's.
    """

    tensor: int = 1
    ranks: int = 1
    drafts: bool = False
    vision: float = 0.0


ALONE = Use()


class Reserve(Checked, frozen=True):
    """An engine's memory settings.

    What weights and KV cache may take:

    * `utilization`: the usable fraction `of` device memory, of what is free beside weights, activations and context, or
      of what is free at the start, beside the context alone; with `outside` and no fraction what this leaves of a
      device of `visible` bytes, whose `sizes` say the tokens of a pass.
    * `context`: bytes of the runtime (CUDA context, library workspaces, CUDA graphs where the engine counts them) on a
      single device, but for CPUs and Apple's chips; `group_context`: the same with communication buffers,
      `pcie_context` where the devices are joined by PCIe alone (0: `group_context`); `graphs`: the part of all of them
      that CUDA graphs take.
    * `profiles`: a pass of `tokens` and `sequences` is reserved at the start, within `utilization`; else activations
      take what the workload needs, beyond `utilization` where that is below 1.
    * `tables`: the memory that holds tables of n-grams (Engram), where a device has another than its own.
    * `vision_apart`: a vision encoder is a file of its own, which is loaded for images alone.

    Passes and their activations:

    * `tokens`: the most tokens of one pass (None: all prompts of a batch at once); models whose maximum context is at
      most `whole` run it as one pass.
    * `sequences`: the most that run, and are sampled, at once (0: no limit, and sampling takes no more than a pass),
      each with `sampled` bytes per logit.
    * `large_device`: the tokens and sequences of devices with more memory.
    * `items`: the tokens of the largest image or video of models whose names begin so, which a pass has to take whole.
    * `logits`: the buffer of a pass has fp32 logits for each of its tokens; `mask`: bytes in it for each token of a
      pass and each key.
    * `widened`: keys and values in fewer bits are converted to 16, a layer at a time.
    * `padding`: the multiples to which the hidden size and the width of experts in MXFP4 are padded as they are loaded.

    The KV cache and recurrent states:

    * `block`: tokens per block of the KV cache.
    * `pages`: all layers share pages of one size, so that layers of a kind are padded to groups of equal numbers, and a
      recurrent state takes a page.
    * `keeps_all`: layers with a window hold all tokens of a sequence; `window_shares`: they have a pool of their own,
      of so many tokens as a part of all, by the beginning of the model's name; `window_cells`: they hold the tokens of
      a pass beside the window, in multiples of so many (0: the window alone).
    * `in_flight`: the passes that a window has to have room for, those that run and those scheduled ahead.
    * `states`: the engine starts only where each of its `sequences` has a state; `longest`: only where a sequence of
      the maximum length has room.
    * `state_ratio`: the memory of a pool of recurrent states alone over that of the KV cache (0: none), with
      `state_slots` of it for each running sequence.
    * `logs`: the size of the KV cache that the engine prints: the tokens of `blocks` in all layers, or of `sequences`
      of the maximum length.
    """

    utilization: Annotated[float, Meta(gt=0, le=1)] = 1.0
    sizes: tuple[DeviceSize, ...] = ()
    outside: Outside | None = None
    visible: Annotated[float, Meta(ge=0, le=1e15)] = 0.0
    of: Literal["device", "free", "start"] = "device"
    block: Count = 1
    tokens: Count | None = None
    whole: Natural = 0
    sequences: Natural = 0
    large_device: LargeDevice | None = None
    context: Size = 0.0
    group_context: Size = 0.0
    pcie_context: Size = 0.0
    graphs: Size = 0.0
    sampled: Annotated[float, Meta(ge=0, le=1000)] = SAMPLER_BYTES
    logits: bool = False
    mask: Natural = 0
    widened: bool = False
    padding: tuple[Count, Count] = (1, 1)
    profiles: bool = False
    window_cells: Natural = 0
    vision_apart: bool = False
    keeps_all: bool = False
    pages: bool = False
    window_shares: tuple[tuple[str, Annotated[float, Meta(gt=0, le=1)]], ...] = ()
    items: tuple[tuple[str, Count], ...] = ()
    in_flight: Count = 1
    states: bool = False
    state_ratio: Annotated[float, Meta(ge=0, le=1000)] = 0.0
    state_slots: Count = 1
    longest: bool = False
    logs: Literal["blocks", "sequences"] = "blocks"
    tables: Literal["device", "cpu"] = "device"

    def on(self, hardware: Hardware) -> Reserve:
        """The settings on a device: those of a large one, of one on PCIe, of one without a context, where it is."""
        return _on(self, hardware)

    def for_model(self, model: str) -> Reserve:
        """The settings for a model of this name, whose passes have room for its largest item."""
        item = next((tokens for name, tokens in self.items if model.startswith(name)), 0)
        return self if self.tokens is None or item <= self.tokens else replace(self, tokens=item)

    def limited(
        self, utilization: float | None, tokens: int | None, sequences: int | None, use: Use = ALONE
    ) -> Reserve:
        """The settings of this device with those that are given in their place.

        An engine without a limit of tokens, or of sequences, reserves nothing by one. CUDA graphs take memory by their
        number.
        """
        if self.outside is not None and self.visible:
            if utilization is None and self.utilization == 1:
                passed = max(tokens or self.tokens or 0, LEAST_PASS)
                utilization = self.outside.utilization(self.visible, passed, self.sizes[0].replayed, use)
            return replace(self, outside=None).limited(utilization, tokens, sequences)
        if utilization is None and not tokens and not sequences:
            return self
        fewer = 1 - captured(sequences) / captured(self.sequences) if sequences and self.sequences else 0.0
        return replace(
            self._with_graphs(1 - max(fewer, 0.0)),
            utilization=self.utilization if utilization is None else utilization,
            tokens=tokens if tokens and self.tokens else self.tokens,
            whole=0 if tokens else self.whole,
            sequences=sequences if sequences and self.sequences else self.sequences,
        )

    def without_graphs(self) -> Reserve:
        return self._with_graphs(0.0)

    def _with_graphs(self, share: float) -> Reserve:
        if not self.graphs or share == 1.0:
            return self
        sizes, left = (self.context, self.group_context, self.pcie_context), self.graphs * (1 - share)
        context, group, pcie = (max(size - left, 0.0) for size in sizes)
        return replace(self, context=context, group_context=group, pcie_context=pcie, graphs=self.graphs * share)

    @property
    def state_part(self) -> float:
        """The part of the memory of caches that a pool of recurrent states alone has."""
        return self.state_ratio / (1 + self.state_ratio)

    def slots(self, verified: int) -> int:
        """States of that pool for a sequence that runs, of which so many tokens are verified at once."""
        return self.state_slots + verified

    def padded(self, hidden: int, width: int) -> float:
        """Elements of an expert in MXFP4 as loaded over those that it has."""
        sides = zip((hidden, width), self.padding, strict=True)
        return math.prod(-(-size // multiple) * multiple / size for size, multiple in sides)

    def window_kept(self, window: int) -> int:
        """Tokens that a layer with this window has room for."""
        if not self.window_cells:
            return window
        return -(-(window + (self.tokens or 0)) // self.window_cells) * self.window_cells

    def window_share(self, model: str) -> float:
        """The part of all tokens that the pool of a model's layers with a window has; 0 without such a pool."""
        return next((share for name, share in self.window_shares if model.startswith(name)), 0.0)

    def pass_tokens(self, longest: int | None) -> int | None:
        """Tokens of the largest pass of a model with the maximum context `longest`; None for all prompts at once."""
        if self.tokens is None:
            return None
        whole = max(longest or self.tokens, self.tokens)
        return whole if whole <= self.whole else self.tokens

    def runtime(self, devices: int) -> float:
        return self.group_context if devices > 1 else self.context

    def budget(self, visible: float, weights: float, activations: Any, context: float) -> Any:
        """Bytes that weights, KV cache, states, activations and context may take together."""
        if self.of == "free":
            left = np.maximum(visible - weights - activations - context, 0.0)
            return visible - (1 - self.utilization) * left
        if self.profiles or self.utilization == 1:
            return self.utilization * visible
        beside = (1 - self.utilization) * context if self.of == "start" else 0.0
        return np.minimum(visible, self.utilization * visible + beside + activations)


@lru_cache(maxsize=1024)  # every scenario asks
def _on(reserve: Reserve, hardware: Hardware) -> Reserve:
    links, large = hardware.interconnects, reserve.large_device
    if reserve.sizes and hardware.kind != "gpu":
        fraction = reserve.outside.otherwise if reserve.outside and reserve.utilization == 1 else reserve.utilization
        return replace(reserve, sizes=(), outside=None, utilization=fraction).on(hardware)
    if reserve.sizes and not reserve.visible:
        visible = visible_memory(hardware)
        size = next((size for size in reserve.sizes if visible < size.below * GIB), reserve.sizes[-1])
        return replace(reserve, visible=visible, tokens=size.tokens, sizes=(size,)).on(hardware)
    if (reserve.context or reserve.group_context) and (hardware.kind == "cpu" or hardware.family == "apple"):
        none = dict.fromkeys(("context", "group_context", "pcie_context", "graphs"), 0.0)
        return replace(reserve, **none, widened=False).on(hardware)
    if reserve.pcie_context and links and links[0].kind.startswith("PCIe"):
        return replace(reserve, group_context=reserve.pcie_context, pcie_context=0.0).on(hardware)
    if large is None:
        return reserve
    if visible_memory(hardware) < large.memory or hardware.name.startswith(large.except_ or ("/",)):
        return replace(reserve, large_device=None)
    return replace(reserve, tokens=large.tokens, sequences=large.sequences, large_device=None)


def captured(sequences: int) -> int:
    """The batch sizes of which vLLM captures CUDA graphs: 1, 2, 4, each 8th up to 256, each 16th up to 512.

    The largest is twice the sequences (VllmConfig._set_cudagraph_sizes in vllm/config/vllm.py).
    """
    largest = min(2 * sequences, 512)
    return sum(size <= largest for size in (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)))


LEAST_PASS = 2048
"""Tokens of a pass for which memory is left at least."""

NO_RESERVE = Reserve()
"""Everything in one pass, in all visible memory."""


def visible_memory(hardware: Hardware) -> float:
    """Device memory that a program can allocate, in bytes: from the spec, or the usual fraction of nominal memory."""
    if hardware.memory_visible is not None:
        return hardware.memory_visible
    nominal = hardware.memory_capacity / 1e9 * GIB
    if hardware.family == "apple":
        return unified_share(hardware.memory_capacity) * nominal
    share = NOMINAL_SHARES.get(hardware.vendor)
    if share is None or hardware.kind != "gpu":
        return hardware.memory_capacity
    return share * (ECC_SHARE if hardware.name in ECC_CARDS else 1.0) * nominal


SIZES = ("context", "group_context", "pcie_context", "graphs")
"""The settings that a profile states in GiB."""

EARLIER = "earlier"
"""The key with the settings of versions before each of some: memory changes with other versions than kernels do."""


def parse_reserve(content: object, where: str, version: Version | None = None) -> Reserve:
    """The settings under a profile's key 'memory', where sizes are in GiB; `where` names the file in errors.

    With a `version` they are after the changes of all `earlier` settings that hold for it, those of the oldest last.
    """
    given = as_mapping(content, where, "memory")
    earlier = as_mapping(given.get(EARLIER, {}), where, f"memory.{EARLIER}")
    merged = {key: value for key, value in given.items() if key != EARLIER}
    versions = {text: version_in(text, f"memory.{EARLIER}", where) for text in earlier}
    for text in sorted(versions, key=versions.__getitem__, reverse=True):
        changes = as_mapping(earlier[text], where, f"memory.{EARLIER}.{text}")
        parse_reserve({**merged, **changes}, where)
        merged |= changes if version is not None and version < versions[text] else {}
    found = record(Reserve, merged, where, "memory")
    large = found.large_device
    with located(where, "memory"):
        return replace(
            found,
            large_device=None if large is None else replace(large, memory=large.memory * GIB),
            **{name: getattr(found, name) * GIB for name in SIZES},
        )
