"""Lazy package exports: submodules are imported on first access, which keeps CLI startup short."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def later(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of a module, which is imported when it is first called."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **keywords)

    return call


def constant(module: str, name: str) -> Callable[[], Any]:
    """A function of the value `name` of a module, which is imported when it is first called."""
    return lambda: getattr(import_module(module), name)


def lazy(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The module `__getattr__` (PEP 562) of `package`; `names` has the exported names of each submodule.

    A name that is the submodule's own is the submodule.
    """
    modules = {name: module for module, exported in names.items() for name in exported.split()}

    def getattr_(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{modules[name]}")
        return module if modules[name].rpartition(".")[2] == name else getattr(module, name)

    return getattr_
