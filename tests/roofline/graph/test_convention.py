"""The LLM-Viewer paper (Yuan et al. 2024) checked against its printed and derived values."""

from __future__ import annotations

import csv

import pytest

from roofline import Analysis, Scenario, analyze, load_hardware, load_model, parse_precision
from tests.paths import DATA

TABLE_1 = list(csv.DictReader((DATA / "llm_viewer_table1.csv").read_text().splitlines()))

# Figure 7: decode of LLaMA-2-13b on an A6000, 1024 tokens, milliseconds a step at FP16, W8, W4, W2, W1.
FIGURE_7 = {
    1: (34.594, 17.860, 9.493, 5.310, 3.218),
    8: (42.479, 25.746, 17.379, 13.195, 11.103),
    16: (51.491, 34.757, 26.390, 22.207, 20.509),
    32: (69.514, 52.780, 44.414, 41.018, 40.999),
    48: (87.538, 70.804, 62.437, 61.501, 61.498),
    60: (101.055, 84.321, 76.916, 76.873, 76.873),
    63: (104.434, 87.701, 80.756, 80.716, 80.716),
}
# Figure 8: its prefill at batch 1, milliseconds by prompt length.
FIGURE_8 = {
    16: (33.763, 17.029, 8.662, 4.479, 2.781),
    32: (34.067, 17.333, 8.966, 5.571, 5.544),
    64: (34.700, 17.966, 11.176, 11.122, 11.096),
    128: (36.069, 22.488, 22.381, 22.328, 22.301),
    256: (45.521, 45.308, 45.201, 45.148, 45.121),
    512: (92.800, 92.587, 92.480, 92.427, 92.400),
    1023: (193.706, 193.493, 193.386, 193.333, 193.306),
}
WIDTHS = ("fp16", "W8", "W4", "W2", "W1")
# Figure 6: the FP16 total in GB, then its shares taken by weights, cache and activations at FP16, W4 and W4KV4.
FIGURE_6 = {
    ("decode", 1, 1024): (26.215, (0.9680, 0.0320, 0.0000), (0.2420, 0.0320, 0.0000), (0.2420, 0.0080, 0.0000)),
    ("decode", 1, 4096): (28.732, (0.8832, 0.1168, 0.0000), (0.2208, 0.1168, 0.0000), (0.2208, 0.0292, 0.0000)),
    ("decode", 16, 1024): (38.802, (0.6540, 0.3459, 0.0001), (0.1635, 0.3459, 0.0001), (0.1635, 0.0865, 0.0001)),
    ("prefill", 1, 1024): (26.533, (0.9564, 0.0316, 0.0120), (0.2391, 0.0316, 0.0120), (0.2391, 0.0079, 0.0120)),
    ("prefill", 1, 4096): (32.019, (0.7925, 0.1048, 0.1027), (0.1981, 0.1048, 0.1027), (0.1981, 0.0262, 0.1027)),
    ("prefill", 16, 1024): (43.898, (0.5781, 0.3058, 0.1162), (0.1445, 0.3058, 0.1162), (0.1445, 0.0764, 0.1162)),
}
# Whole-network milliseconds of LLaMA-2-7b, 2048 tokens, batch 1: prefill, decode.
TOTALS = {
    "fp16": (226.879, 18.637),
    "W8": (226.708, 10.034),
    "W4": (226.623, 5.733),
    "W4KV4": (225.574, 4.683),
    "W8A8KV8": (113.433, 9.319),
    "W4A4KV4": (100.350, 4.659),
}


def viewer(model: str, scheme: str = "fp16", **workload: int) -> Analysis:
    precision = parse_precision("fp16", scheme)
    return analyze(
        Scenario(load_model(model), load_hardware("a6000"), precision=precision, convention="llm-viewer", **workload)
    )


