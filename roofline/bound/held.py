"""What one sequence holds of a device's KV cache and states, by its length."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.memory import Stages, section_bytes, stage_sections, stored_tensors
from roofline.graph.extents import Step
from roofline.graph.layers.basic import STATE_FORMAT
from roofline.graph.network import Build, Network, network
from roofline.graph.op import Section
from roofline.graph.parallel import SINGLE, Parallelism, auxiliary_parallelism
from roofline.graph.tensor import Role
from roofline.specs.model import Model
from roofline.specs.precision import Precision
from roofline.specs.sublayers import Attention, CompressedAttention, Mixer

ONE = Step(1, 1, 0)
"""A sequence of one token, which no window limits."""

PAGE = 16
"""A page that holds a state has a multiple of so many tokens: 784 of Qwen3.5 27B (vllm-project/vllm, issue 40691)."""

COMPRESSED_BLOCK, WINDOW_BLOCK, ALIGNED = 256, 64, 576
"""Tokens of a block of compressed entries, and of the window beside them; pages are multiples of so many bytes.

DeepSeek-V4 in vLLM (vllm/models/deepseek_v4, vllm/v1/core/kv_cache_utils.py; the layers of one block in issue 54703).
"""

NEARLY = 1.25
"""Layers of two kinds whose numbers differ by less are padded to the larger one (vllm/v1/core/kv_cache_utils.py)."""


class Held(Struct, frozen=True):
    """The bytes of one sequence on the fullest rank.

    `tokens`: of a token in layers that keep them all; `windows`: the most tokens of the layers that keep the last ones,
    with their bytes of a token; `state`: of recurrent states, in so many `copies`. Where all layers share a pool of
    pages of `page` bytes, a state takes a page in each layer of a group, and a sequence whole blocks of `block` tokens;
    there are `groups`. `layer`: the most bytes of a token in one layer.
    """

    tokens: float
    windows: tuple[tuple[int, float], ...] = ()
    state: float = 0.0
    page: float = 0.0
    block: int = 1
    layer: float = 0.0
    groups: int = 1
    copies: int = 1

    @property
    def fixed(self) -> float:
        """Bytes that do not grow with a long sequence: its windows and states."""
        return self.state + sum(size * most for most, size in self.windows)

    @property
    def snapshot(self) -> float:
        """Bytes that the end of a prefix needs beside the tokens that are kept: its windows and one copy of states."""
        return self.fixed - self.state * (1 - 1 / self.copies)

    @property
    def each(self) -> float:
        """Bytes of a token in all layers."""
        return self.tokens + sum(size for _, size in self.windows)

    @property
    def even(self) -> bool:
        """Whether each token takes the same, so that the tokens of a pool do not depend on the sequences' length."""
        return not self.windows and not self.state

    @property
    def parted(self) -> bool:
        """Whether states may have a pool of their own beside that of tokens."""
        return bool(self.state and self.tokens and not self.windows)

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
    model: Model,
    precision: Precision,
    parallel: Parallelism = SINGLE,
    stages: Stages = (),
    pages: bool = False,
    share: float = 0.0,
    draft: Model | None = None,
    copies: int = 1,
) -> Held:
    """What one sequence holds on the fullest rank; with `pages` of a pool that all layers share.

    With a `share` windows have a pool of their own, of so many tokens as that part of all, which states that wait
    beside a window go with. The layers of a `draft` are beside those of the last stage; a sequence has `copies` of its
    states.
    """
    graph = network(model, precision, Build(("attention",), parallel=parallel))
    stretches = stage_sections(graph, stages)
    beside: list[_Kind] = []
    if draft is not None:
        other = network(draft, precision, Build(("attention",), parallel=auxiliary_parallelism(parallel, draft)))
        beside = [*_kinds(draft, other, other.sections)]
    parts = [
        _of_stage(model, graph, part, pages, share, copies, beside if part is stretches[-1] else [])
        for part in stretches
    ]
    return max(parts, key=lambda held: held.each + held.state)


def _of_stage(
    model: Model,
    graph: Network,
    sections: Sequence[Section],
    pages: bool,
    share: float,
    copies: int,
    beside: Sequence[_Kind],
) -> Held:
    compressed = [mixer for _, mixer in _mixers(model, sections) if isinstance(mixer, CompressedAttention)]
    if any(mixer.projected for mixer in compressed):
        pages = False  # no source says how engines put the few stores of DeepSeek-V4.1 into pages
    if pages and compressed:
        held = _compressed_pages(model, sections)
        return replace(held, tokens=held.tokens + sum(kind.layers * kind.token for kind in beside if not kind.most))
    alike: dict[_Kind, float] = {}
    for kind in (*_kinds(model, graph, sections), *beside):
        same = kind._replace(layers=0)
        alike[same] = alike.get(same, 0) + kind.layers
    kinds = [kind._replace(layers=layers) for kind, layers in alike.items()]
    if share:
        held = _plain([kind for kind in kinds if kind.most is None])
        limited = sum(kind.layers * (kind.token + kind.state / kind.most) for kind in kinds if kind.most)
        return replace(held, tokens=held.tokens + share * limited, layer=_plain(kinds).layer)
    held = _paged(kinds) if pages and len(kinds) > 1 else _plain(kinds)
    return replace(held, state=held.state * copies, copies=copies)


