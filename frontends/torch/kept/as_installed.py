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
from collections.abc import Iterable, Iterator
from operator import attrgetter, itemgetter
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch._decomp import global_decomposition_table
from torch._library.simple_registry import singleton
from torch._ops import OpOverload, OpOverloadPacket

from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept
from dcir.frontends.torch.kept.looks import Look, Sign, codes, contents
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
_own: dict[FunctionType, Any] = {}
"""Functions that have been looked at and are torch's or Python's own, and their bytecode then."""
_FUNCTION = itemgetter(1)
_MEMBERS = (FunctionType, staticmethod, classmethod, property)
_modules: dict[str, bool] = {}
"""Names of modules, and whether traces run their functions."""


def changes(descriptions: Descriptions) -> list[str]:
    """What is not as it was installed, described.

    Raises:
        Unkept: it cannot be described.
    """
    reason = next((r for look in (_KERNELS, _PYTHON_KERNELS, _FORMS, _DECOMPOSITIONS) for r in look.found()), None)
    if reason is not None:
        raise Unkept(reason)
    # What a foreign function holds may change, which shows in its description alone.
    foreign = sorted(f"{where} {descriptions.of(value)}" for where, value in _FUNCTIONS.found())
    return [*foreign, *_RENAMED.found(), *sorted(torch.ops.loaded_libraries)]


def _traced_modules() -> list[ModuleType]:
    """The modules whose functions traces run."""
    for name in sorted(sys.modules.keys() - _modules.keys()):
        _modules[name] = name.startswith("torch") and _TRACED.fullmatch(name) is not None
    named = (sys.modules.get(name) for name, traced in _modules.items() if traced)
    return [module for module in named if isinstance(module, ModuleType)]


