"""Sweeps: equal to single analyses, for any chunks and any executor."""

from __future__ import annotations

import math
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import analyze, list_models
from roofline.core.errors import RooflineError
from roofline.scenario.options import OPTIONS
from roofline.scenario.scenario import Scenario
from roofline.techniques import techniques
from roofline.techniques.unsupported import unsupported
from roofline.whatif.axes import assigned, parse_axis
from roofline.whatif.metrics import NAMES, find_metric
from roofline.whatif.selection import Rows, Selection, front
from roofline.whatif.study import Study, assemble, make_study, read_study
from roofline.whatif.sweeps import Chunks, answers, sweep
from tests.cases import sampled

FIXED: dict[str, Any] = {"model": "llama-3.1-8b", "hw": "h100-sxm"}


def rows(study: Study, **options: Any) -> list[tuple[Any, ...]]:
    """The rows of a sweep, NaN as None."""
    columns = sweep(study, **options).columns
    listed = ([None if value != value else value for value in column.tolist()] for column in columns.values())
    return list(zip(*listed, strict=True))


def same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    """Checks that rows are equal; numbers up to rounding, which depends on the number of points evaluated at once."""
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row == tuple(pytest.approx(value, rel=1e-12) if type(value) is float else value for value in other)


# Axes


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,4", [1, 2, 4]),
        ("7", [7]),
        ("3:6", [3, 4, 5, 6]),
        ("16:64:16", [16, 32, 48, 64]),
        ("1:10:4", [1, 5, 9]),
        ("1:256:log9", [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        ("1:4:log9", [1, 2, 3, 4]),
        ("1:9:lin3", [1, 5, 9]),
        ("5:5:log1", [5]),
        ("1,8:10,64", [1, 8, 9, 10, 64]),
        ("1_000, 2_000", [1000, 2000]),
        ("2k,2K", [2000, 2048]),
        ("1K:4K:1K", [1024, 2048, 3072, 4096]),
        ("1:1K:log11", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]),
        ([4, 2], [4, 2]),
        (np.array([4, 2]), [4, 2]),
        (12, [12]),
    ],
)
def test_values_of_a_count(text: object, values: list[int]) -> None:
    assert parse_axis("batch", text).values.tolist() == values
    assert list(parse_axis("tp", text).values) == values


@pytest.mark.parametrize(
    ("name", "given", "values", "labels"),
    [
        ("quant", "W16,W4KV8", ("W16", "W4KV8"), ("W16", "W4KV8")),
        ("quant", "none,W4", (None, "W4"), ("none", "W4")),
        ("flash", "true,no", (True, False), (True, False)),
        ("fuse", "none,qkv+gate_up", ([], ["qkv", "gate_up"]), ("none", "qkv+gate_up")),
        ("with", "eagle:accept=3;awq", (["eagle:accept=3"], ["awq"]), ("eagle:accept=3", "awq")),
        ("with", ["none", ["eagle", "awq"]], ([], ["eagle", "awq"]), ("none", "eagle+awq")),
        ("offload", "weights=0.5,kv=1;none", ("weights=0.5,kv=1", None), ("weights=0.5,kv=1", "none")),
        ("expert-skew", "0:1:lin3", (0, 0.5, 1), (0, 0.5, 1)),
        ("expert_skew", "0:1:0.25", (0, 0.25, 0.5, 0.75, 1), (0, 0.25, 0.5, 0.75, 1)),
        ("micro-batches", "1:3", (1, 2, 3), (1, 2, 3)),
    ],
)
def test_values_of_a_loop(name: str, given: object, values: object, labels: object) -> None:
    axis = parse_axis(name, given)
    assert (axis.values, axis.labels) == (values, labels)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("bacth", "1", ["'bacth'", "'batch'"]),
        ("batch", "1:2:3:4", ["cannot read the range '1:2:3:4'"]),
        ("batch", "8:1", ["backwards"]),
        ("batch", "1:8:0.5", ["step", "whole"]),
        ("batch", "1:8:log0", ["needs a number of values"]),
        ("expert_skew", "1k", ["a number"]),
        ("prefix", "0:8:log3", ["above 0"]),
        ("batch", "1.5", ["whole number"]),
        ("batch", "1,2,1", ["1 twice"]),
        ("batch", {"a": 1}, ["list"]),
        ("prompt", "1:1000000000", ["the maximum is 10000000"]),
        ("hw", "h100-sxn", ["'h100-sxn'", "'h100-sxm'"]),
        ("quant", "W17", ["17"]),
        ("with", "eagel", ["'eagel'", "'eagle'"]),
        ("flash", "maybe", ["true or false"]),
        ("offload", "wieghts=1", ["'weights'"]),
        ("tp", "0", ["between 1"]),
    ],
)
def test_invalid_axis(name: str, given: object, words: list[str]) -> None:
    with pytest.raises(RooflineError) as caught:
        parse_axis(name, given)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("text", ["batch", "=3", "batch=", ""])
