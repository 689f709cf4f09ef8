"""Measures a model on the machine's roofline: a profile for every combination of threads, batch and level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.cost.machine import MachineRates
from dcir.driver.measure.machine import rates, share_of_others
from dcir.driver.measure.profile import Count, profile
from dcir.driver.measure.touched_bytes import counted
from dcir.driver.optimize import compiled_with
from dcir.driver.session import Progress
from dcir.errors import InvalidInput, OptionError
from dcir.options import Options
from dcir.report.roofline import Roofline
from dcir.report.roofline_points import Run, Setting, run_of, settings_of

MODES = ("infer", "train")

Make = Callable[[int | None], tuple[Any, Sequence[Any]]]
"""Gives a model and the arguments of a call, for a batch of so many images (None: as the model has it)."""


def roofline(
    make: Make,
    *,
    threads: Sequence[int] = (),
    batches: Sequence[int | None] = (None,),
    levels: Sequence[int] = (4,),
    mode: str = "infer",
    seconds: float = 1.0,
    name: str = "model",
    progress: Progress | None = None,
) -> Roofline:
    """Measure a model with every combination of threads, batches and levels.

    Args:
        make: gives model and inputs; called once for every batch.
        threads: sizes of the team; as many as torch uses if there are none.
        batches: given to ``make``.
        levels: 0 to 4.
        mode: "infer"; or "train" for forward and backward of the sum of all that the model returns, in training mode.
        seconds: how long to measure each.
        name: of the model, for the report.
        progress: told of every setting, and of nothing while calls are measured.

    Raises:
        OptionError: another mode, no values, or values that are out of range.
        InvalidInput: nothing was compiled in the call, or nothing that it returns has a gradient.
    """
    if mode not in MODES:
        raise OptionError(f"a mode is one of {', '.join(MODES)}", where=f"mode={mode!r}")
    before = torch.get_num_threads()
    settings = settings_of(threads or (before,), batches, levels)
    if not settings or min(s.threads for s in settings) < 1:
        raise OptionError(
            "threads, batches and levels want a value each, threads from 1 up", where=f"threads={threads}"
        )
    runs: list[Run] = []
    machine = rates()

    def work() -> None:
        made: dict[int | None, tuple[Any, Sequence[Any]]] = {}
        count = partial(counted, known={})  # most kernels are those of another setting
        for number, setting in enumerate(settings):
            if progress is not None:
                progress("settings", number, len(settings))
            if setting.batch not in made:
                made = {setting.batch: make(setting.batch)}  # no two batches lie in memory at once
            torch.set_num_threads(setting.threads)
            runs.append(_run(*made[setting.batch], setting, mode, seconds, count, machine))

    try:
        others = share_of_others(machine.threads, work)
    finally:
        torch.set_num_threads(before)
    if progress is not None:
        progress("settings", len(settings), len(settings))
    return Roofline(name, mode, machine, tuple(runs), others)


def _run(
    model: Any, inputs: Sequence[Any], setting: Setting, mode: str, seconds: float, count: Count, machine: MachineRates
) -> Run:
    training = mode == "train"
    if training and isinstance(model, nn.Module):
        model = model.train()
    # Sizes do not move here, and code for sizes that might is other code.
    options = Options.make(level=setting.level, threads=setting.threads, dynamic=False)
    with torch.set_grad_enabled(training):
        result = profile(
            model,
            compiled_with,
            options,
            inputs,
            seconds=seconds,
            loss=summed if training else None,
            count=count,
            adds_up=True,
        )
    return run_of(result, setting, machine)


def summed(out: Any) -> torch.Tensor:
    """The sum of all that has a gradient.

    Raises:
        InvalidInput: nothing has.
    """
    sums = [t.sum() for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not sums:
        raise InvalidInput("nothing that the model returns has a gradient", hint="--mode infer")
    return torch.stack(sums).sum()
