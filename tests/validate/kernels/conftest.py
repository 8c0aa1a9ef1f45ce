"""Triton kernels are interpreted where there is no GPU; this must be settled before Triton is imported."""

from __future__ import annotations

import os

try:
    import torch

    DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
except ImportError:
    DEVICE = "cpu"

if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")
