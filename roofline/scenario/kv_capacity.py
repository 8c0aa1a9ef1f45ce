"""KV cache capacity: the tokens that fit in a serving engine's KV cache.

    KV cache = budget - weights - activations - runtime

and tokens = KV cache / bytes per token, in whole blocks, all on one rank. All parts are those of `Analysis.memory`.
Layers with a window keep its tokens alone, and a sequence has its recurrent states: there the tokens that fit depend on
the length of sequences (`Capacity.tokens_of`).
"""

from __future__ import annotations

import math
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.held import Held, held_bytes
from roofline.bound.memory import kv_bytes_per_token, pipeline_stages
from roofline.core.errors import RooflineError
from roofline.graph.offload import RESIDENT, Offload
from roofline.graph.parallel import SINGLE, Parallelism
from roofline.scenario.analysis import analyze
from roofline.scenario.engine_options import ranks_together
from roofline.scenario.memory import attention_buffer, memory_reserve
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Host, Settings, Stage
from roofline.scenario.speculation import Speculation
from roofline.specs.checkpoint import precision_of
from roofline.specs.engine import resolve_engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import Precision
from roofline.specs.reserve import Reserve, visible_memory


class Capacity(Struct, frozen=True):
    """The memory of one rank in bytes, and the tokens that fit in its KV cache.

    The engine may use `budget` of the `visible` memory. A negative `cache` is the missing memory; `tokens` is then 0.
    For a model without KV cache `bytes_per_token` is 0 and `tokens` None. Recurrent states have the part `apart` of the
    cache's memory, with `slots` for each sequence that runs (0: they share it).
    """

    visible: float
    budget: float
    weights: float
    activations: float
    context: float
    bytes_per_token: float
    block: int
    held: Held = Held(0.0)
    apart: float = 0.0
    slots: int = 1

    @property
    def cache(self) -> float:
        """Bytes of the KV cache and of states."""
        return self.budget - self.weights - self.activations - self.context

    @property
    def tokens(self) -> int | None:
        if self.bytes_per_token == 0:
            return None
        return max(0, int((1 - self.apart) * self.cache / (self.bytes_per_token * self.block))) * self.block

    @property
    def running(self) -> int | None:
        """The most sequences that a pool of states alone lets run; None without one."""
        return int(self.apart * max(self.cache, 0.0) / (self.held.state * self.slots)) if self.apart else None

    def sequences_of(self, length: float, ahead: int = 0) -> float:
        """The sequences of `length` tokens that fit at once, of which a pass may add `ahead` to each."""
        size = self.held.at(length, ahead)
        if self.running is not None:
            return min(self.running, (1 - self.apart) * max(self.cache, 0.0) / (size - self.held.state))
        return max(self.cache, 0.0) / size if size else math.inf

    def tokens_of(self, length: float) -> int | None:
        """Tokens that fit in sequences of `length` tokens; None without KV cache and states on the device."""
        if self.held.even or self.apart or not length:
            return self.tokens
        found = self.sequences_of(length)
        return None if math.isinf(found) else int(found * length)

    @property
    def pages(self) -> int | None:
        """The pages of a pool that all layers share; None without one."""
        return int(max(self.cache, 0.0) / self.held.page) if self.held.page else None

    @property
    def states(self) -> int | None:
        """The most recurrent states for which the engine has pages; None where it has no pool of pages for them."""
        return self.pages if self.held.state else None

    def logged(self, longest: int, ahead: int, reserve: Reserve) -> int | None:
        """The tokens that the engine prints as the size of its KV cache, for sequences of up to `longest` tokens."""
        if self.held.even or not reserve.pages:
            return self.tokens
        if reserve.logs == "sequences":
            return int(self.sequences_of(longest, ahead) * longest)
        if self.pages is None:
            return self.tokens
        # Blocks over groups: _report_kv_cache_config in vllm/v1/core/kv_cache_utils.py.
        return self.pages // self.held.groups * self.held.block // self.block * self.block


