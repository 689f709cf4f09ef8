"""What the command line measures of a model's file or function: a function for each command.

What each needs is imported when it is called, since a command pays for all that is imported with it.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.driver.ahead.compile import is_artefact
from dcir.driver.session import Progress, Session
from dcir.errors import InvalidInput
from dcir.options import Options

if TYPE_CHECKING:
    from dcir.driver.measure.bench import Measurement
    from dcir.driver.measure.stream import StreamMeasurement
    from dcir.driver.measure.throughput import Throughput
    from dcir.report.advice import Advice
    from dcir.report.profile import Profile
    from dcir.report.roofline import Roofline
    from dcir.report.scaling import Scaling
    from dcir.report.scaling_check import ScalingCheck
    from dcir.report.thread_plan import ThreadPlanReport
    from dcir.report.tuning import Tuning

Shapes = Mapping[str, Sequence[int | str]]


def bench_file(
    model: str | os.PathLike[str], baselines: Sequence[str], seconds: float, threads: int | None, **settings: Any
) -> Measurement:
    """Measure a model next to other ways to run it; see ``driver.bench``."""
    from dcir.driver.measure.bench import bench_file as measure

    return measure(model, baselines, seconds, threads, **settings)


def bench_throughput(
    model: str | os.PathLike[str], baselines: Sequence[str], seconds: float, threads: int | None, **settings: Any
) -> Throughput:
    """Measure how many calls a second a model has when several run at once; see ``driver.measure.throughput``."""
    from dcir.driver.measure.throughput import bench_throughput as measure

    return measure(model, baselines, seconds, threads, **settings)


def bench_stream(
    model: str | os.PathLike[str],
    sizes: str | os.PathLike[str],
    baselines: Sequence[str],
    seconds: float,
    threads: int | None,
    **settings: Any,
) -> StreamMeasurement:
    """Measure a model over a stream of sizes; see ``driver.measure.stream``."""
    from dcir.driver.measure.stream import bench_stream as measure

    return measure(model, sizes, baselines, seconds, threads, **settings)


def tune_file(
    model: str | os.PathLike[str],
    *,
    budget: float,
    level: int = 4,
    shapes: Shapes | None = None,
    batch: int | None = None,
    threads: int | None = None,
    train: bool = False,
    force: bool = False,
    again: bool = False,
    progress: Progress | None = None,
) -> Tuning:
    """Measure the kernels of a model's calls; see ``dcir tune --help``.

    Raises:
        MachineBusy: other processes work, and ``force`` is not set.
        InvalidInput: the model has no kernel of ours.
    """
    from dcir.driver.measure.models import open_model
    from dcir.driver.measure.tune import Tuner
    from dcir.driver.optimize import compiled_with

    opened = open_model(model, shapes, batch)
    tuner = Tuner(budget, force=force, again=again, progress=progress)
    session = Session(Options.make(level=level, threads=threads), tuner=tuner, progress=progress)
    module = opened.module
    if train and isinstance(module, nn.Module):
        module = copy.deepcopy(module).train()  # as plan and roofline have it: the kernels of eval mode are others
    fast = compiled_with(module, session)
    with torch.set_grad_enabled(train):
        out = fast(*opened.inputs)
    if train:
        sums = [t.sum() for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
        if not sums:
            raise InvalidInput("nothing that the model returns has a gradient", hint="leave out --train")
        torch.stack(sums).sum().backward()
    if not session.graphs:
        raise InvalidInput("nothing was compiled in this call, so there are no kernels to measure")
    return tuner.tuning


def profile_file(
    model: str | os.PathLike[str],
    *,
    level: int = 4,
    shapes: Shapes | None = None,
    batch: int | None = None,
    seconds: float = 2.0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measure every kernel inside the calls of a model; see ``driver.profile`` and ``driver.models.open_model``.

    Raises:
        InvalidInput: a .dcir file, whose code has no clock.
    """
    from dcir.driver.measure.models import open_model
    from dcir.driver.measure.profile import profile
    from dcir.driver.optimize import compiled_with

    if os.path.isfile(model) and is_artefact(model):
        raise InvalidInput("the code in a .dcir file has no clock", where=str(model), hint="dcir profile MODEL.onnx")
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        opened_model = open_model(model, shapes, batch)
        options = Options.make(level=level, threads=threads or before)
        with torch.no_grad():
            return profile(
                opened_model.module, compiled_with, options, opened_model.inputs, seconds=seconds, progress=progress
            )
    finally:
        torch.set_num_threads(before)


def roofline_file(
    model: str | os.PathLike[str],
    *,
    threads: Sequence[int] = (),
    batches: Sequence[int] = (),
    levels: Sequence[int] = (4,),
    mode: str = "infer",
    precision: str | None = None,
    shapes: Shapes | None = None,
    seconds: float = 1.0,
    progress: Progress | None = None,
) -> Roofline:
    """Measure a model on this machine's roofline; see ``driver.measure.roofline`` and ``dcir roofline --help``.

    Raises:
        InvalidInput: a .dcir file, whose code has no clock.
        OptionError: batches for a file whose sizes are all fixed; a precision that cannot be had.
    """
    from dcir.driver.measure.models import maker_of
    from dcir.driver.measure.roofline import roofline

    name = os.path.basename(os.fspath(model))
    return roofline(
        maker_of(model, shapes, precision), threads=threads, batches=batches or (None,), levels=levels, mode=mode,
        seconds=seconds, name=name if precision is None else f"{name} in {precision}", progress=progress,
    )  # fmt: skip


def advise_file(model: str | os.PathLike[str], **settings: Any) -> Advice:
    """Measure a model, say what to change of its call, and try it; see ``driver.measure.advise`` and ``dcir roofline --help``."""
    from dcir.driver.measure.advise import advise_file as advise

    return advise(model, **settings)


def scaling_file(model: str | os.PathLike[str], *, nodes: Sequence[int], link: str, **settings: Any) -> Scaling:
    """Predict data-parallel training of a model; see ``driver.measure.scaling``.

    Raises:
        InvalidInput: a .dcir file, which is forward only.
    """
    from dcir.driver.measure.scaling import scaling

    if os.path.isfile(model) and is_artefact(model):
        raise InvalidInput("a .dcir file is forward only", where=str(model), hint="dcir scaling MODEL.onnx")
    return scaling(os.fspath(model), nodes, link, **settings)


def scaling_check_file(model: str | os.PathLike[str], *, nodes: Sequence[int], **settings: Any) -> ScalingCheck:
    """Predict data-parallel training on this machine's processes, and measure it; see ``driver.measure.scaling_check``.

    Raises:
        InvalidInput: a .dcir file, which is forward only.
    """
    from dcir.driver.measure.scaling_check import scaling_check

    if os.path.isfile(model) and is_artefact(model):
        raise InvalidInput("a .dcir file is forward only", where=str(model), hint="dcir scaling MODEL.onnx")
    return scaling_check(os.fspath(model), nodes, **settings)


def plan_file(model: str | os.PathLike[str], **settings: Any) -> ThreadPlanReport:
    """Plan the threads of a model's calls; see ``driver.measure.thread_plan`` and ``dcir plan --help``.

    Raises:
        InvalidInput: a .dcir file, whose code has no clock.
    """
    from dcir.driver.measure.thread_plan import plan_threads

    if os.path.isfile(model) and is_artefact(model):
        raise InvalidInput("the code in a .dcir file has no clock", where=str(model), hint="dcir plan MODEL.onnx")
    return plan_threads(model, **settings)
