"""One program for all sizes: right at ends, tails and beyond its bounds; with new parameters, in threads; what cannot move is told."""

import copy
import ctypes
import math
import threading

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import dcir
from dcir.driver import moving_program
from dcir.errors import IndexOutOfRange, RecompileWarning, Unsupported
from dcir.frontends.torch.shapes.moving_sizes import MovingSizes
from tests.harness import check_close
from tests.moving import Decoder, Encoder

pytestmark = pytest.mark.in_turn(3)

SIZES = [(2, 2), (3, 17), (4, 33), (7, 50), (5, 64), (2, 127), (16, 9), (3, 3), (2, 15)]


def programs(fast):
    """Graphs that were compiled for all sizes, and the others."""
    graphs = fast.dcir.explain().graphs
    return [g for g in graphs if g.bounds], [g for g in graphs if not g.bounds]


def encoder(width=24):
    torch.manual_seed(0)
    return Encoder(width).eval()


def text(batch, length):
    ids, mask = torch.randint(0, 50, (batch, length)), torch.ones(batch, length)
    mask[0, length // 2 + 1 :] = 0
    return ids, mask


def check(fast, net, *args):
    with torch.no_grad():
        results = [f(*args) for f in (fast, net, reference(net))]
    for got, want, exact in zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True):
        check_close(got, want, exact)


def reference(net):
    """The network in float64."""
    wide = copy.deepcopy(net).double()
    return lambda *args: wide(*(a.double() if a.is_floating_point() else a for a in args))


