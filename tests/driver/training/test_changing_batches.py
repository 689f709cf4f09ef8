"""Training steps over batches of changing sizes are one program, which follows torch in float64, state and buffers included."""

import copy

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import IndexOutOfRange
from tests.moving import Encoder

pytestmark = pytest.mark.in_turn(6)


class Classifier(nn.Module):
    """Batch norm, whose buffers count every row, and dropout-free layers around it."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(20, 48), nn.BatchNorm1d(48), nn.Linear(48, 7)

    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x))))


class Words(nn.Module):
    """Scores of the next word; nothing in it is of float32."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = Encoder(), nn.Linear(24, 50)

    def forward(self, ids):
        return self.head(self.inner(ids, self.head.weight.new_ones(ids.shape))[0])


class Pair:
    """A compiled step and an eager twin in float64: only formulas can differ."""

    def __init__(self, net, loss, make, **options):
        torch.manual_seed(0)
        self.net, self.loss = net.double(), loss
        self.twin = copy.deepcopy(self.net)
        self.ours, self.theirs = make(self.net.parameters()), make(self.twin.parameters())
        self.clip = options.get("clip_grad_norm")
        self.step = dcir.train_step(self.net, loss, self.ours, **options)

    def check(self, *batch):
        got = self.step(*batch)
        want = self.loss(self.twin(*batch[:-1]), batch[-1])
        want.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.twin.parameters(), self.clip)
        self.theirs.step()
        self.theirs.zero_grad()
        # Norms to clip by are sums in float32.
        near = {"rtol": 1e-5, "atol": 1e-7} if self.clip else {"rtol": 1e-9, "atol": 1e-11}
        torch.testing.assert_close(got, want.detach(), **near)
        for a, b in zip(self.net.state_dict().values(), self.twin.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, **near)

    def programs(self):
        """Those for all sizes, and those for one combination."""
        graphs = self.step.dcir.session.graphs
        return sum(bool(g.bounds) for g in graphs), sum(not g.bounds for g in graphs)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1, eps=1e-4)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def rows(n):
    return torch.randn(n, 20, dtype=torch.float64), torch.randint(0, 7, (n,))


def text_loss(scores, ids):
    return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.parametrize("make", [adamw, sgd])
def test_last_batch(make):
    pair = Pair(Classifier(), nn.CrossEntropyLoss(), make)
    for n in (32, 32, 12, 32, 7, 90, 2, 12):
        pair.check(*rows(n))
    assert pair.programs() == (1, 1)


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 0.3}])
def test_text_of_any_size(options):
    pair = Pair(Words(), text_loss, adamw, **options)
    for b, n in ((2, 9), (3, 17), (5, 6), (2, 40), (7, 7), (3, 17)):
        ids = torch.randint(0, 50, (b, n))
        pair.check(ids, ids)
    assert pair.programs() == (1, 1)


def test_sizes_that_are_equal_by_chance():
    """In the batch that is traced; and a size that has been constant for some batches and then moves."""

    def loss(found, target):
        return (found[1] - target).square().mean()

    pair = Pair(Encoder(), loss, sgd)
    for b, n in ((4, 9), (12, 12), (3, 20), (8, 8), (2, 31)):
        ids, mask = torch.randint(0, 50, (b, n)), torch.ones(b, n, dtype=torch.float64)
        pair.check(ids, mask, torch.randn(b, 24, dtype=torch.float64))
    assert pair.programs() == (1, 1)
    pair = Pair(Words(), text_loss, sgd)
    for b, n in ((4, 8), (4, 12), (4, 9), (8, 8), (9, 13)):
        ids = torch.randint(0, 50, (b, n))
        pair.check(ids, ids)
    assert pair.programs() == (2, 1)


class TwoLengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(8, 8)

    def forward(self, x, y):
        return self.w(x).mean(0) * self.w(y).sum(0)


