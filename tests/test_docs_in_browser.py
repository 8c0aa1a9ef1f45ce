"""The built documentation as a reader meets it: in a headless Chromium that may ask for nothing but the site itself."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lab.documentation.build import gallery_files
from lab.examples import ROOT
from tests.browser import WIDTHS, Opened

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as `make docs` builds it: a warning ends it."""
    pytest.importorskip("mkdocs", reason="MkDocs is not installed")
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")  # those of Python are its authors' matter
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        from mkdocs.commands.build import build
        from mkdocs.config import load_config

        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
        assert config.strict
        build(config)
    return folder


class Quiet(SimpleHTTPRequestHandler):
    """A static server that says nothing."""

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a local static server shows the documentation."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def check_nothing_left(opened: Opened, address: str) -> None:
    """The page requests nothing but the site, and reports no error."""
    assert [url for url in opened.asked if not url.startswith((address, "data:", "blob:"))] == []
    assert opened.complaints == []
    opened.page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_word_is_searched_and_a_page_that_has_it_opened(browser: Any, address: str, width: int) -> None:
    opened = Opened(browser, f"{address}index.html", width)
    page = opened.page
    if width < 960:
        page.locator("label.md-header__button[for=__search]").click()
    page.locator("input[name=query]").click()
    page.keyboard.type("calibrate")
    results = page.locator(".md-search-result__item a.md-search-result__link")
    results.first.wait_for()
    assert "matching document" in page.locator(".md-search-result__meta").inner_text()
    found = [link.get_attribute("href").removeprefix(address).partition("?")[0] for link in results.all()]
    assert "howto/calibrate.html" in found
    page.locator(".md-search-result__link[href*='howto/calibrate.html']").first.click()
    page.wait_for_url(f"{address}howto/calibrate.html*")
    assert page.locator("article h1").inner_text().startswith("Calibrate your GPU")
    assert page.locator("article mark").first.inner_text().casefold().startswith("calibrat"), "the word is marked"
    assert f"{address}search/search_index.json" in opened.asked
    check_nothing_left(opened, address)


def test_a_word_that_no_page_has(browser: Any, address: str) -> None:
    opened = Opened(browser, f"{address}limits.html")
    opened.page.locator("input[name=query]").click()
    opened.page.keyboard.type("zyzzyva")
    said = opened.page.locator(".md-search-result__meta")
    said.filter(has_text="No matching documents").wait_for()
    assert opened.page.locator(".md-search-result__item").count() == 0
    check_nothing_left(opened, address)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_gallery_shows_every_figure(browser: Any, address: str, width: int) -> None:
    opened = Opened(browser, f"{address}gallery.html", width)
    page = opened.page
    pictures = page.locator("article img")
    for picture in pictures.all():
        picture.scroll_into_view_if_needed()
    shown = pictures.evaluate_all(
        "all => all.map(image => [new URL(image.src).pathname.slice(1), image.naturalWidth, image.width])"
    )
    assert {name for name, _, _ in shown} == {name for name in gallery_files() if name.endswith(".svg")}
    for name, own, drawn in shown:
        assert own > 0, f"{name} is no picture"
        assert 250 < drawn <= width, name
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    links = page.locator("article a[href^=gallery]").evaluate_all("all => all.map(link => link.href)")
    files = {name: content for name, content in gallery_files().items() if name.startswith("gallery/")}
    assert {link.removeprefix(address) for link in links} == set(files)
    for link in sorted(set(links)):
        answer = page.request.get(link)
        assert answer.ok
        assert answer.body() == files[link.removeprefix(address)]
    check_nothing_left(opened, address)


def test_pages_open_from_a_folder_without_a_server(browser: Any, site: Path) -> None:
    opened = Opened(browser, site / "index.html")
    page = opened.page
    page.locator("article a", has_text="Tutorial").first.click()
    page.wait_for_url("**/tutorial.html")
    assert page.locator("article h1").inner_text().startswith("Ten minutes")
    assert [message for message in opened.complaints if "search" not in message and "ERR_FILE" not in message] == []
    opened.complaints.clear()  # a browser gives no page of a folder the index of the search
    check_nothing_left(opened, f"{site.as_uri()}/")
