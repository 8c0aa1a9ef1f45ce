"""The fit of all calibrations together: pooling, shared kernels, host time, levels, held-out versions and devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab.fit.hierarchy import Node, fit_all, fit_table
from lab.fit.rows import Data, load
from lab.fit.variance import Crossing, component, components, crossings, render
from lab.observation.collector import DIFFERENCED, Collector
from lab.score.held_out import (
    Split,
    bundled,
    known_engine,
    markdown,
    newest,
    score,
    shared_kernels,
    splits,
)
from roofline.specs.hardware import load_hardware
from roofline.timing.intervals.levels import Level
from roofline.timing.kernels import kernel
from roofline.validate.tables.rows import NONE, Measurements, Origin, origin
from tests.validate.synthetic import times

SIZES = [1024, 2048, 3072, 4096, 6144, 8192]
COLLECTOR = Collector()
TRUTH = {one.name: one.default for one in kernel("gemm").parameters("fp8")}


def rows(hardware: str, software: str, efficiency: float, count: int = 120, seed: int = 3) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame({"hardware": hardware, "op": "gemm", "dtype": "fp8"}, range(count)).assign(software=software)
    for size, choices in (("m", [1, 16, 128, 512, 2048, 8192]), ("n", SIZES), ("k", SIZES)):
        frame[size] = generator.choice(choices, count)
    frame = frame.drop_duplicates()
    part, truth = Measurements("gemm", frame, "rows"), {**TRUTH, "compute_efficiency": efficiency}
    seconds = times(part, load_hardware(hardware), truth, COLLECTOR)
    return frame.assign(latency_us=seconds * 1e6 * np.exp(generator.normal(0, 0.03, len(frame))))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("rows")
    parts = [
        rows("h100-sxm", "SGLang 0.5.9", 0.80),
        rows("h200-sxm", "SGLang 0.5.9", 0.78),
        rows("h100-sxm", "SGLang 0.5.10", 0.70),
        rows("l40s", "SGLang 0.5.10", 0.50),
        rows("h100-sxm", "TensorRT-LLM 1.2.0rc5", 0.40),
    ]
    for index, part in enumerate(parts):
        part.to_csv(folder / f"{index}.csv", index=False)
    return load([folder])


@pytest.fixture(scope="module")
def found(data: Data) -> dict[tuple[str, str], list[Node]]:
    return fit_all(data)


def efficiency(found: dict[tuple[str, str], list[Node]], place: str, engine: str, version: str) -> float:
    """That of GEMMs of 500 us: a hundred rows do not tell it from the slowdown of longer ones."""
    (node,) = (node for node in found["gemm", "fp8"] if (node.place, node.origin) == (place, Origin(engine, version)))
    return node.fit.parameters["compute_efficiency"] / (1.0 + node.fit.parameters["throttling"] / 2)


def test_every_version_on_a_device_has_its_own_constants(found: dict[tuple[str, str], list[Node]]) -> None:
    assert efficiency(found, "h100-sxm", "sglang", "0.5.9") == pytest.approx(0.80, rel=0.06)
    assert efficiency(found, "h100-sxm", "sglang", "0.5.10") == pytest.approx(0.70, rel=0.06)
    assert efficiency(found, "h100-sxm", "tensorrt-llm", "1.2.0rc5") == pytest.approx(0.40, rel=0.06)


def test_a_family_pools_the_devices_that_ran_a_version(found: dict[tuple[str, str], list[Node]]) -> None:
    assert efficiency(found, "hopper", "sglang", "0.5.9") == pytest.approx(0.79, rel=0.06)
    assert ("hopper", Origin("sglang", "0.5.10")) not in {(one.place, one.origin) for one in found["gemm", "fp8"]}


def test_an_engine_has_constants_for_unmeasured_devices(found: dict[tuple[str, str], list[Node]]) -> None:
    assert 0.45 < efficiency(found, "pooled", "sglang", "") < 0.85
    assert efficiency(found, "pooled", "tensorrt-llm", "") == pytest.approx(0.40, rel=0.06)


def test_versions_engines_and_devices_are_held_out_whole(data: Data, found: dict[tuple[str, str], list[Node]]) -> None:
    kinds = {split.kind: split for split in splits(data)}
    assert set(kinds) == {"version", "engine", "device"}
    only = Split("version", origin=Origin("sglang", "0.5.10"))
    assert only in splits(data)
    held = list(score(data, found, [only]))
    assert {(one.place[0], one.place[1].version) for one in held} == {("h100-sxm", "0.5.10"), ("l40s", "0.5.10")}
    on_h100 = next(one.scored for one in held if one.place[0] == "h100-sxm")
    large = np.asarray(on_h100.part.frame["m"] == 8192)
    older = times(on_h100.part, load_hardware("h100-sxm"), {**TRUTH, "compute_efficiency": 0.80}, COLLECTOR)
    assert np.median((on_h100.mid / older)[large]) == pytest.approx(1.0, rel=0.06)
    on_l40s = next(one.scored for one in held if one.place[0] == "l40s")
    large = np.asarray(on_l40s.part.frame["m"] == 8192)
    assert np.median((on_l40s.mid / on_l40s.measured)[large]) < 0.9, "SGLang's on Hopper, not TensorRT-LLM's"
    known = list(known_engine(data, held))
    assert [one.place[0] for one in known] == ["h100-sxm"]
    assert [one.split.kind for one in newest(data, known)] == ["newest"]
    assert "A version held out" in markdown(held)


def test_versions_of_shared_kernels_are_predicted_from_the_others(tmp_path: Path) -> None:
    """cuBLAS of three engines, one of them published twice, another 30% slower: the interval is that of versions."""
    versions = {"vLLM 0.24.0": 1.0, "vLLM 0.22.0": 1.0, "SGLang 0.5.9": 1.02, "TensorRT-LLM 1.0.0": 1.3}
    same = rows("h100-sxm", "any", 0.8, count=200).assign(dtype="bf16")
    parts = [same.assign(software=name, latency_us=same["latency_us"] * slower) for name, slower in versions.items()]
    pd.concat(parts).to_csv(tmp_path / "shared.csv", index=False)
    key = "gemm", "bf16"
    data = load([tmp_path])
    nodes, every = fit_table(key, data.tables[key]), data.tables[key]["h100-sxm", NONE]
    held = shared_kernels(key, "h100-sxm", every, nodes)
    assert {(one.split.kind, one.place[1].engine) for one in held} == {
        ("version", "sglang"),
        ("version", "tensorrt-llm"),
        ("engine", "sglang"),
        ("engine", "tensorrt-llm"),
        ("engine", "vllm"),
    }
    slow = next(one.scored for one in held if one.place[1].engine == "tensorrt-llm")
    assert np.median(slow.measured / slow.mid) == pytest.approx(1.3, rel=0.05)
    fit = next(node.fit for node in nodes if node.place == "h100-sxm")
    assert fit.residuals["all"].high > 1.25


def test_the_bundled_constants_are_nodes_to_score(data: Data) -> None:
    (key,), (nodes,) = zip(*bundled(data).items(), strict=True)
    assert key == ("gemm", "fp8")
    places = {(node.place, node.origin.engine) for node in nodes}
    assert {("h100-sxm", "sglang"), ("hopper", "sglang"), ("pooled", "tensorrt-llm")} <= places


def test_the_component_of_a_level_makes_80_percent_of_the_rows_fall_inside() -> None:
    generator = np.random.default_rng(1)
    noise, bias = generator.normal(0, 0.05, (200, 400)), generator.normal(0, 0.2, (200, 1))
    tight = np.full(400, 1.2816 * 0.05)
    found = [
        Crossing(("gemm", "fp8"), ("x", NONE), "version", ("release", str(index)), errors, tight, tight)
        for index, errors in enumerate(noise + bias)
    ]
    assert component(found) == pytest.approx(0.2, rel=0.15)
    estimated = components(found)
    assert estimated["gemm"]["version"] == pytest.approx(component(found), rel=0.05)
    few = components([one for one in found if one.step[1] in ("1", "2", "3")])
    assert few["gemm"]["engine"] > estimated["gemm"]["version"]  # hardly anything is known of engines
    assert "gemm: {table: " in render(estimated, "a command", Path("absent.yaml"))


def test_a_version_on_another_device_of_the_family_has_the_component_of_the_family_besides() -> None:
    """Releases differ by 15%, devices by 25%: what was predicted across both says nothing else of releases."""
    generator = np.random.default_rng(4)
    tight = np.full(200, 1.2816 * 0.05)

    def crossed(level: Level, spreads: tuple[float, ...], sibling: bool) -> list[Crossing]:
        bias = sum(generator.normal(0, spread, (300, 1)) for spread in spreads)
        errors = generator.normal(0, 0.05, (300, 200)) + bias
        place = ("x", NONE)
        return [
            Crossing(("gemm", "fp8"), place, level, (str(index),), one, tight, tight, sibling)
            for index, one in enumerate(errors)
        ]

    family = crossed("family", (0.25,), False)
    both = components([*family, *crossed("version", (0.15, 0.25), True)])["gemm"]
    assert both["family"] == pytest.approx(0.25, rel=0.1)
    assert both["version"] == pytest.approx(0.15, rel=0.15)


def test_formats_with_few_predictions_are_pooled_with_their_kind() -> None:
    """One format errs by 20%, another by 40%, a third by 10%, but was predicted too rarely to tell."""
    generator = np.random.default_rng(2)
    tight = np.full(200, 1.2816 * 0.05)
    found = [
        Crossing(("gemm", format), ("x", NONE), "version", ("release", str(index)), errors, tight, tight)
        for format, spread, count in (("fp8", 0.2, 60), ("fp8_block", 0.4, 60), ("nvfp4", 0.1, 3))
        for index, errors in enumerate(
            generator.normal(0, 0.05, (count, 200)) + generator.normal(0, spread, (count, 1))
        )
    ]
    estimated = components(found)
    assert estimated["gemm fp8"]["version"] == pytest.approx(0.2, rel=0.2)
    assert estimated["gemm fp8_block"]["version"] == pytest.approx(0.4, rel=0.2)
    assert 0.15 < estimated["gemm nvfp4"]["version"] < estimated["gemm fp8_block"]["version"]


def test_levels_are_crossed_one_at_a_time_and_forward(data: Data, found: dict[tuple[str, str], list[Node]]) -> None:
    """H200 came after H100, L40S too, and 0.5.10 after 0.5.9."""
    seen = {(one.place, one.level) for one in crossings(data, found)}
    older, newer = Origin("sglang", "0.5.9"), Origin("sglang", "0.5.10")
    assert (("h200-sxm", older), "family") in seen
    assert (("h100-sxm", older), "family") not in seen
    assert {level for place, level in seen if place == ("h100-sxm", newer)} == {"version", "engine"}
    assert (("l40s", newer), "pooled") in seen
    assert not {level for place, level in seen if place[1] == older} & {"version", "release"}


def steps(hardware: str, dims: list[int], slowdown: float) -> Measurements:
    """Decode attention in which one head dimension has no kernel."""
    generator, count = np.random.default_rng(5), 150
    frame = pd.DataFrame({"hardware": hardware, "dtype": "bf16", "kv_dtype": "bf16", "q_len": 1}, range(count))
    sizes = {"batch": [8, 64, 256], "kv_len": [1024, 4096, 16384], "heads": [32, 64], "kv_heads": [8], "head_dim": dims}
    frame = frame.assign(**{name: generator.choice(choices, count) for name, choices in sizes.items()}, window=0)
    part = Measurements("attention_decode", frame.assign(latency_us=1.0), "rows")
    truth = {one.name: one.default for one in kernel("attention_decode").parameters("bf16")} | {"other_dim": slowdown}
    seconds = times(part, load_hardware(hardware), truth, COLLECTOR)
    return Measurements(part.op, frame.assign(latency_us=seconds * 1e6), "rows")


def test_what_a_library_lacks_is_known_of_one_family() -> None:
    sglang = Origin("sglang", "0.5.10")
    table = {
        ("b200-sxm", sglang): steps("b200-sxm", [128, 192], 4.0),
        ("h100-sxm", sglang): steps("h100-sxm", [128], 0),
    }
    nodes = fit_table(("attention_decode", "bf16"), table)
    slower = {(node.place, node.origin.engine): node.fit.parameters["other_dim"] for node in nodes}
    assert slower.pop(("b200-sxm", "sglang")) == pytest.approx(4.0, rel=0.05)
    assert set(slower.values()) == {1e-3}


def test_formats_that_hardware_converts_have_no_constants_of_their_own(tmp_path: Path) -> None:
    """NVFP4 on H100 is weight-only: to be scored, but not to be pooled with kernels that multiply in FP4."""
    plain = rows("h100-sxm", "SGLang 0.5.9", 0.8)
    pd.concat([plain, plain.assign(dtype="nvfp4")]).to_csv(tmp_path / "rows.csv", index=False)
    assert set(load([tmp_path]).tables) == {("gemm", "fp8")}


def test_differences_of_times_take_launch_and_prologue_from_another_engine() -> None:
    def decode(software: str, less_kv: float) -> Measurements:
        sizes = pd.MultiIndex.from_product(
            [[1.0, 4.0, 16.0, 64.0], [1024.0, 4096.0, 16384.0], [16.0, 128.0]], names=["batch", "kv_len", "heads"]
        )
        frame = sizes.to_frame(index=False).assign(hardware="h200-sxm", op="mla_decode", dtype="bf16", kv_dtype="bf16")
        frame = frame.assign(q_len=1.0, latent=512.0, rope=64.0, software=software, less_kv=less_kv, cache="warm")
        truth = {one.name: one.default for one in kernel("mla_decode").parameters("bf16")} | {"tile_prologue": 7e-6}
        seconds = times(Measurements("mla_decode", frame, "test"), load_hardware("h200-sxm"), truth, COLLECTOR)
        return Measurements("mla_decode", frame.assign(latency_us=seconds * 1e6), "test")

    table = {
        ("h200-sxm", Origin("sglang", "0.5.9")): decode("SGLang 0.5.9", 0.0),
        ("h200-sxm", Origin("vllm", "0.24.0")): decode("vLLM 0.24.0", 3.0),
    }
    nodes = fit_table(("mla_decode", "bf16"), table)
    one, other = (next(node.fit.parameters for node in nodes if (node.place, node.origin) == place) for place in table)
    assert [other[name] for name in DIFFERENCED] == [one[name] for name in DIFFERENCED]
    assert one["tile_prologue"] > 4e-6  # from 2e-6 before data


def test_a_version_with_few_rows_beside_another_has_no_constants_of_its_own() -> None:
    """vLLM 0.22's decode on L40S: 170 rows of one length, where 0.24 has 31,000."""
    once = rows("h100-sxm", "SGLang 0.5.9", 0.8, count=200)
    every = pd.concat([once] * 4, ignore_index=True)
    few = rows("h100-sxm", "SGLang 0.5.10", 0.5, count=20)
    table = {
        ("h100-sxm", origin(part["software"].iloc[0])): Measurements("gemm", part, "rows") for part in (every, few)
    }
    nodes = fit_table(("gemm", "fp8"), table)
    assert {node.origin.version for node in nodes if node.place == "h100-sxm"} == {"0.5.9"}


