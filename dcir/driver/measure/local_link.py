"""The link between processes of this machine: latency, bandwidth and work of gloo's all_reduce between two of them.

What gloo sends it copies on the processors that compute. Whoever waits has them for the exchange alone; beside computing, each message
waits until its thread is let in at both ends, and computing loses more than the copies take. So both are measured: exchanges that are
waited for, and exchanges under way while both processes multiply matrices.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing

from dcir.cache import Cache, key_of
from dcir.cores import usable_threads
from dcir.cost.links import LOCAL, Link, parse_link
from dcir.driver.measure.beside import cores_of, end, pinned
from dcir.driver.targets.host import host_machine
from dcir.errors import InvalidInput

_FORMAT = "3"
_PROCESSES = 2
_SHORT, _LONG = 8, 16 << 20  # bytes: nothing but latency, and a bucket
_FAR = 128 << 20
_SHORT_TIMES, _LONG_TIMES = 200, 16
_SECONDS = 120
_ROWS, _SIDE = 128, 512  # of the products meanwhile: some tenths of a millisecond each
_PRODUCTS, _ROUNDS = 100, 5


@dataclass(frozen=True)
class Exchanges:
    """What two processes of this machine were measured at.

    Attributes:
        short, long: seconds until an exchange of few and of many bytes has ended, which both wait for.
        short_computing, long_computing: the same while both compute.
        lost: seconds of a processor that a long one costs then.
    """

    short: float
    long: float
    short_computing: float
    long_computing: float
    lost: float


def link_of(text: str) -> Link:
    """The link that a user names; ``local`` is measured the first time.

    Raises:
        OptionError: no link at all.
        InvalidInput: the processes that measure failed.
    """
    return local_link() if text.strip().lower() == LOCAL else parse_link(text)


def local_link(*, again: bool = False, cache: Cache | None = None) -> Link:
    """What gloo does between two processes of one thread each on this machine, from the cache or by measuring for a few seconds.

    Args:
        again: measure although the cache has a result.
        cache: where it is kept.

    Raises:
        InvalidInput: the processes that measure failed.
    """
    cache = cache or Cache.default()
    key = key_of("link", _FORMAT, torch.__version__, host_machine().identity, str(usable_threads()))
    known = cache.path_of("machine", key, ".json")
    if known is not None and not again:
        try:
            return Link.from_json(json.loads(known.read_text()))
        except (OSError, TypeError, ValueError):
            pass
    link = fitted(_measured())
    if known is not None:
        known.unlink(missing_ok=True)  # what has no file is built again
    cache.get_or_build("machine", key, ".json", lambda draft: _write(draft, link))
    return link


def fitted(found: Exchanges) -> Link:
    """The link on which two processes take as long as was measured."""
    return Link(
        LOCAL,
        *_line(found.short, found.long),
        found.lost / _LONG,
        computing=_line(found.short_computing, found.long_computing),
    )


def _line(short: float, long: float) -> tuple[float, float]:
    """Bandwidth and latency: along a ring of two, each sends as many bytes as there are, in two messages."""
    return _LONG / max(long - short, 1e-9), short / 2


def _write(draft: Path, link: Link) -> None:
    draft.write_text(json.dumps(link.to_json(), sort_keys=True) + "\n")


def _measured() -> Exchanges:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="dcir-") as folder:
        ours, theirs = context.Pipe()
        processes: list[Any] = []
        try:
            for rank in range(_PROCESSES):
                args = (rank, f"{folder}/meeting", theirs if rank == 0 else None)
                process = context.Process(target=_exchange, args=args, daemon=True)
                process.start()
                processes.append(process)
            theirs.close()
            if not ours.poll(_SECONDS):
                raise InvalidInput("no link could be measured: two processes of this machine did not meet over gloo")
            found: Exchanges = ours.recv()
        except EOFError:
            raise InvalidInput("no link could be measured: a process that was to exchange over gloo ended") from None
        finally:
            for process in processes:
                end(process)
            ours.close()
    return found


def _exchange(rank: int, meeting: str, pipe: Connection | None) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=_PROCESSES)
    with pinned(cores_of(rank, 1, _PROCESSES)):
        short, long = _waited_for(_SHORT, _SHORT_TIMES), _waited_for(_LONG, _LONG_TIMES)
        product = _product()
        short_computing, _ = _computing(_SHORT, _SHORT_TIMES, product)
        long_computing, lost = _computing(_LONG, _FAR // _LONG, product)
    distributed.barrier()
    if pipe is not None:
        pipe.send(Exchanges(short, long, short_computing, long_computing, lost))
    distributed.destroy_process_group()


def _product() -> Callable[[], Any]:
    rows, matrix, result = (torch.zeros(n, _SIDE) for n in (_ROWS, _SIDE, _ROWS))
    return lambda: torch.mm(rows, matrix, out=result)


def _median(call: Callable[[], Any], times: int) -> float:
    """Median seconds of a call."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def _blocks(nbytes: int, times: int) -> list[torch.Tensor]:
    """What is exchanged: gradients come from memory, not from a cache that the exchange before has left them in."""
    blocks = [torch.zeros(nbytes // 4) for _ in range(max(1, min(times, _FAR // nbytes)))]
    for block in blocks:
        distributed.all_reduce(block)
    return blocks


def _waited_for(nbytes: int, times: int) -> float:
    """Median seconds of an exchange that is waited for."""
    blocks = itertools.cycle(_blocks(nbytes, times))
    return _median(lambda: distributed.all_reduce(next(blocks)), times)


def _computing(nbytes: int, times: int, product: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of an exchange among others while this process computes, and a processor's for it; medians.

    Args:
        nbytes: of an exchange.
        times: how many are under way, one after the other.
        product: what is computed.
    """
    blocks = _blocks(nbytes, times)  # of its own for each
    taken, lost = [], []
    for _ in range(_ROUNDS):
        distributed.barrier()
        begin = time.process_time()
        for _ in range(_PRODUCTS):
            product()
        seconds = (time.process_time() - begin) / _PRODUCTS
        distributed.barrier()
        begin, work, done = time.perf_counter(), time.process_time(), 0
        under_way: list[Any] = [distributed.all_reduce(block, async_op=True) for block in blocks]
        while not all(exchange.is_completed() for exchange in under_way):
            product()
            done += 1
        taken.append((time.perf_counter() - begin) / times)
        # Not by the clock, on which it would show what other programs take meanwhile.
        lost.append(max(0.0, time.process_time() - work - done * seconds) / times)
        for exchange in under_way:
            exchange.wait()
    return statistics.median(taken), statistics.median(lost)
