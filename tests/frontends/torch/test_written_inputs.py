"""Inputs that a graph writes: nothing is prepared from them, and they are written where they lie."""

import copy

import pytest
import torch
from torch import nn

import dcir
from dcir.runtime.preparation import Preparation


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


class Attends(nn.Module):
    """One step of decoding: writes a row of a cache that the caller holds, counts, and reads all of the cache."""

    def __init__(self):
        super().__init__()
        self.keys = nn.Linear(16, 16)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, cache, position):
        cache.index_copy_(1, position, self.keys(x))
        position.add_(1)
        self.calls.add_(1)
        return torch.softmax(x @ cache.transpose(1, 2), -1) @ cache


def follow(module, calls, *, of=lambda *tensors: tensors, mode=torch.no_grad, **options):
    """Run ``calls`` (functions of nothing to arguments) eagerly and compiled; same results, arguments and buffers after each."""
    plain, other = module, copy.deepcopy(module)
    fast = dcir.optimize(other, **options)
    given, same = None, None
    with mode():
        for make in calls:
            state = torch.get_rng_state()
            given = make(given)
            torch.set_rng_state(state)
            same = make(same)
            want, got = plain(*of(*given)), fast(*of(*same))
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(same, given, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(list(other.buffers()), list(plain.buffers()))
    return fast


def programs(fast):
    return [p.info for p in fast.dcir.session.programs]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_marked_cache_is_no_parameter(mode, monkeypatch):
    """transformers marks its static caches; weights were prepared anew for every token."""
    made = []
    before = Preparation._made
    monkeypatch.setattr(Preparation, "_made", lambda *a: made.append(1) or before(*a))

    def step(last):
        if last is None:
            cache = torch.randn(2, 24, 16)
            torch._dynamo.mark_static_address(cache)
            return torch.randn(2, 1, 16), cache, torch.tensor([3])
        return torch.randn(2, 1, 16), *last[1:]

    with mode():
        fast = follow(Attends().eval(), [step] * 4, mode=mode, level=4)
    (info,) = programs(fast)
    assert len(info.updates) == 3
    assert len(made) <= 1 + 3 * (mode is torch.inference_mode)


def test_marked_parameters_stay_parameters():
    torch._dynamo.mark_static_address((module := nn.Linear(40, 40)).weight)
    fast = follow(module, [lambda _: (torch.randn(2, 40),)] * 2)
    (info,) = programs(fast)
    assert info.static_inputs


def test_versions_are_counted():
    """Whoever saved the old contents is told, and what is prepared from a tensor elsewhere is prepared anew."""
    fast = dcir.optimize(lambda x: x.mul_(2).sum())
    x = torch.randn(4)
    with torch.no_grad():
        fast(x)
    assert x._version > 0
    hidden = torch.randn(3)
    dcir.optimize(lambda x: x.data.add_(1).sum())(hidden)
    assert hidden._version > 0


class Two(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def swap(x, y):
    t = x.clone()
    x.copy_(y * 2)
    y.copy_(t)
    return x + y


def read_late(x, y):
    old = x * 3
    x.add_(y)
    return old.flip(0), x.flip(0)


def of_a_view(x, y):
    x[1:3].mul_(2)
    x.t()[0].add_(y[0, 0])
    return x.sum(), x[1]


def returned(x, y):
    x.add_(1)
    return x, x[0], x.view(-1), y


def moved(x, y):
    """Every element depends on another one's old value."""
    x.copy_(x.flip(0) + y)
    return x.sum()


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("function", [swap, read_late, of_a_view, returned, moved])
def test_orders_of_reads_and_writes(function, level):
    follow(Two(function), [lambda _: (torch.randn(4, 5), torch.randn(4, 5))] * 2, level=level)


def exchanged(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return x + 2 * y


def exchanged_apart(x, y):
    """Neither copy needs anything that the other one does."""
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return torch.ones(3)


def turned(x, y):
    old = x.clone()
    sums = x + y
    y.copy_(x - y)
    x.copy_(sums)
    return old, x * y


@pytest.mark.parametrize("function", [exchanged, exchanged_apart, turned])
def test_old_values_that_others_need(function):
    """Large enough for vectors and loops of their own: the compiler moves no read behind what overwrites it."""
    follow(Two(function), [lambda _: (torch.randn(2000), torch.randn(2000))] * 2)


@pytest.mark.parametrize("function", [swap, moved])
def test_two_inputs_that_share_memory(function):
    def make(_):
        whole = torch.randn(6, 5)
        return (whole,)

    follow(Two(function), [make] * 2, of=lambda whole: (whole[:4], whole[2:]))
    with torch.no_grad():  # and again with inputs of their own
        fast = dcir.optimize(Two(function))
        x, y = torch.randn(4, 5), torch.randn(4, 5)
        a, b = x.clone(), y.clone()
        torch.testing.assert_close(fast(x, y), function(a, b))
        torch.testing.assert_close((x, y), (a, b))


def test_strided_inputs_and_windows():
    def make(_):
        return (torch.randn(5, 8),)

    for of in (lambda t: (t[1:].t(), t[:1].t()), lambda t: (t[:, ::2], t[:, 1::2])):
        follow(Two(lambda x, y: x.mul_(y).sum(0)), [make], of=of)


def test_an_input_that_wants_gradients():
    """Writes that autograd must see stay AOTAutograd's."""
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.randn(3, 4, requires_grad=True)
    function = lambda w, y: (y.mul_(w), y.sum())[1]  # noqa: E731
    y, z = (x * 1), (x * 1)
    dcir.optimize(function)(w, y).backward()
    got, w.grad, x.grad = (w.grad, x.grad), None, None
    function(w, z).backward()
    torch.testing.assert_close(got, (w.grad, x.grad))
    torch.testing.assert_close(y, z)


def test_gradients_enabled_inside():
    """What was thought to be inference wants gradients after all."""

    def function(w, y):
        with torch.enable_grad():
            v = w * 2
        y.add_(1)
        return v

    w, y = torch.randn(3, requires_grad=True), torch.zeros(3)
    with torch.no_grad():
        v = dcir.optimize(function)(w, y)
    torch.testing.assert_close((v, y), (w * 2, torch.ones(3)))


def test_running_statistics():
    class Normed(nn.Sequential):
        pass

    module = Normed(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train()
    fast = follow(module, [lambda _: (torch.randn(2, 3, 6, 6),)] * 3)
    assert len(programs(fast)[0].updates) == 3


def test_stock_dace_writes_inputs_too():
    follow(Two(swap), [lambda _: (torch.randn(4, 5), torch.randn(4, 5))], target="dace")
