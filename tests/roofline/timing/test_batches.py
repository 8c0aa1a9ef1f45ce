"""Questions: the same answers side by side as one after the other, and from memory."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import UnsupportedError, analyze
from roofline.core.cache import Remembered
from roofline.scenario.analysis import Analysis, expect
from roofline.timing import batches
from roofline.timing import passes as timing
from roofline.timing.batches import Question, answer, answered, beside, together
from roofline.whatif.options import compose

ASKED = [
    ("llama-3.1-8b", "h100-sxm", {}, {}, ()),
    ("llama-3.1-8b", "h100-sxm", {"batch": np.array([1, 7, 64]), "prompt": 300}, {"tensor": 2}, ("awq",)),
    ("llama-3.1-8b", "h100-sxm", {"batch": 3}, {}, ("fp8-kv", "eagle")),
    ("llama-3.1-8b", "a100-sxm-80gb", {"batch": 3}, {}, ("fp8-kv",)),
    ("qwen3-30b-a3b", "h100-sxm", {"batch": np.array([[1], [200]]), "prompt": np.array([64, 4000])}, {}, ("fp8",)),
    ("deepseek-v3", "h200-sxm", {"batch": 5}, {"tensor": 8, "expert": 8}, ("multi-token-prediction",)),
    ("flan-t5-xxl", "h100-sxm", {"batch": 2}, {}, ()),
    ("bert-base", "h100-sxm", {"batch": np.arange(1, 30)}, {}, ()),
]


def asked(model: str, hw: str, options: dict, degrees: dict, techniques: tuple[str, ...]) -> Analysis:
    request = compose(model, hw, formats={}, degrees=degrees, **options)
    return analyze(replace(request, techniques=techniques).scenario())


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_ANSWERED", Remembered(4096))
    monkeypatch.setattr(timing, "_PASSES", Remembered(1024))


def forget() -> None:
    batches._ANSWERED.clear()
    timing._PASSES.clear()


def times(analysis: Analysis) -> list[np.ndarray]:
    found = analysis.expected
    return [np.asarray(part) for part in (*found.ttft, *found.total, *found.tokens_per_second)]


def test_scenarios_side_by_side_take_as_long_as_alone() -> None:
    side_by_side = [asked(*one) for one in ASKED]
    expect(side_by_side)
    for one, analysis in zip(ASKED, side_by_side, strict=True):
        forget()
        for here, alone in zip(times(analysis), times(asked(*one)), strict=True):
            np.testing.assert_allclose(here, alone, rtol=1e-14)


def test_kernels_of_one_form_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    evaluated = batches.Batch.evaluated

    def counted(batch, columns, shape):
        calls.append(batch.op)
        return evaluated(batch, columns, shape)

    monkeypatch.setattr(batches.Batch, "evaluated", counted)
    alike = [("llama-3.1-8b", "h100-sxm", {"batch": batch}, {}, ()) for batch in (1, 2, 3, 4)]
    expect([asked(*one) for one in alike])
    together_, calls[:] = len(calls), []
    forget()
    for one in alike:
        assert asked(*one).expected
    assert together_ * len(alike) == len(calls)


def test_what_was_answered_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(*ASKED[0]).expected
    timing._PASSES.clear()
    monkeypatch.setattr(batches.Batch, "evaluated", lambda *_: pytest.fail("worked out again"))
    assert asked(*ASKED[0]).expected


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_ANSWERED", Remembered(10))
    expect([asked(*one) for one in ASKED])
    assert len(batches._ANSWERED) == 10


def test_threads_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_ANSWERED", Remembered(5))
    monkeypatch.setattr(timing, "_PASSES", Remembered(3))
    alone = [times(asked(*one)) for one in ASKED[:4]]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: times(asked(*one)), [*ASKED[:4]] * 8))
    for here, true in zip(found, alone * 8, strict=True):
        for got, expected in zip(here, true, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_one_that_fails_stops_no_other() -> None:
    def failing():
        yield []
        raise UnsupportedError("it has no peak")

    good = asked(*ASKED[0])
    together([failing(), good.expecting()])
    assert good._expected is not None
    with pytest.raises(UnsupportedError):
        answered(beside([failing()]))


def test_results_come_in_the_order_asked_in() -> None:
    def after(rounds: int):
        for _ in range(rounds):
            yield []
        return rounds

    assert answered(beside([after(3), after(0), after(1)])) == [3, 0, 1]


def test_equal_questions_are_answered_with_one_object() -> None:
    seen: list[Question] = []
    for _ in range(2):
        asking = asked(*ASKED[0]).expecting()
        seen += next(asking)
    answer(seen)
    half = len(seen) // 2
    assert all(one.found is other.found for one, other in zip(seen[:half], seen[half:], strict=True))
