"""What a traced step depends on besides tensors: modules' classes, attributes and hooks, what a loss function holds; read each step."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dis import get_instructions
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as _torch_module

from dcir.driver.training.code_reads import PLAIN, CodeReads, is_record

# What every module has; parameters, buffers and children are looked at elsewhere.
_EVERY = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = tuple(sorted(n for n in _EVERY if n.endswith("_hooks") and "state_dict" not in n))
_EMPTY = CellType()


def module_state(module: nn.Module, known: dict[int, Any] | None = None, reads: CodeReads | None = None) -> Any:
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
    hooks = tuple((n, tuple(held[n])) for n in _HOOKS if held.get(n))
    own = _class_state(cls, known, reads)
    names = reads.attributes(cls)
    own_forward = held.get("forward")
    if isinstance(own_forward, FunctionType):
        own = own, reads.of_function(own_forward, functools.partial(_frozen, known=known))
    attributes = tuple((n, _frozen(v, known)) for n, v in held.items() if n not in _EVERY)
    if not names:  # torch's own classes, most of a network's modules
        return own, hooks, attributes
    return own, hooks, attributes, tuple(_read_of(v, names, known) for n, v in held.items() if n not in _EVERY)


def _class_state(cls: type, known: dict[int, Any], reads: CodeReads) -> Any:
    """A class, the code and the defaults of its ``forward``, and what that reads."""
    if id(cls) not in known:
        forward = getattr(cls, "forward", None)
        own = (forward.__code__, _defaults(forward, known)) if type(forward) is FunctionType else ()
        known[id(cls)] = cls, own, reads.of_class(cls, functools.partial(_frozen, known=known))
    return known[id(cls)]


def _read_of(value: Any, names: frozenset[str], known: dict[int, Any]) -> Any:
    """Numbers and texts of an object that is no module, no tensor and no record, which code reads by name."""
    kind = type(value)
    if (
        kind in PLAIN
        or kind in (list, tuple, set, frozenset, dict)
        or isinstance(value, nn.Module | Tensor)
        or is_record(kind)
    ):
        return None
    held = getattr(value, "__dict__", None)
    return None if not held else _plain(((n, held[n]) for n in held if n in names), known)


def _defaults(fn: FunctionType, known: dict[int, Any]) -> Any:
    return tuple(_frozen(v, known) for v in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()))


def function_state(fn: Any, known: dict[int, Any] | None = None, reads: CodeReads | None = None) -> Any:
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
    if isinstance(fn, MethodType):
        owner = fn.__self__
        of_code = _names(fn.__func__.__code__, "LOAD_ATTR") if isinstance(fn.__func__, FunctionType) else ()
        held = getattr(owner, "__dict__", {})
        read = ((n, held.get(n, vars(type(owner)).get(n))) for n in of_code)
        return function_state(fn.__func__, known, reads), type(owner), id(owner), _plain(read, known)
    if not isinstance(fn, FunctionType):
        return _frozen(fn, known)
    cells = tuple(_frozen(c.cell_contents, known) for c in fn.__closure__ or () if c != _EMPTY)
    found = reads.of_function(fn, functools.partial(_frozen, known=known))
    return fn.__code__, found, cells, _defaults(fn, known)


@functools.lru_cache(maxsize=256)
def _names(code: CodeType, how: str) -> tuple[str, ...]:
    """What a function's code, and that of functions in it, reads by name in a way."""
    found = dict.fromkeys(str(i.argval) for i in get_instructions(code) if i.opname == how)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= dict.fromkeys(_names(inner, how))
    return tuple(found)


def _plain(values: Iterator[tuple[str, Any]], known: dict[int, Any]) -> Any:
    return tuple((n, _frozen(v, known)) for n, v in values if type(v) in PLAIN)


def global_hooks() -> Any:
    """The same of the hooks of all modules."""
    found = vars(_torch_module)
    return tuple((n, tuple(v)) for n, v in found.items() if n.startswith("_global_") and n.endswith("_hooks") and v)


def _frozen(value: Any, known: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if kind in (list, tuple, set, frozenset):
        return kind, tuple(_frozen(v, known) for v in value)
    if kind is dict:
        return kind, tuple((k, _frozen(v, known)) for k, v in value.items())
    if is_record(kind):
        if id(value) not in known:
            known[id(value)] = None  # a record may hold itself
            known[id(value)] = tuple((n, _frozen(v, known)) for n, v in getattr(value, "__dict__", {}).items())
        return kind, id(value), known[id(value)]
    try:
        hash(value)
    except TypeError:  # of its class, or of what it holds
        return kind, id(value)
    return kind, value
