"""Loops and branches as operators: what they compute, count and say, and how they are cut down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dcir.ir.body import Body
from dcir.ir.serialize import decode, encode
from dcir.ops.library.regions import BranchSpec, LoopSpec, WhileSpec
from dcir.ops.lowering import Lowering, Ref
from tests.bodies import body, copied, graph, loop, pointwise, tensor
from tests.transforms.build import binary, unary

Array = np.ndarray[Any, np.dtype[Any]]


def step(ctx: Lowering, value: Ref, x: Ref, w: Ref) -> list[Ref]:
    """The value and a part added, times what does not change; the value before is stacked."""
    return [binary(ctx, "mul", binary(ctx, "add", value, x), w), copied(ctx, value)]


STEP = body([tensor(2)] * 3, step, fixed=1)
BELOW = body(
    [tensor(), tensor()], lambda c, v, most: [pointwise(c, lambda a, b: a < b, v, most, dtype="bool")], fixed=1
)
DOUBLED = body([tensor(), tensor()], lambda c, v, most: [binary(c, "add", v, v)], fixed=1)
UP = body([tensor(3)] * 2, lambda c, x, y: [binary(c, "add", x, y), unary(c, "neg", x)])
DOWN = body([tensor(3)] * 2, lambda c, x, y: [binary(c, "sub", x, y), copied(c, x)])
TRUE, FALSE = np.array([True]), np.array([False])


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def ran(spec: Any, ins: Sequence[Array], outs: Sequence[int], starts: tuple[Any, Any] | None = None) -> list[Array]:
    """What an operator writes into results of so many elements."""
    made = [np.zeros(n, np.float32) for n in outs]
    before = [x.copy() for x in ins]
    in_starts, out_starts = starts or ([0] * len(ins), [0] * len(outs))
    spec.reference_at(ins, made, in_starts, out_starts)
    for x, old in zip(ins, before, strict=True):
        np.testing.assert_array_equal(x, old)  # operands are read only
    return made


@pytest.mark.parametrize("trips", [1, 2, 5])
@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "backward"])
def test_a_loop_hands_on_values_and_moves_windows(trips: int, sign: int) -> None:
    value, xs, w = f32(1, -2), np.arange(2 * trips, dtype=np.float32), f32(2, 3)
    start = 2 * (trips - 1) if sign < 0 else 0
    spec = LoopSpec(STEP, trips, 1, (2 * sign, 0), (2 * sign,))
    last, stacked = ran(spec, [value, xs, w], [2, 2 * trips], ([0, start, 0], [0, start]))
    seen: list[Array] = []
    for x in xs.reshape(trips, 2)[::sign]:
        seen.append(value)
        value = (value + x) * w
    np.testing.assert_array_equal(last, value)
    np.testing.assert_array_equal(stacked.reshape(trips, 2), seen[::sign])


def test_windows_may_overlap_lie_apart_and_begin_anywhere() -> None:
    mean = body([tensor(2)], lambda c, x: [unary(c, "neg", x)])
    spec = LoopSpec(mean, 3, 0, (1,), (3,))
    (made,) = ran(spec, [np.arange(6, dtype=np.float32)], [9], ([2], [1]))
    np.testing.assert_array_equal(made, f32(0, -2, -3, 0, -3, -4, 0, -4, -5))


def test_what_is_handed_on_may_change_places() -> None:
    swap = body([tensor(1)] * 2, lambda c, x, y: [copied(c, y), unary(c, "neg", x)])
    for trips, want in ((1, (2, -1)), (2, (-1, -2)), (3, (-2, 1)), (4, (1, 2))):
        np.testing.assert_array_equal(
            ran(LoopSpec(swap, trips, 2, (), ()), [f32(1), f32(2)], [1, 1]), [[v] for v in want]
        )


@pytest.mark.parametrize(("start", "want"), [(9, 9), (8, 8), (5, 10), (1, 8), (0.5, 8)])
def test_a_while_loop_runs_as_long_as_its_condition_holds(start: float, want: float) -> None:
    (last,) = ran(WhileSpec(BELOW, DOUBLED, 1), [f32(start), f32(8)], [1])
    assert last[0] == want


def test_a_branch_runs_one_side() -> None:
    x, y = f32(1, 2, 3), f32(10, 20, 30)
    spec = BranchSpec(UP, DOWN)
    for flag, want in ((TRUE, (x + y, -x)), (FALSE, (x - y, x))):
        for g, w in zip(ran(spec, [flag, x, y], [3, 3]), want, strict=True):
            np.testing.assert_array_equal(g, w)
    flags = np.array([False, True, False])
    assert ran(spec, [flags, x, np.append(f32(0), y)], [3, 3], ([1, 0, 1], [0, 0]))[0][0] == 11


def test_loops_in_loops_and_branches() -> None:
    def rows(c: Lowering, total: Ref, x: Ref, w: Ref) -> list[Ref]:
        return loop(c, STEP, 3, [total], [x], [w])

    inner = Body.of(graph([tensor(2), tensor(3, 2), tensor(2)], rows))
    spec = LoopSpec(inner, 2, 1, (6, 0), (6,))
    value, xs, w = f32(1, -1), np.arange(12, dtype=np.float32), f32(0.5, 2)
    last, stacked = ran(spec, [value, xs, w], [2, 12])
    flat = ran(LoopSpec(STEP, 6, 1, (2, 0), (2,)), [value, xs, w], [2, 12])
    np.testing.assert_array_equal(last, flat[0])
    np.testing.assert_array_equal(stacked, flat[1])
    sides = [Body.of(graph([tensor(2), tensor(3, 2), tensor(2)], f)) for f in (rows, lambda c, v, x, w: [
        copied(c, w), c.full(0.0, c.new((3, 2), "f32"))])]  # fmt: skip
    np.testing.assert_array_equal(ran(BranchSpec(sides[0], sides[1]), [TRUE, value, xs[:6], w], [2, 6])[1], flat[1][:6])
    np.testing.assert_array_equal(ran(BranchSpec(sides[0], sides[1]), [FALSE, value, xs[:6], w], [2, 6])[0], w)


def test_work() -> None:
    """Windows count each distinct element once, bodies as often as they run."""
    spec = LoopSpec(STEP, 5, 1, (2, 0), (-2,))
    assert spec.footprint() == ((8, 40, 8), (8, 40)) and spec.operations() == 5 * 4
    overlapping = LoopSpec(body([tensor(4)], lambda c, x: [copied(c, x)]), 3, 0, (1,), (10,))
    assert overlapping.footprint() == ((24,), (48,)) and not overlapping.operations()
    repeated = WhileSpec(BELOW, DOUBLED, 1)
    assert repeated.footprint() == ((4, 4), (4,)) and repeated.operations() == 2
    branch = BranchSpec(body([tensor(3)], lambda c, x: [unary(c, "exp", unary(c, "neg", x))]),
                        body([tensor(3)], lambda c, x: [unary(c, "neg", x)]))  # fmt: skip
    assert branch.footprint() == ((1, 12), (12,)) and branch.operations() == 6
    assert LoopSpec(Body.of(graph([tensor(2)] * 3, lambda c, *xs: loop(c, STEP, 4, xs[:1], [], xs[1:])[:1])), 3, 1, (0, 0),
                    ()).operations() == 3 * 4 * 4  # fmt: skip


def test_windows_of_arguments_move_with_the_trips() -> None:
    ins, outs = LoopSpec(STEP, 5, 1, (2, 0), (-2,)).argument_windows()
    assert [w.moves for w in ins] == [0, 8, 0] and [w.moves for w in outs] == [0, -8]
    ins, outs = BranchSpec(UP, DOWN).argument_windows()
    assert [(w.dtype, w.size, w.moves) for w in ins] == [("bool", 1, 0), ("f32", 3, 0), ("f32", 3, 0)] and len(
        outs
    ) == 2


UNREAD = body([tensor(2)] * 3, lambda c, v, x, w: [unary(c, "neg", v), unary(c, "exp", v)], fixed=1)
ONE_SIDE = body([tensor(3)] * 2, lambda c, x, y: [unary(c, "exp", y), copied(c, y)])
NONE = body([tensor(3)] * 2, lambda c, x, y: [c.full(v, c.new((3,), "f32")) for v in (1.0, 2.0)])


@pytest.mark.parametrize(
    ("spec", "wanted", "found"),
    [
        (LoopSpec(STEP, 3, 1, (2, 0), (2,)), [True, True], ([], [])),
        (LoopSpec(STEP, 3, 1, (2, 0), (2,)), [False, False], ([], [1])),
        (LoopSpec(UNREAD, 3, 1, (2, 0), (2,)), [True, True], ([1, 2], [])),
        (LoopSpec(UNREAD, 3, 2, (0,), ()), [True, False], ([2], [])),
        (WhileSpec(BELOW, DOUBLED, 1), [True], ([], [])),
        (WhileSpec(body([tensor()] * 2, lambda c, v, w: [pointwise(c, lambda a: a < 1.0, v, dtype="bool")]), DOUBLED, 1),
         [True], ([1], [])),
        (BranchSpec(UP, ONE_SIDE), [True, False], ([], [1])),
        (BranchSpec(ONE_SIDE, NONE), [True, True], ([1], [])),
        (BranchSpec(NONE, NONE), [False, True], ([1, 2], [0])),
    ],
)  # fmt: skip
def test_what_may_be_left_out(spec: Any, wanted: list[bool], found: tuple[list[int], list[int]]) -> None:
    assert spec.unused(wanted) == found
    lean = spec.without(*found)
    if not any(found):
        assert lean == spec
    assert [len(side) for side in lean.footprint()] == [
        len(side) - len(gone) for side, gone in zip(spec.footprint(), found, strict=True)
    ]
    assert lean.unused([True] * (len(spec.footprint()[1]) - len(found[1]))) == ([], [])
    assert lean.bytes_moved() == spec.bytes_moved() - sum(
        side[i] for side, gone in zip(spec.footprint(), found, strict=True) for i in gone
    )


def test_what_is_left_computes_the_same() -> None:
    x, w = f32(1, 2, 3, 4, 5, 6), f32(3, 4)
    whole = ran(LoopSpec(UNREAD, 3, 1, (2, 0), (2,)), [f32(1, 2), x, w], [2, 6])
    (last,) = ran(LoopSpec(UNREAD, 3, 1, (2, 0), (2,)).without([1, 2], [1]), [f32(1, 2)], [2])
    np.testing.assert_array_equal(last, whole[0])
    lean = BranchSpec(ONE_SIDE, NONE).without([1], [0])
    for flag, want in ((TRUE, w[:1]), (FALSE, 2)):
        np.testing.assert_array_equal(ran(lean, [flag, f32(3, 3, 3)], [3])[0], np.broadcast_to(want, 3))


def more(of: Body, name: str = "f32") -> Body:
    """A body with one more input that does not change."""
    net = of.copy()
    net.static.add(net.add_container((2,), name, "input"))
    return Body.of(net)


def test_more_that_does_not_change() -> None:
    made = LoopSpec(STEP, 3, 1, (2, 0), (2,)).with_fixed([more(STEP)], 1)
    assert made.in_steps == (2, 0, 0) and made.fixed() == [2, 3] and made.out_steps == (2,)
    while_ = WhileSpec(BELOW, DOUBLED, 1).with_fixed([more(BELOW), more(DOUBLED)], 1)
    assert while_.fixed() == [1, 2] and while_.without([2], []).describe() == WhileSpec(BELOW, DOUBLED, 1).describe()
    assert not BranchSpec(UP, DOWN).fixed()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (LoopSpec(STEP, 3, 1, (2, 0), (2,)), "loop 3 times over [program, program, program]"),
        (WhileSpec(BELOW, DOUBLED, 1), "while [program] over [program]"),
        (BranchSpec(UP, DOWN), "branch to [program, program] or [program, program]"),
    ],
)
def test_they_say_what_they_are_and_survive_a_file(spec: Any, text: str) -> None:
    assert spec.describe() == text
    again = decode(json.loads(json.dumps(encode(spec))))
    assert again == spec and again.with_bodies(spec.bodies()) == spec and spec.with_bodies(spec.bodies()) == spec


def test_long_bodies_are_told_in_short() -> None:
    def many(c: Lowering, x: Ref) -> list[Ref]:
        for _ in range(6):
            x = unary(c, "exp", x)
        return [x]

    text = LoopSpec(body([tensor(2)], many), 2, 1, (), ()).describe()
    assert text == "loop 2 times over [program, program, program, program, …]"
