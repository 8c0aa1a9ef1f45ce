"""Offloading: weights and KV cache that are stored off the device and streamed to it, and tables that it looks up."""

from __future__ import annotations

from roofline.core.checked import Checked, Positive
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import Dimension, parse_quantity

FRACTIONS = "weights", "kv", "tables"


class Offload(Checked, frozen=True):
    """The fractions of weights and KV cache that are stored off the device and streamed to it in every pass.

    They are streamed over the host link, or at `bandwidth` (B/s) from slower storage such as an SSD. `tables`: that of
    tables of n-grams, of which a pass reads the rows of its tokens there; None: where the engine puts them.
    """

    weights: float = 0.0
    kv: float = 0.0
    bandwidth: Positive | None = None
    tables: float | None = None

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        for name in FRACTIONS:
            if not 0 <= (getattr(self, name) or 0) <= 1:
                raise RooflineError(
                    f"the offloaded fraction of {name} must be between 0 and 1, got {getattr(self, name)}"
                )

    @property
    def tables_kept(self) -> float:
        """The fraction of tables of n-grams on the device."""
        return 1 - (self.tables or 0.0)

    @property
    def written(self) -> str:
        """The text that `parse_offload` reads."""
        parts = [f"{name}={getattr(self, name)!r}" for name in ("weights", "kv") if getattr(self, name)]
        if self.tables is not None:
            parts.append(f"tables={self.tables!r}")
        if self.bandwidth is not None:
            parts.append(f"bandwidth={self.bandwidth!r}B/s")
        return ",".join(parts)


RESIDENT = Offload()


def parse_offload(text: str | None) -> Offload:
    """The offload that `weights=0.5,kv=1,bandwidth=7GB/s` describes; None keeps everything on the device."""
    if text is None:
        return RESIDENT
    given: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        key = key.strip()
        if key not in (*FRACTIONS, "bandwidth"):
            raise UnknownNameError("part to offload", key, (*FRACTIONS, "bandwidth"))
        if key in given:
            raise RooflineError(f"offload names {key} twice", options=["offload"])
        if key == "bandwidth":
            given[key] = parse_quantity(value, Dimension.BANDWIDTH).value
            continue
        try:
            given[key] = float(value)
        except ValueError:
            raise RooflineError(f"offload: {quote(part)} is not a fraction; write it like weights=0.5") from None
    return Offload(**given)
