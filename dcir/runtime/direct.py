"""One native function for the whole of a repeated call: the user's tensors in, the result out, all conditions compared on the way.

The native side is ``codegen/cpp/direct.py``, which every compiled library holds. Where the interpreter and torch keep what it compares is
looked for once and tried out; where it is not found, calls take the longer short way (``entry.py``).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._C._dynamo.guards import GlobalStateGuard, _empty_strided_cpu  # type: ignore[attr-defined]  # not in its stub
from torch.overrides import TorchFunctionMode

from dcir.runtime import entry
from dcir.runtime.watch import TensorRow, Watch, field_offsets, keys_offset, only, word

MISS = object()
"""What a direct call gives where it has run nothing that counts: something is not as it was noted."""

# As in codegen/cpp/direct.py.
LARGEST_ARITY = 16

# Python 3.11 keeps the attributes of a tensor before it: as values, or as a dictionary, which has their number behind its header.
_VALUES, _DICTIONARY, _NUMBER = -32, -24, 16


class _Item(ctypes.Structure):
    _fields_ = (("dictionary", ctypes.c_void_p), ("key", ctypes.c_void_p), ("value", ctypes.c_void_p))


class _Field(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("value", ctypes.c_void_p))


class _Input(ctypes.Structure):
    _fields_ = (("keys", ctypes.c_uint64), ("slot", ctypes.c_longlong), ("noted", TensorRow))


class _Direct(ctypes.Structure):
    _fields_ = (
        ("entry", entry.EntryRow), ("table", ctypes.c_void_p),
        ("dictionaries", ctypes.c_void_p), ("n", ctypes.c_longlong), ("items", ctypes.c_void_p), ("count", ctypes.c_longlong),
        ("fields", ctypes.c_void_p), ("places", ctypes.c_longlong),
        ("inputs", ctypes.c_void_p), ("arity", ctypes.c_longlong), ("kind", ctypes.c_void_p), ("missed", ctypes.c_void_p),
        ("values", ctypes.c_longlong), ("dictionary", ctypes.c_longlong), ("tensor", ctypes.c_longlong), ("keys", ctypes.c_longlong),
        ("modes", ctypes.c_void_p), ("noted_modes", ctypes.c_void_p), ("same_modes", ctypes.c_void_p),
        ("stack", ctypes.c_void_p), ("gradient", ctypes.c_void_p),
        ("result", ctypes.c_void_p), ("result_module", ctypes.c_void_p), ("result_layout", ctypes.c_void_p),
        ("result_slot", ctypes.c_longlong),
        ("busy", ctypes.c_void_p), ("broken", ctypes.c_longlong), ("used", ctypes.c_longlong),
    )  # fmt: skip


@dataclass(frozen=True)
class Conditions:
    """What a call depends on besides the module's tree, the modes and its arguments.

    Attributes:
        dictionaries: none of which may be written at all.
        items: (dictionary, key, value) of those that others write often.
        fields: (object, attribute, value): any ``__class__``, a function's ``__code__``, ``__defaults__`` and ``__kwdefaults__``,
            a class's ``__mro__``.
    """

    dictionaries: tuple[dict[Any, Any], ...]
    items: tuple[tuple[dict[Any, Any], str, Any], ...]
    fields: tuple[tuple[Any, str, Any], ...]

    def same(self, other: Conditions) -> bool:
        """Whether two are about the same objects."""
        return _identities(self) == _identities(other)


def _identities(c: Conditions) -> list[list[int]]:
    return [list(map(id, c.dictionaries)), *([id(part) for part in row] for row in (*c.items, *c.fields))]


@dataclass(frozen=True)
class _CallLayout:
    """Offsets in bytes in a tensor's object, what it stands for, and other objects; addresses of torch's functions."""

    fields: dict[str, int]
    tensor: int
    keys: int
    stack: int
    gradient: int

    def at(self, owner: Any, attribute: str) -> int:
        """Where an attribute of an object lies."""
        return id(owner) + self.fields[attribute]


class Direct:
    """A direct call.

    Attributes:
        call: the function; it keeps all that it needs.
    """

    def __init__(self, row: _Direct, call: Callable[..., Any]) -> None:
        self._row, self.call = row, call

    @property
    def broken(self) -> bool:
        """Whether a condition does not hold any more, so that every call misses."""
        return bool(self._row.broken)

    @property
    def used(self) -> int:
        """How many calls it has run."""
        return int(self._row.used)


def direct(
    library: ctypes.CDLL,
    watched: Watch,
    conditions: Conditions,
    inputs: Sequence[tuple[torch.Tensor, int]],
    result: tuple[tuple[int, ...], tuple[int, ...], torch.dtype],
    slot: int,
    table: int,
    busy: int,
    fingerprint: int | None,
    kept: Any,
) -> Direct | None:
    """A direct call in the present modes; None where there can be none.

    Args:
        library: the program's.
        watched: what must be as it was noted of the module's tree.
        conditions: what else must.
        inputs: the tensors of a call that others shall be like, and the slot of each, -1 for one that is not read.
        result: shape, strides and type.
        slot: the result's.
        table: address of a table that is filled but for these slots, and that nobody else uses.
        busy: address of a number that is 1 while a direct call uses the same scratch memory (``Arenas.shared``).
        fingerprint: of what was prepared from parameters; None if it is not compared.
        kept: what has to live as long, the program at least.
    """
    layout = _layout()
    if layout is None or torch.is_grad_enabled() or torch._C._len_torch_function_stack():
        return None
    if not 0 < len(inputs) <= LARGEST_ARITY:
        return None
    if not all(type(t) is torch.Tensor and not t.requires_grad and not _has_attributes(t) for t, _ in inputs):
        return None
    noted, like = Watch(library, conditions.dictionaries, ()), Watch(library, (), [t for t, _ in inputs])
    fields = [
        _Field(layout.at(owner, name), 0 if value is None else id(value)) for owner, name, value in conditions.fields
    ]
    if not (noted.valid and like.valid and all(word(field.at) == (field.value or 0) for field in fields)):
        return None
    rows = [
        _Input(torch._C._dispatch_keys(t).raw_repr(), to, of)
        for (t, to), of in zip(inputs, like.tensor_rows, strict=False)
    ]
    items = [_Item(id(d), id(key), id(value)) for d, key, value in conditions.items]
    modes = GlobalStateGuard()
    arrays = (_Item * len(items))(*items), (_Field * len(fields))(*fields), (_Input * len(rows))(*rows)
    places = [ctypes.addressof(a) for a in arrays]
    row = _Direct(
        entry.EntryRow(*watched.row, entry.keys(), 0, None, fingerprint is not None, fingerprint or 0), table, *noted.row[:2],
        places[0], len(items), places[1], len(fields), places[2], len(rows), id(torch.Tensor), id(MISS),
        _VALUES, _DICTIONARY, layout.tensor, layout.keys,
        *_parts(modes.check), id(True), layout.stack, layout.gradient,
        *_parts(_empty_strided_cpu), id(result), slot, busy,
    )  # fmt: skip
    lives = (watched, noted, conditions, arrays, modes, result, row, kept)
    address = ctypes.cast(library.dcir_direct, ctypes.c_void_p).value or 0
    return Direct(row, entry.bound(library, b"direct", address, (ctypes.addressof(row), *lives)))


def _parts(function: Any) -> tuple[int, int]:
    """Addresses of a built-in function's C function and of what it is bound to."""
    address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
        ctypes.cast(ctypes.pythonapi.PyCFunction_GetFunction, ctypes.c_void_p).value or 0
    )
    return address(function), id(function.__self__)


