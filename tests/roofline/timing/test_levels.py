"""Levels between measured constants and their use: which constants are used, and how much wider the interval is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline.core.errors import SpecError
from roofline.specs.hardware import load_hardware
from roofline.timing.calibration import Calibration, Fit, Fits, chained
from roofline.timing.calibration_files import of_version
from roofline.timing.chains import calibration_links, families, load_calibration
from roofline.timing.intervals.kernels import TO_P90, Residuals
from roofline.timing.intervals.levels import LEVELS, crossing_spread, parse_levels
from roofline.timing.kernels import REFERENCE_CLOCK, at_clock, kernel

H100 = load_hardware("h100-sxm")
ROWS = {"dtype": "fp8", "m": np.array([16.0, 4096.0]), "n": 4096.0, "k": 4096.0}


def fit(efficiency: float = 0.8, format: str = "fp8", version: str = "") -> Fit:
    constants = {one.name: one.default for one in kernel("gemm").parameters(format)}
    constants["compute_efficiency"] = efficiency
    return Fit("gemm", format, constants, {"all": Residuals(0.8, 1.0, 1.25, 100)}, version=version)


FAMILIES = ("hopper", "ada-gddr", "blackwell")


class Shelf:
    """Fits by name and version."""

    def __init__(
        self, files: Mapping[str, Mapping[str, Fits]], members: tuple[str, ...] | Mapping[str, tuple[str, ...]] = ()
    ) -> None:
        known = isinstance(members, Mapping)
        self.files = files
        self._members = members if known else dict.fromkeys(FAMILIES if members else (), members)

    def members(self, family: str) -> tuple[str, ...] | None:
        return self._members.get(family, () if family in self.files else None)

    def fits(self, name: str, version: str = "", other: bool = False) -> Fits | None:
        return of_version(self.files[name], version, other) if name in self.files else None


def found(shelf: Shelf, engine: str = "sglang", version: str = "0.5.10", hardware: str = "h100-sxm") -> Calibration:
    return chained(list(calibration_links(load_hardware(hardware), engine, version, True, shelf)), hardware)


def versions(**efficiencies: float) -> dict[str, Fits]:
    named = {name.replace("_", "."): value for name, value in efficiencies.items()}
    return {name.removeprefix("v"): {("gemm", "fp8"): fit(value, version=name)} for name, value in named.items()}


@pytest.mark.parametrize(
    ("files", "basis", "efficiency"),
    [
        ({"sglang/h100-sxm": versions(v0_5_9=0.5, v0_5_10=0.6)}, "calibrated", 0.6),
        ({"sglang/h100-sxm": versions(v0_5_9=0.5)}, "version", 0.5),
        (
            {"sglang/h100-sxm": versions(v0_5_9=0.5), "sglang/hopper": versions(v0_5_10=0.7), "hopper": {}},
            "family",
            0.7,
        ),
        ({"vllm/h100-sxm": versions(v0_24=0.4), "sglang/pooled": {"": {("gemm", "fp8"): fit(0.3)}}}, "pooled", 0.3),
        ({"vllm/h100-sxm": versions(v0_14=0.2, v0_24=0.4)}, "engine", 0.4),
    ],
)
def test_the_nearest_constants_are_used(files: dict[str, dict[str, Fits]], basis: str, efficiency: float) -> None:
    match = found(Shelf(files)).find("gemm", "fp8")
    assert match is not None
    assert (match.basis, match.fit.parameters["compute_efficiency"]) == (basis, efficiency)
    assert match.spread == crossing_spread("gemm", "fp8", match.crossed)


def test_a_member_stands_for_a_family_without_constants_of_its_own() -> None:
    shelf = Shelf({"sglang/h100-sxm": versions(v0_5_10=0.6)}, members=("h100-sxm",))
    match = found(shelf, hardware="h20").find("gemm", "fp8")
    assert match is not None
    assert (match.basis, match.calibration, match.engine, match.fit.version) == (
        "family",
        "h100-sxm",
        "sglang",
        "v0.5.10",
    )


@pytest.mark.parametrize(
    ("hardware", "member", "efficiency"),
    [
        ("h20", "h100-sxm", 0.798),  # 15.0 TFLOP/s a multiprocessor in FP8 against 3.8: 1 / (1 + 1 / 3.95)
        ("h100-pcie", "h100-sxm", 0.5),  # a lower clock slows everything else down, too
        ("rtx-4090", "l40s", 2 / 3),  # GeForce: half the FLOP in a cycle
        ("b300-sxm", "b200-sxm", 0.5),
    ],
)
def test_siblings_with_fewer_flop_in_a_cycle_achieve_more_of_them(
    hardware: str, member: str, efficiency: float
) -> None:
    """The time that a multiprocessor does not multiply stays: published FP8 prefill on H20 reaches 86% of the bound."""
    shelf = Shelf({f"sglang/{member}": versions(v0_5_10=0.5)}, members=(member,))
    match = found(shelf, hardware=hardware).find("gemm", "fp8")
    assert match is not None
    assert match.fit.parameters["compute_efficiency"] == pytest.approx(efficiency, abs=0.002)


def test_siblings_with_more_flop_in_a_cycle_achieve_less_of_them() -> None:
    """FP4 of Blackwell Ultra, 1.5 times: published GEMMs of cuBLAS reach 10.3 to 11.1 PFLOP/s of its 13.5."""
    shelf = Shelf({"sglang/b200-sxm": {"0.5.10": {("gemm", "nvfp4"): fit(0.8, format="nvfp4")}}}, members=("b200-sxm",))
    match = found(shelf, hardware="b300-sxm").find("gemm", "nvfp4")
    assert match is not None
    assert match.fit.parameters["compute_efficiency"] == pytest.approx(0.727, abs=0.002)


@pytest.mark.parametrize(
    ("hardware", "member", "basis"),
    [
        ("rtx-5090", "b200-sxm", "engine"),  # B200's kernels use its tensor memory, which no other Blackwell has
        ("dgx-spark", "b200-sxm", "engine"),
        ("dgx-spark", "rtx-pro-6000-server", "pooled"),
        ("a10", "a100-sxm-80gb", "pooled"),
        ("b300-sxm", "b200-sxm", "family"),
    ],
)
def test_chips_of_a_family_with_other_matrix_instructions_are_no_relatives(
    hardware: str, member: str, basis: str
) -> None:
    device = load_hardware(member)
    files = {f"sglang/{member}": versions(v0_5_10=0.5), f"vllm/{hardware}": versions(v0_24=0.4)}
    match = found(Shelf(files, {families(device)[0]: (member,)}), hardware=hardware).find("gemm", "fp8")
    assert match is not None
    assert match.basis == basis


def test_without_a_version_the_newest_of_each_kernel_is_used() -> None:
    shelf = Shelf({"sglang/h100-sxm": versions(v0_5_9=0.5, v0_5_10=0.6)})
    match = found(shelf, version="").find("gemm", "fp8")
    assert match is not None
    assert (match.basis, match.fit.parameters["compute_efficiency"]) == ("calibrated", 0.6)


def test_each_level_crossed_widens_the_interval_in_quadrature() -> None:
    exact = found(Shelf({"sglang/h100-sxm": versions(v0_5_10=0.6)})).find("gemm", "fp8")
    other = found(Shelf({"sglang/h100-sxm": versions(v0_5_9=0.6)})).find("gemm", "fp8")
    assert exact is not None
    assert other is not None
    near, far = exact.expected(ROWS, H100), other.expected(ROWS, H100)
    np.testing.assert_array_equal(near.mid, far.mid)
    added = TO_P90 * crossing_spread("gemm", "fp8", ("version",))
    np.testing.assert_allclose(np.log(far.high / far.mid), np.hypot(np.log(near.high / near.mid), added))
    assert (far.low <= near.low).all()


@pytest.mark.parametrize(("asked", "used"), [("0.13", "0.14"), ("0.11", "0.14"), ("0.22", "0.24"), ("0.33", "0.24")])
def test_the_nearest_release_of_the_family_comes_before_a_far_one_on_the_device(asked: str, used: str) -> None:
    shelf = Shelf({"vllm/h100-sxm": versions(v0_24=0.5), "vllm/hopper": versions(v0_14=0.7)})
    match = found(shelf, "vllm", asked).find("gemm", "fp8")
    assert match is not None
    assert match.fit.version.removeprefix("v") == used


def test_versions_several_releases_apart_are_a_level_of_their_own() -> None:
    shelf = Shelf({"vllm/h100-sxm": versions(v0_14=0.5)})
    near, far = (found(shelf, "vllm", version).find("gemm", "fp8") for version in ("0.15.1", "0.8.3"))
    assert near is not None
    assert far is not None
    assert near.spread == crossing_spread("gemm", "fp8", ("version",))
    assert far.spread == crossing_spread("gemm", "fp8", ("release",))


@pytest.mark.parametrize(("hardware", "factor"), [("l40s", 1.8 / 2.52), ("a100-sxm-80gb", 1.8 / 1.41), ("mi300x", 1.0)])
def test_a_launch_takes_as_many_clocks_on_every_family(hardware: str, factor: float) -> None:
    """Constants of all devices alone: a sibling's launch is as long, whatever its clock, and other vendors' differ."""
    pooled, launch = (
        found(Shelf({"sglang/pooled": versions(v0_5_10=0.6)}), hardware=hardware),
        fit().parameters["launch"],
    )
    match = pooled.find("gemm", "fp8")
    assert match is not None
    assert match.fit.parameters["launch"] == pytest.approx(launch * factor, rel=0.01)
    near = Shelf({f"sglang/{hardware}": versions(v0_5_10=0.6)})
    match = found(near, hardware=hardware).find("gemm", "fp8")
    assert match is not None
    assert match.fit.parameters["launch"] == launch


def test_constants_of_a_multiprocessor_are_in_clocks() -> None:
    constants = {"tile_prologue": 2e-6, "tile_bandwidth": 1e11, "launch": 5e-6}
    fast = replace(H100, clock=2 * REFERENCE_CLOCK)
    assert at_clock(constants, fast) == pytest.approx({"tile_prologue": 1e-6, "tile_bandwidth": 2e11, "launch": 5e-6})
    assert at_clock(constants, load_hardware("epyc-9654")) == constants


def test_a_related_format_is_a_level_of_its_own() -> None:
    shelf = Shelf({"sglang/h100-sxm": {"0.5.10": {("gemm", "bf16"): fit(format="bf16")}}})
    match = found(shelf).find("gemm", "fp8")
    assert match is not None
    assert match.spread == pytest.approx(
        crossing_spread("gemm", "fp8", ("format",)) * 3**0.5
    )  # bf16 is fp8's third relative


def test_residuals_of_unseen_devices_include_their_level() -> None:
    one = Fit(**{name: getattr(fit(), name) for name in Fit.__struct_fields__ if name != "held_out"}, held_out=True)
    shelf = Shelf({"hopper": {"": {("gemm", "fp8"): one}}})
    match = found(shelf).find("gemm", "fp8")
    assert match is not None
    assert (match.basis, match.spread) == ("family", 0.0)


@given(st.sampled_from(["gemm", "moe", "norm"]), st.permutations(LEVELS), st.integers(1, len(LEVELS)))
def test_variances_add_in_any_order(op: str, levels: list[str], count: int) -> None:
    crossed = tuple(levels[:count])
    total = crossing_spread(op, "fp8", crossed) ** 2  # type: ignore[arg-type]
    assert total == pytest.approx(sum(crossing_spread(op, "fp8", (level,)) ** 2 for level in crossed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("components: {gemm: {version: 0.1}}", "must be a number above 0"),
        ("components: {}", "'components.other' is missing"),
        ("components: {other: {verzion: 0.1}}", "did you mean 'version'"),
        ("components: 3", "must be a mapping"),
    ],
)
def test_invalid_components(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "levels.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        parse_levels(path)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_bundled_constants_are_of_the_engine_and_another_version_is_wider(engine: str) -> None:
    exact, newer = (load_calibration(H100, engine=engine, version=version) for version in ("", "99.0"))
    for op, format in (("gemm", "fp8"), ("attention_decode", "bf16"), ("moe", "bf16")):
        match, other = exact.find(op, format), newer.find(op, format)
        assert match is not None
        assert other is not None
        assert (match.engine, match.basis, other.engine, other.basis) == (engine, "calibrated", engine, "version")
        assert match.fit.parameters == other.fit.parameters
        assert other.spread > match.spread == 0


def test_constants_of_all_devices_are_of_another_version_too() -> None:
    """The newest version on every device is no nearer than another version on the device itself."""
    constants = {one.name: one.default for one in kernel("moe").parameters("bf16")}
    older, newest = (
        {("moe", "bf16"): Fit("moe", "bf16", constants, {"all": Residuals(0.8, 1.0, 1.25, 100)}, version=version)}
        for version in ("0.5.9", "0.5.10")
    )
    match = found(Shelf({"sglang/h100-sxm": {"0.5.9": older}, "sglang/pooled": {"": newest}})).find("moe", "bf16")
    assert match is not None
    assert (match.basis, match.calibration, match.fit.version) == ("version", "h100-sxm", "0.5.9")


def test_an_engine_on_other_gpus_is_nearer_than_another_engine_on_the_gpu() -> None:
    """No INT4 experts of vLLM were measured on A100: its own of other GPUs, not SGLang's there."""
    for format, place in (("int4_wo", "pooled"), ("bf16", "a100-sxm-80gb")):
        match = load_calibration(load_hardware("a100-sxm-80gb"), engine="vllm").find("moe", format)
        assert match is not None
        assert (match.calibration, match.engine) == (place, "vllm")


def test_constants_of_a_kernel_that_engines_share_are_of_other_tables() -> None:
    """cuBLAS of one device: the interval is wider than the residuals by what two tables differ."""
    shared = Shelf({"h100-sxm": {"": {("gemm", "bf16"): fit(format="bf16"), ("gemm", "fp8"): fit()}}})
    for format, crossed in (("bf16", ("table",)), ("fp8", ())):
        match = found(shared).find("gemm", format)
        assert match is not None
        assert (match.basis, match.spread) == ("calibrated", crossing_spread("gemm", format, crossed))  # type: ignore[arg-type]
