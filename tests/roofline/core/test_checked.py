"""Values that no file may hold cannot be made in Python either."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.graph.offload import Offload
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Settings
from roofline.serving.curve import serve
from roofline.serving.load import Load, Trace
from roofline.serving.sessions.profiles import profile
from roofline.specs.engine import load_engine
from roofline.specs.formats import find_format
from roofline.specs.hardware import load_hardware
from roofline.specs.modelspec import load_model

H100 = load_hardware("h100-sxm")
LLAMA = load_model("llama-3.1-8b")
VLLM = load_engine("vllm")
CHAT = profile("chat")
LINK, PRICE = H100.interconnects[0], H100.price

NONE_OF: list[tuple[Struct, str, Any]] = [
    *((H100, "memory_bandwidth", value) for value in (-5.0, 0.0, math.nan, math.inf, "3 TB/s", True)),
    (H100, "memory_capacity", -1.0),
    *((H100, "tensor", {"bf16": value}) for value in (-1e15, 0.0, math.nan, "x")),
    (H100, "tensor", {"nonsense": 1e15}),
    *((H100, "units", value) for value in (-5, 2.5)),
    *((H100, name, value) for name, value in (("clock", 0.0), ("l2", -1.0), ("tdp", -7.0))),
    (H100, "kind", "toaster"),
    (LINK, "bandwidth", -1.0),
    (LINK, "latency", -1e-6),
    *((LLAMA, "hidden", value) for value in (-4096, 0, 4097.5, "4096")),
    (LLAMA, "vocabulary", -1),
    (LLAMA, "pattern", ()),
    (LLAMA, "pattern", ("nope",) * 32),
    (LLAMA, "dtype", "nonsense"),
    (LLAMA, "task", "dance"),
    (LLAMA, "max_context", -5),
    (LLAMA, "extra_parameters", -(10**12)),
    (LLAMA.groups[0], "count", 0),
    *((Offload(weights=0.5), "bandwidth", value) for value in (-1.0, 0.0, math.nan)),
    *((Settings(), "chunk", value) for value in (0, -5, 2.5)),
    *((Settings(), "depth", value) for value in (-1.0, 0.0, 5.0)),
    *((Settings(), "beams", value) for value in (0, -2)),
    *((Settings(), "useful", value) for value in (0.0, -1.0, math.nan, np.array([0.5, 0.0]), "x")),
    *((Settings(), "padding", value) for value in (0.0, -1.0)),
    *((Settings(), "kv_block", value) for value in (0, -16)),
    (Settings(), "kv_reserved", -(10**6)),
    (Settings(), "expert_capacity", -1.0),
    *((Settings(), "stages", value) for value in (((0.5, -1.0),), ((2.0, 1.0),), ((0.7, 1.0), (0.7, 0.5)))),
    (Settings(), "two_batch_overlap", frozenset({"nonsense"})),
    *((VLLM, "parameters", value) for value in ({"step": -1.0}, {"nonsense": 1.0})),
    *((VLLM, "spread", value) for value in ((2.0, 0.5), (-1.0, 1.0))),
    *((VLLM, name, ("nonsense",)) for name in ("graphs", "fusions", "own_kernels")),
    (VLLM, "gated_delta_rule", "nonsense"),
    (VLLM, "all_reduce", {"NVLink": "nonsense"}),
    (VLLM, "weight_only", {"awq": "nonsense"}),
    *((VLLM.memory, "utilization", value) for value in (-1.0, 50.0, math.nan)),
    *((VLLM.memory, name, -1) for name in ("block", "tokens", "sequences", "context")),
    *((VLLM.scheduler, name, value) for name, value in (("tokens", 0), ("sequences", -5), ("order", "nonsense"))),
    *((VLLM.scheduler, name, value) for name, value in (("latency", -1.0), ("step", -1.0), ("lag", -1))),
    (Load(concurrency=4), "ramp", -5.0),
    *((CHAT, name, None) for name in ("turns", "new", "output", "gap")),
    *((VLLM, name, None) for name in ("scheduler", "name")),
    (find_format("fp8"), "bits", -4.0),
    (find_format("fp8"), "bits", 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("valid", "name", "value"), NONE_OF, ids=lambda part: str(part)[:40])
def test_a_changed_value_that_is_none_is_refused(valid: Struct, name: str, value: Any) -> None:
    with pytest.raises(RooflineError) as caught:
        replace(valid, **{name: value})
    assert "\n" not in str(caught.value)


def test_a_rent_below_zero_is_refused() -> None:
    assert PRICE is not None
    with pytest.raises(RooflineError, match=r"rent of Price must be a number above 0, or None, got -3\.0"):
        replace(PRICE, rent=-3.0)


def test_numbers_of_numpy_are_numbers() -> None:
    assert replace(H100, memory_bandwidth=np.float64(2e12), units=np.int64(100)).memory_bandwidth == 2e12
    assert replace(H100, memory_bandwidth=2 * 10**12).memory_bandwidth == 2e12
    assert Settings(useful=np.array([0.5, 1.0]), kv_reserved=0).kv_reserved == 0


def test_what_is_bundled_is_valid() -> None:
    """Making an equal one again raises nothing."""
    for whole in (H100, LLAMA, VLLM, VLLM.memory, VLLM.scheduler, Settings()):
        assert replace(whole) == whole


TRACES = [
    ((), (), ()),
    ((0.0, -5.0), (10, 10), (5, 5)),
    ((5.0, 0.0), (10, 10), (5, 5)),
    ((math.nan,), (10,), (5,)),
    ((0.0,), (0,), (5,)),
    ((0.0,), (10,), (0,)),
    ((0.0, 1.0), (10,), (5,)),
    ((0.0,), (10,), (5,), (100,)),
]


@pytest.mark.parametrize("columns", TRACES, ids=str)
def test_traces_that_are_none(columns: tuple[Any, ...]) -> None:
    with pytest.raises(RooflineError, match="trace"):
        Trace(*columns)


@pytest.mark.parametrize(
    ("load", "arguments"),
    [
        *(({"concurrency": 4}, {"values": values}) for values in ([], [-4.0], [0.0], [math.nan], [2.5], [math.inf])),
        *(({"rate": 1.0}, {"values": values}) for values in ([], [-1.0], [0.0], [math.nan])),
        *(({"concurrency": 4}, {"simulate": count}) for count in (0, -5, 2.5)),
        ({"concurrency": 4}, {"simulate": 20, "seed": -1}),
        *(({"concurrency": 4}, {"ttft": ttft, "tpot": tpot}) for ttft, tpot in ((-1.0, -1.0), (math.nan, 1.0))),
    ],
    ids=str,
)
def test_runs_that_are_none(load: dict[str, Any], arguments: dict[str, Any]) -> None:
    told = {"values": "values of|requests in flight must be whole", "seed": "seed must be"}
    told |= {"simulate": "simulate (must be between|takes a whole number)", "ttft": "ttft must be seconds above 0"}
    said = told[next(name for name in told if name in arguments)]
    with pytest.raises(RooflineError, match=said):
        serve(Scenario(LLAMA, H100), Load(prompt=128, generate=8, **load), **arguments)


def test_only_a_link_to_the_host_has_its_memory() -> None:
    with pytest.raises(ValueError, match="a link of scope node has none"):
        replace(LINK, memory=4e11)
    assert replace(LINK, scope="host", memory=4e11).memory == 4e11
