"""Bags of looked-up rows: every mode and option beside eager, forward and gradients against float64, bad offsets, same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import IndexOutOfRange
from dcir.frontends.torch.importer import import_graph
from dcir.ops.library.scatter import ScatterSpec
from dcir.ops.library.segments import SegmentSpec
from dcir.transforms.pipelines import pipeline
from tests.harness import check_close, graph_of, run_cpp, run_interpreted
from tests.transforms.imported import imported

ATEN = torch.ops.aten


class Bags(nn.Module):
    """A table whose rows are looked up in bags, some of them empty, some points of the padding."""

    def __init__(self, width: int = 24, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.EmbeddingBag(301, width, **options)

    def forward(self, *args: Any) -> torch.Tensor:
        out: torch.Tensor = self.table(*args)
        return out


def points(count: int, bags: int, *, end: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(count)
    starts = torch.randint(0, count + 1, (bags,), generator=g).sort()[0]
    starts[0] = 0
    ends = [torch.tensor([count])] if end else []
    index = torch.randint(0, 301, (count,), generator=g)
    index[::7] = 5
    return index, torch.cat([starts, *ends])


OPTIONS: dict[str, tuple[dict[str, Any], bool]] = {
    "sum": ({"mode": "sum"}, False),
    "mean": ({"mode": "mean"}, False),
    "scaled": ({"mode": "sum"}, True),
    "sum, padded": ({"mode": "sum", "padding_idx": 5}, False),
    "mean, padded": ({"mode": "mean", "padding_idx": 5}, False),
    "scaled, padded": ({"mode": "sum", "padding_idx": 5}, True),
    "sum with the end": ({"mode": "sum", "include_last_offset": True}, False),
    "mean with the end": ({"mode": "mean", "include_last_offset": True}, False),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_as_eager(name: str) -> None:
    """Nothing runs through torch; results and gradients are as near to float64 as eager's, the same on one thread and on two."""
    options, scaled = OPTIONS[name]
    index, offsets = points(3001, 97, end=options.get("include_last_offset", False))
    scale = torch.rand(3001, generator=torch.Generator().manual_seed(1)) if scaled else None
    toward = torch.randn(97, 24, generator=torch.Generator().manual_seed(2))

    def run(net: Any, kind: torch.dtype = torch.float32) -> list[torch.Tensor]:
        net.zero_grad()
        factor = scale.to(kind).requires_grad_() if scale is not None else None
        y = net(index, offsets, *([factor] if factor is not None else []))
        y.backward(toward.to(kind))
        with torch.no_grad():
            again = net(index, offsets, *([factor] if factor is not None else []))
        grads = [p.grad.clone() for p in net.parameters()]
        return [y.detach(), again, *grads, *([factor.grad] if factor is not None else [])]

    fast = [dcir.optimize(Bags(**options), threads=n, strict=True) for n in (1, 2)]
    one, two, repeated = run(fast[0]), run(fast[1]), run(fast[1])
    for got, *others, want, exact in zip(
        one, two, repeated, run(Bags(**options)), run(Bags(**options).double(), torch.float64), strict=True
    ):
        check_close(got, want, exact, what=name)
        assert all(torch.equal(got, other) for other in others)


def test_two_dimensions() -> None:
    """Bags of one size, without offsets."""
    index = points(120, 1)[0].view(12, 10)
    fast, net = dcir.optimize(Bags(mode="mean"), strict=True), Bags(mode="mean")
    check_close(fast(index), net(index), net.double()(index))


def test_no_scatter_is_left() -> None:
    """Forward and gradient are folds of listed points."""

    def fn(weight: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor) -> Any:
        y, *parts = ATEN._embedding_bag.default(weight, index, offsets, False, 1, False, None, False, 5)
        return y, ATEN._embedding_bag_backward.default(y.sin(), index, offsets, *parts, 301, False, 1, False, None, 5)

    net = imported(fn, torch.randn(301, 24), *points(3001, 97)).network
    for p in pipeline(2):
        p.apply(net)
    specs = [op.spec for op in net.ops()]
    assert not any(isinstance(s, ScatterSpec) for s in specs)
    assert sum(isinstance(s, SegmentSpec) for s in specs) >= 2


@pytest.mark.parametrize("run", [run_cpp, run_interpreted])
@pytest.mark.parametrize("offsets", [[1, 4, 5], [0, 4, 8], [0, 5, 4], [0, -1, 4], [0, 2**40, 5]])
@pytest.mark.parametrize("mode", [0, 1])
def test_bad_offsets(run: Any, offsets: list[int], mode: int) -> None:
    """Bags that do not begin with the first point, fall, or lead outside."""
    weight, index = torch.randn(9, 4), torch.arange(7)
    gm, tensors = graph_of(ATEN._embedding_bag.default, (weight, index, torch.tensor([0, 1, 2]), False, mode), {})
    tensors[2] = torch.tensor(offsets)
    with pytest.raises(IndexOutOfRange):
        run(import_graph(gm), tensors)


@pytest.mark.parametrize("index", [9, -1, 2**40])
def test_bad_rows(index: int) -> None:
    """Rows that are not there are neither read nor written."""
    weight, offsets = torch.randn(9, 4), torch.tensor([0, 1])
    forward = graph_of(ATEN._embedding_bag.default, (weight, torch.arange(7), offsets, False, 1), {})
    out = ATEN._embedding_bag.default(weight, torch.arange(7), offsets, False, 1)
    args = (torch.randn(2, 4), torch.arange(7), offsets, *out[1:], 9, False, 1, False, None)
    backward = graph_of(ATEN._embedding_bag_backward.default, args, {})
    for gm, tensors in (forward, backward):
        tensors[1] = torch.tensor([0, 1, 2, 3, 4, 5, index])
        with pytest.raises(IndexOutOfRange):
            run_cpp(import_graph(gm), tensors)


def test_refused() -> None:
    """Largest elements, and gradients scaled by how often a row was looked up, stay with torch, which passes over NaN."""
    weight, index, offsets = torch.randn(9, 4), torch.arange(7), torch.tensor([0, 3])
    gm, tensors = graph_of(ATEN._embedding_bag.default, (weight, index, offsets, False, 2), {})
    done = import_graph(gm)
    assert done.fallbacks
    want = ATEN._embedding_bag.default(weight, index, offsets, False, 2)
    assert torch.equal(run_cpp(done, tensors)[0], want[0])
