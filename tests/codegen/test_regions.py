"""Generated loops and branches: the interpreter's numbers, for any team; bad indices; and memory that is known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from dcir.codegen.compile import compile_network, planned_bytes
from dcir.ir.body import Body
from dcir.ir.network import Network
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.tidy.prepare_static import PrepareStatic
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from tests.bodies import (
    body,
    branch,
    check_generated,
    copied,
    first,
    generated,
    graph,
    loop,
    numbers,
    pointwise,
    repeat_while,
    tensor,
)
from tests.transforms.build import binary, reduce, unary

SCALAR, COUNT, FLAG = tensor(), tensor(dtype="i64"), tensor(dtype="bool")


def cell(c: Lowering, h: Ref, x: Ref, w: Ref) -> list[Ref]:
    """A step with values in between, of which one is summed up."""
    mixed = unary(c, "tanh", binary(c, "add", h, binary(c, "mul", x, w)))
    return [mixed, binary(c, "sub", mixed, reduce(c, "sum", x))]


def below(most: float, *, others: int = 0) -> Body:
    """Whether a count, the first of several values, is below a number."""
    rest = [tensor(4)] * others
    return body([COUNT, *rest], lambda c, n, *_: [pointwise(c, lambda v: v < most, n, dtype="bool")])


def counted(c: Lowering, n: Ref) -> Ref:
    """One more."""
    return pointwise(c, lambda v: v + 1, n)


CELL = body([tensor(3, 4)] * 3, cell, fixed=1)
GROW = body([COUNT, tensor(4)], lambda c, n, x: [counted(c, n), pointwise(c, lambda v: v * 1.5 + 0.25, x)])


def simple(trips: int, *, backward: bool = False) -> Network:
    return graph(
        [tensor(3, 4), tensor(trips, 3, 4), tensor(3, 4)],
        lambda c, h, xs, w: loop(c, CELL, trips, [h], [xs], [w], backward=backward),
    )


def nested(outer: int, inner: int) -> Network:
    """The inner loop runs backward over the parts of a part; ordinary operators stand before and after it."""

    def rows(c: Lowering, h: Ref, xs: Ref, w: Ref) -> list[Ref]:
        last, stacked = loop(c, CELL, inner, [unary(c, "neg", h)], [xs], [unary(c, "tanh", w)], backward=True)
        return [binary(c, "add", last, h), unary(c, "abs", stacked)]

    of = Body.of(graph([tensor(3, 4), tensor(inner, 3, 4), tensor(3, 4)], rows))
    return graph(
        [tensor(3, 4), tensor(outer, inner, 3, 4), tensor(3, 4)],
        lambda c, h, xs, w: loop(c, of, outer, [h], [xs], [w]),
    )


def several(trips: int) -> Network:
    """Values of other types and sizes, of which two change places; one has no elements."""
    metas = [COUNT, tensor(5, dtype="f64"), tensor(5, dtype="f64"), tensor(3, dtype="bool"), tensor(70, dtype="bf16"),
             tensor(0)]  # fmt: skip

    def step(c: Lowering, n: Ref, x: Ref, y: Ref, flags: Ref, half: Ref, none: Ref) -> list[Ref]:
        return [
            counted(c, n), pointwise(c, lambda v: v * 0.5, y), copied(c, x), pointwise(c, lambda v: ~v, flags),
            pointwise(c, lambda v: v + 1.0, half), c.new((0,), "f32"),
        ]  # fmt: skip

    return graph(metas, lambda c, *values: loop(c, body(metas, step), trips, values))


def whiles(start: int) -> Network:
    """A while loop in every trip of a loop, and one before it that does not run."""

    def step(c: Lowering, x: Ref, n: Ref) -> list[Ref]:
        last, grown = repeat_while(c, below(4, others=1), GROW, [n, x])
        return [unary(c, "tanh", grown), counted(c, last)]

    of = body([tensor(4), COUNT], step)
    return graph(
        [tensor(4), tensor(5, dtype="i64")],
        lambda c, x, ns: [
            *loop(c, of, 5, [repeat_while(c, below(-100, others=1), GROW, [first(ns), x])[1]], [ns]),
            *repeat_while(c, below(start, others=1), GROW, [first(ns), x]),
        ],
    )


def branches() -> Network:
    """A branch in every trip, of which one side is a loop."""

    def side(c: Lowering, x: Ref, w: Ref) -> list[Ref]:
        return loop(c, body([tensor(4)] * 2, lambda c, x, w: [binary(c, "add", x, w)], fixed=1), 3, [x], [], [w])

    then, otherwise = body([tensor(4)] * 2, side), body([tensor(4)] * 2, lambda c, x, w: [unary(c, "neg", x)])

    def step(c: Lowering, x: Ref, flag: Ref, w: Ref) -> list[Ref]:
        (made,) = branch(c, flag, then, otherwise, [x, w])
        return [unary(c, "tanh", made)]

    of = body([tensor(4), FLAG, tensor(4)], step, fixed=1)
    return graph([tensor(4), tensor(6, dtype="bool"), tensor(4)], lambda c, x, f, w: loop(c, of, 6, [x], [f], [w]))


def surrounded() -> Network:
    def make(c: Lowering, h: Ref, xs: Ref, w: Ref) -> list[Ref]:
        last, stacked = loop(c, CELL, 3, [unary(c, "exp", h)], [unary(c, "neg", xs)], [binary(c, "add", w, h)])
        again, _ = loop(c, CELL, 2, [last], [stacked], [w])  # the third part is left
        return [binary(c, "mul", again, last), reduce(c, "sum", stacked)]

    return graph([tensor(3, 4), tensor(3, 3, 4), tensor(3, 4)], make)


NETWORKS: dict[str, Callable[[], Network]] = {
    **{f"{n} trips": partial(simple, n) for n in (1, 2, 3)},
    **{f"{n} trips backward": partial(simple, n, backward=True) for n in (1, 2, 3)},
    **{f"{n} by {m} trips": partial(nested, n, m) for n, m in ((1, 2), (2, 1), (2, 3), (3, 2))},
    **{f"{n} trips of several types": partial(several, n) for n in (1, 2, 3)},
    "while loops": partial(whiles, 7), "branches": branches, "surrounded": surrounded,
}  # fmt: skip


def plan(net: Network) -> None:
    """Plan memory at every depth."""
    for op in net.ops():
        net.rewire(op, op.spec.with_bodies(tuple(map(planned, op.spec.bodies()))), net.ins(op), net.outs(op))
    PlanArena().apply(net)


def planned(of: Body) -> Body:
    """A body with plans of memory."""
    net = of.copy()
    plan(net)
    return Body.of(net)


@pytest.mark.parametrize("name", NETWORKS)
def test_numbers(name: str) -> None:
    """For teams of one and of two, and with memory that is shared at every depth."""
    net = NETWORKS[name]()
    check_generated(net)
    plan(net)
    check_generated(net, (2,))


@pytest.mark.parametrize("name", NETWORKS)
def test_memory_is_known_beforehand(name: str) -> None:
    net = NETWORKS[name]()
    assert planned_bytes(net) == compile_network(net).arena_bytes > 0


def test_large_bodies_run_in_a_team() -> None:
    """Of enough work for several threads, one or more of them: every bit the same."""
    size = 1 << 17

    def step(c: Lowering, x: Ref, w: Ref) -> list[Ref]:
        y = unary(c, "tanh", binary(c, "add", x, w))
        return [pointwise(c, lambda v: v * 0.75, y), reduce(c, "sum", reduce(c, "sum", y), 0)]

    of = body([tensor(256, size // 256)] * 2, step, fixed=1)
    net = graph([tensor(256, size // 256)] * 2, lambda c, x, w: loop(c, of, 5, [x], [], [w]))
    given = numbers(net)
    check_generated(net, (1, 2, 3), given)
    one, *others = [generated(net, given, n) for n in (1, 2, 3, 3)]
    for other in others:
        torch.testing.assert_close(other, one, rtol=0, atol=0)


def test_tiny_bodies_run_without_a_team() -> None:
    net = whiles(7)
    texts: dict[str, str] = {}
    compile_network(net, keep=texts.__setitem__)
    assert "for (;;)" in texts["driver"] and "omp" not in texts["driver"]


def test_a_loop_over_parameters_runs_when_they_change() -> None:
    of = body([tensor(4)] * 2, lambda c, h, x: [binary(c, "add", unary(c, "tanh", h), x)])
    net = graph(
        [tensor(4), tensor(3, 4), tensor(4)], lambda c, h, xs, x: [binary(c, "mul", loop(c, of, 3, [h], [xs])[0], x)]
    )
    net.static = set(net.inputs[:2])
    assert PrepareStatic().apply(net).changed == 1
    check_generated(net)
    library = compile_network(net)
    assert (library.calls, library.prepared_bytes) == (1, 64) and library.arena_bytes == planned_bytes(net) > 0
