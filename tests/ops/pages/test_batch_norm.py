"""Batch statistics far from zero: as near to float64 as eager, whatever lies between mean and deviation."""

from __future__ import annotations

import copy

import pytest
import torch

from dcir.driver.optimize import optimize


@pytest.mark.parametrize("mean, deviation", [(0.0, 1.0), (30.0, 1.0), (1e4, 1.0), (5.0, 1e-3), (-7.0, 0.0)])
@pytest.mark.parametrize("shape", [(4, 19, 13, 7), (2, 48, 31, 33), (33, 5)])
@pytest.mark.parametrize("last", [False, True])
def test_statistics_are_as_exact_as_eager(shape: tuple[int, ...], mean: float, deviation: float, last: bool) -> None:
    torch.manual_seed(1)
    x = torch.randn(shape) * deviation + mean
    if last and len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    eager = torch.nn.BatchNorm2d(shape[1]) if len(shape) == 4 else torch.nn.BatchNorm1d(shape[1])
    exact, ours = copy.deepcopy(eager).double(), copy.deepcopy(eager)
    error = torch.randn(shape)
    values = []
    for module, x_, error_ in ((exact, x.double(), error.double()), (eager, x, error), (optimize(ours), x, error)):
        x_ = x_.clone().requires_grad_()
        y = module(x_)
        (y * error_).sum().backward()
        values.append((y.detach().double(), x_.grad, module.running_mean, module.running_var, module.weight.grad))
    for right, near, got in zip(*values, strict=True):
        scale = right.abs().max().item()
        bound = 3 * (near.double() - right).abs().max().item() + 1e-6 * scale
        assert (got.double() - right).abs().max().item() <= bound
