"""Loops and branches through stock DaCe: its own regions, the interpreter's numbers, and as many states for any number of trips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from dace.sdfg.state import ConditionalBlock, LoopRegion, SDFGState

from dcir.ir.body import Body
from dcir.ir.dace.target import compile_network
from dcir.ir.network import Network
from dcir.ops.lowering import Lowering, Ref
from tests.bodies import (
    body,
    branch,
    called,
    copied,
    graph,
    interpreted,
    loop,
    numbers,
    pointwise,
    repeat_while,
    tensor,
)
from tests.harness import run_dace
from tests.transforms.build import binary, reduce, unary

X, COUNT, FLAG = tensor(4), tensor(dtype="i64"), tensor(dtype="bool")


def step(c: Lowering, h: Ref, n: Ref, x: Ref, w: Ref) -> list[Ref]:
    """Two values that change places with others, and two stacked results, of which one is a scalar."""
    total = reduce(c, "sum", x, 0)
    new = binary(c, "add", unary(c, "tanh", h), binary(c, "mul", x, w))
    return [new, pointwise(c, lambda v: v + 2, n), binary(c, "sub", new, total), replace(copied(c, total), shape=(1,))]


STEP = body([X, COUNT, X, X], step, fixed=1)
BELOW = body([COUNT, X], lambda c, n, x: [pointwise(c, lambda v: v < 5, n, dtype="bool")])
GROW = body([COUNT, X], lambda c, n, x: [pointwise(c, lambda v: v + 1, n), pointwise(c, lambda v: v * 1.5 + 1.0, x)])


def loops(trips: int, *, backward: bool = False) -> Network:
    """With operators before and behind, and windows that begin within others."""

    def make(c: Lowering, h: Ref, n: Ref, xs: Ref, w: Ref) -> list[Ref]:
        part = replace(xs, shape=(trips, 4), offset=4)
        last, count, stacked, totals = loop(c, STEP, trips, [unary(c, "neg", h), n], [part], [w], backward=backward)
        return [unary(c, "neg", last), count, stacked, totals]

    return graph([X, COUNT, tensor(trips + 1, 4), X], make)


def whiles() -> Network:
    return graph([COUNT, X], lambda c, n, x: repeat_while(c, BELOW, GROW, [n, x]))


def branches() -> Network:
    then = body([X, X], lambda c, x, y: [binary(c, "add", x, y), unary(c, "exp", x)])
    otherwise = body([X, X], lambda c, x, y: [copied(c, y), unary(c, "neg", unary(c, "neg", x))])
    return graph([tensor(3, dtype="bool"), X, X], lambda c, f, x, y: [
        *branch(c, replace(f, shape=(), strides=()), then, otherwise, [x, y]),
        *branch(c, replace(f, shape=(), strides=(), offset=2), then, otherwise, [y, x]),
    ])  # fmt: skip


def nested() -> Network:
    """A branch in a loop in a loop, of which one side is a while loop."""
    grown = body([X], lambda c, x: [repeat_while(c, BELOW, GROW, [c.full(2, c.new((), "i64")), x])[1]])
    plain = body([X], lambda c, x: [unary(c, "abs", x)])

    def inner(c: Lowering, h: Ref, flag: Ref, x: Ref) -> list[Ref]:
        return [binary(c, "add", unary(c, "tanh", branch(c, flag, grown, plain, [h])[0]), x), copied(c, h)]

    of = body([X, FLAG, X], inner)

    def outer(c: Lowering, h: Ref, flags: Ref, xs: Ref) -> list[Ref]:
        return loop(c, of, 2, [h], [flags, xs], backward=True)

    around = Body.of(graph([X, tensor(2, dtype="bool"), tensor(2, 4)], outer))
    return graph([X, tensor(3, 2, dtype="bool"), tensor(3, 2, 4)], lambda c, h, f, xs: loop(c, around, 3, [h], [f, xs]))


NETWORKS: dict[str, tuple[Callable[[], Network], dict[type[Any], int]]] = {
    "one trip": (lambda: loops(1), {LoopRegion: 1}),
    "three trips": (lambda: loops(3), {LoopRegion: 1}),
    "backward": (lambda: loops(3, backward=True), {LoopRegion: 1}),
    "while": (whiles, {LoopRegion: 1}),
    "branches": (branches, {ConditionalBlock: 2}),
    "nested": (nested, {LoopRegion: 3, ConditionalBlock: 1}),
}


def expanded(net: Network) -> Any:
    """The SDFG in maps and tasklets."""
    sdfg = net.clone().sdfg
    sdfg.expand_library_nodes()
    return sdfg


def count(sdfg: Any, kind: type[Any]) -> int:
    """Blocks of a kind, at every depth."""
    return sum(
        isinstance(block, kind) for nested in sdfg.all_sdfgs_recursive() for block in nested.all_control_flow_blocks()
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_regions_are_daces_own(name: str) -> None:
    make, kinds = NETWORKS[name]
    sdfg = expanded(make())
    sdfg.validate()
    assert {kind: n for kind in (LoopRegion, ConditionalBlock) if (n := count(sdfg, kind))} == kinds


@pytest.mark.filterwarnings("ignore")
def test_as_many_states_for_any_number_of_trips() -> None:
    few, many = expanded(loops(2)), expanded(loops(1000))
    assert count(few, SDFGState) == count(many, SDFGState) and count(many, LoopRegion) == 1
    assert sorted(few.arrays) == sorted(many.arrays)


@pytest.mark.parametrize("name", NETWORKS)
def test_numbers(name: str) -> None:
    net = NETWORKS[name][0]()
    for seed, flag in ((0, True), (1, False)) if name == "branches" else ((0, None),):
        given = numbers(net, seed)
        if flag is not None:
            given[0] = torch.tensor([flag, True, not flag])
        torch.testing.assert_close(run_dace(called(net), given), interpreted(net, given), rtol=1e-5, atol=1e-5)


def test_a_while_loop_may_not_run_at_all() -> None:
    net = whiles()
    program = compile_network(net)
    for start in (5, 9, 4, -3):
        given = [torch.tensor(start), torch.arange(4.0)]
        done = program([t.numpy().reshape(-1) for t in given])
        got = [torch.from_numpy(done[r.data]).view(r.shape) for r in net.results]
        torch.testing.assert_close(got, interpreted(net, given))
        assert got[0].item() == max(start, 5)