def test_a_table_of_positions_serves_up_to_its_end():
    """Samples are mostly primes; the last lengths that a table has are between two of those."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.line = nn.Embedding(60, 24), nn.Linear(24, 24)

        def forward(self, x):
            return torch.relu(self.line(x + self.table.weight[: x.shape[1]])) - x

    torch.manual_seed(0)
    net = Positions().eval()
    fast = dcir.optimize(net)
    for length in (7, 31, 54, 55, 57, 59, 58, 56):
        check(fast, net, torch.randn(2, length, 24))
    moving, constant = programs(fast)
    assert len(moving) == len(constant) == 1 and moving[0].bounds[1][2] == 59, [g.bounds for g in moving]


def test_of_many_sizes_those_that_stay_are_constants():
    """Five are symbols, two of which move: the first call has a program of its own, all others one together."""

    class Five(nn.Module):
        def forward(self, x, y):
            return (x.softmax(1).sum(2)[:, :, None] + x * 2).sum(), torch.tanh(y) @ y.mT

    torch.manual_seed(0)
    net = Five().eval()
    fast = dcir.optimize(net, dynamic=True)
    for n in (5, 9, 14, 33, 21):
        check(fast, net, torch.randn(3, n, 6), torch.randn(n + 1, 7))
    ((moving,), constant) = programs(fast)
    assert len(constant) == 1
    assert sorted(low == high for _, low, high in moving.bounds) == [False, False, True, True, True], moving.bounds


@torch.no_grad()
def test_where_too_many_move_calls_do_not_look_for_a_program_again(monkeypatch):
    """Beyond the limit PyTorch runs them, and a search would cost more than the network."""
    looked = []
    search = MovingSizes._new
    monkeypatch.setattr(MovingSizes, "_new", lambda self, *more: (looked.append(more), search(self, *more))[1])

    def spread(xs):
        return torch.stack([torch.tanh(x).sum() for x in xs])

    fast = dcir.optimize(spread, shape_limit=3)
    with pytest.warns(RecompileWarning, match="which is the limit"):
        for k in range(14):
            xs = [torch.randn(5 + (7 * i + 3 * k * (i + 1)) % 31, 4) for i in range(5)]
            check_close(fast(xs), spread(xs), spread([x.double() for x in xs]))
    moving, constant = programs(fast)
    assert not moving and len(constant) <= 4
    assert 1 < len(looked) <= 6, len(looked)


def test_text_of_any_size():
    net = encoder()
    fast = dcir.optimize(net)
    for size in SIZES:
        check(fast, net, *text(*size))
    moving, constant = programs(fast)
    assert len(moving) == len(constant) == 1


def test_at_once_with_dynamic():
    net = encoder()
    fast = dcir.optimize(net, dynamic=True)
    for size in SIZES[1:5]:
        check(fast, net, *text(*size))
    moving, constant = programs(fast)
    assert len(moving) == 1 and not constant


def test_wider_bounds():
    """Sizes beyond those of a program get another one, which reaches further."""
    net = encoder()
    fast = dcir.optimize(net)
    for size in ((2, 5), (3, 7), (2, 400), (4, 500), (3, 9)):
        check(fast, net, *text(*size))
    moving, constant = programs(fast)
    assert len(moving) == 2 and len(constant) == 1


def test_new_parameters():
    """What is prepared from parameters is prepared once for all sizes, and follows them."""
    net = encoder()
    fast = dcir.optimize(net)
    for factor in (1.0, 0.5, 2.0):
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(factor)
        for size in SIZES[:4]:
            check(fast, net, *text(*size))


class TableOfPositions(nn.Module):
    """As in ViT: a table of positions of another length for every call, and a row in front of it that is as it is."""

    def __init__(self):
        super().__init__()
        self.first, self.table = nn.Parameter(torch.randn(1, 1, 12)), nn.Parameter(torch.randn(1, 12, 40))

    def forward(self, x):
        table = nn.functional.interpolate(self.table, size=x.shape[1] - 1, mode="linear")
        return (x + torch.cat((self.first, table.transpose(1, 2)), 1)).tanh()


def test_what_a_call_prepares_is_prepared_as_a_whole():
    """Scratch memory is another one in every call, as other programs use it in between."""
    torch.manual_seed(0)
    net = TableOfPositions().eval()
    # Of parameters that the reference copies all is prepared anew.
    fast = dcir.optimize(copy.deepcopy(net), dynamic=True)
    for size in SIZES[1:5]:
        check(fast, net, torch.randn(*size, 12))
        for program in fast.dcir.session.programs:
            block = program.arenas.take(program.info.arena_bytes)
            ctypes.memset(block.address, 255, block.nbytes)
            program.arenas.give(block)
    moving, constant = programs(fast)
    assert len(moving) == 1 and not constant


def test_few_programs_are_kept(monkeypatch):
    monkeypatch.setattr(moving_program, "MOST_KEPT", 2)
    net = encoder()
    fast = dcir.optimize(net)
    for size in (*SIZES, *SIZES):
        check(fast, net, *text(*size))


def test_threads():
    net = encoder()
    fast, errors = dcir.optimize(net), []
    for size in SIZES[:3]:
        check(fast, net, *text(*size))

    def work(sizes):
        try:
            for _ in range(10):
                for size in sizes:
                    args = text(*size)
                    with torch.no_grad():
                        torch.testing.assert_close(fast(*args), net(*args), rtol=1e-4, atol=1e-4)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(SIZES[i::2],)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors


def test_bad_index():
    fast = dcir.optimize(encoder())
    with torch.no_grad():
        for size in SIZES[:3]:
            ids, mask = text(*size)
            fast(ids, mask)
        ids[1, 2] = 50
        with pytest.raises(IndexOutOfRange):
            fast(ids, mask)


def test_decoder_of_any_length():
    torch.manual_seed(0)
    net = Decoder().eval()
    fast = dcir.optimize(net)
    for length in (5, 9, 31, 64, 2, 100):
        check(fast, net, torch.randint(0, 50, (2, length)))


def test_what_cannot_move_is_told():
    """The larger one of two sizes is no polynomial of them."""

    def cut(x):
        return torch.cumsum(x, 1)[:, : torch.sym_max(x.shape[1] - 9, 3)]

    fast = dcir.optimize(cut)
    with torch.no_grad():
        for height, width in ((20, 24), (22, 30), (18, 25)):
            x = torch.randn(height, width)
            torch.testing.assert_close(fast(x), cut(x))
    moving, constant = programs(fast)
    assert not moving
    assert any("each combination is compiled for itself" in g.remark for g in constant)


def test_options_of_constant_sizes():
    """What needs constant sizes is compiled for each."""
    net = encoder()
    fast = dcir.optimize(net, verify="passes")
    for size in SIZES[:3]:
        check(fast, net, *text(*size))
    assert not programs(fast)[0]


def test_what_is_told():
    """Bounds by the names of inputs, figures of the upper ends, and what runs through torch."""
    net = encoder()
    fast = dcir.optimize(net)
    for size in SIZES[1:4]:
        check(fast, net, *text(*size))
    ((graph, *_), _) = programs(fast)
    assert [name for name, _, _ in graph.bounds] == ["ids[0]", "ids[1]"]
    assert graph.bytes_before > graph.bytes_moved > 0 and sum(f for f, _ in graph.work) > 1e6 and graph.passes
    told = str(fast.dcir.explain())
    assert ", for all sizes: ids[0] 1 to 61, ids[1] 1 to " in told and "at the upper ends: traffic " in told


def through_torch(x, table):
    """Of the table, which does not move, torch computes a determinant."""
    return x.softmax(-1) + torch.linalg.det(table)


def test_operators_through_torch_are_told():
    table = torch.randn(3, 3)
    fast, strict = dcir.optimize(through_torch), dcir.optimize(through_torch, strict=True)
    with torch.no_grad():
        for n in (4, 7, 9):
            x = torch.randn(2, n, 8)
            torch.testing.assert_close(fast(x, table), through_torch(x, table))
            with pytest.raises(Unsupported):
                strict(x, table)
    assert len(programs(fast)[0]) == 1
    assert all(g.fallbacks for g in fast.dcir.explain().graphs)


def test_trace_that_asks_for_a_size():
    """A trace with symbols has no say in when Dynamo compiles again."""

    def grown(x):
        return x * 2 if x.shape[1] % 2 else x.view(-1, 2, x.shape[1] // 2).sum(1)

    fast = dcir.optimize(grown)
    with torch.no_grad():
        for n in (20, 24, 31, 36, 17):
            x = torch.randn(3, n)
            torch.testing.assert_close(fast(x), grown(x))


def test_trace_that_asks_for_sizes():
    """What only a trace with symbols asks for is asked for at every call."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2)).eval()
    fast = dcir.optimize(net)
    for side in (20, 24, 31, 4, 5, 6, 40):
        check(fast, net, torch.randn(2, 3, side, side + 1))
    assert programs(fast)[0]


