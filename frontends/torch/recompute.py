"""Cheap forward values that the backward reads are computed again there, from what it keeps anyway.

Works on the joint graph, before it is cut in two: a value's short chain of pointwise operators is copied to its readers in the
backward, so that the value itself need not cross the border. It pays where the copy fuses with its readers and the sources
are read there in any case: the input of an activation behind a batch normalisation (sources: the normalisation's own input
and two numbers per channel). What the forward writes anyway, for a contraction say, is read from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.compile_utils import fx_graph_cse
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten

# Pointwise operators that torch does not tag as such.
UNTAGGED = {
    aten.hardtanh_backward, aten.hardswish_backward, aten.hardsigmoid_backward, aten.leaky_relu_backward,
    aten.softplus_backward, aten.elu_backward, aten.mish_backward, aten._to_copy, aten.hardswish, aten.hardsigmoid,
}  # fmt: skip
# Readers that take pointwise work in: reductions and the norms' programs.
REDUCING = {
    aten.sum, aten.mean, aten.amax, aten.amin, aten.var_mean, aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit, aten._batch_norm_with_update_functional, aten.native_batch_norm_backward,
    aten.batch_norm_backward, aten.native_layer_norm, aten.native_layer_norm_backward, aten._softmax,
    aten._softmax_backward_data, aten._log_softmax,
}  # fmt: skip
# A copy computes at most one of these per element: about as much work as reading the value from memory takes.
COSTLY = {
    aten.exp, aten.erf, aten.tanh, aten.sigmoid, aten.silu, aten.gelu, aten.mish, aten.pow, aten.log, aten.sin, aten.cos,
    aten.softplus, aten.elu, aten.celu, aten.log1p, aten.expm1, aten.atan2, aten.atan, aten.asin, aten.acos, aten.div,
    aten.sqrt, aten.rsqrt,
}  # fmt: skip
LONGEST = 16
"""Most operators in a copied chain."""


@dataclass(frozen=True)
class Chain:
    """How a value is computed: operators in order, and the large values it is computed from."""

    ops: tuple[fx.Node, ...]
    sources: frozenset[fx.Node]


def recompute_cheap(joint: fx.GraphModule, forward_outputs: int) -> int:
    """Copy cheap chains into the backward; returns how many readers got one.

    ``forward_outputs`` is how many of the joint graph's results are the forward's. Common subexpressions are merged first,
    and must not be merged again behind this.
    """
    joint.graph.eliminate_dead_code()
    joint.graph = fx_graph_cse(joint.graph)
    done = _Recompute(joint.graph, forward_outputs).run()
    for n in _readers(_written_to(joint.graph)):
        n.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    joint.graph.eliminate_dead_code()
    joint.recompile()
    return done


class _Recompute:
    def __init__(self, graph: fx.Graph, forward_outputs: int) -> None:
        self.graph = graph
        self.place = {n: i for i, n in enumerate(graph.nodes)}
        self.backward: set[fx.Node] = set()
        for n in graph.nodes:
            if (n.op == "placeholder" and "tangents" in str(n.target)) or (
                n.op == "call_function" and any(a in self.backward for a in n.all_input_nodes)
            ):
                self.backward.add(n)
        (results,) = graph.find_nodes(op="output")
        every = results.args[0]
        self.returned = {n for n in every[:forward_outputs] if isinstance(n, fx.Node)}
        late = {n for n in every[forward_outputs:] if isinstance(n, fx.Node)}
        # Values that are there in the backward whatever is decided.
        inputs = {n for n in graph.nodes if n.op == "placeholder"} - set(_written_to(graph))
        self.kept = inputs | (late - self.backward)
        for n in graph.nodes:
            if n in self.backward or n.op != "call_function":
                continue
            readers = [u for u in n.users if u in self.backward]
            if readers and (not _copies(n) or not all(_takes_in(r) for r in readers)):
                self.kept.add(n)

    def run(self) -> int:
        """Decide for each forward value that the backward reads, from the first on."""
        done = 0
        for value in [n for n in self.place if n not in self.backward and n.op == "call_function"]:
            readers = [u for u in value.users if u in self.backward]
            if not readers or not _copies(value) or _bytes(value) == 0:
                continue
            chain = self.chain(value) if all(map(_takes_in, readers)) and not self.written(value) else None
            # Stored it is a write and a read; a copy reads what its reader does not read in any case.
            if chain is None or any(sum(map(_bytes, chain.sources - self.near(r))) > _bytes(value) for r in readers):
                self.kept.add(value)
                continue
            for reader in readers:
                self.copy(chain, value, reader)
            done += len(readers)
        return done

    def written(self, value: fx.Node) -> bool:
        """Whether the forward writes a value in any case: for its caller, or for an operator that takes no producer in."""
        names = {value, _base(value)}
        users = {u for n in names for u in n.users} - self.backward
        return not names.isdisjoint(self.returned | self.kept) or not all(map(_takes_in, users))

    def chain(self, value: fx.Node) -> Chain | None:
        """The operators between a value and what the backward keeps; None if they are too many or their sources are not kept."""
        ops: set[fx.Node] = set()
        sources: set[fx.Node] = set()
        pending = [value]
        while pending:
            n = pending.pop()
            if n in ops:
                continue
            ops.add(n)
            if len(ops) > LONGEST:
                return None
            for a in n.all_input_nodes:
                if a in self.kept:
                    if 8 * _bytes(a) > _bytes(value):
                        sources.add(_base(a))
                elif _copies(a):
                    pending.append(a)
                elif 8 * _bytes(a) > _bytes(value):
                    return None
        # Operators on small values are not counted: the cut stores whichever of these is smallest.
        large = [n for n in ops if 8 * _bytes(n) > _bytes(value)]
        if sum(_packet(n) in COSTLY for n in large) > 1:
            return None
        return Chain(tuple(sorted(large, key=self.place.__getitem__)), frozenset(sources))

    def near(self, reader: fx.Node) -> set[fx.Node]:
        """Forward values that the reader's program reads in any case: its own, and those of what takes it in."""
        programs = {reader} | {u for u in reader.users if _takes_in(u)}
        for p in list(programs):
            if _copies(p):
                programs |= {a for a in p.all_input_nodes if a in self.backward and _copies(a)}
                programs |= {u for u in p.users if _takes_in(u)}
        return {_base(a) for p in programs for a in p.all_input_nodes if a not in self.backward and a in self.kept}

    def copy(self, chain: Chain, value: fx.Node, reader: fx.Node) -> None:
        """Compute ``value`` again in front of ``reader``."""
        new: dict[fx.Node, fx.Node] = {}
        for n in chain.ops:
            with self.graph.inserting_before(reader):
                made = self.graph.node_copy(n, lambda a: new.get(a, a))
            made.meta = dict(n.meta)
            new[n] = made
        reader.replace_input_with(value, new[value])