def test_sizes_that_were_equal_so_far():
    """They are taken for one, until a batch comes where they are not: that is seen, and right."""
    pair = Pair(TwoLengths(), nn.MSELoss(), sgd)
    for a, b in ((5, 5), (9, 9), (11, 11), (9, 4), (11, 9), (30, 3), (6, 6)):
        x, y = (torch.randn(n, 8, dtype=torch.float64) / n for n in (a, b))
        pair.check(x, y, torch.randn(8, dtype=torch.float64))
    assert pair.programs() == (2, 1)


class Branches(nn.Module):
    """Which parameters get a gradient depends on a size."""

    def __init__(self):
        super().__init__()
        self.few, self.many = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.many(x).tanh() if x.shape[0] > 200 else self.few(x)


@pytest.mark.parametrize(("make", "constant"), [(adamw, 5), (plain, 3)])
def test_a_program_is_left_where_its_trace_does_not_hold(make, constant):
    """(Where parameters without a gradient turn out to have made less steps, a step is compiled twice.)"""
    pair = Pair(Branches(), nn.MSELoss(), make)
    for n in (30, 50, 300, 70, 250, 300, 4):
        pair.check(torch.randn(n, 8, dtype=torch.float64), torch.randn(n, 8, dtype=torch.float64))
    assert pair.programs() == (1, constant)
    assert any("200" in g.remark for g in pair.step.dcir.session.graphs)


def test_views_and_small_sizes():
    """A batch that lies otherwise, one of one row and one of none have programs of their own."""
    pair = Pair(nn.Linear(8, 3), nn.MSELoss(reduction="sum"), sgd)
    wide = torch.randn(40, 16, dtype=torch.float64) / 10
    for n in (6, 9, 1, 0, 13):
        pair.check(wide[:n, :8].contiguous(), wide[:n, 8:11].contiguous())
        pair.check(wide[:n, :8], wide[n : 2 * n, 3:6])
        pair.check(wide[20 : 20 + n, 8:].t().contiguous().t(), wide[1::2][:n, :3])
    moving, _ = pair.programs()
    assert moving == 1


def test_accumulation_and_modes():
    """Gradients of earlier batches are added at any size; eval mode has its own program for all sizes."""
    pair = Pair(Classifier(), nn.CrossEntropyLoss(), sgd)
    for n in (8, 12, 5, 9):
        x, y = rows(n + 1)
        for net in (pair.net, pair.twin):
            nn.functional.cross_entropy(net(x), y).backward()
        pair.check(*rows(n))
    assert pair.programs() == (1, 1)
    pair.net.eval()
    pair.twin.eval()
    for n in (8, 12, 5):
        pair.check(*rows(n))
    assert pair.programs() == (2, 2)


def test_images():
    pair = Pair(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
        nn.CrossEntropyLoss(),
        sgd,
    )
    for n in (4, 6, 3, 6):
        pair.check(torch.randn(n, 3, 8, 8, dtype=torch.float64), torch.randint(0, 4, (n,)))
    assert pair.programs() == (1, 1)


class Diagonal(nn.Module):
    """As long as the shorter side, which is no polynomial of both."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x):
        return torch.tanh(self.linear(x)).diagonal(0, 0, 1)


def test_what_needs_its_sizes_is_compiled_for_each():
    pair = Pair(Diagonal(), nn.MSELoss(), sgd)
    for n in (4, 12, 3, 12):
        pair.check(torch.randn(n, 7, 6, dtype=torch.float64), torch.randn(5, min(n, 7), dtype=torch.float64))
    assert pair.programs() == (0, 3)
    assert "each combination is compiled for itself" in pair.step.dcir.session.graphs[-1].remark


def test_constant_sizes_on_request():
    pair = Pair(nn.Linear(20, 7), nn.CrossEntropyLoss(), sgd, dynamic=False)
    for n in (4, 6, 3):
        pair.check(*rows(n))
    assert pair.programs() == (0, 3)


def test_a_wrong_target_is_found_at_any_size():
    pair = Pair(nn.Linear(20, 7), nn.CrossEntropyLoss(), sgd)
    for n in (4, 6):
        pair.check(*rows(n))
    x, y = rows(9)
    with pytest.raises(IndexOutOfRange):
        pair.step(x, y + 7)
