"""Whether a frame that Dynamo compiled does nothing but gather its graph's inputs, call the graph, and hand its results on.

    bytecode --> followed with a stack of what is known of each value --> yes or no

Such a frame can be skipped when what it gathers is known. Anything else in it has effects that must be replayed.
"""

from __future__ import annotations

import dis
from types import CodeType

_GRAPH = "__compiled_fn_"
_RECORDS = "__import_torch_dot__dynamo_dot_utils"
# Dynamo notes when it begins to gather and when it has ended, and asks for sizes that change from call to call.
_HARMLESS = frozenset(("record_pregraph_bytecode_enter", "record_pregraph_bytecode_exit", "call_size"))
_NOTHING = frozenset(("RESUME", "COPY_FREE_VARS", "NOP", "CACHE", "EXTENDED_ARG", "PRECALL", "DELETE_FAST"))


def hands_on(code: CodeType) -> bool:
    """Whether it does: no call but one of the graph and of Dynamo's own records, no jump, no write but to the frame's variables."""
    stack: list[str] = []
    variables: dict[str, str] = {}
    graphs = 0
    for instruction in dis.get_instructions(code):
        name, what, number = instruction.opname, instruction.argval, instruction.arg or 0
        if name in _NOTHING:
            continue
        if name == "RETURN_VALUE":
            return graphs == 1
        if name in ("LOAD_CONST", "LOAD_DEREF", "PUSH_NULL"):
            stack.append("")
        elif name == "LOAD_FAST":
            stack.append(variables.get(what, ""))
        elif name == "STORE_FAST":
            variables[what] = stack.pop()
        elif name == "LOAD_GLOBAL":
            if not what.startswith((_GRAPH, _RECORDS)):
                return False
            # With its lowest bit set it puts a null before the value, for a call.
            stack += [""] * (number & 1) + ["graph" if what.startswith(_GRAPH) else "records"]
        elif name == "LOAD_ATTR":
            stack.append("harmless" if stack.pop() == "records" and what in _HARMLESS else "")
        elif name == "COPY":
            stack.append(stack[-number])
        elif name == "SWAP":
            stack[-1], stack[-number] = stack[-number], stack[-1]
        elif name == "POP_TOP":
            stack.pop()
        elif name == "CALL":
            # A null and a function, or a function and its first argument, which is among those passed.
            called = stack[-number - 2 : len(stack) - number]
            function = called[1] or called[0]
            if function not in ("graph", "harmless"):
                return False
            graphs += function == "graph"
            _replace(stack, number + 2)
        elif name in ("BUILD_TUPLE", "BUILD_LIST"):
            _replace(stack, number)
        elif name == "BUILD_MAP":
            _replace(stack, 2 * number)
        elif name == "BUILD_CONST_KEY_MAP":
            _replace(stack, number + 1)
        elif name == "BINARY_SUBSCR":
            _replace(stack, 2)
        elif name == "LIST_EXTEND":
            stack.pop()
        elif name == "UNPACK_SEQUENCE":
            stack.pop()
            stack += [""] * number
        else:
            return False
    return False


def _replace(stack: list[str], taken: int) -> None:
    """Put a value of which nothing is known in the place of those on top."""
    del stack[len(stack) - taken :]
    stack.append("")
