"""Values of a spec as expressions over the keys of a config.json: `n_shared_experts | 1`, `expand * hidden_size`.

They stand in tables of this package, in Python's syntax, and are never run. A name is a key of the file, `section.key`
one of a section, `key[index]` the entry of the layer in a list. `/` joins spellings of a key, `|` is "or else": the
first that the file or its class has counts, and is not "auto". What a key may hold follows from the spec's field: its
bounds, a flag, or one of some texts, which stand for themselves. `factor(key | 2)` is a number that need not be whole,
`count(key)` that of the entries of a list, `within(key, 1, 16)` one in other bounds than the field's, `given(key)`
whether a file has the key, which is left to others, and `index` counts the layers from 0.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import NODEFAULT, Struct, inspect
from msgspec.structs import replace

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
    """What an expression is about: a file, the layer of that index, and `others` by name, files or specs.

    `known`: what is the same for all layers, and lists.
    """

    config: Config
    index: int = 0
    layers: int = 0
    others: Mapping[str, Any] = {}
    known: dict[ast.expr, Any] = {}


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def evaluate(text: str, kind: Kind, scope: Scope) -> Any:
    """The value of an expression for a file, None for a key that it lacks; raises SpecError."""
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


@lru_cache(maxsize=4096)
def _is_alike(node: ast.expr) -> bool:
    """Whether an expression is the same for all layers."""
    return not any(isinstance(part, ast.Subscript) or ast.unparse(part) == "index" for part in ast.walk(node))


def _value(node: ast.expr, kind: Kind, scope: Scope) -> Any:
    if not scope.layers or not _is_alike(node):
        return _computed(node, kind, scope)
    if node not in scope.known:
        scope.known[node] = _computed(node, kind, scope)
    return scope.known[node]


def _computed(node: ast.expr, kind: Kind, scope: Scope) -> Any:
    match node:
        case ast.Constant(value=found):
            return found
        case ast.Name(id=name) if name in kind.texts or name in _WORDS:
            return _WORDS.get(name, name)
        case ast.Name(id="index"):
            return scope.index
        case ast.BinOp(op=ast.BitOr()):
            return _first_of(_parts(node, ast.BitOr), kind, scope)
        case ast.BinOp(left=left, op=operation, right=right) if not isinstance(operation, ast.Div):
            summed = isinstance(operation, (ast.Add, ast.Sub))
            inner = Kind(least=0 if summed else kind.least, needed=True)
            divisor = NUMBER if isinstance(operation, (ast.Mod, ast.FloorDiv)) else inner
            return _OPERATORS[type(operation)](_value(left, inner, scope), _value(right, divisor, scope))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, FLAG, scope)
        case ast.UnaryOp(operand=operand):
            return -_value(operand, kind, scope)
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, FLAG, scope) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, FLAG, scope) for part in parts)
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return _value(body if _value(test, FLAG, scope) else otherwise, kind, scope)
        case ast.Compare(left=left, ops=[operation], comparators=[right]):
            return _compared(left, operation, right, scope)
        case ast.Subscript(value=listed):
            return _entry(listed, scope)
        case ast.Call(func=ast.Name(id="given"), args=[ast.Name(id=name)]):
            return scope.config.content.get(name) is not None
        case ast.Call(func=ast.Name(id="count"), args=[ast.Name(id=name)]):
            return len(scope.config.integers(name))
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
    """The first part that the file has, or the last one."""
    for part in parts[:-1]:
        if isinstance(part, ast.Subscript):
            if (found := _entry(part.value, scope)) is not None:
                return found
        else:
            place, names = _keys(part, scope)
            if place.has(*names) and "auto" not in map(place.content.get, names):
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


def _entry(node: ast.expr, scope: Scope) -> int | None:
    """The layer's entry in a list; None for a file without it, SpecError for a list of another length."""
    if node not in scope.known:
        place, (name,) = _keys(node, scope)
        scope.known[node] = of_each_layer(place, place.integers(name), name, [None] * scope.layers)
    found: int | None = scope.known[node][scope.index]
    return found


def _compared(left: ast.expr, operation: ast.cmpop, right: ast.expr, scope: Scope) -> bool:
    if isinstance(operation, (ast.In, ast.NotIn)):
        if right not in scope.known:
            scope.known[right] = frozenset(scope.config.integers(ast.unparse(right)))
        return (_value(left, NATURAL, scope) in scope.known[right]) == isinstance(operation, ast.In)
    kind = TEXT if isinstance(right, ast.Constant) and isinstance(right.value, str) else NATURAL
    return bool(_OPERATORS[type(operation)](_value(left, kind, scope), _value(right, kind, scope)))


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
