"""Loop nests inside of products of halves: which are, which are not and why, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dcir.cost.cuda import SETTING, TWIN
from dcir.driver.targets.cuda import CudaTarget
from dcir.driver.targets.host import host_machine
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.library.fused_product import FusedProduct
from dcir.transforms.base import PassResult
from dcir.transforms.tier2_fusion.fuse_around_products import FuseAroundProducts
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.fuse_siblings import FuseSiblings
from tests.harness import check_close, double, run_interpreted
from tests.transforms.imported import imported


@pytest.fixture(autouse=True)
def twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, TWIN)


def rand(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def images(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return rand(*shape, dtype=dtype).to(memory_format=torch.channels_last)


def applied(fn: Callable[..., Any], *args: torch.Tensor) -> tuple[Network, PassResult, Any]:
    """A function's network with neighbours fused."""
    done = imported(fn, *args)
    done.network.target = CudaTarget(host_machine(1))
    for p in (FuseProducers(spare_reads=True), FuseSiblings(min_bytes=1)):
        p.apply(done.network)
    outcome = FuseAroundProducts().apply(done.network)
    verify(done.network)
    done.network.validate()
    return done.network, outcome, done


def fused(net: Network) -> list[FusedProduct]:
    return [op.spec for op in net.ops() if isinstance(op.spec, FusedProduct)]


def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.relu(x @ w + b) + r


def statistics(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = F.conv2d(x, w)
    wide = y.float()
    return y, wide.sum((0, 2, 3)), (wide * wide).sum((0, 2, 3))


def before(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.relu(x * scale[:, None, None] + shift[:, None, None]), w)


LAYER = (rand(96, 40), rand(40, 24), rand(24), rand(96, 24))
STATISTICS = (images(4, 24, 40, 40), rand(32, 24, 1, 1))
BEFORE = (images(2, 16, 5, 7), rand(24, 16, 1, 1), rand(16), rand(16))


@pytest.mark.parametrize(("fn", "args"), [(layer, LAYER), (statistics, STATISTICS), (before, BEFORE)])
def test_neighbours_run_inside(fn: Any, args: tuple[torch.Tensor, ...]) -> None:
    net, outcome, done = applied(fn, *args)
    assert outcome.changed == 1 and len(fused(net)) == 1 and outcome.saved_bytes > 0
    assert len(net.ops()) == 1
    want, exact = fn(*args), fn(*map(double, args))
    pairs = [(want, exact)] if isinstance(want, torch.Tensor) else list(zip(want, exact, strict=True))
    for got, (near, right) in zip(run_interpreted(done, args), pairs, strict=True):
        check_close(got, near, right)


def test_a_gradient_of_an_image_is_a_product_too() -> None:
    def gradient(y: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        x = torch.empty(2, 16, 5, 7, dtype=y.dtype).to(memory_format=torch.channels_last)
        dx = torch.ops.aten.convolution_backward(
            y, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False]
        )[0]
        return torch.where(z > 0, dx, 0.0)

    args = images(2, 24, 5, 7), rand(24, 16, 1, 1), images(2, 16, 5, 7)
    net, _, done = applied(gradient, *args)
    assert [s.prologue for s in fused(net)] == [None]
    check_close(run_interpreted(done, args)[0], gradient(*args), gradient(*map(double, args)))


def test_what_others_read_is_still_stored() -> None:
    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ w
        return y, F.relu(y)

    net, _, done = applied(both, *LAYER[:2])
    assert [len(s.tail.outputs) for s in fused(net)] == [2]
    for got, near, right in zip(
        run_interpreted(done, LAYER[:2]), both(*LAYER[:2]), both(*map(double, LAYER[:2])), strict=True
    ):
        check_close(got, near, right)


def test_an_operand_that_others_read_is_stored_beside() -> None:
    def both(x: torch.Tensor, scale: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = F.relu(x * scale)
        return a, a @ w

    args = rand(96, 40), rand(40), rand(40, 24)
    net, _, done = applied(both, *args)
    assert [(s.beside, len(s.tail.outputs)) for s in fused(net)] == [(1, 1)] and len(net.ops()) == 1
    for got, near, right in zip(run_interpreted(done, args), both(*args), both(*map(double, args)), strict=True):
        check_close(got, near, right)


@pytest.mark.parametrize(("fn", "args", "why"), [
    (lambda x, w: F.relu(x @ w), (rand(96, 40, dtype=torch.float32), rand(40, 24, dtype=torch.float32)), "halves of one type"),
    (lambda x, w: F.conv2d(x, w, padding=1).relu(), (images(2, 8, 5, 5), rand(8, 8, 3, 3)), "no convolution of one tap"),
    (lambda x, w: F.conv2d(x, w, stride=2).relu(), (images(2, 8, 5, 5), rand(8, 8, 1, 1)), "no convolution of one tap"),
    (lambda x, w: F.conv2d(x, w).relu(), (rand(2, 8, 5, 5), rand(8, 8, 1, 1)), "has not its channels last"),
    (lambda x, w: x @ w, LAYER[:2], "no neighbour can run inside"),
    (lambda x, w: (x @ w).softmax(1), LAYER[:2], "no neighbour can run inside"),
    (lambda x, w: (x @ w).relu(), (rand(1 << 14, 4096), rand(4096, 4096)), "take less time"),
])  # fmt: skip
def test_refused(fn: Any, args: tuple[torch.Tensor, ...], why: str) -> None:
    done = imported(fn, *args)
    done.network.target = CudaTarget(host_machine(1))
    outcome = FuseAroundProducts().apply(done.network)
    assert not outcome.changed and any(why in reason for reason in outcome.refused), outcome.refused


def test_devices_without_matrix_units_and_other_targets_are_left_alone() -> None:
    done = imported(layer, *LAYER)
    assert not FuseAroundProducts().apply(done.network).changed
    done.network.target = CudaTarget(host_machine(1)).for_architectures(["sm_75"])
    outcome = FuseAroundProducts().apply(done.network)
    assert not outcome.changed and "the device has no matrix units for halves" in outcome.refused
