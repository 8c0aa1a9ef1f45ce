"""Triton kernels and their launchers. Benchmarks import these modules on the first run of their `triton` backend."""

from __future__ import annotations

import os

# Fuse multiply-adds, Triton's long-standing default; without the variable, Triton warns that the default will change.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
