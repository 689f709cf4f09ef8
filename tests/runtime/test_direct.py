"""Where direct calls look for what they compare: it is found, both sides agree on it, and what differs is refused."""

import ctypes
import re

import pytest
import torch

from dcir.codegen.cpp import direct as native
from dcir.runtime import direct, entry
from dcir.runtime.direct import Conditions
from dcir.runtime.watch import word

pytestmark = pytest.mark.skipif(not entry.available(), reason="nothing to watch changes with")


def test_both_sides_agree() -> None:
    assert native.LARGEST_ARITY == direct.LARGEST_ARITY
    row = re.search(r"struct Direct \{(.*?)\};", native.DIRECT, re.DOTALL)
    assert row is not None
    # A member is a pointer to a function, (*name), or what a comma or semicolon ends.
    text = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", row[1])
    assert re.findall(r"(\w+)\s*[,;]", text) == [name for name, *_ in direct._Direct._fields_]
    assert {size for _, kind in direct._Direct._fields_[1:] if (size := ctypes.sizeof(kind))} == {8}


def test_places_are_found() -> None:
    layout = direct._layout()
    assert layout is not None
    for t in (torch.randn(3), torch.nn.Parameter(torch.randn(2, 2)), torch.zeros(4, dtype=torch.int64)[1:]):
        assert word(id(t) + layout.tensor) == t._cdata
        assert word(t._cdata + layout.keys) == torch._C._dispatch_keys(t).raw_repr()

    def function(x: int = 1, *, y: int = 2) -> int:
        return x + y

    for owner, name in (
        (function, "__code__"), (function, "__defaults__"), (function, "__kwdefaults__"), (function, "__class__"),
        (torch.nn.Linear, "__mro__"), (torch.nn.ReLU(), "__class__"), (torch, "__class__"),
    ):  # fmt: skip
        assert word(layout.at(owner, name)) == id(getattr(owner, name))


def test_conditions_are_the_same_if_their_objects_are() -> None:
    one, other = {"a": 1.5}, {"a": 1.5}
    a = Conditions(
        (one,), ((one, "a", one["a"]),), ((test_places_are_found, "__code__", test_places_are_found.__code__),)
    )
    assert a.same(Conditions((one,), a.items, a.fields))
    assert not a.same(Conditions((other,), a.items, a.fields))
    assert not a.same(Conditions((one,), (), a.fields))
    assert not a.same(Conditions((one,), a.items, ()))
