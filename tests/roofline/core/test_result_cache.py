"""The LRU cache, and its use for the times of passes."""

import numpy as np
import pytest

from roofline import Scenario, analyze
from roofline.core.result_cache import MAX_CACHED_VALUES, LruCache
from roofline.graph.extents import Step, spread
from roofline.scenario import schedule
from roofline.timing import passes as timing


def test_least_recently_used_value_is_evicted() -> None:
    cache: LruCache[int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert len(cache) == 2
    cache.clear()
    assert not len(cache)
    assert cache.get("a") is None


def test_equal_steps_have_equal_points() -> None:
    assert Step(1, 2, 3).points == Step(1, 2, 3.0).points != Step(1, 2, 4).points
    row = np.array([1.0, 2.0])
    one, two = Step(row, 1, 0).points
    assert [one, two] == Step(row[:, np.newaxis], 1, 0).points == [*Step(1, 1, 0).points, *Step(2, 1, 0).points]
    assert len(Step(row, 1, row[:, np.newaxis]).points) == 4


@pytest.mark.parametrize("points", [3, MAX_CACHED_VALUES + 1])
def test_pass_times_of_few_points_are_cached(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_PASSES", LruCache(64))
    made: list[str] = []
    timed = timing.Timing._deferred

    def counted(self, step, phase, host):
        made.append(phase)
        return timed(self, step, phase, host)

    monkeypatch.setattr(timing.Timing, "_deferred", counted)

    def total(technique: tuple[str, ...]) -> np.ndarray:
        request = Scenario("llama-3.1-8b", "h100-sxm", batch=np.arange(1, points + 1))
        return analyze(request.with_(techniques=technique)).expected.total.mid

    plain, again = total(()), total(())
    np.testing.assert_array_equal(plain, again)
    assert len(made) == (2 if points <= MAX_CACHED_VALUES else 4)
    made.clear()
    assert not np.array_equal(total(("medusa",)), plain)
    assert "prefill" in made or points <= MAX_CACHED_VALUES  # Medusa changes decode only


def test_cached_points_are_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_PASSES", LruCache(64))
    schedule._known.cache_clear()  # schedules of earlier tests may have graphs that are kept nowhere else
    request = Scenario("llama-3.1-8b", "h100-sxm", generate=2)

    def times(batches: list[int], ranks: int) -> np.ndarray:
        spread_request = request.with_(dp=ranks, batch=np.array(batches))
        return np.array(analyze(spread_request).expected.total)

    alone = times([1, 2, 3, 4, 6, 8, 12, 16], 1)
    monkeypatch.setattr(timing.Timing, "_deferred", lambda *_: pytest.fail("timed again"))
    np.testing.assert_array_equal(times([16, 4, 8, 4], 1), alone[:, [7, 3, 5, 3]])
    np.testing.assert_array_equal(times([8, 16, 24, 32], 4), alone[:, [1, 3, 4, 5]])


def test_cached_points_per_pass_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_PASSES", known := LruCache(64))
    monkeypatch.setattr(timing, "MAX_CACHED_VALUES", 8)
    request = Scenario("llama-3.1-8b", "h100-sxm", generate=2)
    for first in range(1, 60, 3):
        assert analyze(request.with_(batch=np.array([first, first + 1]))).expected
    (kept, *_) = known._values.values()
    assert 0 < len(kept) <= 16


def test_spread_does_not_copy_arrays_of_full_shape() -> None:
    row = np.arange(3.0)
    assert spread(row, (3,)) is row
    np.testing.assert_array_equal(spread(row, (2, 3)), [row, row])
    assert spread(np.asarray(2.0), ()) == 2
