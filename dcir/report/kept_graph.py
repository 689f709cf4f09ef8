"""What is kept of a graph so that one can look at it later: its versions, its network, what its kernels say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dcir.ir.history import IMPORT, History
from dcir.ir.moving_network import MovingNetwork
from dcir.ir.network import Network


@dataclass
class KeptGraph:
    """One compiled graph.

    Attributes:
        history: what passes have left of it, one after the other.
        record: ``driver.record.GraphRecord`` of it.
        network: after all passes; where sizes move, at the upper ends.
        library: ``codegen.compile.Library`` of it.
        texts: its code, by the names of kernels, and "driver".
        first_read: of a backward, the number of the forward's output that its first argument would be, were that one.
        outputs: per output of the graph, ("result", number of the network's result) or something that is no tensor.
        first_saved: of a forward, number of its first output that only the backward reads.
        settled: of a forward, what its backward was traced for: strides of its outputs, and where in its buffers they lie.
        source: the graph before it was imported, and what is known of it, for whoever imports it once more.
    """

    history: History = field(default_factory=History)
    record: Any = None
    network: Network | None = None
    library: Any = None
    texts: dict[str, str] = field(default_factory=dict)
    first_read: int = 0
    outputs: list[tuple[str, Any]] = field(default_factory=list)
    first_saved: int | None = None
    source: tuple[Any, Any] | None = None
    settled: tuple[Any, Any] | None = None

    def end(self, record: Any, net: Network | MovingNetwork) -> None:
        """The graph is compiled."""
        self.record, self.network = record, net.widest if isinstance(net, MovingNetwork) else net
        if not self.history.snapshots:  # its passes ran at several sizes at once
            self.history.note(self.network, IMPORT, record.bytes_moved, record.arena_bytes)
