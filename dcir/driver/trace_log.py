"""Hands what became of a graph to torch's structured trace, which ``TORCH_TRACE`` writes to a folder and ``tlparse`` shows."""

from __future__ import annotations

import json
from collections.abc import Callable

from torch._guards import CompileContext, CompileId
from torch._logging._internal import LazyTraceHandler, trace_log, trace_structured_artifact

from dcir.driver.record import GraphRecord
from dcir.ir.moving_network import MovingNetwork
from dcir.ir.network import Network
from dcir.ir.text import network_text
from dcir.report.explain import Report


def is_traced() -> bool:
    """Whether the trace is written; torch's handler is there from the start, and goes once it finds that it has no folder."""
    return any(isinstance(h, LazyTraceHandler) and h.root_dir is not None for h in trace_log.handlers)


def compile_id() -> CompileId | None:
    """What torch numbers the compilation by that is under way; a backward's code may be made after it has ended."""
    return CompileContext.current_compile_id()


def trace(record: GraphRecord, net: Network | MovingNetwork, number: CompileId | None) -> None:
    """Add a graph's report, as text and as JSON, and its network as text, if the trace is written.

    Args:
        record: what was done.
        net: the network that runs, of which the text is that at the upper ends where sizes move.
        number: of the compilation that the graph belongs to.
    """
    if not is_traced():
        return
    report, rewritten = Report([record]), net.widest if isinstance(net, MovingNetwork) else net
    artefacts: dict[str, tuple[str, Callable[[], str]]] = {
        "dcir_report": ("string", report.to_text),
        "dcir_report_json": ("json", lambda: json.dumps(report.to_json(), indent=1, default=str)),
        "dcir_network": ("string", lambda: network_text(rewritten)),
    }
    for name, (encoding, payload) in artefacts.items():
        trace_structured_artifact(f"{name}_{record.kind.replace(' ', '_')}", encoding, payload, number)
