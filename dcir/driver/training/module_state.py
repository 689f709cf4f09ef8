"""What a traced step depends on besides tensors: modules' classes, attributes and hooks, what a loss function holds; read each step."""

from __future__ import annotations

import dataclasses
import functools
from argparse import Namespace
from collections.abc import Iterator
from dis import get_instructions
from types import CellType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from torch import nn
from torch.nn.modules import module as _torch_module

# What every module has; parameters, buffers and children are looked at elsewhere.
_EVERY = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = tuple(sorted(n for n in _EVERY if n.endswith("_hooks") and "state_dict" not in n))
_EMPTY = CellType()
_PLAIN = (int, float, complex, bool, str, bytes, type(None))


def module_state(module: nn.Module, known: dict[int, Any] | None = None) -> Any:
    """Something hashable that is another thing once the module's class, its ``forward``, its attributes or its hooks are.

    Numbers and texts count by value and type, in lists, tuples, dicts, sets and records (namespaces, dataclasses), too; other objects by
    who they are: a logger or a trainer has numbers that change in every step.

    Args:
        module: a module.
        known: by id what was found of records in this walk; many modules may hold the same one.
    """
    held, known = vars(module), {} if known is None else known
    hooks = tuple((n, tuple(held[n])) for n in _HOOKS if held.get(n))
    return (
        _class_state(type(module), known),
        hooks,
        tuple((n, _frozen(v, known)) for n, v in held.items() if n not in _EVERY),
    )


def _class_state(cls: type, known: dict[int, Any]) -> Any:
    """A class, and the code and the defaults of its ``forward``."""
    if id(cls) not in known:
        forward = getattr(cls, "forward", None)
        known[id(cls)] = (cls, forward.__code__, _defaults(forward, known)) if type(forward) is FunctionType else cls
    return known[id(cls)]


def _defaults(fn: FunctionType, known: dict[int, Any]) -> Any:
    return tuple(_frozen(v, known) for v in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()))


def function_state(fn: Any, known: dict[int, Any] | None = None) -> Any:
    """The same of a function that is no module: its defaults, what it holds of functions around it, the plain globals that it reads.

    Of the object that it is a method of, the plain attributes that it reads.
    """
    known = {} if known is None else known
    if isinstance(fn, nn.Module):
        return None
    if isinstance(fn, functools.partial):
        keywords = tuple((k, _frozen(v, known)) for k, v in fn.keywords.items())
        return function_state(fn.func, known), tuple(_frozen(v, known) for v in fn.args), keywords
    if isinstance(fn, MethodType):
        owner = fn.__self__
        of_code = _names(fn.__func__.__code__, "LOAD_ATTR") if isinstance(fn.__func__, FunctionType) else ()
        held = getattr(owner, "__dict__", {})
        read = ((n, held.get(n, vars(type(owner)).get(n))) for n in of_code)
        return function_state(fn.__func__, known), type(owner), id(owner), _plain(read, known)
    if not isinstance(fn, FunctionType):
        return _frozen(fn, known)
    read = ((n, fn.__globals__.get(n)) for n in _names(fn.__code__, "LOAD_GLOBAL"))
    cells = tuple(_frozen(c.cell_contents, known) for c in fn.__closure__ or () if c != _EMPTY)
    return fn.__code__, _plain(read, known), cells, _defaults(fn, known)


@functools.lru_cache(maxsize=256)
def _names(code: CodeType, how: str) -> tuple[str, ...]:
    """What a function's code, and that of functions in it, reads by name in a way."""
    found = dict.fromkeys(str(i.argval) for i in get_instructions(code) if i.opname == how)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= dict.fromkeys(_names(inner, how))
    return tuple(found)


def _plain(values: Iterator[tuple[str, Any]], known: dict[int, Any]) -> Any:
    return tuple((n, _frozen(v, known)) for n, v in values if type(v) in _PLAIN)


def global_hooks() -> Any:
    """The same of the hooks of all modules."""
    found = vars(_torch_module)
    return tuple((n, tuple(v)) for n, v in found.items() if n.startswith("_global_") and n.endswith("_hooks") and v)


def _frozen(value: Any, known: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind in (list, tuple, set, frozenset):
        return kind, tuple(_frozen(v, known) for v in value)
    if kind is dict:
        return kind, tuple((k, _frozen(v, known)) for k, v in value.items())
    if kind in (SimpleNamespace, Namespace) or dataclasses.is_dataclass(kind):
        if id(value) not in known:
            known[id(value)] = None  # a record may hold itself
            known[id(value)] = tuple((n, _frozen(v, known)) for n, v in getattr(value, "__dict__", {}).items())
        return kind, id(value), known[id(value)]
    return kind, value if kind.__hash__ is not None else id(value)
