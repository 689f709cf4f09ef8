"""The network: operators rewired in place, and what validation refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dcir.errors import InvalidGraph
from dcir.ir.network import Network, Operand
from dcir.ir.text import network_text
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Ref
from tests.counted import growth
from tests.transforms.build import binary, network, unary
from tests.transforms.random_network import results


def test_an_operator_rewired_keeps_its_place() -> None:
    net = network([(4, 6), (4, 6)], lambda c, x, y: [unary(c, "exp", binary(c, "add", x, y))])
    add, exp = net.ops()
    want = results(network([(4, 6), (4, 6)], lambda c, x, y: [unary(c, "exp", unary(c, "neg", x))]))
    neg = network([(4, 6)], lambda c, x: [unary(c, "neg", x)]).ops()[0].spec
    net.rewire(add, neg, [Operand(net.inputs[0])], net.outs(add), made_by="test")
    assert net.ops() == [add, exp] and add.made_by == "test" and list(add.in_connectors) == ["a0"]
    net.rewire(exp, exp.spec, net.ins(exp), net.outs(exp))
    verify(net)
    net.validate()
    assert (results(net)[0] == want[0]).all()
    assert not net.readers(net.inputs[1])


def test_a_network_survives_a_file(tmp_path: Path) -> None:
    net = network([(4, 6), (4, 6)], lambda c, x, y: [unary(c, "exp", binary(c, "add", x, y))])
    net.save(tmp_path / "net.zip")
    again = Network.load(tmp_path / "net.zip")
    verify(again)
    assert network_text(again) == network_text(net) and (results(again)[0] == results(net)[0]).all()


def test_a_cycle_is_found() -> None:
    net = network([(4,)], lambda c, x: [unary(c, "exp", unary(c, "neg", x))])
    neg, exp = net.ops()
    net.rewire(neg, neg.spec, net.outs(exp), net.outs(neg))
    with pytest.raises(InvalidGraph):
        net.validate()


def test_what_is_empty_need_not_be_written(recwarn: pytest.WarningsRecorder) -> None:
    """A batch of no rows: DaCe, whose shapes have no 0, took what nobody wrote for a mistake and warned."""
    net = network([(0, 6), (0, 6)], lambda c, x, y: [unary(c, "exp", binary(c, "add", x, y))])
    for op in net.ops()[:1]:
        net.remove_op(op, into=net.ops()[1])
    net.validate()
    assert not [w for w in recwarn if "uninitialized" in str(w.message)]
    assert not any(n.setzero for n in net.sdfg.start_state.data_nodes())
    other = network([(2, 6), (2, 6)], lambda c, x, y: [unary(c, "exp", binary(c, "add", x, y))])
    other.remove_op(other.ops()[0], into=other.ops()[1])
    with pytest.warns(UserWarning, match="uninitialized"):
        other.validate()


def test_a_result_that_nobody_writes_is_found() -> None:
    net = network([(2, 6)], lambda c, x: [unary(c, "exp", x)])
    verify(net)
    net.remove_op(net.ops()[0], into=())
    with pytest.raises(InvalidGraph, match="is never written"):
        verify(net)


def test_validation_grows_with_the_operators_and_not_with_their_square() -> None:
    def large(n: int) -> Callable[[], object]:
        def make(c: Lowering, x: Ref) -> list[Ref]:
            first = x
            for _ in range(n):
                x = binary(c, "add", unary(c, "neg", x), first)
            return [x]

        return network([(4,)], make).validate

    assert growth(large, 100, 8) < 1.1
