"""torch's optimisers become fused for parameters of optimised modules, and only where nobody said otherwise."""

import copy

import pytest
import torch
from torch import nn

import dcir

MAKE = {
    "sgd": lambda p, **kw: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2, **kw),
    "adam": lambda p, **kw: torch.optim.Adam(p, lr=1e-2, **kw),
    "adamw": lambda p, **kw: torch.optim.AdamW(p, lr=1e-2, **kw),
    "adagrad": lambda p, **kw: torch.optim.Adagrad(p, lr=1e-2, **kw),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def choices(optimizer):
    """What each group's ``fused`` is in the last step; behind it, it is what the user said."""
    seen = []

    def hook(optimizer, args, kwargs):
        seen[:] = [g["fused"] for g in optimizer.param_groups]

    optimizer.register_step_pre_hook(hook)
    return seen


def trained(model, optimizer, steps=3):
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("name", MAKE)
def test_same_steps_by_the_fused_kernel(name):
    plain, model = network(), network()
    wanted = trained(plain, MAKE[name](plain.parameters()))
    fast = dcir.optimize(model)
    optimizer = MAKE[name](fast.parameters())
    seen = choices(optimizer)
    got = trained(fast, optimizer)
    assert seen == [True] and optimizer.state_dict()["param_groups"][0]["fused"] is None
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-6)
    # Its state is torch's: another optimiser, not fused, goes on from it.
    state = copy.deepcopy(optimizer.state_dict())
    other = MAKE[name](plain.parameters())
    other.load_state_dict(state)
    trained(plain, other, 1)


@pytest.mark.parametrize("wish", [{"fused": False}, {"foreach": True}, {"foreach": False}])
def test_a_wish_is_obeyed(wish):
    fast = dcir.optimize(network())
    optimizer = MAKE["adamw"](fast.parameters(), **wish)
    trained(fast, optimizer)
    assert {k: optimizer.param_groups[0][k] for k in wish} == wish


