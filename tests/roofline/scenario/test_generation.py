"""Sums over the decode steps of a generation against the steps one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.scenario import generation
from roofline.scenario.generation import sum_steps


@given(st.integers(0, 90), st.integers(1, 80), st.integers(1, 30), st.integers(1, 40))
def test_attention_in_chunks_and_windows_is_summed_exactly(first: int, steps: int, chunk: int, window: int) -> None:
    """The keys of a step grow to the chunk's size and start again at one."""

    def seconds(cached: Any, _: Any) -> Any:
        keys, near = np.mod(cached, chunk) + 1, np.minimum(cached + 1, window)
        return np.maximum(12.0, keys) + near + 0.1 * (cached + 1)

    each = sum(float(seconds(np.array([float(at)]), None)[0]) for at in range(first, first + steps))
    points: tuple[int | range, ...] = (range(chunk, 10**9, chunk), window - 1)
    starts = np.array([float(first)])
    assert sum_steps(seconds, starts, starts + steps - 1, points)[0] == pytest.approx(each)


def test_many_points_are_summed_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "STRETCHES", 3)
    first, steps = np.linspace(0.0, 63.0, 10), np.linspace(45.0, 0.0, 10)
    widths = np.arange(10) + 3.0

    def seconds(cached: Any, points: Any) -> Any:
        keys = np.minimum(cached + 1, 40) + np.mod(cached, 16)
        return np.maximum(widths[points], keys)

    together = generation.sum_steps(seconds, first, first + steps - 1, (39, range(16, 10**6, 16)))
    for point, (start, count) in enumerate(zip(first, steps, strict=True)):
        each = seconds(start + np.arange(count), np.full(int(count), point))
        assert together[point] == pytest.approx(each.sum())
