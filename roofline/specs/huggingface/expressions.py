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
from functools import lru_cache
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


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def evaluate(text: str, kind: Kind, scope: Scope) -> Any:
    """The value of an expression for a file, None for a key that it lacks, an array over the layers of what differs.

    Raises SpecError.
    """
    return _value(_parsed(text), kind, scope)


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


def _value(node: ast.expr, kind: Kind, scope: Scope) -> Any:
    match node:
        case ast.BinOp(op=ast.BitOr()):
            return _first_of(_parts(node, ast.BitOr), kind, scope)
        case ast.Constant(value=found):
            return found
        case ast.Name(id=name) if name in kind.texts or name in _WORDS:
            return _WORDS.get(name, name)
        case ast.Name(id="index"):
            return np.arange(scope.layers)
        case ast.BinOp(left=left, op=operation, right=right) if not isinstance(operation, ast.Div):
            summed = isinstance(operation, (ast.Add, ast.Sub))
            inner = Kind(least=0 if summed else kind.least, needed=True)
            divisor = NUMBER if isinstance(operation, (ast.Mod, ast.FloorDiv)) else inner
            return _OPERATORS[type(operation)](_value(left, inner, scope), _value(right, divisor, scope))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return np.logical_not(holds(operand, scope))
        case ast.UnaryOp(operand=operand):
            return -_value(operand, kind, scope)
        case ast.BoolOp(op=joint, values=parts):
            return _joined(isinstance(joint, ast.And), parts, scope)
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return _value(body if holds(test, scope) else otherwise, kind, scope)
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as operation], comparators=[right]):
            among = frozenset(scope.config.integers(ast.unparse(right)))
            found = np.vectorize(among.__contains__)(_value(left, NATURAL, scope))
            return found == isinstance(operation, ast.In)
        case ast.Compare(left=left, ops=[operation], comparators=[right]):
            side = TEXT if isinstance(right, ast.Constant) and isinstance(right.value, str) else NATURAL
            return _OPERATORS[type(operation)](_value(left, side, scope), _value(right, side, scope))
        case ast.Call(func=ast.Name(id="given"), args=[ast.Name(id=name)]):
            return scope.config.content.get(name) is not None
        case ast.Call(func=ast.Name(id="named"), args=[ast.Constant(value=str(written))]):
            return any(written in name for name in scope.config.texts("architectures"))
        case ast.Call(func=ast.Name(id="count"), args=[ast.Name(id=name)]):
            return len(scope.config.integers(name))
        case ast.Call(func=ast.Name(id="positive"), args=[part]):
            return _value(part, replace(kind, least=1), scope)
        case ast.Call(func=ast.Name(id="within"), args=[part, ast.Constant(value=least), ast.Constant(value=most)]):
            return _value(part, replace(kind, least=least, most=most), scope)
        case ast.Call(args=[ast.BinOp(left=key, right=ast.Constant(value=default))]):
            place, names = _keys(key, scope)
            return place.factor(names[0], default)
        case ast.List(elts=parts):
            return [_value(part, kind, scope) for part in parts]
    place, names = _keys(node, scope)
    return kind.read(place, names) if isinstance(place, Config) else place[names[0]]


def _parts(node: ast.expr, joint: type[ast.operator]) -> list[ast.expr]:
    """The parts that an operator joins."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, joint):
        return [*_parts(node.left, joint), *_parts(node.right, joint)]
    return [node]


def _first_of(parts: list[ast.expr], kind: Kind, scope: Scope) -> Any:
    """The first part that the file has, or the last one; lists have an entry for each layer."""
    automatic = any(isinstance(part, ast.Name) and part.id == "auto" for part in parts)
    for part in parts[:-1]:
        if isinstance(part, ast.Subscript):
            place, (name,) = _keys(part.value, scope)
            if (entries := of_each_layer(place, place.integers(name), name, [None] * scope.layers))[0] is not None:
                return np.array(entries)
        else:
            place, names = _keys(part, scope)
            if place.has(*names) and not (automatic and "auto" in map(place.content.get, names)):
                return kind.read(place, names)
    return _value(parts[-1], kind, scope)


@lru_cache(maxsize=4096)
def _spelled(node: ast.expr) -> tuple[list[str], list[str]]:
    """The sections around a key, and the key's spellings."""
    first, *others = (ast.unparse(part) for part in _parts(node, ast.Div))
    *sections, name = first.split(".")
    return sections, [name, *others]


def _keys(node: ast.expr, scope: Scope) -> tuple[Any, list[str]]:
    """The file or section of a key, and the key's spellings."""
    sections, names = _spelled(node)
    place: Any = scope.config
    for section in sections:
        place = scope.others[section] if section in scope.others else place.section(section)
    return place, names


def holds(condition: str | ast.expr, scope: Scope) -> Any:
    """Whether a condition holds, an array where it depends on the layer."""
    found = _value(_parsed(condition) if isinstance(condition, str) else condition, FLAG, scope)
    return found.astype(bool) if isinstance(found, np.ndarray) else bool(found)


def _joined(every: bool, parts: list[ast.expr], scope: Scope) -> Any:
    """Whether every condition holds, or any; those that change nothing for any layer are not read."""
    found: Any = every
    for part in parts:
        found = found & holds(part, scope) if every else found | holds(part, scope)
        if not np.any(found) if every else np.all(found):
            break
    return found


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
