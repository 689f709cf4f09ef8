"""Parts of rows in one nest: which join, which stay and why, the numbers, and indices that lie outside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import DcirError
from dcir.transforms.tier2_fusion.fuse_concatenated_writes import FuseConcatenatedWrites
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier3_layout.sink_copies import SinkCopies
from tests.transforms.imported import same_numbers


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def indices(rows: int, *sizes: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.stack([torch.randint(0, n, (rows,), generator=g) for n in sizes], 1)


def changed(fn: object, *inputs: torch.Tensor, join: FuseConcatenatedWrites | None = None) -> int:
    return same_numbers(fn, *inputs, passes=(FuseProducers(), SinkCopies(), join or FuseConcatenatedWrites()))[
        -1
    ].changed  # type: ignore[arg-type]


def tables(x: torch.Tensor, i: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, *(w[i[:, n]] for n, w in enumerate(weights))], 1)


def test_embeddings_join() -> None:
    weights = [rand(n, 16) for n in (7, 30, 5, 11)]
    assert changed(tables, rand(100, 16), indices(100, 7, 30, 5, 11), *weights) == 1


def test_parts_of_different_lengths_stay() -> None:
    """A nest has one loop for the columns of all its parts."""
    weights = [rand(7, 16), rand(30, 8), rand(5, 16)]
    assert changed(tables, rand(100, 4), indices(100, 7, 30, 5), *weights) == 1


def test_few_rows_and_long_parts_stay() -> None:
    assert changed(tables, rand(20, 16), indices(20, 7, 30), rand(7, 16), rand(30, 16)) == 0
    assert changed(tables, rand(100, 4), indices(100, 7, 30), rand(7, 400), rand(30, 400)) == 0


def test_parts_per_kernel_are_limited() -> None:
    sizes = range(3, 13)
    inputs = rand(70, 8), indices(70, *sizes), *(rand(n, 8) for n in sizes)
    assert changed(tables, *inputs, join=FuseConcatenatedWrites(most_parts=4)) == 3
    assert changed(tables, *inputs, join=FuseConcatenatedWrites(most_statements=20)) == 5  # an embedding has eight


class Tables(nn.Module):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 12) for n in sizes)
        self.last = nn.Linear(12 * len(sizes), 3)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        rows = torch.stack([t(i[:, n]) for n, t in enumerate(self.tables)], 1)
        return torch.as_tensor(self.last(rows.flatten(1)))


def test_compiled_forward_and_backward() -> None:
    torch.manual_seed(0)
    net, sizes = Tables(5, 900, 31, 2, 64), (5, 900, 31, 2, 64)
    fast, i = dcir.optimize(net, verify="passes"), indices(200, *sizes)
    torch.testing.assert_close(fast(i), net(i), rtol=1e-5, atol=1e-5)
    wanted = torch.autograd.grad(net(i).square().sum(), list(net.parameters()))
    got = torch.autograd.grad(fast(i).square().sum(), list(net.parameters()))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    lines = [line.split() for line in str(fast.dcir.explain()).splitlines() if "fuse-concatenated-writes" in line]
    assert lines[0][2] == "1"  # in the forward


@pytest.mark.parametrize("place", [(0, 0), (199, 4), (100, 2)])
@pytest.mark.parametrize("value", [-1000, 900, 2**40])
def test_index_outside_is_an_error(place: tuple[int, int], value: int) -> None:
    """In any part of any row, and the next call is right again."""
    torch.manual_seed(0)
    sizes = (5, 900, 31, 2, 64)
    net = Tables(*sizes).eval()
    fast, i = dcir.optimize(net), indices(200, *sizes)
    with torch.no_grad():
        wrong = i.clone()
        wrong[place] = value
        with pytest.raises((DcirError, IndexError)):
            fast(wrong)
        torch.testing.assert_close(fast(i), net(i), rtol=1e-5, atol=1e-5)


def test_programs_only() -> None:
    """What writes a part of a row otherwise, as a product does, stays what it is."""

    def fn(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ w, a[i[:, 0]], b[i[:, 1]]], 1)

    outcomes = same_numbers(fn, rand(80, 8), rand(8, 16), indices(80, 4, 6), rand(4, 16), rand(6, 16),
                            passes=(FuseProducers(), SinkCopies(), FuseConcatenatedWrites()))  # fmt: skip
    assert outcomes[-1].changed == 1


class Counted(nn.Module):
    """A table that is written between two reads of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", rand(50, 16))
        self.register_buffer("other", rand(30, 16))

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        before = self.table[i[:, 0]]
        self.table.add_(1.0)
        return torch.cat([before, self.table[i[:, 1]], self.other[i[:, 1]]], 1)


def test_table_written_in_between() -> None:
    net, same, i = Counted(), Counted(), indices(200, 50, 30)
    fast = dcir.optimize(net)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(i), same(i))
            torch.testing.assert_close(net.table, same.table)
