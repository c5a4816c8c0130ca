"""Lazy imports: names of a package whose modules are loaded when a name is first used."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def load_lazily(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Make a package's `__getattr__`. `modules` maps each module to the names it defines."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def load_name(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # so that __getattr__ is called once per name
        return value

    return load_name