def _written_to(joint: fx.Graph) -> list[fx.Node]:
    """Inputs whose contents the caller replaces once the forward has run: no sources in the backward."""
    (output,) = joint.find_nodes(op="output")
    written = [d.mutated_input for d in output.meta.get("desc", ()) if isinstance(d, InputMutationAOTOutput)]
    return [n for n in joint.find_nodes(op="placeholder") if n.meta.get("desc") in written]


def _readers(inputs: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """What may be computed from these inputs and their views."""
    for n in inputs:
        for user in n.users:
            if _view(user):
                yield from _readers([user])
            elif _copies(user):
                yield user


def _packet(node: fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def _pointwise(node: fx.Node) -> bool:
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in op.tags:
        return False
    return torch.Tag.pointwise in op.tags or op.overloadpacket in UNTAGGED


def _view(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target.is_view)


def _copies(node: fx.Node) -> bool:
    """Whether a node may be part of a copied chain."""
    return (
        node.op == "call_function"
        and isinstance(node.meta.get("val"), torch.Tensor)
        and (_pointwise(node) or _view(node))
    )


def _takes_in(node: fx.Node) -> bool:
    """Whether a pointwise producer fuses into a node."""
    return _copies(node) or (node.op == "call_function" and _packet(node) in REDUCING)


def _base(node: fx.Node) -> fx.Node:
    """What a node is a view of."""
    while node.op == "call_function" and _view(node):
        node = node.all_input_nodes[0]
    return node


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(d, int) for d in value.shape):
        return 0
    return math.prod(value.shape) * value.element_size()
