"""A number that passes a container of a half type has that type's digits, whether the container is written or fused away."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dcir

CASTS: dict[str, Callable[[Tensor], Tensor]] = {
    "and back": lambda x: x.bfloat16().float() * 2,
    "two half types": lambda x: x.half().bfloat16().float(),
    "promoted": lambda x: x.bfloat16() + x.half(),
    "to double": lambda x: x.bfloat16().double(),
    "what is lost": lambda x: x - x.bfloat16().float(),
    "compared": lambda x: torch.where(x.bfloat16() > 0.5, x, -x),
    "to integers": lambda x: (x * 10).bfloat16().int(),
    "behind a softmax": lambda x: F.softmax(x, -1).bfloat16().float() * 2,
    "behind a sum": lambda x: x.sum(-1).half().float() + 1,
    "behind a product": lambda x: (x @ x.t()).bfloat16().float() + 1,
    "in front of a norm": lambda x: F.layer_norm(x.bfloat16().float(), (x.shape[-1],)),
    "in front of a product": lambda x: x.bfloat16().float() @ x.t(),
}


@pytest.mark.parametrize("name", CASTS)
def test_a_cast_rounds(name: str) -> None:
    x = torch.randn(48, 48, generator=torch.Generator().manual_seed(0))
    x[0, :4] = torch.tensor([0.501, 0.4995, 1 + 2.0**-9, 1 + 3 * 2.0**-9])  # on both sides of what is compared; ties
    net = CASTS[name]
    want = net(x)
    got = dcir.optimize(net, strict=True)(x)
    assert got.dtype == want.dtype
    # A rounding that is left out shows by 2^-9.
    assert float((got.double() - want.double()).abs().max()) <= 2e-6 * float(want.double().abs().max())


@pytest.mark.parametrize(
    "name", ["and back", "promoted", "to double", "behind a softmax", "behind a sum", "behind a product"]
)
def test_and_its_gradient(name: str) -> None:
    x = torch.randn(48, 48, generator=torch.Generator().manual_seed(0))
    seed = torch.randn(48, 48, generator=torch.Generator().manual_seed(1))
    net = CASTS[name]
    grads = []
    for f in (net, dcir.optimize(net, strict=True)):
        leaf = x.clone().requires_grad_()
        out = f(leaf)
        out.backward(seed[: out.shape[0]].reshape(out.shape) if out.ndim == 2 else seed[0])
        assert leaf.grad is not None
        grads.append(leaf.grad.double())
    assert float((grads[0] - grads[1]).abs().max()) <= 4e-6 * float(grads[0].abs().max())
