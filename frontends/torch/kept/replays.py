"""What bytecode of Dynamo's does besides calling its graph: it makes the objects that a frame returns, and writes what the frame wrote.

    x = Output(logits=y, cache=c)   -->   object made by a base class's __new__, its attributes and entries set
    cache.keys = y                  -->   an attribute set, once the graph has run

All of it comes after the graph, from which the values are: until then a call can be made again. No other function is called, and no
method of an object but those that fill Python's own containers. What is made and written is what Dynamo saw, of classes that it guards.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any, NamedTuple

from torch._dynamo import side_effects

from dcir.frontends.torch.guards.hands_on import Follower

_NAME, _METHOD, _NULL, _VALUE = "name ", "method ", "null", "value"
_OF_DYNAMO = frozenset(("object_new", "object_setattr_ignore_descriptor"))
"""Functions of Dynamo's own, which are there whoever's frame it is."""
_MAKES = frozenset(f"{_NAME}{name}" for name in (
    "object.__new__", "dict.__new__", "list.__new__", "tuple.__new__", "__import_builtins.object.__new__", "__import_builtins.dict.__new__",
    "__import_collections.OrderedDict.__new__", "__import_collections.OrderedDict", "__import_builtins.object.__setattr__", *_OF_DYNAMO,
))  # fmt: skip
_ASKS = frozenset((f"{_NAME}type", f"{_NAME}__import_builtins.type"))
"""With one argument."""
_FILLS = frozenset(f"{_METHOD}{name}" for name in ("update", "clear", "extend"))
_TAKES = {"STORE_ATTR": 2, "STORE_SUBSCR": 3, "DELETE_ATTR": 1}
_RECORDS = "records"
_FILLED = "FILLED"
_DEEP = 6
"""How deep the stack becomes while a dictionary is filled."""


def replayed(code: CodeType) -> int | None:
    """How deep the stack of a frame becomes that does nothing else; None of any other."""
    try:
        return _Replayer(code).follow()
    except (IndexError, ValueError, TypeError):
        return None


class _Filled(NamedTuple):
    """Several instructions as one: a dictionary is given the entries of another one, by the class at a place of its class's bases."""

    opname: str
    arg: int
    argval: Any


class _Replayer(Follower):
    def instructions(self) -> Iterable[Any]:
        """Those of the code, Dynamo's loop that fills a dictionary as one."""
        every = [i for i in dis.get_instructions(self._code) if i.opname != "EXTENDED_ARG"]
        at = 0
        while at < len(every):
            variables = _filling(every, at)
            if variables is None:
                yield every[at]
                at += 1
            else:
                yield _Filled(_FILLED, 0, variables)
                at += len(_template())

    def _step(self, name: str, number: int, what: object) -> bool:
        stack = self._stack
        if name == _FILLED:
            held = {self._code.co_varnames.index(v) for v in what} if isinstance(what, tuple) else set()
            stack += [_VALUE] * _DEEP
            self.deepest = max(self.deepest, len(stack))
            del stack[-_DEEP:]
            return self._graphs == 1 and held <= self._variables.keys()
        if name in _TAKES:
            self._take(_TAKES[name])
            return self._graphs == 1
        if name == "BUILD_SLICE":
            self._take(number)
            stack.append(_VALUE)
            return True
        if name in ("LOAD_ATTR", "LOAD_METHOD") and stack and stack[-1] == _RECORDS and what in _OF_DYNAMO:
            self._take(1)
            stack += [_NULL] * (name == "LOAD_METHOD") + [f"{_NAME}{what}"]
            return True
        if name in ("LOAD_ATTR", "LOAD_METHOD") and stack and stack[-1].startswith(_NAME):
            (of,) = self._take(1)
            stack += [_NULL] * (name == "LOAD_METHOD") + [f"{of}.{what}"]
            return True
        if name == "LOAD_METHOD":
            self._take(1)
            stack += [f"{_METHOD}{what}", _VALUE]
            return True
        if super()._step(name, number, what):
            return True
        if name == "LOAD_GLOBAL" and self._graphs == 1:
            stack += [_NULL] * (number & 1) + [f"{_NAME}{what}"]
            return True
        return False

    def _call(self, number: int) -> bool:
        at = len(self._stack) - number - 2
        if at < 0:
            return False
        first, second = self._stack[at : at + 2]
        function = second if first == _NULL else first
        asks = function in _ASKS and number == 1
        if self._graphs != 1 or not (asks or function in _MAKES | _FILLS or _is_new(function)):
            return super()._call(number)
        self._take(number)
        del self._stack[-2:]
        self._stack.append(_VALUE)
        return True


def _is_new(function: str) -> bool:
    """Whether it makes an object of a class that is not filled yet."""
    return function.startswith(_NAME) and function.endswith(".__new__")


@functools.cache
def _template() -> tuple[dis.Instruction, ...]:
    """Dynamo's loop that fills a dictionary, without its beginning and its end."""
    every = [i for i in dis.get_instructions(side_effects._manual_dict_setitem) if i.opname != "EXTENDED_ARG"]
    begin = next(n for n, i in enumerate(every) if i.opname == "RESUME") + 1
    end = next(n for n, i in enumerate(every) if i.opname.startswith("JUMP_BACKWARD")) + 1
    return tuple(every[begin:end])


def _filling(every: Sequence[dis.Instruction], at: int) -> tuple[str, ...] | None:
    """The variables that such a loop at a place takes: the dictionaries, and the number of the class; None if it is another thing."""
    known = _template()
    window = every[at : at + len(known)]
    if len(window) < len(known) or at + len(known) >= len(every) or window[0].opname != known[0].opname:
        return None
    of: dict[str, str] = {}
    loop = next(i for i in window if i.opname == "FOR_ITER") if any(i.opname == "FOR_ITER" for i in window) else None
    for mine, theirs in zip(window, known, strict=True):
        if mine.opname != theirs.opname or loop is None:
            return None
        if theirs.opname.endswith("_FAST"):
            if of.setdefault(theirs.argval, mine.argval) != mine.argval:
                return None
        elif theirs.opname == "FOR_ITER":
            if mine.argval != every[at + len(known)].offset:
                return None
        elif theirs.opname.startswith("JUMP_BACKWARD"):
            if not window[window.index(loop) - 1].offset < mine.argval <= loop.offset:
                return None
        elif theirs.opname.startswith("LOAD_"):
            if mine.argval != theirs.argval or (
                theirs.opname == "LOAD_GLOBAL" and (mine.arg or 0) & 1 != (theirs.arg or 0) & 1
            ):
                return None
        elif mine.arg != theirs.arg:
            return None
    if len(set(of.values())) != len(of):
        return None
    return of["dict_from"], of["dict_to"], of["mro_index"]