def _classes(modules: Iterable[ModuleType]) -> list[type]:
    own = [
        value
        for module in modules
        for value in list(vars(module).values())
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    return [*own, torch._C.TensorBase]


def _function_places() -> tuple[list[type], list[tuple[str, FunctionType]]]:
    modules = _traced_modules()
    classes = _classes(modules)
    plain = [(f"{m.__name__}.{k}", v) for m in modules for k, v in list(vars(m).items()) if type(v) is FunctionType]
    return classes, [*plain, *(row for cls in classes for row in _methods(f"{cls.__module__}.{cls.__name__}", cls))]


def _function_sign(places: tuple[list[type], list[tuple[str, FunctionType]]]) -> Sign:
    classes, functions = places
    modules = _traced_modules()
    held = [*contents(map(vars, modules), (FunctionType, type)), *contents(map(vars, classes), _MEMBERS)]
    return Sign([*modules, *held, *codes(map(_FUNCTION, functions))], [])


def _functions(places: tuple[list[type], list[tuple[str, FunctionType]]]) -> Iterator[tuple[str, Any]]:
    """Functions of others among those of torch, and where they are."""
    return (row for row in places[1] if _is_foreign(row[1]))


def _methods(where: str, cls: type) -> Iterator[tuple[str, FunctionType]]:
    """The functions in a class, and where each is."""
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
            if type(part) is FunctionType:
                yield f"{where}.{key}", part


def _is_foreign(function: FunctionType) -> bool:
    """Whether a function's code is neither torch's nor Python's own."""
    code = function.__code__
    if _own.get(function) is code:
        return False
    found = _is_of_others(function)
    if not found:
        _own[function] = code
    return found


def _is_of_others(function: FunctionType) -> bool:
    file = function.__code__.co_filename
    if file.startswith(_TORCH):
        return False
    if not is_users(file) or (file.startswith(_LIBRARY) and "site-packages" not in file):
        return False
    # Dataclasses and named tuples have methods that are made of text, by Python's own library.
    return not (file.startswith("<") and str(function.__module__).partition(".")[0] == "torch")


def _renamed(places: None) -> list[str]:
    """What the names of functions that models call stand for."""
    rows = []
    for name in _NAMES:
        for key, value in vars(sys.modules[name]).items():
            if isinstance(value, FunctionType | BuiltinFunctionType) and key != value.__name__:
                rows.append(f"{name}.{key}={value.__module__}.{value.__name__}")
    return sorted(rows)


def _name_sign(places: None) -> Sign:
    return Sign(contents([vars(sys.modules[name]) for name in _NAMES], (FunctionType, BuiltinFunctionType)), [])


def _kernels(places: None) -> Iterator[str]:
    """Kernels that others have given to torch's operators from Python."""
    for key in _one_of_each_library() - _known_keys:
        space, operator, *_ = key.split("/")
        if space in OPERATORS | {"_"}:
            if _given_elsewhere(f"{space}::{operator}"):
                yield f"{space}.{operator} has a kernel of another package"
                continue
            _known_keys.add(key)


def _libraries() -> list[Any]:
    """Those that give kernels, by what ends with them."""
    ends = weakref.finalize._registry.values()  # type: ignore[attr-defined]
    return [info for info in list(ends) if info.func is torch.library._del_library]


def _library_sign(places: None) -> Sign:
    try:
        libraries = _libraries()
        return Sign(libraries, [len(torch.library._impls), *(len(info.args[1]) for info in libraries)])
    except (AttributeError, IndexError, TypeError):
        return Sign([object()], [])  # of another torch: looked at each time


def _one_of_each_library() -> set[str]:
    """Of all that gives kernels one of its kernels: a library has one place in a file, which is that of its kernels."""
    try:
        given = [set(info.args[1]) for info in _libraries()]
    except (AttributeError, IndexError, TypeError):
        return set(torch.library._impls)
    rest = torch.library._impls.difference(*given)
    return {min(keys) for keys in given if keys} | rest


def _given_elsewhere(operator: str) -> bool:
    if operator.startswith("_::"):  # a kernel for all operators
        return True
    places = _PLACE.findall(torch._C._dispatch_dump(operator))
    return any(is_users(place) for place in places if not place.endswith(_NATIVE))


_Kernels = tuple[list[Any], list[Any], list[tuple[Any, FunctionType]]]


def _overload_places() -> _Kernels:
    spaces = (torch.ops.aten, torch.ops.prims)
    packets = [p for space in spaces for p in list(vars(space).values()) if isinstance(p, OpOverloadPacket)]
    overloads = [o for packet in packets for o in list(vars(packet).values()) if isinstance(o, OpOverload)]
    return packets, overloads, _python((o, k) for o in overloads if o.py_kernels for k in o.py_kernels.values())


def _overload_sign(places: _Kernels) -> Sign:
    packets, overloads, functions = places
    held = contents([vars(torch.ops.aten), vars(torch.ops.prims)], OpOverloadPacket)
    held += contents(map(vars, packets), OpOverload)
    return Sign([*held, *contents(map(_PY_KERNELS, overloads), object), *codes(map(_FUNCTION, functions))], [])


def _python_kernels(places: _Kernels) -> Iterator[str]:
    return (f"{overload} has a kernel of another package" for overload, f in places[2] if _is_foreign(f))


def _told() -> list[tuple[str, Any]]:
    """What is said of the results of torch's operators: of which one, by what."""
    found = []
    for operator, entry in list(singleton._data.items()):
        if operator.partition("::")[0] in OPERATORS:
            kernels = getattr(entry.fake_impl, "kernels", None) or [entry.fake_impl.kernel]
            found += [(operator, kernel.func) for kernel in kernels if kernel is not None]
    return found


def _form_places() -> list[tuple[Any, FunctionType]]:
    return _python(_told())


def _form_sign(functions: list[tuple[Any, FunctionType]]) -> Sign:
    return Sign([*map(_FUNCTION, _told()), *codes(map(_FUNCTION, functions))], [])


def _forms(functions: list[tuple[Any, FunctionType]]) -> Iterator[str]:
    """What others say of the results of torch's operators."""
    return (f"the form of {operator} is told by another package" for operator, f in functions if _is_foreign(f))


def _decomposed() -> list[tuple[Any, FunctionType]]:
    return _python(row for table in global_decomposition_table.values() for row in list(table.items()))


def _decomposition_sign(functions: list[tuple[Any, FunctionType]]) -> Sign:
    return Sign([*contents(global_decomposition_table.values(), object), *codes(map(_FUNCTION, functions))], [])


def _decompositions(functions: list[tuple[Any, FunctionType]]) -> Iterator[str]:
    return (f"{operator} has a decomposition of another package" for operator, f in functions if _is_foreign(f))


def _python(rows: Iterable[tuple[Any, Any]]) -> list[tuple[Any, FunctionType]]:
    """Of what is given for operators that which is Python's: the function that is wrapped, if it wraps one."""
    inner = ((of, inspect.unwrap(f) if hasattr(f, "__wrapped__") else f) for of, f in rows)
    return [(of, f) for of, f in inner if isinstance(f, FunctionType)]


_PY_KERNELS = attrgetter("py_kernels")
_FUNCTIONS: Look[Any, tuple[str, Any]] = Look(_function_places, _function_sign, _functions)
_RENAMED: Look[Any, str] = Look(lambda: None, _name_sign, _renamed)
_KERNELS: Look[Any, str] = Look(lambda: None, _library_sign, _kernels)
_PYTHON_KERNELS: Look[Any, str] = Look(_overload_places, _overload_sign, _python_kernels)
_FORMS: Look[Any, str] = Look(_form_places, _form_sign, _forms)
_DECOMPOSITIONS: Look[Any, str] = Look(_decomposed, _decomposition_sign, _decompositions)
