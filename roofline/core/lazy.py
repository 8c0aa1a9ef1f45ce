"""Lazy package exports: submodules are imported on first access, which keeps CLI startup short."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy(package: str, **elsewhere: str) -> Callable[[str], Any]:
    """The module `__getattr__` (PEP 562) of `package`: what it imports for type checkers, imported on first access.

    `dir` lists its public names, too.

    These are the imports under `if TYPE_CHECKING:`, read from the package's source. `elsewhere` are names that another
    module has at run time.
    """

    @cache
    def modules() -> dict[str, str]:
        import ast

        source: Any = getattr(sys.modules[package], "__loader__", None)
        blocks = (node.body for node in ast.parse(source.get_source(package)).body if isinstance(node, ast.If))
        imports = (entry for body in blocks for entry in body if isinstance(entry, ast.ImportFrom))
        return {alias.name: str(entry.module) for entry in imports for alias in entry.names} | elsewhere

    def getattr_(name: str) -> Any:
        if name.startswith("_") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = modules()[name]
        return import_module(f"{package}.{name}") if module == package else getattr(import_module(module), name)

    own = vars(sys.modules[package])
    own["__dir__"] = lambda: sorted({*own, *own.get("__all__", ())})
    return getattr_
