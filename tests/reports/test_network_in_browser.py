"""The graph of the network in a headless Chromium: moved and zoomed by mouse, fingers and keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the live page needs uvicorn and Starlette")
pytest.importorskip("starlette", reason="the live page needs uvicorn and Starlette")

from tests.browser import Opened
from tests.reports.live import SETTLED, serving

pytestmark = pytest.mark.slow

PLACE = """(frame) => {
  const name = [...frame.querySelectorAll(".node b")].find((one) => one.textContent === "down_proj");
  const { x, y, width } = name.getBoundingClientRect();
  return { x, y, width, left: frame.scrollLeft, top: frame.scrollTop };
}"""


SCROLLED = """async (frame, least) => {
  while (frame.scrollTop < least) await new Promise(requestAnimationFrame);
}"""


class Graph:
    """The frame of a page's graph, in view of the mouse."""

    def __init__(self, opened: Opened) -> None:
        self.opened, self.page = opened, opened.page
        self.frame = self.page.locator(".pane")
        self.frame.wait_for()
        self.frame.evaluate("(frame) => frame.scrollIntoView({ block: 'center' })")
        self.page.get_by_role("button", name="Zoom is").click()
        self.frame.evaluate("(frame) => frame.scrollTo(0, 0)")

    @property
    def place(self) -> dict[str, float]:
        """Where down_proj is on the screen, how wide its name is, and how far the frame is scrolled."""
        found: dict[str, float] = self.frame.evaluate(PLACE)
        return found

    @property
    def zoom(self) -> str:
        return str(self.page.get_by_role("button", name="Zoom is").inner_text())

    def point(self, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """A point of the frame on the screen."""
        box = self.frame.bounding_box()
        return box["x"] + across * box["width"], box["y"] + down * box["height"]


@pytest.fixture(scope="module")
def opened(browser: Any) -> Iterator[Opened]:
    with serving({"model": "llama-3.1-8b", "hw": "h100-sxm"}) as server:
        found = Opened(browser, f"{server.address}&page.tab=network", has_touch=True)
        found.page.evaluate(SETTLED)
        yield found
        found.page.close()


@pytest.fixture
def graph(opened: Opened) -> Iterator[Graph]:
    yield Graph(opened)
    assert opened.complaints == []


def test_the_wheel_with_ctrl_zooms_where_the_pointer_is(graph: Graph) -> None:
    graph.frame.evaluate("(frame) => frame.scrollTo(0, 300)")
    before, page = graph.place, graph.page.evaluate("scrollY")
    pointer = {axis: int(before[axis]) for axis in "xy"}  # pages are told whole pixels
    graph.page.mouse.move(pointer["x"], pointer["y"])
    graph.page.keyboard.down("Control")
    for _ in range(4):
        graph.page.mouse.wheel(0, -100)
    graph.page.keyboard.up("Control")
    graph.page.wait_for_timeout(100)
    after = graph.place
    assert after["width"] / before["width"] == pytest.approx(2.718, rel=0.02)  # exp(4 * 100 / 400)
    grown = {axis: pointer[axis] + 2.718 * (before[axis] - pointer[axis]) for axis in "xy"}
    assert (after["x"], after["y"]) == pytest.approx((grown["x"], grown["y"]), abs=2)
    assert graph.page.evaluate("scrollY") == page
    assert graph.zoom == "272%"


def test_the_wheel_alone_scrolls(graph: Graph) -> None:
    before = graph.place
    graph.page.mouse.move(*graph.point())
    graph.page.mouse.wheel(0, 120)
    graph.frame.evaluate(SCROLLED, 120)
    assert graph.place["width"] == before["width"]
    assert graph.place["y"] == pytest.approx(before["y"] - 120, abs=1)


def test_dragging_moves_and_selects_nothing(graph: Graph) -> None:
    graph.page.get_by_role("button", name="Zoom in").click()
    graph.frame.locator(".node").nth(5).hover()
    before = graph.place
    box = graph.frame.locator(".node").nth(5).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    graph.page.mouse.down()
    graph.page.mouse.move(x - 60, y - 90, steps=4)
    graph.page.mouse.up()
    after = graph.place
    assert (after["left"] - before["left"], after["top"] - before["top"]) == pytest.approx((60, 90), abs=1)
    assert after["width"] == before["width"]
    assert not graph.page.locator("#card").is_visible()
    graph.frame.locator(".node").nth(2).click()
    graph.page.locator("#card").wait_for()
    graph.page.keyboard.press("Escape")


def test_keys_and_buttons_zoom_and_move(graph: Graph) -> None:
    before = graph.place
    graph.frame.focus()
    for key, zoom in (("+", "125%"), ("=", "156%"), ("-", "125%"), ("0", "100%")):
        graph.page.keyboard.press(key)
        assert graph.zoom == zoom
    graph.page.keyboard.press("ArrowDown")
    graph.frame.evaluate(SCROLLED, 20)
    graph.page.get_by_role("button", name="Zoom out").click()
    assert graph.zoom == "80%"
    graph.page.get_by_role("button", name="Whole graph").click()
    fits = "(frame) => frame.scrollHeight <= frame.clientHeight && frame.scrollWidth <= frame.clientWidth"
    assert graph.frame.evaluate(fits)
    for _ in range(20):
        graph.page.get_by_role("button", name="Zoom in").click()
    assert graph.zoom == "400%"
    graph.page.get_by_role("button", name="Zoom is").click()
    assert graph.place["width"] == before["width"]


def test_two_fingers_zoom(graph: Graph) -> None:
    session = graph.page.context.new_cdp_session(graph.page)
    x, y = graph.point(0.5, 0.4)

    def touch(kind: str, apart: float) -> None:
        points = [] if kind == "touchEnd" else [{"x": x - apart, "y": y, "id": 1}, {"x": x + apart, "y": y, "id": 2}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 40)
    for apart in (50, 60, 80):
        touch("touchMove", apart)
    touch("touchEnd", 0)
    assert graph.zoom == "200%"
    assert graph.page.evaluate("visualViewport.scale") == 1


def test_lines_are_the_same_at_every_zoom_and_nothing_shifts(graph: Graph) -> None:
    graph.page.evaluate(
        "window.shifts = []; new PerformanceObserver((list) => shifts.push(...list.getEntries().map((e) => e.value)))"
        ".observe({ type: 'layout-shift' })"
    )
    lines = """[...document.querySelectorAll(".flow path")]
      .flatMap((path) => path.getAttribute("d").match(/[\\d.]+/g).map(Number))"""
    phase = lambda name: graph.page.get_by_role("button", name=name, exact=True).click()  # noqa: E731
    phase("decode")
    graph.page.wait_for_timeout(300)
    at_rest = graph.page.evaluate(lines)
    graph.page.get_by_role("button", name="Zoom in").click()
    phase("prefill")
    phase("decode")
    graph.page.wait_for_timeout(200)
    assert graph.zoom == "125%"  # kept when the graph is drawn anew
    assert graph.page.evaluate(lines) == pytest.approx(at_rest, abs=0.6)
    assert sum(graph.page.evaluate("shifts")) < 0.002
    phase("prefill")


def test_the_whole_graph_is_printed(graph: Graph) -> None:
    graph.page.get_by_role("button", name="Zoom in").click()
    graph.page.emulate_media(media="print")
    bottoms = "(all) => all.map((one) => one.getBoundingClientRect().bottom)"
    (end,) = graph.frame.evaluate_all(bottoms)
    assert end >= max(graph.frame.locator(".node").evaluate_all(bottoms))
    assert not graph.page.get_by_role("button", name="Zoom in").is_visible()
    graph.page.emulate_media(media="screen")
