"""What a traced step depends on besides tensors: modules' classes, attributes and hooks, what a loss function holds; read each step."""

from __future__ import annotations

import functools
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as _torch_module

# What every module has; parameters, buffers and children are looked at elsewhere.
_EVERY = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = tuple(sorted(n for n in _EVERY if n.endswith("_hooks") and "state_dict" not in n))


_EMPTY = CellType()
_OF_CODE = (type, FunctionType, MethodType, ModuleType, Tensor, nn.Module)
_NOT_USERS = ("torch", "builtins", "numpy", "functools", "collections", "weakref", "threading", "logging")
_PLAIN = (int, float, complex, bool, str, bytes, type(None))


def module_state(module: nn.Module, objects: dict[int, Any] | None = None) -> Any:
    """Something hashable that is another thing once the module's class, its attributes or its hooks are.

    Numbers and texts count by value and type, in lists, tuples, dicts and sets, too, and as attributes of other objects; these
    themselves by who they are.

    Args:
        module: a module.
        objects: by id what was found of objects in this walk; many modules may hold the same one.
    """
    held, known = vars(module), {} if objects is None else objects
    hooks = tuple((n, tuple(held[n])) for n in _HOOKS if held.get(n))
    return type(module), hooks, tuple((n, _frozen(v, known)) for n, v in held.items() if n not in _EVERY)


def function_state(fn: Any, objects: dict[int, Any] | None = None) -> Any:
    """The same of a function that is no module: its defaults, what it holds of functions around it, and the numbers it reads by name."""
    known = {} if objects is None else objects
    if isinstance(fn, nn.Module):
        return None
    if isinstance(fn, functools.partial):
        keywords = tuple((k, _frozen(v, known)) for k, v in fn.keywords.items())
        return function_state(fn.func, known), tuple(_frozen(v, known) for v in fn.args), keywords
    if isinstance(fn, MethodType):
        return function_state(fn.__func__, known), _frozen(fn.__self__, known)
    if not isinstance(fn, FunctionType):
        return _frozen(fn, known)
    names = fn.__globals__
    read = tuple((n, _frozen(names[n], known)) for n in fn.__code__.co_names if type(names.get(n, fn)) in _PLAIN)
    cells = tuple(_frozen(c.cell_contents, known) for c in fn.__closure__ or () if c != _EMPTY)
    defaults = tuple(_frozen(v, known) for v in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()))
    return fn.__code__, read, cells, defaults


def global_hooks() -> Any:
    """The same of the hooks of all modules."""
    found = vars(_torch_module)
    return tuple((n, tuple(v)) for n, v in found.items() if n.startswith("_global_") and n.endswith("_hooks") and v)


def _frozen(value: Any, objects: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return kind, tuple(_frozen(v, objects) for v in value)
    if kind is dict:
        return kind, tuple((k, _frozen(v, objects)) for k, v in value.items())
    if kind in _PLAIN:
        return kind, value
    return kind, value if kind.__hash__ is not None else id(value), _attributes(value, kind, objects)


def _attributes(value: Any, kind: type, objects: dict[int, Any]) -> Any:
    """The plain attributes of an object that may be one of the user's, and of those that it holds."""
    if issubclass(kind, _OF_CODE) or kind.__module__.partition(".")[0] in _NOT_USERS:
        return None
    held = getattr(value, "__dict__", None)
    if not isinstance(held, dict):
        return None
    if id(value) not in objects:
        objects[id(value)] = None  # an object may hold itself
        objects[id(value)] = tuple(
            (n, _frozen(v, objects)) for n, v in held.items()
            if type(v) in _PLAIN or (hasattr(v, "__dict__") and not isinstance(v, type))
        )  # fmt: skip
    return objects[id(value)]
