"""Triton kernels and how they are launched: the only modules that import Triton, each when it is first used."""

from __future__ import annotations

import os

# Multiply-adds are one instruction, whatever the version's default; it must be settled before Triton is imported.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
