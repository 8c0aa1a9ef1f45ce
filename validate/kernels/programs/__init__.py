"""Triton programs. Importing a module here needs Triton; the benchmarks do so when their `triton` way is first used."""

from __future__ import annotations

import os

# Multiply-adds are fused, as Triton has always done unless told otherwise; unset, it warns that this will change.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
