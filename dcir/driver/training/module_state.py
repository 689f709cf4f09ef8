"""What a traced step depends on besides tensors: modules' classes, attributes and hooks, what a loss function holds; read each step."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Mapping
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.modules import module as _torch_module

from dcir.driver.training.code_reads import PLAIN, CodeReads, by_contents, is_record

# What every module has; parameters, buffers and children are looked at elsewhere.
_EVERY = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = tuple(sorted(n for n in _EVERY if n.endswith("_hooks") and "state_dict" not in n))
_EMPTY = CellType()
_DEPTH = 4
"""How far objects in objects are followed."""
_MOST = 1000
_ALONE = (nn.Module, Tensor, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
"""What is looked at elsewhere, or is what it is."""


def module_state(module: nn.Module, known: dict[Any, Any] | None = None, reads: CodeReads | None = None) -> Any:
    """Something hashable that is another thing once the module's class, its ``forward``, its attributes or its hooks are.

    Numbers and texts count by value and type, in lists, tuples, dicts, sets and records (namespaces, dataclasses), too; other objects by
    who they are and by the numbers and texts that the class's code reads by name: a logger or a trainer has others, which change in every
    step. So does what that code reads of globals and classes (``code_reads.py``).

    Args:
        module: a module.
        known: by id what was found of records and classes in this walk; many modules may hold the same one.
        reads: what code reads, as far as it is known from earlier walks.
    """
    held, known, cls = vars(module), {} if known is None else known, type(module)
    reads = CodeReads() if reads is None else reads
    hooks = tuple((n, tuple((i, _of_code(h, known, reads)) for i, h in held[n].items())) for n in _HOOKS if held.get(n))
    own = _class_state(cls, known, reads)
    names = reads.attributes(cls)
    own_forward = held.get("forward")
    if isinstance(own_forward, FunctionType):
        own = own, reads.of_function(own_forward, functools.partial(_frozen, known=known))
    attributes = tuple((n, _frozen(v, known)) for n, v in held.items() if n not in _EVERY)
    if not names:  # torch's own classes, most of a network's modules
        return own, hooks, attributes
    others = [v for n, v in held.items() if n not in _EVERY and type(v) not in PLAIN]
    return own, hooks, attributes, tuple((_read_of(v, names, known, reads), _of_code(v, known, reads)) for v in others)


def _of_code(value: Any, known: dict[Any, Any], reads: CodeReads) -> Any:
    """What a function that a module holds depends on; None of all else, and of what belongs to a module."""
    if not isinstance(value, FunctionType | MethodType | functools.partial):
        return None
    if isinstance(value, MethodType) and isinstance(value.__self__, nn.Module):
        return None
    return function_state(value, known, reads)


def _class_state(cls: type, known: dict[Any, Any], reads: CodeReads) -> Any:
    """A class, the code and the defaults of its ``forward``, and what that reads."""
    if id(cls) not in known:
        forward = getattr(cls, "forward", None)
        own = (forward.__code__, _defaults(forward, known)) if type(forward) is FunctionType else ()
        known[id(cls)] = cls, own, reads.of_class(cls, functools.partial(_frozen, known=known))
    return known[id(cls)]


def _read_of(value: Any, names: frozenset[str], known: dict[Any, Any], reads: CodeReads, depth: int = _DEPTH) -> Any:
    """What code that has some names of attributes reads of an object that is no module, no tensor and no record.

    That is what the object holds by these names, what its class's methods of these names read, and so on of objects in it.
    """
    kind = type(value)
    if kind in PLAIN or depth == 0 or isinstance(value, _ALONE) or is_record(kind):
        return None
    if by_contents(kind):
        if not isinstance(value, Mapping | list | tuple | deque):
            return None
        inside = value.values() if isinstance(value, Mapping) else value
        found = [
            _read_of(v, names, known, reads, depth - 1) for v in itertools.islice(inside, _MOST) if type(v) not in PLAIN
        ]
        return tuple(found) if any(f is not None for f in found) else None
    held = _fields(value)
    if not held and not hasattr(kind, "__slots__"):
        return None
    seen = id(value), names
    if seen in known:
        return known[seen]
    known[seen] = None  # an object may hold itself
    own, names = reads.of_object(kind, names, functools.partial(_frozen, known=known))
    stores = hasattr(kind, "__getattr__")  # what it holds has other names than what is read of it
    read = [(n, v) for n, v in held.items() if n in names or (stores and isinstance(v, Mapping))]
    known[seen] = own, tuple((n, _contents(v, known), _read_of(v, names, known, reads, depth - 1)) for n, v in read)
    return known[seen]


def _contents(value: Any, known: dict[Any, Any]) -> Any:
    """A number, a text or a container by contents; of all else nothing."""
    kind = type(value)
    return _frozen(value, known) if kind in PLAIN or by_contents(kind) or is_record(kind) else None


def _fields(value: Any) -> dict[str, Any]:
    """What an object holds by name, in its dictionary and in slots."""
    held = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for n in (slots,) if isinstance(slots, str) else slots:
            if n not in ("__dict__", "__weakref__") and hasattr(value, n):
                held[n] = getattr(value, n)
    return held


def _defaults(fn: FunctionType, known: dict[Any, Any]) -> Any:
    return tuple(_frozen(v, known) for v in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()))


def function_state(fn: Any, known: dict[Any, Any] | None = None, reads: CodeReads | None = None) -> Any:
    """The same of a function that is no module: its defaults, what it holds of functions around it, what it reads of globals.

    Of the object that it is a method of, the plain attributes that it reads.
    """
    known = {} if known is None else known
    reads = CodeReads() if reads is None else reads
    if isinstance(fn, nn.Module):
        return None
    if isinstance(fn, functools.partial):
        keywords = tuple((k, _frozen(v, known)) for k, v in fn.keywords.items())
        return function_state(fn.func, known, reads), tuple(_frozen(v, known) for v in fn.args), keywords
    if isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType):
        owner = fn.__self__
        own = function_state(fn.__func__, known, reads)
        if isinstance(owner, nn.Module):
            return own, id(owner)
        names = reads.attributes(fn.__func__)
        if isinstance(owner, type):
            return own, id(owner), reads.of_object(owner, names, functools.partial(_frozen, known=known))
        return own, type(owner), id(owner), _read_of(owner, names, known, reads)
    if not isinstance(fn, FunctionType):
        called = type(fn).__call__ if callable(fn) else None
        if isinstance(called, FunctionType):
            return function_state(MethodType(called, fn), known, reads)
        return _frozen(fn, known)
    if id(fn) in known:
        return known[id(fn)]
    known[id(fn)] = None  # a function may hold itself
    held = [c.cell_contents for c in fn.__closure__ or () if c != _EMPTY]
    cells = tuple(_frozen(v, known) for v in held)
    found = reads.of_function(fn, functools.partial(_frozen, known=known))
    names = reads.attributes(fn)
    read = tuple(_read_of(v, names, known, reads) for v in (*held, *(fn.__defaults__ or ())))
    known[id(fn)] = fn.__code__, found, cells, _defaults(fn, known), read
    return known[id(fn)]


def global_hooks() -> Any:
    """The same of the hooks of all modules."""
    found = vars(_torch_module)
    return tuple((n, tuple(v)) for n, v in found.items() if n.startswith("_global_") and n.endswith("_hooks") and v)


def _frozen(value: Any, known: dict[Any, Any]) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if kind in (list, tuple, set, frozenset):
        return kind, tuple(_frozen(v, known) for v in value)
    if kind is dict:
        return kind, tuple((k, _frozen(v, known)) for k, v in value.items())
    if by_contents(kind):
        return kind, _inside(value, known)
    if is_record(kind):
        if id(value) not in known:
            known[id(value)] = None  # a record may hold itself
            known[id(value)] = tuple((n, _frozen(v, known)) for n, v in _fields(value).items())
        return kind, id(value), known[id(value)]
    try:
        hash(value)
    except TypeError:  # of its class, or of what it holds
        return kind, id(value)
    return kind, value


def _inside(value: Any, known: dict[Any, Any]) -> Any:
    """Numbers and texts in a container of another class; of a large one, which it is."""
    if id(value) in known:
        return known[id(value)]
    known[id(value)] = None  # it may hold itself
    found: Any
    if isinstance(value, np.ndarray):
        whole = value.size <= _MOST and not value.dtype.hasobject
        found = (value.shape, value.dtype, value.tobytes()) if whole else id(value)
    elif len(value) > _MOST:
        found = id(value)
    elif isinstance(value, Mapping):
        found = tuple((k, _frozen(v, known)) for k, v in value.items())
    else:
        found = tuple(_frozen(v, known) for v in value)
    known[id(value)] = found
    return found
