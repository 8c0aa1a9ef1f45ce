"""Tokens of an image by its size: what an image processor makes of a picture before the vision encoder sees it.

Dynamic resolution: the image is resized to the nearest multiple of what becomes one token, within bounds on its pixels
(Qwen2-VL to Qwen3.5), or to the next one within a bound on its sides (Pixtral), or padded to it (Kimi), or to the
largest one of as many pixels (Gemma 4). Tiles: it is resized into a grid of square tiles, which scales it least (Llama
4) or is closest to its aspect ratio (InternVL), and a thumbnail is added. Without a rule (LLaVA-1.5) every image is
resized to one size.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from roofline.core.errors import RooflineError, quote
from roofline.specs.model import ImageRule, Model

MAX_SIDE = 10**5
"""The longest accepted side of an image in pixels."""

MAX_ASPECT = 200
"""The largest ratio of the sides that Qwen's image processors accept."""


class ImageSize(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


class EncodedImage(NamedTuple):
    """The passes of the vision encoder over one image: `tiles` sequences of `positions` patches."""

    tiles: int
    positions: int


def parse_image_size(text: str) -> ImageSize:
    """The size written as WIDTHxHEIGHT, `1024x768`; raises RooflineError."""
    match = re.fullmatch(r"([0-9]{1,6})\s*[xX×]\s*([0-9]{1,6})", text.strip())
    sides = [int(side) for side in match.groups()] if match else []
    if not sides or not all(1 <= side <= MAX_SIDE for side in sides):
        problem = f"width x height in pixels, each 1 to {MAX_SIDE}, like 1024x768"
        raise RooflineError(f"the size of images must be {problem}, got {quote(text)}", options=["image_size"])
    return ImageSize(*sides)


def encoded_image(model: Model, size: ImageSize | None) -> EncodedImage:
    """What the vision encoder of `model` sees of an image of that size; of the spec's size without one.

    Raises RooflineError for a size that the image processor rejects.
    """
    default = EncodedImage(1, model.tower_tokens or 0)
    rule = model.image
    if size is None or rule is None:
        return default
    if rule.tile is not None:
        tiles = (_closest_grid if rule.grid == "aspect" else _grid_tiles)(size, rule.tile, rule.tiles or 1)
        return EncodedImage(tiles + 1 if tiles > 1 else 1, (rule.tile // rule.patch) ** 2)
    if rule.padded:
        width, height = _padded(size, rule)
    elif rule.filled and rule.max_pixels:
        width, height = _filled(size, rule.patch * rule.merge, rule.max_pixels)
    else:
        width, height = _resized(size, rule) if rule.max_side is None else _fitted(size, rule, rule.max_side)
    return EncodedImage(1, (width // rule.patch) * (height // rule.patch))


def largest_image(model: Model) -> EncodedImage:
    """What the vision encoder sees of the largest image that the image processor keeps; the spec's where none is."""
    rule = model.image
    if rule is None:
        return EncodedImage(1, model.tower_tokens or 0)
    if rule.tile is not None:
        tiles = rule.tiles or 1
        return EncodedImage(tiles + 1 if tiles > 1 else 1, (rule.tile // rule.patch) ** 2)
    most = [pixels for pixels in (rule.max_pixels, rule.max_side and rule.max_side**2) if pixels]
    return EncodedImage(1, min(most) // rule.patch**2 if most else model.tower_tokens or 0)


def default_size(model: Model) -> ImageSize:
    """The square image that a model's vision encoder sees without a size."""
    patch = model.image.patch if model.image else math.isqrt((model.tower.patch or 3) // 3) if model.tower else 1
    side = math.isqrt(model.tower_tokens or 0) * patch
    return ImageSize(side, side)


def _resized(size: ImageSize, rule: ImageRule) -> ImageSize:
    """The size to the nearest multiples of a token's side, with the area between the rule's bounds.

    transformers, image_processing_qwen2_vl.py, smart_resize.
    """
    if max(size) > MAX_ASPECT * min(size):
        raise RooflineError(
            f"images of {size.width}x{size.height}: the longer side is over {MAX_ASPECT} times the other",
            options=["image_size"],
        )
    side = rule.patch * rule.merge
    area = size.width * size.height
    rounded = ImageSize(*(max(side, round(length / side) * side) for length in size))
    pixels = rounded.width * rounded.height
    if rule.max_pixels is not None and pixels > rule.max_pixels:
        shrink = math.sqrt(area / rule.max_pixels)
        return ImageSize(*(max(side, math.floor(length / shrink / side) * side) for length in size))
    if rule.min_pixels is not None and pixels < rule.min_pixels:
        grow = math.sqrt(rule.min_pixels / area)
        return ImageSize(*(math.ceil(length * grow / side) * side for length in size))
    return rounded


def _padded(size: ImageSize, rule: ImageRule) -> ImageSize:
    """The size of at most the rule's patches, and as many on a side, each side padded to a multiple of a token's.

    navit_resize_image of Kimi K2.5's and K3's processors (media_utils.py), whose patch_limit_on_one_side is 512.
    """
    patches = math.prod(max(1, length // rule.patch) for length in size)
    scale = min(
        1.0, math.sqrt((rule.max_pixels or math.inf) / rule.patch**2 / patches), (rule.max_side or math.inf) / max(size)
    )
    side = rule.patch * rule.merge
    return ImageSize(*(-(-max(1, int(length * scale)) // side) * side for length in size))


def _filled(size: ImageSize, side: int, pixels: int) -> ImageSize:
    """The size scaled to `pixels`, each side rounded down to a multiple of a token's, `side`.

    transformers, image_processing_gemma4.py, get_aspect_ratio_preserving_size.
    """
    scale = math.sqrt(pixels / (size.width * size.height)) / side
    return ImageSize(*(max(1, min(math.floor(length * scale), pixels // side**2)) * side for length in size))


def _fitted(size: ImageSize, rule: ImageRule, most: int) -> ImageSize:
    """The size with sides of at most `most` pixels, rounded up to multiples of a token's side.

    transformers, image_processing_pixtral.py, get_resize_output_image_size.
    """
    ratio = max(1.0, size.width / most, size.height / most)
    side = rule.patch * rule.merge
    return ImageSize(*(max(1, math.ceil(math.floor(length / ratio) / side)) * side for length in size))


def _grids(most: int) -> list[tuple[int, int]]:
    """All grids of up to `most` tiles, as tiles in width and height."""
    return [(wide, high) for wide in range(1, most + 1) for high in range(1, most // wide + 1)]


def _closest_grid(size: ImageSize, tile: int, most: int) -> int:
    """Tiles of the grid whose aspect ratio is closest to the image's; of equal ones the largest below twice its area.

    transformers, image_processing_got_ocr2.py, get_optimal_tiled_canvas, which InternVL uses.
    """
    ratio, area = size.width / size.height, size.width * size.height
    found, least = 1, math.inf
    for wide, high in sorted(_grids(most), key=lambda grid: grid[0] * grid[1]):
        apart = abs(ratio - wide / high)
        if apart < least or (apart == least and area > tile * tile * wide * high / 2):
            found, least = wide * high, apart
    return found


def _grid_tiles(size: ImageSize, tile: int, most: int) -> int:
    """Tiles of the grid that the image fills best: the least enlargement, else the least reduction.

    transformers, image_processing_llama4_fast.py, find_supported_resolutions and get_best_fit.
    """
    grids = _grids(most)
    scales = {grid: min(grid[0] * tile / size.width, grid[1] * tile / size.height) for grid in grids}
    enlarged = [scale for scale in scales.values() if scale >= 1]
    chosen = min(enlarged) if enlarged else max(scales.values())
    return min(wide * high for (wide, high), scale in scales.items() if scale == chosen)
