"""Threads that run calls at the same time, each with a team and processors of its own; a bounded queue in front of them.

A call that was handed over is run, whatever becomes of who handed it over: the threads end when the pool is closed, or nobody has it any
more, and the queue is empty. At the end of the interpreter they are waited for.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from typing import Any

import torch

from dcir.driver.calls.team_of_thread import pin, set_team
from dcir.errors import InvalidInput

_WAITING = 1
_POOLS: weakref.WeakSet[StreamPool] = weakref.WeakSet()
_MANY = 1 << 18  # elements that torch divides among a team

_Item = tuple["Future[Any]", Callable[[], Any]]


class StreamPool:
    """A thread for each stream; a forked process has none of them, and makes a pool of its own.

    Attributes:
        bound: how many calls may be under way or waiting: two for each stream.
        process: whose the threads are.

    Args:
        places: processors of each stream; none leaves them to the system.
        threads: of a stream's team, its own included.
        name: of what is called.
    """

    def __init__(self, places: Sequence[Set[int]], threads: int, name: str) -> None:
        self.bound, self.process = (1 + _WAITING) * len(places), os.getpid()
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._slots = threading.BoundedSemaphore(self.bound)
        # They know the queue and not the pool, which would never end else.
        self._threads = [
            threading.Thread(
                target=_serve, args=(self._queue, self._slots, to, threads), name=f"dcir {name} {i}", daemon=True
            )
            for i, to in enumerate(places)
        ]
        for thread in self._threads:
            thread.start()
        self._end = weakref.finalize(self, _let_end, self._queue, len(places))
        self._end.atexit = False
        _POOLS.add(self)

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Have a call run; waits while ``bound`` others are not done.

        Raises:
            InvalidInput: the pool is closed; or one of its own threads would wait for itself.
        """
        own = threading.current_thread() in self._threads
        if not self._slots.acquire(blocking=not own):
            raise InvalidInput(
                f"{self.bound} calls are under way or waiting, and this one comes from the end of one of them",
                where="a function given to add_done_callback", hint="submit it from another thread",
            )  # fmt: skip
        if not self._end.alive:
            self._slots.release()
            raise InvalidInput("the streams of this module are closed", hint="submit before the program ends")
        future: Future[Any] = Future()
        self._queue.put((future, call))
        return future

    def close(self) -> None:
        """Have the threads end once everything is run."""
        self._end()

    def join(self) -> None:
        """Wait until they have ended."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


def _let_end(waiting: queue.SimpleQueue[_Item | None], threads: int) -> None:
    for _ in range(threads):
        waiting.put(None)


def _close_all() -> None:
    # Threads that came back from a kernel while the interpreter is taken apart would be ended in the middle of C++.
    pools = list(_POOLS)
    for pool in pools:
        pool.close()
    for pool in pools:
        pool.join()


# Before those of concurrent.futures end, which run compilers; they are ended in the same way, the youngest first, before all of atexit.
getattr(threading, "_register_atexit", atexit.register)(_close_all)


def _serve(waiting: queue.SimpleQueue[_Item | None], slots: threading.Semaphore, to: Set[int], threads: int) -> None:
    pin(to)
    set_team(threads)
    if (
        threads > 1 and to
    ):  # the team is made now that it inherits the processors; a compilation may be the first to want one
        torch.ones(_MANY).add_(1)
    with torch.no_grad():
        while _run_next(waiting):
            slots.release()


def _run_next(waiting: queue.SimpleQueue[_Item | None]) -> bool:
    """Run a call; False where there are to be no more."""
    item = waiting.get()
    if item is None:
        return False
    future, call = item
    del item
    if not future.set_running_or_notify_cancel():
        return True
    # Whoever hears that it is done may let go of everything: nothing may be held here, the call neither nor, by an error, this frame.
    try:
        result = call()
    except BaseException as error:
        del call
        future.set_exception(error)
        del future
    else:
        del call
        future.set_result(result)
    return True
