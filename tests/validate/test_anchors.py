"""Anchors: every published figure is readable, sourced and predictable, and none beats the bound unexplained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from roofline.core.errors import RooflineError, SpecError
from roofline.validate.check.anchor import (
    METRICS,
    Anchor,
    find_metric,
    load_anchors,
    parse_value,
    predict,
    read_anchors,
    scenario_of,
)
from tests.cases import sampled

ANCHORS = load_anchors()

HEAD = "title: A page\nsource: somewhere, 2024\nconditions: {hw: a100-sxm-80gb}\nanchors:\n"
ONE = "  - {id: one, metric: ttft, value: 9.5 ms, conditions: {model: llama-2-7b}}\n"


def write(folder: Path, text: str, name: str = "page.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def read_and_predict(path: Path) -> None:
    for anchor in read_anchors(path):
        predict(anchor)


def refused(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        read_and_predict(path)
    text = str(caught.value)
    assert path.name in text
    assert "\n" not in text
    return text


# --- the bundled ones -------------------------------------------------------------------------------------------------


def test_anchors_cover_many_groups() -> None:
    assert len(ANCHORS) >= 60
    assert len({anchor.group for anchor in ANCHORS}) >= 8
    assert len({anchor.options["model"] for anchor in ANCHORS}) >= 15
    assert len({anchor.options["hw"] for anchor in ANCHORS}) >= 15
    assert {anchor.metric for anchor in ANCHORS} >= {"ttft", "total", "tokens_per_s", "weight_bytes"}
    assert len({anchor.options["batch"] for anchor in ANCHORS}) >= 10


def test_every_anchor_has_a_source() -> None:
    for anchor in ANCHORS:
        assert len(anchor.source) > 10, anchor.id
        assert any(char.isdigit() for char in anchor.source), f"{anchor.id}: a commit, a date or a table"


ROUNDING = 1 + 1e-12
"""Sums over decode steps are taken in another order at the bound than at expected times."""


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda anchor: anchor.id)
def test_every_anchor_is_predicted(anchor: Anchor) -> None:
    """None beats the bound unexplained, to the digit; an explanation that is no longer needed is refused, too."""
    prediction, published = predict(anchor), anchor.value.number
    assert all(0 < figure < float("inf") for figure in prediction)
    assert prediction.low <= prediction.mid <= prediction.high
    match METRICS[anchor.metric].kind:
        case "time":
            assert prediction.bound <= prediction.low * ROUNDING
            assert prediction.low < prediction.high
            assert (published < prediction.bound) == bool(anchor.faster_than_bound)
        case "rate":
            assert prediction.bound * ROUNDING >= prediction.high
            assert prediction.high > prediction.low
            assert (published > prediction.bound) == bool(anchor.faster_than_bound)
        case _:
            assert len(set(prediction)) == 1
    if anchor.metric == "weight_bytes":
        assert prediction.mid == pytest.approx(published, rel=0.01)
    if anchor.metric.startswith("kv_") and anchor.metric.endswith(("token", "bytes")):
        assert prediction.mid == pytest.approx(published, rel=1e-4)


def test_conditions_reach_the_scenario() -> None:
    anchor = next(a for a in ANCHORS if a.id == "gpt-fast.llama-2-70b.int4.tp8")
    scenario = scenario_of(anchor)
    assert (scenario.batch, scenario.prompt, scenario.generate) == (1, 5, 200)
    assert scenario.settings.parallel.tensor == 8
    assert scenario.precision is not None
    assert (scenario.precision.base.name, scenario.precision.weights.name) == ("bf16", "gptq_g32")


# --- units ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "text", "scale", "per"),
    [
        ("ttft", "9.53 ms", 1e-3, ""),
        ("total", "2 s", 1.0, ""),
        ("weight_bytes", "14.96 GiB", 2**30, ""),
        ("kv_bytes_per_token", "70.272 kB", 1e3, ""),
        ("tokens_per_s", "104.9 tokens/s", 1.0, ""),
        ("tokens_per_s", "3269 tokens/s/device", 1.0, "/device"),
        ("kv_capacity_tokens", "117616 tokens", 1.0, ""),
    ],
)
def test_values(metric: str, text: str, scale: float, per: str) -> None:
    value = parse_value(text, find_metric(metric))
    assert value.number == float(text.split()[0])
    assert (value.scale, value.per) == (scale, per)


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("ttft", "9.53"),
        ("ttft", "-1 ms"),
        ("ttft", "1e999 ms"),
        ("tokens_per_s", "3 tokens"),
        ("kv_capacity_tokens", "3 tokens/node"),
    ],
)
def test_bad_values(metric: str, text: str) -> None:
    with pytest.raises(RooflineError):
        parse_value(text, find_metric(metric))


def test_a_rate_by_device_node_and_sequence(tmp_path: Path) -> None:
    shared = "metric: tokens_per_s, conditions: {model: llama-2-7b, batch: 8, generate: 9, tp: 4, nodes: 2}"
    units = {"all": "", "device": "/device", "node": "/node", "sequence": "/sequence"}
    lines = [f"  - {{id: {name}, value: 1 tokens/s{unit}, {shared}}}\n" for name, unit in units.items()]
    path = write(tmp_path, HEAD + "".join(lines))
    rates = {anchor.id: predict(anchor).mid for anchor in read_anchors(path)}
    assert rates["all"] == pytest.approx(4 * rates["device"])
    assert rates["all"] == pytest.approx(2 * rates["node"])
    assert rates["all"] == pytest.approx(8 * rates["sequence"])


def test_rates_agree_with_times(tmp_path: Path) -> None:
    shared = "conditions: {model: llama-2-7b, batch: 4, prompt: 100, generate: 11}"
    figures = {"ttft": "1 s", "tpot": "1 s", "total": "1 s"} | {
        f"{name}tokens_per_s": "1 tokens/s" for name in ("", "decode_", "prefill_")
    }
    lines = [f"  - {{id: {name}, metric: {name}, value: {text}, {shared}}}\n" for name, text in figures.items()]
    mid = {anchor.id: predict(anchor).mid for anchor in read_anchors(write(tmp_path, HEAD + "".join(lines)))}
    assert mid["total"] == pytest.approx(mid["ttft"] + 10 * mid["tpot"])
    assert mid["tokens_per_s"] == pytest.approx(44 / mid["total"])
    assert mid["decode_tokens_per_s"] == pytest.approx(4 / mid["tpot"])
    assert mid["prefill_tokens_per_s"] == pytest.approx(400 / mid["ttft"])


# --- malformed files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("metric:", "metrics:"), "unknown key 'metrics' in 'anchors.one'; did you mean 'metric'?"),
        (("title:", "titel:"), "unknown key 'titel'; did you mean 'title'?"),
        (("metric: ttft", "metric: ttfl"), "unknown metric 'ttfl'; did you mean 'ttft'?"),
        (("9.5 ms", "fast"), "cannot read 'fast' as a figure such as '9.53 ms'"),
        (("a100-sxm-80gb", "a100-sxm-8gb"), "unknown hardware 'a100-sxm-8gb'"),
        (("{model: llama-2-7b}", "{model: llama-2-7b, batch: 0}"), "the anchor 'one': batch must be between 1"),
        (("{model: llama-2-7b}", "{model: llama-2-7b, techniques: [magic]}"), "the anchor 'one'"),
        (("id: one", "id: One two"), "is not of small letters"),
        (("metric: ttft, value: 9.5 ms", "metric: kv_capacity_tokens, value: 9 tokens"), "needs the condition"),
        (("anchors:\n", "anchors: []\nmore:\n"), "unknown key 'more'"),
    ],
)
def test_malformed(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert message in refused(write(tmp_path, (HEAD + ONE).replace(*change)))


JUNK = (None, True, -1, 10**5000, 1.5, float("nan"), "", "\0", "x" * 3000, [], [1], {}, {"model": [1]}, "1e400 s")


@pytest.mark.parametrize("value", JUNK, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "key",
    sampled(["id", "metric", "value", "source", "note", "conditions", "model", "hw", "prompt", "kv", "techniques"], 3),
)
def test_junk_is_answered_in_one_sentence(tmp_path: Path, key: str, value: object) -> None:
    entry: dict[str, object] = {"id": "one", "metric": "ttft", "value": "9.5 ms", "conditions": {"model": "llama-2-7b"}}
    if key in ("model", "hw", "prompt", "kv", "techniques"):
        entry["conditions"] = {"model": "llama-2-7b", key: value}
    else:
        entry[key] = value
    head = {"title": "A page", "source": "somewhere, 2024", "conditions": {"hw": "a100-sxm-80gb"}}
    sys.set_int_max_str_digits(0)
    try:
        path = write(tmp_path, yaml.safe_dump({**head, "anchors": [entry]}))
    finally:
        sys.set_int_max_str_digits(4300)
    message = ""
    try:
        read_and_predict(path)
    except SpecError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 600


def test_invalid_anchor_files(tmp_path: Path) -> None:
    assert "mapping" in refused(write(tmp_path, "- 1\n"))
    assert "YAML" in refused(write(tmp_path, "a: [\n"))
    assert "cannot be read" in refused(tmp_path / "absent.yaml")
    with pytest.raises(RooflineError, match="holds no anchors"):
        load_anchors(tmp_path / "nowhere")


def test_an_id_is_used_once(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + ONE + ONE)
    assert "two anchors are called 'one'" in refused(path)
    write(tmp_path, HEAD + ONE, "a.yaml")
    write(tmp_path, HEAD + ONE, "page.yaml")
    with pytest.raises(SpecError, match="is already in"):
        load_anchors(tmp_path)
