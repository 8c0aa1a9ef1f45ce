"""The rooms of the package: imports point one way, and each room says what enters and what leaves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.paths import ROOT

ROOMS = (
    *("core", "specs", "graph", "bound", "timing", "scenario", "techniques", "serving", "whatif", "launch"),
    *("advisor", "verdict", "validate", "reports", "cli"),
)
"""In the order in which data flows: a room imports only from those before it."""

DATA = ("hwspecs", "modelspecs")
MODULES = ("__init__.py", "__main__.py")
"""What stands beside the rooms at the top of the package."""

PACKAGE = ROOT / "roofline"


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every roofline module that a file imports, anywhere in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_before_it(room: str) -> None:
    allowed = {*ROOMS[: ROOMS.index(room) + 1], *DATA}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for line, name in imports(path)
        if name.startswith("roofline.") and name.split(".")[1] in {*ROOMS, *DATA} - allowed
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_enters_and_what_leaves(room: str) -> None:
    doc = import_module(f"roofline.{room}").__doc__ or ""
    assert "\nIn: " in doc, room
    assert " Out: " in " ".join(doc.split()), room


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_installed_imports_nothing_of_the_checkout(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for line, name in imports(path)
        if name.split(".")[0] in ("lab", "tests", "docs")
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_else_stands_at_the_top() -> None:
    found = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert found == {*ROOMS, *DATA, *MODULES, "py.typed"}


@pytest.mark.parametrize("room", ["advisor", "validate", "reports", *DATA])
def test_the_folders_of_the_top_level_are_rooms(room: str) -> None:
    assert (PACKAGE / room).resolve() == (ROOT / room).resolve()
    assert (ROOT / room / "__init__.py").is_file()
