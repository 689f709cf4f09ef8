"""Measures a training step of one process, dcir's and eager PyTorch's, and predicts those of many (``report/scaling.py``)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dcir.driver.measure.beside import beside as other_processes
from dcir.driver.measure.beside import cores_of, pinned
from dcir.driver.measure.local_link import link_of
from dcir.driver.measure.models import BenchModel, function_of, open_model
from dcir.driver.measure.training_step import Backwards, Loss, Replica, Training, mean_squares
from dcir.driver.optimize import compiled_with
from dcir.driver.session import Progress, Session
from dcir.errors import InvalidInput
from dcir.options import Options
from dcir.report.scaling import MIB, Scaling, TrainingStep

_ALONE = "measured with no other process; those of one machine share its memory: --beside 1 measures next to another"
_BESIDE = "measured while {} other processes of this machine did the same"


def scaling(
    source: str,
    nodes: Sequence[int],
    link: str,
    *,
    level: int = 4,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    batch: int | None = None,
    seconds: float = 2.0,
    threads: int | None = None,
    loss: str | None = None,
    optimiser: str = "sgd",
    bucket_mib: float = 25.0,
    algorithm: str = "ring",
    beside: int = 0,
    eager: bool = True,
    progress: Progress | None = None,
) -> Scaling:
    """Measure a step of one process, and predict it for others.

    Args:
        source, level, shapes, batch, loss, optimiser: see ``Training``.
        nodes: numbers of processes.
        link: a name, or ``RATE[,LATENCY[,WORK]]``; see ``cost.links``.
        seconds: how long to measure dcir, and eager.
        threads: of a process; as many as torch uses unless given.
        bucket_mib: ``bucket_cap_mb`` of ``DistributedDataParallel``; the first bucket is at most 1 MiB where this is the default.
        algorithm: of ``cost.links.ALGORITHMS``.
        beside: processes of this machine that compute meanwhile.
        eager: whether to predict eager PyTorch, too.
        progress: told of the steps of the compilation.

    Raises:
        OptionError: no such link, optimiser or loss.
        InvalidInput: nothing that can be trained, or nothing was compiled.
    """
    before = torch.get_num_threads()
    training = Training(source, shapes, batch, loss, optimiser, level, threads or before)
    cable = link_of(link)
    torch.set_num_threads(training.threads)
    try:
        steps = training_steps(training, eager=eager, others=beside, seconds=seconds, progress=progress)
    finally:
        torch.set_num_threads(before)
    notes = [_BESIDE.format(beside) if beside else _ALONE]
    return Scaling(
        source, training.threads, cable, steps, tuple(nodes), round(bucket_mib * MIB), algorithm, notes,
    )  # fmt: skip


def training_steps(
    training: Training, *, eager: bool = True, others: int = 0, seconds: float = 2.0, progress: Progress | None = None
) -> list[TrainingStep]:
    """Measure dcir's step, and eager's behind it.

    Args:
        training: what to measure.
        eager: whether eager is measured, too.
        others: processes of this machine that do the same meanwhile.
        seconds: how long to measure each.
        progress: told of the steps of the compilation.

    Raises:
        InvalidInput: nothing that can be trained, or nothing was compiled.
        OptionError: an optimiser or a loss that is not there.
    """
    replicas = replicas_of(training, eager=eager, progress=progress)
    for replica in replicas.values():
        replica.warm_up()
    found = []
    with (
        other_processes(others, training.threads, _repeated, training, eager) as companions,
        pinned(cores_of(0, training.threads, others + 1) if others else None),
    ):
        for name, replica in replicas.items():
            with companions.running(name):
                found.append(replica.measured(seconds))
    return found


def _repeated(training: Training, eager: bool) -> dict[str, Callable[[], Any]]:
    """The steps of a process beside the measured one."""
    replicas = replicas_of(training, eager=eager, progress=None)
    for replica in replicas.values():
        replica.step()
    return {name: replica.step for name, replica in replicas.items()}


def replicas_of(training: Training, *, eager: bool, progress: Progress | None) -> dict[str, Replica]:
    """A module and its loss to be trained alone: compiled, with what its backwards tell, and eager behind it if that is asked for.

    Args:
        training: what to train.
        eager: whether there is eager, too.
        progress: told of the steps of the compilation.

    Raises:
        InvalidInput: nothing that can be trained.
    """
    opened, module, loss = trained_of(training)
    watch = Backwards()
    session = Session(Options.make(level=training.level, threads=training.threads), watch=watch, progress=progress)
    twin = copy.deepcopy(module)
    replicas = {"dcir": Replica("dcir", twin, compiled_with(twin, session), opened, loss, training, watch)}
    if eager:
        replicas["eager"] = Replica("eager", module, module, opened, loss, training, None)
    return replicas


def trained_of(training: Training) -> tuple[BenchModel, nn.Module, Loss]:
    """What is trained: the opened model, its module, the loss.

    Raises:
        InvalidInput: nothing that can be trained.
    """
    opened = open_model(training.source, training.shapes, training.batch)
    module = opened.module
    if not isinstance(module, nn.Module):
        raise InvalidInput("only a module has parameters to train", where=opened.name)
    if not any(p.requires_grad for p in module.parameters()):
        raise InvalidInput("the model has no parameters to train", where=opened.name)
    return opened, module, mean_squares if training.loss is None else function_of(opened, training.loss)