def _has_attributes(t: torch.Tensor) -> bool:
    dictionary = word(id(t) + _DICTIONARY)
    return bool(word(id(t) + _VALUES) or (dictionary and word(dictionary + _NUMBER)))


@functools.cache
def _layout() -> _CallLayout | None:
    if not entry.available():
        return None
    folder = Path(torch.__file__).parent / "lib"
    try:
        stack = ctypes.CDLL(str(folder / "libtorch_cpu.so"))._ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv
        gradient = ctypes.CDLL(str(folder / "libc10.so"))._ZNK3c1010TensorImpl13requires_gradEv
    except (OSError, AttributeError):
        return None
    stack.restype, gradient.restype, gradient.argtypes = ctypes.c_longlong, ctypes.c_bool, (ctypes.c_void_p,)
    plain, marked, parameter = torch.empty(2), torch.empty(2), torch.empty(2, requires_grad=True)
    marked.dcir_mark = True  # type: ignore[attr-defined]
    looked_at = torch.empty(2)
    assert looked_at.__dict__ == {}
    with torch.inference_mode():
        others = (torch.empty(2), torch.empty(2, dtype=torch.complex64).conj())
    tensors = (plain, marked, parameter, *others)
    with _Mode():
        inside = stack()
    found = (
        only(tensors, range(16, int(torch._C.TensorBase.__basicsize__), 8), id, lambda t: t._cdata),
        keys_offset(),
    )
    right = (
        (stack(), inside) == (0, 1)
        and gradient(parameter._cdata)
        and not any(gradient(t._cdata) for t in (plain, *others))
        and list(map(_has_attributes, (plain, looked_at, marked))) == [False, False, True]
    )
    fields = field_offsets()
    if not right or fields is None or any(at is None for at in found):
        return None
    addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (stack, gradient)]
    return _CallLayout(fields, *found, *addresses)  # type: ignore[arg-type]


class _Mode(TorchFunctionMode):
    """One that does nothing."""
