"""Trimming: results nobody reads and inputs nobody reads go, what is handed on stays, and the numbers are as before."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.library.regions import LoopSpec
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.base import PassResult
from dcir.transforms.runner import run_passes
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode
from dcir.transforms.tidy.trim_bodies import TrimBodies
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from tests.bodies import (
    body,
    branch,
    check_generated,
    copied,
    graph,
    interpreted,
    loop,
    numbers,
    pointwise,
    repeat_while,
    tensor,
)
from tests.transforms.build import binary, unary

X, COUNT, FLAG = tensor(4), tensor(dtype="i64"), tensor(dtype="bool")


def step(c: Lowering, h: Ref, x: Ref, y: Ref, w: Ref) -> list[Ref]:
    """Of two stacked results the second is all that needs ``y``; nothing needs ``w``."""
    return [binary(c, "add", h, x), unary(c, "exp", h), unary(c, "exp", y)]


STEP = body([X] * 4, step, fixed=1)
INPUTS = [X, tensor(3, 4), tensor(3, 4), X]


def trimmed(net: Network) -> PassResult:
    """What one run finds; afterwards the network is right, and its numbers are those of before."""
    given = numbers(net)
    want = interpreted(net, given)
    outcome = TrimBodies().apply(net)
    verify(net)
    net.validate()
    torch.testing.assert_close(interpreted(net, given), want)
    return outcome


def test_changed() -> None:
    net = graph(INPUTS, lambda c, h, xs, ys, w: loop(c, STEP, 3, [h], [xs, ys], [w])[:2])
    outcome = trimmed(net)
    (op,) = net.ops()
    # What was stacked, and the input that nobody read.
    assert outcome.changed == 1 and outcome.saved_bytes == 48 + 16 and op.made_by == "trim-bodies"
    assert [len(net.ins(op)), len(net.outs(op)), len(net.containers)] == [3, 2, 6]
    assert (op.known(LoopSpec).in_steps, op.known(LoopSpec).out_steps) == ((4, 4), (4,))
    (of,) = op.spec.bodies()
    assert len(of.inputs) == 3 and len(of.results) == 2 and not of.static


def test_what_is_dead_then_goes_the_next_time() -> None:
    net = graph(INPUTS, lambda c, h, xs, ys, w: loop(c, STEP, 3, [h], [xs, ys], [w])[:2])
    given = numbers(net)
    want = interpreted(net, given)
    records = run_passes(net, (TrimBodies(), RemoveDeadCode(), TrimBodies(), RemoveDeadCode(), TrimBodies()))
    assert [r.changed for r in records] == [1, 2, 1, 0, 0]
    (op,) = net.ops()
    assert len(net.ins(op)) == 2 and len(op.spec.bodies()[0].operators) == 2
    torch.testing.assert_close(interpreted(net, given), want)
    check_generated(net)


@pytest.mark.parametrize("read", [0, 1, 2])
def test_what_is_handed_on_stays(read: int) -> None:
    net = graph(INPUTS, lambda c, h, xs, ys, w: [unary(c, "neg", loop(c, STEP, 3, [h], [xs, ys], [w])[read])])
    assert trimmed(net).changed == 1
    op = net.ops()[0]
    assert (
        op.known(LoopSpec).carried == 1 and len(net.outs(op)) == 1 + (read > 0) and net.ins(op)[0].data == net.inputs[0]
    )


def test_unchanged() -> None:
    of = body([X, X, X], lambda c, h, x, w: [binary(c, "add", h, w), binary(c, "add", x, w)], fixed=1)
    net = graph([X, tensor(3, 4), X], lambda c, h, xs, w: loop(c, of, 3, [h], [xs], [w]))
    op = net.ops()[0]
    assert trimmed(net).changed == 0 and op.spec.bodies()[0] is of


def test_dead_as_a_whole() -> None:
    """That is dead code, and another pass's."""
    of = body([X], lambda c, x: [unary(c, "exp", x)])

    def make(c: Lowering, xs: Ref) -> list[Ref]:
        loop(c, of, 3, [], [xs])
        return [copied(c, xs)]

    net = graph([tensor(3, 4)], make)
    assert trimmed(net).changed == 0 and RemoveDeadCode().apply(net).changed == 2