def test_axis_without_values(text: str) -> None:
    with pytest.raises(RooflineError, match="batch=1:256:log16"):
        assigned([text])


# Studies


@pytest.mark.parametrize(
    ("over", "options", "words"),
    [
        ({}, {}, ["axis"]),
        ({"batch": "1"}, {"metrics": ""}, ["metric ''"]),
        ({"batch": "1"}, {"at": "bond"}, ["'bound'"]),
        ({"batch": "1"}, {"where": "ttft"}, ["not a condition"]),
        ({"batch": "1"}, {"top": 3}, ["rank by"]),
        ({"batch": "1"}, {"top": 0, "by": "ttft"}, ["above 0"]),
        ({"quant": "W4"}, {"top": 3, "by": "quant"}, ["quant has no better direction"]),
        ({"batch": "1"}, {"pareto": "ttft,ttft"}, ["at least two different"]),
        ({"batch": "1"}, {"batch": 3}, ["batch is an axis"]),
        ({"batch": "1"}, {"tp": "two"}, ["tp takes a whole number"]),
        ({"batch": "1"}, {"quant": "W99"}, ["99"]),
    ],
)
def test_invalid_study(over: Any, options: Any, words: list[str]) -> None:
    with pytest.raises(RooflineError) as caught:
        make_study(over, **{**FIXED, **options})
    assert [word for word in words if word not in str(caught.value)] == []


def test_model_and_hardware_are_required() -> None:
    with pytest.raises(RooflineError, match="a model"):
        make_study({"batch": "1"}, hw="h100-sxm")
    with pytest.raises(RooflineError, match="hardware"):
        make_study({"batch": "1"}, model="llama-3.1-8b")
    assert make_study({"model": "llama-3.1-8b", "hw": "h100-sxm"}).points == 1


def test_arguments_override_a_study_file(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "model: llama-3.1-8b\nhw: h100-sxm\ngenerate: 64\nover:\n  batch: 1:64:log7\n  quant: [W16, W4]\n"
        "metrics: [ttft, fits]\nwhere: fits\nat: bound\n"
    )
    study = assemble(str(path), [], {}, {})
    assert (study.points, study.question.fixed["generate"], study.question.at) == (14, 64, "bound")
    assert study.key == make_study(**read_study(path)).key
    beside = assemble(
        str(path), ["hw=h100-sxm,mi300x"], {"batch": 3, "kv": "fp8"}, {"metrics": "tpot", "at": "expected"}
    )
    assert [axis.name for axis in beside.axes] == ["quant", "hw"]
    assert beside.question.fixed == {"model": "llama-3.1-8b", "generate": 64, "batch": 3, "kv": "fp8"}
    assert (beside.question.outputs, beside.question.at, beside.question.where) == (("tpot",), "expected", "fits")


