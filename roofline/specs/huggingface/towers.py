"""Vision encoders by family: rows of `towers.yaml`, and what their files say otherwise than by one value a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TypeAlias

from roofline.core.errors import SpecError
from roofline.specs.huggingface.config import Config, Spec, rows
from roofline.specs.huggingface.expressions import Scope
from roofline.specs.huggingface.families import check, fill, row
from roofline.specs.modelspec import ModelSpec

Tower: TypeAlias = Callable[[Config, Config, Spec], Spec]
"""From a file, its section of the tower and the spec of the text decoder to the keys of the tower."""


def read_tower(name: str, file: Config, vision: Config, text: Spec) -> Spec:
    """The keys of a tower by its row."""
    vision = vision.having(KEYS[name](vision)) if name in KEYS else vision
    found, scope = _tower(name), Scope(vision, others={"file": file, "text": text})
    check(found.get("needed", {}), scope)
    return fill(ModelSpec, {key: source for key, source in found.items() if key != "needed"}, scope)


@cache
def _tower(name: str) -> Mapping[str, Mapping[str, str]]:
    return row("towers.yaml", name)


def _sides(vision: Config) -> Spec:
    """Squares alone: InternVL's own files give sides as single numbers."""
    usual, problem = {"patch_size": 14, "image_size": 448}, "only squares are supported"
    return {name: vision.same(name, default, problem) for name, default in usual.items()}


def _merged(vision: Config) -> Spec:
    sides = vision.integers("merge_kernel_size") or [2, 2]
    if len(set(sides)) != 1:
        raise SpecError(vision.where, "'merge_kernel_size' must be the same along both sides")
    return {"merged_side": sides[0]}


KEYS: Mapping[str, Callable[[Config], Spec]] = {"intern_vit": _sides, "moonvit": _merged, "moonvit_2": _merged}
"""Keys that a row reads in place of what the file says."""


def _intern_vit(config: Config, vision: Config, text: Spec) -> Spec:
    spec = read_tower("intern_vit", config, vision, text)
    if not config.flag("dynamic_image_size", True):
        del spec["image"]
    return spec


def _qwen2_5_vl(config: Config, vision: Config, text: Spec) -> Spec:
    """Most layers of the tower see windows of 112 x 112 pixels."""
    spec = read_tower("qwen2_5_vl", config, vision, text)
    tower, full = spec["tower"], vision.integers("fullatt_block_indexes") or [7, 15, 23, 31]
    window = (vision.integer("window_size", default=112) // spec["image"]["patch"]) ** 2
    pattern = ["full" if index in full else "local" for index in range(tower["layers"])]
    tower["layers"] = {"count": len(pattern), "pattern": pattern}
    tower["blocks"] = {"local": {"attention": {"window": window}}, "full": {}}
    return spec


TOWERS: Mapping[str, Tower] = {
    **{name: partial(read_tower, name) for name in rows("towers.yaml")},
    "intern_vit": _intern_vit,
    "qwen2_5_vl": _qwen2_5_vl,
}
