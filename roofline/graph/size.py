"""Symbolic sizes: polynomials in the workload's extents.

Tensor elements and FLOPs depend on the workload only through a few extents: batch, queries per sequence, visible keys,
and query-key pairs. A `Size` is a polynomial in them, so that a graph is built once and then *evaluated* for a workload
or a grid of workloads:

>>> batch, queries = symbol("batch"), symbol("queries")
>>> flops = 2 * batch * queries * 4096 * 4096
>>> flops.evaluate({"batch": 1, "queries": 2048})
68719476736
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, reduce
from operator import mul
from typing import Any, TypeAlias

Monomial: TypeAlias = tuple[str, ...]
"""The sorted extents of one term; `()` is the constant term."""


class Size:
    """A polynomial with numeric coefficients in the extents of a workload. Immutable; supports +, * and / number."""

    __slots__ = ("_hash", "terms")
    terms: Mapping[Monomial, float]
    _hash: int

    def __init__(self, terms: Mapping[Monomial, float]) -> None:
        whole = all(terms.values())
        self.terms = terms if whole else {names: value for names, value in terms.items() if value}

    def __add__(self, other: Dim | float) -> Size:
        total = dict(self.terms)
        for names, value in as_size(other).terms.items():
            total[names] = total.get(names, 0) + value
        return Size(total)

    def __mul__(self, other: Dim | float) -> Size:
        if isinstance(other, (int, float)):
            return Size({names: value * other for names, value in self.terms.items()})
        product: dict[Monomial, float] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                names = tuple(sorted(left + right))
                product[names] = product.get(names, 0) + a * b
        return Size(product)

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Size:
        return Size({names: value / other for names, value in self.terms.items()})

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Size, int, float)):
            return self.terms == as_size(other).terms
        return NotImplemented

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(frozenset(self.terms.items()))
            return self._hash

    def __repr__(self) -> str:
        def term(names: Monomial, value: float) -> str:
            return "*".join((*([] if names and value == 1 else [f"{value:g}"]), *names))

        return " + ".join(term(*item) for item in self.terms.items()) or "0"

    def evaluate(self, extents: Mapping[str, Any]) -> Any:
        """The value for the given extents: a number, or an array where any of them is an array."""
        return sum(reduce(mul, (extents[name] for name in names), value) for names, value in self.terms.items())


Dim: TypeAlias = int | Size
"""One dimension of a shape: a fixed length, or a Size that depends on the workload."""

ZERO = Size({})


class Extent(str):
    """The name of an extent with the rule that gives its value for a pass, None for those of the pass itself."""

    rule: Any = None


def symbol(name: str, rule: Any = None) -> Size:
    """The extent called `name`, which a `rule` of `roofline.graph.extents` gives."""
    extent = Extent(name)
    extent.rule = rule
    return Size({(extent,): 1})


def rules_of(sizes: Iterable[Size]) -> Iterator[Any]:
    """The rules that give the extents of sizes."""
    extents = {name for size in sizes for names in size.terms for name in names}
    return (name.rule for name in extents if isinstance(name, Extent) and name.rule is not None)


def as_size(value: Dim | float) -> Size:
    """`value` as a Size."""
    return value if isinstance(value, Size) else Size({(): value})


@lru_cache(maxsize=1 << 16)
def product(shape: tuple[Dim, ...]) -> Size:
    """The number of elements of a shape."""
    fixed, rest = 1, []
    for dim in shape:
        if isinstance(dim, Size):
            rest.append(dim)
        else:
            fixed *= dim
    return reduce(mul, rest) * fixed if rest else Size({(): fixed})


def total(sizes: Iterable[Size]) -> Size:
    """The sum of `sizes`."""
    terms: dict[Monomial, float] = {}
    for size in sizes:
        for names, value in size.terms.items():
            terms[names] = terms.get(names, 0) + value
    return Size(terms)
