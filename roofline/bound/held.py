"""What one sequence holds of a device's KV cache and states, by its length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.memory import Stages, section_bytes, stage_sections
from roofline.graph.extents import Step
from roofline.graph.network import Build, Network, Section, network
from roofline.graph.parallel import SINGLE, Parallelism
from roofline.graph.tensor import Role
from roofline.specs.model import Model
from roofline.specs.precision import Precision
from roofline.specs.sublayers import Attention

ONE = Step(1, 1, 0)
"""A sequence of one token, which no window limits."""

PAGE = 16
"""A page that holds a state has a multiple of so many tokens: 784 of Qwen3.5 27B (vllm-project/vllm, issue 40691)."""

NEARLY = 1.25
"""Layers of two kinds whose numbers differ by less are padded to the larger one (vllm/v1/core/kv_cache_utils.py)."""


class Held(Struct, frozen=True):
    """The bytes of one sequence on the fullest rank.

    `tokens`: of a token in layers that keep them all; `windows`: the most tokens of the layers that keep the last ones,
    with their bytes of a token; `state`: of recurrent states. Where all layers share a pool of pages of `page` bytes, a
    state takes a page in each layer of a group, and a sequence whole blocks of `block` tokens. `layer`: the most bytes
    of a token in one layer.
    """

    tokens: float
    windows: tuple[tuple[int, float], ...] = ()
    state: float = 0.0
    page: float = 0.0
    block: int = 1
    layer: float = 0.0

    @property
    def each(self) -> float:
        """Bytes of a token in all layers."""
        return self.tokens + sum(size for _, size in self.windows)

    @property
    def even(self) -> bool:
        """Whether each token takes the same, so that the tokens of a pool do not depend on the sequences' length."""
        return not self.windows and not self.state

    def at(self, length: float, ahead: int = 0) -> float:
        """Bytes of a sequence of `length` tokens, of which a pass may add `ahead` at once."""
        if self.even:
            return self.tokens * length
        whole = math.ceil(length / self.block) * self.block
        return self.tokens * whole + sum(size * min(whole, most + ahead) for most, size in self.windows) + self.state


class _Kind(NamedTuple):
    """Layers of one kind: their number, the tokens that they keep (None: all), bytes of a token and of a state."""

    layers: float
    most: int | None
    token: float
    state: float


@lru_cache(maxsize=512)
def held_bytes(
    model: Model, precision: Precision, parallel: Parallelism = SINGLE, stages: Stages = (), pages: bool = False
) -> Held:
    """What one sequence holds on the fullest rank; with `pages` of a pool that all layers share."""
    graph = network(model, precision, Build(("attention",), parallel=parallel))
    kinds = ([*_kinds(model, graph, part)] for part in stage_sections(graph, stages))
    parts = [_paged(part) if pages and len(part) > 1 else _plain(part) for part in kinds]
    return max(parts, key=lambda held: held.each + held.state)


def _kinds(model: Model, graph: Network, sections: Iterable[Section]) -> Iterator[_Kind]:
    """The kinds of layers that hold anything."""
    mixers = {group.name: group.layer.mixer for group in model.groups}
    for section in sections:
        if section.name in mixers and section.count:
            mixer = mixers[section.name]
            most = mixer.chunk if isinstance(mixer, Attention) else None
            if isinstance(mixer, Attention) and mixer.window is not None:
                most = mixer.window + mixer.extra
            token, state = (section_bytes(graph, section, role, ONE) / section.count for role in (Role.KV, Role.STATE))
            if token or state:
                yield _Kind(section.count, most, token, state)


def _plain(kinds: Sequence[_Kind]) -> Held:
    whole = sum(kind.layers * kind.token for kind in kinds if kind.most is None)
    windows = tuple((kind.most, kind.layers * kind.token) for kind in kinds if kind.most is not None)
    layer = max((kind.token for kind in kinds), default=0.0)
    return Held(whole, windows, sum(kind.layers * kind.state for kind in kinds), layer=layer)


def _paged(kinds: Sequence[_Kind]) -> Held:
    """Kinds whose layers are padded to groups of equal numbers, in pages that hold a state or as many tokens."""
    size = _group_size([kind.layers for kind in kinds])
    groups = [math.ceil(kind.layers / size) for kind in kinds]
    largest, state = max(kind.token for kind in kinds), max(kind.state for kind in kinds)
    block = math.ceil(state / largest / PAGE) * PAGE if largest and state else 1
    page = size * max(largest * block, state)
    padded = [kind._replace(layers=size * group) for kind, group in zip(kinds, groups, strict=True)]
    states = sum(group for kind, group in zip(kinds, groups, strict=True) if kind.state)
    held = _plain([kind._replace(state=0.0) for kind in padded])
    return replace(held, state=states * page, page=page, block=block)


def _group_size(counts: Sequence[float]) -> float:
    least, most = min(counts), max(counts)
    return most if most < NEARLY * least else least