def test_range_in_a_study_file_is_not_sexagesimal(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("model: llama-3.1-8b\nhw: h100-sxm\nover: {batch: 1:30, tp: [1, 2], prompt: 10:50:20}\n")
    study = assemble(str(path), [], {}, {})
    assert study.axes[0].values.tolist() == list(range(1, 31))
    assert study.points == 180


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("over: 3\n", ["'over' must map"]),
        ("over: {}\n", ["'over' must map"]),
        ("over: {batch: 1}\nmetric: [ttft]\n", ["'metric'", "'metrics'"]),
        ("over: {batch: 1}\nmetrics: 3\n", ["'metrics' must be a list"]),
        ("over: {batch: 1}\nwhere: [a]\n", ["'where' must be text"]),
        ("over: [batch\n", ["not valid YAML"]),
    ],
)
def test_invalid_study_file(text: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(RooflineError) as caught:
        assemble(str(path), [], {}, {})
    assert [word for word in (*words, "study.yaml") if word not in str(caught.value)] == []


def test_key_distinguishes_studies() -> None:
    studies = [
        make_study({"batch": "1,2"}, **FIXED),
        make_study({"batch": "1,3"}, **FIXED),
        make_study({"prompt": "1,2"}, **FIXED),
        make_study({"batch": "1,2"}, **{**FIXED, "hw": "h200-sxm"}),
        make_study({"batch": "1,2"}, at="bound", **FIXED),
        make_study({"batch": "1,2"}, where="fits", **FIXED),
        make_study({"batch": "1,2"}, ["ttft"], **FIXED),
        make_study({"batch": "1,2"}, engine="ideal", **FIXED),
    ]
    assert len({study.key for study in studies}) == len(studies)
    assert make_study({"batch": [1, 2]}, **FIXED).key == studies[0].key


# A grid is its single analyses


def single(name: str, answer: Any) -> Any:
    """A metric of the analysis of a single workload, from its public figures."""
    base, _, reading = name.partition(".")
    generation, expected, memory = answer.generation, answer.expected, answer.memory
    devices = answer.parallel.devices
    if base == "memory":
        parts = {
            "": "total",
            "weights": "weights",
            "kv": "kv_cache",
            "state": "state",
            "activations": "activation_peak",
            "runtime": "runtime",
            "usable": "budget",
        }
        return getattr(memory, parts[reading])
    if name in ("fits", "headroom"):
        return getattr(memory, name)
    if name == "supported":
        return not unsupported(answer.scenario)
    if name == "gpus":
        return devices
    if name == "usd_per_hour":
        price = answer.scenario.hardware.price
        return None if price is None or price.rent is None else devices * price.rent
    if name.endswith("_bound"):
        return str(getattr(answer, name.removesuffix("_bound")).bound)
    if base in ("energy", "power", "cost", "carbon"):  # tests/roofline/scenario/test_energy.py works these out by hand
        figure = float(find_metric(name, "expected").figure(answer))
        return None if math.isnan(figure) else figure
    reading = reading or "mid"
    if base == "step":
        return answer.decode.bound_time if reading == "bound" else getattr(answer.decode.expected, reading)
    fast = {"low": "high", "high": "low"}.get(reading, reading)
    if base == "tokens_per_s_per_user":
        tpot = generation.tpot if reading == "bound" else expected.tpot and getattr(expected.tpot, fast)
        return None if tpot is None else 1 / tpot
    if base == "sequences_per_s":
        return answer.scenario.batch / (generation.total if reading == "bound" else getattr(expected.total, fast))
    field = "tokens_per_second" if base.startswith("tokens") else base
    found = getattr(generation, field) if reading == "bound" else getattr(expected, field)
    value = found if reading == "bound" or found is None else getattr(found, reading)
    return value / devices if base.endswith("per_gpu") else value


def test_grid_metrics_equal_single_analyses() -> None:
    over = {"quant": "none,W4KV8", "batch": "1,7,300", "tp": "1,2", "prompt": "16,5000", "generate": "1,90"}
    study = make_study(over, NAMES, model="llama-3.1-8b", hw="h100-sxm", context=700, engine="sglang", carbon=400)
    found = sweep(study, chunk=5)
    columns = found.columns
    assert (found.points, found.rows.count, list(columns)) == (48, 48, [*over, *NAMES])
    points = product(["none", "W4KV8"], [1, 2], [1, 7, 300], [16, 5000], [1, 90])
    for index, (quant, tp, batch, prompt, generate) in enumerate(points):
        given = {"quant": quant, "tp": tp, "batch": batch, "prompt": prompt, "generate": generate}
        assert {name: columns[name][index] for name in given} == given
        given["quant"] = OPTIONS["quant"].read(quant)
        answer = analyze(Scenario(**{**study.question.fixed, **given}))
        for name in NAMES:
            value, expected = columns[name][index], single(name, answer)
            if expected is None:
                assert math.isnan(value), name
            elif isinstance(expected, str):
                assert value == expected, name
            else:
                assert value == pytest.approx(expected, rel=1e-9), (name, given)


APPLICABLE = [
    name
    for name, entry in techniques().items()
    if entry.change
    and all(parameter.default is not None or parameter.low is not None for parameter in entry.parameters)
]


@pytest.mark.parametrize("name", sampled(APPLICABLE, 24))
def test_every_technique_takes_grids(name: str) -> None:
    """With any technique, a grid equals its single workloads, or all of them fail."""
    over = {"batch": "1,6", "prompt": "40,3000"}
    settled = {**FIXED, "with": [name], "prefix": 8}
    study = make_study(over, ["ttft", "total", "memory"], invalid="keep", **settled)
    whole = sweep_or_reasons(study)
    apart = [
        sweep_or_reasons(make_study({"batch": batch, "prompt": prompt}, ["ttft", "total", "memory"], **settled))
        for batch in ("1", "6")
        for prompt in ("40", "3000")
    ]
    for index, point in enumerate(apart):
        if isinstance(point, str):
            assert isinstance(whole, str) or whole["error"][index]
        else:
            assert not isinstance(whole, str)
            for metric in ("ttft", "total", "memory"):
                assert whole[metric][index] == pytest.approx(point[metric][0], rel=1e-9)


def sweep_or_reasons(study: Study) -> Any:
    try:
        return sweep(study).columns
    except RooflineError as error:
        return str(error)


@pytest.mark.slow
def test_every_model_takes_grids() -> None:
    study = make_study(
        {"model": "all", "batch": "1,16", "prompt": "32,400"}, ["ttft", "memory"], at="bound", hw="b200-sxm"
    )
    found = sweep(study)
    assert found.rows.count == found.points == 4 * len(list_models())
    assert np.isfinite(found.columns["ttft"]).all()


# However it is cut

OVER = {"batch": "1:40:3", "hw": "h100-sxm,a6000", "prompt": "5:905:90", "tp": "1,3", "generate": "1:8:log4"}


@pytest.fixture(scope="module")
def whole() -> list[tuple[Any, ...]]:
    return rows(make_study(OVER, ["total", "fits", "bound"], at="bound", model="llama-3.1-8b"))


@pytest.mark.parametrize("chunk", sampled([1, 3, 44, 45, 100, 616, 617, 10**6], (1, 45, 617)))
def test_result_is_independent_of_chunks(chunk: int, whole: list[tuple[Any, ...]]) -> None:
    study = make_study(OVER, ["total", "fits", "bound"], at="bound", model="llama-3.1-8b")
    if chunk < 40:  # a hundred analyses
        few = {**OVER, "batch": "1,40", "prompt": "5:905:450"}
        study = make_study(few, ["total", "fits", "bound"], at="bound", model="llama-3.1-8b")
        whole = [row for row in whole if row[0] in (1, 40) and row[2] in (5, 455, 905)]
    found = list(answers(study, chunk=chunk))
    assert [answer.number for answer in found] == list(range(len(Chunks(study, chunk))))
    assert sum(answer.points for answer in found) == study.points
    assert max(answer.points for answer in found) <= chunk
    same(rows(study, chunk=chunk), whole)


@given(st.data())
def test_chunks_cover_every_point_once_in_order(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    names = data.draw(st.permutations(["batch", "prompt", "generate", "tp", "pp"]))[: len(lengths)]
    study = make_study({name: f"1:{length}" for name, length in zip(names, lengths, strict=True)}, **FIXED)
    size = data.draw(st.integers(1, 60))
    chunks = Chunks(study, size)
    seen = []
    for number in range(len(chunks)):
        for part in chunks.task(number).parts:
            assert math.prod(part.shape) <= size
            for values in product(*part.grid.values()):
                seen.append((*part.loops.values(), *map(int, values)))
    loops, grid = ([axis.values for axis in axes] for axes in (study.loops, study.grid))
    assert seen == [tuple(map(int, point)) for point in product(*loops, *grid)]


# Whoever works it out


def test_threads_and_processes_are_the_same(whole: list[tuple[Any, ...]]) -> None:
    study = make_study(OVER, ["total", "fits", "bound"], at="bound", model="llama-3.1-8b")
    with ThreadPoolExecutor(2) as threads:
        same(found := rows(study, executor=threads, chunk=300, ahead=3), whole)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        assert rows(study, executor=processes, chunk=300, ahead=5) == found


class Recorder:
    """An executor that runs calls at once and records the maximum number in flight."""

    def __init__(self) -> None:
        self.asked = self.taken = self.most = 0

    def submit(self, fn: Any, /, *args: Any) -> Any:
        self.asked += 1
        self.most = max(self.most, self.asked - self.taken)
        future: Future[Any] = Future()
        future.set_result(fn(*args))
        return future


def test_chunks_in_flight_are_limited() -> None:
    study = make_study({"batch": "1:100"}, ["ttft"], at="bound", **FIXED)
    recorder = Recorder()
    for _ in answers(study, recorder, chunk=10, ahead=3):
        recorder.taken += 1
    assert (recorder.asked, recorder.most <= 4) == (10, True)


class Broken:
    """An executor whose calls all raise an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def submit(self, fn: Any, /, *args: Any) -> Any:
        future: Future[Any] = Future()
        future.set_exception(self.error)
        return future


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionResetError("gone"), "workers were lost"),
        (BrokenExecutor("gone"), "workers were lost"),
        (ModuleNotFoundError("no roofline"), "need the same version"),
        (RuntimeError("Error during deserialization of the task graph"), "need the same version"),
    ],
)
def test_worker_failures(error: Exception, words: str) -> None:
    with pytest.raises(RooflineError, match=words):
        sweep(make_study({"batch": "1:100"}, **FIXED), Broken(error))


def test_bug_is_raised_unchanged() -> None:
    with pytest.raises(ZeroDivisionError):
        sweep(make_study({"batch": "1:100"}, **FIXED), Broken(ZeroDivisionError()))


def test_worker_with_other_specs(tmp_path: Path) -> None:
    from msgspec.structs import replace

    study = make_study({"batch": "1,2"}, **FIXED)
    other = replace(study.question, sources={**study.question.sources, ("hw", "h100-sxm"): "0" * 16})
    with ThreadPoolExecutor(1) as threads, pytest.raises(RooflineError, match="hw h100-sxm"):
        sweep(Study(study.axes, other), threads)


# What cannot run


def test_invalid_points_are_counted() -> None:
    study = make_study({"tp": "1,3,8", "batch": "1:4"}, at="bound", **FIXED)
    found = sweep(study)
    assert (found.points, found.rows.count) == (12, 8)
    assert found.reasons == {"tensor parallelism of 3 does not divide the 32 attention heads of llama-3.1-8b": 4}
    assert set(found.columns["tp"].tolist()) == {1, 8}


def test_invalid_points_can_be_kept() -> None:
    study = make_study({"tp": "1,3", "batch": "1:4"}, at="bound", invalid="keep", **FIXED)
    columns = sweep(study).columns
    assert columns["tp"].tolist() == [1, 1, 1, 1, 3, 3, 3, 3]
    assert ["tensor parallelism of 3 does not divide" in text for text in columns["error"]] == [False] * 4 + [True] * 4
    assert np.isnan(columns["ttft"]).tolist() == [False] * 4 + [True] * 4


@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_only_invalid_points_of_a_grid_have_errors(chunk: int) -> None:
    over = {"prompt": "10,20,30", "images": "0,1,2"}
    study = make_study(over, ["ttft"], at="bound", invalid="keep", **FIXED)
    columns = sweep(study, chunk=chunk).columns
    assert [not text for text in columns["error"]] == [count == 0 for count in columns["images"]]
    assert np.isfinite(columns["ttft"]).tolist() == [count == 0 for count in columns["images"]]
    plain = make_study({"prompt": "10,20,30"}, ["ttft"], at="bound", **FIXED)
    # One point and several are added up in another order.
    assert columns["ttft"][::3].tolist() == pytest.approx(sweep(plain).columns["ttft"].tolist(), rel=1e-14)


def test_unsupported_formats() -> None:
    study = make_study({"hw": "h100-sxm,a100-sxm-80gb", "convention": "llm-viewer,physical"}, model="llama-2-7b")
    found = sweep(study)
    assert (found.points, found.rows.count) == (4, 2)
    assert "no expected times" in next(iter(found.reasons))


def test_no_rows_left() -> None:
    with pytest.raises(RooflineError, match="none of the 2 points can run: tensor parallelism of 3 does not divide"):
        sweep(make_study({"tp": "3,5"}, **FIXED))
    with pytest.raises(RooflineError, match="none of the 2 points meets 'not fits'"):
        sweep(make_study({"batch": "1,2"}, where="not fits", **FIXED))


def test_encoders_have_no_decode() -> None:
    study = make_study({"batch": "1,2"}, NAMES, model="bert-base", hw="h100-sxm", carbon=400)
    columns = sweep(study).columns
    assert (columns["decode_bound"] == "").all()
    for name in ("step", "tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_user", "energy", "cost"):
        assert np.isnan(columns[name]).all(), name
    assert columns["sequences_per_s"] == pytest.approx(np.array([1, 2]) / columns["total"])
    assert columns["cost.processed"] == pytest.approx(1e6 / 3600 * 3.945 / 512 / columns["sequences_per_s"])
    assert (columns["energy.prefill"] < columns["energy.tdp.prefill"]).all()
    assert (columns["ttft"] > 0).all()


def test_default_metrics() -> None:
    generates, encodes = (make_study({"batch": "1,2"}, model=name, hw="h100-sxm") for name in ("gpt2-xl", "bert-base"))
    both = make_study({"model": "gpt2-xl,bert-base"}, hw="h100-sxm")
    assert {"tokens_per_s", "tpot"} < set(generates.question.outputs)
    assert "sequences_per_s" not in generates.question.outputs
    assert "sequences_per_s" in encodes.question.outputs
    assert not {"tokens_per_s", "tokens_per_s_per_gpu", "tpot", "decode_bound"} & set(encodes.question.outputs)
    assert set(both.question.outputs) == {*generates.question.outputs, *encodes.question.outputs}
    assert not any(np.isnan(column).all() for column in sweep(encodes).columns.values() if column.dtype == float)


# Which rows are wanted


def test_where_is_the_filter_of_all_rows() -> None:
    study = make_study({"quant": "W16,W4", "batch": "1:512:log40"}, **FIXED)
    names = ("quant", "batch", *study.question.outputs)
    everything = rows(study)
    chosen = rows(make_study({"quant": "W16,W4", "batch": "1:512:log40"}, where="fits and ttft.high < 400ms", **FIXED))
    highs = sweep(make_study({"quant": "W16,W4", "batch": "1:512:log40"}, ["ttft.high"], **FIXED)).columns["ttft.high"]
    fits = names.index("fits")
    assert chosen == [row for row, high in zip(everything, highs, strict=True) if row[fits] and high < 0.4]
    assert 0 < len(chosen) < len(everything)


@pytest.mark.parametrize("chunk", [3, 10**5])
def test_top_is_the_start_of_the_sorted_rows(chunk: int) -> None:
    over = {"quant": "W16,W4", "batch": "1:512:log40"}
    metrics = ["tokens_per_s", "ttft"]
    everything = rows(make_study(over, metrics, **FIXED), chunk=chunk)
    best = rows(make_study(over, metrics, top=5, by="tokens_per_s", **FIXED), chunk=chunk)
    assert best == sorted(everything, key=lambda row: -row[2])[:5]
    least = rows(make_study(over, metrics, top=5, by="ttft", **FIXED), chunk=chunk)
    assert least == sorted(everything, key=lambda row: row[3])[:5]


def dominated(costs: list[tuple[float, ...]], index: int) -> bool:
    mine = costs[index]
    return any(
        all(a <= b for a, b in zip(other, mine, strict=True)) and any(a < b for a, b in zip(other, mine, strict=True))
        for other in costs
    )


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.tuples(*[st.one_of(st.integers(-4, 4).map(float), st.just(math.nan)) for _ in range(width)]), max_size=40
        )
    )
)
def test_front_equals_brute_force(costs: list[tuple[float, ...]]) -> None:
    known = [cost for cost in costs if not any(map(math.isnan, cost))]
    expected = [not any(map(math.isnan, cost)) and not dominated(known, known.index(cost)) for cost in costs]
    width = len(costs[0]) if costs else 2
    assert front(np.array(costs, dtype=float).reshape(len(costs), width)).tolist() == expected


@pytest.mark.parametrize("chunk", [7, 10**5])
@pytest.mark.parametrize("pareto", ["ttft,tokens_per_s_per_gpu", "tpot,tokens_per_s_per_gpu,memory"])
def test_front_of_a_sweep_equals_brute_force(chunk: int, pareto: str) -> None:
    over = {"quant": "W16,W8A8,W4", "tp": "1,2,4", "batch": "1:256:log9"}
    chosen = pareto.split(",")
    everything = rows(make_study(over, chosen, **FIXED), chunk=chunk)
    costs = [
        tuple(-value if "tokens" in name else value for name, value in zip(chosen, row[3:], strict=True))
        for row in everything
    ]
    expected = {row for index, row in enumerate(everything) if not dominated(costs, index)}
    found = rows(make_study(over, chosen, pareto=pareto, **FIXED), chunk=chunk)
    assert set(found) == expected
    assert len(found) == len(expected) > 1
    assert [row[3] for row in found] == sorted(row[3] for row in found)


def test_front_with_top() -> None:
    over = {"quant": "W16,W8A8,W4", "batch": "1:256:log9"}
    study = make_study(over, ["ttft"], pareto="ttft,tokens_per_s", top=2, by="tokens_per_s", **FIXED)
    full = rows(make_study(over, ["ttft"], pareto="ttft,tokens_per_s", **FIXED), chunk=4)
    assert rows(study, chunk=4) == sorted(full, key=lambda row: -row[3])[:2]


def test_selection_of_partial_selections() -> None:
    random = np.random.default_rng(5)
    table = Rows({"a": random.integers(0, 9, 200) / 1.0, "b": random.integers(0, 9, 200) / 1.0}, 200)
    for selection in (Selection(top=7, by=("a", 1)), Selection((("a", -1), ("b", 1)))):
        halves = [selection.partial(table.take(np.arange(200) % 2 == index)) for index in (0, 1)]
        joined = Rows({name: np.concatenate([half.array(name) for half in halves]) for name in "ab"}, 0)
        joined = Rows(joined.columns, len(joined.columns["a"]))
        found = sorted(zip(*(selection.of(joined).array(name) for name in "ab"), strict=True))
        whole = sorted(zip(*(selection.of(table).array(name) for name in "ab"), strict=True))
        assert [row[0] for row in found] == [row[0] for row in whole]
