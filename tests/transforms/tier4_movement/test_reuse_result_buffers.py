"""ReuseResultBuffers: large transients lie in results that are not written yet, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dcir
from dcir.ir.memory_plan import ARENA, BufferPart, Placement
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.pipelines import pipeline
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from dcir.transforms.tier4_movement.reuse_result_buffers import ReuseResultBuffers
from dcir.transforms.tier4_movement.reuse_saved_tensors import ReuseSavedTensors
from tests.harness import check_close
from tests.transforms.build import network, unary

LEND = ReuseResultBuffers(least=256)


def _chain(steps: int, n: int = 100) -> Network:
    """One result behind a chain of operators."""

    def make(c: Lowering, x: Ref) -> list[Ref]:
        for _ in range(steps):
            x = unary(c, "neg", x)
        return [x]

    return network([(n,)], make)


def _arena(net: Network) -> int:
    PlanArena().apply(net)
    return net.memory.nbytes(ARENA)


def test_changed() -> None:
    """Two transients take turns; one of them lies where the result will be."""
    net = _chain(4)
    before = _arena(net)
    assert LEND.apply(net).changed == len(net.memory.aliases)
    verify(net)
    result = net.results[0].data
    assert net.memory.aliases and set(net.memory.aliases.values()) == {(result, 0)}
    assert before - _arena(net) == 448  # 100 floats in whole cache lines
    assert net.memory.shared() == {"shared 0": 400}
    assert (
        net.memory.placements[result]
        == Placement("shared 0", 0)
        == net.memory.placement(next(iter(net.memory.aliases)))
    )


def test_not_while_the_result_is_written() -> None:
    """What the result is computed from is still read when the result's memory begins to be written."""
    net = _chain(2)
    outcome = LEND.apply(net)
    assert not net.memory.aliases and not net.memory.shared() and outcome.refused
    assert _arena(net) == 448


def test_two_results() -> None:
    """The result that is written first holds what has been read by then, the other what has been read later."""

    def make(c: Lowering, x: Ref) -> list[Ref]:
        for _ in range(3):
            x = unary(c, "neg", x)
        first = unary(c, "abs", x)
        for _ in range(3):
            x = unary(c, "neg", x)
        return [first, unary(c, "abs", x)]

    net = network([(100,)], make)
    before = _arena(net)
    LEND.apply(net)
    verify(net)
    assert {into for into, _ in net.memory.aliases.values()} <= {r.data for r in net.results}
    assert _arena(net) < before


@pytest.mark.parametrize("least", [4096, 401])
def test_small_ones_stay(least: int) -> None:
    net = _chain(5)
    assert not ReuseResultBuffers(least=least).apply(net).changed
    assert not net.memory.aliases and not net.memory.shared()


def test_only_where_the_arena_is_fullest() -> None:
    """Moving what lives elsewhere would leave the arena as large as it is."""

    def make(c: Lowering, x: Ref, y: Ref) -> list[Ref]:
        for _ in range(5):
            x = unary(c, "neg", x)
        for _ in range(5):
            y = unary(c, "neg", y)
        return [x, y]

    net = network([(1000,), (100,)], make)
    ReuseResultBuffers(least=256).apply(net)
    verify(net)
    large = {n for n, c in net.containers.items() if c.nbytes == 4000}
    assert net.memory.aliases.keys() <= large


def test_nothing_where_inputs_are_donated() -> None:
    """There the results' memory is ReuseSavedTensors's to give."""
    net = _chain(4, n=1000)
    net.memory = net.memory.with_donated({net.inputs[0]: BufferPart(0, 0, 4000)})
    ReuseSavedTensors(least=256, kept=256).apply(net)
    before = net.memory
    assert not LEND.apply(net).changed
    assert net.memory == before


def test_nothing_in_a_forward() -> None:
    """Its results are kept for a backward."""
    net = _chain(4)
    net.free = {0}
    assert not LEND.apply(net).changed
    assert not net.memory.aliases


def test_again_is_the_same() -> None:
    net = _chain(6)
    LEND.apply(net)
    before = net.memory
    assert not LEND.apply(net).changed
    assert net.memory == before


class Wide(nn.Module):
    """Its result is larger than anything before it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 64))
        self.head = nn.Linear(64, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.softmax(self.body(x).sort(-1).values.cumsum(-1), -1))


@pytest.mark.parametrize("training", [False, True])
def test_numbers(training: bool) -> None:
    """A call uses its result's memory before the result is there; held results keep their numbers."""
    torch.manual_seed(0)
    m = Wide().train(training)
    reference = Wide().double()
    reference.load_state_dict(m.state_dict())
    f = dcir.optimize(m)
    xs = [torch.randn(600, 64) for _ in range(3)]
    with torch.set_grad_enabled(training):
        got = [f(x) for x in xs]
        want = [m(x) for x in xs]
    for x, g, w in zip(xs, got, want, strict=True):
        check_close(g.detach(), w.detach(), reference(x.double()).detach(), what="result")
    if training:
        got[0].square().sum().backward()
        grads = [p.grad.clone() for p in m.parameters() if p.grad is not None]
        m.zero_grad()
        want[0].square().sum().backward()
        reference(xs[0].double()).square().sum().backward()
        for g, p, q in zip(grads, m.parameters(), reference.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None
            check_close(g, p.grad, q.grad, what="gradient")


def test_an_inference_call_needs_less() -> None:
    """The arena of a real module is smaller by what lies in its result."""
    m = Wide().eval()
    sizes = []
    for passes in (tuple(p for p in pipeline(4) if not isinstance(p, ReuseResultBuffers)), pipeline(4)):
        f = dcir.optimize(m, pipeline=passes)
        with torch.no_grad():
            f(torch.randn(600, 64))
        sizes.append(f.dcir.explain().to_json()["graphs"][0]["arena_bytes"])
    assert sizes[1] < sizes[0]
