"""The systems of the papers: every command of the table runs, and shows the published effect within its range."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from lab.systems import PAGE, TABLES, Row

Run = Callable[..., tuple[int, str, str]]

ROWS = [row for rows in TABLES.values() for row in rows]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.system)
def test_a_system_shows_its_effect(row: Row, run: Run) -> None:
    @cache
    def document(command: str) -> dict[str, Any]:
        status, out, err = run(*command.split(), "--format", "json")
        assert status == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    low, high = row.effect
    assert low <= row.ratio(*row.measured(document)) <= high


def test_the_page_has_every_row() -> None:
    text = PAGE.read_text()
    assert all(f"| {row.system} | {row.published} |" in text for row in ROWS)
    assert all(f"`{row.command}`" in text for row in ROWS)
