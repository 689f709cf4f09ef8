"""Dead code: what is dropped, what stays, what is refused, and the numbers."""

from __future__ import annotations

from functools import partial

import torch

from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode
from tests.counted import growth
from tests.transforms.build import network, unary
from tests.transforms.imported import imported, same_numbers


def test_changed_chain_without_readers() -> None:
    def make(c: Lowering, x: Ref) -> list[Ref]:
        unary(c, "exp", unary(c, "tanh", x))
        return [unary(c, "neg", x)]

    net = network([(4, 6)], make)
    outcome = RemoveDeadCode().apply(net)
    assert outcome.changed == 4 and outcome.saved_bytes == 4 * 24 * 4  # two operators, two containers
    assert len(net.ops()) == 1 and [c.role for c in net.containers.values()] == ["input", "result"]
    verify(net)


def test_changed_one_store_of_two() -> None:
    net = network([(4, 6), (4, 6)], _two_stores)
    assert RemoveDeadCode().apply(net).changed == 2
    (op,) = net.ops()
    assert len(net.ins(op)) == 1 and len(net.outs(op)) == 1 and len(op.spec.inputs) == 1
    verify(net)
    net.validate()


def _two_stores(c: Lowering, x: Ref, y: Ref) -> list[Ref]:
    k = c.kernel((4, 6))
    a, b = c.new((4, 6), "f32"), c.new((4, 6), "f32")
    v = k.load(x)
    k.store(a, v + k.load(y))
    k.store(b, k.body.op("neg", v))
    k.done()
    return [b]


def test_unchanged() -> None:
    net = network([(4, 6)], lambda c, x: [unary(c, "neg", unary(c, "exp", x))])
    outcome = RemoveDeadCode().apply(net)
    assert outcome.changed == 0 and not outcome.refused and len(net.ops()) == 2


def test_refused_random_numbers() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten.rand_like.default(x)
        return x + 1

    net = imported(fn, torch.rand(3)).network
    if any(op.spec.kind == "torch" for op in net.ops()):  # tracing may have dropped it before us
        assert RemoveDeadCode().apply(net).refused["the operator has effects, or moves the random generator"] == 1


def test_refused_operators_with_several_results() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._linalg_eigh.default(x, "L", True)[0]

    outcome = RemoveDeadCode().apply(imported(fn, torch.eye(3)).network)
    assert outcome.refused["an operator that is no loop nest computes all its results"] == 1


def test_numbers() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        a, b = torch.nn.functional.softmax(x, -1), x.sin()
        (a * b).sum()
        return b.cos() + x

    same_numbers(fn, torch.randn(5, 7), passes=(RemoveDeadCode(),))


def test_work_grows_with_the_operators_and_not_with_their_square() -> None:
    assert growth(lambda n: partial(RemoveDeadCode().apply, _long(n)), 125, 8) < 1.1
    assert RemoveDeadCode().apply(_long(1000)).changed == 2000


def _long(count: int) -> Network:
    def make(c: Lowering, x: Ref) -> list[Ref]:
        live = dead = x
        for _ in range(count):
            live, dead = unary(c, "neg", live), unary(c, "abs", dead)
        return [live]

    return network([(8,)], make)
