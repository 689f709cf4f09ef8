"""Indices out of range are an error, as in eager torch, and never a read of other memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dcir.errors import IndexOutOfRange
from dcir.frontends.torch.importer import import_graph
from tests.harness import graph_of, run_interpreted

aten = torch.ops.aten
X = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        pytest.param(aten.index.Tensor, (X, [torch.tensor([0, 3])]), id="index"),
        pytest.param(aten.index.Tensor, (X, [None, torch.tensor([-5])]), id="index from the end"),
        pytest.param(aten.index_select.default, (X, 1, torch.tensor([-1])), id="index_select does not wrap"),
        pytest.param(aten.gather.default, (X, 0, torch.tensor([[3]])), id="gather"),
        pytest.param(aten.embedding.default, (X, torch.tensor([3])), id="embedding"),
        pytest.param(aten.take.default, (X, torch.tensor([12])), id="take"),
    ],
)
def test_out_of_range(op: Any, args: tuple[Any, ...]) -> None:
    """The error comes at run time, from the values of the index."""
    gm, tensors = graph_of(op, args, {})
    done = import_graph(gm)
    assert not done.fallbacks
    with pytest.raises(IndexOutOfRange):
        run_interpreted(done, tensors)


C = torch.ones(2, 3, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        pytest.param(aten.cat.default, ([C, C],), id="complex numbers"),
        pytest.param(aten.flip.default, (C, [0]), id="complex numbers, backwards"),
        pytest.param(aten.nextafter.default, (X.bfloat16(), X.bfloat16()), id="the next half-precision number"),
        pytest.param(aten.upsample_nearest2d_backward.default, (X[None, None], [3, 4], [1, 1, 2, 3]), id="fractions"),
        pytest.param(aten.grid_sampler_2d.default, (X[None, None], torch.zeros(1, 1, 1, 2), 2, 0, False), id="cubic"),
    ],
)
def test_refused(op: Any, args: tuple[Any, ...]) -> None:
    """What a page does not cover runs through torch, with the same result."""
    gm, tensors = graph_of(op, args, {})
    done = import_graph(gm)
    assert len(done.fallbacks) == 1
    got, want = run_interpreted(done, tensors)[0], op(*args)
    assert torch.equal(
        torch.view_as_real(got) if got.is_complex() else got, torch.view_as_real(want) if want.is_complex() else want
    )
