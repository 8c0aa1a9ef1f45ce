"""Utilities without any model of inference: quantities, errors, files, expressions, caches, root finding.

In: text, files, functions. Out: numbers in SI units, parsed documents, roots, and one-sentence errors for users.
Imports nothing else of roofline.
"""

from roofline.core.errors import RooflineError, SpecError, UnknownNameError, UnsupportedError
from roofline.core.units import Dimension, parse_quantity

__all__ = ["Dimension", "RooflineError", "SpecError", "UnknownNameError", "UnsupportedError", "parse_quantity"]
