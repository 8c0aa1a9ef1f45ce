"""Tensor parallelism over more devices than there are key and value heads keeps copies of the cache."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said
from roofline.advisor.search.moves import Kind
from roofline.core.errors import RooflineError
from roofline.core.units import si
from roofline.graph.parallel import Parallelism
from roofline.scenario.kv_capacity import token_bytes


def heads_of(case: Case) -> int:
    """Key and value heads that tensor parallelism can divide: one where all heads share a latent; 0 without any."""
    if case.model.latent:
        return 1
    return max((attention.kv_heads for attention in case.model.attentions), default=0)


def look(case: Case) -> Iterator[Said]:
    """Applies where the tensor-parallel degree is beyond the heads; of larger degrees that are offered it warns."""
    heads, parallel = heads_of(case), case.analysis.parallel
    if not heads or not case.generates:
        return
    degrees = {
        move.name: trial.analysis.parallel.tensor
        for move, trial in case.offered(Kind.PARALLELISM)
        if trial.analysis.parallel.devices == parallel.devices
    }
    if beyond := tuple(name for name, tensor in degrees.items() if tensor > max(heads, parallel.tensor)):
        text = f"the cache of a device does not shrink beyond {_devices(heads)}: {_shared(heads)}"
        yield Caution(f"{text}, and the other devices keep copies", beyond)
    if parallel.tensor <= heads:
        return
    try:
        now, before = (
            token_bytes(case.model, case.precision, Parallelism(tensor=tensor, pipeline=parallel.pipeline))
            for tensor in (parallel.tensor, heads)
        )
    except RooflineError:
        return
    if now < before:
        return
    copies, memory = parallel.tensor // heads, case.analysis.memory
    yield Finding(
        f"{_shared(heads)}, and {parallel.tensor} tensor-parallel devices keep {copies} copies:"
        f" {si(now, 'B')} a token on each, as much as on {_devices(heads)}",
        float(memory.kv_cache / memory.total) * (1 - heads / parallel.tensor),
        {"cache of a device": si(float(memory.kv_cache), "B"), "copies": f"{copies}"},
        of="memory",
    )
    fewer = tuple(name for name, tensor in degrees.items() if tensor <= heads)
    yield Hint(
        (*fewer, "parallelism of sequences", "KV format"),
        f"{_shared(heads)}, kept {copies} times: replicas or divided sequences share the cache, more tensor"
        " parallelism does not",
    )


def _devices(count: int) -> str:
    return "one device" if count == 1 else f"{count} tensor-parallel devices"


def _shared(heads: int) -> str:
    return "all query heads share one cache" if heads == 1 else f"there are {heads} key and value heads"


RULE = Rule(
    "key-value-heads",
    "Beyond the number of key and value heads tensor parallelism copies the cache: divide the batch or the sequence.",
    ("yuan R24", "miao D5"),
    look,
)
