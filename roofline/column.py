"""What the columns of answers hold, and so the names in conditions on them."""

from __future__ import annotations

from enum import StrEnum


class Type(StrEnum):
    """What a name or a part of an expression is."""

    NUMBER = "a number"
    TRUTH = "true or false"
    TEXT = "text"
