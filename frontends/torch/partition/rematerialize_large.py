"""Large forward values are computed again in the backward where keeping them would make the peak of a step too high.

    forward keeps x and y = relu(norm(x))    -->    forward keeps x;  backward: y = relu(norm(x)), then the reader of y

Works on forward and backward after the cut. A candidate is a kept value that follows by a short pointwise chain, or by a layer
normalisation's arithmetic, from what is kept in any case: what a convolution or a product reads behind an activation whose input
the activation's own backward wants. Such a reader takes no producer in, so the copy is written once more, short before it is read,
which costs two sweeps over memory. So it is done only as far as the peak asks for it, most bytes per cost first, and for a bounded
part of the step's time.

The measure is what an eager step would need: it keeps what its backward reads, and frees each of these behind its last reader.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput

from dcir.frontends.torch.partition.cut_for import asked
from dcir.frontends.torch.partition.joint_graph import base, is_pointwise, is_view, nbytes, packet, tensors, written_to
from dcir.frontends.torch.partition.model import flops
from dcir.frontends.torch.partition.recompute import COSTLY, LONGEST, REDUCING

aten = torch.ops.aten

GOAL = 0.8
"""Part of an eager step's peak that is aimed at; what fusion, layouts and gaps between values change comes on top."""
# Bytes below which no value is worth it, and the part of the step's time that all of them may cost.
WORTH = 1 << 18
DEAREST = 1 / 64
# Passes over a value that the operators in ``COSTLY`` take.
_COSTLY = 1.0

Span = tuple[int, int]


@dataclass
class _Candidate:
    """A kept value, its copy's operators in order, what they read, the position of its first reader."""

    value: fx.Node
    ops: tuple[fx.Node, ...]
    sources: tuple[fx.Node, ...]
    first: int
    cost: float


def eager_peak(joint: fx.Graph, forward_outputs: int) -> int:
    """Bytes that an eager step has at the most, beyond its inputs and its results: values end behind their last reader."""
    spans = _spans(joint)
    (output,) = joint.find_nodes(op="output")
    shown = {base(n) for n in output.args[0][:forward_outputs] if isinstance(n, fx.Node)}
    return _peak((nbytes(n), s) for n, s in spans.items() if n not in shown)[0]


def rematerialize_large(
    forward: fx.GraphModule, backward: fx.GraphModule, forward_outputs: int, most: int, *, worth: int = WORTH,
    dearest: float = DEAREST,
) -> int:  # fmt: skip
    """Have the backward compute kept values again until its estimated peak is ``most`` bytes; returns how many.

    Args:
        forward, backward: as AOTAutograd gets them; changed in place.
        forward_outputs: how many results of the forward are for its caller.
        most: bytes.
        worth: bytes below which no value is computed again.
        dearest: part of the step's time that this may cost.
    """
    if any(not tensors(n) for n in backward.graph.find_nodes(op="placeholder")):
        return 0  # symbolic sizes among what is kept
    return _Spare(forward, backward, forward_outputs, worth).run(most, dearest)


def _spans(graph: fx.Graph) -> dict[fx.Node, Span]:
    """First and last position of every value that has memory of its own."""
    place = {n: i for i, n in enumerate(graph.nodes)}
    end = len(place)
    last: dict[fx.Node, int] = {}
    for n in graph.nodes:
        for a in n.all_input_nodes:
            at = end if n.op == "output" else place[n]
            last[a] = max(last.get(a, 0), at)
    for n in reversed(graph.nodes):  # a view keeps what it shows
        if n.op == "call_function" and is_view(n) and n in last:
            source = n.all_input_nodes[0]
            last[source] = max(last[source], last[n])
    found = {}
    for n in graph.nodes:
        if n.op == "call_function" and not is_view(n) and isinstance(n.meta.get("val"), torch.Tensor):
            source = n.args[0] if n.target is operator.getitem else n
            found[n] = place[source], last.get(n, place[n])
    return found


def _peak(values: Iterable[tuple[int, Span]]) -> tuple[int, int]:
    """The most bytes at one time, and when."""
    change: dict[int, int] = {}
    for size, (first, last) in values:
        change[first] = change.get(first, 0) + size
        change[last + 1] = change.get(last + 1, 0) - size
    now = most = when = 0
    for at in sorted(change):
        now += change[at]
        if now > most:
            most, when = now, at
    return most, when


def _bytes_worth(graph: fx.Graph) -> float:
    """The time of a graph, in bytes that memory delivers meanwhile: every result once, and what contractions compute."""
    ops = [n for n in graph.nodes if n.op == "call_function" and n.target is not operator.getitem and not is_view(n)]
    return sum(max(float(nbytes(n)), flops(n) / asked().flops_per_byte) for n in ops)


