"""Graphs that write inputs are right however these lie in each other, whatever the calls before were like, and write nothing else."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import dcir
from dcir.errors import NotCompiledWarning, Unsupported
from dcir.frontends.torch.overlapping_inputs import overlap


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, x, y):
        x.mul_(2)
        y.add_(1)
        return self.inner(x), y * 3


class Reads(nn.Module):
    def forward(self, x, y):
        return (x * 2).softmax(-1) + y


def apart(b):
    return torch.randn(b, 5, 12), torch.randn(b, 5, 12)


def shifted(b):
    """Each row of y but the last is a row of x."""
    t = torch.randn(b + 1, 5, 12)
    return t[1:], t[:-1]


def halves(b):
    """One piece of memory, of which no two share an element."""
    t = torch.randn(2 * b, 5, 12)
    return t[:b], t[b:]


def of_numpy(b):
    """As ``shifted``, with a storage for each, as only addresses tell."""
    a = torch.randn(b + 1, 5, 12).numpy()
    return torch.from_numpy(a[1:]), torch.from_numpy(a[:-1])


ORDERS = {
    "apart first": [
        (apart, 3),
        (apart, 4),
        (apart, 5),
        (shifted, 5),
        (shifted, 4),
        (halves, 6),
        (apart, 7),
        (shifted, 3),
    ],
    "overlapping first": [(shifted, 3), (apart, 3), (shifted, 4), (apart, 5), (halves, 3), (shifted, 3), (apart, 6)],
    "two storages": [(of_numpy, 3), (apart, 3), (of_numpy, 3), (apart, 4), (of_numpy, 4), (of_numpy, 5), (apart, 6)],
    "two storages later": [(apart, 3), (of_numpy, 3), (apart, 3), (of_numpy, 4)],
    "of one size": [(apart, 3), (shifted, 3), (apart, 3), (halves, 3), (shifted, 3)],
}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("order", ORDERS)
@torch.no_grad()
def test_writes(order, dynamic):
    torch.manual_seed(0)
    net = Writes()
    fast, eager = dcir.optimize(net, dynamic=dynamic), copy.deepcopy(net)
    for i, (make, b) in enumerate(ORDERS[order]):
        seen = []
        for run in (fast, eager):
            torch.manual_seed(i)
            args = make(b)
            seen.append((*run(*args), *args))
        for got, want in zip(*seen, strict=True):
            torch.testing.assert_close(got, want, msg=lambda m, i=i: f"call {i}: {m}")


@torch.no_grad()
def test_halves_of_one_piece_of_memory_are_nothing_new():
    fast = dcir.optimize(Writes())
    for make, b in ((apart, 3), (apart, 4), (halves, 4), (halves, 6)):
        fast(*make(b))
    assert len(fast.dcir.explain().graphs) == 2


@torch.no_grad()
def test_what_only_reads_does_not_ask():
    fast = dcir.optimize(Reads(), strict=True)  # which forbids to run a call in torch
    for make, b in ((apart, 3), (apart, 4), (shifted, 4), (shifted, 6), (halves, 5)):
        args = make(b)
        torch.testing.assert_close(fast(*args), Reads()(*args))


class Views(nn.Module):
    """AOTAutograd refuses views of inputs that lie in each other."""

    def forward(self, x, y):
        x[0] *= 2
        return y + x, x.view(-1)


@pytest.mark.parametrize("order", ORDERS)
def test_views_and_gradients(order):
    fast = dcir.optimize(Views())
    for i, (make, b) in enumerate(ORDERS[order]):
        seen = []
        for run in (fast, Views()):
            torch.manual_seed(i)
            args = make(b)
            w = torch.randn(12, requires_grad=True)
            total, view = run(args[0], args[1] * 1 if make is apart else args[1])
            assert view.data_ptr() == args[0].data_ptr()
            (total * w).sum().backward()
            seen.append((total, view, w.grad, *args))
        for got, want in zip(*seen, strict=True):
            torch.testing.assert_close(got, want)


@torch.no_grad()
def test_it_is_told_and_may_be_refused():
    fast = dcir.optimize(Writes())
    with pytest.warns(NotCompiledWarning, match="share memory"):
        fast(*shifted(3))
    fast = dcir.optimize(Writes(), strict=True)
    fast(*apart(3))
    with pytest.raises(Unsupported, match="share memory"):
        fast(*shifted(3))


def test_overlap():
    t = torch.zeros(4, 6)
    assert not overlap([t, None, 3, torch.zeros(4, 6), torch.zeros(0), t[:0]])
    assert not overlap([t[2:], t[:2], t[2:2]])
    assert overlap([t[1:3], torch.zeros(2), t[2:]])
    assert overlap([t, t[:, 1]]) and overlap([t[1], t])


def test_overlap_of_storages():
    a = np.zeros((4, 6), np.float32)
    whole, rows, column = torch.from_numpy(a), torch.from_numpy(a[2:]), torch.from_numpy(a[:, 1])
    assert overlap([whole, rows]) and overlap([rows, column]) and overlap([column, rows, torch.zeros(2)])
    assert not overlap([torch.from_numpy(a[:2]), rows, torch.from_numpy(a[2:2])])
    assert not overlap([column[:2], rows, torch.zeros(3, device="meta"), torch.zeros(4, device="meta")])
    assert overlap([whole.t(), rows.t()]) and not overlap([whole[0, 0].expand(6), whole[0, 1:]])


def written_by_place(x):
    x.as_strided((2,), (1,), 5).mul_(3)
    return x + 1


BY_PLACE = {
    "method": lambda x: x.as_strided((4,), (1,), 4) * 2,
    "function": lambda x: torch.as_strided(x, size=(2, 2), stride=(2, 1), storage_offset=4).exp() + x[:2],
    "view": lambda x: x[1:].as_strided((3,), (1,), 5) * 2,
    "copy": lambda x: torch.as_strided_copy(x, (3,), (1,), 5) * 2,
    "in a branch": lambda x: torch.cond(
        x.sum() > -1, lambda x: x.as_strided((3,), (1,), 5) * 2, lambda x: x[:3] * 3, (x,)
    ),
    "written": written_by_place,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", BY_PLACE)
@torch.no_grad()
def test_places_in_storage(name, dynamic):
    """An offset of ``as_strided`` counts from where the storage begins, which is another place of inputs in other calls."""
    torch._dynamo.reset()
    for starts in ((0, 4, 0, 2), (4, 0, 8), (3, 3)):
        fast = dcir.optimize(BY_PLACE[name], dynamic=dynamic)
        for start in starts:
            x, y = (torch.arange(40.0)[start : start + 8] for _ in range(2))
            torch.testing.assert_close(fast(x), BY_PLACE[name](y), msg=lambda m, at=start: f"{at}: {m}")
            torch.testing.assert_close(x, y)


@torch.no_grad()
def test_places_in_storage_are_told():
    fn = BY_PLACE["method"]
    fast = dcir.optimize(fn, strict=True)
    fast(torch.arange(8.0))
    assert len(fast.dcir.explain().graphs) == 1
    with pytest.raises(Unsupported, match="storage_offset"):
        fast(torch.arange(9.0)[1:])
    made = dcir.optimize(lambda x: (x * 2)[1:].as_strided((3,), (1,), 2) + x[1:4].as_strided((3,), (1,)), strict=True)
    for start in (0, 3):  # nothing of an input's storage is asked for
        x = torch.arange(12.0)[start : start + 8]
        torch.testing.assert_close(made(x), x[2:5] * 2 + x[1:4])