def test_dynamo_does_not_hear_of_them():
    """Else it would compile the graph again for sizes that its own trace is for."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2)).eval()
    torch._dynamo.reset()
    counters.clear()
    fast = torch.compile(net, backend="dcir")
    for side in (20, 24, 31, 4, 5, 40):
        check(fast, net, torch.randn(2, 3, side, side + 1))
    assert counters["stats"]["unique_graphs"] == 2


class Positions(nn.Module):
    """A table whose end no range of a size says: a slice asks whether n is min(n, 64)."""

    def __init__(self):
        super().__init__()
        self.table, self.inner = nn.Parameter(torch.randn(64, 16)), nn.Linear(16, 16)

    def forward(self, x):
        return self.inner(x + self.table[: x.shape[1]])


@torch.no_grad()
def test_bounds_end_where_a_table_does():
    torch.manual_seed(0)
    net = Positions().eval()
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    for batch, length in ((2, 11), (3, 17), (5, 40), (2, 58), (4, 64)):
        x = torch.randn(batch, length, 16)
        check_close(fast(x), net(x), wide(x.double()))
    (moving,), _ = programs(fast)
    assert [high for _, _, high in moving.bounds][1] <= 64


def at_sizes(fn, sizes, rows=4):
    """A function's program for all lengths, which is right at all of these."""
    fast = dcir.optimize(fn)
    with torch.no_grad():
        for n in sizes:
            x = torch.randn(rows, n)
            torch.testing.assert_close(fast(x), fn(x), rtol=1e-4, atol=1e-5, equal_nan=True)
    return fast


FEW = {
    "quotient": lambda x: x * 2 + 10 // x.shape[1],
    "rest": lambda x: x * 2 + 10 % x.shape[1],
    "rounded up": lambda x: x * math.ceil(5 / x.shape[1]),
    "repeated": lambda x: x.repeat(1, -(-4 // x.shape[1])) * 2,
    "larger than its size": lambda x: x * 2 + (x.shape[1] + 7) // x.shape[1],
}


@pytest.mark.parametrize("name", FEW)
def test_numbers_that_are_others_at_a_few_sizes(name):
    """10 // n is 0 for all n but ten."""
    fast = at_sizes(FEW[name], (40, 57, 133, 30, 11, 9, 7, 5, 4, 3, 2, 1))
    assert len(programs(fast)[0]) == 1


def test_sizes_in_branches():
    def fn(x):
        return torch.cond(x.sum() > -1e9, lambda x: x * min(x.shape[1], 4), lambda x: x - 1, (x,))

    at_sizes(fn, (12, 17, 33, 5, 4, 3, 2, 1))


def test_slices_in_branches():
    def fn(x):
        return torch.cond(x.sum() > -1e9, lambda x: x[:, : x.shape[1] - 2].sum(1), lambda x: x.sum(1) - 1, (x,))

    at_sizes(fn, (12, 17, 9, 3))


FLAT = {
    "element": lambda x: (x * torch.arange(1.0, 5.0)[:, None]).flatten()[3] * 2,
    "window": lambda x: (x * torch.arange(1.0, 5.0)[:, None]).flatten()[2:5] * 3,
    "rows": lambda x: (x + torch.arange(4.0)[:, None]).reshape(x.shape[1], 4)[0] * 2,
    "counted": lambda x: (x + torch.arange(x.shape[1])).flatten()[3] * 2,
}


@pytest.mark.parametrize("name", FLAT)
def test_what_lies_in_the_first_row_but_of_short_rows(name):
    """The fourth element is the first row's, unless rows are shorter: those sizes are for other programs."""
    (moving, *_), _ = programs(at_sizes(FLAT[name], (12, 17, 33, 9, 6, 5, 4, 3, 2, 1)))
    assert {n: low for n, low, _ in moving.bounds}["x[1]"] in (4, 5)


def test_spread_with_more_taken_off_than_there_is():
    assert len(programs(at_sizes(lambda x: x.var(1, correction=3) + 1, (12, 17, 33, 4, 3, 2, 1)))[0]) == 1


def test_a_size_over_another_one():
    """8 // 120 is 0, as of all pairs that calls begin with; 40 // 7 is not."""

    def fn(x):
        rows, columns = x.shape
        return x[:, ::2].sum(1) + rows // columns * 2 + rows % columns

    fast = dcir.optimize(fn)
    with torch.no_grad():
        for size in (
            (4, 120),
            (6, 171),
            (9, 333),
            (5, 90),
            (40, 3),
            (40, 7),
            (20, 19),
            (8, 8),
            (2, 3),
            (33, 32),
            (3, 50),
        ):
            x = torch.randn(size)
            torch.testing.assert_close(fast(x), fn(x), rtol=1e-4, atol=1e-5)
    assert len(programs(fast)[0]) == 1
