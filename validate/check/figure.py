"""A published or measured figure beside its prediction, as the check compares and shows it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from roofline.validate.score.errors import Predicted


class Figure(Struct, frozen=True):
    """A figure and its prediction, both in `unit`; `rate`: more is faster.

    A size is `exact`: its prediction has neither bound nor interval. A load has no bound (`bounded`): in the committed
    file the end of the interval on its side stands for it.
    """

    id: str
    unit: str
    published: float
    prediction: Predicted
    rate: bool = False
    exact: bool = False
    bounded: bool = True
    group: str = ""
    source: str = ""
    metric: str = ""
    conditions: str = ""
    note: str | None = None
    faster_than_bound: str | None = None

    def error(self, predicted: float) -> float:
        """The relative error of a prediction; of a rate, that of the corresponding time.

        A negative error always means that the prediction is too fast (or too small).
        """
        return (self.published / predicted if self.rate else predicted / self.published) - 1

    @property
    def row(self) -> dict[str, Any]:
        """The figure in the document of a check."""
        bound, low, mid, high = self.prediction
        return {
            "id": self.id,
            "group": self.group,
            "source": self.source,
            "metric": self.metric,
            "conditions": self.conditions,
            "unit": self.unit,
            "published": self.published,
            "bound": bound if self.bounded else None,
            "low": low,
            "mid": mid,
            "high": high,
            "error": self.error(mid),
            "bound_error": self.error(bound) if self.bounded and not self.exact else None,
            "inside": low <= self.published <= high if low < high and not self.exact else None,
            "note": self.note,
            "faster_than_bound": self.faster_than_bound,
        }
