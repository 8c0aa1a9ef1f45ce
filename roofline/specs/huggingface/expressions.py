"""Values of a spec as expressions over the keys of a config.json: `n_shared_experts | 1`, `expand * hidden_size`.

They stand in tables of this package, in Python's syntax, and are never run. A name is a key of the file, `section.key`
one of a section, `key[index]` the entry of the layer in a list. `/` joins spellings of a key, `|` is "or else": the
first that the file or its class has counts; where `auto` is among them, that text counts as none. What a key may hold
follows from the spec's field: its bounds, a flag, or one of some texts, which stand for themselves. `factor(key | 2)`
is a number that need not be whole, `count(key)` that of the entries of a list, `positive(key)` one above 0 and
`within(key, 1, 16)` one in other bounds, where the field has others, `given(key)` whether a file has the key, which is
left to others, `named('V2')` whether a class that the file names has a text in its name, and `index` counts the layers
from 0.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

from msgspec import NODEFAULT, Struct, inspect
from msgspec.structs import replace

from roofline.core import numeric as np
from roofline.specs.huggingface.config import ACTIVATIONS, FORMATS, Config, of_each_layer

_WORDS = {"true": True, "false": False, "null": None}
_ACTIVATIONS = frozenset(ACTIVATIONS.values())


class Kind(Struct, frozen=True):
    """What a key of a file holds: a flag, a text, an integer of `least` to `most`, or one of a spec's own `texts`.

    `needed`: a file without the key is an error; else the value is None.
    """

    flag: bool = False
    text: bool = False
    least: int = 1
    most: int = 10**7
    texts: frozenset[str] = frozenset()
    needed: bool = False

    def read(self, config: Config, names: list[str]) -> Any:
        """The value of the first of the keys that the file has."""
        if self.texts >= _ACTIVATIONS:
            return config.activation(*names, default="")
        if self.texts and self.texts <= set(FORMATS.values()):
            return config.format(*names)
        if not config.has(*names) and not self.needed:
            return None
        if self.flag or self.text:
            name = next(filter(config.has, names), names[0])
            return config.flag(name, False) if self.flag else config.text(name)
        return config.integer(*names, least=self.least, most=self.most)


NUMBER, NATURAL, FLAG, TEXT = Kind(needed=True), Kind(least=0, needed=True), Kind(flag=True), Kind(text=True)
WINDOW = Kind(least=0, most=10**9)


class Scope(Struct, frozen=True):
    """What an expression is about: a file, the number of its layers, and `others` by name, files or specs."""

    config: Config
    layers: int = 0
    others: Mapping[str, Any] = {}


Value = Callable[[Kind, Scope], Any]
"""An expression, compiled: its value for a file, an array where it depends on the layer."""


def evaluate(text: str, kind: Kind, scope: Scope) -> Any:
    """The value of an expression for a file, None for a key that it lacks; raises SpecError."""
    return compiled(text)(kind, scope)


@lru_cache(maxsize=4096)
def compiled(text: str) -> Value:
    """The expression in a text."""
    return _compiled(ast.parse(text, mode="eval").body)


_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}


def _compiled(node: ast.expr) -> Value:
    match node:
        case ast.Constant(value=found):
            return lambda *_: found
        case ast.Name(id=name) if name in _WORDS:
            return lambda *_: _WORDS[name]
        case ast.Name(id="index"):
            return lambda _, scope: np.arange(scope.layers)
        case ast.BinOp(op=ast.BitOr()):
            return _alternatives(*_parts(node, ast.BitOr))
        case ast.BinOp(left=left, op=operation, right=right) if not isinstance(operation, ast.Div):
            return _calculation(_compiled(left), operation, _compiled(right))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            negated = _compiled(operand)
            return lambda _, scope: np.logical_not(_truth(negated, scope))
        case ast.UnaryOp(operand=operand):
            positive = _compiled(operand)
            return lambda kind, scope: -positive(kind, scope)
        case ast.BoolOp(op=joint, values=parts):
            return _joined(isinstance(joint, ast.And), [_compiled(part) for part in parts])
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            condition, chosen, other = map(_compiled, (test, body, otherwise))
            return lambda kind, scope: (chosen if _truth(condition, scope) else other)(kind, scope)
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as operation], comparators=[right]):
            return _membership(_compiled(left), ast.unparse(right), isinstance(operation, ast.In))
        case ast.Compare(left=left, ops=[operation], comparators=[right]):
            of_text = isinstance(right, ast.Constant) and isinstance(right.value, str)
            compare, first, second = _OPERATORS[type(operation)], _compiled(left), _compiled(right)
            side = TEXT if of_text else NATURAL
            return lambda _, scope: compare(first(side, scope), second(side, scope))
        case ast.Subscript():
            return _alternatives(node, ast.Constant(None))
        case ast.Call(func=ast.Name(id="given"), args=[ast.Name(id=name)]):
            return lambda _, scope: scope.config.content.get(name) is not None
        case ast.Call(func=ast.Name(id="named"), args=[ast.Constant(value=written)]):
            text = str(written)
            return lambda _, scope: any(text in name for name in scope.config.texts("architectures"))
        case ast.Call(func=ast.Name(id="positive"), args=[part]):
            counted = _compiled(part)
            return lambda kind, scope: counted(replace(kind, least=1), scope)
        case ast.Call(func=ast.Name(id="count"), args=[ast.Name(id=name)]):
            return lambda _, scope: len(scope.config.integers(name))
        case ast.Call(func=ast.Name(id="within"), args=[part, ast.Constant(value=least), ast.Constant(value=most)]):
            bounded = _compiled(part)
            return lambda kind, scope: bounded(replace(kind, least=least, most=most), scope)
        case ast.Call(args=[ast.BinOp(left=written, right=ast.Constant(value=default))]):
            fraction = _Key.of(written)
            return lambda _, scope: fraction.place(scope).factor(fraction.names[0], default)
        case ast.List(elts=parts):
            entries = [_compiled(part) for part in parts]
            return lambda kind, scope: [entry(kind, scope) for entry in entries]
    return _Key.of(node).read


class _Key(Struct, frozen=True):
    """A key of a file or of its sections, and its spellings."""

    sections: list[str]
    names: list[str]

    @classmethod
    def of(cls, node: ast.expr) -> _Key:
        first, *others = (ast.unparse(part) for part in _parts(node, ast.Div))
        *sections, name = first.split(".")
        return cls(sections, [name, *others])

    def place(self, scope: Scope) -> Any:
        """The file, section or spec that has the key."""
        place: Any = scope.config
        for section in self.sections:
            place = scope.others[section] if section in scope.others else place.section(section)
        return place

    def read(self, kind: Kind, scope: Scope) -> Any:
        if self.names[0] in kind.texts and not self.sections:
            return self.names[0]
        place = self.place(scope)
        return kind.read(place, self.names) if isinstance(place, Config) else place[self.names[0]]


def _parts(node: ast.expr, joint: type[ast.operator]) -> list[ast.expr]:
    """The parts that an operator joins."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, joint):
        return [*_parts(node.left, joint), *_parts(node.right, joint)]
    return [node]


