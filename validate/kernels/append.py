"""Benchmark of the KV append: keys and values of new tokens written to their slots of a paged cache.

It moves what a copy of `rows` tokens by `columns` elements (keys and values together) moves, and is a row of op `copy`
with kernels of its own.
"""

from __future__ import annotations

import torch

from roofline.validate.kernels.benchmark import Benchmark, Tensors
from roofline.validate.kernels.streaming import FLOATS
from roofline.validate.kernels.tools import Random, poisoned, triton_refusal
from roofline.validate.kernels.work import Case

SPARSE = 4
"""Slots of the cache for each new token, so that neighbours in a batch are none in memory."""


class KvAppend(Benchmark):
    """The KV append.

    Inputs `keys` and `values` (rows, columns / 2), `slots` (rows) of int32, the same in int64 as `indices` for PyTorch;
    outputs `key_cache` and `value_cache`.
    A cache has (slots, columns / 2) elements.
    Slots that no token was written to keep their poison.
    """

    op = "copy"
    dtypes = FLOATS

    def __init__(self) -> None:
        self.backends = {"triton_append": _triton, "torch_append": _torch}

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Normal keys and values, and shuffled slots."""
        random, rows, width = Random(device, seed), case["rows"], case["columns"] // 2
        slots = random.permutation(SPARSE * rows)[:rows]
        drawn = {name: random.normal(rows, width, dtype=case.dtype) for name in ("keys", "values")}
        return {**drawn, "slots": slots.to(torch.int32), "indices": slots}

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """The poisoned caches."""
        shape = (SPARSE * case["rows"], case["columns"] // 2)
        return {name: poisoned(*shape, dtype=case.dtype, device=device) for name in ("key_cache", "value_cache")}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The caches in float64, NaN where nothing belongs."""
        found = {}
        for name, source in (("key_cache", "keys"), ("value_cache", "values")):
            cache = torch.full((SPARSE * case["rows"], case["columns"] // 2), torch.nan, dtype=torch.float64)
            cache = cache.to(inputs[source].device)
            cache[inputs["slots"].long()] = inputs[source].double()
            found[name] = cache
        return found

    def _refusal(self, case: Case, backend: str, device: str) -> str | None:
        if case["columns"] % 2:
            return "columns must be even: keys and values"
        return triton_refusal(device) if backend == "triton_append" else None


def _triton(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    from roofline.validate.kernels.triton_kernels.streaming import append

    del case
    append(inputs["keys"], inputs["values"], outputs["key_cache"], outputs["value_cache"], inputs["slots"])


def _torch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    del case
    for name, source in (("key_cache", "keys"), ("value_cache", "values")):
        outputs[name].index_copy_(0, inputs["indices"], inputs[source])


APPEND = KvAppend()
