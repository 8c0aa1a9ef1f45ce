"""The spec of this machine: the family by which a CPU finds the constants of its instructions."""

from __future__ import annotations

import platform

import pytest

from roofline.validate.measure import machine


@pytest.mark.parametrize(
    ("architecture", "flags", "family"),
    [
        ("x86_64", "fma avx2 avx512f avx512_vnni", "cpu"),
        ("x86_64", "fma avx2 avx_vnni", "cpu"),
        ("x86_64", "fma avx avx2 vaes", "avx2"),
        ("aarch64", "fp asimd asimddp", "arm"),
        ("x86_64", "", "cpu"),
    ],
)
def test_x86_without_integer_dot_products_has_a_family_of_its_own(
    monkeypatch: pytest.MonkeyPatch, architecture: str, flags: str, family: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: architecture)
    monkeypatch.setattr(machine, "cpu_field", lambda name: flags if name == "flags" else None)
    assert machine.cpu_family() == family
