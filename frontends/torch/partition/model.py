"""The joint graph of forward and backward as values to keep or to compute again (``partition/solver.py``).

Views and pointwise operators with a single reader are no values: they are computed wherever they are read. What is small is kept
in any case. Steps are stretches of the graph around operators that cannot fuse, at most ``STEPS`` in each direction.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from dcir.frontends.torch.partition.joint_graph import base, is_pointwise, is_random, is_view, nbytes, packet, tensors
from dcir.frontends.torch.partition.solver import PartitionProblem, Value

aten = torch.ops.aten

STEPS = 40
# A value below this part of all values' bytes is not worth a decision.
SMALL = 1 / 2000
# What is computed next to its readers as pointwise operators are: fills, copies, and a result of halves.
ALSO = {
    aten.glu_backward, aten.clone, aten.full, aten.full_like, aten.scalar_tensor, aten.zeros_like, aten.ones_like, aten.expand,
}  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """Of the machine: floating-point operations and bytes per second."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class PartitionModel:
    """A problem, and the nodes its values stand for.

    Attributes:
        nodes: per value.
        free: nodes that are there in the backward at no cost: inputs that nobody writes to, and the forward's results.
    """

    problem: PartitionProblem
    nodes: tuple[fx.Node, ...]
    free: tuple[fx.Node, ...]


class Joint:
    """A joint graph, its forward and its backward part.

    Attributes:
        backward: nodes that depend on the gradients that come in.
        results, gradients: nodes that the forward and the backward return.
    """

    def __init__(self, graph: fx.Graph, forward_results: int, written_to: Iterable[fx.Node] = ()) -> None:
        self.graph = graph
        self.place = {n: i for i, n in enumerate(graph.nodes)}
        self.backward = {n for n in graph.nodes if n.op == "placeholder" and "tangents" in str(n.target)}
        for n in graph.nodes:
            if n.op == "call_function" and any(a in self.backward for a in n.all_input_nodes):
                self.backward.add(n)
        (output,) = graph.find_nodes(op="output")
        every = output.args[0]
        self.results = [n for n in every[:forward_results] if isinstance(n, fx.Node)]
        self.gradients = [n for n in every[forward_results:] if isinstance(n, fx.Node)]
        self.written_to = set(written_to)
        self.required = _ancestors(self.results)

    def forward(self) -> list[fx.Node]:
        """Nodes that do not depend on gradients, in order, without the output."""
        return [n for n in self.graph.nodes if n not in self.backward and n.op != "output"]


