"""Options and records of one ``optimize`` call, and what its programs share."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import fx, nn
from torch._guards import TracingContext

from dcir.codegen.compile import Library
from dcir.cost.stream_number import StreamNumber
from dcir.driver.calls.background import Background
from dcir.driver.keeper import Keeper
from dcir.driver.record import GraphRecord
from dcir.driver.team import fit_team
from dcir.driver.uncompiled import Coverage
from dcir.frontends.torch.importer import Imported
from dcir.ir.network import Network
from dcir.options import Options
from dcir.runtime.blocks import Arenas
from dcir.runtime.freed_memory import keep_freed_memory
from dcir.runtime.program import Program

# By the package's name: TORCH_LOGS="+dcir" is heard, too.
_LOG = logging.getLogger("dcir")

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, how much of it is done, and how much there is."""

Call = Callable[[Sequence[Any]], list[Any]]

Watch = Callable[[str, Imported, Library, Program], Call]
"""Called with the kind of a graph, its network, its library and its program; gives what is called instead."""

OnImport = Callable[[fx.GraphModule, Imported], None]
"""Called with an ATen graph that is compiled for a call, and what it was imported as."""

OnRewritten = Callable[[str, Network], None]
"""Called with the kind of a graph of constant sizes, and its network once all passes have run, to read it."""


class Tunes(Protocol):
    """Measures the kernels of networks before their code is made (``measure/tune.py``)."""

    def tune(self, net: Network, share: float = 1.0) -> None:
        """Measure the kernels of a network, within a share of the time that is left."""


@dataclass
class Session:
    """Options and records of one ``optimize`` call.

    Attributes:
        graphs: a record of every graph that was compiled.
        progress: hears of the steps of a compilation.
        watch: wraps the program of every graph that is compiled for a call; its steps are measured then.
        on_import: hears of every graph that is compiled for a call, before passes rewrite it.
        on_rewritten: hears of every network after its passes.
        arenas: scratch memory of all its programs: forward and backward use it in turn.
        programs: those that are alive.
        tuner: measures the kernels of every graph before it is compiled; made where the options ask for it.
        name: of what is compiled, for logs and profilers.
        next_step: what to type to read more, for the log.
        streams: how its calls share the processors, where several run at once.
        keeper: keeps of every graph what is to be looked at later.
        without_code: whether graphs are only rewritten and planned, and then run by torch.
        architectures: of processors that code for a file is to run on; () is the one at hand.
        made: of a program, or programs for all sizes, what became of its graph, and its library.
        on_late: is called when a backward has its program, which is made with its first call.
        module: gives the module whose calls are compiled while it is alive; None where that is something else.
    """

    options: Options
    graphs: list[GraphRecord] = field(default_factory=list)
    progress: Progress | None = None
    watch: Watch | None = None
    on_import: OnImport | None = None
    on_rewritten: OnRewritten | None = None
    arenas: Arenas = field(default_factory=Arenas)
    programs: weakref.WeakSet[Program] = field(default_factory=weakref.WeakSet)
    tuner: Tunes | None = None
    name: str = "a model"
    next_step: str = "model.dcir.explain()"
    streams: StreamNumber | None = None
    keeper: Keeper | None = None
    without_code: bool = False
    architectures: tuple[str, ...] = ()
    made: weakref.WeakKeyDictionary[Any, tuple[GraphRecord, Library]] = field(default_factory=weakref.WeakKeyDictionary)
    on_late: Callable[[], None] | None = None
    module: Callable[[], nn.Module | None] = lambda: None
    _gathers: bool = False

    def __post_init__(self) -> None:
        if self.options.skip:
            from dcir.driver.skipped import check_skip

            check_skip(self.options)
        if self.options.history and self.keeper is None:
            self.keeper = Keeper()
        if TracingContext.try_get() is None:  # Dynamo guards on the number of threads
            fit_team()

    @functools.cached_property
    def background(self) -> Background:
        """What compiles behind the calls."""
        return Background()

    @property
    def later(self) -> Callable[[Callable[[], object]], None] | None:
        """Has something done behind the calls, where that is asked for; what is measured is compiled before it runs."""
        return self.background.start if self.options.background and self.watch is None else None

    @property
    def team(self) -> int | None:
        """Threads that kernels are made for; None where that is the number the calling thread has."""
        return None if self.options.hint == "throughput" else self.options.threads

    @functools.cached_property
    def coverage(self) -> Coverage:
        """What of its calls ran uncompiled."""
        return Coverage(strict=self.options.strict)

    def gathers(self) -> None:
        """Parameters are gathered for every call: whoever exchanges them is told, once."""
        if self._gathers or not self.options.own_exchange:
            return
        self._gathers = True
        keep_freed_memory()
        module = self.module()
        if module is not None:
            from dcir.driver.training.sharded_exchange import exchange_by_sends

            exchange_by_sends(module)

    def add(self, record: GraphRecord) -> None:
        """Keep the record of a graph that is compiled now, and tell the log."""
        self.graphs.append(record)
        # The first is news, the others are detail.
        level = logging.INFO if len(self.graphs) == 1 else logging.DEBUG
        _LOG.log(level, "compiled %s of %s: %s; next: %s", record.kind, self.name, record, self.next_step)

    def step(self, name: str) -> Callable[[int, int], None] | None:
        """What hears how much is done of a step, and how much there is."""
        show = self.progress
        return None if show is None else lambda done, total: show(name, done, total)
