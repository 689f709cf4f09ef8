"""Networks of operator samples run through the twin, operator by operator, beside their references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcir.codegen.cuda.emitters import plan_of
from dcir.codegen.cuda.launch import CudaPlan
from dcir.errors import IndexOutOfRange
from dcir.frontends.torch.importer import import_graph
from dcir.ir.network import Network
from dcir.ir.types import bf16_to_f32, is_float, to_numpy
from tests.codegen.cuda.twin import Array, Twin, aligned_like
from tests.harness import buffers_of, graph_of
from tests.on_host import on_host

UNITS = 64.0
"""Roundings of the largest result that a result may be off: both sum in orders of their own."""


@dataclass
class Case:
    """An operator's sample: its network, what its containers hold at first, and a plan of every operator that has one."""

    name: str
    network: Network
    buffers: dict[str, Array]
    plans: list[CudaPlan | None]
    refused: list[str]


def case_of(page: Any, sample: Any, name: str) -> Case | None:
    """A sample as a case; None if its page leaves it to torch."""
    graph, tensors = graph_of(page.overload, sample.args, sample.kwargs)
    done = import_graph(graph)
    if done.fallbacks:
        return None
    network = on_host(done.network)
    plans, refused = [], []
    for op in network.ops():
        plan = plan_of(op.spec)
        plans.append(plan if isinstance(plan, CudaPlan) else None)
        if not isinstance(plan, CudaPlan):
            refused.append(f"{op.spec.describe()}: {plan.reason}")
    return Case(name, network, buffers_of(done, tensors), plans, refused)


def run_case(case: Case, twin: Twin) -> str:
    """Run a case; what is wrong with it, or nothing."""
    net = case.network
    store: dict[str, Array] = {}

    def elements(name: str) -> Array:
        if name not in store:
            c, old = net.containers[name], case.buffers.get(net.updates.get(name, ""))
            new = np.zeros(c.size, to_numpy(c.dtype)) if old is None else old.copy()
            store[name] = case.buffers.get(name, new)
        return store[name]

    for op, plan in zip(net.ops(), case.plans, strict=True):
        ins, outs = net.ins(op), net.outs(op)
        given = [elements(o.data) for o in ins]
        start = [[o.offset for o in side] for side in (ins, outs)]
        copies = {o.data: aligned_like(elements(o.data)) for o in outs}
        made = [copies[o.data] for o in outs]
        bad = False
        with np.errstate(all="ignore"):
            try:
                op.spec.reference_at(given, [elements(o.data) for o in outs], *start)
            except IndexOutOfRange:
                bad = True
        if plan is None:
            continue
        told = twin.run(plan, [aligned_like(a) for a in given], made, *start)
        if told != bad:
            return f"{case.name}: {op.spec.describe()} says {told} of bad indices that are {bad}"
        for o, got in zip(outs, made, strict=True):
            wrong = "" if bad else difference(got, elements(o.data), net.containers[o.data].dtype)
            if wrong:
                return f"{case.name}: {op.spec.describe()}: {wrong}"
    return ""


def difference(got: Array, want: Array, dtype: str) -> str:
    """How results differ, if by more than roundings."""
    if not is_float(dtype):
        return "" if np.array_equal(got, want) else f"{np.flatnonzero(got != want)[:5]} differ of {len(got)}"
    g, w = (bf16_to_f32(a) if dtype == "bf16" else a for a in (got, want))
    g, w = g.astype(np.float64), w.astype(np.float64)
    if not np.array_equal(np.isnan(g), np.isnan(w)):
        return f"NaN in other places: {np.flatnonzero(np.isnan(g) != np.isnan(w))[:5]}"
    finite = np.isfinite(w) & np.isfinite(g)
    if not np.array_equal(g[~finite & ~np.isnan(w)], w[~finite & ~np.isnan(w)]):
        return "infinities"
    if not finite.any():
        return ""
    units = {"f32": 2.0**-24, "f64": 2.0**-53, "bf16": 2.0**-8, "f16": 2.0**-11}[dtype]
    error, scale = np.abs(g - w)[finite].max(), np.abs(w[finite]).max()
    return "" if error <= UNITS * units * max(scale, 1e-30) else f"error {error:.3g} at scale {scale:.3g}"


def launches_of(cases: Sequence[Case]) -> list[Any]:
    """Every launch of some cases."""
    return [launch for c in cases for plan in c.plans if plan is not None for launch in plan.launches]
