"""Triton kernels run on the GPU where there is one, else in Triton's interpreter.

The interpreter must be enabled before Triton is imported, which no other test does.
"""

from __future__ import annotations

import os
from importlib.util import find_spec


def _has_gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if not _has_gpu():
    os.environ.setdefault("TRITON_INTERPRET", "1")
