"""Whether torch is as it was installed: what others have put among its functions and operators decides traces, and has no guard.

AOTAutograd runs torch's Python functions, decompositions and operators' kernels to see what they do. Dynamo guards on those that a
model names, not on what these call in turn. Versions and files of torch are part of every address (``identity.py``), so what came with it
needs no description; what has come since does.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch._decomp import global_decomposition_table
from torch._library.simple_registry import singleton
from torch._ops import OpOverload, OpOverloadPacket

from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept
from dcir.frontends.torch.kept.unguarded import OPERATORS
from dcir.user_code import is_users

_TRACED = re.compile(
    r"torch(\.(functional|overrides|_tensor|_lowrank|nn\.functional|nn\.utils(\..*)?|_refs(\..*)?|_prims(\..*)?|_prims_common(\..*)?"
    r"|_decomp(\..*)?|_meta_registrations|_vmap_internals|_functorch\.\w+|autograd(\.\w+)?|utils\.checkpoint|_jit_internal|_C\._nn))?"
)
"""Modules of torch whose functions traces run."""
_NAMES = ("torch", "torch.functional", "torch.nn.functional", "torch._C._nn")
"""Modules of which a name may have come to mean another function of torch's."""
_PLACE = re.compile(r"registered at (.+?):\d+")
_NATIVE = (".cpp", ".cc", ".cu", ".h", ".mm", "/dev/null")
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_LIBRARY = sysconfig.get_path("stdlib")

_known_keys: set[str] = set()
"""Kernels from Python that have been looked at and are torch's own."""


def changes(descriptions: Descriptions) -> list[str]:
    """What is not as it was installed, described.

    Raises:
        Unkept: it cannot be described.
    """
    reason = next((r for found in (_kernels(), _python_kernels(), _forms(), _decompositions()) for r in found), None)
    if reason is not None:
        raise Unkept(reason)
    return [f"{where} {descriptions.of(value)}" for where, value in _functions()] + [
        *_renamed(),
        *sorted(torch.ops.loaded_libraries),
    ]


def _functions() -> Iterator[tuple[str, Any]]:
    """Functions of others among those of torch, and where they are."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("torch") or not _TRACED.fullmatch(name) or not isinstance(module, ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if type(value) is FunctionType:
                if _is_foreign(value):
                    yield f"{name}.{key}", value
            elif isinstance(value, type) and value.__module__ == name:
                yield from _methods(f"{name}.{key}", value)
    yield from _methods("torch.TensorBase", torch._C.TensorBase)


def _methods(where: str, cls: type) -> Iterator[tuple[str, Any]]:
    for key, member in list(vars(cls).items()):
        kind = type(member)
        parts: tuple[Any, ...]
        if kind is FunctionType:
            parts = (member,)
        elif kind is staticmethod or kind is classmethod:
            parts = (member.__func__,)
        elif kind is property:
            parts = (member.fget, member.fset)
        else:
            continue
        for part in parts:
            if type(part) is FunctionType and _is_foreign(part):
                yield f"{where}.{key}", part


def _is_foreign(function: Any) -> bool:
    """Whether a function's code is neither torch's nor Python's own."""
    file = function.__code__.co_filename
    if file.startswith(_TORCH):
        return False
    if not is_users(file) or (file.startswith(_LIBRARY) and "site-packages" not in file):
        return False
    # Dataclasses and named tuples have methods that are made of text, by Python's own library.
    return not (file.startswith("<") and str(function.__module__).partition(".")[0] == "torch")


def _renamed() -> list[str]:
    """What the names of functions that models call stand for."""
    rows = []
    for name in _NAMES:
        for key, value in vars(sys.modules[name]).items():
            if isinstance(value, FunctionType | BuiltinFunctionType) and key != value.__name__:
                rows.append(f"{name}.{key}={value.__module__}.{value.__name__}")
    return sorted(rows)


def _kernels() -> Iterator[str]:
    """Kernels that others have given to torch's operators from Python."""
    for key in _one_of_each_library() - _known_keys:
        space, operator, *_ = key.split("/")
        if space in OPERATORS | {"_"}:
            if _given_elsewhere(f"{space}::{operator}"):
                yield f"{space}.{operator} has a kernel of another package"
                continue
            _known_keys.add(key)


def _one_of_each_library() -> set[str]:
    """Of all that gives kernels one of its kernels: a library has one place in a file, which is that of its kernels."""
    try:
        ends = [info for info in weakref.finalize._registry.values() if info.func is torch.library._del_library]  # type: ignore[attr-defined]
        given = [set(info.args[1]) for info in ends]
    except (AttributeError, IndexError, TypeError):
        return set(torch.library._impls)
    rest = torch.library._impls.difference(*given)
    return {min(keys) for keys in given if keys} | rest


def _given_elsewhere(operator: str) -> bool:
    if operator.startswith("_::"):  # a kernel for all operators
        return True
    places = _PLACE.findall(torch._C._dispatch_dump(operator))
    return any(is_users(place) for place in places if not place.endswith(_NATIVE))


def _python_kernels() -> Iterator[str]:
    for space in (torch.ops.aten, torch.ops.prims):
        for packet in list(vars(space).values()):
            if not isinstance(packet, OpOverloadPacket):
                continue
            for overload in list(vars(packet).values()):
                if isinstance(overload, OpOverload) and any(map(_is_others, overload.py_kernels.values())):
                    yield f"{overload} has a kernel of another package"


def _forms() -> Iterator[str]:
    """What others say of the results of torch's operators."""
    for operator, entry in list(singleton._data.items()):
        if operator.partition("::")[0] not in OPERATORS:
            continue
        kernels = getattr(entry.fake_impl, "kernels", None) or [entry.fake_impl.kernel]
        for kernel in kernels:
            if kernel is not None and _is_others(kernel.func):
                yield f"the form of {operator} is told by another package"


def _decompositions() -> Iterator[str]:
    for table in global_decomposition_table.values():
        for operator, function in list(table.items()):
            if _is_others(function):
                yield f"{operator} has a decomposition of another package"


def _is_others(function: Callable[..., Any]) -> bool:
    inner = inspect.unwrap(function)
    return isinstance(inner, FunctionType) and _is_foreign(inner)
