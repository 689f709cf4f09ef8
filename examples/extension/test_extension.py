"""This package's own tests, with dcir and the package installed: python -m pytest test_extension.py"""

import numpy as np
import pytest
import torch
from dcir_extension.bin_counts import BinCountsSpec, bin_counts
from torch import nn

import dcir
from dcir.ops.registry import PAGES, pages


class Counts(nn.Module):
    """Counts of scaled numbers; the scaling is dcir's."""

    def __init__(self, wide: bool = False) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[bins] of any tensor."""
        x = x * 2.0 + 0.5
        return bin_counts(x.double() if self.wide else x, 16, -1.0, 2.0)


def test_dcir_finds_the_page() -> None:
    assert "example.bin_counts.default" in pages()


@pytest.mark.parametrize("number", range(5))
def test_every_sample_equals_the_definition(number: int) -> None:
    sample = list(PAGES["example.bin_counts.default"].samples())[number]
    fast = dcir.optimize(lambda x: bin_counts(x, *sample.args[1:]), strict=True)
    with torch.no_grad():
        assert torch.equal(fast(sample.args[0]), bin_counts(*sample.args))


def test_the_reference_equals_the_definition() -> None:
    x = torch.randn(500)
    out = np.zeros(8, np.int64)
    BinCountsSpec("f32", 500, 8, -1.0, 1.0).reference([x.numpy()], [out])
    assert out.tolist() == bin_counts(x, 8, -1.0, 1.0).tolist()


def test_the_pass_counts_before_the_conversion() -> None:
    module = Counts(wide=True)
    fast = dcir.optimize(module, strict=True)
    x = torch.randn(300, 70)
    with torch.no_grad():
        assert torch.equal(fast(x), module(x))
    (line,) = [row.split() for row in str(fast.dcir.explain()).splitlines() if " read-before-cast " in row]
    assert line[line.index("read-before-cast") + 1] == "1"


def test_the_pass_refuses_what_it_may_not_do() -> None:
    def part(x: torch.Tensor) -> torch.Tensor:
        return bin_counts((x * 2.0).double().t().contiguous(), 16, -1.0, 2.0)

    fast = dcir.optimize(part, strict=True)
    x = torch.randn(30, 70)
    with torch.no_grad():
        assert torch.equal(fast(x), part(x))
