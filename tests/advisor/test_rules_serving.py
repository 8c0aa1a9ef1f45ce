"""Rules of structures, kernels and serving: for each a scenario in which it applies and one in which it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec import Struct, field

from roofline.advisor import Advice, Goal, Limits, Objective, Quality, advise
from roofline.advisor.rules import Bottleneck, Caution, Finding, Hint, rules
from roofline.advisor.search.moves import Move, batch_move, engine_moves, parallel_moves, technique_move
from roofline.cli.scenario_options import parse_scenarios
from roofline.scenario.scenario import Scenario
from roofline.techniques import check_request
from tests.cases import sampled

Span = tuple[float, float]


class Scene(Struct, frozen=True):
    """A scenario, the moves that may be advised, and what the advice on it must say.

    `found` and `unfound` are rules with and without a bottleneck, `hinted` and `unhinted` with and without a hint,
    `cautious` and `carefree` with and without a caution; `gains` are the ranges of recommended moves' gains,
    `no_benefit` moves reported without benefit, `unadvised` those not recommended, `warned` words in cautions.
    """

    text: str
    moves: tuple[str, ...] = ()
    goal: Goal = field(default_factory=Goal)
    found: tuple[str, ...] = ()
    unfound: tuple[str, ...] = ()
    hinted: tuple[str, ...] = ()
    unhinted: tuple[str, ...] = ()
    cautious: tuple[str, ...] = ()
    carefree: tuple[str, ...] = ()
    gains: Mapping[str, Span] = field(default_factory=dict)
    no_benefit: tuple[str, ...] = ()
    unadvised: tuple[str, ...] = ()
    warned: Mapping[str, str] = field(default_factory=dict)


class Entry(Struct, frozen=True):
    """Rules of the research notes, by their numbers there, and the two scenes."""

    ids: tuple[str, ...]
    applies: Scene
    otherwise: Scene


RATE = Goal(Objective.THROUGHPUT)
RETRAIN = Goal(quality=Quality.RETRAIN)
LOSSY = Goal(quality=Quality.LOSSY)
MEMORY = Goal(Objective.MEMORY)
ALONE = "llama-2-13b --hw a6000 --prompt 128"
LONG = "llama-2-7b --hw h100-sxm --batch 32 --prompt 2048"
TINY = "qwen2-0.5b --hw h100-sxm --engine hf-eager"
SPREAD = "deepseek-v3 --hw h800-sxm --quant fp8_block --ep 32 --dp 32 --nodes 4"
NOT_FITTING = "llama-3.1-70b --hw a6000"
ENGINES = ("engine=vllm", "engine=sglang", "engine=tensorrt-llm")

CASES = (
    Entry(
        ("yuan R24", "miao D5"),
        Scene(
            "llama-3.1-70b --hw h100-sxm --tp 16 --nodes 2 --batch 64 --prompt 8192",
            ("tp=8 dp=2",),
            RATE,
            found=("kv-heads",),
            hinted=("kv-heads",),
            gains={"tp=8 dp=2": (1.2, 20)},
        ),
        Scene(
            "llama-3.1-70b --hw h100-sxm --tp 8 --dp 2 --nodes 2 --batch 64 --prompt 8192",
            ("tp=16",),
            RATE,
            unfound=("kv-heads",),
            unhinted=("kv-heads",),
            cautious=("kv-heads",),
            unadvised=("tp=16",),
        ),
    ),
    Entry(
        ("yuan R24", "miao D5"),  # one latent for all heads is one head to tensor parallelism
        Scene("deepseek-v2 --hw h200-sxm --tp 8 --batch 64 --prompt 8192", found=("kv-heads",)),
        Scene("llama-3.1-70b --hw h100-sxm --tp 4", unfound=("kv-heads",), carefree=("kv-heads",)),
    ),
    Entry(
        ("yuan R25", "zhou 16"),
        Scene(
            "mixtral-8x7b --hw h100-sxm --tp 4 --ep 4 --batch 64 --expert-skew 1",
            ("expert-choice",),
            Goal(Objective.THROUGHPUT, quality=Quality.RETRAIN),
            found=("moe-routing",),
            gains={"expert-choice": (1.05, 2)},
            warned={"expert-choice": "for latency use token-choice"},
        ),
        Scene(
            "mixtral-8x7b --hw h100-sxm --tp 2 --expert-skew 1",
            ("expert-choice",),
            Goal(Objective.TPOT, quality=Quality.RETRAIN),
            unfound=("moe-routing",),
            no_benefit=("expert-choice",),
        ),
    ),
    Entry(
        ("zhou 16",),  # what experts on different devices exchange
        Scene(
            f"{SPREAD} --batch 1024 --prompt 2048 --generate 64",
            ("two-batch-overlap",),
            RATE,
            found=("moe-routing",),
            hinted=("moe-routing",),
            gains={"two-batch-overlap": (1.1, 2)},
        ),
        Scene(
            f"{SPREAD} --batch 64 --prompt 128",
            ("two-batch-overlap",),
            no_benefit=("two-batch-overlap",),
        ),
    ),
    Entry(
        ("zhou 16",),  # fused experts
        Scene("mixtral-8x7b --hw h200-sxm --engine hf-eager", ENGINES, hinted=("moe-routing",)),
        Scene("mixtral-8x7b --hw h200-sxm", ENGINES, unhinted=("moe-routing",)),
    ),
    Entry(
        ("yuan R28",),
        Scene(
            ALONE,
            ("sheared-llama",),
            RETRAIN,
            hinted=("distillation",),
            cautious=("distillation",),
            gains={"sheared-llama": (1.5, 4)},
        ),
        Scene(
            ALONE,
            ("sheared-llama",),
            carefree=("distillation",),
            unhinted=("distillation",),
            unadvised=("sheared-llama",),
        ),
    ),
    Entry(
        ("yuan R29", "zhou 14"),
        Scene(
            LONG,
            ("gqa", "mqa"),
            RETRAIN,
            found=("gqa",),
            hinted=("gqa",),
            gains={"gqa": (1.2, 2.5), "mqa": (1.4, 3)},
        ),
        Scene(
            "llama-3.1-8b --hw h100-sxm --batch 32 --prompt 2048",
            ("gqa",),
            RETRAIN,
            unfound=("gqa",),
            no_benefit=("gqa",),
        ),
    ),
    Entry(
        ("zhou 27",),
        Scene(LONG, ("gqa", "fp8"), RETRAIN, gains={"gqa": (1.2, 2.5)}, warned={"gqa": "training from scratch"}),
        Scene(LONG, ("gqa", "fp8"), gains={"fp8": (1.05, 2)}, unadvised=("gqa",)),
    ),
    Entry(
        ("zhou 13",),
        Scene(ALONE, ("asvd", "awq"), hinted=("low-rank",), gains={"asvd": (1.02, 1.2)}, warned={"asvd": "fewer bits"}),
        Scene(LONG, ("asvd", "awq"), Goal(Objective.TPOT), unhinted=("low-rank",)),
    ),
    Entry(
        ("zhou 17",),
        Scene(
            "llama-2-13b --hw a6000 --prompt 3500 --generate 4",
            ("llmlingua", "skeleton-of-thought"),
            LOSSY,
            hinted=("input-compression",),
            gains={"llmlingua": (2, 10)},
        ),
        Scene(
            ALONE,
            ("llmlingua", "skeleton-of-thought"),
            LOSSY,
            gains={"skeleton-of-thought": (1.5, 5)},
            no_benefit=("llmlingua",),
        ),
    ),
    Entry(
        ("zhou 17",),
        Scene(ALONE, ("apar",), RETRAIN, hinted=("input-compression",), gains={"apar": (1.5, 5)}),
        Scene(
            "llama-3.1-70b --hw h100-sxm --tp 8 --batch 64 --prompt 8192 --generate 8",
            ("apar",),
            RETRAIN,
            no_benefit=("apar",),
        ),
    ),
    Entry(
        ("zhou 18",),
        Scene(ALONE, found=("dominant-operators",)),
        Scene(TINY, unfound=("dominant-operators",)),
    ),
    Entry(
        ("zhou 20", "miao D16"),
        Scene(ALONE, ("eagle",), found=("decode-gemv",), hinted=("decode-gemv",), gains={"eagle": (1.5, 4)}),
        Scene(f"{ALONE} --batch 64", ("eagle",), unfound=("decode-gemv",), unhinted=("decode-gemv",)),
    ),
    Entry(
        ("zhou 21", "miao D18"),
        Scene(
            TINY,
            ("whole-layer-fusion", "residual-norm-fusion"),
            hinted=("fusion", "launch-bound"),
            gains={"whole-layer-fusion": (1.1, 2), "residual-norm-fusion": (1.01, 1.6)},
        ),
        Scene(
            ALONE,
            ("whole-layer-fusion", "residual-norm-fusion"),
            unhinted=("fusion",),
            unfound=("fusion", "launch-bound"),
            no_benefit=("whole-layer-fusion", "residual-norm-fusion"),
        ),
    ),
    Entry(
        ("zhou 21",),  # launches
        Scene(TINY, ENGINES, found=("launch-bound",), hinted=("launch-bound",), gains={"engine=vllm": (2, 20)}),
        Scene(ALONE, ("cuda-graphs",), unfound=("launch-bound",), no_benefit=("cuda-graphs",)),
    ),
    Entry(
        ("zhou 23", "miao D6"),
        Scene(
            NOT_FITTING,
            ("flexgen", "awq", "pp=4"),
            Goal(limits=Limits(gpus=8)),
            found=("offloading",),
            hinted=("offloading",),
            gains={"awq": (1.5, 4), "flexgen": (0.01, 0.2), "pp=4": (0.5, 2)},
        ),
        Scene(ALONE, ("flexgen",), unfound=("offloading",), unhinted=("offloading",), no_benefit=("flexgen",)),
    ),
    Entry(
        ("zhou 31", "miao D9"),
        Scene(
            LONG,
            ("eagle-2", "fp8-kv"),
            cautious=("combinations",),
            gains={"eagle-2": (1.05, 2), "fp8-kv": (1.05, 2)},
            warned={"fp8-kv": "counteract"},
        ),
        Scene(LONG, ("fp8", "fp8-kv"), carefree=("combinations",), gains={"fp8": (1.05, 2), "fp8-kv": (1.05, 2)}),
    ),
    Entry(
        ("zhou 33",),
        Scene(
            "llama-3.1-8b --hw h100-sxm --with contiguous-kv --batch 16 --prompt 2048",
            ("s3",),
            MEMORY,
            cautious=("length-prediction",),
            gains={"s3": (5, 30)},
            warned={"s3": "a prediction twice too long"},
        ),
        Scene("llama-3.1-8b --hw h100-sxm --batch 16 --prompt 2048", ("s3",), MEMORY, carefree=("length-prediction",)),
    ),
    Entry(
        ("zhou 34",),
        Scene(
            "llama-3.1-8b --hw h100-sxm --batch 16 --prompt 8192",
            ("radix-attention", "llmlingua"),
            LOSSY,
            cautious=("security",),
            warned={"radix-attention": "reveals the prompts of other users", "llmlingua": "repeat tests of refusals"},
        ),
        Scene(ALONE, ("awq", "eagle"), carefree=("security",)),
    ),
    Entry(
        ("zhou 34",),  # a prefix that the request itself finds cached
        Scene("llama-3.1-8b --hw h100-sxm --batch 16 --prompt 512 --prefix 4096", cautious=("security",)),
        Scene("llama-3.1-8b --hw h100-sxm --batch 16 --prompt 4608", carefree=("security",)),
    ),
    Entry(
        ("zhou 29", "miao D24"),
        Scene(
            "llama-3.1-8b --hw m2 --engine llama.cpp",
            ("awq",),
            found=("edge-devices",),
            hinted=("edge-devices",),
            gains={"awq": (1.5, 4)},
        ),
        Scene("llama-3.1-8b --hw mi300a", ("awq",), unfound=("edge-devices",), unhinted=("edge-devices",)),
    ),
    Entry(
        ("zhou 30", "miao D23"),
        Scene(ALONE, ENGINES[1:], cautious=("engine-choice",), unhinted=("engine-choice",)),
        Scene(
            TINY,
            ("engine=vllm",),
            carefree=("engine-choice",),
            hinted=("engine-choice",),
            gains={"engine=vllm": (2, 20)},
        ),
    ),
    Entry(
        ("miao D3",),
        Scene(ALONE, cautious=("conflicting-objectives",)),
        Scene("llama-2-7b --hw a100-sxm-80gb --prompt 3500 --batch 32", carefree=("conflicting-objectives",)),
    ),
    Entry(
        ("miao D21",),
        Scene(ALONE, ("eagle-2",), gains={"eagle-2": (1.5, 4)}, warned={"eagle-2": "some loads only"}),
        Scene(f"{ALONE} --batch 96", ("eagle-2",), unadvised=("eagle-2",)),
    ),
    Entry(
        ("miao D8",),
        Scene(
            ALONE,
            ("paged-attention", "s3"),
            RATE,
            unhinted=("kv-allocation",),
            unfound=("kv-allocation",),
            no_benefit=("paged-attention", "s3"),
        ),
        Scene(
            f"{ALONE} --with contiguous-kv --batch 16",
            ("paged-attention",),
            RATE,
            found=("kv-allocation",),
            hinted=("kv-allocation",),
            gains={"paged-attention": (0.99, 1.01)},  # no faster, but it fits
        ),
    ),
    Entry(
        ("miao D14",),
        Scene(
            "llama-3.1-8b --hw h100-sxm --with padded-batching:padding=2 --batch 16 --prompt 2048 --generate 16",
            ("packed-batching", "bucketing"),
            found=("padding",),
            hinted=("padding",),
            gains={"packed-batching": (1.4, 2.2), "bucketing": (1.3, 2)},
            warned={"bucketing": "are not simulated"},
        ),
        Scene(
            "llama-3.1-8b --hw h100-sxm --batch 16 --prompt 2048 --generate 16",
            ("packed-batching", "bucketing"),
            unfound=("padding",),
            no_benefit=("packed-batching", "bucketing"),
        ),
    ),
    Entry(
        ("miao D25",),
        Scene(
            "llama-3.1-8b --hw h100-sxm --with beam-search --batch 16 --prompt 2048",
            ("fp8-kv",),
            found=("sampling",),
            hinted=("sampling",),
            gains={"fp8-kv": (1.03, 1.5)},
        ),
        Scene("llama-2-7b --hw h100-sxm --batch 16 --prompt 2048", unfound=("sampling",), unhinted=("sampling",)),
    ),
    Entry(
        ("miao D25",),  # the vocabulary
        Scene(
            "qwen2-0.5b --hw l4",
            ("vocabulary-shrinking",),
            RETRAIN,
            found=("sampling",),
            gains={"vocabulary-shrinking": (1.01, 1.4)},
        ),
        Scene("llama-2-70b --hw h100-sxm --tp 4", unfound=("sampling",)),
    ),
    Entry(
        ("miao D22",),
        Scene(
            "llama-3.1-8b --hw h100-sxm",
            ("skeleton-of-thought",),
            LOSSY,
            cautious=("measuring",),
            warned={"skeleton-of-thought": "equal quality and output length"},
        ),
        Scene(ALONE, ("awq",), carefree=("measuring",), gains={"awq": (1.5, 4)}),
    ),
    Entry(
        ("yuan R15",),
        Scene(
            ALONE,
            ("batch=64",),
            RATE,
            found=("unused-memory",),
            hinted=("unused-memory",),
            gains={"batch=64": (10, 64)},
        ),
        Scene(ALONE, (), Goal(Objective.TPOT), unfound=("unused-memory",), unhinted=("unused-memory",)),
    ),
    Entry(
        ("zhou 15",),
        Scene(
            LONG,
            ("linear-attention",),
            RETRAIN,
            hinted=("linear-attention",),
            gains={"linear-attention": (1.2, 3)},
            warned={"linear-attention": "still being studied"},
        ),
        Scene("llama-3.1-8b --hw h100-sxm", ("linear-attention",), RETRAIN, unhinted=("linear-attention",)),
    ),
    Entry(
        ("zhou 15",),  # a model that keeps a state already
        Scene("mamba-2.8b --hw a6000 --prompt 8192", found=("linear-attention",)),
        Scene("llama-2-7b --hw a6000", unfound=("linear-attention",)),
    ),
)

COVERED = frozenset(number for entry in CASES for number in entry.ids)
"""The rules of the research notes that this table holds."""


def offered(request: Scenario, names: Sequence[str]) -> list[Move]:
    """The moves of these names."""
    engines = {move.name: move for move in engine_moves(request)}
    found = []
    for name in names:
        degrees = dict(part.split("=") for part in name.split()) if name[:3] in ("tp=", "pp=", "dp=") else {}
        if name.startswith("engine="):
            found += [engines[name]] if name in engines else []
        elif name.startswith("batch="):
            found.append(batch_move(int(name.removeprefix("batch="))))
        elif degrees:
            count = int(degrees.get("tp", 1)) * int(degrees.get("pp", 1)) * int(degrees.get("dp", 1))
            found += [move for move in parallel_moves(request, [count]) if move.name == name]
        else:
            found.append(technique_move(check_request(name), name))
    return found


def findings(advice: Advice, rule: str, kind: type[Finding]) -> list[Finding]:
    """The findings of a rule of one kind."""
    return [entry for entry in rules()[rule].look(advice.case) if isinstance(entry, kind)]


@pytest.mark.parametrize(
    "scene",
    sampled(
        [
            pytest.param(scene, id=f"{'+'.join(entry.ids)} {word}")
            for entry in CASES
            for word, scene in (("applies", entry.applies), ("does not", entry.otherwise))
        ],
        16,
    ),
)
def test_advice_agrees_with_the_surveys(scene: Scene) -> None:
    (request,) = parse_scenarios([scene.text])
    advice = advise(request, scene.goal, moves=offered(request, scene.moves), top=0)
    limiting = {rule for rule, _ in advice.bottlenecks}
    assert set(scene.found) <= limiting
    assert not set(scene.unfound) & limiting
    for rule in scene.hinted:
        assert findings(advice, rule, Hint), f"{rule} has no hint"
    for rule in scene.unhinted:
        assert not findings(advice, rule, Hint), f"{rule} has a hint"
    for rule in scene.cautious:
        assert findings(advice, rule, Caution), f"{rule} does not warn"
    for rule in scene.carefree:
        assert not findings(advice, rule, Caution), f"{rule} warns"
    for name, (low, high) in scene.gains.items():
        recommended = advice.recommendation(name)
        assert recommended is not None, f"{name} is not recommended"
        assert low <= recommended.better.mid <= high
    for name in scene.unadvised:
        assert advice.recommendation(name) is None
    assert set(scene.no_benefit) <= {entry.move for entry in advice.no_benefit}
    for name, words in scene.warned.items():
        recommended = advice.recommendation(name)
        assert recommended is not None, f"{name} is not recommended"
        assert any(words in text for text in recommended.cautions)


def test_the_table_names_rules_by_their_sources() -> None:
    known = {source for rule in rules().values() for source in rule.sources}
    assert known >= COVERED


def test_hints_of_these_rules_reach_recommendations() -> None:
    """A recommendation lists the rules that hint at it, and a move without benefit names its rule."""
    (request,) = parse_scenarios([ALONE])
    advice = advise(request, RETRAIN, moves=offered(request, ("asvd", "awq", "flexgen")), top=0)
    recommended = advice.recommendation("asvd")
    assert recommended is not None
    assert "low-rank" in {rule for rule, _ in recommended.reasons}
    assert [(entry.rule, entry.gain is not None and entry.gain < 0.2) for entry in advice.no_benefit] == [
        ("offloading", True)
    ]


WHERE = (
    ALONE,
    "bert-base --hw a100-sxm-80gb",
    "flan-t5-xxl --hw a100-sxm-80gb",
    "mamba-2.8b --hw a6000",
    "deepseek-v3 --hw h200-sxm --tp 8 --ep 8 --quant fp8 --batch 32",
    "llava-1.5-7b --hw l4 --images 1 --generate 1",
    "llama-3.1-8b --hw m2 --engine llama.cpp --quant w4",
    "mixtral-8x7b --hw h100-sxm --pp 2 --micro-batches 4 --batch 8 --with disaggregation",
)


@pytest.mark.parametrize("text", sampled(WHERE, 3))
def test_findings_of_every_rule_are_finite(text: str) -> None:
    (request,) = parse_scenarios([text])
    advice = advise(
        request, Goal(quality=Quality.RETRAIN), moves=offered(request, ("awq", "fp8-kv", "llmlingua")), top=0
    )
    for rule in rules().values():
        for entry in rule.look(advice.case):
            assert not {"nan", "inf"} & set(entry.text.split())
            if isinstance(entry, Bottleneck):
                assert -1e-9 <= entry.share <= 1 + 1e-9, rule.name
