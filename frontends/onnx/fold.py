"""Constant folding at load: runs a step whose operands are all known, within a budget of bytes.

A small file can ask for a huge constant (a fill, an expand, a chain of concatenations). So the size of every result is
first found on fake tensors, which hold no memory, unless the operands are too small to matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from dcir.frontends.onnx.program import OnnxStep, run_step
from dcir.frontends.onnx.values import TEXT, Host, to_host, to_tensor

BUDGET_BYTES = 1 << 30
LARGEST_BYTES = 1 << 29
SMALL_ELEMENTS = 1 << 12
_GROWING = {
    "ConstantOfShape", "Expand", "Tile", "Range", "Pad", "Resize", "Upsample", "EyeLike", "OneHot", "BlackmanWindow",
    "HannWindow", "HammingWindow", "MelWeightMatrix", "CenterCropPad", "Col2Im", "AffineGrid", "MaxUnpool",
    "ConvTranspose",
}  # fmt: skip


@dataclass
class Folder:
    """Folds steps until the budget for results is spent."""

    spent: int = 0

    def fold(self, step: OnnxStep, constants: dict[int, Tensor]) -> list[Tensor] | None:
        """The step's results, or None to leave the step for run time (also when it fails: it may never run)."""
        operands = [constants[slot] if slot >= 0 else None for slot in step.inputs]
        given = sum(t.numel() for t in operands if t is not None)
        probe = replace(step, host_call=None, scalars=False, inputs=_numbers(operands), outputs=_results(step))
        values: list[Any] = [
            to_host(t) if t is not None and position in step.host else t for position, t in enumerate(operands)
        ]
        room = len(probe.outputs)
        try:
            if (step.node.op in _GROWING or given > SMALL_ELEMENTS) and not self._fits(probe, values, room):
                return None
            with torch.no_grad():
                filled = [*values, *[None] * room]
                run_step(probe, filled)
        except Exception:
            # Whatever is wrong will be said where it matters, at run time, with the node's name.
            return None
        if any(isinstance(v, Host) and v.dtype is TEXT for v in filled[len(values) :]):
            return None
        results = [to_tensor(v) if isinstance(v, (Tensor, Host)) else None for v in filled[len(values) :]]
        if any(r is None for r, slot in zip(results, step.outputs, strict=True) if slot >= 0):
            return None
        kept = [r.clone() if r is not None and any(r is t for t in operands) else r for r in results]
        self.spent += sum(r.numel() * r.dtype.itemsize for r in kept if r is not None)
        return [r if r is not None else torch.empty(0) for r in kept]

    def _fits(self, step: OnnxStep, values: list[Any], room: int) -> bool:
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = [mode.from_tensor(v) if isinstance(v, Tensor) else v for v in values]
            filled = [*fake, *[None] * room]
            run_step(step, filled)
        size = sum(v.numel() * v.dtype.itemsize for v in filled[len(values) :] if isinstance(v, Tensor))
        return size <= LARGEST_BYTES and self.spent + size <= BUDGET_BYTES


def _numbers(operands: list[Tensor | None]) -> tuple[int, ...]:
    return tuple(i if t is not None else -1 for i, t in enumerate(operands))


def _results(step: OnnxStep) -> tuple[int, ...]:
    return tuple(len(step.inputs) + i for i in range(len(step.outputs)))
