"""The emitters of the target "cuda": which one plans the kernels of an operator, and what becomes of one that has none."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from dcir.codegen.cuda.launch import CudaPlan
from dcir.cost.machine import Machine
from dcir.ir.operator import Operator
from dcir.ir.refusal import Refusal

Emitter = Callable[[Any, Machine | None], CudaPlan | Refusal]
_TABLE: dict[type, Emitter] = {}
_PACKAGE = "dcir.codegen.cuda.kernels"


def planner(spec: type) -> Callable[[Emitter], Emitter]:
    """Register the emitter of a spec class; of ``Operator``, that of all which are several loop nests and have none of their own."""

    def register(emitter: Emitter) -> Emitter:
        _TABLE[spec] = emitter
        return emitter

    return register


def plan_of(spec: Operator, machine: Machine | None = None) -> CudaPlan | Refusal:
    """The kernels of an operator: by its own emitter, else as the loop nest that it is equal to.

    Args:
        spec: the node's spec.
        machine: what they are for; None, and what a machine does not say: the device that the cost figures are of.

    Returns:
        Launches in order; or why there are none, and the operator runs through torch.
    """
    _load()
    emitter = _TABLE.get(type(spec))
    if emitter is not None:
        return emitter(spec, machine)
    if spec.calls_out:
        return Refusal(f"{spec.describe()} runs through torch")
    nest = spec.loop_nest()
    return plan_of(nest, machine) if nest is not None else _TABLE[Operator](spec, machine)


@functools.cache
def _load() -> None:
    package = importlib.import_module(_PACKAGE)
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        importlib.import_module(f"{package.__name__}.{info.name}")
