"""Modules that Dynamo has put among a frame's globals under names that hold an address, which is another one in each process.

    ___module_collections_140520519994960_c0, _140241124086048_c0  -->  __import_collections, __import_torch

The new names are those that Dynamo gives to modules which it imports itself, and are put among the globals as those are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from types import CodeType, ModuleType
from typing import Any

from torch._dynamo.source import GlobalSource
from torch._guards import Source

_BY_ADDRESS = re.compile(r"\w*_\d{6,}_c\d+")


def is_by_address(name: str) -> bool:
    """Whether a global's name holds an address."""
    return _BY_ADDRESS.fullmatch(name) is not None


def import_names(names: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Of modules among globals whose names hold an address: the name -> the new one, and the module's.

    Args:
        names: the globals.
    """
    found: dict[str, tuple[str, str]] = {}
    for name, value in list(names.items()):
        if isinstance(value, ModuleType) and is_by_address(name) and sys.modules.get(value.__name__) is value:
            found[name] = name_of_import(value.__name__), value.__name__
    return found


def name_of_import(module: str) -> str:
    """The global by which Dynamo knows a module that it imports."""
    return f"__import_{module.replace('.', '_dot_')}"


def with_names(code: CodeType, known: Mapping[str, tuple[str, str]]) -> CodeType:
    """Code that uses the new names."""
    return code.replace(co_names=tuple(known[n][0] if n in known else n for n in code.co_names))


def renamed(known: Mapping[str, tuple[str, str]], source: Source) -> Source | None:
    """A source of a module with the new name; None of any other."""
    if type(source) is GlobalSource and source.global_name in known:
        return GlobalSource(known[source.global_name][0])
    return None


def imports_of(texts: Iterable[str], known: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The new names, and the modules that they stand for, of those that occur among some names."""
    used = set(texts)
    return {new: module for name, (new, module) in known.items() if name in used or new in used}
