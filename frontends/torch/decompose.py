"""Which ATen operators are taken apart before import, and why.

The method: an operator with a page of its own is a unit, since its page was written to move the fewest bytes (a soft-max
is one program, a convolution one library node). Everything else is taken apart by PyTorch's decompositions, which are
tested against its kernels, until only units are left; what has neither a page nor a decomposition runs through torch.
So the table is not a list to maintain: it follows from the pages, and a new page takes effect by existing.

Two kinds are exempt:
- operators whose decomposition is worse than a call (``KEEP``): they would become long chains of scatters or loops;
- random operators: their decompositions would draw other numbers than eager torch does.

Two operators are taken apart that PyTorch leaves whole: oneDNN's layer of an LSTM, which PyTorch's trace takes for inputs
without a gradient, and the layer of a transformer's encoder (``encoder_layers.py``); taken apart they are native.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._decomp.decompositions import one_layer_lstm

from dcir.frontends.torch import encoder_layers
from dcir.frontends.torch.as_eager import DECOMPOSED
from dcir.ops.registry import pages

# Decomposing these yields more bytes and nodes than torch's kernel moves; they stay one call into torch.
KEEP = (
    "aten.upsample_bicubic2d", "aten.grid_sampler_2d", "aten.grid_sampler_3d", "aten.nonzero", "aten.masked_select",
    "aten._cdist_forward", "aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu", "aten.native_dropout",
    "aten.bernoulli", "aten.rand_like", "aten.randn_like", "aten.rrelu_with_noise", "aten.multinomial", "aten.normal",
    "aten.uniform", "aten.exponential", "aten.cauchy", "aten.log_normal", "aten.geometric", "aten.random", "aten.stft",
    "aten.rrelu_with_noise_functional",
    "aten.complex", "aten.polar",  # their decompositions write to views of a new tensor, which AOTAutograd refuses
)  # fmt: skip


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table AOTAutograd traces with: every decomposition PyTorch has, except for units."""
    units = pages()
    table = {}
    for op, fn in decomposition_table.items():
        if not isinstance(op, torch._ops.OpOverload):
            continue
        name = str(op)
        packet = name.rsplit(".", 1)[0]
        if name in units or packet in KEEP:
            continue
        table[op] = fn
    return table | DECOMPOSED | encoder_layers.DECOMPOSED | {torch.ops.aten.mkldnn_rnn_layer.default: _lstm_layer}


def _lstm_layer(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, h: Tensor, c: Tensor, reverse: bool,
    batch_sizes: list[int], mode: int, hidden_size: int, num_layers: int, has_biases: bool, *flags: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """One direction of one layer; the last result is oneDNN's workspace."""
    weights = [w_ih, w_hh, b_ih, b_hh] if has_biases else [w_ih, w_hh]
    y, (last_h, last_c) = one_layer_lstm(x, (h.squeeze(0), c.squeeze(0)), weights, has_biases, reverse)
    return y, last_h.unsqueeze(0), last_c.unsqueeze(0), x.new_empty(0)
