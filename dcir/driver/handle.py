"""What one optimised module, function or graph answers about itself, and the list of all that are alive: ``dcir.sessions()``."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from dcir.driver.calls.submissions import Submissions
from dcir.driver.measure.machine import rates
from dcir.driver.session import Session
from dcir.driver.uncompiled import Uncompiled
from dcir.errors import InvalidInput, OptionError
from dcir.options import Options
from dcir.report.explain import Report
from dcir.report.profile import Profile
from dcir.report.remarks import Remarks

if TYPE_CHECKING:
    from dcir.driver.view.view import View
    from dcir.view.server import Server

_NUMBERS = itertools.count()
_ALIVE: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()


def sessions() -> list[Handle]:
    """The handles of all that is optimised in this process and still alive, oldest first.

    Those of ``dcir.optimize`` and ``dcir.train_step`` are what ``.dcir`` of their results is. ``torch.compile(backend="dcir")`` leaves one
    for every graph that Dynamo hands over.
    """
    return [handle for _, handle in sorted(_ALIVE.items(), key=lambda item: item[0])]


class Handle:
    """What ``optimized.dcir`` offers: the options, the records of every compiled graph, and their explanation.

    Attributes:
        session: options and records.
        name: of what is compiled.

    Args:
        plain: gives what was optimised as it was before, to be profiled; None where a call cannot be repeated.
        compiled: compiles that with another session.
        submissions: runs calls of it on streams; None where there are no calls to submit.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        plain: Callable[[], Any] | None = None,
        compiled: Callable[[Any, Session], Callable[..., Any]] | None = None,
        submissions: Submissions | None = None,
    ) -> None:
        self.session, self.name, self._plain, self._compiled = session, name, plain, compiled
        self._submissions = submissions
        session.name = name
        _ALIVE[next(_NUMBERS)] = self

    def __repr__(self) -> str:
        return f"<dcir of {self.name}: {len(self.session.graphs)} graphs>"

    @property
    def options(self) -> Options:
        """The options the module was optimised with."""
        return self.session.options

    def _repr_html_(self) -> str:
        from dcir.report.notebook import report_html

        return report_html(self.explain(), f"{self.name}, compiled by dcir at level {self.options.level}")

    def explain(self, *, remarks: bool = False) -> Report:
        """What was done: operators, calls into torch, graph breaks, bytes and time per tier. Call the module first.

        Args:
            remarks: whether to show as well what passes said of each place.

        Raises:
            OptionError: remarks are asked for, and were not recorded.
        """
        if remarks:
            self._recorded()
        coverage = self.session.coverage
        return Report(
            self.session.graphs,
            coverage.breaks,
            rates(),
            self._compared(),
            [*coverage.found, *self._under_way()],
            coverage.calls,
            self.session.streams,
            self.options.skip,
            Remarks.of(self.session.graphs) if remarks else None,
        )

    def remarks(self, *, operator: str | None = None, by: str | None = None, kind: str | None = None) -> Remarks:
        """What passes said of each place: rewritten, not rewritten and why, found out. Call the module first.

        Args:
            operator, by, kind: which of them (``report.remarks.Remarks.where``); all unless given.

        Raises:
            OptionError: remarks were not recorded, or there is no such kind.
        """
        self._recorded()
        return Remarks.of(self.session.graphs).where(operator=operator, by=by, kind=kind)

    def _recorded(self) -> None:
        if not self.options.remarks:
            raise OptionError(
                "remarks are recorded where they are asked for before a graph is compiled", where="remarks=False",
                hint="dcir.optimize(model, remarks=True)",
            )  # fmt: skip

    def submit(self, /, *inputs: Any, **named: Any) -> Future[Any]:
        """Have a call run on one of the streams of ``hint="throughput"``, and go on; ``result()`` of what is returned waits for it.

        Two calls for each stream may be under way or waiting: one more waits here until one of them is done. They begin in order, and
        see parameters as they are when they run: change them when all are done. Inputs must stay as they are until then, too. No
        gradients are computed. What the module writes to itself in eval mode, calls at the same time write without an order.

        Args:
            inputs, named: the call.

        Returns:
            A ``concurrent.futures.Future``; an exception of the call arrives there.

        Raises:
            InvalidInput: the call wants gradients, trains, or is made under autocast or another mode of this thread.
            OptionError: this was optimised for latency.
        """
        return self._streams().submit(inputs, named)

    def map(self, /, *iterables: Iterable[Any]) -> Iterator[Any]:
        """The results of calls with one input from each iterable, in order; two calls for each stream run ahead.

        Raises:
            InvalidInput, OptionError: as by ``submit``; if an iterable ends before another; and what a call raises, in its turn.
        """
        return self._streams().map(iterables)

    def gather(self, futures: Iterable[Future[Any]]) -> list[Any]:
        """The results of submitted calls, in the order of ``futures``; raises what the first of them that failed did."""
        return [future.result() for future in list(futures)]

    def _streams(self) -> Submissions:
        if self._submissions is None or self.options.hint != "throughput":
            raise OptionError(
                "calls that are submitted run on streams, and there are none", where=f"hint={self.options.hint!r}",
                hint="dcir.optimize(model, hint='throughput')",
            )  # fmt: skip
        return self._submissions

    def refresh(self) -> None:
        """Compute anew, in the next call, what was computed from parameters: for ``prepare="frozen"`` after they changed."""
        for program in list(self.session.programs):
            program.preparation.refresh()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is compiled behind the calls any more (``background=True``); whether that is so.

        Args:
            timeout: how many seconds at most; None: as long as it takes.
        """
        return self.session.later is None or self.session.background.wait(timeout)

    def _under_way(self) -> list[Uncompiled]:
        """That torch runs calls, while it does so."""
        if self.wait(0):
            return []
        return [
            Uncompiled(
                "programs are made behind the calls, which PyTorch runs until then", "", "fast.dcir.wait()", whole=False
            )
        ]

    def _compared(self) -> list[tuple[int, str]]:
        """(bytes, reason) of the parameters that each program compares in every call."""
        return [row for program in list(self.session.programs) for row in program.preparation.compared()]

    def profile(self, /, *inputs: Any, seconds: float = 2.0, loss: Any = None, **named: Any) -> Profile:
        """Where the time of a call goes, kernel by kernel.

        Args:
            inputs, named: the call.
            seconds: how long to measure.
            loss: a function from what the call returns to a scalar; if given, the backward pass is measured too.

        A twin of the model with a clock in its driver is compiled for it; the model itself stays as it is.
        """
        from dcir.driver.measure.profile import profile

        if self._plain is None or self._compiled is None:
            raise InvalidInput(
                "a training step cannot be called without changing the model",
                hint="dcir.optimize(model).dcir.profile(inputs, loss=...) measures forward and backward",
            )
        return profile(self._plain(), self._compiled, self.options, inputs, named, seconds=seconds, loss=loss)

    def report(
        self, /, *inputs: Any, seconds: float | None = None, loss: Callable[[Any], Any] | None = None, **named: Any
    ) -> View:
        """All that became of a call, to be saved: ``report(x).save("report.html")`` writes a page that needs nothing else.

        Args:
            inputs, named: the call, of which a twin of the model is compiled. Without them it is about what was compiled with
                ``history=True``.
            seconds: how long to measure the twin; None compiles no code for it.
            loss: a function from what the call returns to a scalar; if given, the backward pass is looked at too.

        Raises:
            OptionError: there are no inputs, and nothing was kept.
            InvalidInput: a training step or a graph of ``torch.compile``, of which there is no twin.
        """
        from dcir.driver.view.view import view_kept, view_module

        if inputs or named:
            if self._plain is None or self._compiled is None:
                raise InvalidInput(
                    "there is no twin of this that could be called", where=self.name,
                    hint="history=True where it is compiled, then report() or view() without inputs",
                )  # fmt: skip
            return view_module(
                self.name, self._plain, self._compiled, self.options, inputs, named, loss=loss, seconds=seconds
            )
        if self.session.keeper is None:
            raise OptionError(
                "graphs are kept where that is asked for before they are compiled", where="history=False",
                hint="fast.dcir.view(inputs), or dcir.optimize(model, history=True)",
            )  # fmt: skip
        return view_kept(self.name, self.session)

    def view(
        self, /, *inputs: Any, seconds: float | None = None, loss: Callable[[Any], Any] | None = None, **named: Any
    ) -> Server:
        """The same, served on this machine beside what this process does: ``address`` is what to open, ``close()`` ends it.

        Raises:
            OptionError, InvalidInput: as by ``report``.
            Unsupported: the packages of the extra "view" are not installed.
        """
        return self.report(*inputs, seconds=seconds, loss=loss, **named).serve()
