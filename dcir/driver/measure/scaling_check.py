"""Trains with several processes of this machine over gloo, in turns with steps alone, to hold predictions against it."""

from __future__ import annotations

import copy
import statistics
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from dcir.cores import usable_threads
from dcir.cost.links import LOCAL
from dcir.driver.measure.beside import cores_of, end, pinned
from dcir.driver.measure.local_link import link_of
from dcir.driver.measure.machine import share_of_others
from dcir.driver.measure.scaling import replicas_of, trained_of
from dcir.driver.measure.training_step import Replica, Training
from dcir.driver.optimize import compiled_with
from dcir.driver.session import Progress, Session
from dcir.errors import InvalidInput, OptionError
from dcir.options import Options
from dcir.report.scaling import CAP, MIB, TrainingStep
from dcir.report.scaling_check import CheckedTurn, ScalingCheck

Turn = dict[str, tuple[TrainingStep, float]]
"""What one process measured of each way: a step alone, and milliseconds of one with exchanges."""

MOST = 64
_TURNS = 5
_LEAST = 3
_STEPS = 1000
_ANSWER_SECONDS = 900
"""Of processes that import torch and compile, more of them than there are cores."""


def scaling_check(
    source: str,
    nodes: Sequence[int],
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
    eager: bool = True,
    progress: Progress | None = None,
) -> ScalingCheck:
    """Predict steps of several processes of this machine, and measure them.

    In each turn all processes measure a step alone, at once, of which the prediction is made, and then train under
    ``DistributedDataParallel``.

    Args:
        source, level, shapes, batch, loss, optimiser: see ``Training``.
        nodes: numbers of processes, from two up.
        seconds: how long to measure each way, in all turns together.
        threads: of each process; as many as leave every process its own cores unless given, and one at least.
        bucket_mib: ``bucket_cap_mb`` of ``DistributedDataParallel``.
        algorithm: of the predicted exchanges, of ``cost.links.ALGORITHMS``.
        eager: whether to check eager PyTorch, too.
        progress: told of the processes that have been measured.

    Raises:
        OptionError: fewer than two processes, or too many.
        InvalidInput: nothing that can be trained, or a process failed.
    """
    if not nodes or min(nodes) < 2 or max(nodes) > MOST:
        raise OptionError(
            "processes of this machine are measured", where=f"--check {','.join(map(str, nodes))}", hint=f"2 to {MOST}"
        )
    cores = usable_threads()
    trainings = {
        n: Training(source, shapes, batch, loss, optimiser, level, threads or max(1, cores // n)) for n in nodes
    }
    trained_of(trainings[nodes[0]])  # before any process is started
    found = ScalingCheck(source, link_of(LOCAL), algorithm, round(bucket_mib * MIB))
    for number, (n, training) in enumerate(trainings.items()):
        if progress is not None:
            progress("processes", number, len(trainings))
        if n * training.threads > cores:
            found.notes.append(
                f"{n} processes of {training.threads} thread{'s' * (training.threads != 1)} share {cores} cores: their exchanges have none"
            )
        measured: list[list[Turn]] = []

        def work(into: list[list[Turn]] = measured, n: int = n, training: Training = training) -> None:
            into.extend(_measured(training, n, bucket_mib, seconds, eager=eager))

        found.others = max(found.others, share_of_others(cores, work))
        turns = list(zip(*measured, strict=True))
        for name in turns[0][0]:
            found.add(name, n, training.threads, [_turn_of(turn, name) for turn in turns])
    return found


def _turn_of(turn: Sequence[Turn], name: str) -> CheckedTurn:
    """What all processes measured of one way in a turn."""
    return CheckedTurn(tuple(own[name][0] for own in turn), tuple(own[name][1] for own in turn))


def _measured(training: Training, nodes: int, bucket_mib: float, seconds: float, *, eager: bool) -> list[list[Turn]]:
    """The turns of each process.

    Raises:
        InvalidInput: a process failed.
    """
    # A forked process has its parent's record of a team of threads, but not the threads.
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    processes: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="dcir-") as folder:
        try:
            for rank in range(nodes):
                ours, theirs = context.Pipe()
                args = (theirs, f"{folder}/meeting", rank, nodes, training, bucket_mib, seconds, eager)
                process = context.Process(target=_serve, args=args, daemon=True)
                process.start()
                theirs.close()
                pipes.append(ours)
                processes.append(process)
            return _answers(pipes)
        except BaseException:
            for process in processes:
                process.kill()  # they may wait for one that has failed
            raise
        finally:
            for pipe in pipes:
                pipe.close()
            for process in processes:
                end(process)


def _answers(pipes: Sequence[Connection]) -> list[list[Turn]]:
    """What each process sends in the end; the first that fails is told, and nobody waits for those that wait for it."""
    found: dict[Connection, list[Turn]] = {}
    while left := [pipe for pipe in pipes if pipe not in found]:
        ready = wait(left, _ANSWER_SECONDS)
        if not ready:
            raise InvalidInput("processes that were to train together do not answer")
        for pipe in left:
            if pipe not in ready:
                continue
            try:
                problem, turns = pipe.recv()
            except EOFError:
                problem, turns = "it ended", []
            if problem:
                raise InvalidInput("a process that was to train with others failed", details=[("there", problem)])
            found[pipe] = turns
    return [found[pipe] for pipe in pipes]


def _serve(
    pipe: Connection, meeting: str, rank: int, nodes: int, training: Training, bucket_mib: float, seconds: float, eager: bool
) -> None:  # fmt: skip
    warnings.simplefilter("ignore")
    try:
        torch.set_num_threads(training.threads)
        distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=nodes, timeout=timedelta(seconds=_ANSWER_SECONDS)
        )  # fmt: skip
        alone = replicas_of(training, eager=eager, progress=None)
        for replica in alone.values():
            replica.warm_up()
        together = _together(training, bucket_mib, eager=eager)
        for replica in together.values():
            distributed.barrier()  # before it, processes compile for different times
            replica.warm_up()
        with pinned(cores_of(rank, training.threads, nodes)):
            turns = [_turn(alone, together, seconds / _TURNS) for _ in range(_TURNS)]
        distributed.barrier()
        pipe.send(("", turns))
        distributed.destroy_process_group()
    except Exception as e:
        pipe.send((f"{type(e).__name__}: {e}", []))


