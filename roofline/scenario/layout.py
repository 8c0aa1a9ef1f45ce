"""The degrees of parallelism that devices named with their count have where no option says them.

Every surface has them from here: `Scenario`, `analyze`, `serve`, `launch` and, as its first candidate, the answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.core.errors import RooflineError
from roofline.graph.blocks import EXPERTS
from roofline.graph.parallel import Parallelism
from roofline.graph.ranks import rank_model
from roofline.scenario.engine_options import ranks_together
from roofline.specs.hardware import SERVER_DEVICES
from roofline.timing.exchanges import other_exchanges

if TYPE_CHECKING:
    from roofline.scenario.question import Question

OVER_NODES = frozenset({"ep", "enable_expert_parallel", "redundant_experts", "all_to_all", "dp_attention", "dcp"})
"""Options of a group of all devices, over nodes too: with one of them all devices share every layer."""

FEW = 3.0
"""Sequences a device from which attention divides these, and no longer heads.

Each rank then reads the whole weights of attention: on 72 GB300 one sequence of ten mixtures decodes 1.5 to 2.6 times
as fast with tensor parallelism, and nine replicas of it are as fast up to some 190 sequences of DeepSeek-R1 and Kimi
K3, 300 of Qwen3 235B and 600 of gpt-oss 120B.
"""


def is_usual(tensor: int) -> bool:
    """Whether people start so many tensor-parallel ranks: beyond those of a server, powers of two.

    vLLM's recipe of Kimi K3, whose 96 heads 24 ranks divide, has TP 8 and 16 on GB300, and replicas beyond
    (vllm-project/recipes, models/moonshotai/Kimi-K3.yaml).
    """
    return tensor <= SERVER_DEVICES or tensor.bit_count() == 1


def default_layout(question: Question, devices: int) -> dict[str, Any]:
    """The degrees, by option, of devices that no option lays out.

    Those of a node share every layer (`tp`), as many as divide the model; the layers are split over as few stages
    (`pp`) as hold the model and its sequences, and the other devices hold replicas (`dp`): vLLM's guide to parallelism
    has stages for models that are too large for a node. Where the engine splits layers it does so over all devices. Of
    a mixture in a domain of more devices than share a layer, with `FEW` sequences or more a device, each attends to
    sequences of its own, and the experts are over all.
    """
    values = question.values
    if "model" in values and question.profile.split_layers:
        return {"pp": devices}
    if "model" not in values or not OVER_NODES.isdisjoint(values):
        return {"tp": devices}
    widest = question.hardware.node_devices
    inside = math.gcd(devices, widest) if devices > widest else devices
    ranks = (rank for rank in range(inside, 0, -1) if inside % rank == 0 and is_usual(rank))
    tensor = next(rank for rank in ranks if _divides(question, Parallelism(tensor=rank)))
    if tensor == devices:
        return {"tp": tensor}
    wide = Parallelism(data=devices, expert=devices)
    total = values.get("max_num_seqs") if ranks_together(question.profile.name, "max_num_seqs", wide) > 1 else None
    many = min(max(np.max(values.get("batch", 1)), question.in_flight), total or math.inf) >= FEW * devices
    if many and devices == inside > SERVER_DEVICES and values["model"].experts and _divides(question, wide):
        others = other_exchanges(question.profile, values["hw"], wide)
        return {"tp": devices, "dp_attention": True, **({"all_to_all": others[0]} if others else {})}
    groups = devices // tensor
    staged = {"tp": tensor, "pp": groups}
    for stages in (count for count in range(1, groups) if groups % count == 0):
        fewer = {"tp": tensor, **({"pp": stages} if stages > 1 else {}), "dp": groups // stages}
        if _holds(question, fewer):
            return fewer
    return staged


def _holds(question: Question, degrees: dict[str, Any]) -> bool:
    """Whether the model and the sequences of the batch fit so; False where the question cannot be analysed."""
    from roofline.scenario.analysis import Analysis  # which has scenarios, and these their questions
    from roofline.scenario.scenario import Scenario

    try:
        return bool(np.all(Analysis(Scenario.of(question.with_degrees(degrees))).memory.fits))
    except RooflineError:
        return False


def _divides(question: Question, parallelism: Parallelism) -> bool:
    """Whether the model can be divided so, and the engine starts so; experts it may keep whole."""
    try:
        rank_model(question.values["model"], parallelism)
    except RooflineError:
        return False
    return all(what == EXPERTS for what, _ in question.cut(parallelism))
