"""Benchmark of the routed experts of one layer, from the choice of experts to the weighted sum of their results.

With `ep` above 1 it is one of so many ranks: it has the first experts / ep of them and the tokens of all ranks, and
adds the results of its own experts only, as engines do between an all-gather and a reduction. As in the measurement
schema `tokens` counts those of all ranks, so that a rank has about tokens top_k / ep pairs of a token and an expert.

An expert computes down(silu(gate(x)) up(x)). The choice itself is an input: experts as int32, which `Work` does not
count (4 bytes a pair of a token and an expert), and their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from roofline.validate.kernels.benchmark import Benchmark, Tensors, Way
from roofline.validate.kernels.tools import (
    format_refusal,
    generator,
    normal,
    poisoned,
    torch_dtype,
    triton_refusal,
    uniform,
)
from roofline.validate.kernels.work import Case

if TYPE_CHECKING:
    import torch

ROUTINGS = ("uniform", "balanced")
"""How tokens choose experts: at random, or so that the experts' loads differ by one at most."""


class Experts(Benchmark):
    """Routed experts on one device: 1 / ep of them, each with 1 / tp of its intermediate width.

    Inputs: input (tokens, hidden); chosen and routes (tokens, top_k), the experts and their weights; gate_weight and
    up_weight (experts / ep, width, hidden), down_weight (experts / ep, hidden, width). Output: output (tokens, hidden).
    """

    op = "moe"
    dtypes = ("bf16", "fp16")

    @property
    def ways(self) -> Mapping[str, Way]:
        """`triton` sorts pairs by expert and runs grouped products; `torch` loops over the experts.

        The loop asks the host for the tokens of every expert: PyTorch hands no grouped product with gathered rows to a
        vendor's library.
        """
        return MappingProxyType({"triton": _triton, "torch": _torch})

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Fresh random operands; results of experts have a deviation near one whatever the widths, or a little less."""
        random = generator(device, seed)
        tokens, hidden, top_k = case["tokens"], case["hidden"], case["top_k"]
        experts = case["experts"] // case["ep"]
        width = case["intermediate"] // case["tp"]
        routes = uniform((tokens, top_k), 0.5, 1.5, random)
        return {
            "input": normal((tokens, hidden), case.dtype, random),
            "chosen": _choose(case, random),
            "routes": (routes / routes.sum(dim=1, keepdim=True)).to(torch_dtype(case.dtype)),
            "gate_weight": normal((experts, width, hidden), case.dtype, random, hidden**-0.5),
            "up_weight": normal((experts, width, hidden), case.dtype, random, hidden**-0.5),
            "down_weight": normal((experts, hidden, width), case.dtype, random, 2 * width**-0.5),
        }

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """The poisoned sums."""
        return {"output": poisoned((case["tokens"], case["hidden"]), case.dtype, device)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Expert by expert in float64, nothing rounded in between."""
        import torch

        source, chosen = inputs["input"].double(), inputs["chosen"]
        output = torch.zeros_like(source)
        for expert in range(case["experts"] // case["ep"]):
            tokens, choices = torch.where(chosen == expert)
            gate, up, down = (inputs[f"{name}_weight"][expert].double().T for name in ("gate", "up", "down"))
            rows = source[tokens]
            results = (torch.nn.functional.silu(rows @ gate) * (rows @ up)) @ down
            output.index_add_(0, tokens, results * inputs["routes"][tokens, choices, None].double())
        return {"output": output}

    def refusal(self, case: Case, way: str, device: str) -> str | None:
        """What Triton or the device lacks for the case, and settings that are not one device's."""
        if case.dtype not in self.dtypes:
            return f"there are no {case.dtype} experts here"
        if case["experts"] % case["ep"]:
            return "ep must divide experts"
        if case["intermediate"] % case["tp"]:
            return "tp must divide intermediate"
        if case["top_k"] > case["experts"]:
            return "top_k is more than the experts"
        if case.columns["routing"] not in ROUTINGS:
            return f"routing must be {' or '.join(ROUTINGS)}"
        reason = super().refusal(case, way, device) or format_refusal(case.dtype, device)
        return reason or (triton_refusal(device) if way == "triton" else None)


def _choose(case: Case, random: torch.Generator) -> torch.Tensor:
    """The distinct experts of every token: (tokens, top_k), int32."""
    import torch

    tokens, experts, top_k = case["tokens"], case["experts"], case["top_k"]
    if case.columns["routing"] == "uniform":
        ranks = torch.rand(tokens, experts, device=random.device, generator=random)
        return ranks.topk(top_k, dim=1).indices.to(torch.int32).contiguous()
    # Turns through the experts, renamed at random, dealt to the tokens in a random order.
    turns = torch.arange(tokens * top_k, device=random.device).view(tokens, top_k) % experts
    names = torch.randperm(experts, device=random.device, generator=random)
    dealt = torch.randperm(tokens, device=random.device, generator=random)
    return names[turns][dealt].to(torch.int32).contiguous()


def _triton(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    from roofline.validate.kernels.programs.experts import run

    weights = inputs["gate_weight"], inputs["up_weight"], inputs["down_weight"]
    run(inputs["input"], inputs["chosen"], inputs["routes"], *weights, outputs["output"], ranks=case["ep"])


def _torch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    import torch

    source, chosen, routes = inputs["input"], inputs["chosen"], inputs["routes"]
    tokens, top_k = chosen.shape
    make = torch.empty if case["ep"] == 1 else torch.zeros  # the pairs of other ranks add nothing
    results = make(tokens, top_k, source.shape[1], dtype=source.dtype, device=source.device)
    for expert in range(case["experts"] // case["ep"]):
        rows, choices = torch.where(chosen == expert)
        if rows.numel():
            gate, up, down = (inputs[f"{name}_weight"][expert].T for name in ("gate", "up", "down"))
            own = source[rows]
            results[rows, choices] = (torch.nn.functional.silu(own @ gate) * (own @ up)) @ down
    torch.bmm(routes[:, None, :], results, out=outputs["output"][:, None, :])


EXPERTS = Experts()
"""Routed experts."""
