"""How the live page looks and is reached: widths, contrast, colours, keyboard, names, themes, nothing that moves."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the live page needs uvicorn and Starlette")
pytest.importorskip("starlette", reason="the live page needs uvicorn and Starlette")

from roofline.reports.view.server import Server
from roofline.scenario.options import OPTIONS
from tests.reports.live import BASE, VIEWS, Live

pytestmark = pytest.mark.slow

WIDTHS = (390, 1280, 2560)


FOCUS = """() => {
  const one = document.activeElement;
  const { top, bottom, width } = one.getBoundingClientRect();
  const seen = getComputedStyle(one).outlineStyle !== "none" && width > 0 && bottom > 0 && top < innerHeight;
  return [one.tagName, one.getAttribute("aria-label") ?? one.labels?.[0]?.textContent ?? one.textContent.trim(), seen];
}"""


def test_every_stop_of_the_keyboard_is_seen(live: Live) -> None:
    stops = []
    while not stops or stops[-1][0] != "BODY":
        live.page.keyboard.press("Tab")
        stops.append(live.page.evaluate(FOCUS))
    assert [stop for stop in stops[:-1] if not stop[2]] == []
    names = [name for _, name, _ in stops]
    order = [
        "Skip to the answer",
        "A: llama-3.1-70b · h100-sxm",
        "Share",
        "Model",
        "Device",
        "TP",
        "Batch",
        "Scheme",
    ]
    order += ["Add a technique", "Overview", "Save prefill-roofline as SVG", "As a command", "Copy"]
    assert sorted(order, key=names.index) == order


def test_nothing_overflows_and_nothing_comes_from_elsewhere(live: Live, server: Server) -> None:
    second = "&".join(f"{name}={text}" for name, text in {**BASE, "hw": "b200-sxm"}.items())
    live.asked.clear()
    live.open(f"{server.address}&goal.tpot=50ms;{second}")
    for width in WIDTHS:
        live.page.set_viewport_size({"width": width, "height": 900})
        for view in VIEWS:
            live.click(f"#tab-{view}")
            assert live.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), (view, width)
        assert live.page.evaluate(CUT) == []
        live.click(".remove")  # with one set-up the cells are larger
        assert live.page.evaluate(CUT) == []
        live.page.go_back()
        live.settle()
    live.page.set_viewport_size({"width": 1280, "height": 900})
    places = {urlsplit(url).netloc for url in live.asked if not url.startswith(("blob:", "data:", "about:"))}
    assert places == {f"127.0.0.1:{server.port}"}


CUT = """[...document.querySelectorAll('#answer dd, #answer dt')]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""


def test_fields_move_nothing(live: Live) -> None:
    live.page.evaluate(
        "window.shifts = []; new PerformanceObserver((list) => shifts.push(...list.getEntries().map((e) => e.value)))"
        ".observe({ type: 'layout-shift' })"
    )
    for name, text in {"batch": "16", "prompt": "100000", "tp": "1", "quant": "fp8", "hw": "l4"}.items():
        live.write(name, text)
    live.write("tp", "3")
    assert "Tensor parallelism of 3 does not divide" in live.page.locator("#problem").inner_text()
    live.complaints.clear()  # the browser logs the status of the refusal
    live.write("tp", "4")
    assert sum(live.page.evaluate("shifts")) < 0.002


def test_everything_has_an_accessible_name(live: Live) -> None:
    live.page.locator("#fields details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    nodes = live.page.context.new_cdp_session(live.page).send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider", "combobox", "textbox", "image", "tab", "region", "listbox"}
    named = {role: [] for role in roles}
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in roles and not node.get("ignored"):
            named[role].append(node.get("name", {}).get("value", ""))
    assert all(named["button"])
    assert all(all(names) for names in named.values()), named
    ids = live.page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(ids) == len(set(ids))
    assert {f"text-{name}" for name in OPTIONS if name != "with"} <= set(ids)


MACHADO = {  # Machado, Oliveira, Fernandes 2009, severity 1, linear RGB
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_colours_have_contrast_and_differ_for_the_colour_blind(live: Live, theme: str) -> None:
    live.page.emulate_media(color_scheme=theme)
    bounds = ("compute", "memory", "link")
    names = ("paper", "panel", "ink", "faint", "accent", "warn", *bounds, *(f"{bound}-paper" for bound in bounds))
    texts = live.page.evaluate(
        "(names) => names.map((name) => { const e = document.createElement('i'); e.style.color = `var(--${name})`;"
        " document.body.append(e); const found = getComputedStyle(e).color; e.remove(); return found; })",
        list(names),
    )
    colours = {name: linear(text) for name, text in zip(names, texts, strict=True)}
    pairs = [(name, paper) for paper in ("paper", "panel") for name in ("ink", "faint", "accent", "warn", *bounds)]
    pairs += [(name, f"{bound}-paper") for bound in bounds for name in ("ink", "faint")]
    for name, paper in pairs:
        assert contrast(colours[name], colours[paper]) >= 4.5, (name, paper)
    for matrix in MACHADO.values():
        seen = {name: lab(np.clip(np.array(matrix) @ colours[name], 0, 1)) for name in bounds}
        for one, other in combinations(seen, 2):
            assert np.linalg.norm(seen[one] - seen[other]) > 15, (one, other)


def linear(text: str) -> Any:
    rgb = np.array([float(part) for part in re.findall(r"[\d.]+", text)[:3]]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one: Any, other: Any) -> float:
    """The contrast ratio of WCAG 2.2."""
    first, second = sorted((float(np.dot(c, (0.2126, 0.7152, 0.0722))) for c in (one, other)), reverse=True)
    return (first + 0.05) / (second + 0.05)


def lab(rgb: Any) -> Any:
    """CIELAB under D65, from linear sRGB (IEC 61966-2-1)."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    f = np.cbrt(xyz / np.array([0.95047, 1.0, 1.08883]))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_menu_closes_by_itself(live: Live) -> None:
    menu = live.page.locator("#export")
    for close in (lambda: live.page.keyboard.press("Escape"), lambda: live.page.locator("h1").click()):
        menu.locator("summary").click()
        assert live.page.get_by_role("button", name="Operators, CSV").is_visible()
        close()
        assert not live.page.get_by_role("button", name="Operators, CSV").is_visible()


def test_the_theme_is_kept(live: Live) -> None:
    for _ in range(2):
        live.page.locator("#theme").click()
    assert live.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 24)"
    live.page.reload()
    live.settle()
    assert live.page.locator("#theme").inner_text() == "● Dark"
    live.page.locator("#theme").click()
