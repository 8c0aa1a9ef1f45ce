"""Tables of documents by columns."""

from roofline.core.units import seconds
from roofline.reports.output.cells import Column, csv_of, table_of

ROWS = [
    {"name": "a", "ttft_s": {"mid": 0.0123}, "share": 0.5, "stable": True},
    {"name": "b", "ttft_s": {"mid": None}, "share": None, "stable": False},
]


def test_what_is_none_has_its_own_word() -> None:
    endless = Column("TTFT", "ttft_s.mid", seconds, lambda row: "-" if row["stable"] else "unbounded")
    header, cells = table_of([Column("", "name"), endless, Column("share", "share", ".0%")], ROWS)
    assert header == ["", "TTFT", "share"]
    assert cells == [["a", seconds(0.0123), "50%"], ["b", "unbounded", "-"]]


def test_csv_has_nested_figures_and_empty_cells() -> None:
    assert csv_of({"name": "name", "ttft": "ttft_s.mid"}, ROWS).splitlines() == ["name,ttft", "a,0.0123", "b,"]
    assert csv_of(["name", "share"], ROWS).splitlines() == ["name,share", "a,0.5", "b,"]