def _mixers(model: Model, sections: Iterable[Section]) -> Iterator[tuple[Section, Mixer | None]]:
    """The sections that are layers, with what mixes their tokens."""
    mixers = {group.name: group.layer.mixer for group in model.groups}
    return ((section, mixers[section.name]) for section in sections if section.name in mixers and section.count)


def _kinds(model: Model, graph: Network, sections: Iterable[Section]) -> Iterator[_Kind]:
    """The kinds of layers that hold anything; a window beside compressed entries is a kind of its own."""
    layers = list(_mixers(model, sections))
    parts = [section for section, _ in layers]
    windows = {mixer.window for _, mixer in layers if isinstance(mixer, CompressedAttention)}
    filled = {
        length: section_bytes(graph, parts, Role.KV, Step(1, length, 0))
        for window in windows
        for length in (window, 2 * window)
    }
    stored = (section_bytes(graph, parts, role, ONE) for role in (Role.KV, Role.STATE))
    for index, ((section, mixer), *held) in enumerate(zip(layers, *stored, strict=True)):
        token, state = (each / section.count for each in held)
        if isinstance(mixer, CompressedAttention):
            entries = (filled[2 * mixer.window][index] - filled[mixer.window][index]) / section.count / mixer.window
            waits = state if mixer.indexer is None else 0.0
            yield _Kind(section.count, mixer.window, token, state - waits)
            if entries:
                yield _Kind(section.count, None, entries, waits)
            continue
        most = mixer.chunk if isinstance(mixer, Attention) else None
        if isinstance(mixer, Attention) and mixer.window is not None:
            most = mixer.window + mixer.extra
        if token or state:
            yield _Kind(section.count, most, token, state)


def _compressed_pages(model: Model, sections: Iterable[Section]) -> Held:
    """Blocks that all layers of DeepSeek-V4 share: one holds entries, index keys, a part of the windows, or states.

    A block has a page for each layer of the largest group of layers whose pages have one size. Windows are as many
    groups as their layers fill, states of unfinished entries one of each ratio, with few tokens in a page.
    """
    full, waiting, windows = Counter[int](), Counter[tuple[int, int]](), 0.0
    window, large = 0, 0
    for section, mixer in _mixers(model, sections):
        if not isinstance(mixer, CompressedAttention):
            continue
        sizes = {
            tensor.name: cast(int, tensor.stored_shape[-1]) * tensor.format.bytes
            for tensor, _ in stored_tensors([section], Role.KV)
        }
        large, window = _page(WINDOW_BLOCK, sizes["latent_cache"]), mixer.window
        windows += section.count
        if mixer.ratio:
            for size in sizes.values():
                full[_page(COMPRESSED_BLOCK // mixer.ratio, size)] += int(section.count)
            each = 2 * mixer.overlap * mixer.head_dim * STATE_FORMAT.bytes
            waiting[mixer.overlap * mixer.ratio, 2 ** int(math.log2(large / each))] += int(section.count)
    tuples = max(full.values(), default=1)
    counts = [tuples, windows, *waiting.values()]
    tuples = min(range(tuples, int(max(counts)) + 1), key=lambda size: (sum(-count % size for count in counts), -size))
    groups = math.ceil(windows / tuples)
    full[large] = max(full[large], math.ceil(windows / groups), *waiting.values())
    block = sum(size * layers for size, layers in full.items())
    return Held(
        block / COMPRESSED_BLOCK,
        (
            (window + WINDOW_BLOCK, groups * block / WINDOW_BLOCK),
            *((most + tokens, block / tokens) for most, tokens in waiting),
        ),
        block=COMPRESSED_BLOCK,
        layer=large / WINDOW_BLOCK,
    )


def _page(tokens: int, size: float) -> int:
    return math.ceil(tokens * size / ALIGNED) * ALIGNED


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
    return replace(held, state=states * page, page=page, block=block, groups=sum(groups))


def _group_size(counts: Sequence[float]) -> float:
    least, most = min(counts), max(counts)
    return most if most < NEARLY * least else least
