"""Sizes that are sums of others: a mask as long as a cache and what is new, a number that counts from 0; rows that are a product of two."""

import itertools
import math
import operator

import pytest
import sympy
import torch
from torch import nn
from torch.utils._sympy.functions import FloorDiv, Max, Mod

import dcir
from dcir.frontends.torch.shapes.sums import sums
from tests.harness import check_close

A, B, C, D, E = sympy.symbols("s0 s1 s2 s3 s5", integer=True, positive=True)
VALUES = {"s0": 12, "s1": 11, "s2": 2, "s3": 22, "s5": 1}


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ([sympy.Le(B + 1, A)], {"s0": "s1 + 1"}),
        ([sympy.Gt(A, B), sympy.Le(A, B + 1)], {"s0": "s1 + 1"}),
        ([sympy.Ge(A, B - 1 + Max(0, C))], {"s0": "s1 + s2 - 1"}),
        ([sympy.Eq(A, B + 1, evaluate=False), sympy.Eq(B, C + 9, evaluate=False)], {"s0": "s2 + 10", "s1": "s2 + 9"}),
        ([sympy.Eq(4 * A, 4 * B * C - 40, evaluate=False)], {"s0": "s1*s2 - 10"}),
        ([sympy.Eq(FloorDiv(D, C), B, evaluate=False), sympy.Eq(Mod(D, C), 0, evaluate=False)], {"s3": "s1*s2"}),
        # The product of a sum from which 10 is taken would take ten times the other size away.
        ([sympy.Eq(D, B * C, evaluate=False), sympy.Eq(C, A * E - 10, evaluate=False)], {"s3": "s1*s2"}),
        ([sympy.Eq(D, B * C, evaluate=False), sympy.Eq(C + 9, B, evaluate=False)], {"s1": "s2 + 9", "s3": "s2^2 + 9*s2"}),
        # Something is left over; no equation; a size on both sides.
        ([sympy.Eq(FloorDiv(D, C), B, evaluate=False)], {}),
        ([sympy.Le(B * C, D)], {}),
        ([sympy.Eq(D * C, B * C * C, evaluate=False)], {}),
        # There is room; another size; no sum; one size alone; something subtracted; a size times two.
        ([sympy.Le(B, A)], {}),
        ([sympy.Le(B + 1, sympy.Symbol("s4"))], {}),
        ([sympy.Ge(132, A * B)], {}),
        ([sympy.Le(A, 12)], {}),
        ([sympy.Le(A + B, 23)], {}),
        ([sympy.Le(2 * A, 2 * B + 2)], {}),
    ],
)  # fmt: skip
def test_sums(conditions, found):
    assert {name: str(total) for name, total in sums(conditions, VALUES).items()} == found


class Step(nn.Module):
    """A step of a decoder over a cache, with a mask that may be too short in one of two ways, or in one."""

    def __init__(self, *wrong) -> None:
        super().__init__()
        self.q, self.k = (nn.Linear(16, 16) for _ in range(2))
        self.wrong = wrong

    def forward(self, x, cache, mask):
        keys = torch.cat([cache, self.k(x)], 1)
        if any(wrong(mask.shape[1], keys.shape[1]) for wrong in self.wrong):
            raise ValueError("no mask for these keys")
        scores = self.q(x) @ keys.mT
        return scores.masked_fill(mask[:, None, : keys.shape[1]] == 0, -1e9).softmax(-1) @ keys, keys


@pytest.mark.parametrize("wrong", [(operator.lt,), (operator.lt, operator.gt)], ids=["long enough", "as long"])
@torch.no_grad()
def test_masks_are_as_long_as_what_they_mask(wrong):
    """One program for all lengths, whichever of batch, cache and mask moves; a mask that is longer has one, too."""
    torch.manual_seed(0)
    net = Step(*wrong).eval()
    fast, wide = dcir.optimize(net), Step(*wrong).double()
    wide.load_state_dict(net.state_dict())
    longer = 0 if operator.gt in wrong else 5
    made = []
    for batch, length, more in (
        (2, 11, 0),
        (3, 12, 0),
        (3, 13, 0),
        (4, 29, 0),
        (2, 7, 0),
        (2, 9, longer),
        (3, 8, longer),
    ):
        x, cache = torch.randn(batch, 1, 16), torch.randn(batch, length, 16)
        mask = torch.ones(batch, length + 1 + more, dtype=torch.int64)
        mask[0, :2] = 0
        for got, want, exact in zip(
            fast(x, cache, mask), net(x, cache, mask), wide(x.double(), cache.double(), mask), strict=True
        ):
            check_close(got, want, exact)
        made.append(len(fast.dcir.explain().graphs))
    assert made[1:5] == [2] * 4
    assert made[-1] == made[-2] <= 3
    assert sum(bool(g.bounds) for g in fast.dcir.explain().graphs) == made[-1] - 1


class Counted:
    """What is counted in a cache."""

    def __init__(self, count: int) -> None:
        self.count = count


class From(nn.Module):
    """Rows at places that go on where the last call's ended."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Linear(16, 16)

    def forward(self, x, counted):
        start, counted.count = counted.count, counted.count + x.shape[1]
        return self.seen(x) + (torch.arange(x.shape[1]) + start)[:, None]


@torch.no_grad()
def test_numbers_that_count_from_zero():
    """A number that moves and is 0 in many calls is constant there, and the sizes beside it move."""
    torch.manual_seed(0)
    net = From().eval()
    fast, made = dcir.optimize(net), []
    for start, length in ((0, 7), (7, 5), (12, 4), *itertools.product((0,), (9, 12, 17, 23, 31))):
        x = torch.randn(1, length, 16)
        torch.testing.assert_close(fast(x, Counted(start)), net(x, Counted(start)))
        made.append(len(fast.dcir.explain().graphs))
    assert made[-1] == made[3] <= 4, made


def said(whole, rows):
    """Rows of all texts, and of how many each is one: nothing is asked of the quotient but to be that."""
    batch, length = rows.shape
    whole = whole.view(batch, -1, 4)
    torch._check(whole.shape[1] == length)
    return rows.exp().unsqueeze(-1) * whole.relu() + whole.flatten(0, 1)[:1]


def viewed(whole, rows):
    return rows.unsqueeze(-1).exp() * whole.relu().view(*rows.shape, 4)


@pytest.mark.parametrize(
    ("fn", "sizes"),
    [
        (said, [(12, 31), (14, 57), (20, 33), (13, 50), (40, 64), (17, 40)]),
        (viewed, [(12, 31), (14, 57), (20, 33), (13, 50), (1, 7), (3, 1)]),
        (viewed, [(2, 3, 5), (3, 7, 4), (4, 6, 9), (8, 3, 2)]),
    ],
)
@torch.no_grad()
def test_rows_that_are_a_product(fn, sizes):
    """The rows of all texts lie behind each other: one program after the first sizes."""
    torch._dynamo.reset()
    fast = dcir.optimize(fn)
    for shape in sizes:
        given = torch.randn(math.prod(shape), 4), torch.randn(shape)
        check_close(fast(*given), fn(*given), fn(*(x.double() for x in given)))
    assert len(fast.dcir.explain().graphs) == 2
