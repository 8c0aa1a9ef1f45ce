"""The eight verbs as a user calls them: with names, from `roofline` alone, and what every answer offers."""

from __future__ import annotations

import json
import pickle
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import roofline
from roofline import (
    RooflineError,
    Scenario,
    advise,
    analyze,
    choose,
    compare,
    explain,
    load_model,
    serve,
    size,
    solve,
    sweep,
)
from roofline.advisor import Goal, Limits, Service
from roofline.serving.load import Load, Trace
from tests.cases import sampled
from tests.conftest import Run

SMALL = Scenario("llama-3.2-1b", "l4", batch=4, prompt=128, generate=16)
WORDS = ("llama-3.2-1b", "--hw", "l4", "--batch", "4", "--prompt", "128", "--generate", "16")
OTHER = SMALL.with_(quant="fp8")
USED = SMALL.with_(batch=None)
"""A scenario without options of a static batch."""

UNBATCHED = (*WORDS[:3], *WORDS[5:])
SERVICE = ("--rate", "4", "--prompt", "128", "--generate", "16", "--tpot", "50ms", "--hw", "l4,a10g")

ANSWERS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "analyze": (lambda: analyze(SMALL), ("analyze", *WORDS)),
    "analyze what does not fit": (
        lambda: analyze(Scenario("llama-3.1-70b", "l4")),
        ("analyze", "llama-3.1-70b", "--hw", "l4"),
    ),
    "analyze an encoder": (
        lambda: analyze(Scenario("bert-base", "l4", batch=8)),
        ("analyze", "bert-base", "--hw", "l4", "--batch", "8"),
    ),
    "serve": (
        lambda: serve(SMALL.with_(batch=None), concurrency=[1, 16], ttft="500ms", tpot=0.02),
        ("serve", *WORDS[:3], *WORDS[5:], "--concurrency", "1,16", "--ttft", "500ms", "--tpot", "20ms"),
    ),
    "serve at a rate": (
        lambda: serve(SMALL.with_(batch=None), rate=2.0, prefix_hits=0.5),
        ("serve", *WORDS[:3], *WORDS[5:], "--rate", "2", "--prefix-hits", "0.5"),
    ),
    "compare": (
        lambda: compare(SMALL, OTHER),
        ("compare", " ".join(WORDS), " ".join((*WORDS, "--quant", "fp8"))),
    ),
    "solve.max_batch": (
        lambda: solve.max_batch(USED, tpot="30ms"),
        ("solve", "max-batch", *UNBATCHED, "--tpot", "30ms"),
    ),
    "solve.max_bits at high": (
        lambda: solve.max_bits(SMALL, tpot=0.01, fits=False, at="high"),
        ("solve", "max-bits", *WORDS, "--tpot", "10ms", "--ignore-memory", "--at", "high"),
    ),
    "solve.break_even": (
        lambda: solve.break_even(USED, OTHER.with_(batch=None)),
        ("solve", "break-even", *UNBATCHED, "--against", "--quant fp8"),
    ),
    "solve.max_rate": (
        lambda: solve.max_rate(SMALL.with_(batch=None), ttft="1s", tpot="30ms"),
        ("solve", "max-rate", *WORDS[:3], *WORDS[5:], "--ttft", "1s", "--tpot", "30ms"),
    ),
    "solve.crossover": (lambda: solve.crossover(SMALL), ("solve", "crossover", *WORDS)),
    "advise": (
        lambda: advise(SMALL, objective="tpot", tpot="30ms", memory="20GB", gpus=2, top=2),
        ("advise", *WORDS, *["--objective", "tpot", "--tpot", "30ms", "--memory", "20GB", "--gpus", "2", "--top", "2"]),
    ),
    "size": (
        lambda: size("llama-3.2-1b", rate="4/s", prompt=128, generate=16, tpot="50ms", hw=["l4", "a10g"]),
        ("size", "llama-3.2-1b", *SERVICE),
    ),
    "size with options": (
        lambda: size("llama-3.2-1b", rate=4, prompt=128, generate=16, tpot=0.05, hw="l4,a10g", tp=1, quant="fp8"),
        ("size", "llama-3.2-1b", *SERVICE, "--tp", "1", "--quant", "fp8"),
    ),
    "explain": (lambda: explain(SMALL, "tpot"), ("explain", "tpot", *WORDS)),
    "explain an operator": (
        lambda: explain(analyze(SMALL), "down_proj", "decode"),
        ("explain", "down_proj", *WORDS, "--phase", "decode"),
    ),
    "sensitivity": (lambda: roofline.whatif.sensitivity(SMALL), ("sensitivity", *WORDS)),
}
"""An answer of each verb by names, and the command that prints its document."""