class _Spare:
    def __init__(self, forward: fx.GraphModule, backward: fx.GraphModule, forward_outputs: int, worth: int) -> None:
        self.forward, self.backward, self.worth = forward, backward, worth
        self.results = forward_outputs
        (self.output,) = forward.graph.find_nodes(op="output")
        every = list(self.output.args[0])
        self.shown = {base(n) for n in every[:forward_outputs] if isinstance(n, fx.Node)}
        self.kept = {n.name: n for n in every[forward_outputs:] if isinstance(n, fx.Node)}
        self.place = {n: i for i, n in enumerate(backward.graph.nodes)}
        self.inputs: dict[str, fx.Node] = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
        self.order = {n: i for i, n in enumerate(forward.graph.nodes)}
        self.written = set(written_to(forward.graph))
        self.pinned: set[fx.Node] = set()  # what the dropped are computed from, and what others show
        self.spans = self._live()
        self.chains: dict[str, _Candidate | None] = {}
        self.dropped: dict[str, _Candidate] = {}

    def run(self, most: int, dearest: float) -> int:
        left = dearest * (_bytes_worth(self.forward.graph) + _bytes_worth(self.backward.graph))
        while True:
            peak, when = _peak((nbytes(n), s) for n, s in self.spans.items())
            if peak <= most:
                break
            able = [c for c in self._candidates() if c.first > when and c.cost <= left]
            if not able:
                break
            best = max(able, key=lambda c: (nbytes(c.value) / c.cost, nbytes(c.value), -c.first))
            self._drop(best)
            left -= best.cost
        for c in sorted(self.dropped.values(), key=lambda c: c.first):
            self._rewrite(c)
        if self.dropped:
            self._outputs()
        return len(self.dropped)

    def _live(self) -> dict[fx.Node, Span]:
        """When what is kept, and what the backward makes and does not fuse away, has memory."""
        graph = self.backward.graph
        spans = _spans(graph)
        (output,) = graph.find_nodes(op="output")
        returned = {base(n) for n in output.args[0] if isinstance(n, fx.Node)}
        for n in list(spans):
            source = n.args[0] if n.target is operator.getitem else n
            readers = set(n.users)
            fused = is_pointwise(source) and len(readers) <= 1 and all(map(_takes_in, readers))  # type: ignore[arg-type]
            if fused and n not in returned:
                del spans[n]
        shared: dict[fx.Node, list[fx.Node]] = {}
        for name, n in self.inputs.items():
            source = base(self.kept[name]) if name in self.kept else n
            if source.op != "placeholder" and source not in self.shown:
                shared.setdefault(source, []).append(n)
        for source, parts in shared.items():
            whole = [n for n in parts if nbytes(n) == nbytes(source)]
            last = max(map(self._last, parts))
            spans |= {whole[0]: (-1, last)} if whole else {n: (-1, self._last(n)) for n in parts}
            if len(parts) > 1:
                self.pinned.update(self.kept[n.name] for n in parts)
        return spans

    def _last(self, n: fx.Node) -> int:
        ends = [self.place[u] for u in n.users if u.op != "output"]
        for u in n.users:
            if u.op == "call_function" and is_view(u):
                ends.append(self._last(u))
        return max(ends, default=-1)

    def _first(self, n: fx.Node) -> int:
        return min(self.place[u] for u in n.users)

    def _candidates(self) -> list[_Candidate]:
        found = []
        for name, n in self.kept.items():
            there = self.inputs.get(name)
            if name in self.dropped or there not in self.spans or nbytes(n) < self.worth or not there.users:
                continue
            if n in self.pinned:
                continue
            c = self.chains.get(name)
            if c is None and name not in self.chains:
                c = self.chains[name] = self._chain(n, there)
            if c is not None:
                found.append(c)
        return found

    def _chain(self, value: fx.Node, there: fx.Node) -> _Candidate | None:
        ops: set[fx.Node] = set()
        sources: set[fx.Node] = set()
        pending = [value]
        while pending:
            n = pending.pop()
            if n in ops:
                continue
            if n is not value:
                if n in self.written or n.op == "get_attr" or not isinstance(n.meta.get("val"), torch.Tensor):
                    return None
                if n.op == "placeholder" or (n.name in self.kept and n.name not in self.dropped):
                    sources.add(n)
                    continue
            norm = _norm(n)
            if norm is not None:
                pending += [a for a in (norm.args[0], norm.args[2], norm.args[3]) if isinstance(a, fx.Node)]
                pending += _statistics(norm)
            elif _copies(n):
                pending += n.all_input_nodes
            elif n is not value and 8 * nbytes(n) <= nbytes(value):
                sources.add(n)  # kept from now on
                continue
            else:
                return None
            ops.add(n)
            if len(ops) > LONGEST:
                return None
        first = self._first(there)
        costly = sum(packet(n) in COSTLY and 8 * nbytes(n) > nbytes(value) for n in ops)
        if costly > 1:
            return None
        read = sum(nbytes(s) for s in sources)
        return _Candidate(
            value, self._in_order(ops), self._in_order(sources), first,
            read + nbytes(value) * (1 + _COSTLY * costly),
        )  # fmt: skip

    def _in_order(self, nodes: set[fx.Node]) -> tuple[fx.Node, ...]:
        return tuple(sorted(nodes, key=self.order.__getitem__))

    def _drop(self, c: _Candidate) -> None:
        there = self.inputs[c.value.name]
        self.spans[there] = c.first, self.spans[there][1]
        for s in c.sources:
            n = self.inputs.get(s.name)
            if n is not None and n in self.spans:
                first, last = self.spans[n]
                self.spans[n] = first, max(last, c.first)
        self.dropped[c.value.name] = c
        self.pinned.update(c.sources)
        for name, other in list(self.chains.items()):
            if other is not None and c.value in other.sources:
                del self.chains[name]

    def _rewrite(self, c: _Candidate) -> None:
        """Compute a value again in front of its first reader."""
        there = self.inputs[c.value.name]
        reader = min(there.users, key=self.place.__getitem__)
        new: dict[fx.Node, fx.Node] = {s: self._input(s) for s in c.sources}
        with self.backward.graph.inserting_before(reader):
            for n in c.ops:
                norm = _norm(n)
                if norm is not None:
                    new[n] = _normalised(self.backward.graph, n, norm, new)
                else:
                    new[n] = self.backward.graph.node_copy(n, lambda a: new[a])
                    new[n].meta = dict(n.meta)
        there.replace_all_uses_with(new[c.value])
        self.backward.graph.erase_node(there)
        del self.inputs[c.value.name]

    def _input(self, n: fx.Node) -> fx.Node:
        """A forward value as an argument of the backward."""
        if n.name not in self.inputs:
            first = next(iter(self.backward.graph.nodes))
            with self.backward.graph.inserting_before(first):
                self.inputs[n.name] = made = self.backward.graph.placeholder(n.name)
            made.meta = dict(n.meta)
            self.kept = {n.name: n} | self.kept
        return self.inputs[n.name]

    def _outputs(self) -> None:
        """Have the forward return what the backward takes, in its order."""
        kept = [n for name, n in self.kept.items() if name not in self.dropped]
        old, before = self.output.args[0], self.output.meta.get("desc")
        self.output.args = ([*old[: self.results], *kept],)
        if before is not None:
            kinds = {n: type(d) for n, d in zip(old[self.results :], before[self.results :], strict=True)}
            saved = (kinds.get(n, SavedForBackwardsAOTOutput)(i) for i, n in enumerate(kept))
            self.output.meta["desc"] = [*before[: self.results], *saved]
        for gm in (self.forward, self.backward):
            gm.graph.eliminate_dead_code()
            gm.graph.lint()
            gm.recompile()


