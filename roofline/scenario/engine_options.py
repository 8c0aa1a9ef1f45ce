"""What switches of engines' own options mean, which vLLM and SGLang name otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.graph.parallel import Parallelism
from roofline.scenario.options import OPTIONS
from roofline.specs.servers import SERVERS, server_of

if TYPE_CHECKING:
    from roofline.specs.model import Model

PLAIN_FORMATS = ("fp16", "bf16", "fp32")


def check_dtype(name: str) -> None:
    """Raise UnknownNameError for what is no unquantized format."""
    if name not in PLAIN_FORMATS:
        raise UnknownNameError("dtype", name, [*OPTIONS["dtype"].names, *PLAIN_FORMATS])


def chosen_scheme(quantization: str, quant: str | None, model: Model) -> str | None:
    """The scheme of a `quantization` method; None if the checkpoint is released in one of that method."""
    if quant is not None:
        raise RooflineError("quant and quantization name the same: give one of them")
    own = model.quantization
    return None if own is not None and own.startswith(quantization) else quantization


def expert_parallel(
    degrees: Mapping[str, int], model: Model, option: str = "enable_expert_parallel", instead: str = ""
) -> dict[str, int]:
    """The degrees with the experts divided among all tensor- and data-parallel ranks, as vLLM's switch does.

    `option` and what to do `instead` are named in errors.
    """
    if not model.experts:
        raise RooflineError(f"{option}: {model.name} has no experts{instead}")
    ranks = degrees.get("tensor", 1) * degrees.get("data", 1)
    if (other := degrees.get("expert", 1)) not in (1, ranks):
        raise RooflineError(f"{option} divides experts among {ranks} ranks, not {other} (ep)")
    return {**degrees, "expert": ranks}


def attention_parallel(degrees: Mapping[str, int], model: Model) -> dict[str, int]:
    """The degrees where each tensor- and data-parallel rank attends to sequences of its own.

    As SGLang's `--enable-dp-attention`, with the experts divided among all ranks.
    """
    divided = expert_parallel(degrees, model, "dp_attention", "; dp serves replicas")
    return {**divided, "tensor": 1, "data": divided["expert"]}


def ranks_together(engine: str, name: str, parallel: Parallelism) -> int:
    """The data-parallel ranks of attention whose limits an engine's option has in one number; 1 where it is of each."""
    shared = parallel.expert > 1 and engine in SERVERS and name in server_of(engine).totals
    return parallel.data if shared else 1


def limited_context(model: Model, longest: int, limit: str) -> int:
    """The maximum context with a `limit`; raises RooflineError beyond that of the model, as vLLM does."""
    if model.max_context is not None and longest > model.max_context:
        raise RooflineError(f"{limit} exceeds the maximum context of {model.name}, {model.max_context} tokens")
    return longest
