"""`make browser`: what it calls and says, with commands that only write down that they were called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT

MAKE = shutil.which("make")
pytestmark = pytest.mark.skipif(MAKE is None, reason="make is not installed")

UPDATE = "apt-get update -qq"
INSTALL = "apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core"
SKIPPED = ": tests that open reports in it will be skipped\n"
NONE = f"no Chromium is installed{SKIPPED}"
FAILED = f"Chromium could not be installed{SKIPPED}"


def make_browser(folder: Path, **commands: str) -> tuple[list[str], str, str]:
    """Runs the target with these commands alone, each a script: the calls, and what is said on stdout and stderr."""
    programs, calls = folder / "bin", folder / "calls"
    programs.mkdir()
    calls.touch()
    for name, script in commands.items():
        program = programs / name.replace("_", "-")
        program.write_text(f'#!/bin/sh\necho "{program.name} $*" >> "{calls}"\n{script}\n')
        program.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        [MAKE or "make", "--no-print-directory", "browser"],
        cwd=ROOT,
        env=environment | {"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, "the tests go on without a browser"
    return calls.read_text().splitlines(), done.stdout, done.stderr


@pytest.mark.parametrize("name", ["chromium", "google_chrome", "chrome"])
def test_a_browser_that_is_there_is_enough(tmp_path: Path, name: str) -> None:
    assert make_browser(tmp_path, **{name: ""}, id="echo 0", apt_get="") == ([], "", "")


def test_root_installs_that_of_the_distribution(tmp_path: Path) -> None:
    called = make_browser(tmp_path, id="echo 0", apt_get="echo Reading package lists...")
    assert called == (["id -u", UPDATE, INSTALL], "", "")


def test_errors_of_apt_are_shown(tmp_path: Path) -> None:
    called = make_browser(tmp_path, id="echo 0", apt_get='echo "E: no network" >&2; exit 100')
    assert called == (["id -u", UPDATE], FAILED, "E: no network\n")


def test_a_package_that_cannot_be_installed_is_told(tmp_path: Path) -> None:
    called = make_browser(tmp_path, id="echo 0", apt_get="[ $1 = update ]")
    assert called == (["id -u", UPDATE, INSTALL], FAILED, "")


def test_apt_is_not_run_without_root(tmp_path: Path) -> None:
    assert make_browser(tmp_path, id="echo 1000", apt_get="") == (["id -u"], NONE, "")


def test_nothing_is_installed_without_apt(tmp_path: Path) -> None:
    assert make_browser(tmp_path, id="echo 0") == (["id -u"], NONE, "")
