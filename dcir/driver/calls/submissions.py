"""Calls of an optimised module or function that run on streams: what may be submitted, how many streams there are, results in order."""

from __future__ import annotations

import collections
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.utils import _pytree as pytree

from dcir import cores
from dcir.cost.stream_number import StreamNumber, asked_for, chosen
from dcir.driver.calls.stream_pool import StreamPool
from dcir.driver.calls.team_of_thread import shares, team_of
from dcir.driver.measure.machine import rates
from dcir.errors import InvalidInput, OptionError

if TYPE_CHECKING:
    from dcir.driver.session import Session

# Kinds of calls the first of which runs alone, lest two threads compile the same; what varies more has one program for many kinds.
_KINDS = 16
_END = object()


class Submissions:
    """The streams of one optimised callable, made when the first call is submitted.

    Args:
        session: of the callable; it keeps how many streams there are.
        name: of the callable.
        target: gives the callable, which owns this.
        forget: drops what was compiled of it.
    """

    def __init__(
        self, session: Session, name: str, target: Callable[[], Any], forget: Callable[[], None] = lambda: None
    ) -> None:
        self._session, self._name, self._target, self._forget = session, name, target, forget
        self._pool: StreamPool | None = None
        self._making, self._alone = threading.Lock(), threading.Lock()
        self._known: set[Any] = set()

    def submit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        """See ``Handle.submit``."""
        fast = self._target()
        leaves = pytree.tree_leaves((args, kwargs)) if kwargs or not _plain(args) else args
        _refuse(fast, leaves)
        call = functools.partial(self._call, fast, args, kwargs, tuple(map(_kind, leaves)))
        return self._pool_for(call).submit(call)

    def map(self, iterables: Iterable[Iterable[Any]]) -> Iterator[Any]:
        """See ``Handle.map``."""
        ahead: collections.deque[Future[Any]] = collections.deque()
        try:
            for number, args in enumerate(itertools.zip_longest(*iterables, fillvalue=_END)):
                if any(value is _END for value in args):
                    raise InvalidInput(
                        f"{sum(value is _END for value in args)} of {len(args)} iterables have {number} values, and others more",
                        where="fast.dcir.map", hint="one value for each call from every iterable",
                    )  # fmt: skip
                ahead.append(self.submit(args, {}))
                if self._pool is not None and len(ahead) >= self._pool.bound:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()

    def _call(self, fast: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kind: Any) -> Any:
        if kind in self._known or len(self._known) >= _KINDS:
            return fast(*args, **kwargs)
        with self._alone:
            if kind not in self._known:
                result = fast(*args, **kwargs)
                self._known.add(kind)
                return result
        return fast(*args, **kwargs)

    def _pool_for(self, call: Callable[[], Any]) -> StreamPool:
        pool = self._pool
        if pool is not None and pool.process == os.getpid():
            return pool
        with self._making:
            pool = self._pool
            if pool is None or pool.process != os.getpid():
                number = self._number(call)
                places = shares(number.streams, number.threads)
                pool = self._pool = StreamPool(places, number.threads, self._name)
            return pool

    def _number(self, call: Callable[[], Any]) -> StreamNumber:
        """How many streams there are; where that is to be chosen, ``call`` is run to see what it takes."""
        session = self._session
        if session.streams is None:
            processors = usable(session)
            if not session.graphs:
                first = StreamPool([frozenset()], 1, self._name)
                first.submit(call).exception()
                first.close()
            done = [g for g in session.graphs if g.kind == "inference"]
            if not done:
                session.streams = StreamNumber(processors, 1, "nothing of the first call was compiled")
                return session.streams
            work = [row for g in done for row in g.work]
            session.streams = chosen(
                work, _weights(self._target()), max(g.arena_bytes for g in done), processors, rates()
            )
            if session.streams.threads != 1:
                self._known.clear()
                self._forget()  # what was made for one thread
        return session.streams


def usable(session: Session) -> int:
    """Processors that all streams have together."""
    return max(1, min(cores.usable_threads(), session.options.threads or torch.get_num_threads()))


def with_streams(session: Session) -> None:
    """Note how many streams there are, if the user said so.

    Raises:
        OptionError: more than torch has threads for.
    """
    streams = session.options.streams
    if session.options.hint != "throughput" or streams is None:
        return
    if streams > cores.usable_threads():  # options that came from another machine
        raise OptionError(f"{streams} streams want a processor each, and {cores.usable_threads()} can be used")
    session.streams = asked_for(streams, max(streams, usable(session)))


def as_a_stream(call: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """``call`` with the team that a stream has, so that it is the same program with the same results; unless one call has all threads."""
    if session.options.hint != "throughput":
        return call

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return call(*args, **kwargs)
        with team_of(1 if session.streams is None else session.streams.threads):
            return call(*args, **kwargs)

    return run


def _plain(args: tuple[Any, ...]) -> bool:
    return all(type(a) is torch.Tensor for a in args)


def _kind(value: Any) -> Any:
    """What of an input decides how it is compiled."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    return value if isinstance(value, int | float | str | None) else type(value)


def _refuse(fast: Any, leaves: Iterable[Any]) -> None:
    """Refuse what another thread would compute otherwise than the caller's.

    Raises:
        InvalidInput: the call wants gradients, trains, or is made in a mode.
    """
    module = fast if isinstance(fast, nn.Module) else None
    if module is not None and module.training:
        raise InvalidInput(
            "a module in training mode changes with every call, and submitted calls run at the same time",
            where=type(module).__name__, hint="fast.eval(), or call the module itself",
        )  # fmt: skip
    if torch.is_grad_enabled():
        wanted = [f"input {i}" for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.requires_grad]
        if not wanted and module is not None:
            wanted = [name for name, p in module.named_parameters() if p.requires_grad][:1]
        if wanted:
            raise InvalidInput(
                "a submitted call has no gradients, and they are asked for", where=wanted[0],
                hint="submit inside torch.no_grad(); call the module itself to train it",
            )  # fmt: skip
    modes = {
        "torch.autocast": torch._C._is_any_autocast_enabled(),
        "a mode of torch functions, such as a default device": torch._C._len_torch_function_stack() > 0,
        "a dispatch mode": torch._C._len_torch_dispatch_stack() > 0,
        "a transform of torch.func": torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0,
    }
    for mode, on in modes.items():
        if on:
            raise InvalidInput(
                f"{mode} is on in this thread, and a submitted call runs in another", hint="put it into the model's forward"
            )  # fmt: skip


def _weights(target: Any) -> int:
    """Bytes of a module's parameters and buffers."""
    if not isinstance(target, nn.Module):
        return 0
    return sum(t.nbytes for t in (*target.parameters(), *target.buffers()))
