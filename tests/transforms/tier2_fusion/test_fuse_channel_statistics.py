"""Sums that join the convolution before them: which do, which do not and why, and the numbers of every kernel that takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.isa import ISAS
from dcir.ops.library.convolution_statistics import ConvolutionStatisticsSpec
from dcir.transforms.base import PassResult
from dcir.transforms.tier1_operator.use_winograd import UseWinograd
from dcir.transforms.tier2_fusion.fuse_channel_statistics import FuseChannelStatistics
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.fuse_siblings import FuseSiblings
from tests.harness import check_close, double, run_cpp, run_dace, run_interpreted
from tests.transforms.imported import imported


def images(*shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.to(memory_format=torch.channels_last)


def fused(fn: Callable[..., Any], inputs: list[torch.Tensor], *before: Any) -> tuple[Network, PassResult, Any]:
    done = imported(fn, *inputs)
    for p in before:
        p.apply(done.network)
    outcome = FuseChannelStatistics(min_bytes=1).apply(done.network)
    verify(done.network)
    done.network.validate()
    return done.network, outcome, done


def summed(net: Network) -> list[ConvolutionStatisticsSpec]:
    return [op.spec for op in net.ops() if isinstance(op.spec, ConvolutionStatisticsSpec)]


def statistics(x: torch.Tensor, w: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    """A convolution and both sums of a batch normalisation."""
    stride, groups = rest
    y = F.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2, groups=groups)
    wide = y.double()
    return y, wide.sum((0, 2, 3)), (wide * wide).sum((0, 2, 3)).float()


CASES = [
    (2, 24, 9, 11, 40, 1, 1, 1),
    (3, 33, 7, 7, 65, 1, 1, 1),
    (2, 20, 12, 13, 36, 3, 1, 1),
    (2, 48, 10, 9, 48, 3, 2, 1),
    (2, 40, 9, 17, 40, 3, 1, 40),
    (2, 40, 9, 17, 40, 1, 1, 40),
    (2, 7, 9, 8, 7, 1, 2, 7),
    (2, 21, 8, 15, 21, 3, 1, 21),
    (2, 7, 9, 8, 7, 3, 2, 7),
    (1, 48, 14, 14, 48, 5, 1, 48),
]


@pytest.mark.parametrize("case", CASES)
def test_statistics(case: tuple[int, ...]) -> None:
    n, ci, h, w, co, k, stride, groups = case
    inputs = [images(n, ci, h, w) + 3, images(co, ci // groups, k, k).contiguous()]
    fn = lambda x, w: statistics(x, w, stride, groups)  # noqa: E731
    net, outcome, done = fused(fn, inputs, FuseProducers(), FuseSiblings(min_bytes=1))
    assert outcome.changed == 1 and len(summed(net)) == 1
    exact = fn(*(double(t) for t in inputs))
    for run in (run_interpreted, run_cpp):
        for got, near, right in zip(run(done, inputs), fn(*inputs), exact, strict=True):
            check_close(got, near, right)


@pytest.mark.parametrize("function", ["sigmoid", "exp", "tanh", "exp of a sum only", "exp read where it was stored"])
@pytest.mark.parametrize(("kernel", "groups"), [(1, 1), (3, 40)])
def test_sums_of_functions(function: str, kernel: int, groups: int) -> None:
    """Functions with a form for vectors are added up by the tiles, the others by a kernel of their own."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(x, w, padding=w.shape[-1] // 2, groups=groups)
        value = y.exp() if "exp" in function else getattr(torch, function)(y)
        other = value if "stored" in function else y
        return (y if "only" in function else value), value.sum((0, 2, 3)), (value * other).sum((0, 2, 3))

    inputs = [images(2, 40, 9, 17) / 4, images(40, 40 // groups, kernel, kernel).contiguous() / 8]
    net, _, done = fused(fn, inputs, FuseProducers(), FuseSiblings(min_bytes=1))
    assert len(summed(net)) == 1, "nothing joins: this would show nothing"
    exact = fn(*(double(t) for t in inputs))
    for got, near, right in zip(run_cpp(done, inputs), fn(*inputs), exact, strict=True):
        check_close(got, near, right)
    if "exp" in function:
        spec = summed(net)[0]
        epilogue = Epilogue(spec.whole_epilogue(), "f32", 2, 1, 3)
        read = "load(t + r * stride)" not in epilogue.text(ISAS["avx2"])
        assert read == ("stored" in function)


def test_winograd() -> None:
    inputs = [images(2, 32, 9, 14), images(40, 32, 3, 3).contiguous()]
    fn = lambda x, w: statistics(x, w, 1, 1)  # noqa: E731
    net, outcome, done = fused(fn, inputs, FuseProducers(), FuseSiblings(min_bytes=1), UseWinograd(gain=9.0))
    assert outcome.changed == 1 and summed(net)[0].product.winograd
    for got, near, right in zip(run_cpp(done, inputs), fn(*inputs), fn(*(double(t) for t in inputs)), strict=True):
        check_close(got, near, right, factor=6.0)


def test_through_dace() -> None:
    inputs = [images(2, 8, 5, 4), images(16, 8, 1, 1).contiguous()]
    fn = lambda x, w: statistics(x, w, 1, 1)  # noqa: E731
    _, outcome, done = fused(fn, inputs, FuseProducers(), FuseSiblings(min_bytes=1))
    assert outcome.changed == 1
    for got, near, right in zip(run_dace(done, inputs), fn(*inputs), fn(*(double(t) for t in inputs)), strict=True):
        check_close(got, near, right)


@pytest.mark.parametrize("channels, kernel, groups", [((24, 40), 1, 1), ((36, 36), 3, 36), ((21, 65), 1, 1)])
def test_gradients(channels: tuple[int, int], kernel: int, groups: int) -> None:
    ci, co = channels
    error, w = images(2, co, 9, 13), images(co, ci // groups, kernel, kernel).contiguous()
    x, mean = images(2, ci, 9, 13), torch.linspace(-1, 1, ci)

    def fn(error: torch.Tensor, w: torch.Tensor, x: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = kernel // 2
        dx = torch.ops.aten.convolution_backward(
            error, x, w, None, [1, 1], [p, p], [1, 1], False, [0, 0], groups, [True, False, False]
        )[0]
        passed = torch.where(x > 0, dx, 0.0)
        return dx, passed.sum((0, 2, 3)), (passed * (x - mean[:, None, None])).sum((0, 2, 3)) * 2

    inputs = [error, w, x, mean]
    net, outcome, done = fused(fn, inputs, FuseProducers(), FuseSiblings(min_bytes=1))
    assert outcome.changed == 1 and summed(net)[0].kind == "backward_data"
    exact = fn(*(double(t) for t in inputs))
    for run in (run_interpreted, run_cpp):
        for got, near, right in zip(run(done, inputs), fn(*inputs), exact, strict=True):
            check_close(got, near, right)


@pytest.mark.parametrize("channels, kernel, groups", [((24, 40), 1, 1), ((36, 36), 3, 36), ((21, 65), 1, 1)])
@pytest.mark.parametrize("function", ["", "sigmoid"])
def test_a_result_that_only_sums_read_is_not_stored(
    channels: tuple[int, int], kernel: int, groups: int, function: str
) -> None:
    ci, co = channels
    error, w = images(2, co, 9, 13), images(co, ci // groups, kernel, kernel).contiguous()

    def fn(error: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = kernel // 2
        dx = torch.ops.aten.convolution_backward(
            error, x, w, None, [1, 1], [p, p], [1, 1], False, [0, 0], groups, [True, False, False]
        )[0]
        passed = torch.where(x > 0, getattr(torch, function)(dx) if function else dx, 0.0)
        return passed, passed.sum((0, 2, 3)), (passed * x).sum((0, 2, 3))

    inputs = [error, w, images(2, ci, 9, 13)]
    net, outcome, done = fused(fn, inputs, FuseProducers(), FuseEpilogues(), FuseSiblings(min_bytes=1))
    (spec,) = summed(net)
    assert outcome.changed == 1 and not spec.kept
    plain = replace(spec, kept=True)
    assert sum(spec.footprint()[1]) == sum(plain.footprint()[1]) - error.shape[0] * ci * 9 * 13 * 4
    assert all(net.readers(n) or n in net.result_containers() for n in net.containers if net.writers(n))
    exact = fn(*(double(t) for t in inputs))
    for run in (run_interpreted, run_cpp, run_dace):
        for got, near, right in zip(run(done, inputs), fn(*inputs), exact, strict=True):
            check_close(got, near, right)


def test_equal_runs_give_equal_bits() -> None:
    inputs = [images(4, 24, 19, 23), images(48, 24, 1, 1).contiguous()]
    fn = lambda x, w: statistics(x, w, 1, 1)  # noqa: E731
    done = fused(fn, inputs, FuseProducers(), FuseSiblings(min_bytes=1))[2]
    first, second = run_cpp(done, inputs), run_cpp(done, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_tiles_add_vectors_of_channels_only() -> None:
    """Vectors along pixels, as of a product of one column, would add them to neighbouring channels."""
    inputs = [images(2, 24, 9, 11), images(40, 24, 1, 1).contiguous()]
    (spec,) = summed(fused(lambda x, w: statistics(x, w, 1, 1), inputs, FuseProducers(), FuseSiblings(min_bytes=1))[0])
    program = spec.whole_epilogue()
    assert Epilogue(program, "f32", 2, 1).adds_vectors and Epilogue(program, "f32", 2, 1, 3).adds_vectors
    assert not Epilogue(program, "f32", 2, 3).adds_vectors and not Epilogue(program, "f32", 2, 3, 1).adds_vectors


def test_a_convolution_in_planes_is_left_alone() -> None:
    inputs = [images(2, 24, 9, 11).contiguous(), images(40, 24, 1, 1).contiguous()]
    net, outcome, _ = fused(lambda x, w: statistics(x, w, 1, 1), inputs, FuseProducers(), FuseSiblings(min_bytes=1))
    assert not outcome.changed and not summed(net)


def test_refused_second_sweep() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w).var((0, 2, 3))

    _, outcome, _ = fused(fn, [images(2, 24, 9, 11), images(40, 24, 1, 1).contiguous()])
    assert not outcome.changed and list(outcome.refused) == ["a later stage goes over the inner loops again"]


def test_refused_other_loops() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w).sum((2, 3))

    _, outcome, _ = fused(fn, [images(2, 24, 9, 11), images(40, 24, 1, 1).contiguous()])
    assert not outcome.changed and list(outcome.refused) == ["it does not sum over all but the channels"]
