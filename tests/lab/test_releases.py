"""Releases of engines whose public rows are read alike."""

from __future__ import annotations

import pytest

from lab.tables.releases import Releases


@pytest.mark.parametrize(
    ("version", "included"),
    [("0.9.2", False), ("0.15.0", True), ("0.16.0rc1", True), ("0.17.0rc1", True), ("0.17", False)],
)
def test_releases_are_from_one_version_to_before_another(version: str, included: bool) -> None:
    assert Releases("vllm", since="0.15", before="0.17").include("vllm", version) == included


def test_releases_are_of_one_engine_and_of_stated_versions() -> None:
    assert Releases("vllm").include("vllm", "0.1")
    assert not Releases("vllm").include("sglang", "0.1")
    assert not Releases("vllm").include("vllm", "")
