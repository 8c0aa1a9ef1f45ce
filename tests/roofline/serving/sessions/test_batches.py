"""The prompts of steps: where time is linear in them, and where it is not, against steps drawn one by one."""

from __future__ import annotations

import numpy as np
import pytest

from roofline.serving.sessions.batches import COUNTS, DRAWS, Batches, Samples


def settled(step: float, spent: np.ndarray, rate: float, ranks: int = 1, first: bool = False) -> Batches:
    """The batches that follow on themselves."""
    steps, found = np.ones(spent.shape), Batches(np.ones(1))
    for _ in range(60):
        found = found.following(step, spent, steps, 0 * steps if first else steps, rate, ranks)
    return found


def replayed(step: float, later: float, rate: float, ranks: int, count: int = 20_000) -> float:
    """The mean step where any prompt makes it one of `later` seconds, of steps drawn one after the other."""
    random, now, total = np.random.default_rng(1), step, 0.0
    for _ in range(count):
        now = later if random.poisson(rate * now, ranks).any() else step
        total += now
    return total / count


@pytest.mark.parametrize("first", [False, True])
def test_prompts_of_which_each_adds_as_much_stretch_steps_as_a_queue_does(first: bool) -> None:
    """1 / (1 - L w), beside decode or before it."""
    added = 0.004 * COUNTS[:, np.newaxis] * np.linspace(0.5, 1.5, DRAWS)
    found = settled(0.01, added + (0.0 if first else 0.01), 120.0, first=first)
    assert found.each == pytest.approx(0.01 / (1 - 120 * 0.004), rel=0.01)
    assert found.a_prompt(added) == pytest.approx(0.004)


def test_prompts_that_take_a_thousand_decode_steps_come_together_too() -> None:
    """Few steps have prompts, but nine tenths of the time; decode has the rest: 10 s a prompt, one each 11 s."""
    found, spent = Batches(np.ones(1)), 10.0 * COUNTS[:, np.newaxis] * np.ones(DRAWS)
    for _ in range(200):
        rows = spent[: np.searchsorted(COUNTS, found.most, "right")]
        found = found.following(0.01, rows, np.ones(rows.shape), np.zeros(rows.shape), 1 / 11, 1)
    assert found.each == pytest.approx(0.11, rel=0.03)


@pytest.mark.parametrize(("ranks", "within"), [(1, 0.01), (4, 0.05)])  # ranks have their numbers apart
def test_prompts_that_come_together_pay_for_a_step_once(ranks: int, within: float) -> None:
    """As where a step with prompts is launched by the host, however many it has; ranks wait for those with some."""
    found = settled(0.01, np.full((COUNTS.size, DRAWS), 0.03), 15.0, ranks)
    assert found.each == pytest.approx(replayed(0.01, 0.03, 15.0, ranks), rel=within)
    share = found.a_prompt(np.full((COUNTS.size, DRAWS), 0.02)) / 0.02
    assert share == pytest.approx(found.part / (15 * found.each), rel=0.01)


def test_samples_have_the_mean_of_all_turns() -> None:
    lengths = np.random.default_rng(0).exponential(300, 997)
    sums = Samples(997).sums(np.stack([lengths, 2 * lengths]), 40)
    assert sums[0].mean(axis=1) / COUNTS[: sums.shape[1]] == pytest.approx(lengths.mean(), rel=0.03)
    assert sums[1] == pytest.approx(2 * sums[0])
