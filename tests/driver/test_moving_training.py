"""Training at any size: one forward and one backward for all of them, gradients against float64; what cannot move is compiled for each."""

import copy
import itertools

import pytest
import torch
from torch import nn

import dcir
from tests.driver.test_moving_program import encoder, programs, text
from tests.harness import check_close
from tests.moving import Decoder

pytestmark = pytest.mark.in_turn(3)

SIZES = [(2, 5), (3, 17), (4, 33), (1, 50), (7, 20), (5, 64), (3, 3), (16, 9), (2, 127)]


def gradients(net, run, args):
    """Of every parameter, of a sum of squares of the results."""
    net.zero_grad()
    results = run(*args)
    results = results if isinstance(results, tuple) else (results,)
    sum(r.pow(2).mean() for r in results).backward()
    return [*(r.detach() for r in results), *(p.grad for p in net.parameters())]


def check(fast, net, wide, *args):
    """Results and gradients of the compiled network beside those of eager PyTorch, both against float64."""
    got = gradients(net, fast, args)
    want = gradients(twin := copy.deepcopy(net), twin, args)
    exact = gradients(wide, wide, [a.double() if a.is_floating_point() else a for a in args])
    for g, w, e in zip(got, want, exact, strict=True):
        check_close(g, w, e)


@pytest.mark.parametrize("width", [24, 96])
def test_text_of_any_size(width):
    net = encoder(width).train()
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    for size in SIZES:
        check(fast, net, wide, *text(*size))
    moving, constant = programs(fast)
    assert sorted(g.kind for g in moving) == sorted(g.kind for g in constant) == ["backward", "forward"]


def test_decoder():
    torch.manual_seed(0)
    net = Decoder(64).train()
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    for size in SIZES[:6]:
        check(fast, net, wide, torch.randint(0, 50, size))


def test_memory_does_not_grow_with_the_number_of_sizes():
    """Gradients and what is saved lie in the same memory at all sizes, unless somebody holds it."""
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    fast = dcir.optimize(net)
    addresses = set()
    for batch in (600, 700, 650, 601, 699, 630, 615, 603, 680, 690):
        gradients(net, fast, [torch.randn(batch, 512)])
        addresses.add(net[0].weight.grad.data_ptr())
    # The first call's program has two buffers of its own, and so has the one for all sizes.
    assert len(addresses) <= 4


def test_pooling_of_graphs():
    """The gradient of a scatter asks for as many indices as rows, where the forward asks for no more than enough."""

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.nodes, self.graphs = nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x, edges, graph):
            h = self.nodes(x)
            h = torch.relu(torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]))
            return self.graphs(h.new_zeros(4, 8).scatter_add_(0, graph[:, None].expand(-1, 8), h))

    torch.manual_seed(0)
    net = Pooled().train()
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    for nodes in (20, 21, 33, 8, 40):
        edges, graph = torch.randint(0, nodes, (2, 2 * nodes + 3)), torch.randint(0, 4, (nodes,))
        check(fast, net, wide, torch.randn(nodes, 5), edges, graph)
    moving, constant = programs(fast)
    assert sorted(g.kind for g in moving) == sorted(g.kind for g in constant) == ["backward", "forward"]
    # Without gradients there may be fewer indices than rows.
    x, edges, graph = torch.randn(20, 5), torch.randint(0, 20, (2, 43)), torch.randint(0, 4, (19,))
    with torch.no_grad():
        check_close(fast(x, edges, graph), net(x, edges, graph), wide(x.double(), edges, graph))


def test_smaller_last_batch():
    """Nothing but the batch changes: it is no reason to compile again."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10))
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    for batch in (32, 32, 7, 32, 19, 1, 32):
        check(fast, net, wide, torch.randn(batch, 40))
    moving, constant = programs(fast)
    assert len(moving) == len(constant) == 2


def test_steps_of_an_optimiser():
    """Parameters that change between the calls."""
    net = encoder().train()
    twin = copy.deepcopy(net).double()
    fast = dcir.optimize(net)
    fast_steps, steps = (torch.optim.SGD(n.parameters(), 0.05) for n in (net, twin))
    torch.manual_seed(1)
    for size in SIZES[:6]:
        ids, mask = text(*size)
        for n, f, m, optimiser in ((net, fast, mask, fast_steps), (twin, twin, mask.double(), steps)):
            n.zero_grad()
            f(ids, m)[1].pow(2).mean().backward()
            optimiser.step()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q.float(), rtol=1e-4, atol=1e-5)


def test_sizes_in_turn_before_their_backwards():
    """Several forwards run before the first backward: each keeps what its own backward reads."""
    net = encoder().train()
    fast = dcir.optimize(net)
    sizes = SIZES[1:5]
    for size in sizes:
        fast(*text(*size))[1].sum().backward()
    inputs = [text(*size) for size in sizes]
    for order in (range(4), reversed(range(4))):
        net.zero_grad()
        losses = [fast(*args)[1].pow(2).mean() for args in inputs]
        for i in order:
            losses[i].backward(retain_graph=True)
        losses[0].backward()
        got = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        for i in (*range(4), 0):
            net(*inputs[i])[1].pow(2).mean().backward()
        for g, p in zip(got, net.parameters(), strict=True):
            torch.testing.assert_close(g, p.grad, rtol=1e-4, atol=1e-6)


class Deviation(nn.Module):
    """How far all numbers of a table lie apart, which of a single one is not a number."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return (x * self.factor).std()


