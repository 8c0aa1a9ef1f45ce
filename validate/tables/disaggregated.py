"""Rows of disaggregated deployments as cases, in the columns of AIConfigurator's validation data.

The layouts of a worker of prefill and of decode, and the number of workers, stand in prefill_ and decode_ num_workers,
tp_size, attention_dp_size, moe_tp_size and moe_ep_size; times are milliseconds. The rest is as in InferenceX's runs
(`roofline.validate.tables.inferencex`), of which most of these rows are. Rows of TensorRT-LLM state the tag of an image
of Dynamo as the version of the backend.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from roofline.graph.parallel import Parallelism
from roofline.serving.pools import Pools
from roofline.specs.model import Model
from roofline.validate.tables.harness import numbers
from roofline.validate.tables.inferencex import Deployment, count, in_dynamo, positive
from roofline.validate.tables.names import find_hardware, find_model
from roofline.validate.tables.serving import ServingCase
from roofline.validate.tables.text import Line

COLUMNS = (
    *("backend", "backend_version", "model_path", "hardware", "precision", "isl", "osl", "concurrency"),
    *("silicon_ttft_ms", "silicon_tpot_ms"),
    *(
        f"{pool}_{name}"
        for pool in ("prefill", "decode")
        for name in ("num_workers", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    ),
)

DISAGGREGATES = (0, 18)
"""A release of TensorRT-LLM that serves prefill and decode apart (nvidia.github.io/TensorRT-LLM/0.18.2, page
disaggregated-service); lower numbers are releases of Dynamo."""


def to_case(line: Line) -> ServingCase:
    """A row as pools of prefill and decode under a load; raises RooflineError with the reason where it cannot be."""
    cells = line.cells
    model = find_model(cells["model_path"])
    prefill, decode = (_layout(cells, pool, model) for pool in ("prefill", "decode"))
    prefills, decodes = (count(cells, f"{pool}_num_workers") for pool in ("prefill", "decode"))
    backend, version = cells["backend"].strip().lower(), cells["backend_version"].strip()
    if backend == "trtllm" and numbers(version) < DISAGGREGATES:
        version = in_dynamo(backend, version)
    asked = Deployment(
        model,
        find_hardware(cells["hardware"]).hardware,
        backend,
        version,
        frozenset({cells["precision"].strip().lower()}),
        prefill,
        Pools(prefills, decodes, parallel=decode),
    )
    case = asked.case(line, count(cells, "isl"), count(cells, "osl"), count(cells, "concurrency"))
    ttft, tpot = (positive(cells[f"silicon_{metric}_ms"]) for metric in ("ttft", "tpot"))
    return replace(case, ttft=ttft and 1e-3 * ttft, tpot=tpot and 1e-3 * tpot)


def _layout(cells: Mapping[str, str], pool: str, model: Model) -> Parallelism:
    """Experts whose width is cut over data ranks are taken as divided among all of them."""
    tensor, ranks, expert = (count(cells, f"{pool}_{name}") for name in ("tp_size", "attention_dp_size", "moe_ep_size"))
    if not model.experts:
        return Parallelism(tensor=tensor, data=ranks)
    return Parallelism(tensor=tensor, data=ranks, expert=expert if ranks == 1 or expert > 1 else tensor * ranks)
