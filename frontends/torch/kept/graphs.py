"""What became of a graph of Dynamo's, or of a training step's, in an earlier process, found again by the graph itself.

    Dynamo traces a call --> its graph, as text --> known      --> its programs: no AOTAutograd, no passes, no samples of sizes
                                                --> not known  --> compiled, and noted; kept once all of it is there

Dynamo has traced and guarded the call in this process as ever, so nothing has to be asked that guards ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from dcir.frontends.torch.gates import gates_of_call
from dcir.frontends.torch.kept.descriptions import Unkept
from dcir.frontends.torch.kept.recording import STEP, Call, KeptCall, KeptGraph, is_noting
from dcir.frontends.torch.kept.wrappers import KeptWrappers
from dcir.frontends.torch.overlapping_inputs import Overlaps
from dcir.frontends.torch.shapes.moving_sizes import Moving, MovingSizes


class GraphNotes:
    """Notes on a graph while it is compiled.

    Args:
        overlaps: whether its inputs lie in each other.

    Attributes:
        heard: AOTAutograd's findings, once it has traced.
        graphs: what became of its graphs, by their kind.
        moving: its programs for all sizes, where it has such.
        reason: why it cannot be kept; empty while it can.
        known: how many of its programs are kept already.
    """

    known = 0

    def __init__(self, overlaps: Overlaps) -> None:
        self._overlaps = overlaps
        self.heard: list[KeptWrappers] = []
        self.graphs: dict[str, KeptGraph] = {}
        self.moving: Moving | None = None
        self.reason = ""

    @property
    def programs(self) -> int:
        """How many there are so far; of one for all sizes there may be more with other sizes."""
        return 1 if self.moving is None else self.moving.programs

    @property
    def ends(self) -> bool:
        """Whether no further programs are to be expected."""
        return self.moving is None or self.moving.hopeless

    def when_made(self, hears: Callable[[], None]) -> None:
        """Have somebody hear of every further program."""
        if self.moving is not None:
            self.moving.when_made(hears)

    def kept(self) -> KeptCall:
        """What became of it.

        Raises:
            Unkept: it cannot be kept.
        """
        if self.reason:
            raise Unkept(self.reason)
        if len(self.heard) != 1:
            raise Unkept("it is not one graph")
        kinds = {"inference"} if self.heard[0].behind is None else {"forward", "backward"}
        if self.graphs.keys() != kinds:
            raise Unkept("not all of its graphs are compiled")
        moving = self.moving is not None
        return KeptCall(self.heard[0], dict(self.graphs), self._overlaps.matter, moving, certain=True)


class StepNotes:
    """Notes on the graph of a training step, around which AOTAutograd puts nothing.

    Args:
        call: what runs it.
        known: how many of its programs are kept already.

    Attributes:
        graphs, moving, reason, known: as of ``GraphNotes``.
    """

    def __init__(self, call: Call, known: int = 0) -> None:
        self.graphs = {STEP: KeptGraph(call, (), (), {})}
        self.moving = call if isinstance(call, MovingSizes) else None
        self.reason, self.known = "", known

    @property
    def programs(self) -> int:
        """As of ``GraphNotes``."""
        return 1 if self.moving is None else len(self.moving.made)

    @property
    def ends(self) -> bool:
        """As of ``GraphNotes``."""
        return self.moving is None

    def when_made(self, hears: Callable[[], None]) -> None:
        """As of ``GraphNotes``."""
        if self.moving is not None:
            self.moving.hears = hears

    def kept(self) -> KeptCall:
        """What became of it."""
        return KeptCall(None, dict(self.graphs), apart=False, moving=self.moving is not None, certain=True)


class Found(NamedTuple):
    """What is kept of a graph, and what runs the graph as Dynamo calls it."""

    kept: KeptCall
    whole: Callable[..., Any]


class GraphKeeper(Protocol):
    """Who keeps what becomes of graphs."""

    def address(self, rows: Callable[[], Iterable[str]]) -> str | None:
        """Where that of a graph is kept, by rows of text that say all of it; None: it is not."""

    def found(self, address: str) -> list[Found]:
        """What is kept there, the latest first."""

    def made(self, address: str, notes: GraphNotes | StepNotes) -> None:
        """A graph was compiled that is to be kept there."""

    def verdict(self, address: str) -> str | None:
        """What was found out about the graph of an address; None: nothing yet."""

    def judge(self, address: str, found: str) -> None:
        """That was found out about the graph of an address."""


def address_in(keeper: GraphKeeper | None, rows: Callable[[], Iterable[str]]) -> str | None:
    """Where a graph is kept; None: nobody keeps it, its gradients pass gates, or all of its trace is kept (``recording``)."""
    if keeper is None or is_noting() or gates_of_call() is not None:
        return None
    return keeper.address(rows)
