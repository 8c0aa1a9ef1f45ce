"""Prices: the table of public lists, and what a spec of one's own says."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from roofline import list_hardware, load_hardware
from roofline.specs.library import spec_files
from roofline.specs.prices import _table, bundled_price

TABLE = _table()


def test_every_price_is_of_bundled_hardware_dated_and_sourced() -> None:
    assert {*TABLE.rent, *TABLE.buy} <= set(list_hardware())
    assert all("http" in entry.source and entry.date.year >= 2023 for entry in TABLE.lists.values())
    assert {key for rents in TABLE.rent.values() for key in rents} == set(TABLE.lists)
    assert all(entry.source for entry in TABLE.buy.values())


@pytest.mark.parametrize("name", sorted(TABLE.rent))
def test_a_rent_is_the_median_of_lists_of_different_clouds(name: str) -> None:
    price, sources = bundled_price(name)
    assert price is not None
    assert price.rent == pytest.approx(median(TABLE.rent[name].values()), rel=1e-3)
    clouds = [offer.cloud for offer in price.offers]
    assert len(clouds) == len(set(clouds))
    assert price.date == min(offer.date for offer in price.offers)
    assert all(cloud in sources["price.rent"] for cloud in clouds)


def test_hardware_in_no_list_has_no_price() -> None:
    assert bundled_price("m3-ultra") == (None, {})
    assert load_hardware("m3-ultra").price is None


def test_a_spec_of_ones_own_has_its_own_price_or_none(tmp_path: Path) -> None:
    text = spec_files("hwspecs")["h100-sxm"].read_text()
    path = tmp_path / "own.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_hardware(str(path)).price is None
    path.write_text(text + "price:\n  rent: 2.5 USD/h [idle]\n  date: 2026-01-01\n", encoding="utf-8")
    price = load_hardware(str(path)).price
    assert price is not None
    assert (price.rent, price.offers) == (2.5, ())
