"""What Dynamo's guards look at, described so that equal descriptions in two processes mean that the same trace holds.

    a function --> its name, its bytecode, its defaults, what its cells hold      a class --> the same of all that its bases define

Within one process Dynamo asks whether a function is still the same object. Another process has other objects, which are as good if they
were made of the same code. What cannot be described is no reason to guess: such a trace is not kept.
"""

from __future__ import annotations

import abc
import enum
import functools
import hashlib
import math
import sys
from collections.abc import Iterable, Mapping
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

_PLAIN = (bool, int, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_NAMED = (torch.dtype, torch.layout, torch.memory_format, torch.device)
_NATIVE = (
    BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType, MemberDescriptorType,
)  # fmt: skip
_OF_TORCH = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)
_BOUND = ("PyCapsule", "pybind11_")
"""What a native function is bound to where it is none of Python's own."""
_CONTAINERS = (tuple, list, set, frozenset, dict, MappingProxyType)
_FEW, _DEEP = 64, 4
"""Parts of a container in a class that are described, and how deep: what is larger is a table that others fill."""
_LINES = "__firstlineno__"
_MOST = 1 << 14
"""Parts of one value that are described."""


class Unkept(Exception):
    """A trace, or a part of one, of which cannot be said what it depends on."""


class Descriptions:
    """Describes values, each object once.

    Attributes:
        codes: (name, digest) of every bytecode that was described.
    """

    def __init__(self) -> None:
        self.codes: set[tuple[str, str]] = set()
        self._known: dict[int, tuple[Any, str]] = {}
        self._under_way: set[int] = set()
        self._parts = 0

    def of(self, value: Any) -> str:
        """The description of a value.

        Raises:
            Unkept: there is none that is the same in another process.
        """
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            return repr(value)
        if type(value) is float:
            return "nan" if math.isnan(value) else repr(value)
        known = self._known.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        if id(value) in self._under_way:  # a function that calls itself through a cell of its own
            return "itself"
        self._parts += 1
        if self._parts > _MOST:
            raise Unkept("what a guard looks at is very large")
        self._under_way.add(id(value))
        try:
            found = self._of(value)
        finally:
            self._under_way.discard(id(value))
        if isinstance(value, FunctionType | type | CodeType):  # the contents of others may change while this lives
            self._known[id(value)] = value, found
        return found

    def _of(self, value: Any) -> str:
        if isinstance(value, _NAMED):
            return f"{type(value).__name__} {value}"
        if type(value) in (tuple, list, torch.Size):
            return f"{type(value).__name__}({', '.join(map(self.of, value))})"
        if type(value) in (set, frozenset):
            return f"{type(value).__name__}({', '.join(sorted(map(self.of, value)))})"
        if type(value) in (dict, MappingProxyType):
            return "{" + ", ".join(f"{self.of(k)}: {self.of(v)}" for k, v in value.items()) + "}"
        if type(value) in (slice, range):
            return repr(value)
        if isinstance(value, CodeType):
            return self.code(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return f"method of {self.of(type(value.__self__))}: {self.of(value.__func__)}"
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, enum.Enum):
            return f"{self.of(type(value))}.{value.name} {self._inside(value.value)}"
        if isinstance(value, _OF_TORCH):
            return f"{type(value).__name__} {value}"
        if isinstance(value, functools.partial):
            return f"partial({self.of(value.func)}, {self.of(value.args)}, {self.of(value.keywords)})"
        if isinstance(value, _NATIVE):
            return _native(value)
        raise Unkept(f"a guard looks at a {type(value).__module__}.{type(value).__qualname__}")

    def code(self, code: CodeType) -> str:
        """The digest of bytecode and of all that is in it; lines and files do not count."""
        known = self._known.get(id(code))
        if known is not None and known[0] is code:
            return known[1]
        digest = code_digest(code)
        self._known[id(code)] = code, digest
        self.codes.add((code.co_qualname, digest))
        return digest

    def _function(self, f: FunctionType) -> str:
        held = [self._cell(c) for c in f.__closure__ or ()]
        defaults = [self._default(f, d) for d in (f.__defaults__ or ())]
        named = [f"{k}={self._default(f, d)}" for k, d in (f.__kwdefaults__ or {}).items()]
        return f"function {f.__module__}.{f.__qualname__} {self.code(f.__code__)} {defaults} {named} {held}"

    def _default(self, f: FunctionType, value: Any) -> str:
        try:
            return self.of(value)
        except Unkept:
            if not _is_torchs(f.__module__):
                raise
            return type(value).__qualname__  # it came with this torch

    def _cell(self, cell: CellType) -> str:
        try:
            held = cell.cell_contents
        except ValueError:
            return "empty"
        try:
            return self.of(held)
        except Unkept:
            # What a trace reads of it has guards of its own.
            return f"a {type(held).__module__}.{type(held).__qualname__}"

    def _class(self, cls: type) -> str:
        for name in ("__instancecheck__", "__subclasscheck__"):
            asked = getattr(type(cls), name)
            if isinstance(asked, FunctionType) and _is_own(asked):
                raise Unkept(
                    f"{cls.__qualname__} says itself what is one of it"
                )  # Dynamo calls it, and does not trace it
        rows = [] if type(cls) is type else [f"made by {type(cls).__module__}.{type(cls).__qualname__}"]
        for base in cls.__mro__:
            rows.append(f"class {base.__module__}.{base.__qualname__}")
            if base.__module__ != "builtins" and base.__flags__ & _HEAP:
                rows += [
                    f"  {name} {self._member(member)}" for name, member in sorted(vars(base).items()) if name != _LINES
                ]
            if isinstance(base, abc.ABCMeta) and base.__module__.partition(".")[0] not in sys.stdlib_module_names:
                rows += [f"  counts {name}" for name in _registered(base)]
        return "class " + hashlib.blake2b("\n".join(rows).encode(), digest_size=16).hexdigest() + f" {cls.__qualname__}"

    def _member(self, member: Any) -> str:
        inner = member
        if isinstance(member, staticmethod | classmethod):
            inner = member.__func__
        if isinstance(member, property):
            parts = (member.fget, member.fset, member.fdel)
            return "property " + " ".join(self._member(p) for p in parts if p is not None)
        if isinstance(inner, FunctionType):
            return f"{type(member).__name__} {self._method(inner)}"
        if isinstance(inner, str) and len(inner) > 1 << 10:  # documentation
            return "text"
        return self._inside(inner)

    def _method(self, f: FunctionType) -> str:
        """A function that a class has: its code, and of what it holds besides as much as can be told."""
        held = [self._held(c) for c in f.__closure__ or ()]
        defaults = [self._inside(d) for d in (f.__defaults__ or ())]
        named = [f"{k}={self._inside(d)}" for k, d in (f.__kwdefaults__ or {}).items()]
        wrapped = f.__dict__.get("__wrapped__")
        more = f" of {self._member(wrapped)}" if isinstance(wrapped, FunctionType) else ""
        return f"{self.code(f.__code__)} {defaults} {named} {held}{more}"

    def _held(self, cell: CellType) -> str:
        try:
            held = cell.cell_contents
        except ValueError:
            return "empty"
        return self.code(held.__code__) if isinstance(held, FunctionType) else self._inside(held)

    def _inside(self, value: Any, depth: int = 0) -> str:
        """A value that a class holds: plain data as it is, everything else by its kind. What a trace reads of it has guards."""
        if isinstance(value, enum.Enum):  # of the class that is being described, mostly
            return f"{type(value).__qualname__}.{value.name} {self._inside(value.value, depth + 1)}"
        if (isinstance(value, _PLAIN) and type(value) in _PLAIN) or type(value) is float or isinstance(value, _NAMED):
            return self.of(value)
        if type(value) in _CONTAINERS and len(value) <= _FEW and depth < _DEEP:
            if type(value) in (dict, MappingProxyType):
                return self._inside(tuple(value.items()), depth)
            parts = [self._inside(v, depth + 1) for v in value]
            return f"{type(value).__name__}({', '.join(parts if type(value) in (tuple, list) else sorted(parts))})"
        return type(value).__qualname__


