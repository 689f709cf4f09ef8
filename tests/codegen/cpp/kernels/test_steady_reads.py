"""Reads under conditions that are the same in all lanes: loops apart for each outcome, with eager's numbers at every border."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dcir.codegen.cpp.kernels.loop_nest import plan_program
from dcir.cost.machine import Machine
from dcir.ir.loop_nest import LoopNest
from dcir.isa import ISAS
from tests.harness import check_close, double, run_cpp, run_interpreted
from tests.transforms.imported import imported

aten = torch.ops.aten
CL = torch.channels_last


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(memory_format=CL)


def places(extent: int, size: int) -> torch.Tensor:
    return torch.randint(-extent, extent, (size,), generator=torch.Generator().manual_seed(extent))


# Functions of images in channels-last: what they read lies outside for some pixels, and for all channels of a pixel alike.
FUNCTIONS: dict[str, tuple[Any, list[torch.Tensor]]] = {
    "max": (lambda x: F.max_pool2d(x, 5, 1, 2), [images(2, 20, 6, 7)]),
    "max with places": (lambda x: F.max_pool2d(x, 5, 1, 2, return_indices=True), [images(2, 20, 6, 7)]),
    "mean": (lambda x: F.avg_pool2d(x, 5, 1, 2), [images(2, 33, 6, 7)]),
    "mean's gradient": (
        lambda x, g: aten.avg_pool2d_backward(g, x, [5, 5], [1, 1], [2, 2], False, True, None),
        [images(2, 20, 6, 7), images(2, 20, 6, 7)],
    ),
    "two conditions": (lambda x, y: F.pad(x, (1, 0, 2, 0)) + F.pad(y, (0, 1, 0, 2)), [images(2, 20, 6, 7), images(2, 20, 6, 7)]),
    "four conditions": (
        lambda x: F.pad(x, (1, 0, 2, 0)) + F.pad(x, (0, 1, 0, 2)) + F.pad(x, (1, 0, 0, 2)) + F.pad(x, (0, 1, 2, 0)),
        [images(2, 20, 6, 7)],
    ),
    "gather": (lambda x, i, j: x[:, :, i[:, None], j], [images(2, 20, 6, 7), places(6, 9), places(7, 5)]),
    "resized": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), [images(2, 20, 6, 7)]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers(name: str) -> None:
    fn, inputs = FUNCTIONS[name]
    done = imported(fn, *inputs)
    flat = lambda found: found if isinstance(found, tuple | list) else (found,)  # noqa: E731
    exact, near = flat(fn(*(double(t) for t in inputs))), flat(fn(*inputs))
    for run in (run_interpreted, run_cpp):
        for got, other, right in zip(run(done, inputs), near, exact, strict=True):
            check_close(got, other, right)


@pytest.mark.parametrize("name", ["max", "max with places", "mean", "mean's gradient", "two conditions"])
def test_no_lane_asks(name: str) -> None:
    """No read in a loop of lanes stands under a condition."""
    fn, inputs = FUNCTIONS[name]
    net = imported(fn, *inputs).network
    nests = [op.spec for op in net.ops() if isinstance(op.spec, LoopNest)]
    text = "\n".join(p.code for nest in nests for p in plan_program(nest, Machine(ISAS["avx512"], 2)).phases)
    assert "#pragma omp simd" in text
    assert not re.search(r"\? \(?a\d\[", text)


@pytest.mark.parametrize("layout", [CL, torch.contiguous_format])
def test_the_first_place_of_the_largest(layout: torch.memory_format) -> None:
    """Of equal ones the first, of nothing but infinities the first. Of several NaNs eager takes the last, which nothing says."""
    x = torch.randint(0, 3, (2, 20, 9, 9), generator=torch.Generator().manual_seed(0)).float()
    x[0, :, 2:5, 1:4] = -torch.inf
    x[1, 3:9, 4, 4:6] = torch.nan
    x[1, 12:, :, :] = -torch.inf
    x = x.contiguous(memory_format=layout)
    for size, stride, pad in ((3, 1, 1), (5, 1, 2), (3, 2, 0)):
        fn = lambda x, size=size, stride=stride, pad=pad: F.max_pool2d(x, size, stride, pad, return_indices=True)  # noqa: E731
        (value, place), (most, first) = run_cpp(imported(fn, x), [x]), fn(x)
        torch.testing.assert_close(value, most, rtol=0, atol=0, equal_nan=True)
        known = ~most.isnan()
        assert (
            torch.equal(place[known], first[known])
            and x.flatten(2).gather(2, place.flatten(2))[~known.flatten(2)].isnan().all()
        )
