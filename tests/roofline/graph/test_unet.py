"""U-Nets of latent diffusion models: closed forms, published sizes and multiply-adds, what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from roofline import Model, RooflineError, Scenario, SpecError, analyze, load_hardware, load_model, parameters
from roofline.scenario.settings import Settings
from roofline.specs.huggingface import translate
from roofline.specs.modelspec import parse_model
from roofline.specs.written import to_spec
from roofline.techniques import apply_techniques, techniques
from tests.paths import CONFIGS

H100 = load_hardware("h100-sxm")


def tiny(**changes: Any) -> Model:
    """Two levels of one residual block, the first with a transformer block; 4 and 8 channels, text of 3 x 6."""
    sizes = {"channels": [4, 8], "depths": [1, 0], "heads": [2, 2], "middle": 0, "text_width": 6, "text_tokens": 3}
    unet = {**sizes, "blocks": 1, "inputs": 1, "outputs": 2, **changes.pop("unet", {})}
    base = {"name": "tiny", "task": "encode", "hidden": 4, "layers": 1, "norm": {"kind": "layernorm"}, "lm_head": False}
    return parse_model({**base, "unet": unet, **changes}, "tiny.yaml")


def total(model: Model, prompt: int, *kinds: str) -> float:
    ops = analyze(Scenario(model, H100, prompt=prompt)).prefill.ops
    return sum(op.count * op.flops for op in ops if op.kind in kinds)


def test_parameters_of_a_tiny_u_net_by_hand() -> None:
    def residual(inputs: int, outputs: int) -> int:
        norms, convolutions = 2 * inputs + 2 * outputs, 9 * (inputs + outputs) * outputs + 2 * outputs
        condition, shortcut = 16 * outputs + outputs, (inputs + 1) * outputs if inputs != outputs else 0
        return norms + convolutions + condition + shortcut

    attention, cross = 4 * 16 + 4, 2 * 16 + 2 * 6 * 4 + 4
    geglu = 4 * 32 + 32 + 16 * 4 + 4
    transformer = (8 + 20) + 3 * 8 + attention + cross + geglu + 20  # norm and projections around the block
    time = 4 * 16 + 16 + 16 * 16 + 16
    ends = 9 * 4 + 4 + time + 8 + 9 * 4 * 2 + 2
    # The way up reads skip connections of 8 and 4 channels at the second level, 4 and 4 at the first.
    down, middle = residual(4, 4) + transformer + 9 * 16 + 4 + residual(4, 8), 2 * residual(8, 8)
    up = residual(16, 8) + residual(12, 8) + 9 * 64 + 8 + residual(12, 4) + residual(8, 4) + 2 * transformer
    assert parameters(tiny()) == ends + down + middle + up


def test_operators_of_a_tiny_u_net_by_hand() -> None:
    """16 positions, so four at the second level; attention of the three transformer blocks sees 16 keys, and three."""
    answer = analyze(Scenario(tiny(), H100, batch=2, prompt=16))
    found = {(op.section, op.name): op for op in answer.prefill.ops}
    down = found["level_0_down", "downsample"]
    assert down.flops == 2 * 4 * (2 * 9 * 4 * 4 + 4)
    assert down.bytes == 2 * (2 * 16 * 4 + 9 * 4 * 4 + 4 + 2 * 4 * 4)  # each position is read once
    up = found["level_1_up", "upsample_convolution"]
    assert up.flops == 2 * 16 * (2 * 9 * 8 * 8 + 8)
    assert found["level_1_up", "upsample"].bytes == 2 * 2 * (4 + 16) * 8
    joined = found["level_1_residual_12_8_with_skip", "concatenate"]
    assert joined.bytes == 2 * 2 * 4 * (8 + 4 + 12)
    own, cross = (found["level_0_transformer", name] for name in ("fused_attention", "cross_fused_attention"))
    assert own.count == cross.count == 3
    assert own.flops == 2 * 2 * 16 * 16 * (4 * 2 + 5)
    assert cross.flops == 2 * 2 * 16 * 3 * (4 * 2 + 5)
    assert cross.bytes == 2 * 2 * 2 * (16 + 3) * 4
    assert found["level_0_transformer", "cross_k_proj"].flops == 2 * 2 * 3 * 6 * 4
    assert answer.decode is None
    assert answer.memory.kv_cache == 0


@pytest.mark.parametrize(
    ("name", "size", "multiply_adds"),
    [
        # Nota-NetsPresso/BK-SDM, issue 53: 338,749,194,240 by thop, which leaves products of attention out.
        ("stable-diffusion-1.5", 859_520_964, 338.749e9),
        # HaozheLiu-ST/T-GATE, README: 149.438 T for 25 steps with guidance, so 50 passes, counted likewise.
        ("sdxl-base-1.0", 2_567_463_684, 149.438e12 / 50),
    ],
)
def test_published_sizes_and_multiply_adds(name: str, size: int, multiply_adds: float) -> None:
    model = load_model(name)
    assert parameters(model) == size
    assert Scenario(model, H100).prompt == model.max_context
    assert total(model, Scenario(model, H100).prompt, "gemm") / 2 == pytest.approx(multiply_adds, rel=5e-4)


def test_all_multiply_adds_of_stable_diffusion() -> None:
    """ThanatosShinji/onnx-tool, README: 888,870 M for a batch of two, of which softmax, norms and others are a part."""
    products = total(load_model("stable-diffusion-1.5"), 4096, "gemm", "attention") / 2
    assert 0.88 < products / (888.87e9 / 2) < 1


def test_skip_connections_stay_in_memory() -> None:
    """With three residual blocks a level instead of one, two more skip connections of the first level are held."""
    static = Settings(memory="static")
    plain = analyze(Scenario(tiny(), H100, batch=8, prompt=16, settings=static)).memory.activation_peak
    wide = analyze(Scenario(tiny(unet={"blocks": 3}), H100, batch=8, prompt=16, settings=static)).memory.activation_peak
    assert wide - plain == 8 * 16 * 4 * 2 * 2  # two more skip connections of the first level


def test_cross_attention_takes_less_than_attention_to_all_positions() -> None:
    answer = analyze(Scenario(load_model("stable-diffusion-1.5"), H100))
    pairs = zip(answer.prefill.ops, answer.prefill.expected_ops, strict=True)
    times = {op.name: run.time.mid for op, run in pairs if op.section == "level_0_transformer"}
    assert times["cross_fused_attention"] < times["fused_attention"] / 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unet": {"heads": [3, 2]}}, "'unet': the channels of each level are divisible by its heads"),
        ({"unet": {"depths": [1]}}, "'unet': channels, depths and heads have one entry for each level"),
        ({"layers": 2}, "'unet' is a whole model"),
        ({"task": "generate"}, "'unet' is a whole model"),
        ({"mlp": {"width": 8, "gated": False, "activation": "gelu"}}, "'unet' is a whole model"),
    ],
)
def test_refused_specs(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        tiny(**changes)


def test_a_spec_survives_the_round_trip() -> None:
    model = tiny(unet={"added": 5})
    assert parse_model(to_spec(model), "again") == model


@pytest.mark.slow
def test_every_technique_runs_or_says_why_not() -> None:
    refused = []
    for name in techniques():
        try:
            analyze(apply_techniques(Scenario(tiny(), H100, prompt=16), [name]))
        except RooflineError:
            refused.append(name)
    assert {"layer-pruning", "llmlingua", "eagle", "tensor-parallelism", "h2o", "paged-attention"} <= set(refused)
    assert not {"fp8", "gptq", "lora", "asvd", "data-parallelism"} & set(refused)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"down_block_types": ["AttnDownBlock2D"] * 4}, "'down_block_types': unsupported block 'AttnDownBlock2D'"),
        ({"up_block_types": ["UpBlock2D"] * 4}, "'up_block_types' must mirror 'down_block_types'"),
        ({"attention_head_dim": [8, 8]}, "'attention_head_dim' must have one entry for each of 4 levels"),
        ({"class_embed_type": "projection"}, "'class_embed_type' is not supported"),
        ({"block_out_channels": None}, "the key 'block_out_channels' is missing"),
    ],
)
def test_refused_configs(changes: dict[str, Any], reason: str) -> None:
    config = json.loads((CONFIGS / "stable-diffusion-1.5.json").read_text())
    with pytest.raises(SpecError, match=reason):
        translate({**config, **changes}, "config.json", "unet")
