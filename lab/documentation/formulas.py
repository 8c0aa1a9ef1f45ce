"""Formulas of the theory, typeset: indented lines such as `time   t = launch + (T_S^p + T_M^p)^(1/p)` as MathML.

Docstrings and the repository show them as text; the built pages have a table of labels, formulas and remarks, which
browsers draw without a script. Products bind closest, then `/`, `x`, and `+`; names of several letters stay words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

_BLOCK = re.compile(r"(?:^ {4}\S.*\n(?: {4}.*\n)*)", re.MULTILINE)
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_ASSIGNED = re.compile(r"^(?:[\w^'|()]+ ?){1,4}[+]?= ")
_SYMBOL = re.compile(
    r"\s*(?P<symbol>`[^`]+`|\d+-[a-z]+|\d[\d,]*\d(?:\.\d+)?|\d+(?:\.\d+)?|[A-Za-z]\w*(?:-[a-z]+)*(?:'s?)?"
    r"|<=|>=|\+-|\+=|[-+*/^=,;:<>|()\[\].%])(?P<call>(?<=\w)(?=\())?"
)
_SIGNS = {"-": "−", "<=": "≤", ">=": "≥", "+-": "±", "*": "·"}
_WORDS = {"rho": "ρ", "us": "µs"}
_FUNCTIONS = ("max", "min", "log", "log2", "ln", "exp", "sqrt", "ceil", "floor")
_CLOSING = {"(": ")", "[": "]"}
_FENCES = {"ceil": ("⌈", "⌉"), "floor": ("⌊", "⌋")}


class _NoFormulaError(ValueError):
    """A line that is none."""


def typeset(markdown: str) -> str:
    """A page with its formulas typeset; blocks that are none, and what stands in fences, are as they were."""
    parts = _FENCE.split(markdown)
    return "".join(part if index % 2 else _BLOCK.sub(_table, part) for index, part in enumerate(parts))


def _table(found: re.Match[str]) -> str:
    block = found[0]
    if not re.search(r" <?= |\S / \S", block) or re.search(r"^ {4}(?:\$|python |roofline |>>> )", block, re.MULTILINE):
        return block
    try:
        rows = "".join(f"<tr>{row}</tr>" for row in _rows(block))
    except _NoFormulaError:
        return block
    return f'<div class="formulas"><table class="formulas">{rows}</table></div>\n'


def _rows(block: str) -> Iterator[str]:
    """The rows: a label, formulas, and a remark."""
    lines: list[str] = []
    for line in block.splitlines():
        if lines and re.match(r"\s+[-+] ", line):
            lines[-1] += f" {line.strip()}"
        elif line.strip():
            lines.append(line.strip())
    for line in lines:
        label, formulas, remark = "", list[str](), list[str]()
        for index, field in enumerate(re.split(r"\s{2,}", re.sub(r"\s+= +", " = ", line))):
            opened = bool(formulas) and formulas[-1].count("(") > formulas[-1].count(")")
            if opened or (formulas and not remark and re.match(r"[-+\[]", field)):
                formulas[-1] += f" {field}"
            elif _is_formula(field) and not remark:
                formulas.append(field)
            elif index == 0:
                label = field
            else:
                remark.append(field)
        if label and not formulas and not remark:
            label, remark = "", [label]
        math = "".join(
            f'<math displaystyle="true">{_Parser(formula.rstrip(",")).whole()}</math> ' for formula in formulas
        )
        yield f"<th>{_text(label)}</th><td>{math}</td><td>{_text('; '.join(remark))}</td>"


def _is_formula(field: str) -> bool:
    """Whether a field assigns something, or is a quotient or a power."""
    return not re.search(r"[:;] |`", field) and bool(_ASSIGNED.match(field) or re.search(r" / | <= |\^", field))


def _text(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


class _Parser:
    """A formula by recursive descent."""

    def __init__(self, text: str) -> None:
        self.symbols: list[tuple[str, bool]] = []
        at = 0
        while at < len(text.rstrip()):
            found = _SYMBOL.match(text, at)
            if found is None:
                raise _NoFormulaError(text[at:])
            self.symbols.append((found["symbol"], found["call"] is not None))
            at = found.end()
        self.at = 0

    def whole(self) -> str:
        found = self._list()
        if self.at < len(self.symbols):
            raise _NoFormulaError(self._next)
        return found

    @property
    def _next(self) -> str:
        return self.symbols[self.at][0] if self.at < len(self.symbols) else ""

    def _take(self) -> tuple[str, bool]:
        self.at += 1
        return self.symbols[self.at - 1]

    def _list(self, small: bool = False) -> str:
        """Sums between relations, commas and other signs of punctuation."""
        parts = []
        while self._next not in ("", ")", "]"):
            if self._next in ("=", ",", ";", ":", "<", ">", "<=", ">=", "+=", ".", "|", "%"):
                parts.append(_sign(self._take()[0]))
            else:
                parts.append(self._sum(small))
        return "".join(parts)

    def _sum(self, small: bool) -> str:
        parts = [_sign(self._take()[0])] if self._next in ("+", "-", "+-") else []
        parts.append(self._times(small))
        while self._next in ("+", "-", "+-", "*"):
            parts += [_sign(self._take()[0]), self._times(small)]
        return "".join(parts)

    def _times(self, small: bool) -> str:
        parts = [self._quotient(small)]
        while self._is_times():
            self._take()
            parts += ["<mo>×</mo>", self._quotient(small)]
        return "".join(parts)

    def _is_times(self) -> bool:
        """Whether the letter x that comes is a sign: it has a value on both sides."""
        following = self.symbols[self.at + 1][0] if self.at + 1 < len(self.symbols) else ""
        return self._next == "x" and self.at > 0 and bool(re.match(r"[\w(]", following))

    def _quotient(self, small: bool) -> str:
        found = self._product(small)
        while self._next == "/":
            self._take()
            below = self._product(small)
            found = f"{found}<mo>/</mo>{below}" if small else f"<mfrac>{_inside(found)}{_inside(below)}</mfrac>"
        return found

    def _product(self, small: bool) -> str:
        parts = [self._power(small)]
        while re.match(r"[\w(\[`]", self._next) and not self._is_times():
            parts.append(self._power(small))
        return '<mspace width="0.22em"/>'.join(parts)

    def _power(self, small: bool) -> str:
        base = self._atom(small)
        if self._next != "^":
            return base
        self._take()
        bracketed = self._next == "("
        above = self._atom(small=True, bare=bracketed)
        return f"<msup><mrow>{base}</mrow><mrow>{above}</mrow></msup>"

    def _atom(self, small: bool, bare: bool = False) -> str:
        """A number, a name with what it is of, or what stands in brackets; `bare` without them."""
        symbol, called = self._take() if self._next else ("", False)
        if symbol in _CLOSING:
            inside = self._list(small)
            if self._next != _CLOSING[symbol]:
                raise _NoFormulaError(self._next)
            self._take()
            return inside if bare else f"<mrow><mo>{symbol}</mo>{inside}<mo>{_CLOSING[symbol]}</mo></mrow>"
        if not re.match(r"[\w`]", symbol):
            raise _NoFormulaError(symbol)
        if called and symbol in (*_FENCES, "sqrt"):
            inside = self._atom(small, bare=True)
            left, right = _FENCES.get(symbol, ("", ""))
            return (
                f"<msqrt>{inside}</msqrt>"
                if symbol == "sqrt"
                else f"<mrow><mo>{left}</mo>{inside}<mo>{right}</mo></mrow>"
            )
        name = _name(symbol, self._next)
        return name + self._atom(small) if called else name


def _inside(found: str) -> str:
    """What stands above or below a bar, without brackets around all of it."""
    left, right = "<mrow><mo>(</mo>", "<mo>)</mo></mrow>"
    whole = found.startswith(left) and found.endswith(right) and "<mo>(</mo>" not in found[len(left) :]
    return f"<mrow>{found[len(left) : -len(right)] if whole else found}</mrow>"


def _sign(symbol: str) -> str:
    return f"<mo>{escape(_SIGNS.get(symbol, symbol))}</mo>"


def _name(symbol: str, following: str) -> str:
    """A number, a variable with its index, or words."""
    if symbol[0].isdigit():
        return f"<mn>{symbol}</mn>" if symbol[-1].isdigit() else f"<mtext>{symbol}</mtext>"
    if symbol[0] == "`":
        return f"<mtext>{escape(symbol[1:-1])}</mtext>"
    if symbol == "sum" and following not in ("over", "of"):
        return "<mo>∑</mo>"
    found = re.fullmatch(r"([A-Za-z])(?:_(\w+)|(\d))?('?)", symbol)
    word = found is None or (symbol == "a" and following.isalpha() and len(following) > 1)
    if word or found is None:
        kind = "mi" if symbol in _FUNCTIONS else "mtext"
        return f'<{kind} mathvariant="normal">{_WORDS.get(symbol, symbol)}</{kind}>'
    letter, index = f"<mi>{found[1]}</mi>", found[2] or found[3]
    letter = f"<msup>{letter}<mo>′</mo></msup>" if found[4] else letter
    if not index:
        return letter
    below = f"<mi>{index}</mi>" if len(index) == 1 else f"<mtext>{index}</mtext>"
    return f"<msub>{letter}{below}</msub>"
