"""Arrays and nodes from a pattern are what DaCe's own constructors make."""

from __future__ import annotations

from typing import Any

import dace
import pytest
from dace.sdfg.nodes import AccessNode

from dcir.ir.dace.nodes import Op
from dcir.ir.dace.objects import access_node, array


def types_of(value: Any) -> Any:
    """The types of everything inside: DaCe wants SymPy's numbers in places where Python's are equal."""
    if isinstance(value, dict):
        return {key: types_of(v) for key, v in value.items()}
    return [types_of(v) for v in value] if isinstance(value, list | tuple) else type(value)


@pytest.mark.parametrize("transient", [True, False])
@pytest.mark.parametrize(
    ("shape", "strides", "size"), [((4, 5), (5, 1), 20), ((1,), (1,), 1), ((2, 3, 4), (16, 5, 1), 30)]
)
def test_arrays_equal_daces(shape: tuple[int, ...], strides: tuple[int, ...], size: int, transient: bool) -> None:
    sdfg = dace.SDFG("test")
    _, theirs = sdfg.add_array("t3", shape, dace.float32, strides=strides, total_size=size, transient=transient)
    for _ in range(2):  # the second is the copy
        assert types_of(array(shape, strides, dace.float32, size, transient).__dict__) == types_of(theirs.__dict__)
        ours = array(shape, strides, dace.float32, size, transient)
        assert ours.to_json() == theirs.to_json() and ours.__dict__ == theirs.__dict__
        assert ours.is_equivalent(theirs)


def test_nodes_equal_daces() -> None:
    pairs = [
        (access_node("t3"), AccessNode("t3")),
        (
            Op.made("gemm_7", "spec", [0, 4], [2], "m.fc", "pass"),
            Op("gemm_7", "spec", 2, 1, [0, 4], [2], "m.fc", "pass"),
        ),
        (Op.made("none", None, [], [], "", "frontend"), Op("none")),
    ]
    for ours, theirs in pairs:
        a, b = ours.__dict__, theirs.__dict__
        assert a.keys() == b.keys() and a["_guid"] != b["_guid"] and type(ours) is type(theirs)
        own = {"_guid", "_instrument_condition"}  # an object compared by identity
        assert all(a[k] == b[k] and type(a[k]) is type(b[k]) for k in a.keys() - own)
    one, other = (Op.made("x", "spec", [0], [0], "", "") for _ in range(2))
    one.add_in_connector("more")
    assert "more" not in other.in_connectors and "more" in one.in_connectors


def test_no_two_share_anything() -> None:
    one, other = (array((4,), (1,), dace.float32, 4, True) for _ in range(2))
    one.transient, one.location["x"] = False, 1
    assert other.transient and not other.location
