"""Simulated scenarios of many makes, for tests that hold whatever is simulated."""

from __future__ import annotations

from typing import Any

from roofline import Analysis, analyze
from roofline.scenario.scenario import Scenario


def answer(model: str, hardware: str, **parts: Any) -> Analysis:
    return analyze(Scenario(model, hardware, **parts))


ALL = {
    "dense": answer("llama-3.1-8b", "h100-sxm", batch=8, generate=40),
    "moe": answer("mixtral-8x7b", "h200-sxm", batch=4, tp=2),
    "mla": answer("deepseek-v3", "h200-sxm", batch=64, ep=8, quant="fp8_block"),
    "overlapped": answer(
        "deepseek-v3",
        "h800-sxm",
        batch=1024,
        quant="fp8_block",
        ep=32,
        dp=32,
        nodes=4,
        techniques=("two-batch-overlap",),
    ),
    "far apart": answer(
        "qwen3-30b-a3b",
        "h100-sxm",
        batch=64,
        ep=16,
        dp=16,
        nodes=8,
        techniques=("two-batch-overlap:phases=prefill",),
    ),
    "ssm": answer("mamba2-2.7b", "rtx-4090"),
    "window": answer("gemma-2-9b", "l40s", prompt=3900, generate=600),
    "eager": answer("llama-2-7b", "a6000", batch=3, engine="hf-eager"),
    "blocks of integers": answer("llama-2-7b", "rtx-4090", quant="q4_k_m", engine="llama.cpp"),
    "speculative": answer("llama-3.1-8b", "h100-sxm", techniques=("eagle:accept=3.5",)),
    "lookahead": answer("llama-2-7b", "a100-sxm-80gb", engine="hf-eager", techniques=("lookahead",)),
    "pruned tokens": answer("llama-2-7b", "h100-sxm", techniques=("token-pruning",)),
    "offloaded": answer("llama-2-70b", "rtx-4090", offload="weights=0.8"),
    "pipeline": answer("llama-3.1-70b", "h100-sxm", batch=8, pp=2, tp=2),
}
