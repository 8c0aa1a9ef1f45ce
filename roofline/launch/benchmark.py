"""The command that measures what was predicted: the engine's own benchmark, or AIPerf, or ours for local engines."""

from __future__ import annotations

from roofline.core.errors import RooflineError
from roofline.launch.command import Command, needs_of
from roofline.launch.forecast import Bench
from roofline.scenario.scenario import Scenario
from roofline.specs.images import default_size, parse_image_size
from roofline.specs.servers import Server
from roofline.specs.version import Version
from roofline.whatif.command_line import command_words

RESULT = "measured.json"
"""The file that a benchmark writes."""

EMBEDDED = ("openai-embeddings", "/v1/embeddings", "random")
RERANKED = ("vllm-rerank", "/v1/rerank", "random-rerank")
"""Backend, path and data set of vLLM's benchmark for sequences that are embedded, and that are scored."""

MOVED = "0.5.23"
"""The version whose sglang.bench_serving says that it is sglang.benchmark.serving now."""


def benchmark_command(server: Server, version: str, bench: Bench, model: str, port: int, scenario: Scenario) -> Command:
    """The benchmark of a launched server. Raises RooflineError for a load that it cannot send."""
    cached = round(bench.hits * bench.prompt)
    match server.benchmark:
        case "vllm":
            words = _vllm(bench, cached, model, port, scenario)
        case "sglang":
            words = _sglang(bench, cached, model, port, Version(version) >= Version(MOVED), scenario.model.task)
        case "aiperf":
            words = _aiperf(bench, cached, model, port)
        case _:
            words = _own(bench, cached, scenario, port)
    return Command(tuple(map(str, words)))


def _arrivals(bench: Bench) -> list[object]:
    if bench.concurrency is not None:
        return ["--max-concurrency", bench.concurrency]
    return ["--request-rate", f"{bench.rate:g}"]


def _vllm(bench: Bench, cached: int, model: str, port: int, scenario: Scenario) -> list[object]:
    """`vllm bench serve` (vllm/benchmarks/serve.py and datasets of v0.33.0)."""
    words: list[object] = ["vllm", "bench", "serve", "--model", model, "--port", port]
    data: list[object]
    sent: list[object] = ["--num-prompts", bench.requests, *_arrivals(bench)]
    saved: list[object] = ["--save-result", "--result-filename", RESULT]
    if scenario.model.task == "encode":
        scored = (needs := needs_of(model)) is not None and needs.scores
        backend, path, data_set = RERANKED if scored else EMBEDDED
        words += ["--backend", backend, "--endpoint", path, "--dataset-name", data_set]
        return [*words, "--random-input-len", bench.prompt, *sent, *saved]
    if (
        scenario.model.tower is not None
        and scenario.model.tower_kind == "encoder"
        and scenario.model.tower.convolutions
    ):
        words += ["--backend", "openai-audio", "--endpoint", "/v1/audio/transcriptions"]
        data = ["--dataset-name", "hf", "--dataset-path", "openslr/librispeech_asr", "--hf-subset", "clean"]
        return [*words, *data, "--hf-split", "test", *sent, *saved]
    prefix = ["--random-prefix-len", cached] if cached else []
    bursts = ["--burstiness", f"{bench.burstiness:g}"] if bench.burstiness != 1 else []
    data = ["--dataset-name", "random"]
    if count := int(scenario.images):
        width, height = (
            default_size(scenario.model) if scenario.image_size is None else parse_image_size(scenario.image_size)
        )
        data = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--dataset-name", "random-mm"]
        data += [
            "--random-mm-base-items-per-request",
            count,
            "--random-mm-limit-mm-per-prompt",
            f'{{"image": {count}}}',
        ]
        data += ["--random-mm-bucket-config", f"{{({height}, {width}, 1): 1.0}}"]
    return [
        *(*words, *data, "--random-input-len", bench.prompt - cached, "--random-output-len", bench.output, *prefix),
        *(*sent, *bursts, "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el", *saved),
    ]


def _sglang(bench: Bench, cached: int, model: str, port: int, moved: bool, task: str) -> list[object]:
    """`sglang.benchmark.serving` (python/sglang/benchmark/serving.py of v0.5.23)."""
    if bench.burstiness != 1:
        raise RooflineError("SGLang's benchmark sends a Poisson process: omit burstiness", options=["burstiness"])
    data: list[object] = ["random-ids", "--random-input-len", bench.prompt, "--random-output-len", bench.output]
    data += ["--random-range-ratio", 1.0]
    if cached:
        data = ["generated-shared-prefix", "--gsp-num-groups", 1, "--gsp-prompts-per-group", bench.requests]
        data += ["--gsp-system-prompt-len", cached, "--gsp-question-len", bench.prompt - cached]
        data += ["--gsp-output-len", bench.output]
    words: list[object] = ["python3", "-m", "sglang.benchmark.serving" if moved else "sglang.bench_serving"]
    return [
        *(*words, "--backend", "sglang-embedding" if task == "encode" else "sglang"),
        *("--model", model, "--port", port, "--dataset-name", *data),
        *("--num-prompts", bench.requests, *_arrivals(bench), "--output-file", RESULT),
    ]


def _aiperf(bench: Bench, cached: int, model: str, port: int) -> list[object]:
    """`aiperf profile` (NVIDIA's documentation of its options, and TensorRT-LLM's example of it)."""
    if cached or bench.burstiness != 1:
        raise RooflineError("AIPerf is told neither cached prefixes nor burstiness here", options=["prefix_hits"])
    arrivals = ["--concurrency", bench.concurrency] if bench.concurrency else ["--request-rate", f"{bench.rate:g}"]
    return [
        *("aiperf", "profile", "--model", model, "--url", f"localhost:{port}", "--endpoint-type", "completions"),
        *("--streaming", "--synthetic-input-tokens-mean", bench.prompt, "--synthetic-input-tokens-stddev", 0),
        *("--output-tokens-mean", bench.output, "--output-tokens-stddev", 0, "--extra-inputs", "ignore_eos:true"),
        *("--request-count", bench.requests, *arrivals, "--profile-export-file", RESULT),
    ]


def _own(bench: Bench, cached: int, scenario: Scenario, port: int) -> list[object]:
    """`roofline validate server`, which compares with the prediction at once."""
    if cached or bench.concurrency is None:
        raise RooflineError(
            "a local server is measured at a concurrency, without cached prefixes", options=["concurrency"]
        )
    told = scenario.without("batch", "prompt", "generate", "prefix")
    words = command_words(told)
    named = ["--model", words[0], *words[1:]]
    load = ["--prompt", bench.prompt, "--generate", bench.output, "--concurrency", bench.concurrency]
    return ["roofline", "validate", "server", f"http://localhost:{port}/v1", *named, *load]
