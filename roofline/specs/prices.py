"""Prices of devices: rent on demand from public lists, and purchase prices; dated, in `hwspecs/prices/prices.yaml`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from statistics import median

from msgspec import Struct

from roofline.core.checked import Checked, Positive
from roofline.core.errors import RooflineError, quote
from roofline.specs.records import bundled_record


class Offer(Checked, frozen=True):
    """The rent of a device in one public price list, in USD/h."""

    cloud: str
    rent: Positive
    date: datetime.date
    source: str


class Price(Checked, frozen=True):
    """A dated price: `rent` in USD/h, `buy` in USD.

    A rent with `offers` is their median, and `date` the oldest of their dates.
    """

    date: datetime.date
    rent: Positive | None = None
    buy: Positive | None = None
    offers: tuple[Offer, ...] = ()

    @property
    def told(self) -> str:
        """Where the rent is from: the lists with their prices in USD/h, the cheapest first."""
        ordered = sorted(self.offers, key=lambda offer: offer.rent)
        lists = "; ".join(f"{offer.cloud} {offer.rent:.4g} ({offer.date}: {offer.source})" for offer in ordered)
        return f"median of {len(ordered)} on-demand lists: {lists}" if len(ordered) > 1 else lists


class _List(Struct, frozen=True, forbid_unknown_fields=True):
    """A public price list, as read on a day."""

    cloud: str
    date: datetime.date
    source: str


class _Purchase(Struct, frozen=True, forbid_unknown_fields=True):
    """What a device costs to buy, in USD."""

    usd: Positive
    date: datetime.date
    source: str


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    """The file: price lists, rents in USD/h by device and list, and purchase prices by device."""

    lists: dict[str, _List]
    rent: dict[str, dict[str, Positive]]
    buy: dict[str, _Purchase]

    def __post_init__(self) -> None:
        for device, rents in self.rent.items():
            if unknown := rents.keys() - self.lists.keys():
                raise RooflineError(f"'rent.{device}' names no list {quote(min(unknown))}")


def _table() -> _Table:
    return bundled_record(_Table, "hwspecs/prices/prices.yaml")


def rents() -> dict[str, float]:
    """The median rent (USD/h) of the bundled devices that a list has."""
    return {name: median(found.values()) for name, found in _table().rent.items()}


def bundled_price(name: str) -> tuple[Price | None, Mapping[str, str]]:
    """The price of a bundled device, None where no list has it, and the sources of its figures by key."""
    table = _table()
    lists = ((table.lists[key], rent) for key, rent in table.rent.get(name, {}).items())
    offers = tuple(Offer(entry.cloud, rent, entry.date, entry.source) for entry, rent in lists)
    bought = table.buy.get(name)
    dates = [offer.date for offer in offers] or ([] if bought is None else [bought.date])
    if not dates:
        return None, {}
    rent = round(median(offer.rent for offer in offers), 4) if offers else None
    price = Price(min(dates), rent, None if bought is None else bought.usd, offers)
    sources = {"price.rent": price.told} if offers else {}
    return price, sources if bought is None else {**sources, "price.buy": bought.source}
