"""Operators that code of stock DaCe calls back for: a tasklet says which, and where its operands lie, and its reference runs over them.

So it is with what has no loop nests: calls into torch, which draw the numbers that eager PyTorch would, and operators of other packages.
"""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import dace
import numpy as np

from dcir.ir.operator import Operator
from dcir.ir.serialize import decode, encode
from dcir.ir.types import to_numpy

_POINTER = "dcir_call_out"
_HEADER = Path(__file__).with_name("call_out.h").read_text()
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_longlong))

Array = np.ndarray[Any, np.dtype[Any]]


class Writer(Protocol):
    """What writes states (``expand.Writer``)."""

    sdfg: Any
    stored: dict[str, str]

    @property
    def operands(self) -> Mapping[str, Any]: ...

    def state(self) -> Any: ...


def write_call(writer: Writer, spec: Operator, ins: Sequence[str], outs: Sequence[str]) -> None:
    """A state that calls for one operator over operands of these names."""
    state = writer.state()
    names = [*(f"p{i}" for i in range(len(ins))), *(f"q{i}" for i in range(len(outs)))]
    operands = [writer.operands[name] for name in (*ins, *outs)]
    arrays = [writer.sdfg.arrays[o.array] for o in operands]
    places, sizes = [], []
    for name, o, desc in zip(names, operands, arrays, strict=True):
        offset = dace.symbolic.symstr(o.offset, cpp_mode=True)
        places.append(f"dcir_place({name}, {offset})")
        sizes.append(f"(long long)({desc.total_size} - ({offset}))")
    types = [_numpy_type(writer, o.array) for o in operands]
    call = json.dumps({"spec": encode(spec), "types": types, "inputs": len(ins)})
    code = (
        f"void *const places[] = {{{', '.join([*places, 'nullptr'])}}};\n"
        f"const long long sizes[] = {{{', '.join([*sizes, '0'])}}};\n"
        f"{_POINTER}({json.dumps(call)}, places, sizes);"
    )
    pointers = {name: dace.pointer(desc.dtype) for name, desc in zip(names, arrays, strict=True)}
    tasklet = state.add_tasklet(
        "call", {n: pointers[n] for n in names[: len(ins)]}, {n: pointers[n] for n in names[len(ins) :]}, code,
        language=dace.Language.CPP, side_effects=True,
    )  # fmt: skip
    for name, o, desc in zip(names, operands, arrays, strict=True):
        memlet, node = dace.Memlet.from_array(o.array, desc), state.add_access(o.array)
        if name in tasklet.in_connectors:
            state.add_edge(node, None, tasklet, name, memlet)
        else:
            state.add_edge(tasklet, name, node, None, memlet)
    _declare(writer.sdfg)


def _declare(root: Any) -> None:
    """Declare the pointer, once for a program."""
    while root.parent_sdfg is not None:
        root = root.parent_sdfg
    code = root.global_code.get("frame")
    if code is None or "DCIR_CALL_OUT" not in code.as_string:
        root.append_global_code(_HEADER)


def _numpy_type(writer: Writer, array: str) -> str:
    """What NumPy calls the elements of an array; DaCe has half types of our own temporaries as their bits."""
    if array in writer.stored:
        return str(to_numpy(writer.stored[array]))
    return str(np.dtype(writer.sdfg.arrays[array].dtype.as_numpy_dtype()))


def keep_order(state: Any, calls: Sequence[Any]) -> None:
    """Have nodes run one after the other: they may draw random numbers, which no edge of data says."""
    for first, then in itertools.pairwise(calls):
        state.add_nedge(first, then, dace.Memlet())


class Caller:
    """Runs what one library calls for; what goes wrong is kept, since no exception passes through its code.

    It must live as long as the library may run.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._known: dict[bytes, tuple[Operator, list[Any], int]] = {}
        self._error: BaseException | None = None
        self._function = _FUNCTION(self._call)
        if hasattr(library, _POINTER):
            pointer = ctypes.c_void_p.in_dll(library, _POINTER)
            pointer.value = ctypes.cast(self._function, ctypes.c_void_p).value

    def raise_error(self) -> None:
        """Raise what the last run met, if it met something."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _call(self, call: bytes, places: Any, sizes: Any) -> None:
        if self._error is not None:
            return
        try:
            if call not in self._known:
                told = json.loads(call)
                self._known[call] = decode(told["spec"]), [np.dtype(t) for t in told["types"]], told["inputs"]
            spec, types, count = self._known[call]
            operands = [_elements(places[i], sizes[i], t) for i, t in enumerate(types)]
            spec.reference(operands[:count], operands[count:])
        except BaseException as e:
            self._error = e


def _elements(address: int, size: int, dtype: Any) -> Array:
    """The memory of so many elements, as an array."""
    if size <= 0:
        return np.empty(0, dtype)
    memory = (ctypes.c_byte * (size * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)
