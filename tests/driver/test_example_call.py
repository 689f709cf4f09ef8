"""Example calls as users give them: a tensor alone, tuples, and what is neither."""

import pytest
import torch
from torch import nn

import dcir
from dcir.driver import api
from dcir.driver.example_call import example_arguments
from dcir.errors import InvalidInput


def test_a_tensor_alone_is_the_only_argument(tmp_path):
    net, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), torch.randn(2, 4)
    api.save(net, x, tmp_path / "net.dcir")
    torch.testing.assert_close(dcir.load(tmp_path / "net.dcir")(x), net(x))
    opened = dcir.open(net, x)
    torch.testing.assert_close(opened.compile()(x), net(x))


@pytest.mark.parametrize("inputs", [{"x": torch.ones(2, 4)}, "x", 3, (torch.ones(2, 4) for _ in range(1))])
def test_what_is_no_tuple_is_refused(tmp_path, inputs):
    with pytest.raises(InvalidInput, match="tuple") as caught:
        api.save(nn.Linear(4, 3).eval(), inputs, tmp_path / "net.dcir")
    assert "named=" in caught.value.hint and not list(tmp_path.iterdir())


def test_tuples_and_lists_are_as_they_are():
    x = torch.ones(2)
    assert example_arguments((x, 3)) == (x, 3) and example_arguments([x]) == (x,) and example_arguments(()) == ()
