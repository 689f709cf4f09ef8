"""Cheap forward values that the backward reads are computed again there, from what it keeps anyway.

Works on the joint graph, before it is cut in two: a value's short chain of pointwise operators is copied to its readers in the
backward, so that the value itself need not cross the border. It pays where the copy fuses with its readers and the sources
are read there in any case: the input of an activation behind a batch normalisation (sources: the normalisation's own input
and two numbers per channel). What the forward writes anyway, for a contraction say, is read from there; or, where a target wants that
(``cut_for.py``), computed again for readers that read what it is made of in any case, such as the mask of a ReLU.

Keys that were repeated for several heads are repeated again in front of attention's gradient: attention reads them before they are
repeated (``transforms/tier2_fusion/share_keys.py``), in the forward too where the repeated ones need not be stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from dcir.frontends.torch.partition.cse import merge_equal
from dcir.frontends.torch.partition.cut_for import asked
from dcir.frontends.torch.partition.joint_graph import (
    base,
    is_pointwise,
    is_view,
    keep_what_reads_written,
    nbytes,
    packet,
    written_to,
)

aten = torch.ops.aten

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
SHARING = {aten._scaled_dot_product_flash_attention_for_cpu_backward}
"""What reads repeated operands where they are once."""
COPYING = {aten.clone, aten._unsafe_view}
"""What ``reshape`` is where it cannot be a view."""
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
    merge_equal(joint.graph)
    done = _Recompute(joint.graph, forward_outputs).repeat()
    done += _Recompute(joint.graph, forward_outputs).run()
    keep_what_reads_written(joint.graph)
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
        inputs = {n for n in graph.nodes if n.op == "placeholder"} - set(written_to(graph))
        self.kept = inputs | (late - self.backward)
        for n in graph.nodes:
            if n in self.backward or n.op != "call_function":
                continue
            readers = [u for u in n.users if u in self.backward]
            if readers and (not _copies(n) or not all(_takes_in(r) for r in readers)):
                self.kept.add(n)

    def repeat(self) -> int:
        """Copy what repeats a smaller value in front of its readers in the backward that read that in its place."""
        done = 0
        for reader in [n for n in self.backward if packet(n) in SHARING]:
            for value in dict.fromkeys(reader.all_input_nodes):
                chain = None if value in self.backward else self.repetition(value)
                if chain is not None:
                    self.copy(chain, value, reader)
                    done += 1
        return done

    def repetition(self, value: fx.Node) -> Chain | None:
        """The views and the copy between a value and one of at most half its size; None if there is no such thing."""
        ops: list[fx.Node] = []
        while value not in self.returned and (is_view(value) or packet(value) in COPYING):
            ops.append(value)
            if len(value.all_input_nodes) != 1 or len(ops) > LONGEST:
                return None
            (value,) = value.all_input_nodes
        # What is stored is what the forward has, no view of it.
        repeats = bool(ops) and 0 < 2 * nbytes(value) <= nbytes(ops[0]) and any(packet(n) in COPYING for n in ops)
        return Chain(tuple(reversed(ops)), frozenset({value})) if repeats else None

    def run(self) -> int:
        """Decide for each forward value that the backward reads, from the first on."""
        done = 0
        for value in [n for n in self.place if n not in self.backward and n.op == "call_function"]:
            readers = [u for u in value.users if u in self.backward]
            if not readers or not _copies(value) or nbytes(value) == 0:
                continue
            chain = self.chain(value) if all(map(_takes_in, readers)) and not self.written(value) else None
            deep = self.chain(value, deep=True) if asked().repeats_written else None
            # Stored it is a write and a read; a copy reads what its reader does not read in any case.
            if chain is None or any(self.unread(chain, r) > nbytes(value) for r in readers):
                self.kept.add(value)
                chain = None
            for reader in readers:
                least = self.least(chain, deep, nbytes(value), reader)
                if least is not None:
                    self.copy(least, value, reader)
                    done += 1
        return done

    def least(self, chain: Chain | None, deep: Chain | None, nbytes_read: int, reader: fx.Node) -> Chain | None:
        """What a reader is to compute of a value; None if it is to read it."""
        if deep is None or not _takes_in(reader):
            return chain
        return (
            deep
            if self.unread(deep, reader) < (nbytes_read if chain is None else self.unread(chain, reader))
            else chain
        )

    def unread(self, chain: Chain, reader: fx.Node) -> int:
        """Bytes that a copy in front of a reader reads and the reader does not in any case."""
        return sum(map(nbytes, chain.sources - self.near(reader)))

    def written(self, value: fx.Node) -> bool:
        """Whether the forward writes a value in any case: for its caller, or for an operator that takes no producer in."""
        names = {value, base(value)}
        users = {u for n in names for u in n.users} - self.backward
        return not names.isdisjoint(self.returned | self.kept) or not all(map(_takes_in, users))

    def chain(self, value: fx.Node, *, deep: bool = False) -> Chain | None:
        """The operators between a value and what the backward keeps; None if they are too many or their sources are not kept.

        ``deep``: through what is kept and can be copied, too.
        """
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
                if a in self.kept and not (deep and _copies(a)):
                    if 8 * nbytes(a) > nbytes(value):
                        sources.add(base(a))
                elif _copies(a):
                    pending.append(a)
                elif 8 * nbytes(a) > nbytes(value):
                    return None
        # Operators on small values are not counted: the cut stores whichever of these is smallest.
        large = [n for n in ops if 8 * nbytes(n) > nbytes(value)]
        if sum(packet(n) in COSTLY for n in large) > 1:
            return None
        return Chain(tuple(sorted(large, key=self.place.__getitem__)), frozenset(sources))

    def near(self, reader: fx.Node) -> set[fx.Node]:
        """Forward values that the reader's program reads in any case: its own, and those of what takes it in."""
        return {
            base(a)
            for p in self.programs(reader)
            for a in p.all_input_nodes
            if a not in self.backward and a in self.kept
        }

    def programs(self, reader: fx.Node) -> set[fx.Node]:
        """The operators that are likely to be in one program with a reader, itself among them."""
        programs = {reader} | {u for u in reader.users if _takes_in(u)}
        for p in list(programs):
            if _copies(p):
                programs |= {a for a in p.all_input_nodes if a in self.backward and _copies(a)}
                programs |= {u for u in p.users if _takes_in(u)}
        return programs

    def copy(self, chain: Chain, value: fx.Node, reader: fx.Node) -> None:
        """Compute ``value`` again in front of ``reader``."""
        new: dict[fx.Node, fx.Node] = {}
        for n in chain.ops:
            with self.graph.inserting_before(reader):
                made = self.graph.node_copy(n, lambda a: new.get(a, a))
            made.meta = dict(n.meta)
            new[n] = made
        reader.replace_input_with(value, new[value])


def _copies(node: fx.Node) -> bool:
    """Whether a node may be part of a copied chain."""
    return (
        node.op == "call_function"
        and isinstance(node.meta.get("val"), torch.Tensor)
        and (is_pointwise(node) or is_view(node))
    )


def _takes_in(node: fx.Node) -> bool:
    """Whether a pointwise producer fuses into a node."""
    return _copies(node) or (node.op == "call_function" and packet(node) in REDUCING)
