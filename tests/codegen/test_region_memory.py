"""Where the values of generated loops and branches lie, and how much memory that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dcir.codegen.regions import Made, RegionPlanner
from dcir.codegen.steps import Branch, Call, Carried, Loop, Place, Window, calls_in
from dcir.ir.body import Body
from dcir.ops.library.regions import BranchSpec, LoopSpec, Region, WhileSpec
from dcir.ops.lowering import Lowering, Ref
from tests.bodies import body, copied, graph, loop, pointwise, tensor
from tests.transforms.build import binary, unary

SCALAR, COUNT, X = tensor(), tensor(dtype="i64"), tensor(100)
BASE = 128


def planned(spec: Region, ins: int, outs: int) -> tuple[Any, int]:
    """The step of a region whose operands lie in slots of their own, from 2 on, and the end of its memory; kernels want 64 bytes."""
    planner = RegionPlanner(lambda run, _: Made("kernel", True, False, 64), 2)
    slots = [Place(2 + i, 16) for i in range(ins + outs)]
    return planner.plan(spec, spec, 7, slots[:ins], slots[ins:], BASE)


def in_arena(steps: Sequence[Any], first: int = 0) -> list[int]:
    """Offsets in the arena of what calls are given, each call's last: its scratch memory."""
    places = [p for call in calls_in(steps) for p in call.operands[first:]]
    return [p.offset for p in places if isinstance(p, Place) and not p.pointer and p.slot == 0]


def at(pointer: str, offset: int = 0) -> Place:
    return Place(-1, offset, pointer=pointer)


def counted(c: Lowering, n: Ref) -> Ref:
    return pointwise(c, lambda v: v + 1, n)


def step(c: Lowering, n: Ref, h: Ref, x: Ref, w: Ref) -> list[Ref]:
    made = unary(c, "exp", binary(c, "mul", h, replace(w, shape=(100,), strides=(1,), offset=10)))
    return [counted(c, n), binary(c, "add", made, x), copied(c, x)]


STEP = body([COUNT, X, X, tensor(200)], step, fixed=1)


def test_values_windows_and_memory_of_a_loop() -> None:
    """Second places of the values come first, then what lies between the body's operators, then their own memory."""
    found, end = planned(LoopSpec(STEP, 5, 2, (-100, 0), (300,)), 4, 3)
    assert isinstance(found, Loop) and (found.number, found.trips, found.flag) == (7, 5, None)
    assert found.carried == (
        Carried("r0i0", "r0o0", Place(2, 16), Place(6, 16), Place(0, BASE), 8),
        Carried("r0i1", "r0o1", Place(3, 16), Place(7, 16), Place(0, BASE + 64), 400),
    )
    assert found.windows == (
        Window("r0a0", Place(4, 16), -400), Window("r0a1", Place(5, 16), 0), Window("r0y0", Place(8, 16), 1200)
    )  # fmt: skip
    inside = BASE + 64 + 448
    own = Place(0, inside + 2 * 448)
    mul, exp, one, add, copy = found.steps
    assert isinstance(mul, Call) and mul.operands == (at("r0i1"), at("r0a1", 40), Place(0, inside), own)
    assert isinstance(exp, Call) and exp.operands == (Place(0, inside), Place(0, inside + 448), own)
    assert isinstance(one, Call) and one.operands == (at("r0i0"), at("r0o0"), own)
    assert isinstance(add, Call) and add.operands == (Place(0, inside + 448), at("r0a0"), at("r0o1"), own)
    assert isinstance(copy, Call) and copy.operands == (at("r0a0"), at("r0y0"), own)
    assert end == own.offset + 64


def test_a_loop_inside_lies_behind_what_is_around_it() -> None:
    def rows(c: Lowering, n: Ref, h: Ref, xs: Ref, w: Ref) -> list[Ref]:
        last, new, _ = loop(c, STEP, 3, [n, unary(c, "neg", h)], [xs], [w])
        return [last, unary(c, "neg", new)]

    of = Body.of(graph([COUNT, X, tensor(3, 100), tensor(200)], rows))
    found, end = planned(LoopSpec(of, 5, 2, (300, 0), ()), 4, 2)
    first, inner, second = found.steps
    outside = in_arena([first, second])
    inside = [c.other.offset for c in inner.carried] + in_arena(inner.steps)
    assert isinstance(inner, Loop) and inner.name != found.name and inner.number == found.number
    assert inner.carried[0].first == at("r0i0") and inner.carried[0].last == at("r0o0")
    assert [w.first for w in inner.windows[:2]] == [at("r0a0"), at("r0a1")] and inner.windows[0].step == 400
    # The kernels of both use the same memory, one after the other.
    assert min(inside) == max(outside) == first.operands[-1].offset and max(inside) + 64 == end


def test_a_branch_reads_its_bool_where_it_is() -> None:
    then = body([X], lambda c, x: [unary(c, "neg", unary(c, "exp", x))])
    found, end = planned(BranchSpec(then, body([X], lambda c, x: [unary(c, "neg", x)])), 2, 1)
    assert isinstance(found, Branch) and found.flag == Place(2, 16)
    assert found.windows == (Window("r0a0", Place(3, 16)), Window("r0y0", Place(4, 16)))
    assert [len(found.then), len(found.otherwise)] == [2, 1] and end == BASE + 448 + 64
    assert in_arena(found.otherwise) == [BASE]


@pytest.mark.parametrize("first", [4, 4000])
def test_the_longer_of_two_bodies_says_what_memory_both_take(first: int) -> None:
    def part(size: int, dtype: str) -> Body:
        def make(c: Lowering, x: Ref) -> list[Ref]:
            last = replace(c.full(1.0, c.new((size,), "f32")), shape=(), strides=(), offset=size - 1)
            return [pointwise(c, lambda v: v > 0.5, last, dtype=dtype) if dtype == "bool" else copied(c, last)]

        return body([SCALAR], make)

    _, end = planned(BranchSpec(part(first, "f32"), part(4004 - first, "f32")), 2, 1)
    assert end == BASE + 16000 + 64
    _, end = planned(WhileSpec(part(first, "bool"), part(4004 - first, "f32"), 1), 1, 1)
    assert BASE + 16000 + 64 < end <= BASE + 16000 + 64 + 4 * 64  # with the value's second place, and perhaps the flag


def test_nothing_is_written_where_the_flag_lies_while_threads_look_at_it() -> None:
    """Between the barrier behind the condition and that of the body's first kernel, some have looked and others not yet."""
    below = body([COUNT, X], lambda c, n, x: [pointwise(c, lambda v: v < 3, n, dtype="bool")])
    grow = body([COUNT, X], lambda c, n, x: [counted(c, n), unary(c, "neg", unary(c, "exp", x))])
    found, end = planned(WhileSpec(below, grow, 2), 2, 2)
    assert isinstance(found, Loop) and found.trips is None and found.flag is not None and found.flag.offset < end
    assert Window("r0c", found.flag) in found.windows
    assert found.flag.offset not in in_arena(found.steps)
