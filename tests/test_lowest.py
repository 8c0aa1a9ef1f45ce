"""The lowest versions that are tested are those that the package says it runs with."""

from __future__ import annotations

import tomllib

from packaging.requirements import Requirement

from tests.paths import ROOT


def test_the_lowest_versions_are_the_bounds_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [Requirement(line) for line in (*project["dependencies"], *extras["report"], *extras["fit"])]
    lines = (ROOT / "tests" / "lowest.txt").read_text().splitlines()
    lowest = {found.name: found.specifier for line in lines if line[:1] != "#" for found in [Requirement(line)]}
    for entry in needed:
        (bound,) = entry.specifier
        (tested,) = lowest[entry.name]
        assert (bound.operator, tested.operator) == (">=", "==")
        assert f"{tested.version}.".startswith(f"{bound.version}."), entry.name
