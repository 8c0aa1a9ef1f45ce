"""Chunked prefill against passes that are cut token by token."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import Analysis, Scenario, analyze, load_hardware, load_model
from roofline.graph.extents import AttentionMask, Step, extents
from roofline.graph.parallel import Parallelism
from roofline.scenario.chunks import chunks
from roofline.scenario.settings import Settings
from roofline.techniques import apply_techniques

H100 = load_hardware("h100-sxm")
FULL = AttentionMask()


def in_turn(batch: int, prompt: int, budget: int) -> list[list[range]]:
    """The positions that each pass computes, sequence by sequence: every pass takes as many tokens as it has room."""
    passes: list[list[range]] = [[]]
    room = budget
    for _ in range(batch):
        at = 0
        while at < prompt:
            if not room:
                passes.append([])
                room = budget
            taken = min(room, prompt - at)
            passes[-1].append(range(at, at + taken))
            at, room = at + taken, room - taken
    return passes


def summed(mask: AttentionMask, name: str, found: list[tuple[Step, Any]]) -> float:
    """The sum of an extent over all sequences of all passes."""
    key = f"{name}{mask.suffix}"
    return sum(float(runs * step.batch * extents(step, [mask])[key]) for step, runs in found)


@given(st.integers(1, 9), st.integers(1, 60), st.integers(1, 70), st.integers(0, 30))
def test_passes_tokens_and_pairs_against_passes_in_turn(batch: int, prompt: int, budget: int, prefix: int) -> None:
    found = chunks(Step(batch, prompt, prefix), budget)
    passes = in_turn(batch, prompt, budget)
    assert sum(runs for _, runs in found) == pytest.approx(len(passes)) == math.ceil(batch * prompt / budget)
    assert sum(runs * step.batch * step.queries for step, runs in found) == pytest.approx(batch * prompt)
    pairs = sum(prefix + at + 1 for pieces in passes for piece in pieces for at in piece)
    assert summed(FULL, "pairs", found) == pytest.approx(pairs)
    assert found[-1][0].batch * found[-1][0].queries == pytest.approx(sum(map(len, passes[-1])))
    assert all(step.cached >= prefix - 1e-9 and step.batch >= 1 for step, _ in found)


@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 8), st.integers(1, 6), st.integers(1, 6))
def test_aligned_budgets_are_exact(batch: int, prompt: int, budget: int, window: int, chunk: int) -> None:
    """Windows and chunks of several budgets, prompts of several budgets: the same pairs and keys as one by one."""
    masks = [FULL, AttentionMask(window * budget), AttentionMask(chunk=chunk * budget)]
    passes = in_turn(batch, prompt * budget, budget)
    for mask in masks:
        found = chunks(Step(batch, prompt * budget, 0), budget, mask.saturation_points)
        each = [(Step(1, len(piece), piece.start), 1.0) for pieces in passes for piece in pieces]
        assert summed(mask, "pairs", found) == pytest.approx(summed(mask, "pairs", each))
        assert summed(FULL, "pairs", found) == pytest.approx(summed(FULL, "pairs", each))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 60)), min_size=1, max_size=4), st.integers(1, 70))
def test_grids_equal_single_workloads(points: list[tuple[int, int]], budget: int) -> None:
    batch, prompt = (np.array(values, float) for values in zip(*points, strict=True))
    cuts = (9, range(20, 1000, 20))
    grid = chunks(Step(batch, prompt, 0.0), budget, cuts)
    for index, (one, long) in enumerate(points):
        alone = chunks(Step(one, long, 0), budget, cuts)
        for mask, name in itertools.product((FULL, AttentionMask(10), AttentionMask(chunk=20)), ("pairs", "keys")):
            together = sum(
                np.broadcast_to(runs * step.batch * extents(step, [mask])[f"{name}{mask.suffix}"], batch.shape)[index]
                for step, runs in grid
            )
            assert together == pytest.approx(summed(mask, name, alone))


def run(name: str, chunk: int | None, **settings: Any) -> Analysis:
    plain = Scenario(load_model(name), H100, generate=8, **settings)
    return analyze(plain if chunk is None else apply_techniques(plain, [f"chunked-prefill:chunk={chunk}"]))


def test_sixteen_prompts_of_4096_take_128_passes_of_512() -> None:
    """The budget is that of an iteration (Sarathi-Serve; vLLM's max_num_batched_tokens), not of a sequence."""
    answer = run("llama-3.1-8b", 512, batch=16, prompt=4096)
    passes = answer.schedule.prefill(answer.scenario.prefill_step, None)
    assert sum(run.repeat for run in passes) == pytest.approx(128)
    assert all(run.step.batch * run.step.queries == 512 for run in passes)
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    weights = sum(op.count * op.weight_bytes for op in answer.prefill.ops if op.name.endswith("_proj"))
    assert weights == pytest.approx(128 * 2 * layers)
    heads = sum(op.count for op in answer.prefill.ops if op.name == "lm_head")
    assert heads == pytest.approx(16)  # logits once for each prompt
    plain = run("llama-3.1-8b", None, batch=16, prompt=4096)
    assert answer.prefill.flops == pytest.approx(plain.prefill.flops)
    assert answer.expected.ttft.mid > 1.02 * plain.expected.ttft.mid


def test_chunks_of_llama_4_have_the_pairs_of_its_chunks() -> None:
    whole, cut = (run("llama-4-scout", chunk, batch=2, prompt=65536) for chunk in (None, 2048))
    assert cut.prefill.flops == pytest.approx(whole.prefill.flops)


def test_chunks_fill_a_pipeline() -> None:
    """128 chunks pass through four stages in the time of 131 steps of a stage, 131 / 4 passes."""
    staged = Settings(parallel=Parallelism(pipeline=4))
    answer = run("llama-3.1-8b", 512, batch=16, prompt=4096, settings=staged)
    passes = answer.schedule.prefill(answer.scenario.prefill_step, None)
    assert sum(run.repeat for run in passes) == pytest.approx(131 / 4)
    assert all(run.busy == pytest.approx(128 / 131) for run in passes)
