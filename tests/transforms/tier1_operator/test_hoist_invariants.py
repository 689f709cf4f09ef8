"""Hoisting: what is the same in every trip moves in front of the loop, what is not stays, and the numbers are as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from dcir.errors import IndexOutOfRange
from dcir.ir.body import Body
from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network, Operand
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.base import PassResult
from dcir.transforms.runner import run_passes
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode
from dcir.transforms.tier1_operator.hoist_invariants import HoistInvariants
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
from tests.transforms.build import binary, reduce, unary

X, COUNT = tensor(4), tensor(dtype="i64")
BELOW = body([COUNT, X, X], lambda c, n, h, w: [pointwise(c, lambda v: v < 3, n, dtype="bool")], fixed=1)


def hoisted(net: Network, passes: int = 1) -> PassResult:
    """What one run finds; afterwards the network is right, and its numbers are those of before."""
    given = numbers(net)
    want = interpreted(net, given)
    outcome = HoistInvariants().apply(net)
    verify(net)
    net.validate()
    torch.testing.assert_close(interpreted(net, given), want)
    return outcome


def region(net: Network) -> Op:
    """The only loop or branch."""
    (op,) = (op for op in net.ops() if op.spec.bodies())
    return op


def over(step: Callable[..., list[Ref]], trips: int = 5) -> Network:
    """A loop that hands on one value, takes one thing apart, and reads one that does not change."""
    of = body([X, X, X], step, fixed=1)
    return graph([X, tensor(trips, 4), X], lambda c, h, xs, w: loop(c, of, trips, [h], [xs], [w]))


def packed(c: Lowering, h: Ref, x: Ref, w: Ref) -> list[Ref]:
    c.origin = "model.cell"
    made = unary(c, "exp", unary(c, "neg", w))
    c.origin = ""
    return [binary(c, "add", binary(c, "mul", x, made), h)]


def test_changed() -> None:
    net = over(packed)
    outcome = hoisted(net)
    neg, exp, op = net.ops()
    assert outcome.changed == 2 and outcome.saved_bytes == 4 * 2 * 32 and not outcome.refused
    assert [o.made_by for o in (neg, exp, op)] == ["hoist-invariants"] * 3 and exp.origin == "model.cell"
    assert net.ins(neg) == [Operand(net.inputs[2])] and net.ins(op)[3] == net.outs(exp)[0]
    (of,) = op.spec.bodies()
    assert len(of.operators) == 2 and set(of.static) == set(of.inputs[2:]) and len(of.inputs) == 4
    # What passes between operators that have moved is nothing to the body.
    assert {c.role for c in of.containers} == {"input", "transient", "result"} and len(of.containers) == 6
    check_generated(net)


def test_changed_once() -> None:
    net = over(packed)
    hoisted(net)
    assert hoisted(net).changed == 0


def result_of_its_own(c: Lowering, h: Ref, x: Ref, w: Ref) -> list[Ref]:
    return [binary(c, "add", h, x), unary(c, "exp", w)]


def one_of_two_writers(c: Lowering, h: Ref, x: Ref, w: Ref) -> list[Ref]:
    both = c.new((2, 4), "f32")
    for i, value in enumerate((w, x)):
        pointwise_into(c, value, replace(both, shape=(4,), strides=(1,), offset=4 * i))
    return [binary(c, "add", h, reduce_rows(c, both))]


def pointwise_into(c: Lowering, x: Ref, out: Ref) -> None:
    c.pointwise(lambda v: v * 2.0, x, out=out)


def reduce_rows(c: Lowering, x: Ref) -> Ref:
    return replace(reduce(c, "sum", x, 0), shape=(4,), strides=(1,))


@pytest.mark.parametrize(
    "step",
    [
        lambda c, h, x, w: [binary(c, "add", unary(c, "exp", h), w)],
        lambda c, h, x, w: [binary(c, "add", h, binary(c, "mul", x, w))],
        result_of_its_own,
        one_of_two_writers,
    ],
    ids=["reads a value", "reads a moving window", "is a result", "fills a part"],
)
def test_unchanged(step: Callable[..., list[Ref]]) -> None:
    net = over(step)
    op = net.ops()[0]
    of = op.spec.bodies()[0]
    assert hoisted(net).changed == 0 and net.ops() == [op] and op.spec.bodies()[0] is of


def test_a_branch_keeps_what_it_has() -> None:
    """One side may never run."""
    sides = [body([X], lambda c, x: [unary(c, "neg", unary(c, "exp", x))]) for _ in range(2)]
    net = graph([tensor(dtype="bool"), X], lambda c, f, x: branch(c, f, sides[0], sides[1], [x]))
    net.static = set(net.inputs)
    assert hoisted(net).changed == 0


def test_part_of_a_result_that_all_read_moves() -> None:
    """Windows on what has moved begin where they did, within the body and without."""

    def step(c: Lowering, h: Ref, x: Ref, w: Ref) -> list[Ref]:
        both = c.new((2, 4), "f32")
        for i in range(2):
            pointwise_into(c, w, replace(both, shape=(4,), strides=(1,), offset=4 * i))
        half = replace(both, shape=(4,), strides=(1,), offset=4)
        tail = unary(c, "exp", replace(w, shape=(2,), offset=2))
        return [binary(c, "add", binary(c, "add", h, half), replace(tail, shape=(4,), strides=(0,)))]

    of = body([X, X, X], step, fixed=1)

    def make(c: Lowering, h: Ref, xs: Ref, ws: Ref) -> list[Ref]:
        return loop(c, of, 5, [h], [xs], [replace(ws, shape=(4,), strides=(1,), offset=8)])

    net = graph([X, tensor(5, 4), tensor(3, 4)], make)
    assert hoisted(net).changed == 3
    assert [net.ins(op)[0].offset for op in net.ops()[:3]] == [8, 8, 10]
    check_generated(net)


def times(c: Lowering, n: Ref, h: Ref, w: Ref) -> list[Ref]:
    return [pointwise(c, lambda v: v + 1, n), binary(c, "mul", h, unary(c, "exp", w))]


def test_condition_and_body_of_a_while_loop_have_both() -> None:
    def most(c: Lowering, n: Ref, h: Ref, w: Ref) -> list[Ref]:
        total = reduce(c, "sum", unary(c, "abs", w), 0)
        limit = replace(pointwise(c, lambda v: v * 0.0 + 3.0, total), shape=(), strides=())
        k = c.kernel(())
        dst = c.new((), "bool")
        k.store(dst, k.body.convert(k.load(n), "f32") < k.load(limit))
        k.done()
        return [dst]

    tested, of = body([COUNT, X, X], most, fixed=1), body([COUNT, X, X], times, fixed=1)
    net = graph([COUNT, X, X], lambda c, n, h, w: repeat_while(c, tested, of, [n, h], [w]))
    assert hoisted(net).changed == 4
    condition, again = region(net).spec.bodies()
    assert len(condition.inputs) == len(again.inputs) == 5 and len(condition.operators) == 1
    check_generated(net, inputs=[torch.tensor(0), torch.ones(4), torch.ones(4)])


def picking(c: Lowering, n: Ref, h: Ref, w: Ref) -> list[Ref]:
    """The element at an index that does not change, and what is made of it."""
    k = c.kernel((4,))
    dst = c.new((4,), "f32")
    index = k.body.convert(k.load(replace(w, shape=(1,), strides=(0,))), "i64")
    k.store(dst, k.gather(w, (0,), [index], [0]))
    k.done()
    return [pointwise(c, lambda v: v + 1, n), binary(c, "add", h, unary(c, "exp", dst))]


def test_refused_what_may_fail_where_nothing_may_run() -> None:
    """And what reads of it; in a loop of known length it would have failed all the same."""
    of = body([COUNT, X, X], picking, fixed=1)
    net = graph([COUNT, X, X], lambda c, n, h, w: repeat_while(c, BELOW, of, [n, h], [w]))
    assert HoistInvariants().apply(net).changed == 0
    bad = [torch.tensor(5), torch.ones(4), torch.full((4,), 9.0)]
    torch.testing.assert_close(interpreted(net, bad)[1], torch.ones(4))  # it does not run
    net = graph([COUNT, X, X], lambda c, n, h, w: loop(c, of, 3, [n, h], [], [w]))
    good = [torch.tensor(0), torch.ones(4), torch.full((4,), 2.0)]
    want = interpreted(net, good)
    assert HoistInvariants().apply(net).changed == 2
    torch.testing.assert_close(interpreted(net, good), want)
    with pytest.raises(IndexOutOfRange):
        interpreted(net, bad)


def test_loops_in_loops_hand_it_on() -> None:
    """To the loop around them, and the next time in front of that; not what changes with the trips of that."""
    inner = body(
        [X, X, X],
        lambda c, h, x, w: [binary(c, "add", h, binary(c, "mul", unary(c, "tanh", x), unary(c, "exp", w)))],
        fixed=2,
    )

    def rows(c: Lowering, h: Ref, x: Ref, w: Ref) -> list[Ref]:
        return [copied(c, loop(c, inner, 3, [h], [], [x, w])[0])]

    net = over(rows)
    given = numbers(net)
    want = interpreted(net, given)
    first, second, third = run_passes(net, (HoistInvariants(),) * 3, validate_each=True)
    assert [r.changed for r in (first, second, third)] == [3, 1, 0]
    assert first.bytes_after < first.bytes_before and second.bytes_after < first.bytes_after
    _, op = net.ops()
    (around,) = op.spec.bodies()
    assert [o.spec.kind for o in around.network.ops()] == ["program", "program", "loop", "program"]
    torch.testing.assert_close(interpreted(net, given), want)
    check_generated(net)


def test_a_loop_that_is_the_same_in_every_trip_moves_as_a_whole() -> None:
    inner = body([X], lambda c, v: [unary(c, "tanh", v)])
    net = over(lambda c, h, x, w: [binary(c, "add", h, loop(c, inner, 3, [copied(c, w)])[0])])
    assert hoisted(net).changed == 2 and [op.spec.kind for op in net.ops()] == ["program", "loop", "loop"]
    assert RemoveDeadCode().apply(net).changed == 0


def test_what_a_body_says_changes_is_believed() -> None:
    """Without static inputs nothing moves, though the window does not."""
    of = Body.of(graph([X, X, X], packed))
    assert hoisted(graph([X, tensor(5, 4), X], lambda c, h, xs, w: loop(c, of, 5, [h], [xs], [w]))).changed == 0
