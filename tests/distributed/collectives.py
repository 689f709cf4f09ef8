"""What both processes do with exchanges inside compiled graphs."""

from __future__ import annotations

from collections import Counter

import torch
from torch.distributed import _functional_collectives as functional

import dcir


def exchanges(rank: int) -> Counter[str]:
    """Several of them in one graph, of which two are equal and one has a result that nobody reads."""

    def spread(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = functional.all_reduce(x * 2, "sum", [0, 1])
        functional.all_reduce(x * 3, "max", [0, 1])
        again = functional.all_reduce(x * 2, "sum", [0, 1])
        rows = functional.all_gather_tensor(x + 1, 0, [0, 1])
        return total * again, rows.relu(), functional.reduce_scatter_tensor(rows * total.sum(), "sum", 0, [0, 1])

    fast = dcir.optimize(spread)
    for number in range(4):
        # Large enough to be still on its way when it is read too early.
        x = torch.randn(300, 1000, generator=torch.Generator().manual_seed(2 * number + rank))
        for got, want in zip(fast(x), spread(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    return Counter(f for g in fast.dcir.session.graphs for f, _ in g.fallbacks)


def written_in_place(rank: int) -> None:
    """``torch.distributed``'s own functions, in a function that is traced."""

    def summed(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.distributed.all_reduce(y)
        return y + 1

    fast = dcir.optimize(summed)
    for _ in range(3):
        torch.testing.assert_close(fast(torch.full((9, 700), float(rank))), torch.full((9, 700), 3.0))
    assert fast.dcir.session.graphs
