"""Images lie in memory the way the operators around them want them: one choice for the whole network.

    conv(x[n,c,h,w]) -> t[n,c,h,w] -> relu -> u[n,c,h,w] -> conv     -->     the same with t[n,h,w,c], u[n,h,w,c]

Convolutions, pooling and pointwise operators work best with channels last: vectors run along channels without shifts or
edges, and a 1x1 convolution is a product of matrices in place. What the caller gives and takes keeps its layout, and so does
what some operator cannot reach otherwise. Every container that is free has two layouts, every operator two directions of its
vectors, and every pair that disagrees costs traffic (``layout_costs.py``); the cheapest choice of all is a minimum cut
(``binary_min_cut.py``). Operators on both sides of a new layout walk it by other strides (``relayout.py``); no operator is added,
but copies of images that convolutions read often enough. A row of channels whose bytes are a multiple of 4096 is padded,
since rows 4096 bytes apart share one set of the L1 cache. Saves the strided passes and the packing of every convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from dcir.cost.target import target_of
from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_forms import drop_unit_loops, order_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Container, Network, Operand
from dcir.ir.operator import Operator
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.types import itemsize
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.torch_call import TorchCall
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier3_layout.layout.binary_min_cut import Agreement
from dcir.transforms.tier3_layout.layout.channels import Snapshot, channel_dimensions, image_windows
from dcir.transforms.tier3_layout.layout.layout_costs import Layouts, convolution_costs, program_costs, window_costs
from dcir.transforms.tier3_layout.layout.relayout import BoundOperator, LayoutCopy, Side, moved


@dataclass(frozen=True)
class AssignLayouts(Pass):
    """Strides of all free containers around convolutions."""

    tier: ClassVar[int] = 3

    def apply(self, net: Network) -> PassResult:
        """Choose, then move every operator to the chosen layouts."""
        outcome = PassResult.of(net)
        if not any(isinstance(op.spec, ConvolutionSpec) for op in net.ops()):
            return outcome
        plan = _Plan(self, net, outcome)
        chosen, turned = plan.choose()
        outcome.analysis(
            "containers whose channels are known, that may have them innermost, and that get them",
            known=len(plan.known), free=len(plan.free), chosen=len(chosen), copied=len(turned),
        )  # fmt: skip
        _Rewriter(plan, self.name).apply(chosen, turned, outcome)
        for data in chosen:
            outcome.passed(plan.shot.writers[data], value_bytes=plan.known[data].container.nbytes)
        return outcome


class _Plan:
    """The layouts of a network: what may be chosen, and what it costs.

    Attributes:
        known: both layouts of every container whose channels are known.
        free: the containers that may change their layout.
        copied: those that keep it, with the convolutions that could read a copy.
        mapper: puts operators on the other side.
    """

    def __init__(self, by: Pass, net: Network, outcome: PassResult) -> None:
        self.by, self.net, self.outcome = by, net, outcome
        self.shot, self.mapper = Snapshot(net), _Mapper()
        self.costs = target_of(net).costs
        static = net.preparable()
        fixed = net.static_containers(static)
        self.known = {
            data: Layouts(net.containers[data], dims, self._channels_last(data, dims))
            for data, dims in channel_dimensions(self.shot, fixed).items()
        }
        shown = {r.data for i, r in enumerate(net.results) if i not in net.free}
        ours = {data for data, c in net.containers.items() if c.role == "transient"}
        ours |= {net.results[i].data for i in net.free}
        self.free: set[str] = set()
        for data, layouts in self.known.items():
            if data not in ours or data in shown or layouts.container.role == "input" or same_places(layouts):
                continue
            reason = self._immovable(data, layouts)
            if reason is None and not net.allows(by, *self.shot.writers[data]):
                reason = SWITCHED_OFF
            if reason is None:
                self.free.add(data)
            else:
                outcome.missed(reason, self.shot.writers[data])

    def _channels_last(self, data: str, dims: frozenset[int]) -> tuple[int, ...]:
        """Strides with channels innermost, padded where rows would share a set of the cache and products read them."""
        c = self.net.containers[data]
        memory = self.costs.memory
        order = [d for d in range(len(c.shape)) if d not in dims]
        order += sorted(dims, key=lambda d: c.strides[d], reverse=True)
        strides, step = [1] * len(c.shape), 1
        for place, d in enumerate(reversed(order), 1):
            strides[d] = step
            step *= max(c.shape[d], 1)
            row = step * itemsize(c.dtype)
            if place == len(dims) and row % memory.conflict_bytes == 0 and self._worth_padding(data):
                step += memory.line_bytes // itemsize(c.dtype)
        return tuple(strides)

    def _worth_padding(self, data: str) -> bool:
        """Whether products read rows of it, and nobody its elements as one block."""
        readers = [self.shot.ops[op].spec for op in self.shot.readers[data]]
        if self.net.containers[data].role != "transient" or any(_is_copy(s) for s in readers):
            return False
        return any(isinstance(s, ConvolutionSpec | ContractionSpec) for s in readers)

    def _immovable(self, data: str, layouts: Layouts) -> Refusal | None:
        """Why some operator or result cannot follow a container to its other layout."""
        for ops, way in ((self.shot.writers[data], "out"), (self.shot.readers[data], "in")):
            for op in ops:
                new = self.mapper.moved(self.shot.ops[op], Move(data, layouts), way)
                if isinstance(new, Refusal):
                    return new
        copy = Move(data, layouts).copy(joined=True)
        for r in self.net.results:
            if r.data == data:
                to = copy.map_window(copy.source, r.shape, r.strides, r.offset)
                if isinstance(to, Refusal):
                    return to
        return None

    # ------------------------------------------------------------------ choice
    def choose(self) -> tuple[list[str], dict[str, list[Op]]]:
        """The containers to lay out anew; and those to copy, with the convolutions that read the copy."""
        problem = Agreement()
        places = {data: problem.variable() for data in self.known if data in self.free}
        copies: dict[str, int] = {}
        modes: dict[Op, int] = {}
        for data in self._worth_copying():
            copies[data] = problem.variable()
            size = self.known[data].container.nbytes
            problem.cost(copies[data], 0, self.costs.layout.copy * size)
        for op in self.shot.ops:
            mode = modes[op] = problem.variable()

            def add(data: str, table: Sequence[tuple[int, int]], mode: int = mode, op: Op = op) -> None:
                (space, channels), (moved_space, moved_channels) = table
                if data in places:
                    over = space + moved_channels - channels - moved_space
                    problem.pair(places[data], mode, (space, channels, moved_space + max(over, 0), moved_channels))
                elif data in copies and self._reads_copy(op, data):
                    problem.pair(copies[data], mode, (space, channels, space, min(channels, moved_channels)))
                else:
                    problem.cost(mode, space, channels)

            def own(space: int, channels: int, mode: int = mode) -> None:
                problem.cost(mode, space, channels)

            program_costs(self.shot, op, self.known, add, own)
            if isinstance(op.spec, ConvolutionSpec):
                convolution_costs(self.shot, op, self.known, add, own)
            elif not isinstance(op.spec, LoopNest):
                window_costs(self.shot, op, self.known, add)
        # What is chosen of a graph for many sizes is chosen for all of them; every choice is right.
        found = problem.solve()
        labels = [pays(f"layout {i} of {len(found)}", bool(label)) for i, label in enumerate(found)]
        turned = {
            data: [op for op in self.shot.readers[data] if labels[modes[op]] and self._reads_copy(op, data)]
            for data, v in copies.items()
            if labels[v]
        }
        return [data for data, v in places.items() if labels[v]], {d: ops for d, ops in turned.items() if ops}

    def _worth_copying(self) -> list[str]:
        """Images that keep their layout and are read by convolutions that could read a copy."""
        kept = [data for data, layouts in self.known.items() if data not in self.free and not same_places(layouts)]
        self.copied = {data: [op for op in self.shot.readers[data] if self._reads_copy(op, data)] for data in kept}
        return [
            data for data, users in self.copied.items() if users and self.outcome.allowed(self.by, self.net, *users)
        ]

    def _reads_copy(self, op: Op, data: str) -> bool:
        spec = op.spec
        if not isinstance(spec, ConvolutionSpec) or spec.kind != "forward" or math.prod(spec.kernel) == 1:
            return False
        if all(o.data != data for o, _, _ in image_windows(self.shot.ops[op])):
            return False
        return not isinstance(self.mapper.moved(self.shot.ops[op], Move(data, self.known[data]), "in"), Refusal)


def same_places(layouts: Layouts) -> bool:
    """Whether both layouts put every element at the same place."""
    c = layouts.container
    return all(n == 1 or a == b for n, a, b in zip(c.shape, c.strides, layouts.last, strict=True))


def _is_copy(spec: Operator) -> bool:
    return isinstance(spec, LoopNest) and [s.op for s in spec.body] == ["load", "store"]


class Move(NamedTuple):
    """A container on its way to channels last, in container ``new``."""

    data: str
    layouts: Layouts
    new: str = "new"

    def copy(self, *, joined: bool) -> LayoutCopy:
        """The move as a copy; ``joined``, with neighbouring dimensions as one where they stay neighbours."""
        c = self.layouts.container
        table = [(s, t, n) for s, t, n in zip(c.strides, self.layouts.last, c.shape, strict=True) if n != 1]
        found: list[tuple[int, int, int]] = []
        for s, t, n in sorted(table, reverse=True):
            if joined and found and found[-1][0] == s * n and found[-1][1] == t * n:
                n *= found.pop()[2]
            found.append((s, t, n))
        return LayoutCopy(
            tuple(n for _, _, n in found),
            Side(Operand(self.data), tuple(s for s, _, _ in found)),
            Side(Operand(self.new), tuple(t for _, t, _ in found)),
        )


class _Mapper:
    """Moves operators; equal operators with equal operands once."""

    def __init__(self) -> None:
        self._done: dict[Any, BoundOperator | Refusal] = {}

    def moved(self, w: BoundOperator, move: Move, way: str) -> BoundOperator | Refusal:
        """The operator with its operands in the old container put into the new one."""
        if isinstance(w.spec, TorchCall):
            return Refusal("calls into torch keep the layout of their operands")
        names: dict[str, str] = {}

        def plain(o: Operand) -> Operand:
            name = "source" if o.data == move.data else f"other{len(names)}"
            return Operand(names.setdefault(o.data, name), o.offset)

        ins, outs = tuple(map(plain, w.ins)), tuple(map(plain, w.outs))
        c = move.layouts.container
        key = (w.spec, ins, outs, c.shape, c.strides, move.layouts.last, way)
        if key not in self._done:
            self._done[key] = self._first(BoundOperator(w.spec, ins, outs), move, way)
        new = self._done[key]
        if isinstance(new, Refusal):
            return new
        back = {v: k for k, v in names.items()} | {"target": move.new}
        return BoundOperator(
            new.spec,
            tuple(Operand(back[o.data], o.offset) for o in new.ins),
            tuple(Operand(back[o.data], o.offset) for o in new.outs),
        )

    @staticmethod
    def _first(w: BoundOperator, move: Move, way: str) -> BoundOperator | Refusal:
        """Over joined dimensions, which may run as one; else over each, which guards speak of."""
        plain = Move("source", move.layouts, "target")
        copy = plain.copy(joined=True)
        new = moved(w, copy, copy.source, way)
        if isinstance(new, Refusal):
            copy = plain.copy(joined=False)
            again = moved(w, copy, copy.source, way)
            new = new if isinstance(again, Refusal) else again
        return new


class _Rewriter:
    """Carries a choice out."""

    def __init__(self, plan: _Plan, name: str) -> None:
        self.plan, self.net, self.name = plan, plan.net, name
        self.todo = dict(plan.shot.ops)
        self.touched: set[Op] = set()

    def apply(self, chosen: Sequence[str], turned: dict[str, list[Op]], outcome: PassResult) -> None:
        """New containers for ``chosen``, copies of ``turned``."""
        net, shot = self.net, self.plan.shot
        for data in chosen:
            layouts = self.plan.known[data]
            c = layouts.container
            new = net.add_container(c.shape, c.dtype, c.role, layouts.last)
            if data in net.names:
                net.names[new] = net.names.pop(data)
            move = Move(data, layouts, new)
            self._move(shot.writers[data], move, "out")
            self._move(shot.readers[data], move, "in")
            copy = move.copy(joined=True)
            for i, r in enumerate(net.results):
                if r.data == data:
                    to = copy.map_window(copy.source, r.shape, r.strides, r.offset)
                    assert not isinstance(to, Refusal)
                    net.results[i] = replace(r, data=new, strides=to[0], offset=to[1])
        order = {op: i for i, op in enumerate(shot.ops)}
        for data, users in turned.items():
            layouts = self.plan.known[data]
            new = net.add_container(layouts.container.shape, layouts.container.dtype, "transient", layouts.last)
            first = min(users, key=order.__getitem__)
            net.add_op(
                _copy_program(layouts), [Operand(data)], [Operand(new)],
                came_from=(first, *users), made_by=self.name, before=first,
            )  # fmt: skip
            outcome.passed(self.plan.copied[data], reason="convolutions read a copy in the other layout")
            self._move(users, Move(data, layouts, new), "in")
        for op in shot.ops:
            if op in self.touched:
                w = self.todo[op]
                spec = order_loops(drop_unit_loops(w.spec)) if isinstance(w.spec, LoopNest) else w.spec
                net.rewire(op, spec, w.ins, w.outs, made_by=self.name)
        for data in chosen:
            net.remove_container(data)

    def _move(self, ops: Sequence[Op], move: Move, way: str) -> None:
        for op in ops:
            new = self.plan.mapper.moved(self.todo[op], move, way)
            assert not isinstance(new, Refusal)
            self.todo[op] = new
            self.touched.add(op)


def _copy_program(layouts: Layouts) -> LoopNest:
    """The copy of a container into its other layout."""
    c: Container = layouts.container
    body = LoopNestBuilder(c.shape)
    body.store(body.output(c.dtype), layouts.last, body.load(body.input(c.dtype), c.strides))
    return order_loops(drop_unit_loops(body.finish()))
