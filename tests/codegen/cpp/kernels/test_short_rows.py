"""Reductions whose innermost rows have a few elements: lanes go on from row to row, in blocks of sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dcir.codegen.cpp.kernels.loop_nest import plan_program
from dcir.cost.machine import Machine
from dcir.ir.loop_nest import LoopNest
from dcir.isa import ISAS
from tests.harness import check_close, double, run_cpp, run_interpreted
from tests.transforms.imported import imported


def rows(x: torch.Tensor) -> Any:
    """Of every group of the last dimension, over all but the first."""
    groups = x.unflatten(-1, (3, -1))
    return groups.sum((1, 3)), groups.amax((1, 3)), groups.amin((1, 3)), (groups > 0).any(3).any(1)


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("length", [1, 7, 150])
def test_numbers(size: int, length: int) -> None:
    x = torch.randn(2, length, 3 * size, generator=torch.Generator().manual_seed(size + length))
    done = imported(rows, x)
    for run in (run_interpreted, run_cpp):
        for got, near, right in zip(run(done, [x]), rows(x), rows(double(x)), strict=True):
            check_close(got, near, right)


def test_no_row_is_joined() -> None:
    x = torch.randn(2, 150, 24)
    nests = [op.spec for op in imported(lambda x: x.unflatten(-1, (3, 8)).sum((1, 3)), x).network.ops()]
    text = "\n".join(
        p.code
        for nest in nests
        if isinstance(nest, LoopNest)
        for p in plan_program(nest, Machine(ISAS["avx2"], 2)).phases
    )
    assert "near" in text and "reduction(" not in text and "d_fold" in text
