"""What every figure means."""

from __future__ import annotations

from collections.abc import Mapping

DEFINITIONS: Mapping[str, str] = {
    "ttft": "Time to first token: the prefill of all prompts of the batch, from their arrival to the first token.",
    "tpot": "Time per output token after the first: (total - TTFT) / (generated - 1), the mean decode step.",
    "total": "The static batch from prompt to last token: TTFT and generated - 1 decode steps, the context growing.",
    "tokens_per_s": "Generated tokens of all sequences over the total.",
    "sequences_per_s": "Sequences of the batch over the total: the rate of a model that only encodes.",
    "memory": "Bytes on the fullest device at the end: weights, KV cache, states, and activations at their peak.",
    "energy": "Joules of all devices for a generated token: static power over the whole time, joules a FLOP, a byte and"
    " a byte sent, at most the TDP. `energy.prefill` is that of prefill for a prompt token, `energy.decode` that of"
    " decoding for a token after the first, `energy.tdp` all devices at their TDP for the whole time.",
    "power": "The mean draw of a device over prefill and decoding, in watts.",
    "cost": "USD for a million generated tokens: all devices at their price an hour for the whole time."
    " `cost.processed` is that of a million tokens of prompts and answers.",
    "bound": "The speed of light: for each operator max(matrix FLOPs / matrix peak, vector FLOPs / vector peak, bytes /"
    " bandwidth, link bytes / link bandwidth); a pass is the sum over its operators.",
    "expected": "The time of calibrated kernels on an engine, with the host's share; low, mid and high are the 10th,"
    " 50th and 90th percentile of measurements over predictions.",
    "flops": "Arithmetic of an operator: a multiply-add is 2; attention counts the pairs that the causal mask leaves.",
    "bytes": "Traffic with memory: every tensor that an operator reads or writes, moved once, scales included.",
    "intensity": "FLOPs over bytes. Above the ridge point, peak over bandwidth, compute bounds an operator.",
    "ridge": "The intensity at which peak FLOP/s and memory bandwidth take equally long.",
    "mfu": "Model FLOPs utilisation: useful FLOPs over time and peak.",
    "mbu": "Model bandwidth utilisation: bytes of weights and cache over time and bandwidth.",
    "itl": "Inter-token latency: the time between two tokens of a sequence; its mean is the TPOT.",
}
"""What every figure means."""

METRICS = ("ttft", "tpot", "total", "tokens_per_s", "sequences_per_s", "memory", "energy", "cost")
