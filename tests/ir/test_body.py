"""Bodies: a network as data and back, what makes two equal, files, and what can be no body."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dcir.errors import InvalidGraph
from dcir.ir.body import Body, unplanned
from dcir.ir.memory_plan import ARENA
from dcir.ir.network import Network, Operand, Result
from dcir.ir.serialize import decode, encode
from dcir.ir.text import network_text
from dcir.ir.verify import verify
from dcir.ops.library.regions import LoopSpec
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from tests.bodies import body, copied, graph, interpreted, loop, numbers, tensor
from tests.transforms.build import binary, unary

INPUTS = [tensor(4), tensor(4), tensor(4)]


def step(ctx: Lowering, value: Ref, x: Ref, w: Ref) -> list[Ref]:
    """The next value, and what is stacked; two transients between them."""
    ctx.origin = "model.cell"
    new = binary(ctx, "add", unary(ctx, "tanh", value), binary(ctx, "mul", x, w))
    return [new, unary(ctx, "neg", new)]


def planned(of: Body) -> Body:
    """The same with a plan of memory."""
    net = of.copy()
    PlanArena().apply(net)
    return Body.of(net)


def looped(of: Body) -> Network:
    """A network with a loop over a body of ``INPUTS``."""
    return graph([tensor(4), tensor(3, 4), tensor(4)], lambda c, h, xs, w: loop(c, of, 3, [h], [xs], [w]))


def test_a_network_comes_back() -> None:
    net = graph(INPUTS, step)
    net.static = {net.inputs[2]}
    PlanArena().apply(net)
    once = Body.of(net)
    again = once.copy()
    verify(again)
    again.validate()
    assert again.side_tables() == net.side_tables() and again.memory.nbytes(ARENA)
    assert network_text(again) == network_text(net)
    for mine, theirs in zip(again.ops(), net.ops(), strict=True):
        assert (mine.label, mine.spec, mine.origin, mine.made_by) == (
            theirs.label,
            theirs.spec,
            "model.cell",
            "frontend",
        )
        assert again.ins(mine) == net.ins(theirs) and again.outs(mine) == net.outs(theirs)
    assert Body.of(again) == once and Body.of(again).memory == once.memory


def test_a_copy_is_nobody_elses() -> None:
    of = body(INPUTS, step, fixed=1)
    text = network_text(of.network)
    first, second = of.copy(), of.copy()
    first.rewire(first.ops()[0], first.ops()[0].spec, [Operand(first.inputs[1])], first.outs(first.ops()[0]))
    first.static.clear()
    assert of.network is of.network and network_text(of.network) == network_text(second) == text
    assert network_text(first) != text and second.static == {second.inputs[2]}


def test_equal_bodies_are_equal_whatever_their_plans() -> None:
    one, other = body(INPUTS, step, fixed=1), body(INPUTS, step, fixed=1)
    assert one is not other and one == other and hash(one) == hash(other) and repr(one) == repr(other)
    laid = planned(one)
    assert laid.memory != one.memory and laid == one and hash(laid) == hash(one) and repr(laid) == repr(one)
    assert not laid.unplanned().memory and laid.unplanned() == laid


def test_plans_inside_of_bodies_do_not_count_either() -> None:
    outer, laid = (Body.of(looped(b)) for b in (body(INPUTS, step), planned(body(INPUTS, step))))
    assert outer == laid and repr(outer) == repr(laid)
    (inside,) = laid.operators[0].spec.bodies()
    assert inside.memory and not laid.unplanned().operators[0].spec.bodies()[0].memory
    assert unplanned(laid.operators[0].spec) == laid.operators[0].spec


@pytest.mark.parametrize(
    "other",
    [
        lambda b: body(INPUTS, step),
        lambda b: body(INPUTS, lambda c, *xs: step(c, *xs)[::-1], fixed=1),
        lambda b: body(INPUTS, lambda c, h, x, w: step(c, h, w, x), fixed=1),
        lambda b: body([tensor(5)] * 3, step, fixed=1),
    ],
    ids=["static", "results", "operands", "shapes"],
)
def test_different_bodies_differ(other: Callable[[Body], Body]) -> None:
    one = body(INPUTS, step, fixed=1)
    assert other(one) != one and repr(other(one)) != repr(one)


def test_a_loop_survives_json() -> None:
    (op,) = looped(planned(body(INPUTS, step, fixed=1))).ops()
    again = decode(json.loads(json.dumps(encode(op.spec))))
    assert again == op.spec and hash(again) == hash(op.spec) and repr(again) == repr(op.spec)
    assert again.body.memory == op.known(LoopSpec).body.memory != ""
    assert network_text(again.body.network) == network_text(op.known(LoopSpec).body.network)


@pytest.mark.parametrize("through", ["clone", "file"])
def test_a_network_with_a_loop_is_copied(through: str, tmp_path: Path) -> None:
    inner = Body.of(looped(body(INPUTS, step, fixed=1)))
    net = graph([tensor(4), tensor(2, 3, 4), tensor(4)], lambda c, h, xs, w: loop(c, inner, 2, [h], [xs], [w]))
    net.save(tmp_path / "net.zip")
    again = net.clone() if through == "clone" else Network.load(tmp_path / "net.zip")
    verify(again)
    again.validate()
    assert network_text(again) == network_text(net) and again.ops()[0].spec == net.ops()[0].spec
    torch.testing.assert_close(interpreted(again, numbers(net)), interpreted(net, numbers(net)), rtol=0, atol=0)


def it_has_a_constant(net: Network) -> None:
    net.add_container((4,), "f32", "constant")


def a_result_is_an_input(net: Network) -> None:
    net.results[1] = Result(net.inputs[0], (4,), (1,), 0, "f32")


def a_result_is_no_container_of_its_own(net: Network) -> None:
    net.results[1] = net.results[0]


def a_result_replaces_an_input(net: Network) -> None:
    net.updates[net.results[0].data] = net.inputs[0]


@pytest.mark.parametrize(
    "spoil", [it_has_a_constant, a_result_is_an_input, a_result_is_no_container_of_its_own, a_result_replaces_an_input]
)
def test_what_is_no_body_is_refused(spoil: Callable[[Network], None]) -> None:
    net = graph(INPUTS, step)
    spoil(net)
    with pytest.raises(InvalidGraph, match="a body takes constants as inputs"):
        Body.of(net)


@pytest.mark.parametrize("window", [((2,), (1,), 2), ((2, 2), (1, 2), 0)], ids=["a part", "transposed"])
def test_a_result_that_is_a_view_is_refused(window: tuple[tuple[int, ...], tuple[int, ...], int]) -> None:
    net = graph(INPUTS, lambda c, h, x, w: [copied(c, x)])
    net.results[0] = Result(net.results[0].data, *window, "f32")
    with pytest.raises(InvalidGraph, match="a body takes constants as inputs"):
        Body.of(net)