GRIDS: dict[str, Callable[[], Any]] = {
    "analyze a grid": lambda: analyze(SMALL.with_(batch=np.array([1, 8])[:, None], prompt=np.array([64, 256, 512]))),
    "sweep": lambda: sweep(SMALL, hw=["l4", "a10g"], batch="1:64:log3"),
    "waterfall": lambda: compare(SMALL, OTHER).waterfalls[0],
}


@cache
def answer(name: str) -> Any:
    return GRIDS[name]() if name in GRIDS else ANSWERS[name][0]()


@pytest.mark.parametrize("name", sampled(ANSWERS, ANSWERS.keys() - {"size", "size with options", "advise"}))
def test_the_document_is_that_of_the_command(name: str, run: Run) -> None:
    status, out, err = run(*ANSWERS[name][1], "--format", "json")
    assert (status, err) == (0, "")
    assert_same(answer(name).to_dict(), json.loads(out))


def assert_same(one: Any, other: Any) -> None:
    """The same document, but for rounding: times that are computed in other batches differ by it."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == (pytest.approx(other, rel=1e-9, abs=1e-12) if isinstance(one, float) else other)


@pytest.mark.parametrize("name", [*ANSWERS, *GRIDS])
def test_an_answer_prints_in_a_few_lines_with_numbers(name: str) -> None:
    lines = str(answer(name)).splitlines()
    assert 2 <= len(lines) <= 6
    assert all(map(str.strip, lines))
    assert re.search(r"\d", "".join(lines[1:]))
    assert len(repr(answer(name)).splitlines()) == 1
    assert repr(answer(name)).startswith(f"{type(answer(name)).__name__}(")


@pytest.mark.parametrize("name", sampled([*ANSWERS, *GRIDS], 6))
def test_an_answer_has_html_and_rows(name: str) -> None:
    pytest.importorskip("pandas")
    assert "<table" in answer(name)._repr_html_()
    assert len(answer(name).to_frame()) > 0


@pytest.mark.parametrize("name", sampled([*ANSWERS, *GRIDS], 8))
def test_an_answer_is_pickled_with_its_document(name: str) -> None:
    found = pickle.loads(pickle.dumps(answer(name)))
    assert type(found) is type(answer(name))
    assert found.to_dict() == answer(name).to_dict()


def test_what_an_analysis_prints() -> None:
    title, workload, memory, times, limits, *_ = str(answer("analyze")).splitlines()
    assert title == "llama-3.2-1b on l4, vllm"
    assert workload.startswith("batch 4, prompt 128, generate 16; weights bf16")
    assert "fits" in memory
    assert re.search(r"TTFT [\d.]+ ms \([\d.]+ to [\d.]+\), TPOT", times)
    assert re.search(r"prefill: mostly \w+-bound.*decode: mostly memory-bound", limits)
    assert "DOES NOT FIT" in str(answer("analyze what does not fit"))


def test_rows_are_what_the_verb_varies() -> None:
    pytest.importorskip("pandas")
    assert answer("serve").to_frame()["concurrency"].tolist() == [1, 16]
    assert answer("compare").to_frame()["label"].tolist() == list(answer("compare").labels)
    swept = answer("sweep").to_frame()
    assert swept["hw"].tolist() == ["l4"] * 3 + ["a10g"] * 3
    assert swept["batch"].tolist() == [1, 8, 64] * 2
    grid = answer("analyze a grid").to_frame()
    assert grid[["batch", "prompt"]].to_numpy().tolist() == [[b, p] for b in (1, 8) for p in (64, 256, 512)]
    assert grid["tpot"][3] == pytest.approx(analyze(SMALL.with_(batch=8, prompt=64)).expected.tpot.mid)


def test_a_sweep_has_the_options_of_its_scenario_and_takes_objects() -> None:
    model = load_model("llama-3.2-1b")
    device = analyze(SMALL).scenario.hardware
    one = sweep(SMALL.with_(quant="fp8"), batch=[2, 4], metrics="tpot").columns["tpot"]
    other = sweep(Scenario(model, device, prompt=128, generate=16, quant="fp8"), batch=[2, 4], metrics="tpot")
    assert one.tolist() == other.columns["tpot"].tolist()
    assert one[1] == pytest.approx(analyze(OTHER).expected.tpot.mid)
    varied = sweep(SMALL, model=[model, "llama-3.2-3b"], hw=device, metrics="tpot")
    assert varied.columns["model"].tolist() == ["llama-3.2-1b", "llama-3.2-3b"]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as threads:
        assert sweep(SMALL, threads, model=[model], batch=[1, 4], metrics="tpot").columns["tpot"][1] == pytest.approx(
            analyze(SMALL).expected.tpot.mid
        )


def test_targets_are_seconds_texts_or_an_object() -> None:
    found = [
        solve.max_batch(USED, tpot="20ms").value,
        solve.max_batch(USED, tpot=0.02).value,
        solve.max_batch(USED, solve.Targets(tpot=0.02)).value,
    ]
    assert found[0] == found[1] == found[2]
    assert solve.max_context(SMALL.with_(prompt=None), ttft="200 ms").targets == solve.Targets(ttft=0.2)


@pytest.mark.parametrize(
    "ask",
    [
        lambda tpot: solve.max_batch(USED, tpot=tpot),
        lambda tpot: solve.max_rate(USED, tpot=tpot),
        lambda tpot: advise(SMALL, tpot=tpot),
        lambda tpot: size("llama-3.2-1b", rate=4, tpot=tpot, hw="l4"),
        lambda tpot: choose("layout", USED, tpot=tpot),
        lambda tpot: serve(USED, concurrency=4, tpot=tpot),
        lambda tpot: roofline.answer("llama-3.2-1b", "l4", users=4, tpot=tpot),
    ],
    ids=["solve", "solve a load", "advise", "size", "choose", "serve", "answer"],
)
def test_a_bare_number_that_may_be_milliseconds_needs_its_unit(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(RooflineError, match="10ms or 10s"):
        ask(10)
    ask("10s")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: compare(SMALL), "two or more scenarios"),
        (lambda: compare(SMALL, OTHER, metric="speed"), "unknown metric of a comparison"),
        (lambda: solve.max_batch(USED, tpott=0.02), "tpot"),
        (lambda: solve.max_batch(USED, tpot="fast"), "tpot|fast"),
        (lambda: solve.max_batch(USED, solve.Targets(tpot=0.02), ttft=1), "ttft is given beside targets"),
        (lambda: solve.max_batch(SMALL, tpot=0.02), "batch is what is asked for"),
        (lambda: solve.break_even(USED, OTHER), "batch is what is asked for"),
        (lambda: solve.max_context(SMALL, ttft=1), "prompt is what is asked for"),
        (lambda: solve.min_gpus(SMALL.with_(tp=2), tpot=1), "tp is what is asked for"),
        (lambda: solve.min_gpus(Scenario("llama-3.2-1b", "8xl4"), tpot=1), "without its count"),
        (lambda: advise(SMALL, objective="speed"), "unknown objective"),
        (lambda: advise(SMALL, quality="any"), "unknown quality"),
        (lambda: advise(SMALL, objectiv="tpot"), "objective"),
        (lambda: advise(SMALL, budget="much"), "a budget is in USD/h"),
        (lambda: size("llama-3.2-1b", rate=4, batch=3), "batch is no option that a sizing fixes"),
        (lambda: size("llama-3.2-1b", rate=4, tensor=3), "unknown option"),
        (lambda: sweep(SMALL, btch=[1]), "batch"),
        (lambda: sweep(SMALL.with_(batch=np.array([1, 2])), prompt=[1, 2]), "batch has several values"),
    ],
)
def test_errors_speak_of_the_values(ask: Callable[[], Any], message: str) -> None:
    with pytest.raises(RooflineError, match=message) as found:
        ask()
    assert "--" not in str(found.value)


GRID = SMALL.with_(batch=np.array([1, 2]))

VERBS: dict[str, Callable[[Any], Any]] = {
    "analyze": analyze,
    "serve": lambda given: serve(given, concurrency=2),
    "compare": lambda given: compare(SMALL, given),
    "sweep": lambda given: sweep(given, batch=[1]),
    "advise": advise,
    "explain": lambda given: explain(given, "tpot"),
    "sensitivity": roofline.whatif.sensitivity,
    "max_batch": lambda given: solve.max_batch(given, tpot=1),
    "max_rate": lambda given: solve.max_rate(given, tpot=1),
    "min_bits": lambda given: solve.min_bits(given, tpot=1),
    "min_peak": lambda given: solve.min_peak(given, tpot=1),
    "max_draft": solve.max_draft,
    "crossover": solve.crossover,
    "break_even": lambda given: solve.break_even(USED, given),
}


@pytest.mark.parametrize("given", ["llama-3.2-1b", None, [SMALL]], ids=["name", "none", "list"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_takes_a_scenario(verb: str, given: Any) -> None:
    with pytest.raises(RooflineError, match="a scenario is needed"):
        VERBS[verb](given)


@pytest.mark.parametrize("verb", ["compare", "advise", "explain", "sensitivity", "max_batch", "crossover"])
def test_what_is_of_one_scenario_takes_no_grid(verb: str) -> None:
    with pytest.raises(RooflineError, match="of one scenario"):
        VERBS[verb](GRID)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch": 4}, "batch means nothing under load"),
        ({"batch": 4, "context": 300}, "batch and context mean nothing under load"),
        ({"memory_reading": "static"}, "memory_reading"),
        ({"convention": "llm-viewer"}, "convention"),
    ],
)
def test_options_of_a_static_batch_mean_nothing_under_load(options: dict[str, Any], named: str) -> None:
    scenario = USED.with_(**options)
    asked = [
        lambda: serve(scenario, concurrency=2),
        lambda: serve(scenario, Load(rate=1.0)),
        lambda: solve.max_rate(scenario, tpot=1),
        lambda: solve.max_concurrency(scenario, tpot=1),
        lambda: advise(scenario, objective="goodput"),
    ]
    for ask in asked:
        with pytest.raises(RooflineError, match=named):
            ask()


def test_defaults_of_a_static_batch_are_no_options() -> None:
    scenario = USED.with_(batch=1, images=0, convention="physical")
    assert serve(scenario, concurrency=2).values == (2.0,)


TRACE = Trace((0.0, 1.0), (100, 100), (10, 10))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: serve(USED, values=[1, 2]), "values are those of a Load"),
        (lambda: serve(USED, values=[1, 2], concurrency=4), "values are those of a Load"),
        (lambda: serve(USED, Load(offline=4), [1, 2]), "a load with offline has not"),
        (lambda: serve(USED, concurrency=4, burstiness=2), "burstiness is for a load with rate"),
        (lambda: serve(USED, rate=4, rounds=2), "rounds is for a load with concurrency"),
        (lambda: serve(USED, offline=4, rounds=2), "rounds is for"),
        (lambda: serve(USED, offline=4, simulate=2), "omit simulate"),
        (lambda: serve(USED, concurrency=4, rounds=2, simulate=2), "omit simulate"),
        (lambda: serve(USED, concurrency=4, seed=2), "draws no requests"),
        (lambda: serve(USED, trace=TRACE), "a trace has its own lengths: omit prompt and generate"),
        (lambda: Load(trace=TRACE, prompt=5), "a trace has its own lengths"),
        (lambda: Load(rate="4"), "rate must be above 0, got 4"),  # type: ignore[arg-type]
        (lambda: Load(concurrency=2, hits="0.5"), "prefix_hits"),  # type: ignore[arg-type]
        (lambda: serve(USED, 4), "a load is a Load"),  # type: ignore[arg-type]
        (lambda: serve(USED, tp=2), "tp is an option of the scenario"),  # type: ignore[call-arg]
        (lambda: solve.max_rate(USED, at="bound"), "low, mid, high"),
        (lambda: solve.max_rate(USED, fits=False), "must fit in memory"),
        (lambda: solve.max_rate(USED, pools=3), "pools are"),  # type: ignore[arg-type]
        (lambda: solve.break_even(USED, OTHER.with_(batch=None), tpot=1), "no target of tpot"),
        (lambda: solve.min_memory(SMALL, fits=False), "about the memory"),
        (lambda: solve.max_batch(USED, "20ms"), "targets are"),  # type: ignore[arg-type]
        (lambda: solve.Targets(fits="no way"), "true or false"),  # type: ignore[arg-type]
        (lambda: solve.max_bits(SMALL, schemes=["foo"]), "unknown quantization scheme 'foo'"),
        (lambda: solve.max_bits(SMALL, schemes=[]), "needs schemes"),
        (lambda: advise(SMALL, at="x"), "unknown reading of times 'x'; known: bound, high, low, mid"),  # type: ignore
        (lambda: advise(SMALL, top=-1), "top must be at least 0"),
        (lambda: advise(SMALL, research="perhaps"), "research must be true or false"),  # type: ignore[arg-type]
        (lambda: advise(SMALL, gpus=2.5), "gpus takes a whole number"),  # type: ignore[arg-type]
        (lambda: advise(SMALL, moves=["fp8"]), "moves are"),  # type: ignore[list-item]
        (lambda: advise(SMALL, "tpot"), "a goal is"),  # type: ignore[arg-type]
        (lambda: Goal(objective="foo"), "unknown objective"),  # type: ignore[arg-type]
        (lambda: explain(SMALL, "lm_head", "both"), "unknown phase"),
        (lambda: explain(SMALL, "xqzzt"), "known: "),
        (lambda: sweep(SMALL, batch=[1], metrics="xqzzt"), "known: "),
        (lambda: sweep(SMALL, batch=[1], metrics=3), "metrics takes names"),  # type: ignore[arg-type]
        (lambda: sweep(SMALL, batch=[1], where=3), "where takes a condition"),  # type: ignore[arg-type]
        (lambda: sweep(SMALL, batch=[1], chunk="x"), "a chunk"),  # type: ignore[arg-type]
        (lambda: sweep(SMALL, 3, batch=[1]), "an executor"),  # type: ignore[arg-type]
        (lambda: size(4, rate=4), "a model is needed"),  # type: ignore[arg-type]
        (lambda: size(SMALL, rate=4), "batch is no option that a sizing fixes"),
        (lambda: size("llama-3.2-1b", 4), "a service is"),  # type: ignore[arg-type]
        (lambda: size("llama-3.2-1b", rate=4, at="low"), "known: high, mid"),  # type: ignore[arg-type]
        (lambda: size("llama-3.2-1b", rate=4, price=3), "price maps names"),  # type: ignore[arg-type]
        (lambda: size("llama-3.2-1b", rate=4, memory_reading="static"), "no option that a sizing fixes"),
    ],
)
def test_what_a_verb_does_not_use_is_refused(ask: Callable[[], Any], message: str) -> None:
    with pytest.raises(RooflineError, match=message) as found:
        ask()
    assert "--" not in str(found.value)


def test_values_are_read_alike_everywhere() -> None:
    assert solve.Targets(tpot="20ms") == solve.Targets(tpot=0.02)  # type: ignore[arg-type]
    assert Limits(ttft="1s", memory="80GB", budget="20/h") == Limits(1.0, None, None, 8e10, None, 20.0)  # type: ignore
    assert Service("5/s", 100, 100, "1s") == Service(5.0, 100, 100, 1.0)  # type: ignore[arg-type]
    assert serve(USED, rate=np.float32(2)).values == serve(USED, request_rate="2/s").values  # type: ignore
    chips = [solve.min_bandwidth(SMALL, chips=names, tpot="9ms").candidates for names in ("l4,a10g", ["l4", "a10g"])]
    assert chips[0] == chips[1]


def test_a_sizing_shows_and_repeats_what_was_fixed() -> None:
    asked: dict[str, Any] = {"rate": 4, "prompt": 128, "generate": 16, "tpot": "50ms", "hw": "l4"}
    fixed = size("llama-3.2-1b", weights="int8", kv="fp8", price={"l4": 3}, **asked).choices[0].best
    assert fixed.configuration.formats == "int8, KV fp8"
    assert "--weights int8 --kv fp8 --price 3" in fixed.command
    assert "awq" in size("llama-3.2-1b", techniques=["awq"], **asked).choices[0].best.configuration.formats
    assert "awq" in size("llama-3.2-1b", quantization="awq", **asked).choices[0].best.configuration.formats


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("solve", "max-rate", "--metric", "ttft"), "max-rate does not take --metric"),
        (("solve", "max-rate", "--batch", "4"), "(--batch)"),
        (("solve", "max-concurrency", "--at", "bound"), "(--at)"),
        (("solve", "max-concurrency", "--ignore-memory"), "(--ignore-memory)"),
        (("solve", "crossover", "--at", "bound"), "crossover does not take --at"),
        (("solve", "crossover", "--tpot", "3ms"), "crossover does not take --tpot"),
        (("solve", "max-batch", "--no-chips"), "max-batch does not take --no-chips"),
        (("solve", "break-even", "--against", "--quant fp8", "--tpot", "1ms"), "no target of tpot"),
        (("serve", "--over", "tp=1,2", "--tp", "4"), "tp is an axis and cannot be fixed as well"),
        (("serve", "--concurrency", "4", "--seed", "2"), "(--seed, --simulate)"),
    ],
)
def test_options_that_a_question_does_not_take_are_refused(words: tuple[str, ...], said: str, run: Run) -> None:
    command = (*words[:2], *WORDS[:3], *words[2:]) if words[0] == "solve" else (words[0], *WORDS[:3], *words[1:])
    status, out, err = run(*command)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.slow
def test_a_full_cache_under_load_is_no_lack_of_memory(run: Run) -> None:
    words = ("llama-3.2-1b", "--hw", "l4", "--objective", "goodput", "--top", "1", "--quality", "lossless")
    status, out, _ = run("advise", *words)
    assert status == 0
    assert "does not fit" not in out


@pytest.mark.parametrize("name", ["", ".serving", ".whatif", ".whatif.solve", ".advisor"])
def test_no_module_has_the_name_of_what_its_package_exports(name: str) -> None:
    package = import_module(f"roofline{name}")
    modules = {found.name for found in pkgutil.iter_modules(package.__path__)}
    for exported in modules & set(package.__all__):
        assert isinstance(getattr(package, exported), ModuleType), exported


def test_the_package_is_typed() -> None:
    assert (Path(roofline.__file__).parent / "py.typed").is_file()
