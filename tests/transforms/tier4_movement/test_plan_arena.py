"""The arena: what is planned, what stays, what may never overlap, and the numbers of the generated code."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcir.ir.memory_plan import ARENA
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Meta, Ref
from dcir.transforms.tier4_movement.memory.lifetimes import lifetimes, live_bytes_lower_bound
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from tests.counted import growth
from tests.harness import run_cpp, run_interpreted
from tests.transforms.build import binary, network, reduce, unary
from tests.transforms.imported import imported
from tests.transforms.random_network import random_network


def test_changed_chain_in_two_places() -> None:
    def make(c: Lowering, x: Ref) -> list[Ref]:
        for _ in range(5):
            x = unary(c, "neg", x)
        return [unary(c, "exp", x)]

    net = network([(4, 30)], make)
    outcome = PlanArena().apply(net)
    assert outcome.changed == 5
    assert net.memory.nbytes(ARENA) == live_bytes_lower_bound(net) == 2 * 512  # 480 bytes, on cache lines
    assert sorted(net.memory.offsets(ARENA).values()) == [0, 0, 0, 512, 512]
    verify(net)


def test_changed_unused_and_empty_containers_have_no_place() -> None:
    net = network([(4,)], lambda c, x: [unary(c, "exp", unary(c, "neg", x))])
    net.add_container((100,), "f32")
    PlanArena().apply(net)
    assert len(net.memory.offsets(ARENA)) == 1 and net.memory.nbytes(ARENA) == 64


def test_unchanged() -> None:
    net = network([(4,)], lambda c, x: [unary(c, "exp", unary(c, "neg", x))])
    assert PlanArena().apply(net).changed == 1
    assert PlanArena().apply(net).changed == 0
    assert PlanArena().apply(network([(4,)], lambda c, x: [unary(c, "exp", x)])).changed == 0


def test_refused_sharing_of_an_operators_input_and_output() -> None:
    """A container written in parts lives from its first writer on, results and inputs have memory of their own."""

    def make(c: Lowering, x: Ref) -> list[Ref]:
        dst = c.new((2, 4, 6), "f32")
        for i in range(2):
            part = replace(dst, shape=x.shape, strides=dst.strides[1:], offset=24 * i)
            c.outs = [Meta(x.shape, x.strides, "f32")]
            c.pointwise(lambda v: -v, unary(c, "exp", x), out=part)
        return [unary(c, "abs", dst)]

    net = network([(4, 6)], make)
    PlanArena().apply(net)
    assert all(net.containers[n].role == "transient" for n in net.memory.offsets(ARENA))
    assert_disjoint(net)
    joined = next(n for n in net.memory.offsets(ARENA) if len(net.writers(n)) == 2)
    (second,) = (t for t in lifetimes(net) if t.name == net.ins(net.ops()[3])[0].data)
    (whole,) = (t for t in lifetimes(net) if t.name == joined)
    assert whole.first < second.first < whole.last


def assert_disjoint(net: Network) -> None:
    """No two containers that live at the same time overlap; everything lies inside, on cache lines."""
    live = [t for t in lifetimes(net) if t.name in net.memory.offsets(ARENA)]
    spans = [
        (net.memory.offsets(ARENA)[t.name], net.memory.offsets(ARENA)[t.name] + net.containers[t.name].nbytes)
        for t in live
    ]
    assert all(low % 64 == 0 and low >= 0 and high <= net.memory.nbytes(ARENA) for low, high in spans)
    for i, (a, (low, high)) in enumerate(zip(live, spans, strict=True)):
        for b, (low_b, high_b) in zip(live[i + 1 :], spans[i + 1 :], strict=True):
            if a.first <= b.last and b.first <= a.last:
                assert high <= low_b or high_b <= low, (a, b)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), size=st.integers(1, 40))
def test_numbers_never_overlap(seed: int, size: int) -> None:
    net = random_network(seed, size)
    PlanArena().apply(net)
    verify(net)
    assert_disjoint(net)
    assert set(net.memory.offsets(ARENA)) == {t.name for t in lifetimes(net)}
    assert live_bytes_lower_bound(net) <= net.memory.nbytes(ARENA) <= sum(t.nbytes for t in lifetimes(net))


def test_numbers_of_generated_code() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = torch.nn.functional.gelu(x @ w)
        h = torch.cat([h, torch.softmax(h, -1)], 1) @ v
        return h.var(0), torch.nn.functional.layer_norm(h + x, (h.shape[1],)), h.sum()

    inputs = [torch.randn(32, 48), torch.randn(48, 24), torch.randn(48, 48)]
    done = imported(fn, *inputs)
    scattered = sum(t.nbytes for t in lifetimes(done.network))
    assert PlanArena().apply(done.network).changed
    assert done.network.memory.nbytes(ARENA) < scattered
    for got, interpreted, want in zip(run_cpp(done, inputs), run_interpreted(done, inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(interpreted, want, rtol=1e-4, atol=1e-4)


def test_work_and_room_of_thousands_of_operators() -> None:
    def deep(n: int) -> Network:
        def make(c: Lowering, x: Ref) -> list[Ref]:
            saved = []
            for i in range(n):
                x = unary(c, "neg", reduce(c, "sum", x) if i % 7 == 0 and i > n - 10 else x)
                saved.append(x)
            for s in reversed(saved):
                x = binary(c, "add", s, x)
            return [x]

        return network([(64, 8)], make)

    assert growth(lambda n: partial(PlanArena().apply, deep(n)), 125, 8) < 1.1
    net = deep(1000)
    PlanArena().apply(net)
    assert net.memory.nbytes(ARENA) <= 1.02 * live_bytes_lower_bound(net)