def static(graph: fx.Graph) -> bool:
    """Whether all sizes are numbers, and every operator is one of ATen's without effects, or takes a result apart."""
    for n in graph.nodes:
        known = isinstance(n.target, torch._ops.OpOverload)
        if n.op == "call_function" and n.target is not operator.getitem and not known:
            return False
        if known and n.target._schema.is_mutable:
            return False
        for value in tensors(n):
            if not all(isinstance(d, int) for d in (*value.shape, *value.stride())):
                return False
        if isinstance(n.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
            return False
    return True


def is_light(node: fx.Node) -> bool:
    """Whether a node can be computed wherever it is read, at about the cost of reading it."""
    return is_pointwise(node) or packet(node) in ALSO


def model(joint: Joint, rates: Rates) -> PartitionModel:
    """The values of a joint graph."""
    return _Builder(joint, rates).build()


class _Builder:
    def __init__(self, joint: Joint, rates: Rates) -> None:
        self.joint, self.rates = joint, rates
        self.forward = joint.forward()
        self.returned = {base(n) for n in joint.results}
        total = sum(nbytes(n) for n in self.forward if n.op == "call_function" and not is_view(n))
        self.small = total * SMALL
        self.number: dict[fx.Node, int] = {}
        self.sources: dict[fx.Node, frozenset[int]] = {}  # values that a node is, or is computed from
        self.merged: dict[fx.Node, float] = {}  # bytes read by the pointwise operators merged into a node

    def build(self) -> PartitionModel:
        nodes: list[fx.Node] = []
        for n in self.forward:
            if self._is_value(n):
                self.number[n] = len(nodes)
                self.sources[n] = frozenset([len(nodes)])
                nodes.append(n)
            else:
                self.sources[n] = self._read(n)
        forward_step = _steps([n for n in self.forward if n in self.joint.required], STEPS)
        backward = [n for n in self.joint.graph.nodes if n in self.joint.backward]
        backward_step = _steps(backward, STEPS)
        last_step = max(backward_step.values(), default=0)
        needs: dict[int, list[int]] = {}
        whole: set[int] = set()  # values that some reader in the backward wants in memory
        for n in backward:
            for a in n.all_input_nodes:
                if a in self.joint.backward:
                    continue
                for i in self.sources[a]:
                    needs.setdefault(i, []).append(backward_step[n])
                    if not _takes_in(n):
                        whole.add(i)
        for n in self.joint.gradients:
            if n not in self.joint.backward:
                for i in self.sources[n]:
                    needs.setdefault(i, []).append(last_step)
        values = tuple(self._value(n, needs.get(i), i in whole, forward_step) for i, n in enumerate(nodes))
        on_their_way = self._lives(backward, backward_step, last_step)
        forward_base = (0,) * (1 + max(forward_step.values(), default=0))
        free = [n for n in self.forward if n.op == "placeholder" and n not in self.joint.written_to]
        return PartitionModel(PartitionProblem(values, forward_base, on_their_way), tuple(nodes), tuple(free))

    def _read(self, node: fx.Node) -> frozenset[int]:
        return frozenset().union(*(self.sources[a] for a in node.all_input_nodes))

    def _is_value(self, n: fx.Node) -> bool:
        if n.op == "placeholder":
            return n in self.joint.written_to
        if n.op != "call_function" or is_view(n):
            return False
        if n.target is operator.getitem:
            return bool(tensors(n))
        if not is_light(n):
            return True
        if n.meta.get("recompute") == _MUST_SAVE:
            return True
        if nbytes(n) <= self.small:
            return False
        readers = list(_readers(n))
        if n in self.returned or any(r in self.joint.backward or not _takes_in(r) for r in readers):
            return True
        return len(set(readers)) > 1

    def _value(self, n: fx.Node, needs: list[int] | None, whole: bool, forward_step: dict[fx.Node, int]) -> Value:
        size = nbytes(n)
        tensor = isinstance(n.meta.get("val"), torch.Tensor)
        forward = None
        if n in self.joint.required:
            used = [forward_step[r] for r in (n, *_readers(n)) if r in forward_step]
            forward = (min(used), max(used))
        written = tensor and n not in self.returned and n.op != "placeholder" and self._is_written(n)
        forbidden = is_random(n) or n.op == "placeholder" or n.meta.get("recompute") == _MUST_SAVE
        forced = tensor and not _must_recompute(n) and (
            n in self.returned or (size <= self.small and not is_light(n)) or is_random(_source(n))
        )  # fmt: skip
        if n.op == "placeholder":  # its old contents: kept if the gradients themselves read them, as without a limit
            forced = bool(needs)
        storable = tensor and (forced or not (n.op == "placeholder" or (_must_recompute(n) and not forbidden)))
        stored = None if not storable else 0 if n in self.returned or n.op == "placeholder" else size
        # What the forward writes anyway is only read once more.
        store = (1 if written else 2) * size / self.rates.bytes
        again = math.inf if forbidden else self._seconds(n)
        reads = (min(needs), max(needs)) if needs else None
        return Value(
            n.name, stored, size if whole else 0, size if written else 0, tuple(sorted(self._read(n))), store, again,
            forced, forward, reads,
        )  # fmt: skip

    def _is_written(self, n: fx.Node) -> bool:
        """Whether the forward has a value in memory even if nobody keeps it."""
        readers = [r for r in _readers(n) if r in self.joint.required]
        return not is_light(n) or len(readers) > 1 or any(not _takes_in(r) for r in readers)

    def _seconds(self, n: fx.Node) -> float:
        if n.target is operator.getitem:
            return 1e-9
        read = sum(nbytes(a) for a in self._roots(n)) + nbytes(n)
        return max(read / self.rates.bytes, flops(n) / self.rates.flops) + 1e-6

    def _roots(self, n: fx.Node) -> set[fx.Node]:
        """Values and inputs that a node is computed from, through everything merged into it."""
        found: set[fx.Node] = set()
        pending, seen = list(n.all_input_nodes), set()
        while pending:
            a = pending.pop()
            if a in seen:
                continue
            seen.add(a)
            if a in self.number or not a.all_input_nodes:
                found.add(a)
            else:
                pending += a.all_input_nodes
        return found

    def _lives(self, backward: Sequence[fx.Node], step: dict[fx.Node, int], last: int) -> tuple[int, ...]:
        """Bytes of gradients on their way, per step; those that are returned have memory of their own."""
        returned = {base(n) for n in self.joint.gradients}
        alive = [0] * (last + 1)
        for n in backward:
            tensor = n.op == "call_function" and isinstance(n.meta.get("val"), torch.Tensor)
            if not tensor or is_view(n) or n in returned:
                continue
            source = n.args[0] if n.target is operator.getitem else n
            readers = set(_readers(n))
            if is_light(source) and len(readers) <= 1 and all(map(_takes_in, readers)):  # type: ignore[arg-type]
                continue
            end = max((step[r] for r in readers if r in step), default=step[n])
            for t in range(step[n], end + 1):
                alive[t] += nbytes(n)
        return tuple(alive)


def _steps(nodes: Sequence[fx.Node], most: int) -> dict[fx.Node, int]:
    """Steps of nodes: each ends with operators that cannot fuse, equally many in each."""
    events = sum(not _light(n) for n in nodes)
    each = max(1, -(-events // most))
    step, seen, result = 0, 0, {}
    for n in nodes:
        result[n] = step
        if not _light(n):
            seen += 1
            if seen == each:
                step, seen = step + 1, 0
    return result


def _light(n: fx.Node) -> bool:
    return n.op != "call_function" or n.target is operator.getitem or is_view(n) or is_light(n)


def _takes_in(n: fx.Node) -> bool:
    """Whether pointwise work fuses into a reader, so that it needs no memory of its own."""
    return is_light(n) or packet(n) in _REDUCTIONS


_REDUCTIONS = {aten.sum, aten.mean, aten.amax, aten.amin, aten.var_mean}


def _readers(node: fx.Node) -> Iterable[fx.Node]:
    """Readers of a value, through views."""
    pending, seen = list(node.users), set()
    while pending:
        u = pending.pop()
        if u in seen or u.op == "output":
            continue
        seen.add(u)
        if is_view(u):
            pending += u.users
        else:
            yield u


def _source(node: fx.Node) -> fx.Node:
    """The operator that a result comes from."""
    return node.args[0] if node.target is operator.getitem else node  # type: ignore[return-value]


def _ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        n = pending.pop()
        if n not in found:
            found.add(n)
            pending += n.all_input_nodes
    return found


def _dtype(node: fx.Node) -> torch.dtype | None:
    results = tensors(node)
    return results[0].dtype if len(results) == 1 else None


def flops(node: fx.Node) -> float:
    """Floating-point operations as torch counts them; 0 for what it does not count."""
    count: Callable[..., Any] | None = flop_registry.get(packet(node))
    if count is None:
        return 0.0
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    return float(count(*args, **kwargs, out_val=node.meta["val"]))


_MUST_SAVE = CheckpointPolicy.MUST_SAVE
_RECOMPUTE = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def _must_recompute(node: fx.Node) -> bool:
    """Whether the user asked for a value to be computed again (``torch.utils.checkpoint``)."""
    return node.meta.get("recompute") in _RECOMPUTE
