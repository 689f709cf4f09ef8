"""Places in the user's model: read in one way, split into modules, and said on one line."""

import pytest

from dcir.ir.dace.nodes import Op
from dcir.ir.places import modules_of, places_of, titled


def test_an_operator_may_have_none():
    assert places_of(Op("op")) == () and places_of(Op("op", origin="model.up (net.py:3)")) == ("model.up (net.py:3)",)


@pytest.mark.parametrize(
    ("place", "modules"),
    [("model.layers.0 (net.py:3)", ("model", "layers", "0")), ("(net.py:3)", ()), ("", ()), ("model", ("model",))],
)
def test_modules(place, modules):
    assert modules_of(place) == modules


def test_one_line():
    assert titled("add", ()) == "add" and titled("add", ("a",)) == "add [a]"
    assert titled("add", ("a", "b", "c")) == "add [a and 2 more]"
    assert titled("add", ("(net.py:3)",)) == "add [net.py:3]"