def _together(training: Training, bucket_mib: float, *, eager: bool) -> dict[str, Replica]:
    """Replicas that exchange their gradients; how dcir's backward is cut is up to it, so nobody watches."""
    opened, module, loss = trained_of(training)
    twin = copy.deepcopy(module)
    modules: dict[str, tuple[nn.Module, Any]] = {
        "dcir": (twin, compiled_with(twin, Session(Options.make(level=training.level, threads=training.threads))))
    }
    if eager:
        modules["eager"] = module, module
    # Torch's first bucket is smaller unless it is told a size.
    bucket: dict[str, Any] = {} if round(bucket_mib * MIB) == CAP else {"bucket_cap_mb": bucket_mib}
    return {
        name: Replica(name, own, DistributedDataParallel(call, **bucket), opened, loss, training, None)
        for name, (own, call) in modules.items()
    }


def _turn(alone: Mapping[str, Replica], together: Mapping[str, Replica], seconds: float) -> Turn:
    """Each way alone, in all processes at once, and then with exchanges."""
    found: Turn = {}
    for name, replica in alone.items():
        distributed.barrier()
        step = replica.measured(seconds)
        count = torch.tensor(min(_STEPS, max(_LEAST, round(seconds / max(step.alone_ms * 1e-3, 1e-6)))))
        distributed.all_reduce(
            count, distributed.ReduceOp.MAX
        )  # as many steps in all, or they wait for each other in vain
        together[name].step()
        clocks = [together[name].step() for _ in range(int(count))]
        given = replica.training.given_ms
        times = [(c[3] - c[0]) * 1e3 if given is None else (c[2] - c[0]) * 1e3 + given for c in clocks]
        found[name] = step, statistics.median(times)
    return found
