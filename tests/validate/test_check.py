"""`check`: it fails on what moved and passes once that is accepted; nothing is half-written."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from roofline.core.errors import RooflineError, SpecError
from roofline.reports.documents.check import LIMIT, as_csv, as_markdown, parts
from roofline.reports.output.export import as_json
from roofline.reports.output.terminal import render
from roofline.validate.check import check as module
from roofline.validate.check.anchor import load_anchors
from roofline.validate.check.check import PREDICTIONS, check, number, read_predictions
from tests.conftest import Run

HEAD = "title: A | page\nsource: somewhere, 2024\nnote: Guessed.\nconditions: {hw: a100-sxm-80gb, model: llama-2-7b}\n"
ENTRIES = {
    "first": "{id: first, metric: ttft, value: 9.5 ms}",
    "rate": "{id: rate, metric: tokens_per_s, value: 104.9 tokens/s, conditions: {generate: 128}}",
    "weights": "{id: weights, metric: weight_bytes, value: 12.55 GiB}",
}


class Project:
    """A folder of anchors with its committed predictions."""

    def __init__(self, root: Path) -> None:
        self.anchors, self.predictions = root / "anchors", root / "predictions.yaml"
        self.anchors.mkdir()
        self.write(*ENTRIES)

    def write(self, *names: str, **more: str) -> None:
        entries = {**{name: ENTRIES[name] for name in names}, **more}
        text = f"{HEAD}anchors:\n" + "".join(f"  - {entry}\n" for entry in entries.values())
        (self.anchors / "page.yaml").write_text(text)

    def check(self, **options: Any) -> dict[str, Any]:
        return check(self.anchors, self.predictions, **options)

    def shift(self, name: str, factor: float) -> None:
        """As if the simulator had said something else when the predictions were accepted."""
        content = yaml.safe_load(self.predictions.read_text())
        entry = content["predictions"][name]
        shifted = (
            {figure: value * factor for figure, value in entry.items()} if isinstance(entry, dict) else entry * factor
        )
        content["predictions"][name] = shifted
        self.predictions.write_text(yaml.safe_dump(content))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    assert made.check(accept=True)["passed"]
    return made


# --- the committed predictions ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_committed_predictions_are_those_of_today() -> None:
    document = check()
    assert document["passed"], document["verdict"]
    assert len(document["anchors"]) == len(load_anchors())


def test_the_committed_file_has_a_line_an_anchor() -> None:
    text = PREDICTIONS.read_text()
    lines = text[text.index("predictions:\n") :].splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [anchor.id for anchor in load_anchors()]


# --- what moves -------------------------------------------------------------------------------------------------------


def test_unchanged_predictions_pass(project: Project) -> None:
    document = project.check()
    assert document["passed"]
    assert document["moved"] == []
    assert document["verdict"] == "all 3 predictions match the committed ones within 0.5%"


@pytest.mark.parametrize(("factor", "passed"), [(1.004, True), (0.996, True), (1.006, False), (0.5, False)])
def test_tolerance(project: Project, factor: float, passed: bool) -> None:
    project.shift("first", factor)
    assert project.check()["passed"] == passed


def test_a_moved_prediction_fails_until_it_is_accepted(project: Project) -> None:
    before = project.predictions.read_text()
    project.shift("rate", 2.0)
    document = project.check()
    (moved,) = document["moved"]
    assert not document["passed"]
    assert (moved["id"], moved["status"]) == ("rate", "moved")
    assert moved["change"] == pytest.approx(-0.5, abs=1e-3)
    assert moved["error_after"] == pytest.approx(2 * (1 + moved["error_before"]) - 1, abs=1e-3)
    assert document["verdict"].startswith("1 moved of 3 anchors; if intended, run the same command with --accept")
    accepted = project.check(accept=True)
    assert accepted["accepted"]
    assert project.check()["passed"]
    written = yaml.safe_load(project.predictions.read_text())
    assert list(written["moved"]) == ["rate"]
    assert set(written["moved"]["rate"]) == {"figure", "old", "new", "error_before", "error_after"}
    assert written["predictions"] == yaml.safe_load(before)["predictions"]


def test_added_and_removed_anchors_fail_until_accepted(project: Project) -> None:
    project.write("first", "weights", new="{id: new, metric: total, value: 2 s, conditions: {generate: 100}}")
    document = project.check()
    assert {row["id"]: row["status"] for row in document["moved"]} == {"new": "added", "rate": "removed"}
    assert "1 added, 1 removed" in document["verdict"]
    project.check(accept=True)
    assert list(read_predictions(project.predictions)) == ["first", "weights", "new"]
    assert project.check()["passed"]
    assert yaml.safe_load(project.predictions.read_text())["moved"]["rate"]["new"] is None


def test_the_predictions_of_other_files_of_anchors_stay(project: Project) -> None:
    other = project.anchors.parent / "other.yaml"
    other.write_text(f"{HEAD}anchors:\n  - {{id: other, metric: total, value: 2 s}}\n")
    before = read_predictions(project.predictions)
    assert check(other, project.predictions, accept=True)["accepted"]
    assert read_predictions(project.predictions).items() > before.items()
    assert check(other, project.predictions)["passed"]


def test_small_drifts_do_not_add_up(project: Project) -> None:
    """Accepting one change keeps the committed figure of what is within the tolerance."""
    project.shift("first", 1.004)
    kept = read_predictions(project.predictions)["first"]
    project.shift("rate", 2.0)
    project.check(accept=True)
    assert read_predictions(project.predictions)["first"].mid == pytest.approx(kept.mid, rel=1e-4)


def test_ids_that_yaml_reads_as_something_else_are_quoted(project: Project) -> None:
    names = ("no", "12", "true", "null", "2026-01-01", "1e5", "0x10", "1.5", "off", "plain")
    project.write(**{name: f"{{id: '{name}', metric: ttft, value: 9.5 ms}}" for name in names})
    assert project.check(accept=True)["passed"]
    assert list(read_predictions(project.predictions)) == list(names)
    assert "\n  plain: " in project.predictions.read_text()
    assert project.check()["passed"]


def test_accepting_nothing_leaves_the_file_alone(project: Project) -> None:
    before = project.predictions.read_text()
    document = project.check(accept=True)
    assert document["passed"]
    assert not document["accepted"]
    assert project.predictions.read_text() == before


# --- intervals --------------------------------------------------------------------------------------------------------


def test_intervals_are_kept_and_compared(project: Project) -> None:
    """Low, mid and high of a time turn around in a rate, and each is guarded."""
    rows = {row["id"]: row for row in project.check()["anchors"]}
    rate = rows["rate"]
    assert rate["bound"] > rate["high"] > rate["mid"] > rate["low"]
    assert rows["first"]["bound"] <= rows["first"]["low"] < rows["first"]["mid"] < rows["first"]["high"]
    assert rate["inside"] == (rate["low"] <= rate["published"] <= rate["high"])
    assert rows["weights"]["inside"] is None
    committed = read_predictions(project.predictions)["rate"]
    assert committed.low == pytest.approx(rate["low"], rel=1e-4)
    text = project.predictions.read_text()
    project.predictions.write_text(text.replace(f"high: {number(rate['high'])}", "high: 9999"))
    (moved,) = project.check()["moved"]
    assert (moved["id"], moved["figure"]) == ("rate", "high")


# --- files ------------------------------------------------------------------------------------------------------------


def test_nothing_is_half_written(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.shift("rate", 2.0)
    before = project.predictions.read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(RooflineError, match="No space left on device"):
        project.check(accept=True)
    assert project.predictions.read_text() == before
    assert sorted(path.name for path in project.predictions.parent.iterdir()) == ["anchors", "predictions.yaml"]


def test_no_folder_to_write_into(project: Project, tmp_path: Path) -> None:
    with pytest.raises(RooflineError, match="cannot write"):
        check(project.anchors, tmp_path / "nowhere" / "predictions.yaml", accept=True)


def test_an_installation_has_no_committed_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PREDICTIONS", tmp_path / "tests" / "golden" / "predictions.yaml")
    for accept in (False, True):
        with pytest.raises(RooflineError, match="give anchors and predictions") as caught:
            check(accept=accept)
        assert caught.value.options == ("anchors", "predictions")


def test_an_installation_checks_one_file_of_its_user(
    project: Project, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only files are the user's: a file of anchors, and the predictions that --accept writes."""
    monkeypatch.setattr(module, "PREDICTIONS", project.anchors / "tests" / "golden" / "predictions.yaml")
    golden = project.predictions.with_name("golden.yaml")
    command = ("validate", "check", "--anchors", project.anchors / "page.yaml", "--predictions", golden)
    status, _, err = run(*command)
    assert (status, "does not exist; accepting the predictions writes it (--accept)" in err) == (2, True)
    assert not golden.exists()
    assert run(*command, "--accept")[0] == 0
    assert list(read_predictions(golden)) == list(ENTRIES)
    assert run(*command)[0] == 0
    golden.write_text(re.sub(r"weights: .*", "weights: 1", golden.read_text()))
    status, _, err = run(*command)
    assert (status, "1 moved of 3 anchors" in err) == (1, True)


