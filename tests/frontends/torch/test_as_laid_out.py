"""Arguments of a backward that were not saved as they come back: copied if they lie otherwise, refused if they are others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dcir
from dcir.errors import InvalidInput
from dcir.frontends.torch.as_laid_out import as_laid_out, laid_out


def given_back(value: Any, expected: torch.Tensor) -> Any:
    return as_laid_out(lambda args: args, laid_out([expected]))([value])[0]


def test_what_lies_as_expected_is_taken_as_it_is() -> None:
    value = torch.randn(2, 3, 1).transpose(0, 1)
    assert given_back(value, value) is value
    alike = value.as_strided((3, 2, 1), (1, 3, 77))  # the stride of a dimension of one element says nothing
    assert given_back(alike, value) is alike


@pytest.mark.parametrize(
    "expected",
    [
        torch.empty(2, 8, 5, 5).contiguous(memory_format=torch.channels_last),
        torch.empty(5, 5, 8, 2).permute(3, 2, 0, 1),
        torch.empty(2, 8, 5, 1).expand(2, 8, 5, 5),
    ],
    ids=["channels-last", "turned", "repeated"],
)
def test_what_lies_otherwise_is_copied(expected: torch.Tensor) -> None:
    value = torch.randn(expected.shape)
    if 0 in expected.stride():
        value = value[..., :1].expand(value.shape).contiguous()
    got = given_back(value, expected)
    assert got.stride() == expected.stride()
    assert torch.equal(got, value)


def test_the_token_of_an_effect_is_nothing_when_it_comes() -> None:
    assert given_back(None, torch.empty(0)) is None


OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "wider": lambda t: t.double(),
    "narrower": lambda t: t.bfloat16(),
    "flat": lambda t: t.reshape(-1),
    "part": lambda t: t[:1],
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["constant", "all-sizes"])
@pytest.mark.parametrize("hook", OTHERS.values(), ids=OTHERS)
def test_another_tensor_is_refused(hook: Callable[[torch.Tensor], torch.Tensor], dynamic: bool) -> None:
    """Eager PyTorch refuses each of these as well, in the words of the operator that meets it."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    fast, x = dcir.optimize(net, dynamic=dynamic), torch.randn(5, 8)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, hook):
        result = fast(x)
    with pytest.raises(InvalidInput, match="another tensor than its forward saved"):
        result.square().mean().backward()
    fast(x).square().mean().backward()  # nothing is lost
    assert all(p.grad is not None for p in net.parameters())
