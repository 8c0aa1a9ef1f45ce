"""Rules of speed, half of the notes' lists: for each a case in which it applies, one in which it does not.

A row names the rules it is about by their number in the notes, a scenario as the command line has it, the goal, the
moves that may be advised, and what the advice has to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import pytest
from msgspec import Struct

from roofline.advisor.advice import Advice, advise, all_moves
from roofline.advisor.rules import Bottleneck, Caution, Hint, rules
from roofline.advisor.search.goal import Goal, Limits, Objective, Quality
from roofline.advisor.search.moves import Move, batch_move, hardware_move, technique_move
from roofline.cli.scenario_options import parse_scenarios
from roofline.scenario.scenario import Scenario
from roofline.specs.hardware import load_hardware
from roofline.techniques import check_request
from tests.cases import sampled

TTFT, TPOT, TOTAL, MEMORY = Objective.TTFT, Objective.TPOT, Objective.TOTAL, Objective.MEMORY
Expect = Callable[[Advice], None]


def found(rule: str, *words: str) -> Expect:
    """A finding of the rule, which has these words."""
    return lambda advice: _holds(True, _texts(advice, rule, Bottleneck), words)


def not_found(rule: str, *words: str) -> Expect:
    """No finding of the rule that has these words."""
    return lambda advice: _holds(False, _texts(advice, rule, Bottleneck), words)


def warned(rule: str, *words: str, move: str | None = None) -> Expect:
    """A caution of the rule about the case, or about a move."""
    return lambda advice: _holds(True, _texts(advice, rule, Caution, move), words)


def not_warned(rule: str, *words: str, move: str | None = None) -> Expect:
    """No such caution."""
    return lambda advice: _holds(False, _texts(advice, rule, Caution, move), words)


def hinted(rule: str, move: str, *words: str) -> Expect:
    """A move that the rule points at."""
    return lambda advice: _holds(True, _texts(advice, rule, Hint, move), words)


def not_hinted(rule: str, move: str, *words: str) -> Expect:
    """A move that the rule does not point at."""
    return lambda advice: _holds(False, _texts(advice, rule, Hint, move), words)


def _texts(advice: Advice, rule: str, kind: type, move: str | None = None) -> list[str]:
    """What a rule says of a case; with a move, what it says of that move."""
    entries = [entry for entry in rules()[rule].look(advice.case) if isinstance(entry, kind)]
    if move is not None:
        known = advice.case.moves[move]
        entries = [entry for entry in entries if {move, known.slot, move.partition(":")[0]} & set(entry.moves)]
    return [entry.text for entry in entries]


def _holds(expected: bool, texts: list[str], words: tuple[str, ...]) -> None:
    assert any(all(word in text for word in words) for text in texts) is expected, (words, texts)


def gains(move: str, low: float, high: float, rule: str | None = None) -> Expect:
    """A recommendation whose simulated gain is between, which the rule is a reason for."""

    def check(advice: Advice) -> None:
        recommended = advice.recommendation(move)
        assert recommended is not None
        assert low <= recommended.better.mid <= high
        assert rule is None or rule in {name for name, _ in recommended.reasons}

    return check


def no_benefit(move: str, rule: str, *words: str) -> Expect:
    """A move that the rule reports without benefit, and that is not recommended."""

    def check(advice: Advice) -> None:
        assert advice.recommendation(move) is None
        entries = [entry for entry in advice.no_benefit if entry.move == move]
        assert [entry.rule for entry in entries] == [rule]
        assert all(word in entries[0].reason for word in words)
        assert entries[0].gain is None or entries[0].gain <= 1.01

    return check


def not_no_benefit(move: str) -> Expect:
    """A move that no rule reports without benefit."""

    def check(advice: Advice) -> None:
        assert move not in {entry.move for entry in advice.no_benefit}

    return check


def first(move: str) -> Expect:
    """The move that is recommended first."""

    def check(advice: Advice) -> None:
        assert advice.recommendations[0].move.name == move

    return check


def ahead(move: str, other: str) -> Expect:
    """A move that gains more than another, which may gain nothing."""

    def check(advice: Advice) -> None:
        assert advice.case.gain(move) > 1.01 * advice.case.gain(other)

    return check


def not_recommended(move: str) -> Expect:
    """A move that is not recommended."""

    def check(advice: Advice) -> None:
        assert advice.recommendation(move) is None

    return check


class Case(Struct, frozen=True):
    """One scenario: `applies` says whether the rules do."""

    rules: tuple[str, ...]
    applies: bool
    scenario: str
    goal: Goal
    moves: tuple[str, ...]
    expect: tuple[Expect, ...]

    @property
    def name(self) -> str:
        """For the list of tests."""
        return f"{', '.join(self.rules)} {'applies' if self.applies else 'does not'}: {self.scenario}"


def case(ids: str, applies: bool, scenario: str, goal: Goal, moves: str, *expect: Expect) -> Case:
    return Case(tuple(ids.split(", ")), applies, scenario, goal, tuple(moves.split(", ")) if moves else (), expect)


def bound(objective: Objective, quality: Quality = Quality.CALIBRATED) -> Goal:
    return Goal(objective, at="bound", quality=quality)


def devices(objective: Objective, gpus: int) -> Goal:
    return Goal(objective, Limits(gpus=gpus))


LOSSY, RETRAIN = Quality.LOSSY, Quality.RETRAIN
THIRTEEN = "llama-2-13b --hw a6000"
EIGHT = "llama-3.1-8b --hw h100-sxm"
AMPERE = "llama-3.1-8b --hw a100-sxm-80gb"

CASES = (
    # --- memory-bound decode ---
    case(
        "yuan R1, yuan R15, zhou 1, miao D2, yuan R4, yuan R26, zhou 3",
        True,
        f"{THIRTEEN} --prompt 128",
        bound(TPOT),
        "awq, fp8-kv, batch=8",
        found("memory-bound-decode", "for 99% of its time"),
        hinted("weight-only", "awq", "one token uses each weight", "3.85 times"),
        hinted("memory-bound-decode", "awq"),
        gains("awq", 3.5, 3.8, "weight-only"),
    ),
    case(
        "yuan R1, yuan R15, zhou 1, miao D2, yuan R4, yuan R26, zhou 3",
        False,
        f"{THIRTEEN} --prompt 128 --batch 512",
        bound(TPOT),
        "awq",
        not_found("memory-bound-decode"),
        not_hinted("memory-bound-decode", "awq"),
        no_benefit("awq", "weight-only", "beyond the crossover at 202"),
    ),
    # --- compute-bound prefill ---
    case(
        "yuan R2, zhou 2",
        True,
        f"{THIRTEEN} --prompt 2048",
        bound(TTFT),
        "awq, smoothquant",
        found("compute-bound-prefill", "prefill is compute-bound"),
        gains("smoothquant", 1.7, 2.0, "compute-bound-prefill"),
        no_benefit("awq", "compute-bound-prefill", "against a ridge point of 202"),
    ),
    case(
        "yuan R2, zhou 2",
        False,
        f"{THIRTEEN} --prompt 32",
        bound(TTFT),
        "awq, smoothquant",
        not_found("compute-bound-prefill"),
        gains("awq", 3.0, 3.9),
        not_hinted("compute-bound-prefill", "smoothquant"),
    ),
    case(
        "zhou 4",
        True,
        "mixtral-8x7b --hw h200-sxm --batch 16",
        Goal(TPOT),
        "awq",
        gains("awq", 1.5, 3.0),
        warned("compute-bound-prefill", "prefill gets slower", move="awq"),
    ),
    case(
        "zhou 4",
        False,
        f"{THIRTEEN} --prompt 32",
        Goal(TPOT),
        "awq",
        not_warned("compute-bound-prefill", "prefill gets slower", move="awq"),
    ),
    # --- weight-only: less with batch, with length and for small models ---
    case(
        "zhou 5",
        True,
        f"{THIRTEEN} --prompt 2048 --batch 12",
        bound(TOTAL),
        "awq",
        hinted("weight-only", "awq", "weights are 56%"),
        gains("awq", 1.01, 1.6),
    ),
    case("zhou 5", False, f"{THIRTEEN} --prompt 128", bound(TOTAL), "awq", gains("awq", 3.2, 3.7)),
    # Marlin's single rows of 8192 x 8192 on H100: 2.17 times as fast as FP16 (inclusionAI/humming, pull request 2)
    case("zhou 6", True, "llama-30b --hw h100-sxm --prompt 128", Goal(TPOT), "awq", gains("awq", 1.9, 2.3)),
    case("zhou 6", False, "llama-3.2-1b --hw h100-sxm --prompt 128", Goal(TPOT), "awq", gains("awq", 1.01, 1.5)),
    # --- fewer bits ---
    case(
        "yuan R5",
        True,
        f"{THIRTEEN} --prompt 128 --batch 64 --with awq",
        bound(TPOT, LOSSY),
        "squeezellm:bits=2, billm",
        no_benefit("squeezellm:bits=2", "weight-bits-saturation", "are compute-bound already"),
        no_benefit("billm", "weight-bits-saturation"),
    ),
    case(
        "yuan R5",
        False,
        f"{THIRTEEN} --prompt 128 --with awq",
        bound(TPOT, LOSSY),
        "quip, billm",
        gains("quip", 1.5, 2.1, "weight-only"),
        not_warned("weight-bits-saturation", move="quip"),
    ),
    # --- the roof of low precision ---
    case(
        "yuan R6",
        True,
        f"{THIRTEEN} --prompt 2048 --quant W8 --generate 2",
        bound(TTFT),
        "",
        found("low-precision-peak", "8 bits meet inputs of 16 bits", "in fp16"),
    ),
    case(
        "yuan R6",
        False,
        f"{THIRTEEN} --prompt 2048 --quant W8A8 --generate 2",
        bound(TTFT),
        "",
        not_found("low-precision-peak"),
    ),
    case(
        "yuan R27",
        True,
        f"{THIRTEEN} --prompt 2048 --engine tensorrt-llm",  # vLLM's kernel there takes weights alone in FP8
        bound(TTFT),
        "fp8",
        warned("low-precision-peak", "GEMMs run in fp16", move="fp8"),
        not_recommended("fp8"),
    ),
    case(
        "yuan R27",
        False,
        "llama-2-13b --hw h100-sxm --prompt 2048",
        bound(TTFT),
        "fp8",
        gains("fp8", 1.6, 2.0, "compute-bound-prefill"),
        not_warned("low-precision-peak", move="fp8"),
    ),
    case(
        "zhou 9",
        True,
        f"{THIRTEEN} --prompt 128",
        Goal(TPOT),
        "squeezellm, awq",
        warned("low-precision-peak", "codebook", move="squeezellm"),
    ),
    case(
        "zhou 9",
        False,
        f"{THIRTEEN} --prompt 128",
        Goal(TPOT),
        "squeezellm, awq",
        not_warned("low-precision-peak", "codebook", move="awq"),
    ),
    case(
        "miao D10",
        True,
        f"{EIGHT} --prompt 32768 --batch 64 --tp 8 --with chunked-prefill",
        Goal(TPOT),
        "fp8",
        no_benefit("fp8", "low-precision-peak", "converted in every pass"),
    ),
    case("miao D10", False, f"{EIGHT} --prompt 128", Goal(TPOT), "fp8", gains("fp8", 1.2, 2.0), not_no_benefit("fp8")),
    # --- FP8 beats weights alone once decode is compute-bound ---
    case(
        "zhou 2, yuan R4",
        True,
        f"{EIGHT} --prompt 128 --batch 512",
        Goal(TPOT),
        "awq, fp8",
        ahead("fp8", "awq"),
        first("fp8"),
    ),
    case("zhou 2, yuan R4", False, f"{EIGHT} --prompt 128", Goal(TPOT), "awq, fp8", ahead("awq", "fp8"), first("awq")),
    # --- KV cache growth ---
    case(
        "yuan R7, zhou 10",
        True,
        f"{EIGHT} --prompt 32768 --batch 64 --tp 8 --with chunked-prefill",
        Goal(TPOT),
        "awq, fp8, fp8-kv",
        found("kv-cache-growth", "94% of the bytes of a decode step"),
        first("fp8-kv"),
        gains("fp8-kv", 1.2, 2.0, "kv-cache-growth"),
    ),
    case(
        "yuan R7, zhou 10",
        False,
        f"{EIGHT} --prompt 128",
        Goal(TPOT),
        "awq, fp8-kv",
        not_found("kv-cache-growth"),
        no_benefit("fp8-kv", "kv-cache-growth", "only"),
        first("awq"),
    ),
    case(
        "yuan R18",
        True,
        "llama-2-13b --hw h100-sxm --prompt 1024 --batch 80",
        Goal(Objective.THROUGHPUT, vary_batch=False),
        "fp8-kv, fp8",
        found("kv-cache-growth", "sequences of this length fit, 80 are requested"),
        first("fp8-kv"),
        hinted("kv-cache-growth", "fp8-kv"),
    ),
    case(
        "yuan R18",
        False,
        "llama-2-13b --hw h100-sxm --prompt 1024 --batch 2",
        Goal(TOTAL),
        "fp8-kv, fp8",
        not_found("kv-cache-growth", "sequences of this length fit"),
        first("fp8"),
    ),
    # --- phases ---
    case(
        "yuan R3, miao D1",
        True,
        f"{THIRTEEN} --prompt 128 --generate 1024",
        Goal(TOTAL),
        "",
        found("dominant-phase", "decode takes"),
        not_found("dominant-phase", "prefill takes"),
    ),
    case(
        "yuan R3, miao D1",
        True,
        f"{THIRTEEN} --prompt 4000 --generate 2 --batch 4",
        Goal(TOTAL),
        "",
        found("dominant-phase", "prefill takes"),
    ),
    case("yuan R3, miao D1", False, "bert-base --hw a6000", Goal(TTFT), "", not_found("dominant-phase")),
    # --- hardware ---
    case(
        "yuan R8, miao D26",
        True,
        f"{THIRTEEN} --prompt 128 --generate 512",
        Goal(TOTAL),
        "hw=rtx-4090, hw=a100-sxm-80gb",
        found("hardware-fit", "by bandwidth"),
        gains("hw=a100-sxm-80gb", 1.8, 2.6, "hardware-fit"),
        hinted("hardware-fit", "hw=a100-sxm-80gb", "memory bandwidth"),
        not_recommended("hw=rtx-4090"),
    ),
    case(
        "yuan R8, miao D26",
        True,
        f"{THIRTEEN} --prompt 4000 --generate 2",
        Goal(TOTAL),
        "hw=l40s",
        hinted("hardware-fit", "hw=l40s", "is compute-bound"),
        gains("hw=l40s", 1.3, 2.2, "hardware-fit"),
    ),
    case("yuan R8", True, "llama-3.1-70b --hw a6000", Goal(TOTAL), "", found("hardware-fit", "does not fit")),
    case("yuan R8", True, "llama-3.1-8b --hw v100-sxm2-32gb", Goal(TOTAL), "", warned("hardware-fit", "bf16", "fp16")),
    case(
        "yuan R8, miao D26",
        False,
        f"{THIRTEEN} --prompt 2048 --batch 4 --generate 48",
        Goal(TOTAL),
        "hw=l40s",
        not_found("hardware-fit"),
        not_warned("hardware-fit"),
        not_hinted("hardware-fit", "hw=l40s"),
    ),
    # --- bits and quality ---
    case(
        "yuan R9",
        True,
        f"{THIRTEEN} --prompt 128",
        bound(TPOT, LOSSY),
        "awq, quip",
        hinted("weight-bits-quality", "awq", "near four"),
        warned("weight-bits-quality", "methods designed for that", move="quip"),
    ),
    case(
        "yuan R9, zhou 7",
        False,
        f"{THIRTEEN} --prompt 128",
        bound(TPOT, LOSSY),
        "smoothquant, tsld, fp8-kv",
        not_hinted("weight-bits-quality", "smoothquant", "near four"),
        not_warned("weight-bits-quality", "methods designed for that", move="smoothquant"),
        not_hinted("weight-bits-quality", "tsld", "post-training"),
    ),
    case(
        "zhou 7",
        True,
        f"{THIRTEEN} --prompt 128",
        Goal(TPOT),
        "smoothquant",
        hinted("weight-bits-quality", "smoothquant", "post-training"),
        gains("smoothquant", 1.5, math.inf, "weight-bits-quality"),
    ),
    case(
        "zhou 8",
        True,
        f"{AMPERE} --prompt 32768",
        Goal(TPOT),
        "awq",
        warned("weight-bits-quality", "multi-step", move="awq"),
        warned("weight-bits-quality", "contexts of 32896 tokens", move="awq"),
    ),
    case(
        "zhou 8",
        False,
        f"{AMPERE} --prompt 128",
        Goal(TPOT),
        "awq, fp8",
        not_warned("weight-bits-quality", "contexts of", move="awq"),
        not_warned("weight-bits-quality", "multi-step", move="fp8"),
    ),
    # --- sparsity ---
    case(
        "yuan R10, zhou 11, miao D11",
        True,
        f"{THIRTEEN} --prompt 128",
        Goal(TPOT, quality=RETRAIN),
        "wanda, n-m-sparsity, llm-pruner",
        no_benefit("wanda", "sparsity", "dense kernels do not skip them"),
        gains("n-m-sparsity", 1.4, 2.0, "sparsity"),
        gains("llm-pruner", 1.05, 1.6, "sparsity"),
        warned("sparsity", "lose quality", move="n-m-sparsity"),
    ),
    case(
        "yuan R10, zhou 11, miao D11",
        False,
        "llama-2-13b --hw v100-sxm2-32gb --prompt 128",
        Goal(TPOT),
        "n-m-sparsity, flash-llm",
        not_recommended("n-m-sparsity"),
        not_hinted("sparsity", "n-m-sparsity"),
        not_no_benefit("flash-llm"),
    ),
    # --- lossless first ---
    case(
        "yuan R11, zhou 26, miao D13",
        True,
        f"{THIRTEEN} --prompt 128",
        Goal(TPOT, quality=RETRAIN),
        "smoothquant, eagle, calm",
        gains("eagle", 2.0, 3.4, "lossless-first"),
        warned("lossless-first", "eagle gains at least as much", move="smoothquant"),
        warned("lossless-first", "eagle gains at least as much", move="calm"),
    ),
    case(
        "yuan R11, zhou 26, miao D13",
        False,
        f"{EIGHT} --prompt 128 --batch 512",
        Goal(TPOT),
        "fp8, eagle",
        not_hinted("lossless-first", "eagle"),
        not_warned("lossless-first", move="fp8"),
        first("fp8"),
    ),
    # --- speculative decoding ---
    case(
        "yuan R12, zhou 22",
        True,
        f"{THIRTEEN} --prompt 128",
        Goal(TPOT),
        "eagle, speculative-decoding:draft=llama-160m",
        gains("eagle", 2.0, 2.66, "speculative-decoding"),
        warned("speculative-decoding", "a step yields 2.67 tokens", move="eagle"),  # chain of 3 at 0.77, 0.69 and 0.69
        hinted("speculative-decoding", "speculative-decoding:draft=llama-160m", "5 tokens per sequence make 5"),
    ),
    case(
        "yuan R12, zhou 22",
        False,
        f"{EIGHT} --prompt 128 --batch 128",
        Goal(TPOT),
        "eagle-2, speculative-decoding:draft=llama-160m",
        no_benefit("eagle-2", "speculative-decoding", "beyond the crossover at 295"),
        no_benefit("speculative-decoding:draft=llama-160m", "speculative-decoding", "640 that share each weight"),
        not_warned("speculative-decoding", move="eagle-2"),
    ),
    # --- early exit ---
    case(
        "yuan R13, zhou 28",
        True,
        f"{THIRTEEN} --prompt 128 --batch 16",
        Goal(TPOT, quality=RETRAIN),
        "calm, skipdecode",
        warned("early-exit", "all 16 sequences have exited", move="calm"),
        hinted("early-exit", "skipdecode", "exit at one layer"),
    ),
    case(
        "yuan R13, zhou 28",
        False,
        f"{THIRTEEN} --prompt 128",
        Goal(TPOT, quality=RETRAIN),
        "calm, awq",
        not_warned("early-exit", "sequences have exited", move="calm"),
        not_warned("early-exit", move="awq"),
    ),
    # --- experts ---
    case(
        "yuan R14, miao D20",
        True,
        "mixtral-8x7b --hw h200-sxm --batch 16",
        Goal(TPOT),
        "",
        found("moe-capacity", "28% of the weights", "in memory"),
        warned("moe-capacity", "16 sequences activate 99% of the experts"),
    ),
    case("miao D20", False, "mixtral-8x7b --hw h200-sxm", Goal(TPOT), "", not_warned("moe-capacity")),
    case(
        "yuan R14, miao D20",
        False,
        f"{EIGHT} --batch 16",
        Goal(TPOT),
        "",
        not_found("moe-capacity"),
        not_warned("moe-capacity"),
    ),
    # --- batching ---
    case(
        "yuan R16, miao D15, zhou 24",
        True,
        "llama-2-13b --hw a100-sxm-80gb --batch 16 --with static-batching",
        Goal(Objective.THROUGHPUT, vary_batch=False),
        "continuous-batching",
        found("continuous-batching", "50% of the tokens"),
        gains("continuous-batching", 1.99, 2.01, "continuous-batching"),
    ),
    case(
        "yuan R16, miao D15, zhou 24",
        False,
        "llama-2-13b --hw a100-sxm-80gb",
        Goal(TPOT),
        "continuous-batching",
        not_found("continuous-batching"),
        no_benefit("continuous-batching", "continuous-batching", "a single sequence"),
    ),
    # --- memory for the cache ---
    case(
        "yuan R17, miao D7, zhou 25",
        True,
        "llama-2-13b --hw a100-sxm-80gb --batch 8 --prompt 256 --with contiguous-kv",
        Goal(MEMORY),
        "paged-attention",
        found("paged-cache", "91% of the memory for KV cache", "4096 tokens"),
        gains("paged-attention", 1.7, 2.0, "paged-cache"),
        warned("paged-cache", "scattered", move="paged-attention"),
    ),
    case(
        "yuan R17, miao D7, zhou 25",
        False,
        "llama-2-13b --hw a100-sxm-80gb --batch 8 --prompt 256",
        Goal(MEMORY),
        "paged-attention",
        not_found("paged-cache"),
        not_recommended("paged-attention"),
        not_warned("paged-cache", move="paged-attention"),
    ),
    # --- chunks ---
    case(
        "yuan R19",
        True,
        "llama-2-13b --hw a100-sxm-80gb --batch 8 --prompt 4000",
        Goal(TTFT),
        "chunked-prefill",
        found("chunked-prefill", "13 decode steps"),
        warned("chunked-prefill", "takes 1.04 times as long", move="chunked-prefill"),
        not_recommended("chunked-prefill"),
    ),
    case(
        "yuan R19",
        False,
        "llama-2-13b --hw a100-sxm-80gb --batch 8 --prompt 128",
        Goal(TTFT),
        "chunked-prefill",
        not_found("chunked-prefill"),
    ),
    # --- prefixes ---
    case(
        "yuan R20, zhou 32",
        True,
        f"{AMPERE} --batch 8 --prompt 4000 --generate 16",
        Goal(TOTAL),
        "radix-attention",
        gains("radix-attention", 1.4, 2.0, "shared-prefix"),
        warned("shared-prefix", "share 50%", move="radix-attention"),
    ),
    case(
        "yuan R20, zhou 32",
        False,
        f"{AMPERE} --prompt 128 --generate 512",
        Goal(TOTAL),
        "radix-attention",
        no_benefit("radix-attention", "shared-prefix", "little to share"),
    ),
    # --- attention kernels ---
    case(
        "yuan R21, miao D19",
        True,
        f"{AMPERE} --prompt 8192 --generate 16 --no-flash",
        Goal(TTFT),
        "flash-attention",
        found("flash-attention", "of the bytes of prefill"),
        gains("flash-attention", 1.3, 2.0, "flash-attention"),
    ),
    case(
        "yuan R21, miao D19",
        False,
        f"{AMPERE} --prompt 128 --generate 16 --no-flash",
        Goal(TTFT),
        "flash-attention",
        not_found("flash-attention"),
        not_recommended("flash-attention"),
    ),
    case(
        "yuan R21",
        False,
        f"{AMPERE} --prompt 8192 --generate 16",
        Goal(TTFT),
        "flash-attention",
        no_benefit("flash-attention", "flash-attention", "already"),
    ),
    case(
        "zhou 19, miao D17",
        True,
        f"{AMPERE} --prompt 65536 --generate 16",
        Goal(TPOT),
        "flash-decoding",
        warned("flash-decoding", "8 thread blocks for 108 SMs"),
    ),
    case(
        "zhou 19, miao D17",
        False,
        f"{AMPERE} --prompt 4096 --batch 32",
        Goal(TPOT),
        "flash-decoding",
        not_warned("flash-decoding"),
    ),
    case(
        "zhou 19, miao D17",
        False,
        f"{AMPERE} --prompt 128",
        Goal(TPOT),
        "flash-decoding",
        not_warned("flash-decoding"),
        no_benefit("flash-decoding", "flash-decoding", "of a decode step"),
    ),
    # --- long contexts ---
    case(
        "yuan R22, zhou 12, zhou 15, miao D12",
        True,
        f"{AMPERE} --prompt 100000 --generate 256",
        Goal(TPOT, quality=LOSSY),
        "streamingllm, h2o",
        found("long-context", "100256 tokens"),
        gains("h2o", 1.3, 2.0, "long-context"),
        gains("streamingllm", 1.3, 2.0, "long-context"),
        warned("long-context", "410 of 100256", move="h2o"),
    ),
    case(
        "zhou 12, zhou 15, miao D12",
        True,
        f"{AMPERE} --prompt 100000 --generate 256",
        Goal(TTFT, quality=LOSSY),
        "streamingllm, h2o, longllmlingua",
        gains("streamingllm", 2.0, 5.0, "long-context"),
        gains("longllmlingua", 4.0, 12.0, "long-context"),
        not_recommended("h2o"),
        warned("long-context", "25000 of 100000", move="longllmlingua"),
    ),
    case(
        "yuan R22, zhou 12, zhou 15, miao D12",
        False,
        f"{AMPERE} --prompt 256 --generate 256",
        Goal(TPOT, quality=LOSSY),
        "streamingllm, h2o",
        not_found("long-context"),
        no_benefit("streamingllm", "long-context", "nothing to drop"),
        not_recommended("h2o"),
        not_hinted("long-context", "h2o"),
    ),
    # --- tensor parallelism ---
    case(
        "yuan R23, miao D4",
        True,
        "llama-3.1-70b --hw h100-sxm --tp 4 --prompt 256",
        devices(TPOT, 8),
        "tp=8, tp=4 pp=2",
        gains("tp=8", 1.2, 1.9, "tensor-parallelism"),
        no_benefit("tp=4 pp=2", "tensor-parallelism", "latency does not fall"),
    ),
    case(
        "yuan R23, miao D4",
        True,
        "llama-3.1-405b --hw h100-sxm --prompt 128 --tp 8",
        devices(TPOT, 16),
        "tp=8 pp=2",
        hinted("tensor-parallelism", "tp=8 pp=2", "the model fits", "InfiniBand"),
        first("tp=8 pp=2"),
    ),
    case(
        "yuan R23, miao D4",
        False,
        "llama-3.1-8b --hw rtx-4090 --prompt 2048 --host pcie-isolated",
        devices(TTFT, 4),
        "tp=4",
        no_benefit("tp=4", "tensor-parallelism", "PCIe"),
        warned("tensor-parallelism", "no direct link", move="tp=4"),
    ),
    case(
        "yuan R23, miao D4",
        False,
        "llama-3.1-8b --hw rtx-4090 --prompt 2048 --tp 4 --batch 8",
        Goal(TTFT),
        "",
        found("tensor-parallelism", "PCIe", "of the time"),
    ),
    case(
        "yuan R23",
        False,
        "llama-160m --hw h100-sxm --prompt 128",
        devices(TPOT, 8),
        "tp=4",
        no_benefit("tp=4", "tensor-parallelism", "communicates for"),
    ),
)

COVERED = {
    number
    for number in {number for row in CASES for number in row.rules}
    if {row.applies for row in CASES if number in row.rules} == {True, False}
}
"""The rules of the notes that have both."""


def moves_of(request: Scenario, goal: Goal, names: tuple[str, ...]) -> list[Move]:
    """Moves by name: techniques with parameters and hardware beside all that may be advised."""
    known = {move.name: move for move in all_moves(request, goal, research=True)}
    moves = []
    for name in names:
        if name.startswith("hw="):
            moves.append(hardware_move(load_hardware(name.removeprefix("hw="))))
        elif ":" in name:
            moves.append(technique_move(check_request(name), name))
        elif name.startswith("batch="):
            moves.append(batch_move(int(name.removeprefix("batch="))))
        else:
            moves.append(known[name])
    return moves


@lru_cache(maxsize=64)
def advised(scenario: str, goal: Goal, names: tuple[str, ...]) -> Advice:
    (request,) = parse_scenarios([scenario])
    return advise(request, goal, moves=moves_of(request, goal, names), top=0)


@pytest.mark.parametrize("row", sampled(CASES, 18), ids=lambda row: row.name)
def test_the_advice_is_what_the_rule_says(row: Case) -> None:
    advice = advised(row.scenario, row.goal, row.moves)
    for expect in row.expect:
        expect(advice)


@pytest.mark.xfail(strict=True, reason="2.14: INT8 GEMMs are fitted with all of the bandwidth, BF16 ones with 82%")
def test_int8_decodes_no_faster_than_half_the_bytes() -> None:
    gains("smoothquant", 1.5, 2.1)(advised(f"{THIRTEEN} --prompt 128", Goal(TPOT), ("smoothquant",)))


def test_every_rule_of_the_table_is_a_rule() -> None:
    sources = {source for rule in rules().values() for source in rule.sources}
    assert {number for row in CASES for number in row.rules} == COVERED
    assert sources >= COVERED
