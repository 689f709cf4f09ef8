"""``memory_limit``: plans of forward and backward, made without generating code."""

from __future__ import annotations

import torch
from torch import fx

from dcir.codegen.compile import planned_bytes
from dcir.cost.target import target_of
from dcir.driver.compile import rewritten
from dcir.driver.measure.machine import rates
from dcir.driver.placement import saved_bytes
from dcir.driver.session import Session
from dcir.driver.targets.base import DriverTarget
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.partition.cut import Limited, Plan
from dcir.frontends.torch.partition.model import Rates
from dcir.ir.network import Network


def limited(session: Session) -> Limited | None:
    """The partition function that keeps a session's limit; None without a limit."""
    limit = session.options.memory_limit
    if limit is None:
        return None

    def measure(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> Plan:
        return plan(session, forward, backward, results)

    model = rates()
    return Limited(limit, measure, Rates(model.flops_f32.all, model.reads[-1].all))


def plan(session: Session, forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> Plan:
    """Memory of a forward and a backward graph, as their compilation will plan it.

    Args:
        session: for its options.
        forward, backward: as AOTAutograd hands them on.
        results: how many results of the forward are for its caller.
    """
    done = rewritten(session, forward, GraphContext("forward", first_saved=results))
    places = [n for n in backward.graph.find_nodes(op="placeholder") if "tangents" not in str(n.target)]
    before = [(n, n.meta) for n in places]
    for node, (kind, value) in zip(places, done.outputs[results:], strict=False):
        like = node.meta["val"]
        if kind == "result" and isinstance(like, torch.Tensor) and done.network.results[value].strides != like.stride():
            with like.fake_mode:  # type: ignore[attr-defined]  # the values of a traced graph are fake
                laid = torch.empty_strided(like.shape, done.network.results[value].strides, dtype=like.dtype)
            node.meta = node.meta | {"val": laid}
    try:
        second = rewritten(session, backward, GraphContext("backward"))
    finally:
        for node, old in before:
            node.meta = old
    return Plan(saved_bytes(done, results), _scratch(done.network), _scratch(second.network))


def _scratch(net: Network) -> int:
    """Memory of a call beside arguments and results."""
    target = target_of(net)
    beside = target.beside_plan(net) if isinstance(target, DriverTarget) else 0
    return planned_bytes(net) + beside