def _copies(n: fx.Node) -> bool:
    return n.op == "call_function" and isinstance(n.meta.get("val"), torch.Tensor) and (is_pointwise(n) or is_view(n))


def _takes_in(n: fx.Node) -> bool:
    return _copies(n) or (n.op == "call_function" and packet(n) in REDUCING)


def _norm(n: fx.Node) -> fx.Node | None:
    """The layer normalisation that a node is the first result of."""
    if n.target is operator.getitem and n.args[1] == 0:
        source = n.args[0]
        if isinstance(source, fx.Node) and source.target is aten.native_layer_norm.default:
            return source if len(_statistics(source)) == 2 else None
    return None


def _statistics(norm: fx.Node) -> list[fx.Node]:
    """Mean and reciprocal deviation, if both are asked for."""
    parts: dict[Any, fx.Node] = {u.args[1]: u for u in norm.users if u.target is operator.getitem}
    return [parts[i] for i in (1, 2) if i in parts]


def _normalised(graph: fx.Graph, result: fx.Node, norm: fx.Node, new: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """(x - mean) root weight + bias, as the operator's page has it."""
    x, _, weight, bias = norm.args[:4]
    mean, root = (new[s] for s in _statistics(norm))

    def emit(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in result.meta.items() if k not in ("val", "tensor_meta")}
        given = [a.meta["val"] if isinstance(a, fx.Node) else a for a in args]
        with given[0].fake_mode:
            made.meta["val"] = target(*given, **kwargs)
        return made

    wide = mean.meta["val"].dtype

    def widened(n: fx.Node) -> fx.Node:
        return n if n.meta["val"].dtype == wide else emit(aten._to_copy.default, n, dtype=wide)

    out = emit(aten.sub.Tensor, widened(new[x]), mean)  # type: ignore[index]
    out = emit(aten.mul.Tensor, out, root)
    if isinstance(weight, fx.Node):
        out = emit(aten.mul.Tensor, out, widened(new[weight]))
    if isinstance(bias, fx.Node):
        out = emit(aten.add.Tensor, out, widened(new[bias]))
    like = result.meta["val"]
    return out if like.dtype == wide else emit(aten._to_copy.default, out, dtype=like.dtype)
