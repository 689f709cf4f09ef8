"""What a model would become under other options: passes run and code is planned, and nothing is compiled.

The graphs that were imported are rewritten once more. Where a forward lays out otherwise what it keeps for its backward, or there is
another batch, the model is traced again. Figures are those of a compilation, for they are made by the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dcir.driver.compile import compiling
from dcir.driver.keeper import Keeper
from dcir.driver.measure.machine import rates
from dcir.driver.record import GraphRecord
from dcir.driver.session import Progress, Session
from dcir.driver.view.capture import Captured, capture, threads_of
from dcir.driver.view.delta import Delta
from dcir.options import Options
from dcir.report.kept_graph import KeptGraph


def predict(base: Captured, delta: Delta, progress: Progress | None = None) -> dict[str, Any]:
    """Figures of what ``delta`` makes of a captured model, as plain data.

    Args:
        base: captured with its ``sources``.
        delta: the change.
        progress: hears of the steps.

    Raises:
        DcirError: there is no such change, or no compilation with it.
    """
    options = delta.options(base.options)
    same_call = delta.batch is None or delta.batch == base.subject.batch
    found = _again(base, options, progress) if same_call and _imported(base.graphs) else None
    if found is None:
        found = capture(base.subject, options, batch=delta.batch, progress=progress).graphs
    return figures(found)


def figures(graphs: Sequence[KeptGraph]) -> dict[str, Any]:
    """Figures of compiled graphs: of each, and of a call of all."""
    rows = [_row(kept.record, len(kept.network.ops())) for kept in graphs if kept.network is not None]
    floors = [row["floor_ms"] for row in rows]
    both = {name: sum(row[name] for row in rows) for name in ("kernels", "calls", "operators", "bytes", "saved")}
    scratch = max((row["scratch"] for row in rows), default=0)
    return {
        **both,
        "scratch": scratch,
        "peak": both["saved"] + scratch,
        "floor_ms": None if None in floors else sum(floors),
        "graphs": rows,
    }


def _again(base: Captured, options: Options, progress: Progress | None) -> list[KeptGraph] | None:
    """The graphs of a captured model, rewritten with other options; None where a backward would be another graph."""
    keeper = Keeper()
    session = Session(options, progress=progress, keeper=keeper, without_code=True)
    compile_graph = compiling(session)
    with threads_of(options), torch.set_grad_enabled(base.subject.trains):
        for kept in base.graphs:
            assert kept.source is not None
            compile_graph(*kept.source)
            if kept.record.kind == "forward" and keeper.graphs[-1].settled != kept.settled:
                return None
    return keeper.done()


def _imported(graphs: Sequence[KeptGraph]) -> bool:
    """Whether all graphs can be imported once more as they were."""
    return bool(graphs) and all(g.source is not None and not g.source[1].bounds for g in graphs)


def _row(record: GraphRecord, operators: int) -> dict[str, Any]:
    machine, floor = rates(), None
    if machine.measured:
        floor = sum(machine.floor_seconds(flops, moved, threads=record.threads) for flops, moved in record.work) * 1e3
    return {
        "kind": record.kind, "kernels": record.kernels, "calls": record.calls, "operators": operators,
        "bytes": record.bytes_moved, "scratch": record.arena_bytes, "saved": record.saved_bytes, "floor_ms": floor,
        "key": record.key,
    }  # fmt: skip
