"""Reports in a headless Chromium: the live page with its answers recorded, and no request beyond the file itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="reports need Jinja2")
pytest.importorskip("matplotlib", reason="figures need matplotlib")
pytest.importorskip("uvicorn", reason="figures of the live page")

from roofline.reports.pages.write import write_report
from tests.browser import WIDTHS, Opened
from tests.conftest import Run
from tests.reports.hostile import NAMES, hostile_specs
from tests.reports.live import SETTLED, figures_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports: of one scenario, of two side by side, of a model that only encodes, and of hostile specs."""
    folder = tmp_path_factory.mktemp("reports")
    write_report("llama-3.1-8b", [], {"hw": "h100-sxm", "batch": 8, "prompt": 2048}, folder / "one.html")
    write_report("llama-68m", ["hw=l4,a6000"], {"generate": 16}, folder / "two.html", advice=False)
    write_report("bert-base", [], {"hw": "l4", "batch": 4}, folder / "encoder.html", advice=False)
    write_report("llama-2-7b", [], {"hw": "a6000", "convention": "llm-viewer"}, folder / "bound.html", advice=False)
    model, hardware = hostile_specs(folder)
    write_report(str(model), [], {"hw": str(hardware)}, folder / "hostile.html", NAMES[0], advice=False)
    return folder


PAGES = ("one", "two", "encoder", "bound", "hostile")


class Report(Opened):
    """An open report."""

    def __init__(self, browser: Any, where: Path, width: int = 1280, **options: Any) -> None:
        super().__init__(browser, where, width, **options)
        if options.get("java_script_enabled", True):
            self.page.evaluate(SETTLED)

    def view(self, name: str) -> None:
        self.page.locator(f"#tab-{name}").click()
        self.page.evaluate(SETTLED)

    def rows(self) -> list[list[str]]:
        found: list[list[str]] = self.page.evaluate(
            "[...document.querySelectorAll('#panel tbody tr')]"
            ".map(row => [...row.cells].map(cell => cell.dataset.value ?? cell.innerText))"
        )
        return found


@pytest.fixture
def one(browser: Any, folder: Path) -> Iterator[Report]:
    opened = Report(browser, folder / "one.html")
    yield opened
    assert opened.complaints == []
    opened.page.close()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_requests_and_no_overflow(browser: Any, folder: Path, name: str, width: int) -> None:
    opened = Report(browser, folder / f"{name}.html", width)
    page = opened.page
    for tab in page.locator("#tabs button").all():
        opened.view(str(tab.get_attribute("id")).removeprefix("tab-"))
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    opened.view("network")
    page.locator(".node").first.click()
    page.locator("#card").wait_for()
    box = page.locator("#card").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert opened.complaints == []
    assert [url for url in opened.asked if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in opened.asked if url.startswith("file:")]) == 1
    page.close()


def test_its_figures_are_those_of_the_command(one: Report, run: Run) -> None:
    words = shlex.split(one.page.locator("#source").inner_text())
    status, out, _ = run(*words[1:], "--format", "json")
    assert status == 0
    document = json.loads(out)
    shown = one.page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#answer [data-value]')]"
        ".map((cell) => [cell.dataset.key, Number(cell.dataset.value)]))"
    )
    assert shown == pytest.approx(figures_of(document))
    one.view("operators")
    ops, rows = document["phases"]["prefill"]["ops"], one.rows()
    assert [row[0] for row in rows] == [op["name"] for op in ops]
    assert [float(row[4]) for row in rows] == [op["flops"] for op in ops]


def test_every_operator_opens_its_card(one: Report) -> None:
    one.view("network")
    for node in one.page.locator(".node").all():
        node.click()
        name = node.locator("b").inner_text()
        one.page.locator("#card-title", has_text=f"{name} (").wait_for()
        one.page.locator("#card button").first.click()


def test_a_file_says_that_it_cannot_be_changed(one: Report) -> None:
    before = one.page.locator("#answer").inner_text()
    one.page.locator("#verdict button", has_text="Apply").click()
    assert "This page is a file" in one.page.locator("#said").inner_text()
    one.page.evaluate(SETTLED)
    assert one.page.locator("#answer").inner_text() == before
    assert not one.page.locator("aside").is_visible()


def test_everything_has_an_accessible_name(one: Report) -> None:
    nodes = one.page.context.new_cdp_session(one.page).send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "combobox", "searchbox", "image", "link", "region", "tab"}
    seen = set()
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in roles and not node.get("ignored"):
            seen.add(role)
            assert node.get("name", {}).get("value"), node
    assert {"button", "image", "link", "region", "tab"} <= seen
    ids = one.page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))


def test_scenarios_stand_below_each_other_and_are_switched(browser: Any, folder: Path) -> None:
    opened = Report(browser, folder / "two.html")
    assert opened.page.locator("#answer dl").count() == 2
    opened.page.locator("[data-setup='1']").click()
    opened.page.evaluate(SETTLED)
    assert "a6000" in opened.page.locator("#title").inner_text()
    assert "--hw a6000" in opened.page.locator("#source").inner_text()
    opened.view("compare")
    assert opened.page.locator("#panel svg").count() == 1
    assert opened.complaints == []
    opened.page.close()


def test_hostile_names_are_text(browser: Any, folder: Path) -> None:
    opened = Report(browser, folder / "hostile.html")
    page = opened.page
    assert page.title() == NAMES[0]
    assert page.locator("h1").inner_text() == NAMES[0]
    opened.view("network")
    heads = page.locator(".part h3").all_inner_texts()
    assert any(head.startswith(NAMES[1]) for head in heads)
    assert sum(int(head.rpartition("× ")[2]) for head in heads if "×" in head) == 10_000
    for node in page.locator(".node").all()[4:10]:
        node.click()
        page.locator("#card").wait_for()
        page.keyboard.press("Escape")
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.evaluate(
        "[...document.querySelectorAll('*')].every(element => "
        "[...element.attributes].every(entry => !entry.name.startsWith('on')))"
    )
    assert opened.complaints == []
    page.close()


def test_tables_are_visible_without_scripts(browser: Any, folder: Path) -> None:
    opened = Report(browser, folder / "one.html", java_script_enabled=False)
    assert opened.page.locator("#operators table").first.is_visible()
    assert opened.page.locator("#tabs").is_hidden()
    assert opened.page.locator("noscript").inner_text() != ""
    opened.page.close()
