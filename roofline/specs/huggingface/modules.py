"""The modules of a checkpoint by name: which weights of a model they are, and which of them a file's patterns mean."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import translate as glob
from typing import Any, Generic, NamedTuple, TypeVar

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import rows
from roofline.specs.model import Layer, Model
from roofline.specs.sublayers import Attention, CompressedAttention, KimiDelta, LatentAttention, MixtureOfExperts, Mlp

T = TypeVar("T")

_OUTSIDE = re.compile(r"^(?:(?:model|language_model|backbone|transformer|text_model|decoder)\.)+")
_WRAPPERS = ("", "model.", "model.language_model.", "language_model.model.", "language_model.", "backbone.")
"""What names begin with, by the class that wraps the decoder."""

_ATTENTION, _FEED = ("self_attn", "attention", "mixer"), ("mlp", "block_sparse_moe", "feed_forward", "mixer")
_SHARED, _EXPERTS = ("shared_experts", "shared_expert"), ("experts.0", "experts")

_NAMES: Mapping[str, Mapping[str, Any]] = rows("modules.yaml")
_FEED_LEAVES: Mapping[str, Sequence[str]] = _NAMES["feed"]
_RECURRENT = {name: ((name,),) for name in ("in_proj", "x_proj", "dt_proj", "out_proj")}

TOWERS = (
    *("visual.blocks.0.attn.qkv", "vision_tower.encoder.layers.0.self_attn.q_proj"),
    *("vision_tower.vision_model.encoder.layers.0.self_attn.q_proj", "vision_model.encoder.layers.0.self_attn.q_proj"),
)
"""Modules of vision encoders."""


class Module(NamedTuple):
    """The part of a component that a layer has: its names, without the wrapper's, and its share of the component."""

    component: str
    names: tuple[str, ...]
    share: float


def modules(model: Model, apart: Callable[[int], bool]) -> Iterator[Module]:
    """The linear modules of the decoder's layers, and its ends; of equal layers that are not `apart` those of one."""
    layers = {group.name: group.layer for group in model.groups}
    widest = max(map(_dense_width, layers.values()), default=0) or 1
    first: dict[str, int] = {}
    kinds = (
        (name, index if apart(index) else first.setdefault(name, index)) for index, name in enumerate(model.pattern)
    )
    for (name, index), times in Counter(kinds).items():
        for component, names, share in _of_layer(layers[name]):
            part = share / (widest if component in _FEED_LEAVES else 1)
            yield Module(component, tuple(f"layers.{index}.{each}" for each in names), part * times)
    yield Module("embedding", ("embed_tokens",), 1)
    yield Module("lm_head", ("lm_head",), 1)


def _dense_width(layer: Layer) -> int:
    """The width of a dense block, or of all shared experts."""
    feed = layer.feed_forward
    return feed.shared_width if isinstance(feed, MixtureOfExperts) else feed.width if isinstance(feed, Mlp) else 0


def _of_layer(layer: Layer) -> Iterator[Module]:
    mixer, feed = layer.mixer, layer.feed_forward
    if layer.engram is not None:
        yield Module("engram_proj", ("engram.wkv",), 1)
    if mixer is not None:
        attends = isinstance(mixer, (Attention, LatentAttention, CompressedAttention, KimiDelta))
        parents = _ATTENTION if attends else ("linear_attn", "mamba", "mixer")
        for component, parts in _NAMES["mixers"].get(type(mixer).__name__, _RECURRENT).items():
            for leaves in parts:
                yield Module(component, _joined(parents, leaves), 1 / len(parts))
    if feed is None:
        return
    if isinstance(feed, MixtureOfExperts) and feed.latent:
        for leaf, spelled in _NAMES["latent"].items():
            yield Module(leaf, _joined(_FEED, spelled), 1)
    for leaf, spelled in _FEED_LEAVES.items():
        if isinstance(feed, Mlp):
            yield Module(leaf, _joined(_FEED, spelled), feed.width)
        elif isinstance(feed, MixtureOfExperts):
            yield Module(f"expert_{leaf}", _joined(_FEED, _EXPERTS, spelled), 1)
            if feed.shared_width:
                yield Module(leaf, _joined(_FEED, _SHARED, spelled), feed.shared_width)


def _joined(*parts: Sequence[str]) -> tuple[str, ...]:
    names = [""]
    for spelled in parts:
        names = [f"{name}.{each}" if name else each for name in names for each in spelled]
    return tuple(names)


def _leaf(name: str) -> str:
    """The last part of a name: of other spellings an expression means only those that it has in it (qkv_proj)."""
    return name.rpartition(".")[2]


MAX_WILD = 4
"""Wildcards of a regular expression that is evaluated: with more of them matching takes too long."""

_QUANTIFIED = re.compile(r"\)[*+{]|\\[1-9]|\(\?P")
_WILD = re.compile(r"(?:(?<!\\)\.|\\[DSW]|\])[*+{]")


def _expression(text: str, where: str) -> re.Pattern[str]:
    """A regular expression of a file, compiled; raises SpecError for one that could take long to match."""
    if len(text) > 1000 or _QUANTIFIED.search(text) or len(_WILD.findall(text)) > MAX_WILD:
        raise SpecError(where, f"the pattern {quote(text)} of modules is not read: give names, or a simpler one")
    try:
        return re.compile(text)
    except (re.error, OverflowError):
        raise SpecError(where, f"the pattern {quote(text)} of modules is not a regular expression") from None


class Patterns(Generic[T]):
    """Names, globs (`*`) and regular expressions (`re:`) of modules, and what a file says of those that they mean.

    A name means the module of that name, whatever wraps the decoder, those below it, and those whose name has it in one
    piece; a glob those that it matches and those below; an expression those that it begins to match.
    """

    def __init__(self, entries: Mapping[str, T], where: str) -> None:
        self._plain: dict[str, T] = {}
        self._matched: list[tuple[str, re.Pattern[str], T]] = []
        for text, value in entries.items():
            if text.startswith("re:"):
                self._matched.append((text, _expression(text.removeprefix("re:"), where), value))
            elif "*" in text or "?" in text:
                if text.count("*") > 2 * MAX_WILD:
                    raise SpecError(where, f"the pattern {quote(text)} of modules has too many wildcards")
                whole = glob(text).removesuffix(r"\Z").removesuffix(r"\z")
                self._matched.append((text, re.compile(rf"{whole}(?:\.|$)"), value))
            else:
                self._plain[_OUTSIDE.sub("", text.strip(".")) or text] = value
        self._numbers = {part for text in self._plain for part in text.split(".") if part.isdigit()}
        self._numbered = any(map(str.isdigit, "".join(text for text, _, _ in self._matched)))

    def name_layer(self, index: int) -> bool:
        """Whether an entry may mean a layer of this index otherwise than others of its kind."""
        return self._numbered or str(index) in self._numbers

    def find(self, names: Sequence[str]) -> T | None:
        """What is said of a module with these spellings; None for nothing."""
        if self._plain:
            for name in names:
                parts = name.split(".")
                for length in range(len(parts), 0, -1):
                    for at in range(len(parts) - length + 1):
                        found = self._plain.get(".".join(parts[at : at + length]))
                        if found is not None:
                            return found
        for text, pattern, value in self._matched:
            meant = (name for name in names if _leaf(name) == _leaf(names[0]) or _leaf(name) in text)
            if any(pattern.match(wrapper + name) for name in meant for wrapper in _WRAPPERS):
                return value
        return None
