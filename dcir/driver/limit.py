"""``memory_limit``: plans of forward and backward made without generating code, and the refusal of graphs that need more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from dcir.codegen.compile import planned_bytes
from dcir.driver.measure.machine import machine
from dcir.errors import MemoryLimitTooLow
from dcir.frontends.torch.importer import FIRST_SAVED, Imported
from dcir.frontends.torch.partition.cut import Limited, Plan
from dcir.frontends.torch.partition.model import Rates

if TYPE_CHECKING:
    from dcir.driver.compile import Session


def limited(session: Session) -> Limited | None:
    """The partition function that keeps a session's limit; None without a limit."""
    limit = session.options.memory_limit
    if limit is None:
        return None

    def measure(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> Plan:
        return plan(session, forward, backward, results)

    model = machine()
    return Limited(limit, measure, Rates(model.flops_f32.all, model.reads[-1].all))


def plan(session: Session, forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> Plan:
    """Memory of a forward and a backward graph, as ``Session.compile_graph`` will plan it.

    Args:
        session: for its options.
        forward, backward: as AOTAutograd hands them on.
        results: how many results of the forward are for its caller.
    """
    threads = session.options.threads or torch.get_num_threads()
    meta, forward.meta = forward.meta, forward.meta | {FIRST_SAVED: results}
    try:
        done = session.rewritten(forward)
    finally:
        forward.meta = meta
    places = [n for n in backward.graph.find_nodes(op="placeholder") if "tangents" not in str(n.target)]
    before = [(n, n.meta) for n in places]
    for node, (kind, value) in zip(places, done.outputs[results:], strict=False):
        like = node.meta["val"]
        if kind == "result" and isinstance(like, torch.Tensor) and done.network.results[value].strides != like.stride():
            with like.fake_mode:  # type: ignore[attr-defined]  # the values of a traced graph are fake
                laid = torch.empty_strided(like.shape, done.network.results[value].strides, dtype=like.dtype)
            node.meta = node.meta | {"val": laid}
    try:
        second = session.rewritten(backward)
    finally:
        for node, old in before:
            node.meta = old
    return Plan(
        saved_bytes(done, results), planned_bytes(done.network, threads), planned_bytes(second.network, threads)
    )


def saved_bytes(done: Imported, results: int) -> int:
    """Bytes that a forward keeps for its backward, beyond its inputs and the first ``results`` of its results."""
    net = done.network

    def containers(outputs: list[tuple[str, Any]]) -> set[str]:
        return {net.results[value].data for kind, value in outputs if kind == "result"}

    kept = containers(done.outputs[results:]) - containers(done.outputs[:results])
    return sum(net.containers[name].nbytes for name in kept if net.containers[name].role == "result")


def check(limit: int | None, needed: int) -> None:
    """Refuse a graph.

    Raises:
        MemoryLimitTooLow: it needs more bytes than the limit.
    """
    if limit is not None and needed > limit:
        raise MemoryLimitTooLow.of(limit, needed)
