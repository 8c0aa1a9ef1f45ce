"""KV cache capacity: the tokens that fit in a serving engine's KV cache.

    KV cache = budget - weights - activations - runtime

and tokens = KV cache / bytes per token, in whole blocks, all on one rank. All parts are those of `Analysis.memory`.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.memory import kv_bytes_per_token
from roofline.core.errors import RooflineError
from roofline.graph.offload import RESIDENT, Offload
from roofline.graph.parallel import SINGLE, Parallelism
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Host, Settings
from roofline.specs.checkpoint import precision_of
from roofline.specs.engine import resolve_engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import Precision
from roofline.specs.reserve import Reserve, visible_memory


class Capacity(Struct, frozen=True):
    """The memory of one rank in bytes, and the tokens that fit in its KV cache.

    The engine may use `budget` of the `visible` memory. A negative `cache` is the missing memory; `tokens` is then 0.
    For a model without KV cache `bytes_per_token` is 0 and `tokens` None.
    """

    visible: float
    budget: float
    weights: float
    activations: float
    context: float
    bytes_per_token: float
    block: int

    @property
    def cache(self) -> float:
        """Bytes left for the KV cache."""
        return self.budget - self.weights - self.activations - self.context

    @property
    def tokens(self) -> int | None:
        """Tokens that fit, in whole blocks."""
        if self.bytes_per_token == 0:
            return None
        return max(0, int(self.cache / (self.bytes_per_token * self.block))) * self.block


@lru_cache(maxsize=256)
def kv_capacity(
    model: Model,
    hardware: Hardware,
    precision: Precision | None = None,
    parallel: Parallelism = SINGLE,
    reserve: Reserve | None = None,
    offload: Offload = RESIDENT,
    host: Host | None = None,
) -> Capacity:
    """The KV cache capacity of each rank with the settings of an engine (by default the hardware's), and the rest.

    What `offload` and a `host` keep in the memory of a CPU takes none. Raises RooflineError where the parallelism does
    not divide the model.

    >>> from roofline import load_hardware, load_model
    >>> kv_capacity(load_model("llama-3-8b"), load_hardware("h100-sxm")).tokens
    424272
    """
    profile = resolve_engine(hardware, None, model)
    engine = profile if reserve is None else replace(profile, memory=reserve)
    rules = engine.memory.on(hardware)
    whole = rules.pass_tokens(model.max_context) or 1
    settings = Settings(parallel=replace(parallel, micro_batches=1), offload=offload, host=host)
    formats, data = precision or precision_of(model, hardware), parallel.data
    scenario = Scenario(
        model, hardware, batch=data, prompt=whole, generate=1, precision=formats, settings=settings, engine=engine
    )
    memory = analyze(scenario).memory
    return Capacity(
        visible=visible_memory(hardware),
        budget=memory.budget,
        weights=memory.weights,
        activations=memory.activation_peak,
        context=memory.runtime,
        bytes_per_token=kv_bytes_per_token(model, formats, parallel) * settings.resident_kv,
        block=rules.block,
    )


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
    if at_once < 1:
        raise RooflineError(
            f"no sequence of {length} tokens fits beside the model: the KV cache has room for {capacity.tokens} tokens"
        )
    full, rest = divmod(batch, at_once)
    return (at_once,) * full + ((rest,) if rest else ())
