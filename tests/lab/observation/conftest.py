"""Rows of public tables, and what the collector's harness makes of them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pandas as pd
import pytest

from lab.observation.collector import Collector
from roofline.specs.hardware import Hardware
from roofline.timing.kernels import kernel
from roofline.validate.observation import Timed
from roofline.validate.tables.rows import Measurements


class Collect(Protocol):
    """What the collector would show for one row, with default constants but for those in `changed`."""

    def __call__(
        self, op: str, row: dict[str, Any], hardware: Hardware, changed: dict[str, float], *, hosted: bool = False
    ) -> Timed: ...


def collected(
    op: str, row: dict[str, Any], hardware: Hardware, changed: dict[str, float], *, hosted: bool = False
) -> Timed:
    """See `Collect`."""
    harness, count = Collector(hosted), max(np.size(value) for value in row.values())
    part = Measurements(op, pd.DataFrame({"kv_dtype": row["dtype"], **row}, range(count)), "table")
    form = kernel(op).format(part.columns)
    own = {one.name: one.default for one in kernel(op).parameters(form)}
    return harness.observe(harness.rows(part), hardware, {**own, **harness.known(op, form, {}), **changed})


@pytest.fixture
def collect() -> Collect:
    """The harness of public tables."""
    return collected
