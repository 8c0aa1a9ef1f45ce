"""What was worked out lately is found again, the rest is forgotten; a pass that was timed is not timed again."""

import numpy as np
import pytest

from roofline import analyze
from roofline.core.cache import SMALL, Remembered
from roofline.graph.extents import Step, spread
from roofline.timing import passes as timing
from roofline.whatif.options import compose


def test_what_was_not_asked_for_longest_is_forgotten_first() -> None:
    known: Remembered[int] = Remembered(2)
    known.keep("a", 1)
    known.keep("b", 2)
    assert known.find("a") == 1
    known.keep("c", 3)
    assert [known.find(key) for key in "abc"] == [1, None, 3]
    assert len(known) == 2
    known.clear()
    assert not len(known)
    assert known.find("a") is None


def test_points_of_steps_are_the_same_where_their_numbers_are() -> None:
    assert Step(1, 2, 3).points == Step(1, 2, 3.0).points != Step(1, 2, 4).points
    row = np.array([1.0, 2.0])
    one, two = Step(row, 1, 0).points
    assert [one, two] == Step(row[:, np.newaxis], 1, 0).points == [*Step(1, 1, 0).points, *Step(2, 1, 0).points]
    assert len(Step(row, 1, row[:, np.newaxis]).points) == 4


@pytest.mark.parametrize("points", [3, SMALL + 1])
def test_a_pass_of_few_points_is_timed_once(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_PASSES", Remembered(64))
    made: list[str] = []
    timed = timing.Timing._expecting

    def counted(self, step, phase):
        made.append(phase)
        return timed(self, step, phase)

    monkeypatch.setattr(timing.Timing, "_expecting", counted)

    def total(technique: tuple[str, ...]) -> np.ndarray:
        request = compose("llama-3.1-8b", "h100-sxm", formats={}, degrees={}, batch=np.arange(1, points + 1))
        return analyze(request.using(*technique).scenario()).expected.total.mid

    plain, again = total(()), total(())
    np.testing.assert_array_equal(plain, again)
    assert len(made) == (2 if points <= SMALL else 4)
    made.clear()
    assert not np.array_equal(total(("medusa",)), plain)
    assert "prefill" in made or points <= SMALL  # what changes decode leaves prefill as it was


def test_what_is_known_of_every_point_is_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_PASSES", Remembered(64))
    request = compose("llama-3.1-8b", "h100-sxm", formats={}, degrees={}, generate=2)

    def times(batches: list[int], ranks: int) -> np.ndarray:
        asked = request.spread(data=ranks).with_options(batch=np.array(batches))
        return np.array(analyze(asked.scenario()).expected.total)

    alone = times([1, 2, 3, 4, 6, 8, 12, 16], 1)
    monkeypatch.setattr(timing.Timing, "_expecting", lambda *_: pytest.fail("timed again"))
    np.testing.assert_array_equal(times([16, 4, 8, 4], 1), alone[:, [7, 3, 5, 3]])
    np.testing.assert_array_equal(times([8, 16, 24, 32], 4), alone[:, [1, 3, 4, 5]])


def test_few_points_are_kept_of_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_PASSES", known := Remembered(64))
    monkeypatch.setattr(timing, "SMALL", 8)
    request = compose("llama-3.1-8b", "h100-sxm", formats={}, degrees={}, generate=2)
    for first in range(1, 60, 3):
        assert analyze(request.with_options(batch=np.array([first, first + 1])).scenario()).expected
    (kept, *_) = known._values.values()
    assert 0 < len(kept) <= 16


def test_what_has_the_shape_of_the_grid_is_not_copied() -> None:
    row = np.arange(3.0)
    assert spread(row, (3,)) is row
    np.testing.assert_array_equal(spread(row, (2, 3)), [row, row])
    assert spread(np.asarray(2.0), ()) == 2
