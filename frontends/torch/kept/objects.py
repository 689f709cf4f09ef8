"""Objects of known classes as bytes of the cache, and back: of the bytes nothing else can be made, nor called, imported or changed.

A pickle can name any function, call it, and set attributes of what it names. Here it names what is on a list alone, and gets for it
something that makes objects of that class and takes no attributes. Dataclasses are written as their fields.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import io
import pickle
import sys
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import sympy
import torch
from sympy.core.numbers import NumberSymbol
from torch._guards import Source
from torch.utils._sympy import functions

from dcir.frontends.torch.kept.descriptions import Unkept

_PLAIN = frozenset((
    "builtins.set", "builtins.frozenset", "builtins.slice", "builtins.range", "builtins.complex", "builtins.bytearray", "builtins.list",
    "collections.OrderedDict", "collections.defaultdict", "torch.device", "torch.Size", "torch.dtype", "torch.memory_format",
))  # fmt: skip
_HEAP = 1 << 9
"""The flag of classes that Python code made, whose attributes can be set."""
_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)


def name_of(cls: Any) -> str:
    """How a class or function is named in the bytes."""
    return f"{cls.__module__}.{cls.__qualname__}"


class Writer(pickle.Pickler):
    """Writes objects; dataclasses as their fields, and objects of other classes of a list as what is in their dictionaries.

    Args:
        out: takes the bytes.
    """

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out, protocol=5)

    def reducer_override(self, value: Any) -> Any:
        """What makes an object again, and of what."""
        cls: Any = type(value)
        if isinstance(value, type):
            return NotImplemented
        if isinstance(value, _CONSTANTS):  # of themselves some are names in whatever module has imported torch first
            return _named, (str(value),)
        if isinstance(value, tuple) and hasattr(cls, "_fields"):
            return _tuple, (name_of(cls), tuple(value))
        if isinstance(value, sympy.Basic):
            return _expression, (cls.__name__, *_parts(value))
        if isinstance(value, torch.Tensor):
            return _tensor, _data(value)
        if isinstance(value, enum.Enum):  # of itself it is ``getattr`` of its class before Python 3.11.4
            return cls, (value.value,)
        if isinstance(value, MethodType):
            return _method, (value.__self__, value.__func__.__name__)
        plain = cls.__reduce__ is object.__reduce__ and cls.__reduce_ex__ is object.__reduce_ex__
        if plain and dataclasses.is_dataclass(cls):
            held = getattr(value, "__dict__", None)
            return _fields, (
                name_of(cls), {f.name: getattr(value, f.name) for f in dataclasses.fields(cls)} if held is None else held,
            )  # fmt: skip
        if plain and cls.__flags__ & _HEAP:
            return _bare, (name_of(cls), value.__getstate__())
        return NotImplemented


class Reader(pickle.Unpickler):
    """Reads objects of known classes.

    Args:
        data: the bytes.
        names: of classes and functions besides the plain ones, with their modules.

    Raises:
        Unkept: something else is named.
    """

    def __init__(self, data: bytes, names: frozenset[str]) -> None:
        super().__init__(io.BytesIO(data))
        self._names = names | _PLAIN

    def find_class(self, module: str, name: str) -> Any:
        """What a name means."""
        full = f"{module}.{name}"
        if full in _MAKERS:
            return _Calls(functools.partial(_MAKERS[full], self.known))
        if full not in self._names:
            return _members(module, name)
        found = self.known(full)
        fixed = isinstance(found, type) and not found.__flags__ & _HEAP
        return found if fixed else _Calls(found)

    def known(self, full: str) -> Any:
        """The class or function of a name of the list."""
        if full not in self._names:
            raise Unkept(f"a kept trace names {full}")
        module, _, name = full.rpartition(".")
        return getattr(sys.modules[module], name) if module in sys.modules else _imported(module, name)


def to_bytes(value: Any) -> bytes:
    """Bytes of an object.

    Raises:
        Unkept: there are none.
    """
    out = io.BytesIO()
    try:
        Writer(out).dump(value)
    except UNWRITTEN as e:
        raise Unkept(f"it cannot be written: {e}") from e
    return out.getvalue()


UNWRITTEN = (pickle.PicklingError, TypeError, AttributeError, RuntimeError, NotImplementedError)
"""What writing an object ends in that has no bytes."""


class _Calls:
    """Something that can be called, and nothing else."""

    __slots__ = ("_call",)
    _call: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Unkept("a kept trace sets an attribute of a class")


def _members(module: str, name: str) -> Any:
    """What makes members of an enumeration that the program has."""
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if isinstance(found, enum.EnumMeta):
        return _Calls(found)
    raise Unkept(f"a kept trace names {module}.{name}")


def _imported(module: str, name: str) -> Any:
    import importlib

    return getattr(importlib.import_module(module), name)


def _fields(name: str, fields: dict[str, Any]) -> Any:
    """A dataclass; what it is called in the bytes, as are the next ones. Only a reader makes them."""
    raise NotImplementedError


def _bare(name: str, state: dict[str, Any]) -> Any:
    """Another object."""
    raise NotImplementedError


def _tuple(name: str, values: tuple[Any, ...]) -> Any:
    """A named tuple."""
    raise NotImplementedError


def _method(owner: Any, name: str) -> Any:
    """A method of an object of ours."""
    raise NotImplementedError


def _expression(name: str, *parts: Any) -> Any:
    """An expression of sympy's."""
    raise NotImplementedError


