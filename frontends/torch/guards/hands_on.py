"""Whether a frame that Dynamo compiled does nothing but gather its graph's inputs, call the graph, and hand its results on.

    bytecode --> followed with a stack of what is known of each value --> yes or no

Such a frame can be skipped when what it gathers is known. Anything else in it has effects that must be replayed.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable
from types import CodeType

_GRAPH = "__compiled_fn_"
_RECORDS = "__import_torch_dot__dynamo_dot_utils"
# Dynamo notes when it begins to gather and when it has ended, and asks for sizes that change from call to call.
_HARMLESS = frozenset(("record_pregraph_bytecode_enter", "record_pregraph_bytecode_exit", "call_size"))
_NOTHING = frozenset(("RESUME", "NOP", "EXTENDED_ARG", "PRECALL"))
_NULL, _VALUE, _LIST = "null", "value", "list"


def hands_on(code: CodeType) -> bool:
    """Whether it does: no call but one of the graph and of Dynamo's own records, no jump, no write but to the frame's variables."""
    return followed(code) is not None


def followed(code: CodeType) -> int | None:
    """How deep the stack of such a frame becomes; None of any other.

    Nothing is believed: of code that comes from elsewhere no place on the stack is used that holds nothing, and no variable.
    """
    try:
        return Follower(code).follow()
    except (IndexError, ValueError, TypeError):  # it takes what is not there
        return None


class Follower:
    """What is known of the stack and of the variables, instruction by instruction."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        self._variables = dict.fromkeys(range(count), _VALUE)
        self._stack: list[str] = []
        self._cells = 0
        self._graphs = 0
        self.deepest = 0

    def instructions(self) -> Iterable[dis.Instruction]:
        """Those of the code, in order."""
        return dis.get_instructions(self._code)

    def follow(self) -> int | None:
        """How deep the stack becomes; None if the code does something else.

        Raises:
            IndexError, ValueError, TypeError: it takes what is not there.
        """
        self.deepest = 0
        for instruction in self.instructions():
            name, number = instruction.opname, instruction.arg or 0
            if name == "RETURN_VALUE":
                self._take(1)
                return self.deepest if self._graphs == 1 else None
            if name not in _NOTHING and not self._step(name, number, instruction.argval):
                return None
            self.deepest = max(self.deepest, len(self._stack))
        return None

    def _take(self, count: int) -> list[str]:
        """Take values off the stack.

        Raises:
            IndexError: there are less.
        """
        if not 0 <= count <= len(self._stack):
            raise IndexError
        taken = self._stack[len(self._stack) - count :]
        if _NULL in taken:
            raise IndexError
        del self._stack[len(self._stack) - count :]
        return taken

    def _step(self, name: str, number: int, what: object) -> bool:
        """Follow one instruction; whether it is one that such a frame has."""
        stack = self._stack
        if name == "COPY_FREE_VARS":
            self._cells = number
            return number == len(self._code.co_freevars)
        if name == "LOAD_DEREF":  # the cells are behind the variables
            stack.append(_VALUE)
            return self._cells > 0 and number >= self._code.co_nlocals
        if name == "LOAD_CONST":
            stack.append(_VALUE)
        elif name == "PUSH_NULL":
            stack.append(_NULL)
        elif name == "LOAD_FAST":
            if number not in self._variables:
                return False
            stack.append(self._variables[number])
        elif name == "STORE_FAST":
            (self._variables[number],) = self._take(1)
        elif name == "DELETE_FAST":
            return self._variables.pop(number, None) is not None
        elif name == "LOAD_GLOBAL":
            if not isinstance(what, str) or not what.startswith((_GRAPH, _RECORDS)):
                return False
            # With its lowest bit set it puts a null before the value, for a call.
            stack += [_NULL] * (number & 1) + ["graph" if what.startswith(_GRAPH) else "records"]
        elif name == "LOAD_ATTR":
            (of,) = self._take(1)
            stack.append("harmless" if of == "records" and what in _HARMLESS else _VALUE)
        elif name in ("COPY", "SWAP"):
            if not 1 <= number <= len(stack):
                return False
            if name == "COPY":
                stack.append(stack[-number])
            else:
                stack[-1], stack[-number] = stack[-number], stack[-1]
        elif name == "POP_TOP":
            self._take(1)
        elif name == "CALL":
            return self._call(number)
        elif name in ("BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP"):
            self._take({"BUILD_MAP": 2 * number, "BUILD_CONST_KEY_MAP": number + 1}.get(name, number))
            stack.append(_LIST if name == "BUILD_LIST" else _VALUE)
        elif name == "BINARY_SUBSCR":
            self._take(2)
            stack.append(_VALUE)
        elif name == "LIST_EXTEND":
            self._take(1)
            return number >= 1 and stack[-number] == _LIST
        elif name == "UNPACK_SEQUENCE":
            self._take(1)
            stack += [_VALUE] * number
        else:
            return False
        return True

    def _call(self, number: int) -> bool:
        """A null and a function, or a function and its first argument, which is among those passed."""
        self._take(number)
        first, second = self._stack[-2:]
        del self._stack[-2:]
        function = second if first == _NULL else first
        if function not in ("graph", "harmless") or second == _NULL:
            return False
        self._graphs += function == "graph"
        self._stack.append(_VALUE)
        return True
