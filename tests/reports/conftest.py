"""Fixtures of the live page: a server, a tab of the browser, and the page opened anew for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """A running server of the page."""
    pytest.importorskip("uvicorn", reason="the live page needs uvicorn and Starlette")
    pytest.importorskip("starlette", reason="the live page needs uvicorn and Starlette")
    from tests.reports.live import serving

    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def tab(browser: Any, server: Any) -> Any:
    """A tab that shows the page."""
    from tests.reports.live import Live

    return Live(browser, server.address)


@pytest.fixture
def live(tab: Any, server: Any) -> Iterator[Any]:
    """The page opened anew; the browser has nothing to complain of at the end."""
    tab.open(server.address)
    yield tab
    assert tab.complaints == []
