"""The link between processes of this machine: latency, bandwidth and work of gloo's all_reduce between two of them."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
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

_FORMAT = "2"
_PROCESSES = 2
_SHORT, _LONG = 8, 16 << 20  # bytes: nothing but latency, and a bucket
_FAR = 128 << 20
_SHORT_TIMES, _LONG_TIMES = 200, 16
_SECONDS = 120


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
            return Link(**json.loads(known.read_text()))
        except (OSError, TypeError, ValueError):
            pass
    link = fitted(*_measured())
    if known is not None:
        known.unlink(missing_ok=True)  # what has no file is built again
    cache.get_or_build("machine", key, ".json", lambda draft: _write(draft, link))
    return link


def fitted(short: float, long: float, work: float) -> Link:
    """The link on which two processes add up ``_SHORT`` bytes in ``short`` seconds and ``_LONG`` in ``long``.

    Args:
        short, long: seconds of an exchange.
        work: processor seconds of one process in a long one.
    """
    # Along a ring of two, each sends as many bytes as there are, in two messages.
    return Link(LOCAL, _LONG / max(long - short, 1e-9), short / 2, work / _LONG)


def _write(draft: Path, link: Link) -> None:
    draft.write_text(json.dumps(link.to_json(), sort_keys=True) + "\n")


def _measured() -> tuple[float, float, float]:
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
            short, long, work = ours.recv()
        except EOFError:
            raise InvalidInput("no link could be measured: a process that was to exchange over gloo ended") from None
        finally:
            for process in processes:
                end(process)
            ours.close()
    return short, long, work


def _exchange(rank: int, meeting: str, pipe: Connection | None) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=_PROCESSES)
    with pinned(cores_of(rank, 1, _PROCESSES)):
        short, _ = _all_reduce(_SHORT, _SHORT_TIMES)
        long, work = _all_reduce(_LONG, _LONG_TIMES)
    distributed.barrier()
    if pipe is not None:
        pipe.send((short, long, work))
    distributed.destroy_process_group()


def _all_reduce(nbytes: int, times: int) -> tuple[float, float]:
    """Median seconds of an exchange, and processor seconds of this process in one."""
    # Gradients come from memory, not from a cache that the exchange before has left them in.
    blocks: list[Any] = [torch.zeros(nbytes // 4) for _ in range(max(1, min(times, _FAR // nbytes)))]
    taken = []
    for block in blocks:
        distributed.all_reduce(block)
    start = time.process_time()
    for number in range(times):
        begin = time.perf_counter()
        distributed.all_reduce(blocks[number % len(blocks)])
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken), (time.process_time() - start) / times
