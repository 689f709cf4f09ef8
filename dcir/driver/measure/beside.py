"""Other processes that compute the same while something is measured: processes of one machine share its memory and its caches."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from dcir.errors import InvalidInput

_START_SECONDS = 600
"""Of a process that imports torch and compiles a model, on a machine that others use, too."""
_END_SECONDS = 10

Steps = Mapping[str, Callable[[], Any]]


def cores_of(number: int, threads: int, processes: int) -> set[int] | None:
    """Cores for one of several processes of this machine that each have ``threads``; None where there are not enough for all."""
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return None
    return set(cores[number * threads :][:threads]) if processes * threads <= len(cores) else None


@contextlib.contextmanager
def pinned(cores: set[int] | None) -> Iterator[None]:
    """All threads of this process on some cores while this lasts; wherever they are with None."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    _pin(cores)
    try:
        yield
    finally:
        _pin(before)


def _pin(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # one that has just ended
            os.sched_setaffinity(int(thread.name), cores)


class Beside:
    """Processes that repeat one of their steps until they are told to stop."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[None]:
        """The others repeat the step of this name while this lasts."""
        self._all(name)
        try:
            yield
        finally:
            self._all(None)

    def _all(self, word: str | None) -> None:
        for pipe in self._pipes:
            pipe.send(word)
        for pipe in self._pipes:
            _answer(pipe)


@contextlib.contextmanager
def beside(count: int, threads: int, make: Callable[..., Steps], *args: Any) -> Iterator[Beside]:
    """``count`` processes with the steps that ``make(*args)`` gives in each; this process has the first cores, they the next.

    Args:
        count: of other processes; may be none.
        threads: of each.
        make: a function of a module, with arguments that can be pickled.

    Raises:
        InvalidInput: one of them ended.
    """
    # A forked process has its parent's record of a team of threads, but not the threads.
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for number in range(1, count + 1):
            ours, theirs = context.Pipe()
            cores = cores_of(number, threads, count + 1)
            process = context.Process(target=_serve, args=(theirs, threads, cores, make, args), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _answer(pipe)
        yield Beside(pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            end(process)


def end(process: Any) -> None:
    """Wait for a process that is about to end, and not for long."""
    process.join(_END_SECONDS)
    process.kill()
    process.join()


def _answer(pipe: Connection) -> None:
    if not pipe.poll(_START_SECONDS):
        raise InvalidInput("a process that was to compute beside the measured one does not answer")
    try:
        problem = pipe.recv()
    except EOFError:
        problem = "it ended"
    if problem is not None:
        raise InvalidInput("a process that was to compute beside the measured one failed", details=[("there", problem)])


def _serve(pipe: Connection, threads: int, cores: set[int] | None, make: Callable[..., Steps], args: Any) -> None:
    warnings.simplefilter("ignore")
    try:
        torch.set_num_threads(threads)
        steps = make(*args)
        with pinned(cores):
            pipe.send(None)
            while True:
                step = steps.get(pipe.recv())
                pipe.send(None)
                if step is not None:
                    step()  # once at least, however soon it is to end
                while step is not None and not pipe.poll():
                    step()
    except EOFError:
        return
    except Exception as e:
        pipe.send(f"{type(e).__name__}: {e}")
