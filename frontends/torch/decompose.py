"""Which ATen operators are taken apart before import, and why.

The method: an operator with a page of its own is a unit, since its page was written to move the fewest bytes (a soft-max
is one program, a convolution one library node). Everything else is taken apart by PyTorch's decompositions, which are
tested against its kernels, until only units are left; what has neither a page nor a decomposition runs through torch.
So the table is not a list to maintain: it follows from the pages, and a new page takes effect by existing.

Two kinds are exempt:
- operators whose decomposition is worse than a call (``KEEP``): they would become long chains of scatters or loops;
- random operators: their decompositions would draw other numbers than eager torch does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table

from dcir.ops.registry import pages

# Decomposing these yields more bytes and nodes than torch's kernel moves; they stay one call into torch.
KEEP = (
    "aten.upsample_bicubic2d", "aten.grid_sampler_2d", "aten.grid_sampler_3d", "aten.nonzero", "aten.masked_select",
    "aten._cdist_forward", "aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu", "aten.native_dropout",
    "aten.bernoulli", "aten.rand_like", "aten.randn_like", "aten.rrelu_with_noise", "aten.multinomial", "aten.normal",
    "aten.uniform", "aten.exponential", "aten.cauchy", "aten.log_normal", "aten.geometric", "aten.random", "aten.stft",
    "aten.rrelu_with_noise_functional",
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
    return table