def _is_own(function: FunctionType) -> bool:
    """Whether a function is neither torch's nor of Python's own library."""
    return str(function.__module__).partition(".")[0] not in sys.stdlib_module_names | {"torch", "dcir"}


def _registered(base: abc.ABCMeta) -> list[str]:
    """The classes that count as subclasses of an abstract one without being any."""
    registry = (reference() for reference in abc._get_dump(base)[0])  # type: ignore[attr-defined]
    return sorted(f"{cls.__module__}.{cls.__qualname__}" for cls in registry if cls is not None)


_HEAP = 1 << 9
"""The flag of classes that Python code made."""


def code_digest(code: CodeType) -> str:
    """The digest of bytecode and of all that is in it; lines and files do not count."""
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts_of(code):
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _parts_of(code: CodeType) -> Iterable[bytes | str]:
    yield code.co_code
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    yield repr((counts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    yield code.co_exceptiontable
    for constant in code.co_consts:
        yield _constant(constant)


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return f"code {value.co_name} {code_digest(value)}"
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"tuple {[_constant(v) for v in value]}"
    return f"{type(value).__name__} {value!r}"


def _native(value: Any) -> str:
    """Code that is no bytecode, which is what its name says: libraries' versions are part of every address."""
    owner = getattr(value, "__self__", None)
    of = owner.__name__ if isinstance(owner, ModuleType | type) else type(owner).__qualname__
    whose = getattr(getattr(value, "__objclass__", None), "__qualname__", "")
    if type(owner).__name__.startswith(_BOUND):  # which holds nothing but the function
        of = ""
    elif owner is not None and not isinstance(owner, ModuleType | type) and not _is_torchs(type(owner).__module__):
        raise Unkept(f"a guard looks at a method of a {of}")
    return f"{type(value).__name__} {getattr(value, '__module__', '')}.{value.__qualname__} {of} {whose}"


def _is_torchs(module: str | None) -> bool:
    return str(module).partition(".")[0] == "torch"


def codes_of_module(module: ModuleType) -> set[tuple[str, str]]:
    """(name, digest) of the bytecode that is read from a module's file and in use: its functions, its classes', and those inside."""
    found: set[tuple[str, str]] = set()
    seen: set[int] = set()
    pending: list[Any] = list(vars(module).values())
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, CodeType):
            found.add((value.co_qualname, code_digest(value)))
            pending += [c for c in value.co_consts if isinstance(c, CodeType)]
        elif isinstance(value, FunctionType):
            if value.__module__ == module.__name__ or value.__code__.co_filename == getattr(module, "__file__", None):
                pending.append(value.__code__)
            pending.append(getattr(value, "__wrapped__", None))
            pending += [_content(c) for c in value.__closure__ or ()]
        elif isinstance(value, staticmethod | classmethod | MethodType):
            pending.append(value.__func__)
        elif isinstance(value, property):
            pending += [value.fget, value.fset, value.fdel]
        elif isinstance(value, functools.partial):
            pending.append(value.func)
        elif isinstance(value, type) and value.__module__ == module.__name__:
            pending += list(vars(value).values())
    return found


def _content(cell: CellType) -> Any:
    try:
        held = cell.cell_contents
    except ValueError:
        return None
    return held if isinstance(held, FunctionType | MethodType | staticmethod | classmethod) else None


def module_of_file(file: str, loaded: Mapping[str, ModuleType] | None = None) -> ModuleType | None:
    """The module that was read from a file; of code that was typed in, the main program."""
    modules = sys.modules if loaded is None else loaded
    for module in list(modules.values()):
        if getattr(module, "__file__", None) == file:
            return module
    return modules.get("__main__") if file.startswith("<") else None
