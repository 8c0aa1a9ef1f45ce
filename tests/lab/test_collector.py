"""What public tables time beside a kernel: graphs, host time, buffers of a cache, dealt routing, differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from lab.observation.collector import DIFFERENCE_LAUNCH, GRAPH, Collector
from roofline.core.errors import UnsupportedError
from roofline.specs.hardware import load_hardware
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel, kernel_time
from roofline.validate.fit.calibrate import fit
from roofline.validate.score.kernels import predict, summarise
from roofline.validate.tables.rows import Measurements
from tests.validate.synthetic import times
from tests.validate.test_calibrate import decode_rows
from tests.validate.test_kernels import CASES, cases, defaults

H100, COLLECTOR, HOSTED = load_hardware("h100-sxm"), Collector(), Collector(hosted=True)


def table(op: str, dtype: str, **columns: Any) -> Measurements:
    """Rows of the sizes in CASES, but for some columns."""
    values = {"dtype": dtype, "kv_dtype": dtype, "routing": "balanced", **CASES[op][0], **columns}
    count = max(np.size(value) for value in values.values())
    return Measurements(op, pd.DataFrame(values, range(count)), "table")


@pytest.mark.parametrize(("op", "dtype"), cases())
def test_rows_of_one_table_are_as_if_each_stood_by_itself(op: str, dtype: str) -> None:
    """Some in a step and others alone, some cold and others replayed."""
    _, _, along = CASES[op]
    caches = ["cold", "warm", None, "cold", None]
    part = table(op, dtype, cache=caches, **{along: [1.0, 24.0, 24.0, 24.0, 3000.0]})
    together = times(part, H100, defaults(op, dtype), COLLECTOR)
    for index in range(5):
        own = times(part.rows([index]), H100, defaults(op, dtype), COLLECTOR)
        np.testing.assert_allclose(own[0], together[index], rtol=1e-12)
    graphed = GRAPH.name in {one.name for one in COLLECTOR.parameters(op, dtype)}
    np.testing.assert_allclose(together[2] - together[1], GRAPH.default if graphed else 0.0, atol=1e-15)


def test_gaps_between_kernels_are_of_tables_without_graphs() -> None:
    """Kernels that are issued one by one leave the device idle between them; in a replayed graph they do not."""
    part = table("gemm", "fp8_block", m=8192.0, n=8192.0, k=8192.0, graph=[0.0, 1.0])
    host = {**defaults("gemm", "fp8_block"), "host": 60e-6}
    narrow, wide = (times(part, H100, {**host, "host_gap": gap}, HOSTED) for gap in (1e-9, 20e-6))
    assert (wide - narrow).tolist() == pytest.approx([20e-6, 0.0], rel=1e-3)


def test_a_table_without_graphs_shows_no_less_than_its_host_time() -> None:
    part = table("gemm", "fp8_block", m=[1.0, 16.0, 16384.0], graph=0.0)
    host = {**defaults("gemm", "fp8_block"), "host": 60e-6}
    assert times(part, H100, host, HOSTED)[:2] == pytest.approx([60e-6, 60e-6], rel=0.01)
    assert times(part, H100, host, HOSTED)[2] > 200e-6


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm", "b200-sxm", "gb200"])
def test_block_scaled_gemms_without_graphs_wait_for_the_host(name: str) -> None:
    """Constants without host time of their own have that of the nearest benchmark without graphs."""
    device = load_hardware(name)
    part = table("gemm", "fp8_block", m=16.0, graph=0.0)
    assert float(COLLECTOR.expected(COLLECTOR.rows(part), device, load_calibration(device)).mid[0]) > 35e-6


@pytest.mark.parametrize("caches", [[None], ["cold", "warm", None]])
def test_rows_are_fitted_with_the_graph_of_their_table(caches: list[Any]) -> None:
    """A public table takes a graph longer than a kernel within a step, which both kinds of rows tell."""
    truth = {parameter.name: parameter.default for parameter in kernel("attention_decode").parameters("bf16")}
    truth |= {"launch": 7e-6, "memory_efficiency": 0.75, "l2_speedup": 3.0, "unit_bandwidth": 200e9}

    def made(count: int, caches: list[Any], noise: float = 0.0) -> Measurements:
        frame = decode_rows(count, ["cold"])
        frame["cache"] = np.random.default_rng(6).choice(np.array(caches, dtype=object), count)
        seconds = times(Measurements("attention_decode", frame, "synthetic"), H100, truth, COLLECTOR)
        scatter = np.exp(noise * np.random.default_rng(5).standard_normal(count))
        return Measurements("attention_decode", frame.assign(latency_us=seconds * 1e6 * scatter), "synthetic")

    found = fit([made(600, caches, 0.02)], H100, harness=COLLECTOR)
    assert found.fits["attention_decode", "bf16"].observed["graph"] == GRAPH.default
    for kind in ("cold", "warm", None):
        (group,) = summarise(list(predict(made(400, [kind]), H100, found, harness=COLLECTOR)), ("op",))
        assert group.mape < (0.03 if caches[0] == kind or len(caches) > 1 else 0.15), kind


def test_differences_of_times_have_no_launch() -> None:
    """What is left of the time with many keys less that with few, and 5 us."""
    long, short = (
        kernel_time("mla_decode", {**CASES["mla_decode"][0], "dtype": "bf16", "kv_len": keys}, H100, known)
        for known in [defaults("mla_decode", "bf16")]
        for keys in (65536.0, 256.0)
    )
    part = table("mla_decode", "bf16", kv_len=65536.0, less_kv=256.0, cache="cold")
    assert times(part, H100, defaults("mla_decode", "bf16"), COLLECTOR) == pytest.approx(
        [DIFFERENCE_LAUNCH + long - short]
    )


def test_the_busiest_device_of_a_power_law_takes_longest() -> None:
    routings = ["balanced", "power_law_1.01", "power_law_1.2"]
    part = table("moe", "bf16", tokens=4096.0, ep=8.0, routing=routings)
    found = times(part, H100, defaults("moe", "bf16"), COLLECTOR)
    assert found[0] < found[1] < found[2]
    with pytest.raises(UnsupportedError, match="routing"):
        times(table("moe", "bf16", routing="odd"), H100, defaults("moe", "bf16"), COLLECTOR)
