"""Comparisons of scores that are all alike: each with each in rows of up to as many as a kernel ranks at once."""

import numpy as np
import pytest

from lab.observation.selecting import ENGINES, ROWS, comparisons, counted
from roofline.timing.kernels import kernel


def of(engine, batch, tokens, cached, kept=512.0, ratio=4.0):
    return float(comparisons(engine, *(np.array([float(one)]) for one in (batch, tokens, cached, kept)), ratio)[0])


def test_each_score_of_a_row_is_compared_with_each():
    scores = np.arange(4096, 8192) / 4.0
    assert of("vllm", 1, 4096, 4096) == pytest.approx(np.sum(scores**2), rel=1e-3)


@pytest.mark.parametrize(("tokens", "cached"), [(2048, 0), (4096, 16384)])
def test_rows_that_keep_all_scores_or_have_more_than_fit_compare_none(tokens, cached):
    assert of("vllm", 1, tokens, cached) == 0.0


def test_one_engine_ranks_longer_rows_at_once():
    assert of("tensorrt-llm", 1, 4096, 8192) > of("vllm", 1, 4096, 8192) == 0.0


def test_engines_with_other_kernels_compare_none():
    assert "sglang" not in ENGINES
    assert of("sglang", 8, 4096, 4096) == 0.0


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_beyond_the_first_of_a_call_are_sorted(engine):
    one, tokens = of(engine, 1, 4096, 4096), 4096.0  # vLLM has four such sequences in a call, 16,384 rows
    assert of(engine, ROWS / tokens, tokens, 4096) == pytest.approx(one * ROWS / tokens)
    assert of(engine, 2 * ROWS / tokens, tokens, 4096) < 2 * one * ROWS / tokens


def test_a_call_of_vllm_holds_scores_of_512_mib():
    tokens, cached = 4096.0, 4096.0  # 2,048 scores of 4,096 tokens: four sequences have 16,384 rows of 8,192 scores
    four, eight = (of("vllm", count, tokens, cached) for count in (4, 8))
    assert eight == pytest.approx(2 * four)
    assert four == pytest.approx(3 * of("vllm", 1, tokens, cached))


def selected(batch, keys, kept, scored):
    """The selections of so many tokens, which attend to `keys` of the scored ones each on the mean."""
    columns = {"batch": batch, "kv_len": keys, "slots": kept, "scored": scored, "heads": 8.0, "width": 2176.0}
    columns |= {"entry": 576.0, "index_flops": 16384.0, "index_key": 132.0, "dtype": "bf16", "kv_dtype": "fp8"}
    return kernel("sparse_prefill").shape(columns)


def test_units_without_a_token_wait_for_those_that_count():
    """One token takes as long as one for each unit, and twice as many tokens take twice as long."""
    tokens = np.array([1.0, 132.0, 264.0])
    one, all_units, twice = counted(selected(tokens, 2048.0, 2048.0, 1e5 * tokens), 132.0)
    assert one == pytest.approx(all_units)
    assert twice == pytest.approx(2 * all_units)


@pytest.mark.parametrize("length", [1000, 2048, 5000, 32768])
def test_rows_of_a_prompt_that_leave_scores_out_count_all_of_theirs(length):
    visible, kept = np.arange(1.0, length + 1), 2048.0
    keys = np.minimum(visible, kept).mean()
    found = counted(selected(float(length), keys, kept, visible.sum()), 1.0)
    assert float(found) == pytest.approx(visible[visible > kept].sum(), rel=1e-3, abs=1.0)
