"""Memlets of operands are what DaCe's own constructor makes of their subset, and cost nothing until they are read."""

from __future__ import annotations

import copy
from typing import Any

import dace
import pytest
from dace.subsets import Range
from sympy import Integer

from dcir.ir.dace import memlets
from dcir.ir.dace.memlets import OperandMemlet, operand_memlet
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from tests.ir.dace.test_objects import types_of
from tests.ir.test_touched import Opaque

Rows = list[tuple[int, int, int]]


def copying(extents: tuple[int, ...], strides: tuple[int, ...]) -> LoopNest:
    body = LoopNestBuilder(extents)
    x = body.load(body.input("f32"), strides)
    body.store(body.output("f32"), strides, x)
    return body.finish()


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...], tuple[int, ...], Rows, int]] = {
    "whole": ((4, 5), (5, 1), 0, (4, 5), (5, 1), [(0, 3, 1), (0, 4, 1)], 20),
    "part": ((2, 3), (5, 1), 6, (4, 5), (5, 1), [(1, 2, 1), (1, 3, 1)], 6),
    "every other": ((2, 3), (10, 2), 0, (4, 5), (5, 1), [(0, 2, 2), (0, 4, 2)], 6),
    "turned": ((5, 4), (1, 5), 0, (4, 5), (5, 1), [(0, 3, 1), (0, 4, 1)], 20),
    "column-major": ((2, 3), (1, 4), 4, (4, 5), (1, 4), [(0, 1, 1), (1, 3, 1)], 6),
    "as one dimension": ((10,), (1,), 5, (4, 5), (5, 1), [(1, 2, 1), (0, 4, 1)], 10),
    "over an edge": ((3,), (1,), 3, (4, 5), (5, 1), [(0, 1, 1), (0, 4, 1)], 3),
    "a diagonal": ((4,), (6,), 0, (4, 5), (5, 1), [(0, 3, 1), (0, 4, 1)], 4),
    "one number": ((), (), 0, (), (), [(0, 0, 1)], 1),
    "nothing": ((0, 3), (3, 1), 0, (0, 3), (3, 1), [(0, 0, 1), (0, 0, 1)], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_to_daces(name: str) -> None:
    extents, steps, offset, shape, strides, ranges, volume = CASES[name]
    ours = operand_memlet("t3", copying(extents, steps), (False, 0), offset, shape, strides, "f32")
    theirs = dace.Memlet(data="t3", subset=Range(ranges), volume=volume)
    assert ours == theirs and hash(ours) == hash(theirs)
    a, b = ours.to_json(), theirs.to_json()
    for each in (a, b):
        each.pop("guid", None)
        each["attributes"].pop("guid", None)
    assert a == b
    mine: dict[str, Any] = {k: ours.__dict__[k] for k in theirs.__dict__}
    assert types_of(mine) == types_of(theirs.__dict__)
    assert types_of(ours.subset.__dict__) == types_of(theirs.subset.__dict__)
    assert (ours.volume, ours.num_elements(), str(ours)) == (theirs.volume, theirs.num_elements(), str(theirs))
    assert ours.used_symbols(all_symbols=True) == set() and not ours.dynamic


def test_what_no_loop_nest_says() -> None:
    memlet = operand_memlet("t3", Opaque(), (True, 0), 0, (3, 5), (5, 1), "f32")
    assert (memlet.subset, memlet.volume) == (Range([(0, 2, 1), (0, 4, 1)]), 4)


def test_found_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counting(spec: Any) -> Any:
        asked.append(spec)
        return found(spec)

    found = memlets.touched
    monkeypatch.setattr(memlets, "touched", counting)
    sdfg = dace.SDFG("lazy")
    sdfg.add_array("x", (4, 5), dace.float32)
    sdfg.add_array("y", (4, 5), dace.float32)
    state = sdfg.add_state()
    nest = copying((4, 5), (5, 1))
    for source, target, operand in (("x", "y", (False, 0)),):
        memlet = operand_memlet(source, nest, operand, 0, (4, 5), (5, 1), "f32")
        state.add_edge(state.add_access(source), None, state.add_access(target), None, memlet)
    twin = copy.deepcopy(sdfg)
    assert not asked
    (edge,) = twin.start_state.edges()
    assert isinstance(edge.data, OperandMemlet) and edge.data.volume == 20 and asked


def test_no_two_share_anything() -> None:
    one = operand_memlet("t3", copying((4,), (1,)), (False, 0), 0, (4,), (1,), "f32")
    assert one.subset == Range([(0, 3, 1)])
    two = copy.deepcopy(one)
    assert one == two and one.guid != two.guid
    two.subset.ranges[0], two.volume = (1, 2, 1), Integer(2)
    assert one.subset == Range([(0, 3, 1)]) and one.volume == 4
