"""What the code of modules and of a loss function reads by name: globals, attributes of classes and objects; read each step.

A step is traced once, and nothing guards it. So the functions that a ``forward`` reaches by names (methods, functions of the user's, what
closures hold) are walked when a class is first seen, and all names that they read are looked up in front of every step.
"""

from __future__ import annotations

import dataclasses
import functools
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from dis import get_instructions
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from torch import nn

from dcir.user_code import is_users

PLAIN = (int, float, complex, bool, str, bytes, type(None))
_GLOBALS = frozenset({"LOAD_GLOBAL"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_EMPTY = CellType()
_CONTAINERS = (list, tuple, set, frozenset, dict)
_BY_CONTENTS: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
_MOST_MEMBERS = 1000
"""A table of more is read by nobody in front of every step."""

Freeze = Callable[[Any], Any]
"""Makes something hashable of a value, which is another thing once the value is."""


@dataclass(frozen=True)
class _Reads:
    """What some functions read.

    Attributes:
        rows: (names of a module, a class or an object; name) of each.
        cells: of closures.
        attributes: all names of attributes that their code has.
    """

    rows: tuple[tuple[Mapping[str, Any], str], ...]
    cells: tuple[CellType, ...]
    attributes: frozenset[str]

    def state(self, freeze: Freeze) -> Any:
        """Another thing once one of them is."""
        rows = tuple(_value(held.get(name), freeze) for held, name in self.rows)
        return rows, tuple(_value(c.cell_contents, freeze) for c in self.cells if c != _EMPTY)


class CodeReads:
    """What code of a model reads, and its values; a walk of code for each class or function, and again where that has changed."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[_Reads, Any]] = {}

    def of_class(self, cls: type, freeze: Freeze) -> Any:
        """Values of what a class's ``forward`` reads, its code among them."""
        return self._of(cls, lambda: _users_classes(cls), freeze)

    def of_function(self, fn: FunctionType, freeze: Freeze) -> Any:
        """The same of a function."""
        return self._of(fn, lambda: (), freeze)

    def of_object(self, cls: type, names: frozenset[str], freeze: Freeze) -> tuple[Any, frozenset[str]]:
        """The same of what code that has some names of attributes reaches in a class, and all names that it then has."""
        key = cls, names
        found = self._of(key, lambda: _users_classes(cls), freeze, names)
        return found, names | self._known[key][0].attributes

    def attributes(self, cls: Any) -> frozenset[str]:
        """Names of the attributes that a class's ``forward``, or a function, reads of anything."""
        return self._known[cls][0].attributes if cls in self._known else frozenset()

    def _of(
        self, key: Any, classes: Callable[[], tuple[type, ...]], freeze: Freeze, names: frozenset[str] = frozenset({"forward"})
    ) -> Any:  # fmt: skip
        if key in self._known:
            reads, before = self._known[key]
            if reads.state(freeze) == before:
                return before
        reads = _walked([key] if isinstance(key, FunctionType) else [], classes(), names)
        state = reads.state(freeze)
        self._known[key] = reads, state
        return state


def _walked(functions: list[FunctionType], classes: tuple[type, ...], begin: frozenset[str]) -> _Reads:
    rows: dict[tuple[int, str], tuple[Mapping[str, Any], str]] = {}
    cells: dict[int, CellType] = {}
    attributes: set[str] = set()
    seen: set[int] = set()

    def read(held: Mapping[str, Any], owner: Any, name: str) -> None:
        rows[id(owner), name] = held, name
        functions.extend(_functions(held.get(name)))

    def of_classes(name: str) -> None:
        if any(name in vars(c) for c in classes):
            for c in classes:  # one that has no such attribute may get one
                read(vars(c), c, name)

    for name in begin:
        of_classes(name)
    while functions:
        fn = functions.pop()
        if id(fn) in seen or not is_users(fn.__code__.co_filename):
            continue
        seen.add(id(fn))
        names = _names(fn.__code__, _ATTRIBUTES)
        attributes.update(names)
        for name in names:
            of_classes(name)
        found = [fn.__globals__[n] for n in _names(fn.__code__, _GLOBALS) if n in fn.__globals__]
        for name in _names(fn.__code__, _GLOBALS):
            if name in fn.__globals__:
                read(fn.__globals__, fn.__globals__, name)
        for cell in fn.__closure__ or ():
            cells[id(cell)] = cell
            if cell != _EMPTY:
                found.append(cell.cell_contents)
                functions.extend(_functions(cell.cell_contents))
        for value in found:  # settings.ALPHA, Settings.alpha
            held = _names_of(value)
            for name in names:
                if name in held and (isinstance(held[name], PLAIN) or _functions(held[name])):
                    read(held, value, name)
    return _Reads(tuple(rows.values()), tuple(cells.values()), frozenset(attributes))


def _users_classes(cls: type) -> tuple[type, ...]:
    return tuple(c for c in cls.__mro__ if c is not object and c.__module__.partition(".")[0] != "torch")


def _names_of(value: Any) -> Mapping[str, Any]:
    """What a module, a class or an object of the user's has by names."""
    if isinstance(value, ModuleType):
        return vars(value) if is_users(getattr(value, "__file__", None) or "<frozen >") else {}
    if isinstance(value, nn.Module | FunctionType):
        return {}
    if isinstance(value, type) and value.__module__.partition(".")[0] in ("torch", "builtins"):
        return {}
    found: Mapping[str, Any] = getattr(value, "__dict__", {})
    return found


def _functions(value: Any) -> list[FunctionType]:
    """Functions that run where an attribute or a global is read or called."""
    if isinstance(value, property):
        found: Iterable[Any] = (value.fget,)
    elif isinstance(value, staticmethod | classmethod):
        found = (value.__func__,)
    elif isinstance(value, functools.partial):
        found = (value.func,)
    else:
        found = (value,)
    return [f for f in found if isinstance(f, FunctionType)]


def _value(value: Any, freeze: Freeze) -> Any:
    """A number, a text, a container or record of them by contents, a function by its code and what it holds, all else by which it is."""
    functions = _functions(value)
    if functions:
        return tuple((fn.__code__, tuple(_held(v, freeze) for v in _holds(fn))) for fn in functions)
    return _held(value, freeze)


def _held(value: Any, freeze: Freeze) -> Any:
    kind = type(value)
    whole = kind in PLAIN or (by_contents(kind) and len(value) <= _MOST_MEMBERS) or is_record(kind)
    return freeze(value) if whole else This(value)


def by_contents(kind: type) -> bool:
    """Whether objects of a class are what they hold: containers, tables and arrays."""
    found = _BY_CONTENTS.get(kind)
    if found is None:
        tables = issubclass(kind, Mapping | deque | np.ndarray)
        found = _BY_CONTENTS[kind] = tables or (issubclass(kind, _CONTAINERS) and not is_record(kind))
    return found


class This:
    """A value that is equal to itself alone."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, This) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


def is_record(kind: type) -> bool:
    """Whether objects of a class hold fields and nothing else, as far as one knows."""
    return kind in (SimpleNamespace, Namespace) or dataclasses.is_dataclass(kind)


def _holds(fn: FunctionType) -> Iterator[Any]:
    """A function's defaults, and what its closure holds."""
    yield from fn.__defaults__ or ()
    yield from (fn.__kwdefaults__ or {}).values()
    yield from (c.cell_contents for c in fn.__closure__ or () if c != _EMPTY)


@functools.lru_cache(maxsize=2048)
def _names(code: CodeType, how: frozenset[str]) -> tuple[str, ...]:
    """What a function's code, and that of functions in it, reads by name in a way."""
    found = dict.fromkeys(str(i.argval) for i in get_instructions(code) if i.opname in how)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= dict.fromkeys(_names(inner, how))
    return tuple(found)