def _tensor(*parts: Any) -> Any:
    """A tensor."""
    raise NotImplementedError


def _named(name: str) -> Any:
    """A type of elements, a layout or a format of torch's."""
    raise NotImplementedError


Known = Callable[[str], Any]


def _with_fields(known: Known, name: str, fields: dict[str, Any]) -> Any:
    cls: Any = known(name)
    kind: Any = dataclasses.is_dataclass(cls) and isinstance(cls, type)
    if not kind or issubclass(cls, Source) or not {f.name for f in dataclasses.fields(cls)} <= fields.keys():
        raise Unkept(f"a {name} of another form")
    made = cls.__new__(cls)
    for key, value in fields.items():
        object.__setattr__(made, key, _as_types(value))
    return made


def _with_state(known: Known, name: str, state: dict[str, Any]) -> Any:
    cls: Any = known(name)
    if not callable(getattr(cls, "mro", None)):
        raise Unkept(f"{name} is no class")
    made = cls.__new__(cls)
    if "__setstate__" in dir(cls):
        made.__setstate__(state)
    else:
        made.__dict__.update(state)
    return made


def _with_values(known: Known, name: str, values: tuple[Any, ...]) -> Any:
    return known(name)(*values)


def _of_owner(known: Known, owner: Any, name: str) -> Any:
    cls = type(owner)
    ours = cls.__module__.startswith("dcir.") or (cls is weakref.WeakSet and name == "add")
    found = getattr(owner, name, None) if ours and name.isidentifier() else None
    if not isinstance(found, MethodType):
        raise Unkept(f"a method {name}")
    return found


def _parts(value: Any) -> tuple[Any, ...]:
    """What an expression is made of: numbers, a name with what is assumed of it, or its arguments."""
    if isinstance(value, sympy.Symbol):
        return value.name, dict(value._assumptions_orig)
    if isinstance(value, sympy.Rational):
        return int(value.p), int(value.q)
    if isinstance(value, sympy.Number | NumberSymbol) or (
        not value.args and not isinstance(value, sympy.logic.boolalg.BooleanAtom)
    ):
        raise Unkept(f"an expression with {type(value).__name__}")
    parts: tuple[Any, ...] = value.args
    return parts


def _again(known: Known, name: str, *parts: Any) -> Any:
    if name == "Symbol":
        text, assumed = parts
        if type(text) is str and all(type(v) is bool for v in assumed.values()):
            return sympy.Symbol(text, **assumed)
    elif parts and all(type(p) is int and abs(p) < _LARGEST for p in parts):
        return sympy.Rational(*parts)
    elif name in ("BooleanTrue", "BooleanFalse"):
        return sympy.true if name == "BooleanTrue" else sympy.false
    elif name in _EXPRESSIONS and all(isinstance(p, sympy.Basic) for p in parts) and not _is_huge(name, parts):
        return (getattr(sympy, name, None) or getattr(functions, name))(*parts)
    raise Unkept(f"an expression {name}")


def _is_huge(name: str, parts: tuple[Any, ...]) -> bool:
    """Whether it is a power that is a very long number."""
    return name == "Pow" and len(parts) == 2 and bool(parts[1].is_number) and abs(parts[1]) > _LARGEST_POWER


_LARGEST, _LARGEST_POWER = 1 << 128, 64
"""Of numbers in expressions on sizes, and of exponents there."""
_EXPRESSIONS = frozenset((
    "Add", "Mul", "Pow", "Equality", "Unequality", "LessThan", "StrictLessThan", "GreaterThan", "StrictGreaterThan", "And", "Or", "Not",
    "Max", "Min", "FloorDiv", "Mod", "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt", "ModularIndexing", "Where",
))  # fmt: skip


def _data(value: torch.Tensor) -> tuple[Any, ...]:
    """A plain tensor of the CPU: its type, its form, and the bytes of its storage."""
    held = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
    return value.dtype, tuple(value.shape), value.stride(), value.storage_offset(), held.numpy().tobytes()


def _with_data(
    known: Known, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, data: bytes
) -> torch.Tensor:  # fmt: skip
    held = torch.frombuffer(bytearray(data), dtype=torch.uint8).clone() if data else torch.empty(0, dtype=torch.uint8)
    return torch.empty(0, dtype=dtype).set_(held.untyped_storage(), offset, shape, strides)


def _of_torch(known: Known, name: str) -> Any:
    constant = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(constant, _CONSTANTS):
        raise Unkept(f"a kept trace names {name}")
    return constant


def _as_types(value: Any) -> Any:
    """A field's value, where it is a class of the list the class itself."""
    if isinstance(value, _Calls) and isinstance(value._call, type):
        return value._call
    return value


_MAKERS: dict[str, Callable[..., Any]] = {
    name_of(stands): makes
    for stands, makes in (
        (_fields, _with_fields), (_bare, _with_state), (_tuple, _with_values), (_method, _of_owner), (_expression, _again),
        (_tensor, _with_data), (_named, _of_torch),
    )
}  # fmt: skip
