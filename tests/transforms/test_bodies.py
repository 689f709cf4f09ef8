"""Passes in bodies: every depth is rewritten and counted, copies are kept no longer than they hold, and some passes stay outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from dcir.errors import InvalidGraph
from dcir.ir.body import Body
from dcir.ir.memory_plan import ARENA
from dcir.ir.network import Network
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.base import Pass, PassResult, Place
from dcir.transforms.bodies import Bodies
from dcir.transforms.pipelines import pipeline
from dcir.transforms.runner import run_passes
from dcir.transforms.tidy.prepare_static import PrepareStatic
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from tests.bodies import body, branch, graph, interpreted, loop, numbers, pointwise, tensor
from tests.transforms.build import binary, unary

INPUTS = [tensor(4), tensor(4)]


def cell(c: Lowering, h: Ref, w: Ref) -> list[Ref]:
    """With an operator that nobody reads."""
    unary(c, "exp", w)
    return [unary(c, "tanh", binary(c, "add", h, w))]


def nested(of: Body) -> Network:
    """A loop over ``of`` in a loop, with a dead operator at each depth."""

    def around(c: Lowering, h: Ref, w: Ref) -> list[Ref]:
        unary(c, "exp", h)
        return [unary(c, "neg", loop(c, of, 3, [h], [], [w])[0])]

    outer = body(INPUTS, around, fixed=1)
    return graph(INPUTS, lambda c, h, w: around(c, loop(c, outer, 2, [h], [], [w])[0], w))


def depths(net: Network) -> list[list[str]]:
    """The kinds of the operators, of the network and of all bodies, as they are met."""
    found = [[op.spec.kind for op in net.ops()]]
    for op in net.ops():
        for of in op.spec.bodies():
            found += depths(of.network)
    return found


@dataclass(frozen=True)
class Seen(Pass):
    """Notes what it is given, and says that it has changed so many things of each network."""

    changes: int = 0
    nets: list[Network] = field(default_factory=list, compare=False)
    places: list[Place] = field(default_factory=list, compare=False)

    def apply_at(self, net: Network, place: Place) -> PassResult:
        self.nets.append(net)
        self.places.append(place)
        outcome = PassResult(changed=self.changes, saved_bytes=10)
        outcome.missed("it is no use")
        return outcome


@dataclass(frozen=True)
class Outside(Seen):
    """Does not look into bodies."""

    in_bodies: ClassVar[bool] = False


@dataclass(frozen=True)
class Backwards(Pass):
    """Runs the operators of a body the wrong way round."""

    def apply(self, net: Network) -> PassResult:
        if not any(op.spec.bodies() for op in net.ops()):
            net.set_order(net.ops()[::-1])
            return PassResult(changed=1)
        return PassResult()


def test_every_depth_is_rewritten_and_counted() -> None:
    net = nested(body(INPUTS, cell, fixed=1))
    given = numbers(net)
    want = interpreted(net, given)
    before = depths(net)
    records = run_passes(net, (RemoveDeadCode(), FuseProducers(), RemoveDeadCode()))
    # A dead operator, and its container, in the network, in a body, and in two bodies inside of others.
    assert records[0].changed == 2 * 4 and records[1].changed >= 2 and records[2].changed == 0
    assert records[1].bytes_after < records[0].bytes_after < records[0].bytes_before
    assert sum(map(len, depths(net))) < sum(map(len, before)) and len(depths(net)) == len(before) == 4
    assert all(op.made_by == "fuse-producers" for op in net.ops() if op.spec.bodies())
    torch.testing.assert_close(interpreted(net, given), want)


def test_the_inner_ones_come_first_and_know_the_place() -> None:
    net, look, outcome = nested(body(INPUTS, cell, fixed=1)), Seen(), PassResult()
    place = Place(later=(PlanArena(),))
    bodies = [op.spec.bodies() for op in net.ops() if op.spec.bodies()]
    Bodies().apply(look, place, net, outcome)
    assert [len(n.ops()) for n in look.nets] == [3, 3, 3] and all(p is place for p in look.places)
    assert [[op.spec.kind for op in n.ops()].count("loop") for n in look.nets] == [0, 1, 0]
    assert all(n.target is net.target for n in look.nets)
    # Each body saves 10 bytes: as often as it runs.
    runs = [op.spec.runs() for op in net.ops() if op.spec.bodies()]
    inner = [op.spec.runs() for op in look.nets[1].ops() if op.spec.bodies()]
    assert outcome.saved_bytes == 10 * (runs[0] * (1 + inner[0]) + runs[1])
    assert (outcome.changed, outcome.refused) == (0, {"it is no use": 3})
    for now, old in zip((op.spec.bodies() for op in net.ops() if op.spec.bodies()), bodies, strict=True):
        assert now[0] is old[0]  # where nothing has changed, nothing is made anew


def test_copies_are_kept_from_pass_to_pass() -> None:
    net, bodies, first, later = nested(body(INPUTS, cell, fixed=1)), Bodies(), Seen(), Seen()
    bodies.apply(first, Place(), net, PassResult())
    bodies.apply(RemoveDeadCode(), Place(), net, PassResult())
    bodies.apply(later, Place(), net, PassResult())
    assert [id(n) for n in first.nets] == [id(n) for n in later.nets]
    assert [len(n.ops()) for n in later.nets] == [2, 2, 2]


def test_copies_of_a_body_that_was_replaced_are_not_used() -> None:
    net, bodies, first, later = nested(body(INPUTS, cell, fixed=1)), Bodies(), Seen(), Seen()
    bodies.apply(first, Place(), net, PassResult())
    op = next(op for op in net.ops() if op.spec.bodies())
    other = body(INPUTS, lambda c, h, w: [binary(c, "mul", h, w)], fixed=1)
    net.rewire(op, op.spec.with_bodies((other,)), net.ins(op), net.outs(op))
    bodies.apply(later, Place(), net, PassResult())
    assert [len(n.ops()) for n in later.nets] == [1, 3] and later.nets[1] is first.nets[2]
    outcome = PassResult()
    bodies.apply(RemoveDeadCode(), Place(), net, outcome)
    assert outcome.changed == 2 and op.spec.bodies()[0] is other


def test_both_sides_of_a_branch_are_rewritten() -> None:
    sides = [body(INPUTS, cell), body(INPUTS, lambda c, h, w: [unary(c, "neg", h)])]
    net = graph([tensor(dtype="bool"), *INPUTS], lambda c, f, h, w: branch(c, f, sides[0], sides[1], [h, w]))
    (record,) = run_passes(net, (RemoveDeadCode(),))
    then, otherwise = net.ops()[0].spec.bodies()
    assert record.changed == 2 and len(then.operators) == 2 and otherwise is sides[1]


@pytest.mark.parametrize("kind", [Outside, PrepareStatic])
def test_some_passes_stay_outside(kind: type[Any]) -> None:
    """The product of what does not change could be prepared, if the body were a network of its own."""
    of = body(INPUTS, lambda c, h, w: [binary(c, "add", h, unary(c, "exp", w))], fixed=1)
    assert kind() in (Outside(),) or kind().apply(of.copy()).changed
    net, p = graph(INPUTS, lambda c, h, w: loop(c, of, 3, [h], [], [w])), kind()
    (record,) = run_passes(net, (p,))
    assert record.changed == 0 and net.ops()[0].spec.bodies()[0] is of
    if isinstance(p, Outside):
        assert p.nets == [net] and record.refused == {"it is no use": 1}


def test_a_plan_of_memory_is_kept_in_the_body() -> None:
    net = nested(body(INPUTS, cell, fixed=1))
    run_passes(net, (PlanArena(),))
    found = [of for op in net.ops() for of in op.spec.bodies()]
    assert all(of.network.memory.nbytes(ARENA) for of in found)
    inner = [of for one in found for o in one.operators for of in o.spec.bodies()]
    assert len(inner) == 1 and inner[0].network.memory.nbytes(ARENA) and net.memory.nbytes(ARENA)


def test_a_body_that_a_pass_leaves_invalid_is_refused() -> None:
    """By whoever rewrites bodies, not only by who runs whole pipelines."""
    with pytest.raises(InvalidGraph, match="is read before its last writer ran"):
        Bodies().apply(Backwards(), Place(), nested(body(INPUTS, cell, fixed=1)), PassResult())
    with pytest.raises(InvalidGraph, match="is read before its last writer ran"):
        run_passes(nested(body(INPUTS, cell, fixed=1)), (Backwards(),))


def test_a_pass_that_leaves_no_body_is_refused() -> None:
    @dataclass(frozen=True)
    class Shares(Pass):
        """Gives one result twice."""

        def apply(self, net: Network) -> PassResult:
            if any(op.spec.bodies() for op in net.ops()):
                return PassResult()
            net.results.append(net.results[0])
            return PassResult(changed=1)

    with pytest.raises(InvalidGraph, match="every result of it is a container of its own"):
        run_passes(graph(INPUTS, lambda c, h, w: loop(c, body(INPUTS, cell), 3, [h], [], [w])), (Shares(),))


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_whole_pipelines(level: int) -> None:
    """Values that are the same, or only handed on, stay results of their own."""

    def step(c: Lowering, h: Ref, g: Ref, x: Ref, w: Ref) -> list[Ref]:
        new = unary(c, "tanh", binary(c, "add", h, binary(c, "mul", x, unary(c, "exp", w))))
        return [new, c.copy(h, c.new((4,), "f32")), c.copy(new, c.new((4,), "f32")), c.copy(w, c.new((4,), "f32"))]

    of = body([tensor(4)] * 4, step, fixed=1)
    net = graph(
        [tensor(4), tensor(5, 4), tensor(4)],
        lambda c, h, xs, w: [*loop(c, of, 5, [h, unary(c, "neg", h)], [xs], [w]), pointwise(c, lambda v: v + 1.0, h)],
    )
    given = numbers(net)
    want = interpreted(net, given)
    run_passes(net, pipeline(level), validate_each=True)
    torch.testing.assert_close(interpreted(net, given), want)
