"""What is read from bytes is of known classes; nothing else is called, imported, made or changed."""

import enum
import inspect
import os
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch._dynamo.source import AttrSource, LocalSource

from dcir.frontends.torch.kept.bytecode import KeptCode
from dcir.frontends.torch.kept.descriptions import Unkept
from dcir.frontends.torch.kept.frames import frame_again
from dcir.frontends.torch.kept.objects import Reader, name_of, to_bytes

SOURCES = frozenset((name_of(LocalSource), name_of(AttrSource)))


class Calls:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.made = function, args

    def __reduce__(self) -> Any:
        return self.made


@pytest.mark.parametrize(
    "value",
    [Calls(os.system, "true"), Calls(eval, "1"), Calls(getattr, 1, "real"), Calls(__import__, "this"), os.getcwd],
)
def test_other_functions_are_not_called(value: Any) -> None:
    with pytest.raises(Unkept):
        Reader(pickle.dumps(value), frozenset()).load()
    with pytest.raises(Unkept):
        frame_again(pickle.dumps(value))


def test_attributes_of_classes_are_not_set() -> None:
    # A global, and a state of a dictionary of slots: "build" sets them as attributes.
    name = b"torch._dynamo.source\nAttrSource\n"
    data = b"\x80\x02c" + name + b"(N}q\x00U\x05wrongK\x01s" + b"tb."
    with pytest.raises((Unkept, AttributeError, pickle.UnpicklingError)):
        Reader(data, SOURCES).load()
    assert not hasattr(AttrSource, "wrong")


def test_a_source_is_not_made_of_fields_that_nobody_gave_it() -> None:
    from dcir.frontends.torch.kept.objects import _fields

    data = pickle.dumps(
        Calls(_fields, name_of(AttrSource), {"base": LocalSource("x"), "member": "y", "_name_template": "1"})
    )
    with pytest.raises(Unkept):
        Reader(data, SOURCES).load()


@pytest.mark.parametrize(
    "value",
    [
        (1, 2.5, "a", b"b", None, {"k": [1, (2,)]}, {3}, frozenset((4,))), torch.float16, torch.contiguous_format, torch.Size((2, 3)),
        sympy.Symbol("s0", integer=True, positive=True) * 2 + 1, sympy.Eq(sympy.Symbol("s1"), 3), sympy.Rational(1, 3),
        AttrSource(LocalSource("x"), "y"), KeptCode(b"", (1,), ("a",), ("b",), (2,)),
    ],
)  # fmt: skip
def test_data_comes_back(value: Any) -> None:
    assert Reader(to_bytes(value), SOURCES | {name_of(KeptCode)}).load() == value


class Ends(enum.Enum):
    """Writes its members as Python 3.11.0 to 3.11.3 do it for every enumeration."""

    LEFT = "l"
    BOTH = "b"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return getattr, (Ends, self.name)


def test_members_of_enumerations_come_back_with_every_python() -> None:
    value = [Ends.BOTH, inspect.Parameter.VAR_KEYWORD, re.MULTILINE | re.DOTALL]
    again = Reader(to_bytes(value), frozenset()).load()
    assert all(a is b for a, b in zip(again, value, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64])
def test_tensors_come_back_with_their_strides(dtype: torch.dtype) -> None:
    value = torch.arange(12).reshape(3, 4).to(dtype).t()[1:]
    again = Reader(to_bytes(value), frozenset()).load()
    assert torch.equal(again, value)
    assert (again.dtype, again.stride()) == (value.dtype, value.stride())
