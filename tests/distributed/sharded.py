"""What both processes do with ``fully_shard``: the same steps in PyTorch and compiled, and the state after them compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import dcir
from dcir.errors import InvalidInput
from tests.distributed import replicas

ORDERS = ("optimize, then shard", "shard, then optimize", "optimize layers, then shard")
SIDE = 64


class Block(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(side, 2 * side), nn.Linear(2 * side, side)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(torch.relu(self.wide(x)))


class Network(nn.Module):
    """Its constructor wants an argument, as most do: what is sharded has a class whose ``__new__`` calls it."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(side) for _ in range(3)])
        self.last = nn.Linear(side, side)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def network() -> Any:
    torch.manual_seed(0)
    return Network(SIDE)


def shard(model: Any, layers: bool, **options: Any) -> None:
    """The root, and each block before it if that is asked for."""
    for block in model.blocks if layers else ():
        fully_shard(block, **options)
    fully_shard(model, **options)


def sharded(order: str, layers: bool, **options: Any) -> Any:
    """The network compiled and sharded in some order."""
    model = network()
    if order == "optimize, then shard":
        model = dcir.optimize(model)
        shard(model, layers, **options)
        return model
    if order == "shard, then optimize":
        shard(model, layers, **options)
        return dcir.optimize(model)
    for number, block in enumerate(model.blocks):
        model.blocks[number] = dcir.optimize(block)
    shard(model, layers, **options)
    return model


def plain(layers: bool, **options: Any) -> Any:
    model = network()
    shard(model, layers, **options)
    return model


def graphs(model: nn.Module) -> Counter[str]:
    """How many graphs of which kind were compiled."""
    sessions = {id(m.dcir.session): m.dcir.session for m in model.modules() if hasattr(m, "dcir")}
    return Counter(g.kind for s in sessions.values() for g in s.graphs)


def whole(t: torch.Tensor) -> torch.Tensor:
    return t.full_tensor() if isinstance(t, DTensor) else t


def same(eager: nn.Module, fast: nn.Module) -> None:
    """Compare parameters and gradients, gathered from all processes."""
    for e, f in zip(eager.parameters(), fast.parameters(), strict=True):
        assert type(e) is type(f)
        torch.testing.assert_close(whole(f), whole(e), rtol=1e-4, atol=1e-5)
        if e.grad is not None:
            torch.testing.assert_close(whole(f.grad), whole(e.grad), rtol=1e-4, atol=1e-5)


def batch(rank: int, number: int) -> torch.Tensor:
    return torch.randn(6, SIDE, generator=torch.Generator().manual_seed(10 * number + rank))


def trained(rank: int, order: str, layers: bool) -> Counter[str]:
    """Steps, with gradients of two batches in one of them, then calls in inference, and a step again."""
    models = plain(layers), sharded(order, layers)
    for model in models:
        updates, seen = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
        updates.register_step_pre_hook(lambda o, args, kwargs, seen=seen: seen.append(o.param_groups[0]["fused"]))
        for number in (0, 1, 2, 3):
            model.set_requires_gradient_sync(number != 1)
            model(batch(rank, number)).square().mean().backward()
            if number != 1:
                updates.step()
                updates.zero_grad()
            if number == 2:
                with torch.no_grad():
                    model(batch(rank, 9))
        model(batch(rank, 5)).square().mean().backward()
        assert seen == [None] * 3
    same(*models)
    return graphs(models[1])


def changed_weights(rank: int, order: str, layers: bool) -> Counter[str]:
    """Calls in inference between which one element of a weight changes: nobody counts what is gathered into a parameter."""
    models = plain(layers), sharded(order, layers)
    x = batch(0, 0)
    with torch.no_grad():
        for number in range(8):
            eager, fast = (m(x) for m in models)
            torch.testing.assert_close(fast, eager, rtol=1e-4, atol=1e-4)
            for model in models:
                model.reshard()
                weight = model.blocks[1].wide.weight
                full = weight.full_tensor()
                full[37 * number % (2 * SIDE), 5] += 10
                weight.copy_(distribute_tensor(full, weight.device_mesh, weight.placements))
    return graphs(models[1])


def in_bfloat16(rank: int) -> Counter[str]:
    """Parameters that are gathered in another precision than they are kept in."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    exact, eager = plain(False), plain(False, mp_policy=policy)
    fast = sharded("shard, then optimize", False, mp_policy=policy)
    for model in (exact, eager, fast):
        model(batch(rank, 0)).float().square().mean().backward()
    for parameters in zip(exact.parameters(), eager.parameters(), fast.parameters(), strict=True):
        x, e, f = (whole(p.grad) for p in parameters)
        assert (f - x).norm() <= 1.5 * (e - x).norm()
    return graphs(fast)


def handle(rank: int) -> None:
    """What is optimised after it was sharded is as good a handle of torch's state; a profile, which needs a copy, is refused."""
    fast = sharded("shard, then optimize", True)
    fast.unshard()
    assert type(fast.last.weight) is nn.Parameter
    fast.reshard()
    fast.set_requires_all_reduce(True)
    assert isinstance(fast.last.weight, DTensor)
    for model in (fast, sharded("optimize, then shard", True)):
        again = dcir.optimize(model)
        assert isinstance(again, FSDPModule) and isinstance(again, Network)
        again(batch(rank, 0)).sum().backward()
        assert graphs(again)["forward"]
        with pytest.raises(InvalidInput, match="fully_shard cannot be profiled"):
            model.dcir.profile(batch(rank, 0))


def of_torch_alone(rank: int) -> Counter[str]:
    """Modules of PyTorch's own classes."""
    models = replicas.of_torch_alone(), replicas.of_torch_alone()
    for model in models:
        fully_shard(model)
    eager, fast = models[0], dcir.optimize(models[1])
    x = torch.ones(2, replicas.SIDE)
    for model in (eager, fast):
        model(x).sum().backward()
    same(eager, fast)
    return graphs(fast)
