"""Answers: what all results of the verbs offer.

Text, HTML, document and table come from the room of reports, by the name of the class: earlier rooms do not import it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


def _reports() -> Any:
    return import_module("roofline.reports.answers")


class Result:
    """An answer: `str` is a summary in a few lines, a notebook shows all of it; it can be pickled."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(_reports().text(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.described})"

    @property
    def described(self) -> str:
        """What the answer is about, in short."""
        scenario = getattr(self, "scenario", None)
        return "" if scenario is None else str(scenario.described)

    def _repr_html_(self) -> str | None:
        html: str | None = _reports().html(self)
        return html

    def to_dict(self) -> dict[str, Any]:
        """The document that the command prints as JSON; times in seconds, sizes in bytes."""
        document: dict[str, Any] = _reports().document(self)
        return document

    def to_frame(self) -> pandas.DataFrame:
        """The rows of the answer as a DataFrame; pandas comes with the extra `report`."""
        frame: pandas.DataFrame = _reports().frame(self)
        return frame
