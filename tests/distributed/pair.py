"""Two processes that compute together over gloo, or more, and run what a test hands them.

Starting a process costs seconds of imports, so the processes stay for all tests of a file; a pair in which something failed is
replaced, since its process group may be out of step.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

RANKS = 2
SECONDS = 60
"""What the slowest test may take for each process, on a machine of two cores that is shared with others."""


class Pair:
    """The processes; they are started when they are first needed.

    Args:
        folder: where they meet.
        ranks: how many there are.
    """

    def __init__(self, folder: Path, ranks: int = RANKS) -> None:
        self._folder, self.ranks = folder, ranks
        self._numbers = itertools.count()
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        """What ``job(rank, *args)`` returns in each process."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((job, args))
        results, failed = self._replies()
        if failed:
            self.end()
            raise AssertionError("\n".join(f"process {rank}: {text}" for rank, text in sorted(failed.items())))
        return [results[rank] for rank in range(self.ranks)]

    def _replies(self) -> tuple[dict[int, Any], dict[int, str]]:
        """What came back, and what went wrong, by process; whoever waits for one that has failed is not waited for."""
        results: dict[int, Any] = {}
        failed: dict[int, str] = {}
        seconds = SECONDS * self.ranks
        end = time.monotonic() + seconds
        while left := [p for rank, p in enumerate(self._pipes) if rank not in results and rank not in failed]:
            ready = wait(left, 5 if failed else max(end - time.monotonic(), 0))
            if not ready:
                return results, failed or {self._pipes.index(p): f"no answer within {seconds} s" for p in left}
            rank = self._pipes.index(ready[0])
            try:
                well, value = self._pipes[rank].recv()
            except EOFError:
                well, value = False, "ended"
            (results if well else failed)[rank] = value
        return results, failed

    def _start(self) -> None:
        # A forked process has its parent's record of a team of threads, but not the threads.
        context = multiprocessing.get_context("spawn")
        meeting = self._folder / f"meeting{next(self._numbers)}"
        for rank in range(self.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.ranks, str(meeting), theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def end(self) -> None:
        """Stop the processes."""
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()
        self._processes, self._pipes = [], []


@contextlib.contextmanager
def pair(ranks: int = RANKS) -> Iterator[Pair]:
    """A pair, or more processes, ended at the end."""
    with tempfile.TemporaryDirectory() as folder:
        processes = Pair(Path(folder), ranks)
        try:
            yield processes
        finally:
            processes.end()


def _serve(rank: int, ranks: int, meeting: str, pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    while True:
        job, args = pipe.recv()
        try:
            pipe.send((True, job(rank, *args)))
        except Exception:
            pipe.send((False, traceback.format_exc()[-4000:]))
        torch._dynamo.reset()
