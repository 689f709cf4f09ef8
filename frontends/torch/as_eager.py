"""PyTorch's decompositions that compute otherwise than its kernels are made right while a graph is traced.

Of PyTorch 2.13 these are:
- recurrent layers: an LSTM whose input needs no gradient becomes oneDNN's layer for inference, though its weights may need theirs,
  and the backward of that layer wants a workspace that only its training form makes;
- recurrent layers: the dropout between layers is left out, since the layer's number is compared with their count the wrong way round;
- the multi-label margin loss counts what stands behind the end of a row's targets as targets; and of a vector without a reduction
  it has the shape (1,), not ().
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._decomp import decompositions
from torch._decomp.decompositions import one_layer_lstm

# (input, state, weights, biases, reverse) -> (output of every step, last state)
_Layer = Callable[..., tuple[Tensor, Any]]


_MARGIN = torch.ops.aten.multilabel_margin_loss_forward.default


def multilabel_margin_loss(data: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The loss, and which classes are targets, as 0 and 1.

    Args:
        data: scores of each class, a row per image or one row.
        target: in each row the classes up to the first -1.
        reduction: 0 none, 1 mean, 2 sum.
    """
    torch._check(
        data.dim() <= 2 and data.shape == target.shape, lambda: "scores and targets need one or two dimensions"
    )
    rows, labels = torch.atleast_2d(data), torch.atleast_2d(target)
    classes = rows.shape[1]
    places = torch.arange(classes, device=data.device)
    named = places < torch.where(labels == -1, places, classes).amin(-1, keepdim=True)
    is_target = (torch.where(named, labels, -1).unsqueeze(-1) == places).any(1)
    missing = 1 - rows.gather(-1, torch.where(named, labels, 0)).unsqueeze(-1) + rows.unsqueeze(-2)
    counted = named.unsqueeze(-1) & ~is_target.unsqueeze(-2)
    loss = torch.where(counted, missing.clamp_min(0), 0).sum((-2, -1)) / classes
    if reduction == 0:
        loss = loss if data.dim() > 1 else loss.reshape(())
    else:
        loss = loss.mean() if reduction == 1 else loss.sum()
    return loss, is_target.to(data.dtype).reshape(target.shape)


DECOMPOSED: dict[Any, Callable[..., Any]] = {_MARGIN: multilabel_margin_loss}
"""What takes the place of PyTorch's decompositions where autograd has no part in it."""


@contextlib.contextmanager
def decomposed_as_eager() -> Iterator[None]:
    """PyTorch's decompositions compute what its kernels do, while this lasts."""
    with (
        _under_autograd(_MARGIN, multilabel_margin_loss),
        mock.patch.object(decompositions, "_rnn_helper", stacked),
        mock.patch.object(decompositions, "select_one_layer_lstm_function", lambda *_: one_layer_lstm),
    ):
        yield


@contextlib.contextmanager
def _under_autograd(operator: Any, function: Callable[..., Any]) -> Iterator[None]:
    """The operator's Python form in autograd, while this lasts."""
    with mock.patch.dict(operator.py_kernels, {torch._C.DispatchKey.Autograd: function}):
        operator._dispatch_cache.clear()
        try:
            yield
        finally:
            operator._dispatch_cache.clear()


def stacked(
    data: Tensor, states: Sequence[Any], weights: Sequence[Any], biases: bool, layers: int, dropout: float, train: bool,
    both: bool, batch_first: bool, layer: _Layer,
) -> tuple[Tensor, list[Any]]:  # fmt: skip
    """The output of the last layer, and the last states of all layers and directions."""
    data = data.transpose(0, 1) if batch_first else data
    last: list[Any] = []
    for number in range(layers):
        if number and dropout and train:
            data = torch.dropout(data, dropout, train)
        outputs = []
        for reverse in (False, True)[: 1 + both]:
            place = len(last)
            output, state = layer(data, states[place], weights[place], biases, reverse=reverse)
            outputs.append(output)
            last.append(state)
        data = torch.cat(outputs, -1) if both else outputs[0]
    return data.transpose(0, 1) if batch_first else data, last
