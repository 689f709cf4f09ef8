"""Winograd's form: which convolutions take it and with which tile, which do not and why, and the numbers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import dcir
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.transforms.base import PassResult
from dcir.transforms.tier1_operator.pack_weights import PackWeights
from dcir.transforms.tier1_operator.use_winograd import UseWinograd
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from tests.harness import check_close, double, run_interpreted
from tests.on_host import target
from tests.transforms.imported import imported

pytestmark = pytest.mark.in_turn(3)


def images(*shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.to(memory_format=torch.channels_last)


def rewritten(fn: Any, inputs: list[torch.Tensor], **settings: Any) -> tuple[Network, PassResult, Any]:
    """Epilogues, then the pass, with all inputs but the first static."""
    done = imported(fn, *inputs)
    net = done.network
    net.static |= set(net.inputs[1:])
    FuseEpilogues().apply(net)
    chosen = UseWinograd(**settings)
    outcome = chosen.apply(net)
    verify(net)
    net.validate()
    assert not chosen.apply(net).changed
    return net, outcome, done


def tiles(net: Network) -> list[tuple[int, ...]]:
    return [op.spec.winograd for op in net.ops() if isinstance(op.spec, ConvolutionSpec)]


@pytest.mark.parametrize("tile", [(2, 2), (2, 4), (4, 2)])
def test_numbers(tile: tuple[int, int]) -> None:
    inputs = [images(2, 32, 7, 9), torch.randn(33, 32, 3, 3) / 17, torch.randn(33)]

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, b, padding=1))

    net, outcome, done = rewritten(fn, inputs, tiles=(tile,), gain=9.0)
    assert outcome.changed == 1 and tiles(net) == [tile]
    (got,) = run_interpreted(done, inputs)
    check_close(got, fn(*inputs), fn(*(double(t) for t in inputs)))


def test_images_in_another_layout_are_turned_around() -> None:
    inputs = [torch.randn(1, 64, 12, 13), torch.randn(64, 64, 3, 3) / 24]

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, padding=1)) + F.conv2d(x, w, padding=1)

    net, outcome, done = rewritten(fn, inputs, gain=9.0)
    assert outcome.changed == len([t for t in tiles(net) if t]) > 0
    copies = [op for op in net.ops() if net.ins(op)[0].data == net.inputs[0]]
    assert len(copies) == 1 and all(op.spec.x[1] == 1 for op in net.ops() if isinstance(op.spec, ConvolutionSpec))
    (got,) = run_interpreted(done, inputs)
    check_close(got, fn(*inputs), fn(*(double(t) for t in inputs)))


def test_large_images_take_it_few_channels_do_not() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=1)

    net, *_ = rewritten(fn, [images(1, 128, 28, 28), torch.randn(128, 128, 3, 3)])
    assert tiles(net) in ([(2, 4)], [(4, 2)])
    net, outcome, _ = rewritten(fn, [images(1, 16, 28, 28), torch.randn(16, 16, 3, 3)])
    assert tiles(net) == [()] and "the transforms would cost more than they save" in outcome.refused


def test_weights_that_cost_more_than_they_save() -> None:
    """One small image: the transformed weights' way from memory is longer than the products."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=1)

    net, *_ = rewritten(fn, [images(1, 512, 3, 3), torch.randn(512, 512, 3, 3)])
    assert tiles(net) == [()]


@pytest.mark.parametrize(
    ("shape", "weights", "kw", "reason"),
    [
        ((1, 64, 9, 9), (64, 64, 3, 3), {"stride": 2}, "without stride"),
        ((1, 64, 9, 9), (64, 64, 3, 3), {"dilation": 2, "padding": 2}, "without stride"),
        ((1, 64, 9, 9), (64, 64, 5, 5), {"padding": 2}, "without stride"),
        ((1, 64, 9, 9), (64, 32, 3, 3), {"groups": 2}, "whole vectors"),
        ((1, 60, 9, 9), (64, 60, 3, 3), {}, "whole vectors"),
    ],
)
def test_refusals(shape: tuple[int, ...], weights: tuple[int, ...], kw: dict[str, int], reason: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, **kw)  # type: ignore[arg-type]

    net, outcome, _ = rewritten(fn, [images(*shape), torch.randn(weights)])
    assert tiles(net) == [()] and any(reason in text for text in outcome.refused)


def test_equal_weights_are_transformed_once() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, w, padding=1), w, padding=1)

    net, outcome, _ = rewritten(fn, [images(1, 128, 28, 28), torch.randn(128, 128, 3, 3)])
    assert outcome.changed == 2 and len(net.ops()) == 3


