"""ReuseSavedTensors: large transients lie in donated inputs that have been read for the last time, and nowhere else."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import InvalidGraph
from dcir.ir.memory_plan import Alias, BufferPart, Placement
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Ref
from dcir.runtime.backward_blocks import BackwardBlocks
from dcir.transforms.base import Pass
from dcir.transforms.pipelines import pipeline
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from dcir.transforms.tier4_movement.reuse_saved_tensors import ReuseSavedTensors
from tests.transforms.build import network, unary

LEND = ReuseSavedTensors(least=256, kept=256)


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
    return _donating(net, {net.inputs[i]: i for i in donated})


def _donating(net: Network, buffers: dict[str, int]) -> Network:
    """With inputs that are whole buffers of these numbers."""
    parts = {name: BufferPart(number, 0, net.containers[name].nbytes) for name, number in buffers.items()}
    net.memory = net.memory.with_donated(parts)
    return net


def _places(net: Network) -> dict[str, Placement]:
    """Where inputs and results lie that share a block."""
    return {name: place for name, place in net.memory.placements.items() if place.block in net.memory.shared()}


def _rows(net: Network) -> dict[str, list[tuple[int, int, int, int]]]:
    """Per shared block, for whoever lies in it: first and last position, first byte and end."""
    position = {op: i for i, op in enumerate(net.ops())}
    places = _places(net) | {name: net.memory.placement(name) for name in net.memory.aliases}
    shown = net.result_containers()
    rows: dict[str, list[tuple[int, int, int, int]]] = {}
    for name, place in places.items():
        assert place is not None
        block, at = place
        times = [position[op] for op in (*net.writers(name), *net.readers(name))]
        first = -1 if name in net.inputs else min(times)
        last = len(position) if name in shown else max(times)
        rows.setdefault(block, []).append((first, last, at, at + net.containers[name].nbytes))
    return rows


def test_changed_one_follows_the_other() -> None:
    net = _chain([(100,), (100,)], [0])
    outcome = LEND.apply(net)
    assert outcome.changed == len(net.memory.aliases) + len(_places(net)) and net.memory.aliases
    # The first result has its block to itself until it is written: its own chain's transients are there, and the input.
    assert _places(net)[net.inputs[0]].offset == 0
    assert net.containers[net.inputs[0]].nbytes == net.memory.nbytes("shared 0")
    PlanArena().apply(net)
    assert net.memory.placements.keys().isdisjoint(net.memory.aliases)
    verify(net)
    assert LEND.apply(net).changed == 0
    twin = net.clone()
    assert twin.memory == net.memory and twin.memory.donated


@pytest.mark.parametrize(
    ("shapes", "donated"), [([(1000,), (64,), (64,)], [0]), ([(300,), (90,), (700,), (20,)], [0, 1, 2])]
)
def test_two_that_live_together_lie_apart(shapes: list[tuple[int, ...]], donated: list[int]) -> None:
    net = _chain(shapes, donated, steps=6)
    LEND.apply(net)
    rows = _rows(net)
    assert sum(map(len, rows.values())) > len(rows)
    for block, inside in rows.items():
        for i, a in enumerate(inside):
            assert a[2] >= 0 and a[3] <= net.memory.nbytes(block)
            for b in inside[:i]:
                assert a[1] < b[0] or b[1] < a[0] or a[3] <= b[2] or b[3] <= a[2]
    verify(net)


def test_a_result_keeps_hardly_more_than_itself() -> None:
    """It outlives the call, and with it the whole block."""
    for size in (100, 103, 108, 400):
        net = _chain([(size,), (100,)], [0], steps=6)
        net.results.reverse()
        LEND.apply(net)
        for r in net.results:
            if r.data in net.memory.placements:
                block, at = net.memory.placements[r.data]
                assert at == 0 and net.memory.nbytes(block) <= net.containers[r.data].nbytes * (1 + LEND.spare)


def test_no_block_grows_for_what_fits_elsewhere() -> None:
    def make(c: Lowering, a: Ref, b: Ref) -> list[Ref]:
        between = unary(c, "neg", b)
        return [unary(c, "neg", a), unary(c, "neg", between)]

    net = network([(100,), (104,)], make)
    b = net.inputs[1]
    _donating(net, {b: 0})
    LEND.apply(net)
    # The first result is a little smaller than what is kept, the second is as large.
    assert net.memory.shared() == {"shared 0": 104 * 4}
    assert _places(net)[b] == _places(net)[net.results[1].data] == ("shared 0", 0)
    verify(net)


def test_small_ones_do_not_keep_a_large_one_out() -> None:
    """An input a little larger than the result, and two that fit without growing it: the large one saves more."""

    def make(c: Lowering, w: Ref, *kept: Ref) -> list[Ref]:
        for x in kept:
            unary(c, "neg", x)
        return [unary(c, "neg", unary(c, "neg", w))]

    net = network([(1000,), (1040,), (400,), (400,)], make)
    _donating(net, {name: i for i, name in enumerate(net.inputs[1:])})
    LEND.apply(net)
    large = net.inputs[1]
    assert _places(net)[large] == _places(net)[net.results[0].data] == ("shared 0", 0)
    assert net.memory.nbytes("shared 0") == 1040 * 4
    assert sum(net.memory.shared().values()) <= (1040 + 400 + 400) * 4 + LEND.alignment
    verify(net)


def test_inputs_in_one_block_move_together() -> None:
    """Windows of one buffer keep their distance, and the block is free when the last of them has been read."""
    net = _chain([(100,), (100,), (100,)], [], steps=4)
    net.memory = net.memory.with_donated({name: BufferPart(0, 400 * i, 800) for i, name in enumerate(net.inputs[:2])})
    ReuseSavedTensors(least=256, kept=256, spare=1.5).apply(net)
    first, second = (_places(net)[name] for name in net.inputs[:2])
    assert first.block == second.block and second.offset - first.offset == 400
    verify(net)
    moved = {net.inputs[1]: Placement(first.block, second.offset + 4)}
    net.memory = replace(net.memory, placements={**net.memory.placements, **moved})
    with pytest.raises(InvalidGraph, match="shares its memory"):
        verify(net)


@pytest.mark.parametrize("donated", [[], [1]])
def test_refused_memory_that_somebody_reads(donated: list[int]) -> None:
    """Inputs that are not donated, and those that are read last of all, lend nothing."""
    net = _chain([(100,), (100,)], donated, steps=1)
    assert LEND.apply(net).changed == 0 and not net.memory.aliases


def test_refused_results_that_are_inputs() -> None:
    net = _chain([(100,), (100,)], [0])
    net.results.append(type(net.results[0])(net.inputs[0], (100,), (1,), 0, "f32"))
    assert LEND.apply(net).changed == 0


def test_refused_small_ones() -> None:
    assert ReuseSavedTensors().apply(_chain([(100,), (100,)], [0])).changed == 0


def test_verify_sees_a_place_that_is_not_free() -> None:
    net = _chain([(100,), (100,)], [0])
    LEND.apply(net)
    right = net.memory
    name, before = next(iter(right.aliases.items()))
    net.memory = replace(right, aliases={**right.aliases, name: Alias(net.inputs[1], 0)})
    with pytest.raises(InvalidGraph, match="in no shared block"):
        verify(net)
    net.memory = replace(right, aliases={**right.aliases, name: Alias(before.target, before.offset + (1 << 20))})
    with pytest.raises(InvalidGraph, match="leaves its block"):
        verify(net)
    first = next(r.data for r in net.results if r.data in right.placements)
    early = net.outs(net.ops()[0])[0].data
    net.memory = replace(right, aliases={early: Alias(first, 0)})
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
        if p.name == "reuse-saved-tensors" and g.kind == "backward"
    )
    assert lent > 0, "nothing shares memory: these tests would show nothing"
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
    assert scratch(every) + (2 << 20) < scratch(tuple(p for p in every if not isinstance(p, ReuseSavedTensors)))


def test_gradients_lie_in_what_was_kept() -> None:
    """In the first step already; once it is over nothing keeps more than they need."""
    torch.manual_seed(0)
    layers = [nn.Linear(512, 512) for _ in range(8)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))
    fast = dcir.optimize(model)
    x = torch.randn(512, 512)
    held = fast(x)
    node = held.grad_fn
    while "Compiled" not in type(node).__name__:
        node = node.next_functions[0][0]
    kept = {t.untyped_storage().data_ptr() for t in node.saved_tensors}
    del node
    gc.collect()
    held.pow(2).mean().backward()
    del held
    storages = {p.grad.untyped_storage().data_ptr(): p.grad.untyped_storage().nbytes() for p in model.parameters()}
    assert sum(storages.values()) <= 1.07 * sum(p.grad.nbytes for p in model.parameters())
    assert sum(p.grad.untyped_storage().data_ptr() in kept for p in model.parameters()) >= 4
    got = [p.grad.clone() for p in model.parameters()]
    exact = copy.deepcopy(model).double()
    _, want = _gradients(exact, x.double())
    torch.testing.assert_close([g.double() for g in got], want, rtol=1e-4, atol=1e-9)
    # Gradients of one step stay as they are while others run.
    held_grads = [p.grad for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    for _ in range(3):
        fast(2 * x).pow(2).mean().backward()
    assert all(torch.equal(a, b) for a, b in zip(held_grads, got, strict=True))


def test_the_first_backward_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its code is generated when it first runs."""

    def copies(*_: object) -> None:
        raise AssertionError("what was kept lay elsewhere")

    monkeypatch.setattr(BackwardBlocks, "copy_in", copies)
    torch.manual_seed(0)
    fast = dcir.optimize(Wide())
    loss = fast(torch.randn(2048, 256)).pow(2).mean()
    assert [g.kind for g in fast.dcir.explain().graphs] == ["forward"]
    loss.backward()
    assert [g.kind for g in fast.dcir.explain().graphs] == ["forward", "backward"]


def test_gradients_accumulate_and_two_forwards_do_not_meet() -> None:
    torch.manual_seed(0)
    plain = Wide()
    fast = dcir.optimize(copy.deepcopy(plain))
    xs = [torch.randn(2048, 256) for _ in range(2)]
    for model in (plain, fast):
        for _ in range(2):
            first, second = (model(x).pow(2).mean() for x in xs)
            second.backward()
            first.backward()
    for p, q in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-6)
