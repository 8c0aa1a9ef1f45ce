"""llama.cpp's file types against the sizes of published files, and the rules that mix formats in them."""

from __future__ import annotations

import pytest

from roofline import Scenario, load_model, parse_precision
from roofline.bound.memory import parameters, weight_bytes
from roofline.graph.network import network
from roofline.specs.formats import find_format
from roofline.specs.schemes import find_weight_scheme

GIB = 2**30

# Llama-3-70B files made with an importance matrix, GiB (XiongjieDai's table of dranger003's files; llama.cpp PR 6745);
# Llama-2-7B (llama.cpp PR 3084), gpt-oss and Llama-3-8B (llama-bench listings in llama.cpp PRs 7716 and 16894).
PUBLISHED = (
    ("llama-3-70b", "iq1_s", 14.29),
    ("llama-3-70b", "iq2_xxs", 17.79),
    ("llama-3-70b", "iq2_m", 22.46),
    ("llama-3-70b", "iq3_xxs", 25.58),
    ("llama-3-70b", "iq3_xs", 27.29),
    ("llama-3-70b", "iq3_m", 29.74),
    ("llama-3-70b", "iq4_xs", 35.3),
    ("llama-3-70b", "q2_k_s", 22.79),
    ("llama-3-70b", "q3_k_l", 34.59),
    ("llama-3-70b", "q4_k_s", 37.58),
    ("llama-3-70b", "q4_k_m", 39.6),
    ("llama-2-7b", "q4_k_s", 3.59),
    ("llama-2-7b", "q5_k_s", 4.33),
    ("llama-2-7b", "q4_1", 3.95),
    ("llama-3-8b", "q5_1", 5.64),
    ("gpt-oss-120b", "mxfp4_moe", 59.02),
)


@pytest.mark.parametrize(("model", "scheme", "gib"), PUBLISHED)
def test_file_sizes_match_published_files(model: str, scheme: str, gib: float) -> None:
    found = weight_bytes(network(load_model(model), parse_precision("fp16", scheme))) / GIB
    # Printed in hundredths; beside its tensors a file holds the vocabulary, up to 8 MB for Llama 3's 128,256 tokens.
    assert -0.0055 < gib - found < 0.005 + 0.008


def test_rows_that_blocks_do_not_divide_fall_back() -> None:
    """Gemma 4 26B-A4B, experts of 704 columns: 15.70 GiB in Q4_K_M (ggml-org/llama.cpp, issue 22413).

    A Nemotron of 30B-A3B with 2,688 and 1,856 columns: 6.18 bits a weight, 5.00 without (pull request 28474).
    """
    gemma, nemotron = load_model("gemma-4-26b-a4b"), load_model("nemotron-3-nano-30b-a3b")
    found = [weight_bytes(network(model, parse_precision("bf16", "q4_k_m"))) for model in (gemma, nemotron)]
    assert found[0] / GIB == pytest.approx(15.70, rel=0.01)
    assert found[1] * 8 / parameters(nemotron) == pytest.approx(6.18, rel=0.015)


@pytest.mark.parametrize(("scheme", "size"), [("q6_k", 12.04e9), ("mxfp4_moe", 12.1e9)])
def test_experts_released_in_mxfp4_stay_so(scheme: str, size: float) -> None:
    """The files of bartowski/openai_gpt-oss-20b-GGUF, by its model card."""
    asked = Scenario("gpt-oss-20b", "rtx-4090", quant=scheme, engine="llama.cpp")
    assert weight_bytes(network(asked.model, asked.precision)) == pytest.approx(size, rel=0.005)


def test_bits_of_block_formats() -> None:
    bits = {
        "iq1_s": 1.5625,
        "iq1_m": 1.75,
        "iq2_xxs": 2.0625,
        "iq3_s": 3.4375,
        "iq4_xs": 4.25,
        "q5_0": 5.5,
        "q4_1": 5.0,
    }
    for name, expected in bits.items():
        assert find_format(name).bits == expected


def test_v_proj_has_more_bits_in_70b_models() -> None:
    scheme, base = find_weight_scheme("q3_k_s"), find_format("fp16")
    assert scheme.format_of("v_proj", base, 32, 4).name == "q3_k"
    assert scheme.format_of("v_proj", base, 80, 8).name == "q5_k"
    assert scheme.format_of("k_proj", base, 80, 8).name == "q3_k"


def test_gqa_rule_within_the_depth_rule() -> None:
    scheme, base = find_weight_scheme("iq3_s"), find_format("fp16")
    names = [scheme.format_of("v_proj", base, layers, group).name for layers, group in ((32, 1), (32, 4), (80, 8))]
    assert names == ["iq3_s", "q4_k", "q5_k"]
