"""Exchanges of expert parallelism: DeepEP's published latencies, their bounds, and the choice of engines."""

from __future__ import annotations

import numpy as np
import pytest

from roofline import Scenario, analyze, load_hardware
from roofline.core.errors import RooflineError
from roofline.graph.parallel import Parallelism
from roofline.scenario.analysis import Analysis
from roofline.scenario.notes import notes
from roofline.specs.engine import load_engine
from roofline.specs.hardware import networked
from roofline.specs.network import load_fabric
from roofline.timing.chains import load_calibration
from roofline.timing.exchanges import FEW, choices, exchange_choice, other_exchanges
from roofline.timing.kernels import kernel_bound, kernel_time

DISPATCH, COMBINE = 7168 * (1 + 4 / 128) + 16, 7168 * 2.0
"""Bytes of a token's row: FP8 with scales and an index, and 16 bits."""


def exchange(direction: str, ranks: int, tokens: float = 128.0) -> float:
    """Microseconds of DeepEP's low-latency kernel on H800, with one port of 400 Gbit/s a GPU."""
    device = load_hardware("h800-sxm")
    match = load_calibration(device).find("deepep_low_latency", direction)
    assert match is not None
    row = {"row_bytes": DISPATCH if direction == "dispatch" else COMBINE, "top_k": 8.0, "experts": 256.0}
    columns = {"direction": direction, "tokens": np.array([tokens]), "ranks": float(ranks), "members": 8.0, **row}
    return 1e6 * float(match.expected(columns, device).mid[0])


@pytest.mark.parametrize(
    ("ranks", "dispatch", "combine"),
    [(16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369)],
)
def test_low_latency_is_as_deepep_publishes(ranks: int, dispatch: float, combine: float) -> None:
    """README of deepseek-ai/DeepEP: 128 tokens, 7168 wide, to 8 of 256 experts on H800. No GPU of the fit is one."""
    assert exchange("dispatch", ranks) == pytest.approx(dispatch, rel=0.15)
    assert exchange("combine", ranks) == pytest.approx(combine, rel=0.15)


@pytest.mark.parametrize(("op", "longer"), [("deepep_low_latency", 1 + 7 / 8), ("deepep_normal", 1.0)])
def test_a_thin_spine_slows_what_goes_between_rails(op: str, longer: float) -> None:
    """7 of 8 rows to another node are for a device of another number, which the normal kernels forward in the node."""
    times = []
    for network in ("400G-ib", "400G-ib,spine=2"):
        device = networked(load_hardware("h100-sxm"), load_fabric(network))
        match = load_calibration(device).find(op, "dispatch")
        assert match is not None
        row = {"row_bytes": DISPATCH, "top_k": 8.0, "experts": 256.0, "ranks": 32.0, "members": 8.0}
        few, many = kernel_time(
            op, {"direction": "dispatch", "tokens": np.array([1e4, 1e5]), **row}, device, match.fit.parameters
        )
        times.append(many - few)
    assert times[1] / times[0] == pytest.approx(longer)


@pytest.mark.parametrize(("ranks", "dispatch", "combine"), [(8, 35, 47), (16, 115, 141), (32, 157, 280)])
def test_mori_is_as_its_authors_publish(ranks: int, dispatch: float, combine: float) -> None:
    """README of ROCm/mori: 128 tokens on MI300X, from which its constants are."""
    for direction, published in (("dispatch", dispatch), ("combine", combine)):
        match = load_calibration(load_hardware("mi300x")).find("deepep_normal", direction)
        assert match is not None
        row = {"row_bytes": DISPATCH if direction == "dispatch" else COMBINE, "top_k": 8.0, "experts": 256.0}
        columns = {"direction": direction, "tokens": np.array([128.0]), "ranks": float(ranks), "members": 8.0, **row}
        assert 1e6 * match.expected(columns, load_hardware("mi300x")).mid.item() == pytest.approx(published, rel=0.08)


