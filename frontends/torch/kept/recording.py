"""What is noted of a frame while it is traced, so that its trace can be kept: compiled graphs, and what AOTAutograd puts around them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from dcir.frontends.torch.as_laid_out import Laid, as_laid_out
from dcir.frontends.torch.kept.descriptions import Unkept
from dcir.frontends.torch.kept.pieces import KeptPiece, KeptPieces, Pieces
from dcir.frontends.torch.kept.wrappers import KeptWrappers, listening
from dcir.frontends.torch.overlapping_inputs import Overlaps, overlap
from dcir.frontends.torch.second_gradients import without_second_gradients
from dcir.frontends.torch.shapes.moving_sizes import Moving, MovingSizes
from dcir.frontends.torch.shapes.programs import NoProgramForSizes
from dcir.frontends.torch.tape import boxed, choosing

if TYPE_CHECKING:
    from dcir.frontends.torch.shapes.specialize_shapes import BySize

Call = Callable[[list[Any]], list[Any]]
STEP = "training step"
"""Kind of the graph of a whole training step, which is called as it is."""


class TracesAgain(Exception):
    """A kept trace has no program for a call: it is to be forgotten, and the call to be made again. Nothing has run yet.

    Attributes:
        trace: which one.
    """

    def __init__(self, trace: Any, reason: str) -> None:
        super().__init__(reason)
        self.trace = trace


class KeptGraph(NamedTuple):
    """A compiled graph, and how AOTAutograd is to call it: see ``tape.boxed`` and ``as_laid_out``."""

    call: Call
    lazy: tuple[int, ...]
    written: tuple[int, ...]
    laid: dict[int, Laid]

    def boxed(self, *, behind: bool = False) -> Call:
        """The graph as AOTAutograd calls it; ``behind`` a forward, that is where gradients are asked for.

        Dynamo calls a forward and does not look into it. Gradients are asked for by anybody, by code at a graph break, too.
        """
        call = boxed(as_laid_out(self.call, self.laid) if self.laid else self.call, self.lazy, self.written)
        if not behind:
            return call
        apart: Call = torch._dynamo.disable(call, reason="it is compiled")
        return without_second_gradients(apart)


@dataclass(frozen=True)
class KeptCall:
    """What Dynamo's graph became.

    Attributes:
        wrappers: AOTAutograd's findings.
        graphs: its graphs by their kind: "inference", "training step", or "forward" and "backward".
        apart: whether inputs must not lie in each other.
        moving: whether the graphs are for all sizes.
        certain: whether there is a program for every call that its guards let through.
        pieces: of a batch that moves, in the place of findings and graphs.
    """

    wrappers: KeptWrappers | None
    graphs: dict[str, KeptGraph]
    apart: bool
    moving: bool
    certain: bool
    pieces: KeptPieces | None = None

    @property
    def calls(self) -> list[Call]:
        """What was compiled."""
        pieces = () if self.pieces is None else self.pieces.pieces.values()
        return [graph.call for graph in (*self.graphs.values(), *(piece.graph for piece in pieces))]

    def runs(self, trace: Any) -> Callable[..., Any]:
        """The graph as Dynamo calls it; a call that there is nothing to run for ends in ``TracesAgain``, with ``trace``."""
        whole = self.whole()
        if not self.apart and not self.moving:
            return whole
        return choosing(_Again(whole, trace, apart=self.apart))

    @property
    def sizes(self) -> MovingSizes:
        """Its programs, where they are for all sizes."""
        late: Any = next(self.graphs[kind].call for kind in ("forward", "inference", STEP) if kind in self.graphs)
        found: MovingSizes = late if isinstance(late, MovingSizes) else late.program
        return found

    def whole(self) -> Callable[..., Any]:
        """The graph as Dynamo calls it, for calls that there is a program for, of inputs that share no memory.

        Raises:
            Unkept: there is none.
        """
        if self.pieces is not None:
            return self.pieces.runs()
        if STEP in self.graphs:
            return self.graphs[STEP].call
        if self.wrappers is None:
            raise Unkept("no findings of AOTAutograd's")
        first = self.graphs.get("forward") or self.graphs["inference"]
        behind = self.graphs.get("backward")
        return self.wrappers.around(first.boxed(), None if behind is None else behind.boxed(behind=True))


class _Again:
    """A kept graph that there may be no program of for a call."""

    def __init__(self, whole: Callable[..., Any], trace: Any, *, apart: bool) -> None:
        self._whole, self._trace, self._apart = whole, trace, apart

    def __call__(self, *args: Any) -> Any:
        if self._apart and overlap(args):
            raise TracesAgain(self._trace, "inputs share memory, of which some are written")
        try:
            return self._whole(*args)
        except NoProgramForSizes as e:
            raise TracesAgain(self._trace, str(e)) from e


class Recording:
    """Notes on one frame that Dynamo traces.

    Args:
        keeper: who takes them.

    Attributes:
        keeper: as given.
        reason: why its trace cannot be kept; empty while it can.
        unguarded: guards that Dynamo has left out.
    """

    def __init__(self, keeper: Any = None) -> None:
        self.keeper = keeper
        self.reason = ""
        self.unguarded: dict[Any, None] = {}
        self._heard: list[KeptWrappers] = []
        self._traces: dict[Any, KeptPiece] = {}
        self._graphs: dict[str, KeptGraph] = {}
        self._overlaps: Overlaps | None = None
        self._by_size: BySize | None = None
        self._backends = 0

    def begin(self) -> None:
        """A graph of Dynamo's comes to the backend; if it is not the first one, Dynamo traces anew, or the frame has several."""
        self._backends += 1
        self._graphs, self._overlaps, self._by_size = {}, None, None
        self._heard.clear()

    def refuse(self, reason: str) -> None:
        """Its trace is not to be kept."""
        self.reason = self.reason or reason

    def left_out(self, guard: Any) -> None:
        """Dynamo asks for something when it traces, and not again."""
        self.unguarded[guard] = None

    def trace(self) -> None:
        """AOTAutograd begins to trace; what it found before is of no use."""
        self._graphs = {}
        self._heard.clear()

    def traced(self, whole: Callable[..., Any]) -> None:
        """AOTAutograd has traced, and made something to call."""
        if len(self._heard) == 1 and self._graphs.keys() == {"inference"}:
            self._traces[whole] = KeptPiece(self._heard[0], self._graphs["inference"])

    def graph(self, kind: str, graph: KeptGraph) -> None:
        """A graph is compiled."""
        self._graphs[kind] = graph

    def overlaps(self, found: Overlaps) -> None:
        """Whether inputs lie in each other."""
        self._overlaps = found

    def sizes(self, found: BySize) -> None:
        """The graph has symbolic sizes."""
        self._by_size = found

    @property
    def programs(self) -> int:
        """How many programs there are so far; more may come with other sizes."""
        pieces = self._pieces()
        if pieces is not None:
            return pieces.programs
        moving = self._moving()
        return 1 if moving is None else moving.programs

    @property
    def moves(self) -> bool:
        """Whether there is one program for all sizes, or one may still be made."""
        moving = self._moving()
        return (moving is not None and not moving.hopeless) or self._pieces() is not None

    @property
    def trains(self) -> bool:
        """Whether there is a backward, which may be compiled later."""
        return "backward" in self._graphs

    @property
    def condition(self) -> str:
        """On the sizes of a call, as code: whether there is a program for them. Empty if there is one for all of the trace."""
        pieces = self._pieces()
        if pieces is not None:
            return pieces.condition
        moving = self._moving()
        if moving is None or self._by_size is None:
            return ""
        found = dict.fromkeys(span.condition(self._by_size.paths) for span in moving.spans)
        return "" if not all(found) else f"({' or '.join(found)})"

    def _pieces(self) -> Pieces | None:
        by_size = self._by_size
        return Pieces(by_size, self._traces) if by_size is not None and by_size.only_batch else None

    def _moving(self) -> Moving | None:
        found = None if self._by_size is None else self._by_size.moving
        return found if isinstance(found, Moving) else None

    def kept(self) -> KeptCall:
        """What the graph became.

        Raises:
            Unkept: it cannot be kept.
        """
        if self.reason:
            raise Unkept(self.reason)
        if self._overlaps is None or self._overlaps.traced:
            raise Unkept("it is not one graph")
        pieces = self._pieces()
        if pieces is not None:
            certain = bool(pieces.condition) and not pieces.floats and not self._overlaps.matter
            return KeptCall(None, {}, self._overlaps.matter, moving=True, certain=certain, pieces=pieces.kept())
        if len(self._heard) != 1:
            raise Unkept("it is not one graph")
        if self._by_size is not None and self._moving() is None:
            raise Unkept("it is not one program for all sizes")
        kinds = {"inference"} if self._heard[0].behind is None else {"forward", "backward"}
        if self._graphs.keys() != kinds:
            raise Unkept("not all of its graphs are compiled")
        moving, apart = self._by_size is not None, self._overlaps.matter
        certain = not apart and (not moving or self._is_whole_condition())
        return KeptCall(self._heard[0], dict(self._graphs), apart, moving, certain)

    def _is_whole_condition(self) -> bool:
        """Whether a call under ``condition`` has a program."""
        moving = self._moving()
        if moving is None or self._by_size is None or moving.conditional or not moving.spans:
            return False
        return all(span.bounds.keys() <= self._by_size.paths.keys() for span in moving.spans)

    def when_made(self, hears: Callable[[], None]) -> None:
        """Have somebody hear of every further program."""
        moving = self._moving()
        if moving is not None:
            moving.when_made(hears)

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """While Dynamo traces the frame."""
        before, _HERE.recording = _HERE.recording, self
        try:
            with listening() as self._heard:
                yield
        finally:
            _HERE.recording = before


class _Here(threading.local):
    recording: Recording | None = None


_HERE = _Here()


def recording() -> Recording:
    """The notes on the frame that this thread traces; they are nobody's where there are none to be taken."""
    return _HERE.recording or Recording()


def is_noting() -> bool:
    """Whether this thread traces a frame that notes are taken on."""
    return _HERE.recording is not None