def test_other_anchors_need_their_own_predictions(project: Project) -> None:
    with pytest.raises(RooflineError, match="anchors of your own need their predictions") as caught:
        check(project.anchors)
    assert caught.value.options == ("predictions",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "predictions: 3\n",
        "predictions: {first: -1}\n",
        "predictions: {first: true}\n",
        "predictions: {first: 1}\nmore: 2\n",
    ],
)
def test_malformed_predictions(project: Project, text: str) -> None:
    project.predictions.write_text(text)
    with pytest.raises(SpecError) as caught:
        project.check()
    assert project.predictions.name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"), [(70272.0, "70272"), (104.9, "104.90"), (0.00123456, "0.0012346"), (1234567.0, "1234600")]
)
def test_numbers_have_five_digits(value: float, text: str) -> None:
    assert number(value) == text


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_errors_and_summary(project: Project) -> None:
    document = project.check()
    rows = {row["id"]: row for row in document["anchors"]}
    assert rows["weights"]["error"] == pytest.approx(0, abs=1e-3)
    assert rows["weights"]["bound_error"] is None
    assert rows["rate"]["bound_error"] < 0
    assert rows["rate"]["error"] == pytest.approx(rows["rate"]["published"] / rows["rate"]["mid"] - 1)
    assert rows["first"]["error"] == pytest.approx(rows["first"]["mid"] / rows["first"]["published"] - 1)
    assert {row["group"] for row in document["summary"]} == {"A | page", "all sources"}
    totals = {row["metric"]: row["anchors"] for row in document["summary"] if row["group"] == "all sources"}
    assert (totals["times and rates"], totals["bytes and tokens"]) == (2, 1)


