"""Grouped evaluation: scenarios evaluated together, one by one, and from the cache give the same times."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from roofline import Scenario, UnsupportedError, analyze
from roofline.core.result_cache import LruCache
from roofline.scenario.analysis import Analysis, prefetch_expected
from roofline.timing import evaluation
from roofline.timing import passes as timing
from roofline.timing.evaluation import Evaluation, evaluate_all, gather, prefetch, resolve

SCENARIOS = [
    ("llama-3.1-8b", "h100-sxm", {}, {}, ()),
    ("llama-3.1-8b", "h100-sxm", {"batch": np.array([1, 7, 64]), "prompt": 300}, {"tp": 2}, ("awq",)),
    ("llama-3.1-8b", "h100-sxm", {"batch": 3}, {}, ("fp8-kv", "eagle")),
    ("llama-3.1-8b", "a100-sxm-80gb", {"batch": 3}, {}, ("fp8-kv",)),
    ("qwen3-30b-a3b", "h100-sxm", {"batch": np.array([[1], [200]]), "prompt": np.array([64, 4000])}, {}, ("fp8",)),
    ("deepseek-v3", "h200-sxm", {"batch": 5}, {"tp": 8, "ep": 8}, ("multi-token-prediction",)),
    ("flan-t5-xxl", "h100-sxm", {"batch": 2}, {}, ()),
    ("bert-base", "h100-sxm", {"batch": np.arange(1, 30)}, {}, ()),
]


def analysis_of(model: str, hw: str, options: dict, degrees: dict, techniques: tuple[str, ...]) -> Analysis:
    return analyze(Scenario(model, hw, **degrees, **options, techniques=techniques))


@pytest.fixture(autouse=True)
def _own_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_EVALUATED", LruCache(4096))
    monkeypatch.setattr(timing, "_PASSES", LruCache(1024))


def clear_caches() -> None:
    evaluation._EVALUATED.clear()
    timing._PASSES.clear()


def times(analysis: Analysis) -> list[np.ndarray]:
    found = analysis.expected
    return [np.asarray(part) for part in (*found.ttft, *found.total, *found.tokens_per_second)]


def test_scenarios_evaluated_together_have_the_same_times() -> None:
    analyses = [analysis_of(*one) for one in SCENARIOS]
    prefetch_expected(analyses)
    for one, analysis in zip(SCENARIOS, analyses, strict=True):
        clear_caches()
        for here, alone in zip(times(analysis), times(analysis_of(*one)), strict=True):
            np.testing.assert_allclose(here, alone, rtol=1e-14)


def test_kernels_of_one_form_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    evaluate = evaluation.KernelGroup.evaluate

    def counted(group, columns, shape):
        calls.append(group.op)
        return evaluate(group, columns, shape)

    monkeypatch.setattr(evaluation.KernelGroup, "evaluate", counted)
    alike = [("llama-3.1-8b", "h100-sxm", {"batch": batch}, {}, ()) for batch in (1, 2, 3, 4)]
    prefetch_expected([analysis_of(*one) for one in alike])
    stacked, calls[:] = len(calls), []
    clear_caches()
    for one in alike:
        assert analysis_of(*one).expected
    assert stacked * len(alike) == len(calls)


def test_repeated_evaluations_come_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert analysis_of(*SCENARIOS[0]).expected
    timing._PASSES.clear()
    monkeypatch.setattr(evaluation.KernelGroup, "evaluate", lambda *_: pytest.fail("evaluated again"))
    assert analysis_of(*SCENARIOS[0]).expected


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_EVALUATED", LruCache(10))
    prefetch_expected([analysis_of(*one) for one in SCENARIOS])
    assert len(evaluation._EVALUATED) == 10


def test_threads_share_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_EVALUATED", LruCache(5))
    monkeypatch.setattr(timing, "_PASSES", LruCache(3))
    alone = [times(analysis_of(*one)) for one in SCENARIOS[:4]]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: times(analysis_of(*one)), [*SCENARIOS[:4]] * 8))
    for here, true in zip(found, alone * 8, strict=True):
        for got, expected in zip(here, true, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_a_failing_computation_does_not_stop_the_others() -> None:
    def failing():
        yield []
        raise UnsupportedError("it has no peak")

    good = analysis_of(*SCENARIOS[0])
    prefetch([failing(), good.deferred()])
    assert good._expected is not None
    with pytest.raises(UnsupportedError):
        resolve(gather([failing()]))


def test_gather_keeps_the_order() -> None:
    def after(rounds: int):
        for _ in range(rounds):
            yield []
        return rounds

    assert resolve(gather([after(3), after(0), after(1)])) == [3, 0, 1]


def test_equal_evaluations_share_one_result() -> None:
    seen: list[Evaluation] = []
    for _ in range(2):
        deferred = analysis_of(*SCENARIOS[0]).deferred()
        seen += next(deferred)
    evaluate_all(seen)
    half = len(seen) // 2
    assert all(one.found is other.found for one, other in zip(seen[:half], seen[half:], strict=True))