def test_the_component_of_tables_is_of_kernels_that_engines_share(tmp_path: Path) -> None:
    same = rows("h100-sxm", "any", 0.8, count=200).assign(dtype="bf16")
    versions = {"vLLM 0.24.0": 1.0, "SGLang 0.5.9": 1.2}
    parts = [same.assign(software=name, latency_us=same["latency_us"] * slower) for name, slower in versions.items()]
    pd.concat(parts).to_csv(tmp_path / "shared.csv", index=False)
    data = load([tmp_path])
    found = {key: fit_table(key, table) for key, table in data.tables.items()}
    crossed = [one for one in crossings(data, found) if one.level == "table"]
    assert {one.place[1].engine for one in crossed} == {"vllm", "sglang"}
    assert component(crossed) == pytest.approx(np.log(1.2) / 1.2816, rel=0.3)


def test_the_bandwidth_of_a_quantizing_kernel_is_known_of_the_device_where_pytorch_quantized() -> None:
    """vLLM before 0.15: its rows say nothing of the kernel that a served model runs."""

    def table(software: str, eager: float, quantizing: float) -> Measurements:
        frame = rows("l40s", software, 0.8).assign(eager=eager)
        truth = {**TRUTH, "quantize_bandwidth": quantizing, "quantize_row": 1e-11}
        seconds = times(Measurements("gemm", frame, "rows"), load_hardware("l40s"), truth, COLLECTOR)
        return Measurements("gemm", frame.assign(latency_us=seconds * 1e6), "rows")

    tables = {
        ("l40s", Origin("sglang", "0.5.9")): table("SGLang 0.5.9", 0.0, 0.6e12),
        ("l40s", Origin("vllm", "0.14.0")): table("vLLM 0.14.0", 1.0, 0.2e12),
    }
    nodes = fit_table(("gemm", "fp8"), tables)
    own = {node.origin: node.fit.parameters["quantize_bandwidth"] for node in nodes if node.place == "l40s"}
    assert own[Origin("sglang", "0.5.9")] == pytest.approx(0.6e12, rel=0.15)
    assert own[Origin("vllm", "0.14.0")] == pytest.approx(own[Origin("sglang", "0.5.9")], rel=0.05)


