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
from collections.abc import Callable
from typing import Any

import torch

from dcir.frontends.torch.kept.descriptions import Unkept

_PLAIN = frozenset((
    "builtins.set", "builtins.frozenset", "builtins.slice", "builtins.range", "builtins.complex", "builtins.bytearray",
    "collections.OrderedDict", "torch.device", "torch.Size", "torch.dtype", "torch.memory_format", "torch.serialization._get_layout",
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
        bare: names of classes whose objects are their dictionaries.
    """

    def __init__(self, out: io.BytesIO, bare: frozenset[str] = frozenset()) -> None:
        super().__init__(out, protocol=5)
        self._bare = bare

    def reducer_override(self, value: Any) -> Any:
        """What makes an object again, and of what."""
        cls = type(value)
        if isinstance(value, (type, *_CONSTANTS)):
            return NotImplemented
        if (
            cls.__reduce__ is object.__reduce__
            and cls.__reduce_ex__ is object.__reduce_ex__
            and dataclasses.is_dataclass(cls)
        ):
            return _fields, (name_of(cls), {f.name: getattr(value, f.name) for f in dataclasses.fields(cls)})
        if name_of(cls) in self._bare:
            state = value.__getstate__()
            return _bare, (name_of(cls), state)
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
        if full == name_of(_fields):
            return _Calls(functools.partial(_with_fields, self.known))
        if full == name_of(_bare):
            return _Calls(functools.partial(_with_state, self.known))
        if full not in self._names:
            return _constant(module, name)
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

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Unkept("a kept trace sets an attribute of a class")


def _constant(module: str, name: str) -> Any:
    """A type of elements of torch's, or what makes members of an enumeration that the program has."""
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if isinstance(found, _CONSTANTS):
        return found
    if isinstance(found, enum.EnumMeta):
        return _Calls(found)
    raise Unkept(f"a kept trace names {module}.{name}")


def _imported(module: str, name: str) -> Any:
    import importlib

    return getattr(importlib.import_module(module), name)


def _fields(name: str, fields: dict[str, Any]) -> Any:
    """A dataclass; stands for ``_with_fields`` in the bytes."""
    raise NotImplementedError


def _bare(name: str, state: dict[str, Any]) -> Any:
    """Another object; stands for ``_with_state`` in the bytes."""
    raise NotImplementedError


def _with_fields(known: Callable[[str], Any], name: str, fields: dict[str, Any]) -> Any:
    cls = known(name)
    made = cls.__new__(cls)
    if {f.name for f in dataclasses.fields(cls)} != fields.keys():
        raise Unkept(f"a {name} of another form")
    for key, value in fields.items():
        object.__setattr__(made, key, value)
    return made


def _with_state(known: Callable[[str], Any], name: str, state: dict[str, Any]) -> Any:
    cls = known(name)
    made = cls.__new__(cls)
    if hasattr(cls, "__setstate__"):
        made.__setstate__(state)
    else:
        made.__dict__.update(state)
    return made
