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
    got = trained(fast, optimizer)
    assert all(g["fused"] is True for g in optimizer.param_groups)
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
    trained(fast, optimizer)
    assert [g["fused"] for g in optimizer.param_groups] == [True, None]

    class Own(torch.optim.AdamW):
        pass

    own = Own(fast.parameters())
    trained(fast, own)
    assert own.param_groups[0]["fused"] is None
    kept = dcir.optimize(network(), fused_optimizers=False)
    optimizer = MAKE["adamw"](kept.parameters())
    trained(kept, optimizer)
    assert optimizer.param_groups[0]["fused"] is None


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
    trained(fast, optimizer, 1)
    assert optimizer.param_groups[0]["fused"] is None
    optimizer = MAKE["adamw"](fast.parameters())
    trained(fast, optimizer, 1)
    assert optimizer.param_groups[0]["fused"] is True
    optimizer.param_groups[0]["params"].append(halves)
    trained(fast, optimizer, 1)
    assert optimizer.param_groups[0]["fused"] is None


def test_optimizer_that_is_older_than_the_module():
    model = network()
    optimizer = MAKE["adam"](model.parameters())
    trained(model, optimizer, 1)
    assert optimizer.param_groups[0]["fused"] is None
    trained(dcir.optimize(model), optimizer, 2)
    plain = network()
    wanted = trained(plain, MAKE["adam"](plain.parameters()), 3)
    assert optimizer.param_groups[0]["fused"] is True
    for g, w in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(g.detach(), w, rtol=1e-5, atol=1e-6)


def test_sparse_gradients_keep_working():
    """A group with an embedding outside whose gradient is sparse in some steps: those are not fused."""
    table, fast = nn.Embedding(10, 8, sparse=True), dcir.optimize(network())
    optimizer = torch.optim.SGD([*table.parameters(), *fast.parameters()], lr=0.1)
    for sparse in (True, False, True):
        table.sparse = sparse
        before = [p.detach().clone() for p in (table.weight, *fast.parameters())]
        optimizer.zero_grad()
        fast(table(torch.tensor([1, 2]))).sum().backward()
        assert table.weight.grad.is_sparse == sparse
        optimizer.step()
        assert optimizer.param_groups[0]["fused"] is (None if sparse else True)
        assert not any(torch.equal(b, p) for b, p in zip(before, (table.weight, *fast.parameters()), strict=True))
