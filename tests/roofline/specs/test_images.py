"""Images of any size: tokens by the rules of the released image processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import RooflineError, Scenario, analyze, load_hardware, load_model
from roofline.scenario.notes import notes
from roofline.specs.images import ImageSize, encoded_image, parse_image_size

L40S = load_hardware("l40s")


def of(model: str, size: str | None = None, images: int = 1) -> Scenario:
    return Scenario(load_model(model), L40S, prompt=100, images=images, image_size=size)


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [
        ("qwen2-vl-7b", "1024x768", 37 * 27),  # 1036 x 756 pixels, 28 x 28 a token
        ("qwen2.5-vl-7b", "448x448", 16 * 16),
        ("qwen2-vl-2b", "28x28", 2 * 2),  # at least 56 x 56 pixels
        ("qwen3.5-27b", "1024x768", 32 * 24),  # 32 x 32 pixels a token
        ("qwen3.5-27b", "100x100", 8 * 8),  # at least 256 x 256 pixels
        ("qwen3-vl-8b", "1024x768", 32 * 24),
        ("mistral-small-3.2-24b", "1540x1540", 55 * 55),  # 28 x 28 pixels a token
        ("mistral-small-3.2-24b", "3080x1540", 55 * 28),  # sides of at most 1540 pixels, rounded up
        ("mistral-small-3.2-24b", "29x10", 2 * 1),
        ("kimi-k2.5", "1024x768", 37 * 28),  # padded to 1036 x 784
        ("kimi-k2.5", "100x30", 4 * 2),  # never enlarged
        ("kimi-k2.5", "4000x3000", 75 * 56),  # 2,078 x 1,558 pixels have 16,384 patches
        ("kimi-k3", "4000x3000", 143 * 108),
        ("kimi-k2.5", "8000x100", 256 * 4),  # 7,168 x 89 pixels: 512 patches on a side
        ("gemma-4-31b", "1024x768", 19 * 14),
        ("gemma-4-31b", "448x448", 16 * 16),  # enlarged to 768 x 768
        ("gemma-4-31b", "10000x10", 280),  # 13,440 x 48 pixels
        ("glm-4.1v-9b", "1024x768", 37 * 27),
        ("glm-4.1v-9b", "4000x3000", 90 * 67),  # 9,633,792 pixels of two frames, so that one has 4,816,896
        ("llava-1.5-7b", "1024x768", 576),  # any image becomes 336 x 336
        ("internvl3-8b", "448x448", 256),
        ("internvl3-8b", "1024x768", 13 * 256),  # 4 x 3 tiles, as exact as their ratio, and the thumbnail
        ("minimax-m3", "448x448", 256),
        ("minimax-m3", "1024x768", 27 * 20),  # at most 672 x 672 pixels
        ("internvl3-8b", "800x400", 3 * 256),  # of 2 x 1 and 4 x 2 tiles those below twice the image's area
        ("internvl3-8b", "1600x800", 9 * 256),
        ("internvl3-78b", "100x1000", 11 * 256),  # 1 x 10 tiles
        ("llama-4-scout", "336x336", 144),
        ("llama-4-scout", "672x336", 3 * 144),  # two tiles and the thumbnail
        ("llama-4-scout", "1024x768", 13 * 144),  # 4 x 3 tiles and the thumbnail
    ],
)
def test_tokens_of_an_image(model: str, size: str, tokens: int) -> None:
    assert of(model, size).image_tokens == tokens
    assert of(model, size, images=2).prompt_tokens == 100 + 2 * tokens


def test_without_a_size_an_image_has_that_of_the_spec() -> None:
    assert of("qwen2-vl-7b").image_tokens == 256
    assert of("llama-4-scout").image_tokens == 144


def test_the_encoder_runs_over_all_patches_of_the_image() -> None:
    """Linear layers of Qwen2-VL's encoder: 4 d^2 of attention and 8 d^2 of the MLP a patch, four patches a token."""
    answer = analyze(of("qwen2-vl-7b", "1024x768"))
    section = {op.name: op for op in answer.prefill.ops if op.section == "encoder layer"}
    assert section["q_proj"].flops == 4 * 999 * (2 * 1280 * 1280 + 1280)
    tiles = analyze(of("llama-4-scout", "672x336"))
    own = {op.name: op for op in tiles.prefill.ops if op.section == "encoder layer"}
    assert own["q_proj"].flops == 3 * 576 * (2 * 1408 * 1408 + 1408)


def test_deepstack_projects_the_outputs_of_three_more_layers() -> None:
    """Qwen3-VL 8B: 4,608 numbers a token through 4608 x 4608 and 4608 x 4096, four times in all."""
    ops = analyze(of("qwen3-vl-8b", "512x512")).prefill.ops
    projectors = [op for op in ops if "projector_" in op.name and "act" not in op.name]
    once = 256 * (2 * 4608 * 4608 + 4608 + 2 * 4608 * 4096 + 4096)
    assert sum(op.flops for op in projectors) == 4 * once
    assert len(projectors) == 8


@pytest.mark.parametrize("changed", [{"projector_bias": (True,)}, {"projector": (), "merger": (4608, 4096)}])
def test_projections_have_as_many_biases_as_they_are(changed: dict[str, Any]) -> None:
    tower = load_model("qwen3-vl-8b").tower
    assert tower is not None
    with pytest.raises(RooflineError, match="project"):
        replace(tower, **changed)


@given(st.integers(1, 20000), st.integers(1, 20000))
def test_a_resized_image_keeps_within_the_bounds(width: int, height: int) -> None:
    model = load_model("qwen2-vl-7b")
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(RooflineError, match="over 200 times"):
            encoded_image(model, ImageSize(width, height))
        return
    pixels = encoded_image(model, ImageSize(width, height)).positions * 14 * 14
    assert pixels <= 12845056 or min(width, height) < 28 * 28
    assert pixels >= 3136 - 28 * 28
    assert encoded_image(model, ImageSize(height, width)).positions * 14 * 14 == pixels


@pytest.mark.parametrize("text", ["1024", "x", "0x5", "1024x-1", "1e3x10", "1000001x5", "²x5", ""])
def test_invalid_image_sizes(text: str) -> None:
    with pytest.raises(RooflineError, match="width x height in pixels"):
        parse_image_size(text)
    with pytest.raises(RooflineError, match="width x height in pixels"):
        of("qwen2-vl-7b", text)


def test_sizes_without_effect_are_noted() -> None:
    def said(model: str, size: str, images: int = 1) -> list[str]:
        return [note for note in notes(analyze(of(model, size, images))) if note.startswith("--image-size")]

    assert not said("qwen2-vl-7b", "1024x768")
    assert said("qwen2-vl-7b", "1024x768", 0) == ["--image-size 1024x768 has no effect: there are no images"]
    assert said("llava-1.5-7b", "64x64")[0].endswith("llava-1.5-7b resizes every image to the same size")


def test_a_grid_of_images_has_one_size() -> None:
    grid = Scenario(load_model("qwen2-vl-7b"), L40S, prompt=100, images=np.array([0, 1, 2]), image_size="1024x768")
    one = analyze(of("qwen2-vl-7b", "1024x768")).prefill.bound_time
    assert analyze(grid).prefill.bound_time[1] == pytest.approx(one)
