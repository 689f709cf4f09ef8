"""The run of a rule: every operator once, again what a rewrite names, refusals by their reasons, and no operator that is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Compute
from dcir.transforms.rule import Rule
from tests.transforms.build import network, unary


def operations(net: Network) -> list[str]:
    return [s.op for op in net.ops() for s in op.known(LoopNest).body if s.op not in ("load", "store")]


@dataclass(frozen=True)
class Milder(Rule[list[str], Op]):
    """exp becomes sinh and that sin, cos stays where it is, and what comes after neg goes with it."""

    tier: ClassVar[int] = 1
    saved: int = 7

    def survey(self, net: Network) -> list[str]:
        return []

    def pattern(self, net: Network, op: Op, known: list[str]) -> Op | None:
        known.append(op.label)
        return op if operation(op) in ("exp", "sinh", "cos", "neg") else None

    def check(self, net: Network, match: Op, known: list[str]) -> Refusal | int:
        return Refusal("it is mild") if operation(match) == "cos" else self.saved

    def rewrite(self, net: Network, match: Op, known: list[str]) -> Sequence[Op]:
        if operation(match) == "neg":
            (out,) = net.outs(match)
            for op in net.readers(out.data):
                net.remove_op(op, into=())
            return ()
        p = match.known(LoopNest)
        milder = {"exp": "sinh", "sinh": "sin"}
        body = tuple(replace(s, op=milder[s.op]) if isinstance(s, Compute) else s for s in p.body)
        net.rewire(match, replace(p, body=body), net.ins(match), net.outs(match), made_by=self.name)
        return [match] if operation(match) == "sinh" else ()


def operation(op: Op) -> str:
    return next(s.op for s in op.known(LoopNest).body if s.op not in ("load", "store"))


def chain(*ops: str) -> Network:
    def make(c, x):
        for name in ops:
            x = unary(c, name, x)
        return [x]

    return network([(4, 8)], make)


def test_what_a_rewrite_names_is_looked_at_again() -> None:
    net = chain("exp", "abs", "exp")
    outcome = Milder().apply(net)
    assert operations(net) == ["sin", "abs", "sin"]
    assert (outcome.changed, outcome.saved_bytes, outcome.refused) == (4, 28, {})
    assert [op.made_by for op in net.ops()] == ["milder", "frontend", "milder"]


def test_nothing_fits() -> None:
    outcome = Milder().apply(chain("abs", "tanh"))
    assert (outcome.changed, outcome.saved_bytes, outcome.refused) == (0, 0, {})


def test_refusals_are_counted_by_reason() -> None:
    net = chain("cos", "exp", "cos")
    outcome = Milder().apply(net)
    assert operations(net) == ["cos", "sin", "cos"]
    assert outcome.changed == 2 and outcome.refused == {"it is mild": 2}


def test_an_operator_that_a_rewrite_took_out_is_not_looked_at() -> None:
    net = chain("neg", "exp")
    gone = net.ops()[1]
    outcome = Milder().apply(net)
    assert outcome.changed == 1 and operations(net) == ["neg"]
    assert gone not in net and net.ops()[0] in net


def test_options_and_name_are_those_of_any_pass() -> None:
    assert Milder().name == "milder" and Milder(saved=3) != Milder() and Milder().tier == 1
    assert Milder(saved=3).apply(chain("sinh")).saved_bytes == 3
