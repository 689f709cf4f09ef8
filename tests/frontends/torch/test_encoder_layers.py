"""nn.TransformerEncoderLayer in inference, which PyTorch calls as one operator: native, with every mask that it takes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dcir
from tests.harness import check_close, double

EMBED, HEADS, BATCH, POSITIONS = 32, 4, 3, 10
CAUSAL = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).triu(1)
PADDING = torch.arange(POSITIONS) >= torch.tensor([[10], [4], [7]])
MASKS: dict[str, dict[str, Tensor]] = {
    "none": {},
    "positions": {"src_mask": CAUSAL},
    "padding": {"src_key_padding_mask": PADDING},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": PADDING},
}


def layer(**settings: Any) -> nn.Module:
    torch.manual_seed(1)
    made = nn.TransformerEncoderLayer(EMBED, HEADS, 48, batch_first=True, **settings).eval()
    for p in made.parameters():  # biases are zeros and norms ones as PyTorch makes them
        nn.init.normal_(p, std=0.2)
    return made


def compiled(module: nn.Module, x: Tensor, mask: dict[str, Tensor]) -> Tensor:
    f = dcir.optimize(module)
    with torch.no_grad():
        got = f(x, **mask)
    explained = str(f.dcir.explain())
    assert "no operators run through torch" in explained and "no graph breaks" in explained
    return got


@pytest.mark.parametrize("norm_first", [False, True], ids=["norm-last", "norm-first"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("mask", MASKS)
def test_layers(mask: str, activation: str, norm_first: bool) -> None:
    module, x = layer(activation=activation, norm_first=norm_first), torch.randn(BATCH, POSITIONS, EMBED)
    exact = copy.deepcopy(module).double()
    with torch.no_grad():
        want, right = module(x, **MASKS[mask]), exact(double(x), **MASKS[mask])
    check_close(compiled(module, x, MASKS[mask]), want, right)


def test_a_query_that_may_look_at_no_key_is_nan_as_in_eager() -> None:
    module, x = layer(), torch.randn(BATCH, POSITIONS, EMBED)
    mask = {"src_mask": torch.zeros(POSITIONS, POSITIONS, dtype=torch.bool).index_fill(0, torch.tensor(2), True)}
    with torch.no_grad():
        want = module(x, **mask)
    got = compiled(module, x, mask)
    assert want.isnan().any() and torch.equal(got.isnan(), want.isnan())
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types(dtype: torch.dtype) -> None:
    module, x = layer(activation="gelu").to(dtype), torch.randn(BATCH, POSITIONS, EMBED).to(dtype)
    exact = copy.deepcopy(module).double()
    with torch.no_grad():
        want, right = module(x), exact(x.double())
    check_close(compiled(module, x, {}), want, right)


def test_stacks() -> None:
    torch.manual_seed(1)
    module = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(EMBED, HEADS, 48, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    x = torch.randn(BATCH, POSITIONS, EMBED)
    exact = copy.deepcopy(module).double()
    with torch.no_grad():
        want, right = module(x), exact(double(x))
    check_close(compiled(module, x, {}), want, right)


def test_a_stack_computes_at_padded_places_as_well() -> None:
    torch.manual_seed(1)
    module = nn.TransformerEncoder(nn.TransformerEncoderLayer(EMBED, HEADS, 48, batch_first=True), 2).eval()
    x, mask = torch.randn(BATCH, POSITIONS, EMBED), MASKS["padding"]
    exact = copy.deepcopy(module).double()
    exact.enable_nested_tensor = False
    with torch.no_grad():
        want, right = module(x, **mask), exact(double(x), **mask)
    got = compiled(module, x, mask)
    assert not want[PADDING].any()  # eager's fast path has nested tensors
    assert got[PADDING].any()
    check_close(got[~PADDING], want[~PADDING], right[~PADDING])
