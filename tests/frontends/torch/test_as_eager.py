"""What PyTorch's decompositions compute otherwise than its kernels is computed as by these (recurrent layers: test_long_recurrent)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dcir


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("shape", [(5,), (3, 5)])
def test_the_margin_loss_of_a_vector_is_a_number(shape: tuple[int, ...], inference: bool, reduction: str) -> None:
    torch._dynamo.reset()
    loss = nn.MultiLabelMarginLoss(reduction=reduction)
    fast = dcir.optimize(loss)
    target = torch.tensor([1, 3, -1, 0, 2]).expand(shape)
    seen = []
    for m in (loss, fast):
        x = torch.linspace(-1, 1, 5).expand(shape).clone().requires_grad_(not inference)
        with torch.inference_mode(inference):
            y = m(x, target)
        if not inference:
            y.sum().backward()
        seen.append([y.detach(), x.grad if x.grad is not None else torch.zeros(1)])
    torch.testing.assert_close(seen[1], seen[0])


def test_nothing_of_torch_is_changed_afterwards() -> None:
    operator = torch.ops.aten.multilabel_margin_loss_forward.default
    before = dict(operator.py_kernels), torch._decomp.decompositions.select_one_layer_lstm_function
    dcir.optimize(nn.MultiLabelMarginLoss())(torch.zeros(5), torch.zeros(5, dtype=torch.int64))
    assert (dict(operator.py_kernels), torch._decomp.decompositions.select_one_layer_lstm_function) == before
