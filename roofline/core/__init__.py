"""Utilities without any model of inference: quantities, errors, files, expressions, caches, root finding.

In: text, files, functions. Out: numbers in SI units, parsed documents, roots, and one-sentence errors for users.
Imports nothing else of roofline.
"""

import copyreg
from types import MappingProxyType
from typing import Any

from roofline.core.errors import RooflineError, SpecError, UnknownNameError, UnsupportedError
from roofline.core.units import Dimension, parse_quantity

__all__ = ["Dimension", "RooflineError", "SpecError", "UnknownNameError", "UnsupportedError", "parse_quantity"]


def _read_only(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)  # a class that pickle does not find by its name


copyreg.pickle(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))
