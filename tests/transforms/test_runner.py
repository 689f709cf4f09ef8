"""The runner: what it checks of a pipeline, and what passes learn of their place in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from dcir.errors import InvalidGraph, OptionError
from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network
from dcir.transforms.base import Pass, PassResult, Place, Refusal
from dcir.transforms.pipelines import pipeline
from dcir.transforms.runner import check_order, run_passes
from dcir.transforms.tier1_operator.pack_weights import PackWeights
from dcir.transforms.tier1_operator.use_winograd import UseWinograd
from dcir.transforms.tier2_fusion.merge_summed_convolutions import MergeSummedConvolutions
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from tests.transforms.build import network, unary


@dataclass(frozen=True)
class Claims(Pass):
    """Wants every operator for itself."""

    def apply(self, net: Network) -> PassResult:
        return PassResult()

    def reserves(self, net: Network, op: Op) -> Refusal | None:
        return Refusal("it is mine")


@dataclass(frozen=True)
class Asks(Pass):
    """Tells what it learns of the first operator."""

    def apply(self, net: Network) -> PassResult:
        return self.apply_at(net, Place())

    def apply_at(self, net: Network, place: Place) -> PassResult:
        op = net.ops()[0]
        outcome, reserved = PassResult(), place.reserved(net, op)
        outcome.missed("free" if reserved is None else reserved.reason)
        if place.since:
            outcome.missed(f"released: {place.released(net, op)}")
        return outcome


@dataclass(frozen=True)
class Claimed(Pass):
    """Says that it changed something."""

    final: ClassVar[bool] = False

    def apply(self, net: Network) -> PassResult:
        return PassResult(changed=1)


def chain() -> Network:
    return network([(4, 8)], lambda c, x: [unary(c, "exp", unary(c, "neg", unary(c, "abs", x)))])


def learnt(*passes: Pass) -> list[dict[str, int]]:
    return [record.refused for record in run_passes(chain(), passes) if record.name == "asks"]


def test_what_later_passes_reserve_is_known_to_those_before_them() -> None:
    assert learnt(Asks()) == [{"free": 1}]
    assert learnt(Claims(), Asks()) == [{"free": 1}]
    assert learnt(Asks(), Claims()) == [{"it is mine": 1}]


def test_a_second_run_knows_what_was_released_since_the_first() -> None:
    assert learnt(Asks(), Claims(), Asks()) == [{"it is mine": 1}, {"free": 1, "released: True": 1}]
    assert learnt(Asks(), Asks(), Claims()) == [{"it is mine": 1}, {"it is mine": 1}]


@pytest.mark.parametrize(
    ("passes", "text"),
    [
        ((PackWeights(), UseWinograd()), "pack-weights has to run after use-winograd"),
        ((UseWinograd(), MergeSummedConvolutions()), "merge-summed-convolutions has to run before use-winograd"),
        (tuple(reversed(pipeline(4))), "has to run after"),
        ((PlanArena,), "no pass"),
        ((3,), "no pass"),
    ],
)
def test_a_pipeline_against_its_passes_declarations(passes: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        run_passes(chain(), passes)


def test_a_declaration_is_about_passes_that_are_there() -> None:
    check_order((PackWeights(), PlanArena()))
    check_order((UseWinograd(), PackWeights(), UseWinograd()))


def test_what_is_settled_is_not_rewritten() -> None:
    with pytest.raises(OptionError, match="claimed rewrites the graph after plan-arena") as told:
        run_passes(chain(), (PlanArena(), Claimed()))
    assert "in front of plan-arena" in str(told.value)
    records = run_passes(chain(), (Claimed(), PlanArena(), Asks()))
    assert [r.changed > 0 for r in records] == [True, True, False]


@dataclass(frozen=True)
class Rewrites(Pass):
    """Takes the first operator out, as it is told to."""

    how: str = "dead"

    def apply(self, net: Network) -> PassResult:
        first, second, _ = net.ops()
        (made,) = net.outs(first)
        if self.how in ("added", "from none"):
            (out,) = net.outs(second)
            named = {} if self.how == "from none" else {"came_from": (first, second), "made_by": self.name}
            new = net.add_op(second.spec, net.ins(first), [out], before=second, **named)  # type: ignore[arg-type]
            for op in (second, first):
                net.remove_op(op, into=new)
        else:
            net.rewire(second, second.spec, net.ins(first), net.outs(second), made_by=self.name)
            net.remove_op(first, into=() if self.how == "dead" else second)
            if self.how == "forgotten":
                second.came_from = second.came_from[1:]
        net.remove_container(made.data)
        return PassResult(changed=1)


@pytest.mark.parametrize(("how", "left"), [("dead", (1,)), ("taken over", (0, 1)), ("added", (0, 1))])
def test_every_operator_knows_what_it_came_from(how: str, left: tuple[int, ...]) -> None:
    net = chain()
    run_passes(net, [Rewrites(how)])
    assert [op.came_from for op in net.ops()] == [left, (2,)]


@pytest.mark.parametrize(
    ("how", "text"), [("forgotten", "pass rewrites loses imported operators"), ("from none", "that came from none")]
)
def test_a_pass_that_forgets_is_refused(how: str, text: str) -> None:
    with pytest.raises(InvalidGraph, match=text):
        run_passes(chain(), [Rewrites(how)])


@dataclass(frozen=True)
class Written(Pass):
    """A pass of a user's."""

    how: str = "None"

    def apply(self, net: Network) -> PassResult:
        if self.how == "KeyError":
            raise KeyError("nothing")
        if self.how == "silent":
            net.remove_op(net.ops()[-1], into=())
            return PassResult()
        answers: dict[str, Any] = {"None": None, "True": True}
        return answers[self.how]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Bare(Pass):
    """No apply."""


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (Written("None"), "pass written returns None"),
        (Written("True"), "pass written returns True"),
        (Written("KeyError"), "pass written fails: KeyError: 'nothing'"),
        (Written("silent"), "is never written, and the last passes say that they changed nothing"),
        (Bare(), "pass bare has no apply"),
    ],
)
def test_a_pass_that_does_not_do_its_part_is_named(p: Pass, text: str) -> None:
    with pytest.raises(InvalidGraph, match=text) as told:
        run_passes(chain(), [Claimed(), p, Asks()])
    assert "try" in str(told.value) and p.name in str(told.value)
    assert isinstance(told.value.__cause__, KeyError) == ("KeyError" in text)
