"""The page itself: its HTML, styles and scripts, which the server sends and a report holds."""

from __future__ import annotations

from importlib.resources import files

STYLES = ("drawing", "view")
SCRIPTS = ("drawing", "network", "fields", "charts", "answer", "panels", "view")
"""The names of its files, in the order in which they are read."""


def source(name: str) -> str:
    """The text of a file of the page."""
    return (files(__name__) / name).read_text(encoding="utf-8")