def test_loops_that_only_feed_what_goes_are_trimmed_with_it() -> None:
    """The last one comes first."""

    def make(c: Lowering, h: Ref, xs: Ref, ys: Ref, w: Ref) -> list[Ref]:
        last, stacked, other = loop(c, STEP, 3, [h], [xs, ys], [w])
        return loop(c, STEP, 3, [last], [xs, stacked], [replace(other, shape=(4,), strides=(1,))])[:2]

    net = graph(INPUTS, make)
    assert trimmed(net).changed == 2
    assert [[len(net.ins(op)), len(net.outs(op))] for op in net.ops()] == [[3, 2], [3, 2]]


def test_a_container_that_others_write_too_stays() -> None:
    def make(c: Lowering, h: Ref, xs: Ref) -> list[Ref]:
        of = body([X, X], lambda c, h, x: [binary(c, "add", h, x), unary(c, "exp", x)])
        last, stacked = loop(c, of, 3, [h], [xs])
        c.pointwise(lambda v: v * 2.0, last, out=replace(stacked, shape=(4,), strides=(1,)))
        return [last]

    net = graph([X, tensor(3, 4)], make)
    name = net.outs(net.ops()[0])[1].data
    assert TrimBodies().apply(net).changed == 1 and name in net.containers
    assert RemoveDeadCode().apply(net).changed == 2 and name not in net.containers


def test_a_while_loop_keeps_its_values() -> None:
    """An input goes where neither its condition nor its body reads it."""
    below = body([COUNT, X, X, X], lambda c, n, *_: [pointwise(c, lambda v: v < 3, n, dtype="bool")], fixed=2)
    grow = body(
        [COUNT, X, X, X], lambda c, n, x, v, w: [pointwise(c, lambda v: v + 1, n), binary(c, "add", x, w)], fixed=2
    )
    net = graph([COUNT, X, X, X], lambda c, n, x, v, w: repeat_while(c, below, grow, [n, x], [v, w])[:1])
    assert trimmed(net).changed == 1
    (op,) = net.ops()
    assert len(net.ins(op)) == 3 and len(net.outs(op)) == 2 and [len(b.inputs) for b in op.spec.bodies()] == [3, 3]
    check_generated(net)


@pytest.mark.parametrize("flag", [True, False])
def test_branches_are_trimmed_where_both_sides_agree(flag: bool) -> None:
    then = body([X] * 3, lambda c, x, y, z: [unary(c, "exp", x), unary(c, "neg", y), unary(c, "tanh", x)])
    otherwise = body([X] * 3, lambda c, x, y, z: [unary(c, "abs", x), unary(c, "neg", x), copied(c, x)])
    net = graph([FLAG, X, X, X], lambda c, f, x, y, z: branch(c, f, then, otherwise, [x, y, z])[::2])
    assert trimmed(net).changed == 1  # a result, and what neither reads; one of them reads y
    (op,) = net.ops()
    assert [len(net.ins(op)), len(net.outs(op))] == [3, 2]
    records = run_passes(net, (RemoveDeadCode(), TrimBodies()))
    assert [r.changed for r in records] == [4, 1] and len(net.ins(op)) == 2
    check_generated(net, inputs=[torch.tensor(flag), *numbers(net)[1:]])


def test_within_bodies() -> None:
    def rows(c: Lowering, h: Ref, xs: Ref, ys: Ref, w: Ref) -> list[Ref]:
        return loop(c, STEP, 3, [h], [xs, ys], [w])[:1]

    of = body(INPUTS, rows, fixed=3)
    net = graph(INPUTS, lambda c, h, *fixed: loop(c, of, 2, [h], [], fixed))
    records = run_passes(net, (TrimBodies(), RemoveDeadCode(), TrimBodies(), TrimBodies()), validate_each=True)
    assert [r.changed for r in records] == [
        1,
        4,
        2,
        1,
    ]  # what a body reads no more, the one around it need not be given the next time
    (op,) = net.ops()
    assert len(net.ins(op)) == 2 and len(op.spec.bodies()[0].inputs) == 2
    check_generated(net)


def test_a_plan_of_memory_forgets_what_goes() -> None:
    net = graph(INPUTS, lambda c, h, xs, ys, w: [unary(c, "neg", loop(c, STEP, 3, [h], [xs, ys], [w])[0])])
    PlanArena().apply(net)
    assert TrimBodies().apply(net).changed == 1
    verify(net)