@pytest.mark.parametrize(
    ("engine", "hardware", "exchange"),
    [
        ("tensorrt-llm", "b200-sxm", "nvlink_one_sided"),
        ("tensorrt-llm@1.2.0rc6", "b300-sxm", "nvlink_one_sided"),
        ("tensorrt-llm", "h200-sxm", "allgather_reducescatter"),
        ("tensorrt-llm@1.1", "b200-sxm", "allgather_reducescatter"),
        ("tensorrt-llm", "rtx-pro-6000-server", "allgather_reducescatter"),
        ("tensorrt-llm", "gb200", "nvlink_one_sided"),
        ("tensorrt-llm@1.1", "gb200", "allgather_reducescatter"),
    ],
)
def test_a_release_sends_over_nvlink_where_it_joins_all_ranks(engine: str, hardware: str, exchange: str) -> None:
    """The newest release, which has no number, runs what releases since a row's run."""
    assert exchange_choice(load_engine(engine), load_hardware(hardware), several=False, ranks=8) == exchange


def test_few_ranks_gathered_before_where_each_token_went_to_all_of_them() -> None:
    old, gb200 = load_engine("tensorrt-llm@1.1"), load_hardware("gb200")
    assert exchange_choice(old, gb200, several=False, ranks=16) == "nvlink_two_sided"


def test_an_engine_runs_other_exchanges_when_asked() -> None:
    """By its own names, too; gathering all tokens on each of 72 ranks takes longer than sending each to 8 at most."""
    gb200, layout = load_hardware("gb200"), Parallelism(expert=72)
    assert other_exchanges(load_engine("vllm"), gb200, layout.on(gb200)) == ["nvlink_one_sided", "deepep_normal"]
    assert not other_exchanges(load_engine("vllm"), gb200, Parallelism(tensor=8).on(gb200))
    assert not other_exchanges(load_engine("tensorrt-llm"), gb200, layout.on(gb200))
    own = Scenario("deepseek-r1", "gb200", ep=72, batch=2304, engine="vllm")
    asked = analyze(own.with_(all_to_all="flashinfer_nvlink_one_sided"))
    found, before = asked.decode, analyze(own).decode
    assert found is not None
    assert before is not None
    assert found.expected.mid < 0.6 * before.expected.mid
    assert "--all-to-all nvlink_one_sided" in " ".join(notes(analyze(own)))
    assert "all-to-all" not in " ".join(notes(asked))


@pytest.mark.parametrize("op", ["deepep_low_latency", "deepep_normal", "nvlink_one_sided", "nvlink_two_sided"])
def test_more_tokens_take_longer_and_none_less_than_the_bound(op: str) -> None:
    device, tokens = load_hardware("h100-sxm"), 2.0 ** np.arange(15)
    row = {"direction": "dispatch", "tokens": tokens, "row_bytes": DISPATCH, "top_k": 8.0, "experts": 256.0}
    match = load_calibration(device).find(op, "dispatch")
    assert match is not None
    for ranks, members in ((8.0, 8.0), (32.0, 8.0)):
        columns = {**row, "ranks": ranks, "members": members}
        seconds = kernel_time(op, columns, device, match.fit.parameters)
        assert (np.diff(seconds) > 0).all()
        assert (seconds >= kernel_bound(op, columns, device)).all()


def asked(engine: str, hardware: str = "h100-sxm", batch: int = 1024, **options: object) -> Analysis:
    return analyze(Scenario("deepseek-v3", hardware, batch=batch, generate=2, engine=engine, **options))


def sources(found: Analysis) -> set[str]:
    """The kinds of kernels that run the all-to-alls of decode."""
    assert found.decode is not None
    kinds = set()
    for run in found.decode.passes:
        timing = found.decode.timed(run)
        for kernel in timing.kernels:
            if timing.placement.ops[kernel.parts[0]][0].is_all_to_all:
                assert kernel.shape is not None
                kinds.add(str(kernel.shape.texts.get("collective", kernel.shape.op)))
    return kinds


