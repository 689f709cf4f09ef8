"""Products and the like by libraries: what is one, what is not and why, and the numbers."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from dcir.ir.verify import verify
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.library_call import LibraryCall
from dcir.transforms.tier1_operator.call_libraries import CallLibraries
from tests.harness import check_close, double, run_interpreted
from tests.transforms.imported import imported


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_product_and_a_convolution_are_calls() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w).relu().flatten(1) @ m

    args = rand(2, 3, 5, 5), rand(4, 3, 3, 3), rand(36, 7)
    done = imported(fn, *args)
    moved = done.network.bytes_moved()
    assert CallLibraries().apply(done.network).changed == 2
    assert sum(isinstance(op.spec, LibraryCall) for op in done.network.ops()) == 2
    assert done.network.bytes_moved() == moved
    verify(done.network)
    done.network.validate()
    (got,) = run_interpreted(done, args)
    check_close(got, fn(*args), fn(*map(double, args)))


def test_what_is_neither_stays() -> None:
    done = imported(lambda x: x.relu() + 1, rand(3, 4))
    assert not CallLibraries().apply(done.network).changed


def test_a_product_in_another_form_is_left_alone() -> None:
    done = imported(torch.mm, rand(2, 3), rand(3, 2))
    (op,) = done.network.ops()
    net = done.network
    net.rewire(op, replace(op.known(ContractionSpec), rounds="bf16"), net.ins(op), net.outs(op))
    outcome = CallLibraries().apply(net)
    assert not outcome.changed and "its operands are rounded first" in outcome.refused