def _alternatives(*parts: ast.expr) -> Value:
    """The first part that the file has, or the last one; lists have an entry for each layer."""
    *written, last = parts
    keys = [
        (isinstance(part, ast.Subscript), _Key.of(part.value if isinstance(part, ast.Subscript) else part))
        for part in written
        if ast.unparse(part) != "auto"
    ]
    automatic, otherwise = len(keys) < len(written), _compiled(last)

    def function(kind: Kind, scope: Scope) -> Any:
        for listed, key in keys:
            place = key.place(scope)
            if listed:
                (name,) = key.names
                entries = of_each_layer(place, place.integers(name), name, [None] * scope.layers)
                if entries[0] is not None:
                    return np.array(entries)
            elif place.has(*key.names) and not (automatic and "auto" in map(place.content.get, key.names)):
                return kind.read(place, key.names)
        return otherwise(kind, scope)

    return function


def _calculation(left: Value, operation: ast.operator, right: Value) -> Value:
    """Operands may be 0 where a sum or the result may; divisors may not."""
    calculate, summed = _OPERATORS[type(operation)], isinstance(operation, (ast.Add, ast.Sub))
    divides = isinstance(operation, (ast.Mod, ast.FloorDiv))

    def function(kind: Kind, scope: Scope) -> Any:
        inner = NATURAL if summed else _operand(kind.least)
        return calculate(left(inner, scope), right(NUMBER if divides else inner, scope))

    return function


@cache
def _operand(least: int) -> Kind:
    return Kind(least=least, needed=True)


def _truth(part: Value, scope: Scope) -> Any:
    """Whether a condition holds, an array where it depends on the layer."""
    found = part(FLAG, scope)
    return found.astype(bool) if isinstance(found, np.ndarray) else bool(found)


def _joined(every: bool, parts: list[Value]) -> Value:
    """Whether every condition holds, or any; those that change nothing for any layer are not read."""

    def function(_: Kind, scope: Scope) -> Any:
        found: Any = every
        for part in parts:
            truth = _truth(part, scope)
            found = found & truth if every else found | truth
            if not np.any(found) if every else np.all(found):
                break
        return found

    return function


def _membership(part: Value, name: str, wanted: bool) -> Value:
    """Whether a number is in a list of the file."""

    def function(_: Kind, scope: Scope) -> Any:
        among, found = frozenset(scope.config.integers(name)), part(NATURAL, scope)
        if isinstance(found, np.ndarray):
            return np.array([(each in among) == wanted for each in found.tolist()])
        return (found in among) == wanted

    return function


def kind_of(field: inspect.Field) -> Kind:
    """What a key may hold for a field of a spec."""
    types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
    texts = {text for one in types if isinstance(one, inspect.LiteralType) for text in one.values}
    number = next((one for one in types if isinstance(one, inspect.IntType)), None)
    if field.name == "window":
        return WINDOW
    needed = field.default is NODEFAULT
    flag = any(isinstance(one, inspect.BoolType) for one in types)
    if number is None:
        return Kind(flag, texts=frozenset(map(str, texts)), needed=needed)
    tokens = (number.ge, number.le) == (1, 10**9)
    return Kind(flag, False, number.ge or 0, 10**9 if tokens else 10**7, frozenset(map(str, texts)), needed)