def printed(value: float) -> str:
    """As the paper prints: the nearest integer of the SI unit."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if value >= scale:
            return f"{value / scale:.0f}{prefix}"
    return f"{value:.0f}"


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: f"{row['phase']}-{row['operator']}")
def test_table_1(row: dict[str, str]) -> None:
    answer = viewer("llama-2-7b", prompt=2048)
    op = next(op for op in getattr(answer, row["phase"]).ops if op.name == row["operator"])
    assert op.flops == int(row["operations"])
    assert op.bytes == int(row["bytes"])
    assert op.bound == row["bound"]
    assert printed(op.flops) == row["printed_operations"]
    assert printed(op.bytes) == row["printed_bytes"]
    digits = len(row["printed_intensity"].partition(".")[2])
    assert f"{op.intensity:.{digits}f}" == row["printed_intensity"]
    assert printed(op.attainable) == row["printed_performance"]


@pytest.mark.parametrize("batch", FIGURE_7)
def test_figure_7_decode_against_batch(batch: int) -> None:
    times = [viewer("llama-2-13b", width, batch=batch, prompt=1024).decode.bound_time for width in WIDTHS]
    assert [1e3 * time for time in times] == pytest.approx(FIGURE_7[batch], rel=1e-3)


@pytest.mark.parametrize("prompt", FIGURE_8)
def test_figure_8_prefill_against_length(prompt: int) -> None:
    times = [viewer("llama-2-13b", width, prompt=prompt).prefill.bound_time for width in WIDTHS]
    assert [1e3 * time for time in times] == pytest.approx(FIGURE_8[prompt], rel=1e-3)


@pytest.mark.parametrize("group", FIGURE_6, ids=str)
def test_figure_6_memory(group: tuple[str, int, int]) -> None:
    from roofline.bound.memory import activation_peak

    phase, batch, length = group
    total_gb, *shares = FIGURE_6[group]
    for scheme, expected in zip(("fp16", "W4", "W4KV4"), shares, strict=True):
        answer = viewer("llama-2-13b", scheme, batch=batch, prompt=length)
        step = getattr(answer.scenario, f"{phase}_step")
        activations = float(activation_peak(answer.network, step, answer.scenario.convention)[0])
        parts = (answer.memory.weights, answer.memory.kv_cache, activations)
        if scheme == "fp16":
            assert sum(parts) / 1e9 == pytest.approx(total_gb, rel=1e-3)
        # The shares are given to four decimals.
        assert [part / total_gb / 1e9 for part in parts] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("scheme", TOTALS)
def test_network_totals(scheme: str) -> None:
    answer = viewer("llama-2-7b", scheme, prompt=2048)
    assert 1e3 * answer.prefill.bound_time == pytest.approx(TOTALS[scheme][0], rel=1e-3)
    assert 1e3 * answer.decode.bound_time == pytest.approx(TOTALS[scheme][1], rel=1e-3)


def test_network_counts() -> None:
    answer = viewer("llama-2-7b", prompt=2048)
    assert answer.prefill.flops == pytest.approx(28.7512e12, rel=1e-5)
    assert answer.prefill.bytes == pytest.approx(65.861e9, rel=1e-5)
    assert answer.decode.flops == pytest.approx(14.1697e9, rel=1e-5)
    assert answer.decode.bytes == pytest.approx(14.3132e9, rel=1e-5)


def test_ridge_point_of_linear_layers_in_tokens() -> None:
    # Derived for LLaMA-2-13b on the A6000: h x h and gate/up, for W16, W8, W4, W2, W1.
    expected = {"fp16": (219, 214), "W8": (110, 107), "W4": (55, 54), "W2": (28, 27), "W1": (14, 14)}
    for scheme, (square, wide) in expected.items():
        for name, tokens in (("q_proj", square), ("gate_proj", wide)):
            bounds = [
                next(op.bound for op in viewer("llama-2-13b", scheme, prompt=count).prefill.ops if op.name == name)
                for count in (tokens - 1, tokens)
            ]
            assert bounds == ["memory", "compute"], (scheme, name)


def test_physical_counting_is_independent_of_the_convention() -> None:
    physical = analyze(Scenario(load_model("llama-2-7b"), load_hardware("a6000"), prompt=2048, fusions=()))
    named = {op.name: op for op in physical.prefill.ops}
    assert named["qk_matmul"].flops == 2 * 4096 * 2048 * 2049 / 2
    assert named["attn_add"].bytes == 3 * 2 * 2048 * 4096
    assert named["mlp_act"].flops == 5 * 2048 * 11008
    assert named["lm_head"].flops == 2 * 4096 * 32000
    assert physical.memory.weights == 2 * 6738415616
