"""Formulas of the documentation: text of docstrings as MathML."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from lab.documentation.build import DOCS
from lab.documentation.formulas import typeset


def drawn(line: str) -> str:
    """The text of a line's formulas, with what is above and below bars and beside letters in braces."""
    found = re.findall(r"<math.*?</math>", typeset(f"    {line}\n"))
    return " | ".join(_text(ElementTree.fromstring(each)) for each in found)


def _text(node: ElementTree.Element) -> str:
    if node.tag in ("mfrac", "msub", "msup"):
        return f"{node.tag[1:]}{{{';'.join(map(_text, node))}}}"
    return (node.text or "") + "".join(map(_text, node))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("t = launch + (T_S^p + T_M^p)^(1/p)", "t=launch+sup{(sup{sub{T;S};p}+sup{sub{T;M};p});1/p}"),
        ("units   T_M = 2 n k / (e_B bandwidth)    a remark", "sub{T;M}=frac{2nk;sub{e;B}bandwidth}"),
        ("N = ceil(m / b_m) x 4", "N=⌈frac{m;sub{b;m}}⌉×4"),
        ("a = x / y / z,   b = x + 1", "a=frac{frac{x;y};z} | b=x+1"),
        ("E = sum n_k e_k - k' <= sum over rows", "E=∑sub{n;k}sub{e;k}−sup{k;′}≤sumoverrows"),
    ],
)
def test_a_formula_as_it_is_drawn(line: str, expected: str) -> None:
    assert drawn(line) == expected


@pytest.mark.parametrize("line", ["a list    of words", "$ roofline a / b", "x = (1 + 2", "t = a ? b"])
def test_what_is_no_formula_stays_as_it_is(line: str) -> None:
    assert typeset(f"    {line}\n") == f"    {line}\n"


def test_every_formula_of_the_theory_is_typeset() -> None:
    """Blocks with an equals sign are all read."""
    for page in (DOCS / "theory").glob("*.md"):
        text = re.sub(r"^```.*?^```$", "", typeset(page.read_text(encoding="utf-8")), flags=re.DOTALL | re.MULTILINE)
        left = [line for line in text.splitlines() if re.match(r" {4}.* = ", line)]
        assert left == [], page.name
