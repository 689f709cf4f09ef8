"""Plans the memory of a training step, as it is and under limits, without generating code."""

from __future__ import annotations

import copy
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.driver.measure.advice.facts import Kept, Memory
from dcir.driver.optimize import compiled_with
from dcir.driver.session import Session
from dcir.errors import MemoryLimitTooLow
from dcir.frontends.torch.partition.cut import Partition
from dcir.options import Options
from dcir.report.advice_pieces import Call

LARGE = 0.5
"""Part of the machine's memory from which on a step's is looked at unasked."""
_STEPS = (0.75, 0.5)
"""Parts of a step's own memory that are planned as limits where the user names none."""
_NO_LIMIT = 1 << 62
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def memory_of(
    model: nn.Module, inputs: Sequence[Any], call: Call, state: int, allowed: int | None = None
) -> Memory | None:
    """The memory of a training step, and what limits would have it keep; None where it is no large part of the machine's.

    Args:
        model, inputs: of a call; the model is copied.
        call: its level and threads.
        state: bytes of the optimiser's state.
        allowed: bytes that the user lets a step take, parameters and all; half of the machine's unless given.

    Returns:
        None, too, where a call is not one graph, so that one limit says nothing of the whole.
    """
    whole = machine_memory()
    if allowed is None and resident_peak() <= LARGE * whole:
        return None  # the steps that have run were in it, with everything else of the process
    model = copy.deepcopy(model).train()
    own = [p for p in model.parameters() if p.requires_grad]
    given = (v for v in pytree.tree_leaves(inputs) if isinstance(v, torch.Tensor))
    tensors = [*model.parameters(), *model.buffers(), *own, *given]  # a gradient is as large as its parameter
    beside = state + sum(t.nbytes for t in tensors)
    free = _planned(model, inputs, call, _NO_LIMIT)
    if free is None:
        return None
    peak, may = free.planned.peak, round(LARGE * whole) if allowed is None else allowed
    if peak + beside <= may:
        return Memory(peak, beside, may, allowed is not None)
    limits = [round(peak * part) for part in _STEPS] if allowed is None else [may - beside]
    kept = dict.fromkeys(filter(None, (_kept(model, inputs, call, limit) for limit in limits)))
    return Memory(peak, beside, may, allowed is not None, tuple(kept))


def machine_memory() -> int:
    """Bytes that this process may use: the machine's, or what its control group has."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(_CGROUP.read_text()))
    except (OSError, ValueError):  # there is none, or it has no limit
        return whole


def resident_peak() -> int:
    """The most bytes of memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _kept(model: nn.Module, inputs: Sequence[Any], call: Call, limit: int) -> Kept | None:
    """The plan under a limit, or under the least that there is."""
    try:
        found = _planned(model, inputs, call, max(limit, 1))
    except MemoryLimitTooLow as e:
        limit = e.least
        found = _planned(model, inputs, call, limit)
    if found is None:
        return None
    nearer, again = (found.chosen.get(kind, (0, 0)) for kind in ("cheaper form", "recompute"))
    both = nearer[0] + again[0], nearer[1] + again[1]
    return Kept(limit, found.planned.peak, found.chosen.get("store", (0, 0)), both, found.seconds)


def _planned(model: nn.Module, inputs: Sequence[Any], call: Call, limit: int) -> Partition | None:
    """What is decided under a limit; None where several graphs are."""
    options = Options.make(level=call.level or 0, threads=call.threads, dynamic=False, memory_limit=limit)
    session = Session(options, without_code=True)
    with torch.enable_grad():
        compiled_with(model, session)(*inputs)
    found = [g.partition for g in session.graphs if g.kind == "forward" and g.partition is not None]
    return found[0] if len(found) == 1 else None
