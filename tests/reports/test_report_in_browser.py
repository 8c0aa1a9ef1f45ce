"""Reports in a headless Chromium: controls, cards, table, layout, no requests beyond the file itself."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="reports need Jinja2")
pytest.importorskip("matplotlib", reason="figures need matplotlib")

from roofline.reports.pages.write import write_report
from tests.browser import WIDTHS, Opened
from tests.conftest import Run
from tests.reports.hostile import NAMES, hostile_specs


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


class Explored(Opened):
    """An open report with its controls, cards and table."""

    def turn(self, control: str, place: int) -> None:
        """Sets a control to the value at an index."""
        element = self.page.locator(f"#control-{control}")
        if element.evaluate("element => element.tagName") == "SELECT":
            element.select_option(index=place)
        else:
            element.fill(str(place))

    def cards(self) -> dict[str, float]:
        found: dict[str, float] = self.page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#cards [data-value]')]"
            ".map(card => [card.dataset.key, Number(card.dataset.value)]))"
        )
        return found

    def card(self, key: str) -> str:
        return str(self.page.locator(f"#cards [data-key={key}] .main").inner_text())

    def rows(self) -> list[list[str]]:
        found: list[list[str]] = self.page.evaluate(
            "[...document.querySelectorAll('#table tbody tr')]"
            ".map(row => [...row.cells].map(cell => cell.dataset.value ?? cell.innerText))"
        )
        return found


@pytest.fixture
def one(browser: Any, folder: Path) -> Iterator[Explored]:
    opened = Explored(browser, folder / "one.html")
    yield opened
    assert opened.complaints == []
    opened.page.close()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_requests_overflow_or_overlaps(browser: Any, folder: Path, name: str, width: int) -> None:
    opened = Explored(browser, folder / f"{name}.html", width)
    page = opened.page
    for phase in page.locator("#phases button").all():
        phase.click()
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert page.evaluate(OVERLAPPING) == []
    page.locator(".node").first.click()
    assert page.locator("#card").is_visible()
    box = page.locator("#card").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert opened.complaints == []
    assert [url for url in opened.asked if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in opened.asked if url.startswith("file:")]) == 1
    page.close()


OVERLAPPING = """() => {
  const boxes = (selector) => [...document.querySelectorAll(selector)]
    .map((element) => [element, element.getBoundingClientRect()])
    .filter(([, box]) => box.width && box.height);
  const found = [];
  const check = (group, slack) => group.forEach(([one, a], index) => group.slice(index + 1).forEach(([other, b]) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > slack && down > slack) found.push(`${one.textContent} / ${other.textContent}`);
  }));
  check(boxes("#cards > div"), 0);
  check(boxes(".control"), 0);
  check(boxes("section"), 0);
  document.querySelectorAll(".part").forEach((part) => check([...part.querySelectorAll(".node")]
    .map((element) => [element, element.getBoundingClientRect()]), 0));
  for (const drawing of document.querySelectorAll("#explore svg")) {
    const edge = drawing.getBoundingClientRect();
    const texts = [...drawing.querySelectorAll("text")].map((element) => [element, element.getBoundingClientRect()]);
    check(texts, 3);
    for (const [element, box] of texts) {
      if (box.left < edge.left - 1 || box.right > edge.right + 1) found.push(`outside: ${element.textContent}`);
    }
  }
  return found;
}"""


def analysed(run: Run, command: str) -> dict[str, Any]:
    """The JSON document of the command that the page shows."""
    words = shlex.split(command)
    assert words[:2] == ["roofline", "analyze"]
    status, out, err = run(*words[1:], "--format", "json")
    assert status == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def test_random_settings_are_those_of_roofline_analyze(one: Explored, run: Run) -> None:
    chance = random.Random(8)
    for _ in range(10):
        for control in ("batch", "prompt"):
            one.turn(control, chance.randint(0, int(one.page.locator(f"#control-{control}").get_attribute("max"))))
        for control in ("quant", "flash", "tp"):
            one.turn(control, chance.randrange(one.page.locator(f"#control-{control} option").count()))
        phase = chance.choice(["prefill", "decode"])
        one.page.locator(f"#phase-{phase}").click()
        command = one.page.locator("#command").inner_text()
        document = analysed(run, command)
        generation, shown = document["generation"], one.cards()
        expected = {
            "fits": document["memory"]["total_bytes"],
            "ttft": generation["expected_ttft_s"]["mid"],
            "tpot": generation["expected_tpot_s"]["mid"],
            "total": generation["expected_time_s"]["mid"],
            "tokens_per_s": generation["expected_tokens_per_s"]["mid"],
            "prefill": document["phases"]["prefill"]["bound_time_s"],
            "decode": document["phases"]["decode"]["bound_time_s"],
            "energy": document["energy"]["expected_j_per_token"]["mid"],
            "cost": document["cost"]["expected_usd_per_million_tokens"]["mid"],
        }
        for key, value in expected.items():
            assert shown[key] == pytest.approx(value, rel=6e-5), (command, key)
        assert one.card("fits") == ("fits" if document["memory"]["fits"] else "does not fit")
        assert one.card("prefill") == document["phases"]["prefill"]["bound"]
        ops, rows = document["phases"][phase]["ops"], one.rows()
        nodes = one.page.evaluate(
            "[...document.querySelectorAll('.node')].map(node => [node.dataset.op, node.className])"
        )
        looks = {int(index): look for index, look in nodes}
        assert len(ops) == len(rows) == len(looks)
        for index, (op, row) in enumerate(zip(ops, rows, strict=True)):
            assert (row[0], row[8], looks[index]) == (op["name"], op["bound"], f"node {op['bound']}"), command
            figures = [op[name] for name in ("count", "flops", "bytes", "intensity", "attainable_flops_per_s")]
            figures += [op["bound_time_s"], op["expected_time_s"]["mid"], op["share"]]
            cells = [float(row[place]) for place in (3, 4, 5, 6, 7, 9, 10, 11)]
            assert cells == pytest.approx(figures, rel=6e-5, abs=1e-12), (command, op["name"])


PARTS = ("cards", "rooflines", "memory", "curves", "graph", "table", "command")


def drawings(opened: Explored) -> dict[str, str]:
    return {name: opened.page.locator(f"#{name}").inner_html() for name in PARTS}


@pytest.mark.parametrize("control", ["batch", "prompt", "quant", "flash", "tp"])
def test_every_control_updates_all_parts(one: Explored, control: str) -> None:
    before = drawings(one)
    one.turn(control, 0 if control in ("batch", "prompt") else 1)
    after = drawings(one)
    # Scores without FlashAttention take less memory here than vLLM reserves for sampling.
    still = {"memory"} if control == "flash" else set()
    assert {name for name in PARTS if before[name] == after[name]} == still
    one.page.locator("#reset").click()
    assert drawings(one) == before


def test_controls_and_cards_work_from_the_keyboard(one: Explored) -> None:
    one.page.locator("#control-batch").focus()
    before = one.cards()["ttft"]
    one.page.keyboard.press("ArrowRight")
    assert one.cards()["ttft"] > before
    node = one.page.locator(".node", has_text="down_proj")
    node.focus()
    one.page.keyboard.press("Enter")
    card = one.page.locator("#card")
    assert card.is_visible()
    text = card.inner_text()
    assert "down_proj (layer, prefill)" in text
    assert "down_proj.weight" in text
    assert "4096 × 14336" in text
    assert re.search(r"FLOP = .*batch queries.* = ", text)
    assert "matrix FLOP / peak in bf16" in text
    one.page.keyboard.press("Escape")
    assert not card.is_visible()
    assert node.evaluate("element => element === document.activeElement")


def test_controls_stay_visible_while_scrolling(one: Explored) -> None:
    one.page.locator("#table").scroll_into_view_if_needed()
    one.page.mouse.wheel(0, 400)
    box = one.page.locator("#controls").bounding_box()
    assert -1 <= box["y"] < 300
    one.page.locator("#reproduce").scroll_into_view_if_needed()
    assert one.page.locator("#controls").bounding_box()["y"] < -50


def test_every_node_opens_its_card(one: Explored) -> None:
    for node in one.page.locator(".node").all():
        node.click()
        name = node.locator("b").inner_text()
        assert one.page.locator("#card-title").inner_text().startswith(f"{name} (")
        one.page.locator("#card button").click()


def test_the_table_sorts_and_filters(one: Explored) -> None:
    one.page.locator("[data-sort=flops]").click()
    flops = [float(row[4]) for row in one.rows()]
    assert flops == sorted(flops, reverse=True)
    one.page.locator("[data-sort=flops]").click()
    assert [float(row[4]) for row in one.rows()] == sorted(flops)
    assert one.page.locator("th[aria-sort=ascending]").inner_text().startswith("FLOP")
    one.page.locator("[data-sort=name]").click()
    names = [row[0] for row in one.rows()]
    assert names == sorted(names)
    one.page.locator("#filter").fill("proj")
    assert {row[0] for row in one.rows()} == {name for name in names if "proj" in name}
    one.page.locator("#bound").select_option("memory")
    assert one.rows() == []
    assert one.page.locator("#shown").inner_text() == "0 of 17 operators of prefill"


def test_everything_has_an_accessible_name(one: Explored) -> None:
    session = one.page.context.new_cdp_session(one.page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider", "combobox", "searchbox", "image", "link", "table", "region", "group", "dialog"}
    seen = set()
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in roles and not node.get("ignored"):
            seen.add(role)
            assert node.get("name", {}).get("value") or role == "table", node
    assert {"button", "slider", "combobox", "searchbox", "image", "link", "region"} <= seen
    assert one.page.evaluate("[...document.querySelectorAll('svg[role=img]')].every(svg => svg.querySelector('title'))")
    ids = one.page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))


def test_the_scenario_can_be_switched(browser: Any, folder: Path) -> None:
    opened = Explored(browser, folder / "two.html")
    before = opened.cards()["ttft"]
    opened.turn("scenario", 1)
    assert opened.cards()["ttft"] != before
    assert "--hw a6000" in opened.page.locator("#command").inner_text()
    assert opened.complaints == []
    opened.page.close()


def test_an_invalid_setting_shows_the_reason(browser: Any, folder: Path) -> None:
    opened = Explored(browser, folder / "encoder.html")
    opened.page.locator("#control-tp").select_option("8")
    assert (
        "tensor parallelism of 8 does not divide the 12 attention heads" in opened.page.locator("#problem").inner_text()
    )
    assert opened.cards() == {}
    opened.page.locator("#reset").click()
    assert opened.page.locator("#problem").is_hidden()
    assert opened.cards()["sequences_per_s"] > 0
    assert opened.complaints == []
    opened.page.close()


def test_hostile_names_are_text(browser: Any, folder: Path) -> None:
    opened = Explored(browser, folder / "hostile.html")
    page = opened.page
    assert page.title() == NAMES[0]
    assert page.locator("h1").inner_text() == NAMES[0]
    heads = page.locator(".part h3").all_inner_texts()
    assert any(head.startswith(NAMES[1]) for head in heads)
    assert sum(int(head.rpartition("× ")[2]) for head in heads if "×" in head) == 10_000
    for node in page.locator(".node").all()[4:10]:
        node.click()
        page.keyboard.press("Escape")
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.evaluate(
        "[...document.querySelectorAll('*')].every(element => "
        "[...element.attributes].every(entry => !entry.name.startsWith('on')))"
    )
    assert opened.complaints == []
    page.close()


def test_tables_are_visible_without_scripts(browser: Any, folder: Path) -> None:
    opened = Explored(browser, folder / "one.html", java_script_enabled=False)
    assert opened.page.locator("#operators .still table").first.is_visible()
    assert opened.page.locator("#explore").is_hidden()
    assert opened.page.locator("noscript").inner_text() != ""
    opened.page.close()
