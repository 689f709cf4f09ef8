"""Modules' classes and the code of their methods, which Dynamo's guards do not ask for where versions of dictionaries speak for them.

A module's class can be replaced without a write to any dictionary (``module.__class__ = ...``), and Dynamo, which follows a frame of
ours into the user's ``forward``, has no guard on what it followed: another function in the class, or other code or defaults in the
function (as editors that load edited files again put there). torch.compile, whose frame ``forward`` itself is, sees both.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from operator import call
from types import CodeType, FunctionType, NoneType
from typing import Any

from torch import nn
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.symbolic_convert import tls

from dcir.frontends.torch.packed_calls import is_exchanged

_FORWARD = "forward"
_FIELDS = ("__code__", "__defaults__", "__kwdefaults__")


@dataclass(frozen=True)
class _Method:
    """What a class has by a name, a function or a property, and what the function is."""

    owner: type
    name: str
    value: Any
    function: FunctionType
    code: CodeType
    defaults: Any
    named_defaults: Any

    def changed(self) -> bool:
        function = self.function
        return (
            getattr(self.owner, self.name, None) is not self.value
            or function.__code__ is not self.code
            or function.__defaults__ is not self.defaults
            or function.__kwdefaults__ is not self.named_defaults
        )


@dataclass(frozen=True)
class _Seen:
    """Modules, the class of each, and methods of the classes."""

    modules: tuple[weakref.ref[nn.Module], ...] = ()
    kinds: tuple[type, ...] = ()
    methods: tuple[_Method, ...] = ()

    def changed(self) -> bool:
        kinds = tuple(map(type, map(call, self.modules)))
        if kinds != self.kinds:
            for now, then in zip(kinds, self.kinds, strict=True):
                if now is not then and now is not NoneType:  # what is gone is no matter of its class
                    return True
        return any(method.changed() for method in self.methods)


class CodeSeen:
    """What the frames of one callable were compiled for."""

    def __init__(self) -> None:
        self._seen = _Seen()
        self._frames: dict[int, weakref.ref[CodeType]] = {}

    def note_trace(self) -> None:
        """Note the frame that Dynamo traces now, the modules that it has looked at, and the functions that it has gone through."""
        trace = getattr(tls, "current_tx", None)
        if trace is not None:
            held = trace.output.side_effects.keepalive
            modules = [m for m in held if isinstance(m, nn.Module)]
            self.note(trace.f_code, modules, trace.output.tracing_context.previously_inlined_functions)

    def note(self, frame: CodeType, modules: Iterable[nn.Module], codes: Collection[CodeType] | None = None) -> None:
        """Note a frame that is compiled for these modules, with the code that it goes through; all of theirs if nobody knows."""
        self._frames[id(frame)] = weakref.ref(frame)
        known = {id(m): m for m in (*map(call, self._seen.modules), *modules) if m is not None}
        kinds = tuple(map(type, known.values()))
        methods = {(m.owner, m.name): m for m in (*_methods(kinds, codes), *self._seen.methods)}
        self._seen = _Seen(tuple(map(weakref.ref, known.values())), kinds, tuple(methods.values()))

    def changed(self) -> bool:
        """Whether a module is of another class, or a class has another method, or that other code or defaults."""
        return self._seen.changed()

    def forget(self) -> None:
        """Have Dynamo forget what it compiled."""
        frames, self._frames, self._seen = self._frames, {}, _Seen()
        for frame in frames.values():
            code = frame()
            if code is not None:
                reset_code(code)

    def dictionaries(self) -> list[dict[str, Any]] | None:
        """Those of classes that say which methods there are; None where one is not found."""
        found: dict[int, dict[str, Any]] = {}
        for method in self._seen.methods:
            for base in method.owner.__mro__:
                dictionary = dictionary_of(base)
                if dictionary is None:
                    return None
                found[id(dictionary)] = dictionary
                if method.name in dictionary:
                    break
        return list(found.values())

    def fields(self) -> list[tuple[Any, str]]:
        """(object, attribute) of all else."""
        modules = [m for m in map(call, self._seen.modules) if m is not None]
        functions = {id(m.function): m.function for m in self._seen.methods}
        return [*((m, "__class__") for m in modules), *((f, name) for f in functions.values() for name in _FIELDS)]


def _methods(kinds: Iterable[type], codes: Collection[CodeType] | None) -> Iterator[_Method]:
    """The methods of classes that have some code, or any; of torch's classes ``forward``."""
    for cls in dict.fromkeys(kinds):
        bases = [base for base in cls.__mro__ if base is not nn.Module and base is not object]
        # What is no function is not asked for: some classes make what they are asked for.
        names = dict.fromkeys(
            name
            for base in bases
            for name, value in vars(base).items()
            if (code := _code(value)) is not None
            and (name == _FORWARD or (not _is_torch(base) and (codes is None or code in codes)))
        )
        for name in names:
            for owner in bases:
                value = getattr(owner, name, None)
                function = _function(value)
                # Recurrent layers have others by turns, of ours.
                if function is not None and (owner is cls or not _is_torch(owner)) and not is_exchanged(function):
                    fields = (getattr(function, field) for field in _FIELDS)
                    yield _Method(owner, name, value, function, *fields)


def _is_torch(cls: type) -> bool:
    return cls.__module__.startswith("torch.")


def _function(value: Any) -> FunctionType | None:
    inner = value.fget if type(value) is property else value
    return inner if type(inner) is FunctionType else None


def _code(value: Any) -> CodeType | None:
    function = _function(value.__func__ if type(value) is staticmethod else value)
    return None if function is None else function.__code__


def dictionary_of(cls: type) -> dict[str, Any] | None:
    """The dictionary behind a class's read-only view of it."""
    found: list[Any] = [r for r in gc.get_referents(cls.__dict__) if type(r) is dict]
    return found[0] if len(found) == 1 else None
