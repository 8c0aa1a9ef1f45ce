"""The benchmark of each op on a device: on the CPU as eager PyTorch runs it, which is what `measure.decoder` runs."""

from __future__ import annotations

from roofline.validate.kernels.benchmark import Benchmark


def benchmarks(device: str = "cuda") -> dict[str, Benchmark]:
    """The benchmark of every op that can be measured on the device. It needs PyTorch."""
    from roofline.validate.kernels import attention, experts, gemm, streaming

    found: tuple[Benchmark, ...] = (gemm.GEMM, experts.EXPERTS, attention.PREFILL, attention.DECODE)
    if device == "cpu":
        found = (gemm.Gemm(streaming.FLOATS), *map(attention.EagerAttention, ("attention_prefill", "attention_decode")))
    return {benchmark.op: benchmark for benchmark in (*found, *streaming.BENCHMARKS)}