def test_data_gradients() -> None:
    """The error signal's convolution with flipped weights; weights that change are transformed in every call."""
    x, w, dy = images(2, 64, 20, 21), torch.randn(48, 64, 3, 3) / 24, images(2, 48, 20, 21)

    def fn(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
            dy, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False]
        )[0]

    done = imported(fn, dy, x, w)
    outcome = UseWinograd().apply(done.network)
    verify(done.network)
    done.network.validate()
    assert outcome.changed == 1 and tiles(done.network) in ([(2, 4)], [(4, 2)])
    (got,) = run_interpreted(done, [dy, x, w])
    check_close(got, fn(dy, x, w), fn(dy.double(), x.double(), w.double()))


def test_weight_gradients() -> None:
    x, w, dy = images(2, 64, 20, 21), torch.randn(48, 64, 3, 3) / 24, images(2, 48, 20, 21)

    def fn(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
            dy, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
        )[1]

    done = imported(fn, dy, x, w)
    outcome = UseWinograd().apply(done.network)
    verify(done.network)
    assert outcome.changed == 1 and tiles(done.network) in ([(2, 4)], [(4, 2)])
    (got,) = run_interpreted(done, [dy, x, w])
    check_close(got, fn(dy, x, w), fn(dy.double(), x.double(), w.double()))
    done = imported(fn, dy.contiguous(), x, w)
    assert UseWinograd(gain=9.0).apply(done.network).changed == 1 and len(done.network.ops()) == 2
    (got,) = run_interpreted(done, [dy.contiguous(), x, w])
    check_close(got, fn(dy, x, w), fn(dy.double(), x.double(), w.double()))


@pytest.mark.parametrize(("size", "channels", "matrix", "changed"), [
    (56, 64, True, 1), (14, 256, True, 0), (14, 256, False, 1), (14, 240, True, 1),
])  # fmt: skip
def test_small_images_gradients_stay_on_the_matrix_unit(size: int, channels: int, matrix: bool, changed: int) -> None:
    """If it takes their channels."""
    x, w = images(8, channels, size, size), torch.randn(channels, channels, 3, 3)

    def fn(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
            dy, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
        )[1]

    net = imported(fn, x, x, w).network
    net.target = target(matrix_unit=matrix)
    assert UseWinograd().apply(net).changed == changed


def test_training_step() -> None:
    """Forward and both gradients through the whole pipeline."""
    torch.manual_seed(0)
    block = torch.nn.Sequential(
        torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 80, 3, padding=1), torch.nn.ReLU()
    )
    x, dy = torch.randn(2, 64, 28, 30), torch.randn(2, 80, 28, 30)

    def gradients(module: Any, kind: torch.dtype) -> list[torch.Tensor]:
        leaf = x.to(kind).clone().requires_grad_()
        y = module(leaf)
        return [y, *torch.autograd.grad(y, [leaf, *module.parameters()], dy.to(kind))]

    fast = dcir.optimize(copy.deepcopy(block), verify="passes")
    exact = gradients(copy.deepcopy(block).double(), torch.float64)
    for got, want, e in zip(gradients(fast, torch.float32), gradients(block, torch.float32), exact, strict=True):
        check_close(got, want, e)
    changed = [p.changed for g in fast.dcir.explain().graphs for p in g.passes if p.name == "use-winograd"]
    assert changed in ([2, 4], [2, 3])  # with a matrix unit, one weight gradient is faster in the direct form


def test_nothing_is_left_to_pack() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=1)

    net, *_ = rewritten(fn, [images(1, 128, 28, 28), torch.randn(128, 128, 3, 3)])
    assert not PackWeights().apply(net).changed


def test_network_with_residuals_and_changed_weights() -> None:
    """Through the whole pipeline, whose layouts make room for it; weights written after the first call are transformed again."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (torch.nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2))
            self.norm = torch.nn.BatchNorm2d(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(x + self.norm(self.second(F.relu(self.first(x)))))

    torch.manual_seed(0)
    block, x = Block().eval(), torch.randn(2, 64, 30, 31)
    fast = dcir.optimize(block, verify="passes")
    for factor in (1.0, -0.5):
        with torch.no_grad():
            block.second.weight *= factor
            check_close(fast(x), block(x), copy.deepcopy(block).double()(x.double()))
    (record,) = fast.dcir.explain().graphs
    assert any(p.name == "use-winograd" and p.changed == 2 for p in record.passes)
