"""Cheap forward values in the backward: which are computed again, which are stored, and the numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import dcir
from dcir.frontends.torch import ahead_of_time
from dcir.frontends.torch.partition.cut_for import CutFor, cuts_for
from dcir.frontends.torch.partition.expose_norms import NORMS, expose_norms
from dcir.frontends.torch.partition.recompute import recompute_cheap
from tests.endtoend.follows_eager import follow

Fn = Callable[..., torch.Tensor]


class Block(nn.Module):
    """Convolution, batch normalisation over the batch, an activation, convolution."""

    def __init__(self, act: Fn, *, residual: bool = False, affine: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8, affine=affine)
        self.act, self.residual = act, residual
        self.second = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.first(x))
        if self.residual:
            y = y + self.first(x).sin()
        return self.second(self.act(y))


ACTIVATIONS: dict[str, Fn] = {
    "relu6": F.relu6, "silu": F.silu, "mish": F.mish, "hardswish": F.hardswish, "gelu": F.gelu, "tanh": torch.tanh,
    "relu": F.relu, "leaky": F.leaky_relu,
}  # fmt: skip


def joint(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[fx.GraphModule, int]:
    """A module's joint graph as it is captured, and how many of its results are the forward's."""
    seen: list[tuple[fx.GraphModule, int]] = []
    cut = ahead_of_time.min_cut_rematerialization_partition

    def watched(graph: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        seen.append((copy.deepcopy(graph), kwargs["num_fwd_outputs"]))
        return cut(graph, *args, **kwargs)

    with monkeypatch.context() as m:
        m.setattr(ahead_of_time, "min_cut_rematerialization_partition", watched)
        m.setattr(ahead_of_time, "expose_norms", lambda graph: 0)
        m.setattr(ahead_of_time, "recompute_cheap", lambda graph, outputs: 0)
        dcir.optimize(module, level=0)(torch.randn(2, 3, 6, 6, requires_grad=True))
    return seen[0]


def crossing(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of what an optimised module's forward stores for its backward."""
    shapes: list[tuple[int, ...]] = []
    cut = ahead_of_time.min_cut_rematerialization_partition

    def watched(graph: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        forward, backward = cut(graph, *args, **kwargs)
        (results,) = forward.graph.find_nodes(op="output")
        stored = results.args[0][kwargs["num_fwd_outputs"] :]
        shapes.extend(tuple(n.meta["val"].shape) for n in stored)
        return forward, backward

    monkeypatch.setattr(ahead_of_time, "min_cut_rematerialization_partition", watched)
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    dcir.optimize(module, level=2)(x).sum().backward()
    return shapes


@pytest.mark.parametrize("name", ["relu6", "silu", "mish", "hardswish", "gelu", "tanh"])
def test_input_of_an_activation_is_not_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = crossing(Block(ACTIVATIONS[name]), monkeypatch)
    # The first convolution's result and the second one's image; not what lies between normalisation and activation.
    assert shapes.count((2, 8, 6, 6)) == 2


def test_two_large_sources_are_dearer_than_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A residual sum is made of two large values; the activation reads neither, and one store is as cheap."""
    shapes = crossing(Block(F.silu, residual=True), monkeypatch)
    assert 2 <= shapes.count((2, 8, 6, 6)) <= 4


@pytest.mark.parametrize("affine", [True, False])
def test_graph_computes_the_same(affine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gm, outputs = joint(Block(F.silu, affine=affine), monkeypatch)
    places = gm.graph.find_nodes(op="placeholder")
    inputs = [torch.rand(n.meta["val"].shape).to(n.meta["val"].dtype) for n in places]
    want = fx.Interpreter(gm).run(*inputs)
    assert expose_norms(gm) == 1
    assert expose_norms(gm) == 0
    (norm,) = (n for n in gm.graph.nodes if n.target in NORMS)
    assert all(u.args[1] != 0 for u in norm.users)
    assert recompute_cheap(gm, outputs) == 1
    for n in gm.graph.nodes:
        if n.op == "call_function":
            assert "val" in n.meta
    got = fx.Interpreter(gm).run(*inputs)
    torch.testing.assert_close(pytree.tree_leaves(got), pytree.tree_leaves(want), rtol=1e-4, atol=1e-4)


class Joined(Block):
    """A sum with what the norm does not read before the activation."""

    def __init__(self) -> None:
        super().__init__(F.relu)
        self.other = nn.Conv2d(3, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.act(self.norm(self.first(x)) + self.other(x)))


def mask_of_relu(gm: fx.GraphModule) -> fx.Node:
    """What a ReLU's gradient asks for the sign of, behind views."""
    (gradient,) = (n for n in gm.graph.nodes if n.target is torch.ops.aten.threshold_backward.default)
    found: Any = gradient.args[1]
    while found.target is torch.ops.aten.detach.default:
        found = found.args[0]
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("residual", [False, True])
def test_what_the_forward_writes_is_repeated_only_if_asked(residual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask follows from what the norm's gradient reads; behind a sum, from something else, too."""
    for wanted in (CutFor(), CutFor(repeats_written=True)):
        gm, outputs = joint(Joined() if residual else Block(F.relu), monkeypatch)
        places = gm.graph.find_nodes(op="placeholder")
        inputs = [torch.rand(n.meta["val"].shape).to(n.meta["val"].dtype) for n in places]
        want = fx.Interpreter(gm).run(*inputs)
        expose_norms(gm)
        with cuts_for(wanted):
            recompute_cheap(gm, outputs)
        readers = {u.target for u in mask_of_relu(gm).users}
        repeated = torch.ops.aten.convolution_backward.default not in readers
        assert repeated == (wanted.repeats_written and not residual)
        torch.testing.assert_close(
            pytree.tree_leaves(fx.Interpreter(gm).run(*inputs)), pytree.tree_leaves(want), rtol=1e-4, atol=1e-4
        )


def test_evaluation_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gm, _ = joint(Block(F.silu).eval(), monkeypatch)
    assert expose_norms(gm) == 0


@pytest.mark.parametrize("name", list(ACTIVATIONS))
@pytest.mark.parametrize("residual", [False, True])
def test_numbers(name: str, residual: bool) -> None:
    torch.manual_seed(0)
    done = follow(Block(ACTIVATIONS[name], residual=residual), {"x": torch.randn(4, 3, 9, 7)}, train=True)
    assert not done.wrong
    assert not done.fallbacks


class Moved(nn.Module):
    """An activation of a buffer that the same call moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.ones(2, 3, 6, 6))
        self.first = nn.Conv2d(3, 3, 1)
        self.last = nn.Conv2d(3, 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.first(x) + self.sum)
        self.sum.add_(1.0)
        return self.last(y)


def test_what_the_forward_writes_to_is_no_source() -> None:
    torch.manual_seed(0)
    assert not follow(Moved(), {"x": torch.randn(2, 3, 6, 6)}, train=True).wrong


def test_half_types_are_rounded_as_the_norm_rounds() -> None:
    torch.manual_seed(0)
    plain = Block(F.silu)
    fast = dcir.optimize(copy.deepcopy(plain))
    x = torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = fast(x), plain(x)
    got.float().square().mean().backward()
    want.float().square().mean().backward()
    torch.testing.assert_close(got.float(), want.float(), rtol=0.05, atol=0.05)
    for p, q in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0.1, atol=0.05)
