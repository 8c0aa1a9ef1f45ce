"""`python -m lab.transformers_passes FILE`: passes of Hugging Face Transformers with random weights, on this machine.

Each model is built on the device from the shapes below, and prefills and decode steps are timed with the host's clock.
With `--trace` the kernels of each pass are counted, and their device time added up. `--score HARDWARE` compares a file
of times with the engine profile `hf-eager`.
"""

from __future__ import annotations

import csv
import inspect
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab.command import run_command
from roofline.core.errors import RooflineError
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario

MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama-3.2-1b": ("LlamaConfig", {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                     "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
                     "tie_word_embeddings": True}),
    "llama-3.1-8b": ("LlamaConfig", {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                     "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}),
    "llama-2-7b": ("LlamaConfig", {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                   "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000}),
    "qwen3-0.6b": ("Qwen3Config", {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
                   "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
                   "tie_word_embeddings": True}),
    "qwen3-30b-a3b": ("Qwen3MoeConfig", {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
                      "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
                      "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
                      "norm_topk_prob": True}),
}  # fmt: skip
"""Configuration class of Transformers, and its shapes, by our name of the model."""

PREFILLS, DECODES = ((1, 128), (1, 1024), (1, 4096), (8, 1024)), ((1, 1024), (8, 1024), (32, 1024), (1, 8192))
"""Sequences and prompt tokens of passes."""

COLUMNS = ("model", "phase", "batch", "context", "latency_us", "low_us", "high_us", "device_us", "kernels")
"""Median, least and largest time of a pass; time of its kernels on the device, and their number."""


def timed(torch: Any, device: str, run: Callable[[], Any], repeats: int) -> list[str]:
    """Median, least and largest microseconds of a pass that has run before."""
    synchronize = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    seconds = []
    for _ in range(repeats):
        synchronize()
        begun = time.perf_counter()
        run()
        synchronize()
        seconds.append(time.perf_counter() - begun)
    return [f"{1e6 * value:.6g}" for value in (statistics.median(seconds), min(seconds), max(seconds))]


def traced(torch: Any, run: Callable[[], Any]) -> list[str]:
    """Device microseconds of a pass's kernels on a GPU, and their number."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        run()
        torch.cuda.synchronize()
    kernels = [each for each in trace.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    return [f"{sum(each.device_time for each in kernels):.6g}", str(len(kernels))]


def passes(
    name: str, device: str, trace: bool = False, given: Mapping[str, Any] | None = None
) -> Iterator[dict[str, object]]:
    """The rows of a model in bf16: their times, or what a `trace` says; `given` replaces shapes."""
    import torch
    import transformers

    kind, shapes = MODELS[name]
    config = getattr(transformers, kind)(max_position_embeddings=16384, **{**shapes, **(given or {})})
    with torch.device(device), torch.inference_mode():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()

        def ids(batch: int, tokens: int) -> Any:
            return torch.randint(0, config.vocab_size, (batch, tokens))

        def row(phase: str, batch: int, context: int, run: Callable[[], Any], repeats: int) -> dict[str, object]:
            run()
            found = ["", "", "", *traced(torch, run)] if trace else timed(torch, device, run, repeats)
            return dict(zip(COLUMNS, (name, phase, batch, context, *found), strict=False))

        forward = inspect.signature(model.forward).parameters
        keyword = "cache" if "cache" in forward else "past_key_values"  # the older name
        for batch, tokens in PREFILLS:
            prompt = ids(batch, tokens)
            yield row("prefill", batch, tokens, lambda prompt=prompt: model(prompt, logits_to_keep=1), 4)  # type: ignore[misc]
        for batch, tokens in DECODES:
            cache = transformers.DynamicCache(config=config)
            model(ids(batch, tokens), **{keyword: cache}, logits_to_keep=1)
            token = ids(batch, 1)
            yield row("decode", batch, tokens, lambda t=token, c=cache: model(t, **{keyword: c}), 8)  # type: ignore[misc]


def score(path: Path, hardware: str) -> str:
    """A table of the rows of a file beside the predictions of `hf-eager`."""
    lines = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            batch, context = int(row["batch"]), int(row["context"])
            question = Scenario(
                row["model"], hardware, engine="hf-eager", precision="bf16", batch=batch, prompt=context, generate=2
            )
            expected = analyze(question).expected
            assert expected is not None
            time = expected.ttft if row["phase"] == "prefill" else expected.tpot
            assert time is not None
            measured, low, mid, high = (float(row["latency_us"]) / 1e6, *map(float, (time.low, time.mid, time.high)))
            inside = "inside" if low <= measured <= high else ""
            cells = (f"{1e3 * measured:.1f}", f"{1e3 * mid:.1f}", f"{mid / measured - 1:+.0%}", inside)
            lines.append((row["model"], row["phase"], batch, context, *cells))
    heads = ("model", "phase", "batch", "context", "measured, ms", "predicted, ms", "error", "interval")
    return pd.DataFrame(lines, columns=heads).to_string(index=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = ArgumentParser(prog="python -m lab.transformers_passes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, help="CSV file of rows, which are added as they come")
    parser.add_argument("--trace", action="store_true", help="count kernels instead: launches stay slower afterwards")
    parser.add_argument("--score", metavar="HARDWARE", help="compare the rows with predictions on such hardware")

    def work(options: Namespace) -> str:
        if options.score:
            return score(options.file, options.score)
        import torch

        if not torch.cuda.is_available():
            raise RooflineError("there is no CUDA device to run the models on")
        with options.file.open("x", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for name in MODELS:
                for row in passes(name, "cuda", options.trace):
                    writer.writerow(row)
                    file.flush()
        return f"rows are in {options.file}\n"

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