@lru_cache(maxsize=256)
def kv_capacity(
    model: Model,
    hardware: Hardware,
    precision: Precision | None = None,
    parallel: Parallelism = SINGLE,
    reserve: Reserve | None = None,
    offload: Offload = RESIDENT,
    host: Host | None = None,
    speculation: Speculation | None = None,
    cached: bool = False,
    mixed: tuple[Stage, ...] = (),
) -> Capacity:
    """The KV cache capacity of each rank with the settings of an engine (by default the hardware's), and the rest.

    What `offload` and a `host` keep in the memory of a CPU takes none, and of `mixed` devices it is that of the first.
    The draft of a `speculation` has its weights and its KV cache beside the model's, and where all layers share pages
    each token that it drafts a copy of recurrent states; with a prefix cache, `cached`, a sequence has one more. In a
    pool of states alone each token that is verified has a copy. Raises RooflineError where the parallelism does not
    divide the model.

    >>> from roofline import load_hardware, load_model
    >>> kv_capacity(load_model("llama-3-8b"), load_hardware("h100-sxm")).tokens
    425904
    """
    profile = resolve_engine(hardware, None, model)
    engine = profile if reserve is None else replace(profile, memory=reserve)
    rules = engine.memory.on(hardware)
    whole = rules.pass_tokens(model.max_context) or 1
    settings = Settings(
        parallel=replace(parallel, micro_batches=1), offload=offload, host=host, speculation=speculation, mixed=mixed
    )
    formats, data = precision or precision_of(model, hardware), parallel.data
    scenario = Scenario(
        model, hardware, batch=data, prompt=whole, generate=1, precision=formats, settings=settings, engine=engine
    )
    draft, drafted = (None, 0) if speculation is None else (speculation.draft, speculation.length)
    copies = 1 + (drafted + cached if rules.pages else 0)
    memory, held = analyze(scenario).memory, _held(model, formats, settings, rules, draft, copies)
    beside = attention_buffer(held, rules, formats.kv.bits)
    each = held.each if held.even or draft else kv_bytes_per_token(model, formats, parallel) * settings.resident_kv
    return Capacity(
        visible=visible_memory(hardware),
        budget=memory.budget,
        weights=memory.weights,
        activations=memory.activation_peak - beside * whole * data,
        context=memory.runtime,
        bytes_per_token=each + beside,
        block=rules.block,
        held=replace(held, tokens=held.tokens + beside),
        apart=rules.state_part if held.parted else 0.0,
        slots=rules.slots(0 if speculation is None else speculation.verified + 1),
    )


def _held(
    model: Model, formats: Precision, settings: Settings, rules: Reserve, draft: Model | None, copies: int
) -> Held:
    """What a sequence holds of the caches on the devices."""
    parallel, resident = settings.parallel, settings.resident_kv
    stages, share = pipeline_stages(model, parallel), rules.window_share(model.name)
    found = held_bytes(model, formats, parallel, stages, rules.pages, share, draft, copies)
    windows = tuple((rules.window_kept(most), size * resident) for most, size in found.windows)
    if rules.keeps_all:
        return Held((found.tokens + sum(size for _, size in found.windows)) * resident, (), found.state)
    return replace(found, tokens=found.tokens * resident, windows=windows)


def startable_sequences(scenario: Scenario) -> int | None:
    """The most sequences with which the engine starts, each of which has recurrent states.

    Fewer sequences than the engine's own leave more room: it starts with as many as this. None where it does not ask,
    and where the user says a number.
    """
    reserve = memory_reserve(scenario)
    if not reserve.states or scenario.plain.settings.sequences:
        return None
    parallel = replace(scenario.settings.parallel, data=1, nodes=None)
    found = kv_capacity(scenario.model, scenario.hardware, scenario.run_precision, parallel, reserve)
    return None if found.states is None or found.states >= reserve.sequences else max(found.states, 1)


def startable(scenario: Scenario) -> Scenario:
    """The scenario with as many sequences as the engine starts with, where it has no room for its own number."""
    if (most := startable_sequences(scenario)) is None:
        return scenario
    ranks = ranks_together(scenario.profile.name, "max_num_seqs", scenario.settings.parallel)
    return scenario.with_(max_num_seqs=most * ranks)


def waves(batch: int, length: int, capacity: Capacity) -> tuple[int, ...]:
    """The consecutive batch sizes of `batch` sequences of `length` tokens, limited by the KV cache capacity.

    Sequences of one length end together and free the whole cache. Raises RooflineError where not even one fits.

    >>> waves(10, 100, Capacity(0, 1024, 0, 0, 0, 2.0, 16))
    (4, 4, 2)
    """
    if capacity.tokens is None:
        return (batch,)
    blocks = -(-length // capacity.block)
    at_once = capacity.tokens // (blocks * capacity.block)
    if not capacity.held.even:
        at_once = int(capacity.sequences_of(length))
    if at_once < 1:
        raise RooflineError(
            f"no sequence of {length} tokens fits beside the model: the KV cache has room for {capacity.tokens} tokens"
        )
    full, rest = divmod(batch, at_once)
    return (at_once,) * full + ((rest,) if rest else ())