def test_others_are_left_alone():
    other, fast = network(), dcir.optimize(network())
    groups = [{"params": fast[0].parameters()}, {"params": other.parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    seen = choices(optimizer)
    trained(fast, optimizer)
    assert seen == [True, None]

    class Own(torch.optim.AdamW):
        pass

    own = Own(fast.parameters())
    seen = choices(own)
    trained(fast, own)
    assert seen == [None]
    kept = dcir.optimize(network(), fused_optimizers=False)
    optimizer = MAKE["adamw"](kept.parameters())
    seen = choices(optimizer)
    trained(kept, optimizer)
    assert seen == [None]


class Halves(torch.Tensor):
    """Two tensors that stand for their sum. They know no update, fused or not."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)

    def __init__(self, a, b):
        self.a, self.b = a, b

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].a, args[0].b)
        raise NotImplementedError(f"no {func} here")


def test_tensors_of_other_classes_are_left_to_their_own():
    """In a group with others, from the beginning or later."""
    halves = nn.Parameter(Halves(torch.ones(3), torch.ones(3)))
    assert type(halves) is Halves
    fast = dcir.optimize(network())
    optimizer = torch.optim.SGD([*fast.parameters(), halves], lr=0.5)
    seen = choices(optimizer)
    trained(fast, optimizer, 1)
    assert seen == [None]
    optimizer = MAKE["adamw"](fast.parameters())
    seen = choices(optimizer)
    trained(fast, optimizer, 1)
    assert seen == [True]
    halves.grad = Halves(torch.ones(3), torch.ones(3))
    optimizer.param_groups[0]["params"].append(halves)
    with pytest.raises(NotImplementedError):
        optimizer.step()
    assert seen == [None]


def test_optimizer_that_is_older_than_the_module():
    model = network()
    optimizer = MAKE["adam"](model.parameters())
    seen = choices(optimizer)
    trained(model, optimizer, 1)
    assert seen == [None]
    trained(dcir.optimize(model), optimizer, 2)
    plain = network()
    wanted = trained(plain, MAKE["adam"](plain.parameters()), 3)
    assert seen == [True]
    for g, w in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(g.detach(), w, rtol=1e-5, atol=1e-6)


def test_sparse_gradients_keep_working():
    """A group with an embedding outside whose gradient is sparse in some steps: those are not fused."""
    table, fast = nn.Embedding(10, 8, sparse=True), dcir.optimize(network())
    optimizer = torch.optim.SGD([*table.parameters(), *fast.parameters()], lr=0.1)
    seen = choices(optimizer)
    for sparse in (True, False, True):
        table.sparse = sparse
        before = [p.detach().clone() for p in (table.weight, *fast.parameters())]
        optimizer.zero_grad()
        fast(table(torch.tensor([1, 2]))).sum().backward()
        assert table.weight.grad.is_sparse == sparse
        optimizer.step()
        assert seen == [None if sparse else True]
        assert not any(torch.equal(b, p) for b, p in zip(before, (table.weight, *fast.parameters()), strict=True))


def _alike(change, name, dtype=torch.float32, model=network, **options):
    """Five steps of eager and of an optimised module, with a change of both before the third; and the choices of the latter."""
    plain = model().to(dtype)
    fast = dcir.optimize(copy.deepcopy(plain))
    found, seen = [], []
    for m in (plain, fast):
        optimizer = MAKE[name](m.parameters(), **options)
        seen = choices(optimizer)
        kinds = []
        for step in range(5):
            if step == 2:
                change(m, optimizer)
            optimizer.zero_grad()
            x = torch.randn(5, *INPUT[model], generator=torch.Generator().manual_seed(step))
            m(x.to(next(m.parameters()).dtype)).float().square().sum().backward()
            optimizer.step()
            kinds += seen
        found.append([p.detach().clone() for p in m.parameters()])
    return (*found, kinds)


def images():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


INPUT = {network: (8,), images: (3, 6, 6)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MAKE)
def test_parameters_of_16_bits_are_updated(name, dtype):
    """torch's fused SGD leaves them."""
    if name.startswith("adam") and dtype is torch.float16:
        pytest.skip("its 1e-8 is 0 there: eager divides by 0")
    plain, fast, seen = _alike(lambda m, o: None, name, dtype)
    assert seen == [None if name == "sgd" else True] * 5
    for a, b in zip(plain, fast, strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("name", MAKE)
def test_state_in_another_layout(name):
    plain, fast, seen = _alike(lambda m, o: m.to(memory_format=torch.channels_last), name, model=images)
    assert seen == [True, True, None, None, None]
    for a, b in zip(plain, fast, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_parameters_that_are_parts_of_others(name):
    """What lies beside them is somebody else's."""
    found = []
    for compiled in (False, True):
        model = network()
        whole = torch.full((16, 12), 3.0)
        with torch.no_grad():
            whole[:, :8] = model[0].weight
        model[0].weight = nn.Parameter(whole[:, :8])
        model = dcir.optimize(model) if compiled else model
        found.append([*trained(model, MAKE[name](model.parameters())), whole])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert (found[1][-1][:, 8:] == 3).all()


def test_momentum_that_begins_at_different_steps():
    def freeze(m, wanted):
        m[0].requires_grad_(wanted)

    found = []
    for compiled in (False, True):
        model = network()
        fast = dcir.optimize(model) if compiled else model
        optimizer = MAKE["sgd"](model.parameters())
        for wanted in (False, True, True):
            freeze(model, wanted)
            parameters = trained(fast, optimizer, 1)
        found.append(parameters)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_closure_that_makes_sparse_gradients():
    table = dcir.optimize(nn.Embedding(10, 8, sparse=True))
    before = table.weight.detach().clone()
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = table(torch.tensor([1, 2])).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert (before != table.weight).any(1).tolist() == [i in (1, 2) for i in range(10)]
