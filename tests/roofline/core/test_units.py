"""Quantities with units."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.core.errors import RooflineError
from roofline.core.units import Dimension, parse_count, parse_quantity, seconds, si


@pytest.mark.parametrize(
    ("text", "value"),
    [("1k", 1000), ("1K", 1024), ("2M", 2 * 2**20), ("2m", 2e6), ("25.6k", 25600), ("128K", 131072), ("512", 512)],
)
def test_counts_as_vllm_reads_them(text: str, value: float) -> None:
    """The examples of vLLM's `human_readable_int`, and lengths that models have."""
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["k", "1.5K", "1kk", "1 2k", "٣k", "1KB", "k1"])
def test_texts_that_are_no_count(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GB", Dimension.BYTES, 80e9),
        ("80GiB", Dimension.BYTES, 80 * 2**30),
        ("512 KiB", Dimension.BYTES, 512 * 2**10),
        ("3.35 TB/s", Dimension.BANDWIDTH, 3.35e12),
        ("1 PFLOP/s", Dimension.RATE, 1e15),
        ("1979 TOP/s", Dimension.RATE, 1.979e15),
        ("1.83 GHz", Dimension.FREQUENCY, 1.83e9),
        ("1.5 us", Dimension.TIME, 1.5e-6),
        ("700 W", Dimension.POWER, 700),
        ("2.99 USD/h", Dimension.MONEY_RATE, 2.99),
        ("132", Dimension.COUNT, 132),
        (132, Dimension.COUNT, 132),
        ("1e3 GB", Dimension.BYTES, 1e12),
    ],
)
def test_parse_quantity(text: object, dimension: Dimension, value: float) -> None:
    assert parse_quantity(text, dimension).value == pytest.approx(value, rel=1e-15)


def test_source_and_remark_in_brackets() -> None:
    assert parse_quantity("80 GB [datasheet]", Dimension.BYTES) == (80e9, "datasheet", None)
    quantity = parse_quantity("989.4 TFLOP/s [paper; half the sparse figure]", Dimension.RATE)
    assert quantity == (989.4e12, "paper", "half the sparse figure")


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("80", Dimension.BYTES),  # no unit
        ("80 GB/s", Dimension.BYTES),
        ("-80 GB", Dimension.BYTES),
        ("nan GB", Dimension.BYTES),
        ("1e400 GB", Dimension.BYTES),
        ("eighty GB", Dimension.BYTES),
        (None, Dimension.BYTES),
        ([1], Dimension.COUNT),
        ("3.35 TiFLOP/s", Dimension.RATE),
    ],
)
def test_invalid_quantities_are_rejected(text: object, dimension: Dimension) -> None:
    with pytest.raises(RooflineError):
        parse_quantity(text, dimension)


@given(st.floats(1, 1e18))
def test_si_keeps_three_digits_and_parses_back(value: float) -> None:
    assert parse_quantity(si(value, "B"), Dimension.BYTES).value == pytest.approx(float(f"{value:.3g}"), rel=1e-9)


@given(st.floats(1e-9, 1e5))
def test_seconds_keeps_three_digits(value: float) -> None:
    number, unit = seconds(value).split()
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * scale == pytest.approx(value, rel=0.006)
    assert unit == "s" or float(number) < 1000


def test_si_and_seconds_examples() -> None:
    assert si(67108864, "B") == "67.1 MB"
    assert si(999.9e9, "B") == "1.00 TB"
    assert si(0, "B") == "0 B"
    assert si(math.inf) == "inf"
    assert seconds(0.0123) == "12.3 ms"
    assert seconds(0.9999e-3) == "1.00 ms"
