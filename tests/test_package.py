"""What an installation holds: one import name, with the specs and templates that the code reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import roofline
from tests.paths import ROOT

pytest.importorskip("setuptools", minversion="77", reason="the wheel is built with setuptools 77 or newer")

FOLDERS = ("roofline", "advisor", "validate", "reports", "hwspecs", "modelspecs")
FILES = ("pyproject.toml", "README.md", "LICENSE")


def build(kind: str, source: Path, target: Path) -> Path:
    """A wheel or an sdist of the project in `source`, as pip builds it."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(target)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The names in the wheel of the checkout, and in that of its sdist."""
    folder = tmp_path_factory.mktemp("package")
    checkout = folder / "checkout"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, checkout)
    sdist = build("sdist", checkout, folder)
    with tarfile.open(sdist) as archive:
        # Python 3.11 before 3.11.4 has no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    found = {}
    for name, source in (("checkout", checkout), ("sdist", unpacked)):
        (target := folder / name).mkdir(exist_ok=True)
        with zipfile.ZipFile(build("wheel", source, target)) as archive:
            found[name] = sorted(archive.namelist())
    return found


@pytest.mark.slow
def test_site_packages_gets_one_import_name(wheels: dict[str, list[str]]) -> None:
    tops = {name.split("/")[0] for name in wheels["checkout"]}
    assert tops == {"roofline", next(top for top in tops if top.endswith(".dist-info"))}


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(wheels: dict[str, list[str]]) -> None:
    assert wheels["sdist"] == wheels["checkout"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        "roofline/hwspecs/*.yaml",
        "roofline/hwspecs/calibration/*.yaml",
        "roofline/hwspecs/hosts/*.yaml",
        "roofline/hwspecs/prices/*.yaml",
        "roofline/modelspecs/*.yaml",
        "roofline/specs/engines/*.yaml",
        "roofline/techniques/*.yaml",
        "roofline/techniques/catalogue/*.yaml",
        "roofline/validate/anchors/*.yaml",
        "roofline/validate/measurements/*.csv",
        "roofline/reports/pages/templates/*",
        "roofline/reports/view/page/*",
        "roofline/py.typed",
        *(f"{'roofline' if name == 'roofline' else f'roofline/{name}'}/**/*.py" for name in FOLDERS[:4]),
    ],
)
def test_data_files_are_in_the_wheel(wheels: dict[str, list[str]], pattern: str) -> None:
    start = ROOT / "roofline"
    wanted = {
        f"roofline/{path.relative_to(start).as_posix()}"
        for path in start.glob(pattern.removeprefix("roofline/"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted
    assert not wanted - set(wheels["checkout"])


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {roofline.__version__}\n" in citation