def test_rendering(project: Project) -> None:
    project.shift("rate", 2.0)
    document = project.check()
    assert json.loads(as_json(document))["passed"] is False
    rows = list(csv.DictReader(io.StringIO(as_csv(document))))
    assert [row["id"] for row in rows] == list(ENTRIES)
    assert float(rows[0]["published"]) == 9.5
    text = render(parts(document))
    assert "weights" in text
    assert "error before" in text


def test_a_comment_says_what_moved_and_folds_the_rest(project: Project) -> None:
    project.shift("rate", 2.0)
    page = as_markdown(project.check())
    assert page.splitlines()[2] == "**1 moved of 3 anchors; if intended, run the same command with --accept**"
    before, _, folded = page.partition("<details>")
    assert "| rate | mid |" in before
    assert re.search(r"[01] moved closer to the published or measured figure, [01] moved away", before)
    assert "| times and rates | 2 |" in before
    assert "<summary>A | page: 3 anchors, errors " in folded
    assert "somewhere, 2024" in folded
    assert "Guessed." in folded
    assert page.count("<details>") == page.count("</details>") == 3
    assert "roofline plot measured check.json" in page


def test_a_comment_without_moves(project: Project) -> None:
    page = as_markdown(project.check())
    assert "all 3 predictions match the committed ones" in page
    assert "error before" not in page


