"""A forward pass is captured once for all sizes: symbols where they stand, a trace for 1 where that is the same, and refusals."""

import pytest
import torch
from torch import nn
from torch.export import Dim

from dcir.errors import Unsupported
from dcir.frontends.torch.export import export_for_sizes
from dcir.frontends.torch.shapes.given_sizes import places, symbols


class Rows(nn.Module):
    """Does to every row the same."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x, y):
        return self.linear(x) + y


class Counts(nn.Module):
    def forward(self, x):
        return x * 2, x.shape[0]


class Asks(nn.Module):
    def forward(self, x):
        return x.sum(0) if x.shape[0] > 8 else x.mean(0)


class Squeezes(nn.Module):
    def forward(self, x):
        return x.squeeze(0)


class Writes(nn.Module):
    def forward(self, x):
        return x.add_(1)


def captured(net, *args, ones=False, low=2):
    dim = Dim("n", min=1 if ones else low, max=50)
    return export_for_sizes(net, args, {}, {(number, 0): dim for number in range(len(args))}, ones=ones)


@pytest.mark.parametrize("ones", [True, False])
def test_symbols_stand_where_sizes_do(ones):
    exported = captured(Rows(), torch.zeros(5, 4), torch.zeros(5, 3), ones=ones)
    (name,) = symbols(exported.graph)
    assert places(exported.graph)[name] == (2, 0)  # behind the parameters
    assert [s.name for s in exported.state] == ["linear.weight", "linear.bias"]
    assert all(type(s.tensor) is torch.Tensor for s in exported.state) and exported.inputs == ("x", "y")


@pytest.mark.parametrize(
    ("net", "ones", "words"),
    [
        (Counts(), False, "a result that is a size"),
        (Asks(), False, "Not all values of n"),
        (Squeezes(), True, "captured as one graph|other shapes"),
        (Writes(), False, "writes to x"),
    ],
)
def test_refusals(net, ones, words):
    with pytest.raises(Unsupported, match=words):
        captured(net, torch.zeros(5, 4), ones=ones)
