"""Named workloads of sessions, from published distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from roofline.core.errors import UnknownNameError
from roofline.scenario.lengths import parse_lengths
from roofline.serving.sessions.workload import Workload, parse_gaps

FIRST = "quantiles:p10=15.5k,p25=18.6k,p50=24.5k,p75=104k,p90=259k,p99=708k"
GROWTH = "quantiles:p10=184,p25=324,p50=646,p75=1534,p90=3510,p99=16.4k"
"""First prompts and growth a turn of coding agents (callanjfox/kv-cache-tester, traces/)."""

PROFILES: Mapping[str, Callable[[], Workload]] = {
    "chat": lambda: Workload(
        name="chat",
        turns=parse_lengths("uniform:12:18"),
        first=parse_lengths("lognormal:mean=1000,median=607"),
        new=parse_lengths("uniform:120:160"),
        output=parse_lengths("uniform:80:120"),
        gap=parse_gaps("exponential:mean=10s"),
        shared=500,
        source="turns and lengths: vllm-project/vllm, benchmarks/multi_turn/generate_multi_turn.json (the spread of"
        " its lognormal prefix is NumPy's default of 1); the gap is an assumption",
    ),
    "coding-agent": lambda: Workload(
        name="coding-agent",
        turns=parse_lengths("quantiles:p1=20,p50=61,p75=158,p90=351,p99=2154,p100=3225"),
        first=parse_lengths(FIRST),
        new=parse_lengths(GROWTH),
        output=parse_lengths("quantiles:p50=441,p75=1030,p90=2221,p99=9083"),
        gap=parse_gaps("quantiles:p50=1.945s,p75=5.198s,p90=23.7s,p96.1=300s"),
        kept=False,
        asides=0.028,
        aside=2800,
        limit=990_000,
        compacted=30_000,
        branches=0.07,
        branch_first=parse_lengths("14.3k"),
        branch_turns=parse_lengths("quantiles:p50=7,p90=51"),
        idle=10.0,
        source="AgentX, the traces cc-traces-weka of SemiAnalysisAI/InferenceX: turns of main agents (at least 20)"
        " and gaps of its distributions (p99 of 1,027 s), cut at 300 s, and at 10 s where no session has a request,"
        " as its replay does; recorded answers replace generated ones; side calls of 2.4k to 3.2k tokens (1,700 of"
        " 60,996 requests). Output: its run 440246, p99 of 4244685. First prompts and growth:"
        " callanjfox/kv-cache-tester, traces/. Sub-agents (half of all requests, 7 and 51 turns at p50 and p90) and"
        " compaction: llm-d, 2026-07-22, serving GLM-5.2 agentic workloads",
    ),
    "coding-agent-short": lambda: Workload(
        name="coding-agent-short",
        turns=parse_lengths("quantiles:p10=7,p25=18,p50=45,p75=94,p90=155,p99=329"),
        first=parse_lengths(FIRST),
        new=parse_lengths(GROWTH),
        output=parse_lengths("quantiles:p10=105,p25=137,p50=216,p75=426,p90=898,p99=3.7k"),
        gap=parse_gaps("quantiles:p10=4s,p25=5s,p50=10s,p75=33s,p90=162s,p99=3014s"),
        kept=False,
        asides=0.028,
        aside=2800,
        limit=990_000,
        compacted=30_000,
        source="callanjfox/kv-cache-tester, traces/ (710 sessions): turns, first prompts, growth, output and gaps;"
        " side calls of 2.8k tokens: those of AgentX's traces",
    ),
    "swe-agent": lambda: Workload(
        name="swe-agent",
        turns=parse_lengths("lognormal:median=33,p95=90"),
        first=parse_lengths("12k"),
        new=parse_lengths("exponential:mean=1.7k"),
        output=parse_lengths("exponential:mean=540"),
        gap=parse_gaps("lognormal:median=5.2s,p99=81.4s"),
        limit=200_000,
        compacted=12_000,
        source="vllm-project.github.io, 2026-05-06, Mooncake store: Codex on SWE-bench Pro, 610 traces (median 33"
        " turns, 2,242 tokens a turn, 131 input tokens an output token, 12k to 80k context, gaps 5.2 s and 81.4 s"
        " at p50 and p99); the spread of turns and lengths, and compaction beyond 200k, are assumptions",
    ),
    "rag": lambda: Workload(
        name="rag",
        turns=parse_lengths(1),
        new=parse_lengths("1.2k"),
        output=parse_lengths("1k"),
        gap=parse_gaps(0),
        shared=6000,
        groups=150,
        source="llm-d/llm-d-kv-cache, benchmarking/73-capacity: 150 documents of 6,000 tokens, questions of 1,200,"
        " answers of 1,000",
    ),
    "deep-research": lambda: Workload(
        name="deep-research",
        turns=parse_lengths("uniform:4:40"),
        first=parse_lengths("uniform:10k:100k"),
        new=parse_lengths("exponential:mean=350"),
        output=parse_lengths("exponential:mean=200"),
        gap=parse_gaps("uniform:1s:20s"),
        source="llm-d, 2026-08-15, P2P KV cache sharing: agents with 10k to 100k tokens of their own at first, 4 to 40"
        " turns, tools of 1 to 20 s, prompts of 61.9k tokens on average; how a turn's growth divides is an assumption",
    ),
    "batch": lambda: Workload(
        name="batch",
        turns=parse_lengths(1),
        new=parse_lengths("lognormal:mean=9400,median=6700"),
        output=parse_lengths("lognormal:mean=680,median=480"),
        gap=parse_gaps(0),
        source="MLCommons, MLPerf Inference 5.0, Llama 3.1 405B: long documents of 9,400 tokens and answers of 680 on"
        " average; their spread is an assumption",
    ),
}
"""The workloads by name, made where one is asked for: their distributions take time."""


def profile(name: str) -> Workload:
    """The workload of a name, or of a file (.json, .yaml); raises UnknownNameError with the nearest, or SpecError."""
    if Path(name).suffix.lower() in (".json", ".yaml", ".yml"):
        from roofline.core.documents import read_mapping  # few ask for a file
        from roofline.serving.sessions.recorded import workload_in

        return workload_in(read_mapping(Path(name)), name)
    if name not in PROFILES:
        raise UnknownNameError("profile of sessions", name, PROFILES)
    return _made(name)


@cache
def _made(name: str) -> Workload:
    return PROFILES[name]()
