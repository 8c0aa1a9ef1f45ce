"""A headless Chromium for tests of pages: where it is found, how it starts, and a page that records its requests.

The fixture `browser` of `tests/conftest.py` starts one for a module.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMED = ("chromium", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMED)), None)
QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)
WIDTHS = (1280, 390)


@contextmanager
def launched() -> Iterator[Any]:
    """A browser; skips where Playwright or Chromium is not installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed: `make browser` installs Debian's")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield chromium
        chromium.close()


class Opened:
    """A page at an address or of a file, with its errors and its requests."""

    def __init__(self, browser: Any, where: Path | str, width: int = 1280, **options: Any) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.context.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(where.as_uri() if isinstance(where, Path) else where)
