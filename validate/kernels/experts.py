"""Benchmark of op `moe`: the routed experts of one layer, from the selected experts to the weighted sum of results.

With `ep` above 1 it is one rank of an expert-parallel group: it holds the first experts / ep of them, sees the tokens
of all ranks, and adds the results of its own experts only, as engines do between an all-gather and a reduce-scatter.
`tokens` counts those of all ranks, as in the measurement schema, so that a rank computes about tokens top_k / ep pairs
of a token and an expert.

An expert computes down(silu(gate(x)) up(x)). The router's output is an input: the indices of the selected experts as
int32, which `Work` does not count (4 bytes for each pair of a token and an expert), and their weights.
"""

from __future__ import annotations

import torch
from torch.nn.functional import silu

from roofline.validate.kernels.benchmark import Benchmark, Tensors, torch_dtype
from roofline.validate.kernels.tools import Random, format_refusal, poisoned, triton_refusal
from roofline.validate.kernels.work import Case

ROUTINGS = ("uniform", "balanced")
"""How tokens select experts: at random, or so that the loads of experts differ by at most one."""


class Experts(Benchmark):
    """Routed experts on one device: 1 / ep of them, each with 1 / tp of its intermediate width.

    Inputs: input (tokens, hidden); expert_ids and routing_weights (tokens, top_k); gate_weight and up_weight
    (experts / ep, width, hidden), down_weight (experts / ep, hidden, width). Output: output (tokens, hidden).

    `triton` sorts pairs by expert and runs grouped GEMMs. `torch` loops over the experts and reads the tokens of each
    back to the CPU: PyTorch calls no vendor library for a grouped GEMM with gathered rows.
    """

    op = "moe"
    dtypes = ("bf16", "fp16")

    def __init__(self) -> None:
        self.backends = {"triton": _triton, "torch": _torch}

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Random operands; results of experts have a standard deviation of at most about one for all widths."""
        random = Random(device, seed)
        tokens, hidden, dtype = case["tokens"], case["hidden"], case.dtype
        experts = case["experts"] // case["ep"]
        width = case["intermediate"] // case["tp"]
        weights = random.uniform(tokens, case["top_k"], low=0.5, high=1.5)
        return {
            "input": random.normal(tokens, hidden, dtype=dtype),
            "expert_ids": _select_experts(case, random),
            "routing_weights": (weights / weights.sum(dim=1, keepdim=True)).to(torch_dtype(dtype)),
            "gate_weight": random.normal(experts, width, hidden, dtype=dtype, deviation=hidden**-0.5),
            "up_weight": random.normal(experts, width, hidden, dtype=dtype, deviation=hidden**-0.5),
            "down_weight": random.normal(experts, hidden, width, dtype=dtype, deviation=2 * width**-0.5),
        }

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        return {"output": poisoned(case["tokens"], case["hidden"], dtype=case.dtype, device=device)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Expert by expert in float64, without rounding in between."""
        source, expert_ids = inputs["input"].double(), inputs["expert_ids"]
        output = torch.zeros_like(source)
        for expert in range(case["experts"] // case["ep"]):
            tokens, slots = torch.where(expert_ids == expert)
            gate, up, down = (inputs[f"{name}_weight"][expert].double().T for name in ("gate", "up", "down"))
            rows = source[tokens]
            results = (silu(rows @ gate) * (rows @ up)) @ down
            output.index_add_(0, tokens, results * inputs["routing_weights"][tokens, slots, None].double())
        return {"output": output}

    def _refusal(self, case: Case, backend: str, device: str) -> str | None:
        """Which sizes contradict each other, or what Triton or the device lacks."""
        if case["experts"] % case["ep"]:
            return "ep must divide experts"
        if case["intermediate"] % case["tp"]:
            return "tp must divide intermediate"
        if case["top_k"] > case["experts"]:
            return "top_k is more than the experts"
        if case.columns["routing"] not in ROUTINGS:
            return f"routing must be {' or '.join(ROUTINGS)}"
        return format_refusal(case.dtype, device) or (triton_refusal(device) if backend == "triton" else None)


def _select_experts(case: Case, random: Random) -> torch.Tensor:
    """The distinct experts of every token: (tokens, top_k), int32."""
    tokens, experts, top_k = case["tokens"], case["experts"], case["top_k"]
    if case.columns["routing"] == "uniform":
        return random.uniform(tokens, experts).topk(top_k, dim=1).indices.to(torch.int32).contiguous()
    # Round-robin over the experts, with experts and tokens shuffled.
    round_robin = torch.arange(tokens * top_k, device=random.device).view(tokens, top_k) % experts
    shuffled = random.permutation(experts)
    return shuffled[round_robin][random.permutation(tokens)].to(torch.int32).contiguous()


def _triton(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    from roofline.validate.kernels.triton_kernels.experts import routed_experts

    weights = inputs["gate_weight"], inputs["up_weight"], inputs["down_weight"]
    routing = inputs["expert_ids"], inputs["routing_weights"]
    routed_experts(inputs["input"], *routing, *weights, outputs["output"], ranks=case["ep"])


def _torch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    source, expert_ids = inputs["input"], inputs["expert_ids"]
    make = torch.empty if case["ep"] == 1 else torch.zeros  # pairs of other ranks add nothing
    results = make(*expert_ids.shape, source.shape[1], dtype=source.dtype, device=source.device)
    for expert in range(case["experts"] // case["ep"]):
        tokens, slots = torch.where(expert_ids == expert)
        if tokens.numel():
            gate, up, down = (inputs[f"{name}_weight"][expert].T for name in ("gate", "up", "down"))
            rows = source[tokens]
            results[tokens, slots] = (silu(rows @ gate) * (rows @ up)) @ down
    torch.bmm(inputs["routing_weights"][:, None, :], results, out=outputs["output"][:, None, :])


EXPERTS = Experts()
