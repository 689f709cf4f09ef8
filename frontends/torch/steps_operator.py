"""``dcir::steps``, an operator of torch: one of the steps of ``recurrent_cells`` for every element of stacked tensors.

The importer makes a loop of it (``regions.py``). Torch itself runs it step by step, where no loop can be made.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dcir.frontends.torch.recurrent_cells import STEPS


@torch.library.custom_op("dcir::steps", mutates_args=())
def steps(
    name: str, carried: list[Tensor], moving: list[Tensor], fixed: list[Tensor], reverse: bool
) -> list[Tensor]:  # fmt: skip
    """What is handed on after the last step, and what the steps gave, stacked.

    Args:
        name: of the step.
        carried: what the first step is given.
        moving: tensors whose parts along the first dimension are the steps' own.
        fixed: what all steps are given.
        reverse: whether the last part comes first.
    """
    count = moving[0].shape[0]
    values, rows = tuple(carried), []
    for t in range(count - 1, -1, -1) if reverse else range(count):
        values, given = STEPS[name](values, tuple(x[t] for x in moving), tuple(fixed))
        rows.append(given)
    columns = zip(*(reversed(rows) if reverse else rows), strict=True)
    return [*(v.clone() for v in values), *(torch.stack(column) for column in columns)]


@steps.register_fake
def _(name: str, carried: list[Tensor], moving: list[Tensor], fixed: list[Tensor], reverse: bool) -> list[Tensor]:
    values, given = STEPS[name](tuple(carried), tuple(x[0] for x in moving), tuple(fixed))
    count = moving[0].shape[0]
    return [
        *(v.new_empty(v.shape) for v in values),
        *(g.new_empty((count, *g.shape)) for g in given),
    ]
