"""LendInputs: large transients lie in donated inputs that have been read for the last time, and nowhere else."""

from __future__ import annotations

import gc
from itertools import pairwise

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import InvalidGraph
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.base import Pass
from dcir.transforms.lend_inputs import LendInputs
from dcir.transforms.pipelines import pipeline
from dcir.transforms.plan_arena import PlanArena
from tests.transforms.build import network, unary

LEND = LendInputs(least=256)


def _chain(shapes: list[tuple[int, ...]], donated: list[int], steps: int = 5) -> Network:
    """The sum of all inputs' images through chains of operators, one input after the other."""

    def make(c: Lowering, *inputs: Ref) -> list[Ref]:
        results = []
        for x in inputs:
            for _ in range(steps):
                x = unary(c, "neg", x)
            results.append(x)
        return results

    net = network(shapes, make)
    net.donated = {net.inputs[i] for i in donated}
    return net


def test_changed_transients_follow_the_last_reader() -> None:
    net = _chain([(100,), (100,)], [0])
    outcome = LEND.apply(net)
    position = {op: i for i, op in enumerate(net.ops())}
    last = max(position[r] for r in net.readers(net.inputs[0]))
    assert outcome.changed == len(net.lent) > 0
    for name, (into, offset) in net.lent.items():
        assert into == net.inputs[0] and offset == 0
        assert all(position[w] > last for w in net.writers(name))
    PlanArena().apply(net)
    assert net.arena.keys().isdisjoint(net.lent)
    verify(net)
    assert LEND.apply(net).changed == 0
    assert net.clone().lent == net.lent and net.clone().donated == net.donated


def test_two_that_live_together_lie_apart() -> None:
    """A block that is large enough holds several, whose places do not meet while they are alive."""
    net = _chain([(1000,), (64,), (64,)], [0], steps=6)
    LEND.apply(net)
    position = {op: i for i, op in enumerate(net.ops())}
    spans = []
    for name, (_, offset) in net.lent.items():
        times = [position[op] for op in (*net.writers(name), *net.readers(name))]
        spans.append((min(times), max(times), offset, offset + net.containers[name].nbytes))
    for a in spans:
        assert a[3] <= 4000
        for b in spans:
            assert a is b or a[1] < b[0] or b[1] < a[0] or a[3] <= b[2] or b[3] <= a[2]


@pytest.mark.parametrize("donated", [[], [1]])
def test_refused_memory_that_somebody_reads(donated: list[int]) -> None:
    """Inputs that are not donated, and those that are read last of all, lend nothing."""
    net = _chain([(100,), (100,)], donated, steps=1)
    assert LEND.apply(net).changed == 0 and not net.lent


def test_refused_results_that_are_inputs() -> None:
    net = _chain([(100,), (100,)], [0])
    net.results.append(type(net.results[0])(net.inputs[0], (100,), (1,), 0, "f32"))
    assert LEND.apply(net).changed == 0


def test_refused_small_ones() -> None:
    assert LendInputs().apply(_chain([(100,), (100,)], [0])).changed == 0


def test_verify_sees_a_place_that_is_not_free() -> None:
    net = _chain([(100,), (100,)], [0])
    LEND.apply(net)
    name = next(iter(net.lent))
    net.lent[name] = (net.inputs[1], 0)
    with pytest.raises(InvalidGraph, match="not free yet"):
        verify(net)


class Wide(nn.Module):
    """Saved activations and gradients above a megabyte."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise([256, 600, 600, 600, 256, 256]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def _gradients(model: nn.Module, x: torch.Tensor, **how: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    for p in model.parameters():
        p.grad = None
    loss = model(x).pow(2).mean()
    loss.backward(**how)
    return loss, [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """An eager and an optimised module, and an input."""
    torch.manual_seed(0)
    plain = Wide()
    fast = dcir.optimize(plain)
    x = torch.randn(2048, 256)
    _gradients(fast, x)
    (lent,) = (
        p.changed
        for g in fast.dcir.explain().graphs
        for p in g.passes
        if p.name == "lend-inputs" and g.kind == "backward"
    )
    assert lent > 0, "nothing is lent: these tests would show nothing"
    return plain, fast, x


def test_numbers_and_a_second_backward(pair: tuple[nn.Module, nn.Module, torch.Tensor]) -> None:
    """retain_graph=True keeps what the first backward would overwrite."""
    plain, fast, x = pair
    _, want = _gradients(plain, x)
    loss, got = _gradients(fast, x, retain_graph=True)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    loss.backward(retain_graph=True)
    loss.backward()
    thrice = [p.grad for p in fast.parameters()]
    torch.testing.assert_close(thrice, [3 * g for g in want], rtol=1e-4, atol=1e-6)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_what_others_hold_is_not_overwritten(pair: tuple[nn.Module, nn.Module, torch.Tensor]) -> None:
    """Saved tensors seen through the graph's node, and those that a hook hands out, keep their contents."""
    plain, fast, x = pair
    _, want = _gradients(plain, x)
    for p in fast.parameters():
        p.grad = None
    loss = fast(x).pow(2).mean()
    node = loss.grad_fn
    while "Compiled" not in type(node).__name__:
        node = node.next_functions[0][0]
    held = list(node.saved_tensors)
    before = [t.clone() for t in held]
    loss.backward()
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))
    del held, node
    gc.collect()
    kept: list[torch.Tensor] = []

    def pack(t: torch.Tensor) -> int:
        kept.append(t)
        return len(kept) - 1

    for p in fast.parameters():
        p.grad = None
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: kept[i].view_as(kept[i])):
        loss = fast(x).pow(2).mean()
    before = [t.clone() for t in kept]
    assert before
    loss.backward()
    assert all(torch.equal(a, b) for a, b in zip(kept, before, strict=True))
    torch.testing.assert_close([p.grad for p in fast.parameters()], want, rtol=1e-4, atol=1e-6)


def test_the_arena_is_smaller_by_it() -> None:
    def scratch(passes: tuple[Pass, ...]) -> int:
        torch.manual_seed(0)
        fast = dcir.optimize(Wide(), pipeline=passes)
        _gradients(fast, torch.randn(2048, 256))
        return sum(g.arena_bytes for g in fast.dcir.explain().graphs if g.kind == "backward")

    every = pipeline(4)
    assert scratch(every) + (2 << 20) < scratch(tuple(p for p in every if not isinstance(p, LendInputs)))
