"""Copies: which vanish into strides, which stay and why, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dcir.ir.network import Network
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier3_layout.sink_copies import SinkCopies
from tests.harness import run_cpp
from tests.transforms.imported import imported, same_numbers

Fn = Callable[..., Any]


def kinds(net: Network) -> list[str]:
    """The kinds of all operators in order."""
    return [op.spec.kind for op in net.ops()]


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Splits the result of a product into heads, as attention does, and multiplies them with each other."""
    q = (x @ w).view(2, 5, 4, 6).permute(0, 2, 1, 3).contiguous().view(8, 5, 6)
    return torch.bmm(q, q.transpose(1, 2))


def swapped(x: torch.Tensor) -> torch.Tensor:
    """A copy with the last two dimensions exchanged: flat memory has no strides to exchange."""
    t = x.transpose(-1, -2)
    return t.reshape(-1).view(t.shape)


CHANGED: dict[str, tuple[Fn, list[tuple[int, ...]], list[str]]] = {
    "into a product": (lambda x, w: swapped(x) @ w, [(6, 5), (6, 4)], ["contraction"]),
    "into both operands": (lambda x: swapped(x) @ swapped(swapped(x)), [(6, 5)], ["contraction"]),
    "heads": (heads, [(2, 5, 8), (8, 24)], ["contraction", "contraction"]),
    "into a convolution": (lambda x, w: F.conv2d(swapped(x), w), [(2, 3, 6, 5), (4, 3, 3, 3)], ["forward"]),
    "joined products": (
        lambda x, v, w: torch.cat([x @ v, x @ w], -1).exp(),
        [(6, 5), (5, 4), (5, 3)],
        ["contraction", "contraction", "program"],
    ),
    "joined pointwise": (lambda x, y: torch.cat([x.exp(), y.sin()]) @ x, [(3, 5), (2, 5)], []),
    "joined results": (
        lambda x, w: torch.cat([x @ w, x @ w + 1], 0),
        [(3, 3), (3, 3)],
        ["contraction"] * 2 + ["program"],
    ),
    "joined convolutions": (
        lambda x, w, v: torch.cat([F.conv2d(x, w), F.conv2d(x, v)], 1),
        [(2, 3, 6, 5), (4, 3, 3, 3), (2, 3, 3, 3)],
        ["forward", "forward"],
    ),
    "joined calls into torch": (
        lambda x: torch.cat([torch.linalg.inv_ex(x)[0], x @ x], 1),
        [(3, 3)],
        ["torch", "contraction"],
    ),
    "out of a product": (lambda x, w: swapped(x @ w), [(6, 5), (5, 4)], ["contraction"]),
    "a row of copies": (lambda x: swapped(swapped(swapped(x))).exp(), [(6, 5)], ["program"]),
    "padded": (lambda x: F.pad(swapped(x), (1, 2)), [(6, 5)], ["program"] * 3),
    "windows": (lambda x: F.max_pool2d(swapped(x), 2), [(1, 2, 6, 5)], []),
    "a gather": (lambda x: swapped(x)[torch.tensor([2, 0, 2])], [(6, 5)], ["program"]),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changed(name: str) -> None:
    fn, shapes, left = CHANGED[name]
    inputs = [rand(*s) for s in shapes]
    if name == "joined pointwise":
        fn, inputs = lambda x, y: torch.cat([x.exp(), y.sin()]).exp(), inputs
    (outcome,) = same_numbers(fn, *inputs, passes=(SinkCopies(),))
    assert outcome.changed and outcome.saved_bytes
    net = imported(fn, *inputs).network
    before = net.bytes_moved()
    SinkCopies().apply(net)
    assert net.bytes_moved() == before - outcome.saved_bytes
    if left:
        assert kinds(net) == left
    assert not SinkCopies().apply(net).changed


def test_unchanged() -> None:
    net = imported(lambda x, w: (x.exp() @ w).half(), rand(6, 5), rand(5, 4)).network
    outcome = SinkCopies().apply(net)
    assert not outcome.changed and not outcome.refused


REFUSED: dict[str, tuple[Fn, list[tuple[int, ...]], str]] = {
    "to the caller": (swapped, [(6, 5)], "the copy makes a result of the network"),
    "from the caller": (swapped, [(6, 5)], "the copy's source is an input or a result"),
    "flattened": (
        lambda x, w: x.permute(0, 2, 1).reshape(2, 30) @ w,
        [(2, 6, 5), (30, 4)],
        "a dimension runs over several dimensions of the copy",
    ),
    "read by torch": (
        lambda x: torch.linalg.inv_ex(swapped(x))[0],
        [(5, 5)],
        "calls into torch keep the layout of their operands",
    ),
    "read twice": (
        lambda x, w: (lambda y: torch.cat([y, y]))(x @ w),
        [(5, 5), (5, 5)],
        "the copy's source has other readers or writers",
    ),
    "repeated": (lambda x: x[:, :1].exp().expand(5, 4).reshape(20), [(5, 5)], "the copy repeats elements"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, shapes, reason = REFUSED[name]
    inputs = [rand(*s) for s in shapes]
    net = imported(fn, *inputs).network
    outcome = SinkCopies().apply(net)
    assert reason in outcome.refused and not outcome.changed
    same_numbers(fn, *inputs, passes=(SinkCopies(),))


def block(x: torch.Tensor, wq: torch.Tensor, wk: torch.Tensor, wo: torch.Tensor, k: torch.Tensor) -> Any:
    """Products, heads, joins and a convolution, with gradients."""

    def loss(*args: torch.Tensor) -> torch.Tensor:
        x, wq, wk, wo, k = args
        q, s = ((x @ w).view(2, 16, 4, 8).transpose(1, 2) for w in (wq, wk))
        a = torch.softmax(q @ s.transpose(-1, -2), -1) @ s
        y = a.transpose(1, 2).reshape(2, 16, 32) @ wo
        z = torch.cat([F.conv1d(y.transpose(1, 2), k), y.transpose(1, 2)[:, :, 1:-1]], 1)
        return (z * z).mean()

    return torch.func.grad(loss, argnums=(0, 1, 2, 3, 4))(x, wq, wk, wo, k)


def test_numbers_of_a_block_with_gradients() -> None:
    inputs = [rand(2, 16, 32), rand(32, 32) / 8, rand(32, 32).t() / 6, rand(32, 32) / 9, rand(5, 32, 3) / 9]
    outcomes = same_numbers(block, *inputs, passes=(FuseProducers(), SinkCopies()))
    assert outcomes[1].changed
    done = imported(block, *inputs)
    SinkCopies().apply(done.network)
    for got, want in zip(run_cpp(done, inputs), block(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def sums(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
    """Products of heads joined, as their sums and the next product need it: the gradient of a bias."""
    t = (x @ w).view(2, 3, 6, 4).permute(0, 2, 1, 3).reshape(12, 12)
    return t.sum(0), t @ v


def test_a_copy_beside_a_sum_goes_to_the_writer() -> None:
    inputs = [rand(6, 6, 5), rand(6, 5, 4), rand(12, 3)]
    net = imported(sums, *inputs).network
    FuseProducers().apply(net)
    (both,) = (op for op in net.ops() if op.spec.kind == "program")
    assert len(both.spec.outputs) == 2, "a sum that stores what it reads, in another order"
    before, containers = net.bytes_moved(), len(net.containers)
    outcome = SinkCopies().apply(net)
    assert outcome.changed == 1 and outcome.saved_bytes == before - net.bytes_moved() == 144 * 4
    assert [len(net.outs(op)) for op in net.ops()] == [1, 1, 1] and len(net.containers) == containers - 1
    same_numbers(sums, *inputs, passes=(FuseProducers(), SinkCopies()))


def read_in_two_ways(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
    """A product that is needed as it is too."""
    y = x @ w
    t = y.view(2, 3, 6, 4).permute(0, 2, 1, 3).reshape(12, 12)
    return t.sum(0), t @ v, y @ v[:4]


def test_a_copy_beside_a_sum_stays_where_the_source_is_needed() -> None:
    inputs = [rand(6, 6, 5), rand(6, 5, 4), rand(12, 3)]
    net = imported(read_in_two_ways, *inputs).network
    FuseProducers().apply(net)
    assert "the copy's source has other readers or writers" in SinkCopies().apply(net).refused
    same_numbers(read_in_two_ways, *inputs, passes=(FuseProducers(), SinkCopies()))
