"""Keeps what there is to look at of every graph that a session compiles, for `dcir view`; without one nothing is kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import fx

from dcir.frontends.torch.context import GraphContext
from dcir.report.kept_graph import KeptGraph


@dataclass
class Keeper:
    """The graphs of one session.

    Attributes:
        graphs: in the order in which their compilation began.
        sources: whether to keep the graphs that were imported, too.
    """

    graphs: list[KeptGraph] = field(default_factory=list)
    sources: bool = False

    def begin(self, gm: fx.GraphModule, context: GraphContext) -> KeptGraph:
        """A graph is compiled."""
        kept = KeptGraph(
            first_read=context.first_read,
            first_saved=context.first_saved,
            source=(gm, context) if self.sources else None,
        )
        self.graphs.append(kept)
        return kept

    def done(self) -> list[KeptGraph]:
        """Those that are compiled."""
        return [kept for kept in self.graphs if kept.record is not None]
