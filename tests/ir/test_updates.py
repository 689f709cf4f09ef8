"""Updates in place of inputs: which loop nests may overwrite what they read, and what becomes of the others."""

from __future__ import annotations

import pytest

from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, Result
from dcir.ir.updates import _old_first, settle, violations
from tests.on_host import on_host

N = 640


def exchange(*, summed: bool) -> LoopNest:
    """o0 = a1, o1 = a0; with ``summed`` o2 = a0 + a1, so that all stores need the same."""
    b = LoopNestBuilder((N,))
    x, y = (b.load(b.input("f32"), (1,)) for _ in range(2))
    for value in (y, x, *[x + y] * summed):
        b.store(b.output("f32"), (1,), value)
    return b.finish()


def momentum() -> LoopNest:
    """m' = 0.9 m + g; p' = p - m': what an optimiser does."""
    b = LoopNestBuilder((N,))
    p, m, g = (b.load(b.input("f32"), (1,)) for _ in range(3))
    new = m * 0.9 + g
    b.store(b.output("f32"), (1,), p - new)
    b.store(b.output("f32"), (1,), new)
    return b.finish()


def updating(nest: LoopNest, updated: int) -> Network:
    """A network of one nest, whose first outputs lie where its first inputs do."""
    net = on_host(Network())
    ins = [net.add_container((N,), "f32", "input") for _ in nest.inputs]
    outs = [net.add_container((N,), "f32", "result") for _ in nest.outputs]
    net.add_op(nest, [Operand(n) for n in ins], [Operand(n) for n in outs])
    net.results += [Result(n, (N,), (1,), 0, "f32") for n in outs]
    net.updates.update(zip(outs[:updated], ins, strict=False))
    return net


@pytest.mark.parametrize("nest", [exchange(summed=True), momentum()])
def test_what_is_read_before_all_is_stored_stays(nest):
    net = updating(nest, 2)
    assert not list(violations(net))
    settle(net)
    assert [op.spec for op in net.ops()] == [nest]


def test_stores_that_need_nothing_in_common_have_no_order():
    """Each is a loop of its own: the second one would read what the first one has written."""
    net = updating(exchange(summed=False), 2)
    assert list(violations(net))
    settle(net)
    assert not list(violations(net))
    assert "settle" in [op.made_by for op in net.ops()]


@pytest.mark.parametrize("late", [False, True])
def test_an_epilogue_reads_in_order(late):
    """Operand 0 is what the operator computes."""
    b = LoopNestBuilder((N,))
    acc, old = (b.input("f32") for _ in range(2))
    new, other = (b.output("f32") for _ in range(2))
    x = b.load(acc, (1,))
    read = x if late else b.load(old, (1,))
    b.store(new, (1,), x)
    b.store(other, (1,), b.load(old, (1,)) if late else read)
    nest = b.finish()
    at = [(type(s).__name__, getattr(s, "operand", -1)) for s in nest.body]
    found = _old_first(nest, [at.index(("Store", new))], [at.index(("Load", old))], in_order=True)
    assert found is not late