def test_engines_choose() -> None:
    assert sources(asked("sglang", ep=16)) == {"deepep_normal"}, "with the one for few tokens inside"
    assert sources(asked("sglang", ep=8)) == {"all_gather", "reduce_scatter"}
    assert sources(asked("vllm", ep=16)) == {"all_gather", "reduce_scatter"}
    assert sources(asked("sglang", "mi300x", ep=8, all_to_all="mori")) == {"deepep_normal"}
    assert sources(asked("vllm", ep=16, all_to_all="deepep_low_latency")) == {"deepep_low_latency"}
    assert sources(asked("sglang", "gb200", ep=4)) == {"all_gather", "reduce_scatter"}, "in a tray of NVL72"
    assert sources(asked("sglang", "gb200", ep=8)) == {"deepep_normal"}, "in two"
    assert sources(asked("tensorrt-llm@1.1", "gb200", ep=32)) == {"nvlink_two_sided"}
    assert sources(asked("tensorrt-llm@1.3", "gb200", ep=32)) == {"nvlink_one_sided"}
    assert sources(asked("tensorrt-llm@1.3", "gb200", ep=32, network="nvl8")) == {"all_gather", "reduce_scatter"}
    assert all(row.source for row in choices())


def test_deepep_takes_the_kernel_for_few_tokens_only_for_few() -> None:
    def longest(tokens: int) -> float:
        decode = asked("sglang", ep=32, batch=32 * tokens).decode
        assert decode is not None
        found = (one for op, one in zip(decode.ops, decode.expected_ops, strict=True) if op.op.is_all_to_all)
        return max(float(np.max(one.time.mid)) for one in found)

    assert longest(int(FEW)) > longest(int(FEW) + 16), "16 more tokens a rank cross the network once a node"


def test_an_exchange_of_another_name_is_refused() -> None:
    with pytest.raises(RooflineError, match="did you mean 'deepep'"):
        asked("vllm", ep=8, all_to_all="deepeep")


def test_experts_that_are_handed_all_tokens_sort_those_of_other_ranks() -> None:
    """DeepSeek-R1 on 8 H200: EP8 loses to TP8 in prefill (3.4 and 3.1 ms a layer; vllm-project/vllm, issue 28887)."""

    def prefill(**layout: int) -> float:
        found = analyze(Scenario("deepseek-r1", "h200-sxm", tp=8, prompt=4096, engine="vllm@0.11", **layout))
        return found.prefill.expected.mid

    assert 1.0 < prefill(ep=8) / prefill() < 1.2


def test_two_batch_overlap_gains_what_was_measured() -> None:
    """1.27 to 1.35 in prefill of DeepSeek-R1 on 32 H100 (lmsys.org/blog/2025-05-05-large-scale-ep)."""

    def prefill(*techniques: str) -> float:
        scenario = Scenario("deepseek-r1", "h100-sxm", ep=32, batch=256, prompt=2000, engine="sglang")
        return float(analyze(scenario.with_(techniques=techniques)).prefill.expected.mid)

    assert 1.25 < prefill() / prefill("two-batch-overlap") < 1.37


def test_sglang_sums_the_tokens_of_prompts_over_all_ranks() -> None:
    """Ranks have prompts of different lengths, whose tokens it all-reduces twice; a gather sends half as much."""
    asked = {"batch": 64, "prompt": 1024, "generate": 8, "dp": 8, "ep": 8}

    def exchanged(phase: str, engine: str = "sglang") -> float:
        found: Analysis = analyze(Scenario("deepseek-r1", "b200-sxm", engine=engine, **asked))
        ops = getattr(found, phase).ops
        pairs = zip(ops, getattr(found, phase).expected_ops, strict=True)
        return sum(float(each.time.mid) for op, each in pairs if op.name.endswith("_all_to_all"))

    assert exchanged("prefill") / exchanged("prefill", "vllm") == pytest.approx(2, rel=0.25)
    assert exchanged("decode") == pytest.approx(exchanged("decode", "vllm"), rel=0.05)
