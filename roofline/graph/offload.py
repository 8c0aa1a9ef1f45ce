"""Offloading: weights and KV cache that are stored off the device and streamed to it."""

from __future__ import annotations

from roofline.core.checked import Checked, Positive
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import Dimension, parse_quantity


class Offload(Checked, frozen=True):
    """The fractions of weights and KV cache that are stored off the device and streamed to it in every pass.

    They are streamed over the host link, or at `bandwidth` (B/s) from slower storage such as an SSD.
    """

    weights: float = 0.0
    kv: float = 0.0
    bandwidth: Positive | None = None

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        for name in ("weights", "kv"):
            if not 0 <= getattr(self, name) <= 1:
                raise RooflineError(
                    f"the offloaded fraction of {name} must be between 0 and 1, got {getattr(self, name)}"
                )

    @property
    def written(self) -> str:
        """The text that `parse_offload` reads."""
        parts = [f"{name}={getattr(self, name)!r}" for name in ("weights", "kv") if getattr(self, name)]
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
        if key not in ("weights", "kv", "bandwidth"):
            raise UnknownNameError("part to offload", key, ("weights", "kv", "bandwidth"))
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
