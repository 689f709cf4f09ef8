"""Recurrent layers that AOTAutograd unrolls are eager's: oneDNN's layer is no part of them, and dropout lies between layers.

PyTorch 2.13 unrolls them by decompositions of its own, with two faults that are undone here while a graph is traced:
- an LSTM whose input needs no gradient becomes oneDNN's layer for inference, though its weights may need theirs: the backward
  of that layer wants a workspace that only its training form makes;
- the dropout between layers is left out, since the layer's number is compared with their count the wrong way round.
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


@contextlib.contextmanager
def unrolled_as_eager() -> Iterator[None]:
    """PyTorch's decompositions of recurrent layers compute what its kernels do, while this lasts."""
    with (
        mock.patch.object(decompositions, "_rnn_helper", _stacked),
        mock.patch.object(decompositions, "select_one_layer_lstm_function", lambda *_: one_layer_lstm),
    ):
        yield


def _stacked(
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
