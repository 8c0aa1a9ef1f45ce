"""The live page in a headless Chromium: fields, address, views, files, and what it says when something fails."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

pytest.importorskip("uvicorn", reason="the live page needs uvicorn and Starlette")
pytest.importorskip("starlette", reason="the live page needs uvicorn and Starlette")

from roofline.reports.view.server import Server
from tests.paths import ROOT
from tests.reports.hostile import NAMES, hostile_specs
from tests.reports.live import BASE, VIEWS, Live, ask, figures_of, serving, stop
from tests.roofline.specs.weight_files.conftest import Write, write_gguf  # noqa: F401 - the fixture
from tests.roofline.specs.weight_files.test_gguf import llama_2_7b

pytestmark = pytest.mark.slow

CHANGES = {
    "batch": "32", "prompt": "4k", "generate": "300", "quant": "fp8", "kv": "int4", "tp": "8", "pp": "2", "dp": "2",
    "engine": "sglang", "hw": "h200-sxm", "model": "qwen3-32b", "with": "eagle-3", "flash": "false", "prefix": "1000",
    "hw.memory.bandwidth": "9 TB/s", "price": "2.5", "gpu_memory_utilization": "0.8", "expert_skew": "0.5",
}  # fmt: skip


def test_changes_of_fields_add_up(live: Live, server: Server) -> None:
    for name, text in CHANGES.items():
        live.turn(name, text)
        (setup,) = live.setups
        assert setup[name] == text
        status, document = ask(server, "answer", setup)
        assert status == 200, document
        assert live.figures() == pytest.approx(figures_of(document["analysis"])), name
    assert live.page.locator("#source").inner_text() == document["command"]
    live.click("text=As Python")
    assert live.page.locator("#source").inner_text().strip() == document["python"].strip()


def test_fields_that_are_not_set_have_the_defaults(live: Live, server: Server) -> None:
    bare = {"model": "llama-68m", "hw": "l4"}
    live.open(f"{server.address.partition('#')[0]}#model=llama-68m&hw=l4")
    analysis = ask(server, "answer", bare)[1]["analysis"]
    degrees = {"tp": "tensor", "pp": "pipeline", "ep": "expert", "dp": "data", "sp": "sequence"}
    expected = {name: analysis["scenario"][name] for name in ("batch", "prompt", "generate")}
    expected |= {name: analysis["parallelism"][degree] for name, degree in degrees.items()}
    for name, value in expected.items():
        assert live.page.locator(f"#text-{name}").input_value() == str(value)


def test_a_slider_draws_while_it_moves_and_is_one_step_to_undo(live: Live) -> None:
    before = live.figures()
    slider = live.page.locator("input[type=range]").first
    slider.focus()
    for _ in range(3):
        live.page.keyboard.press("ArrowRight")
    live.settle()
    assert live.figures()["tokens_per_s"] > before["tokens_per_s"]
    assert live.setups[0]["batch"] == "24"
    for _ in range(3):
        live.page.go_back()
    live.settle()
    assert live.figures() == before
    assert live.page.locator("#undo").is_disabled()


def test_the_model_is_found_by_typing(live: Live) -> None:
    field = live.page.get_by_role("combobox", name="Model")
    field.click()
    live.page.keyboard.type("qwen3 32b")
    shown = live.page.locator(".combo ul:not([hidden]) li").all_inner_texts()
    assert 1 <= len(shown) < 10
    assert all("32b" in text.lower() for text in shown), shown
    field.press("ArrowDown")
    chosen = live.page.locator("[role=option][aria-selected=true] b").inner_text()
    field.press("Enter")
    live.settle()
    assert live.page.locator("#title").inner_text().startswith(chosen)
    assert live.setups[0]["model"] == chosen


def test_views_and_cards_from_the_keyboard(live: Live) -> None:
    live.page.locator("#tab-overview").focus()
    live.page.keyboard.press("ArrowRight")
    live.settle()
    assert live.page.locator("#tab-network").get_attribute("aria-selected") == "true"
    live.click("#panel button >> text=decode")
    node = live.page.locator(".node", has_text="down_proj")
    node.focus()
    live.page.keyboard.press("Enter")
    card = live.page.locator("#card")
    card.wait_for()
    text = card.inner_text()
    for part in (
        "down_proj (layer, decode)",
        "down_proj.weight",
        "8,192 × 7,168",
        "Kernel: gemm",
        "roofline explain down_proj",
    ):
        assert part in text
    assert re.search(r"matrix FLOP / peak in bf16", text)
    live.page.keyboard.press("Escape")
    assert not card.is_visible()
    assert live.page.evaluate("document.activeElement.classList.contains('node')")


def test_a_link_shows_the_same_and_pages_are_independent(browser: Any, live: Live, server: Server) -> None:
    live.write("batch", "64")
    live.click("#add")
    live.write("hw", "mi300x")
    live.click("#panel >> text=TPOT")
    other = Live(browser, live.page.url)
    for row in (0, 1):
        assert other.figures(row) == live.figures(row)
    assert other.page.locator("#panel svg").inner_html() == live.page.locator("#panel svg").inner_html()
    other.write("batch", "1")
    assert live.setups[1]["batch"] == "64"
    for _ in range(3):
        live.page.go_back()
    live.settle()
    assert live.setups == [dict(parse_qsl(urlsplit(server.address).fragment))]
    other.page.close()


def test_targets_are_those_of_all_setups(live: Live) -> None:
    live.click("#add")
    live.click("#tab-load")
    live.write("goal.tpot", "20ms")
    assert [setup.get("goal.tpot") for setup in live.setups] == ["20ms", None]
    assert live.page.locator("#panel svg[aria-label^=Goodput]").count() == 1
    live.click("#tab-advice")
    assert live.page.get_by_label("TPOT below").input_value() == "20ms"
    assert "--tpot 20ms" in live.page.locator("#source").inner_text()


def test_a_chart_without_points_says_so_and_cannot_be_saved(live: Live) -> None:
    live.click("#tab-load")
    live.write("goal.tpot", "1us")
    assert live.page.get_by_text("goodput under load: no point to draw").is_visible()
    assert live.page.get_by_role("button", name="Save goodput-under-load as SVG").count() == 0
    assert live.page.get_by_role("button", name="Save ttft-under-load as SVG").count() == 1


def test_fields_of_a_view_stay_when_they_are_wrong(live: Live) -> None:
    live.click("#tab-load")
    values = live.page.get_by_label("Values")
    values.fill("many")
    values.press("Tab")
    live.settle()
    assert live.page.locator(".failed").inner_text() == "Concurrency takes a whole number, got 'many'."
    live.complaints.clear()  # the browser logs the status of the refusal
    live.page.locator("#panel select").select_option("rate")
    live.settle()
    assert live.page.locator("#panel svg[aria-label*='requests/s that arrive']").count() == 3
    assert "--rate" in live.page.locator("#source").inner_text()


@pytest.mark.parametrize(
    "text", ["page.tab=constructor", "page.phase=constructor", "page.form=toString", "page.active=-1", "page.metric=x"]
)
def test_other_names_in_the_address_are_passed_over(live: Live, server: Server, text: str) -> None:
    before = live.figures()
    live.open(f"{server.address}&{text}")
    assert live.figures() == before
    assert live.page.locator("#source").inner_text().startswith("roofline analyze llama-3.1-70b")


def test_a_page_without_a_model_asks_for_one(live: Live, server: Server) -> None:
    live.open(f"{server.address.partition('#')[0]}#hw=l4")
    assert live.page.locator("#problem").inner_text() == "Choose a model, or drop a file of one on the page."
    assert not live.page.locator("#panel").is_visible()
    live.write("model", "llama-68m")
    assert live.figures()["fits"] > 0
    assert live.page.locator("#panel").is_visible()


def test_a_load_of_one_value_is_drawn(live: Live, server: Server) -> None:
    live.open(f"{server.address}&page.tab=load&load.concurrency=8")
    assert live.page.locator("#panel svg circle").count() > 3
    assert "NaN" not in live.page.locator("#panel").inner_html()


def test_sessions_are_drawn_by_tier(live: Live, server: Server) -> None:
    live.open(f"{server.address}&page.tab=load&load.by=sessions&load.sessions=2,4&load.tiers=dram%3D20GB")
    assert "and dram" in live.page.locator("#panel svg").first.inner_html()
    assert "NaN" not in live.page.locator("#panel").inner_html()


def test_the_headline_and_the_launch_are_of_the_sessions_and_of_the_pools(live: Live, server: Server) -> None:
    live.open(f"{server.address}&page.tab=run&asked.sessions=4&load.profile=chat&load.tiers=dram%3D20GB")
    assert "4 sessions of chat" in live.page.locator("#verdict").inner_text()
    assert live.page.locator("#load dl").is_visible()
    assert "--kv-offloading-size" in live.page.locator("#panel").inner_text()
    live.turn("asked.sessions", "")
    live.turn("deploy.pools", "1:1")
    assert live.setups[0]["deploy.pools"] == "1:1"
    assert "on 8 x h100-sxm" in live.page.locator("#verdict").inner_text()
    assert "dynamo.yaml" in live.page.locator("#panel").inner_text()


def test_advice_turns_the_field_and_is_undone(live: Live) -> None:
    live.click("#tab-advice")
    before = live.figures()["total"]
    row = live.page.locator(".moves li").first
    gain = float(row.locator(".gain b").inner_text().rstrip("×"))
    row.get_by_role("button", name="Apply").click()
    live.settle()
    assert before / live.figures()["total"] == pytest.approx(gain, abs=0.006)
    assert "with" in live.setups[0]
    live.page.locator("#said button").click()
    live.settle()
    assert live.figures()["total"] == before
    assert "with" not in live.setups[0]


def drop(live: Live, path: Path) -> None:
    live.page.locator("#said").evaluate("element => { element.hidden = true; }")
    live.page.locator("#file").set_input_files(path)
    live.page.locator("#said").wait_for()
    live.settle()


def test_a_dropped_config_is_simulated(live: Live, server: Server) -> None:
    drop(live, ROOT / "tests/data/configs/llama-3.1-8b.json")
    (setup,) = live.setups
    assert "hidden: 4096" in setup["model.spec"]
    assert live.figures() == pytest.approx(
        figures_of(ask(server, "answer", {**BASE, "model": "llama-3.1-8b"})[1]["analysis"])
    )
    assert "my-" in live.page.locator("#source").inner_text()


def test_a_dropped_checkpoint_is_simulated(live: Live, write_gguf: Write) -> None:  # noqa: F811
    drop(live, llama_2_7b(write_gguf))
    assert live.page.locator("#title").inner_text() == "model on 4 × h100-sxm"
    assert live.setups[0]["model.file"].endswith("/model.gguf")
    live.write("model", "llama-2-7b")
    assert "model.file" not in live.setups[0]


def test_hostile_names_are_text(live: Live, server: Server, tmp_path: Path) -> None:
    model, hardware = hostile_specs(tmp_path)
    opened = live
    opened.open(f"{server.address.partition('#')[0]}#model=llama-68m&hw=l4")
    drop(opened, hardware)
    drop(opened, model)
    assert opened.page.locator("h1").inner_text().startswith(opened.setups[0]["model"])
    for view in VIEWS:
        opened.click(f"#tab-{view}")
        if view == "network":
            assert any(head.startswith(NAMES[1]) for head in opened.page.locator(".part h3").all_inner_texts())
            opened.page.locator(".node").nth(4).click()
            opened.page.locator("#card").wait_for()
            opened.page.keyboard.press("Escape")
    # No engine runs on hardware that nobody knows: the server refuses a command for it, which a browser logs.
    assert "is not known to run on <b onmouseover" in opened.page.locator("main").inner_text()
    opened.complaints[:] = [text for text in opened.complaints if "Unprocessable" not in text]
    assert opened.page.evaluate("document.querySelectorAll('script').length") == 7
    assert opened.page.evaluate(
        "[...document.querySelectorAll('*')].every((e) => [...e.attributes].every((a) => !a.name.startsWith('on')))"
    )


def test_the_page_says_that_the_server_ended(browser: Any) -> None:
    with serving({"model": "llama-68m", "hw": "l4"}) as server:
        opened = Live(browser, server.address)
        stop(server)
        while server.uvicorn.started and opened.page.locator("#gone").is_hidden():
            opened.write("batch", str(int(opened.setups[0].get("batch", "1")) % 100 + 1))
        text = opened.page.locator("#gone").inner_text()
        assert "The server has ended" in text
        assert "llama-68m --hw l4" in text
        opened.page.close()


def test_charts_and_tables_are_saved(live: Live) -> None:
    for button, ending in (("Save prefill-roofline as SVG", ".svg"), ("Save prefill-roofline as PNG", ".png")):
        with live.page.expect_download() as download:
            live.page.get_by_role("button", name=button).click()
        content = Path(download.value.path()).read_bytes()
        assert download.value.suggested_filename == f"prefill-roofline{ending}"
        assert content.startswith(b"<svg" if ending == ".svg" else b"\x89PNG")
        assert b"var(--" not in content
    live.click("#tab-network")
    with live.page.expect_download() as download:
        live.page.get_by_role("button", name="Save prefill-network as SVG").click()
    drawn = Path(download.value.path()).read_text()
    assert "down_proj" in drawn
    assert drawn.count("<path") == live.page.locator(".flow path").count()
    assert live.page.locator("#panel > .view > div > svg").count() == 0
    live.page.locator("#export summary").click()
    with live.page.expect_download() as download:
        live.page.get_by_role("button", name="Operators, CSV").click()
    assert Path(download.value.path()).read_text().startswith("model,hardware,phase,name")


def test_every_chart_gives_its_command_and_its_python(live: Live) -> None:
    live.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for button, text in (
        ("Copy times-over-batch as Command", "roofline sweep llama-3.1-70b"),
        ("Copy rate-over-prompt as Python", "from roofline.whatif.study"),
        ("Copy decode-roofline as Command", "roofline analyze llama-3.1-70b"),
    ):
        live.page.get_by_role("button", name=button).click()
        live.page.locator("#said", has_text=text).wait_for()
        assert live.page.evaluate("navigator.clipboard.readText()").startswith(text)


def test_a_change_that_makes_it_fit_is_one_click(live: Live, server: Server) -> None:
    live.open(f"{server.address.partition('#')[0]}#model=llama-3.3-70b&hw=rtx-4090")
    assert live.page.locator("#verdict .no").inner_text() == "No: llama-3.3-70b does not fit on rtx-4090"
    live.click("#way button")
    assert live.setups[0]["tp"] == "8"
    assert live.page.locator("#verdict .yes").inner_text().startswith("Yes: llama-3.3-70b runs on 8 x rtx-4090")
    assert live.page.locator("#way").is_hidden()


def test_the_headline_is_that_of_the_load_and_its_change_is_applied(live: Live) -> None:
    live.write("asked.rate", "3")
    assert "serves 3 requests/s" in live.page.locator("#verdict .yes").inner_text()
    lines = live.page.locator("#verdict dl > div").evaluate_all("all => all.map((one) => one.dataset.line)")
    assert lines == ["Limited by", "Better", "Cost", "Run it"]
    live.click("#verdict button:text('Apply')")
    assert live.setups[0]["with"] == "eagle-3"
    live.click("#verdict button:text('Files')")
    assert live.page.locator("#source").inner_text().startswith("roofline launch llama-3.1-70b")
    assert "vllm serve meta-llama/Llama-3.1-70B" in live.page.locator("#panel code").first.inner_text()


def test_what_is_copied_says_where_it_opens(live: Live) -> None:
    live.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for button, told in (("Copy the link", "opens on this computer"), ("Copy the command", "roofline analyze")):
        live.page.locator("#share summary").click()
        live.page.get_by_role("button", name=button).click()
        live.page.locator("#said", has_text=told).wait_for()


def test_rooflines_show_what_is_achieved(live: Live) -> None:
    rings = live.page.locator("#panel svg[aria-label^=decode] .hollow")
    assert rings.count() == 0
    live.click("#panel button:text('Achieved')")
    marks = live.page.locator("#panel svg[aria-label^=decode] .mark")
    assert rings.count() == marks.count() > 0
    heights = [each.evaluate_all("all => all.map((one) => Number(one.getAttribute('cy')))") for each in (rings, marks)]
    assert all(ring <= mark for ring, mark in zip(*heights, strict=True))  # nothing is faster than its roof
