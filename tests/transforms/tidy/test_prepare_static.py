"""PrepareStatic: what depends on parameters alone leaves the call, and nothing else does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import dcir
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.memory_plan import ARENA, PREPARED
from dcir.ir.network import Network, Operand, Result
from dcir.transforms.tidy.prepare_static import PrepareStatic
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from tests.on_host import on_host


def _add(net: Network, *names: str, into: str | None = None, offset: int = 0) -> str:
    """A new container with the sum of others of 8 elements."""
    out = into or net.add_container((8,), "f32")
    body = LoopNestBuilder((8,))
    total = body.load(body.input("f32"), (1,))
    for _ in names[1:]:
        total = total + body.load(body.input("f32"), (1,))
    body.store(body.output("f32"), (1,), total)
    net.add_op(body.finish(), [Operand(n) for n in names], [Operand(out, offset)])
    return out


def _network() -> tuple[Network, str, str, str]:
    net = on_host(Network())
    x, w, c = (net.add_container((8,), "f32", role) for role in ("input", "input", "constant"))
    net.static.add(w)
    return net, x, w, c


def _result(net: Network, name: str) -> None:
    net.promote(name)
    net.results.append(Result(name, (8,), (1,), 0, "f32"))


def test_static_chain_leaves_the_call() -> None:
    net, x, w, c = _network()
    inner = _add(net, w, c)
    outer = _add(net, inner, w)
    _result(net, _add(net, x, outer))
    before = net.bytes_moved()
    outcome = PrepareStatic().apply(net)
    assert outcome.changed == 2 and outcome.saved_bytes == 2 * 3 * 32
    assert net.memory.offsets(PREPARED) == {outer: 0} and net.memory.nbytes(PREPARED) == 64
    assert net.bytes_moved() == before - outcome.saved_bytes
    PlanArena().apply(net)
    assert inner in net.memory.offsets(ARENA) and outer not in net.memory.offsets(ARENA)
    assert PrepareStatic().apply(net).changed == 0


def test_preparing_and_calling_use_the_same_scratch_memory() -> None:
    """What only the preparing program needs is dead when a call begins, wherever its operators stand in the order."""
    net, x, w, c = _network()
    first = _add(net, x, x)
    inner = _add(net, w, c)
    outer = _add(net, inner, w)
    _result(net, _add(net, first, outer))
    PlanArena().apply(net)
    assert net.memory.nbytes(ARENA) == 3 * 64
    PrepareStatic().apply(net)
    PlanArena().apply(net)
    assert net.memory.offsets(ARENA) == {first: 0, inner: 0} and net.memory.nbytes(ARENA) == 64


def test_what_the_caller_gives_stays() -> None:
    """Dynamic inputs, results, and containers that a dynamic operator writes too stay in the call."""
    net, x, w, c = _network()
    _result(net, _add(net, w, c))
    joined = net.add_container((16,), "f32")
    _add(net, w, into=joined)
    _add(net, x, into=joined, offset=8)
    _result(net, _add(net, joined))
    assert PrepareStatic().apply(net).changed == 0
    assert not net.memory.offsets(PREPARED) and net.memory.nbytes(PREPARED) == 0


def test_readers_of_a_mixed_container_stay() -> None:
    """A reader of what only seemed static stays too."""
    net, x, w, _ = _network()
    joined = net.add_container((16,), "f32")
    _add(net, w, into=joined)
    _add(net, x, into=joined, offset=8)
    late = _add(net, joined)
    static = _add(net, w, w)
    _result(net, _add(net, late, static))
    PrepareStatic().apply(net)
    assert set(net.memory.offsets(PREPARED)) == {static}


def test_survives_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    net, x, w, c = _network()
    _result(net, _add(net, x, _add(net, w, c)))
    PrepareStatic().apply(net)
    net.save(tmp_path / "n.zip")
    again = Network.load(tmp_path / "n.zip")
    assert (again.static, again.memory) == (net.static, net.memory)
    assert len(again.prepared_ops()) == 1


class _Made(nn.Module):
    """Its weight is made of parameters in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (torch.exp(self.a) * self.b.cos()).t() + torch.softmax(self.a, 0).sum(1)


def test_generated_code() -> None:
    """With the pass alone; its numbers are eager's before and after a parameter has changed."""
    torch.manual_seed(0)
    model, x = _Made(), torch.randn(3, 5)
    fast = dcir.optimize(model, pipeline=(PrepareStatic(),))
    with torch.no_grad():
        for value in (0.5, -1.0):
            torch.testing.assert_close(fast(x), model(x))
            model.a[3, 2] = value
        torch.testing.assert_close(fast(x), model(x))
    (graph,) = fast.dcir.session.graphs
    assert graph.prepared_bytes >= 8 * 5 * 4