def test_a_long_list_of_moves_is_folded(project: Project) -> None:
    names = {f"a{index}": f"{{id: a{index}, metric: ttft, value: {index + 1} ms}}" for index in range(30)}
    project.write(**names)
    page = as_markdown(project.check())
    assert "<summary>13 more</summary>" in page  # 30 added and 3 removed, of which 20 are shown
    assert page.index("| a29 |") < page.index("Errors by source")


def test_nothing_in_a_comment_is_interpreted(project: Project) -> None:
    hostile = "</summary><script>alert(1)</script> @everyone $x$ ~~gone~~ **bold** `code` [a](b) | \u202e"
    content = f"title: {json.dumps(hostile)}\nsource: {json.dumps(hostile)}\nnote: {json.dumps(hostile)}\n"
    content += "conditions: {hw: a100-sxm-80gb, model: llama-2-7b}\nanchors:\n  - " + ENTRIES["first"] + "\n"
    (project.anchors / "page.yaml").write_text(content)
    page = as_markdown(project.check())
    rest = page
    for part in ("<details><summary>", "</summary>", "</details>"):
        rest = rest.replace(part, "")
    assert "<" not in rest
    assert page.count("<summary>") == page.count("</summary>") == page.count("<details>")
    for words in ("@everyone", "$x$", "~~", "\u202e"):
        assert words not in page
    listed = [line for line in page.splitlines() if "everyone" in line and not line.startswith("<details>")]
    assert listed
    assert all("\\*\\*bold\\*\\* \\`code\\` \\[a\\](b) \\|" in line for line in listed)


def test_a_comment_is_no_longer_than_a_code_host_takes(project: Project) -> None:
    for index in range(300):
        head = HEAD.replace("Guessed.", "x" * 1900).replace("A | page", f"Page {index}")
        entry = f"{{id: p{index}, metric: weight_bytes, value: 12.55 GiB}}"
        (project.anchors / f"p{index}.yaml").write_text(f"{head}anchors:\n  - {entry}\n")
    page = as_markdown(project.check())
    assert len(page) <= LIMIT
    assert "Too long for a comment, and left out:" in page
    assert page.count("<details>") == page.count("</details>")


@pytest.mark.slow
def test_the_page_of_the_bundled_anchors() -> None:
    document = check()
    page = as_markdown(document)
    assert len(page) < LIMIT
    shown, _, left_out = page.partition("Too long for a comment, and left out:")
    groups = {row["group"] for row in document["anchors"]}
    folded = {group for group in groups if f"<summary>{group}:" in shown.replace("&#x27;", "'")}
    assert all(group in left_out.replace("&#x27;", "'") for group in groups - folded)
    assert len(folded) >= 0.8 * len(groups)
    by_source, _, _ = shown.partition("</details>")
    assert all(f"| {group} |" in by_source.replace("&#x27;", "'") for group in groups)
    widths = {line.count(" | ") for line in page.splitlines() if line.startswith("| ") and "conditions" in line}
    assert widths == {7}


@pytest.mark.slow
def test_the_base_install_suffices() -> None:
    """Of anchors, nothing of what only fits and figures need is imported; measured kernels are read with pandas."""
    code = (
        "import sys\nfrom roofline.validate.check.check import FOLDER, PREDICTIONS, check\n"
        "import roofline.reports.documents.check\ncheck(FOLDER, PREDICTIONS)\n"
        "print(sorted({'scipy', 'pandas', 'torch', 'pyarrow', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