def test_layers_of_one_number_of_experts_have_the_launch_of_layers_of_several() -> None:
    """Sorting takes a time an expert, which one number of them does not tell from the launch: the shortest known."""
    generator, engine = np.random.default_rng(5), Origin("vllm", "0.24.0")
    truth = {one.name: one.default for one in kernel("moe").parameters("w4a16_mxfp4")} | {"expert": 50e-9}
    table = {}
    devices = ("h100-sxm", 30e-6, [896]), ("l40s", 15e-6, [32, 128]), ("rtx-pro-6000-server", 40e-6, [32, 128])
    for name, launch, experts in devices:
        frame = pd.DataFrame({"hardware": name, "op": "moe", "dtype": "w4a16_mxfp4"}, range(60)).assign(tp=1, ep=1)
        frame = frame.assign(hidden=2880, intermediate=2880, top_k=4, routing="balanced", software="vLLM 0.24.0")
        for column, choices in (("tokens", [1, 4, 16, 64, 512, 4096]), ("experts", experts)):
            frame[column] = generator.choice(choices, len(frame))
        part = Measurements("moe", frame, name)
        seconds = times(part, load_hardware(name), {**truth, "launch": launch}, COLLECTOR)
        table[name, engine] = Measurements("moe", frame.assign(latency_us=seconds * 1e6), name)
    found = {node.place: node.fit.parameters["launch"] for node in fit_table(("moe", "w4a16_mxfp4"), table)}
    assert found["h100-sxm"] == pytest.approx(found["l40s"], rel=0.05)
    assert found["l40s"] < 0.8 * found["pooled"] < found["rtx-pro-6000-server"]