def test_a_divisor_that_is_zero_at_the_least_sizes():
    """A deviation's gradient is divided by one less than the number of its elements."""
    torch.manual_seed(0)
    net = Deviation()
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    for shape in [(4, 5), (6, 5), (7, 9), (33, 70), (1, 2), (1, 1)]:
        check(fast, net, wide, torch.randn(shape))
    moving, _ = programs(fast)
    assert {g.kind for g in moving} == {"backward", "forward"}


def test_gradients_of_inputs_and_inference_between():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    for n in (3, 5, 9, 17):
        x = torch.randn(n, 6, 8, requires_grad=True)
        y = x.detach().double().requires_grad_()
        fast(x).pow(2).sum().backward()
        wide(y).pow(2).sum().backward()
        torch.testing.assert_close(x.grad, y.grad.float(), rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), wide(y).float(), rtol=1e-4, atol=1e-5)


class _Several(nn.Module):
    """Of five inputs of one length the backward reads three."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, xs):
        means = sum(x.mean() for x in xs[:2])
        return sum(torch.tanh(x @ self.weight).sum() for x in xs[2:]) * means


def test_more_sizes_than_move_by_themselves():
    """Those that are equal in a call move together; a call where they are not has a program of its own."""
    torch.manual_seed(0)
    net = _Several()
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    for lengths in ((5,) * 5, (9,) * 5, (12,) * 5, (17,) * 5, (9, 9, 9, 9, 4), (12, 12, 12, 12, 7)):
        xs = [torch.randn(n, 8) for n in lengths]
        for run, n, t in ((fast, net, torch.float32), (wide, wide, torch.float64)):
            n.zero_grad()
            run([x.to(t) for x in xs]).backward()
        torch.testing.assert_close(net.weight.grad, wide.weight.grad.float(), rtol=1e-4, atol=1e-4)
    moving, _ = programs(fast)
    assert len(moving) == 4


def test_dropout_of_any_size():
    """What is dropped is drawn anew in each call, and its gradient is of what was kept."""
    net = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.5), nn.Linear(64, 8)).train()
    fast = dcir.optimize(net)
    for n in (4, 9, 21, 33):
        x = torch.randn(n, 5, 32)
        torch.manual_seed(3)
        net.zero_grad()
        fast(x).sum().backward()
        got = [p.grad.clone() for p in net.parameters()]
        torch.manual_seed(3)
        net.zero_grad()
        net(x).sum().backward()
        for g, p in zip(got, net.parameters(), strict=True):
            torch.testing.assert_close(g, p.grad, rtol=1e-4, atol=1e-5)


class Diagonal(nn.Module):
    """A diagonal is as long as the shorter side, which is no polynomial of both."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x):
        return torch.tanh(self.linear(x)).diagonal(0, 0, 1) + 1


def test_what_needs_its_sizes_is_compiled_for_each():
    """Where there is no backward for all sizes, there is no forward either."""
    torch.manual_seed(0)
    net = Diagonal().train()
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    for sides in itertools.product((12, 15), (7, 30)):
        check(fast, net, wide, torch.randn(*sides, 6))
    moving, constant = programs(fast)
    assert not moving and len(constant) == 8


def test_forwards_before_their_backwards():
    """Values that are kept, results and gradients of several sizes at once, each more than a page: nobody's memory is lent twice."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.LayerNorm(256))
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    inputs = [torch.randn(2, n, 256) for n in (700, 1100, 900, 1300, 1024)]
    exact = [gradients(wide, wide, [x.double()]) for x in inputs]
    eager = [gradients(twin := copy.deepcopy(net), twin, [x]) for x in inputs]
    results = [fast(x) for x in inputs]
    for again in (False, True):
        found = []
        for result in reversed(results):
            net.zero_grad()
            result.pow(2).mean().backward(retain_graph=not again)
            found.append([result.detach(), *(p.grad for p in net.parameters())])
        for got, want, right in zip(reversed(found), eager, exact, strict=True):
            for g, w, e in zip(got, want, right, strict=True):
                check_close(g, w, e)


@torch.no_grad()
def test_memory_of_a_result_is_its_holder_s():
    """Whoever holds it: an array, a view, the storage itself; and whatever was done to it."""
    fast = dcir.optimize(nn.Sequential(nn.Linear(256, 256), nn.Tanh()))
    inputs = {n: torch.randn(n, 2, 256) for n in (700, 1100, 900)}
    for x in inputs.values():
        fast(x)
    x = inputs[900]
    want = fast(x).clone()
    holders = {
        "array": lambda y: y.numpy(),
        "view": lambda y: y[1:].transpose(0, 1),
        "storage": lambda y: y.untyped_storage(),
        "capsule": lambda y: torch.utils.dlpack.to_dlpack(y),
    }
    held = {name: hold(fast(x)) for name, hold in holders.items()}
    for spoil in (
        lambda y: y.zero_(),
        lambda y: y.resize_(5000, 256).zero_(),
        lambda y: y.untyped_storage().resize_(0),
    ):
        for z in (*inputs.values(), x):
            spoil(fast(z))
        assert torch.equal(fast(x), want)
    assert torch.equal(torch.from_numpy(held["array"]), want)
    assert torch.equal(held["view"], want[1:].transpose(0, 1))
    assert torch.equal(torch.empty(0).set_(held["storage"], 0, want.shape), want)
    assert torch.equal(torch.utils.dlpack.from_dlpack(held["capsule"]), want)
