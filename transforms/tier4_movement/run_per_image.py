"""Runs of operators take the images of a batch one after the other, each thread its own.

    a = f(x); b = g(a); y = h(b)  over n images   -->   for every image: a = f(x[i]); b = g(a); y[i] = h(b)

What only the run touches needs room for one image per thread, and is still in cache when it is read; and a batch costs one
barrier in place of one per operator. The price: what all images share (weights) is read once per image. A run is taken where

    sum over containers inside of  bytes(n images) * (t(n images) - t(one image))   >   sum over operators of what their weights'
    reading takes longer than their arithmetic, per image more
                         + what packing them in every run takes (where they are not packed before), or a matrix unit does worse in pieces

with t the seconds a byte takes from the level of cache that holds so much. Runs are the best intervals of the execution order, best
first. Saves memory traffic of everything between two operators of a run, and most of its memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from dcir.cost.target import target_of
from dcir.ir.annotations import ImagePipeline
from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network
from dcir.ir.operator import Operator
from dcir.ir.types import itemsize
from dcir.ops.analysis.batch_slices import Share, shares
from dcir.ops.library.contraction import ContractionSpec, packs
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class RunPerImage(Pass):
    """Find runs worth walking image by image, by the target's memories and what its products cost."""

    tier: ClassVar[int] = 4
    after: ClassVar[tuple[str, ...]] = ("prepare-static", "order-execution")
    final: ClassVar[bool] = True
    in_bodies: ClassVar[bool] = False

    def apply(self, net: Network) -> PassResult:
        """Fill ``net.streams``."""
        outcome = PassResult.of(net)
        net.streams = []
        images = _images(net)
        target = target_of(net)
        if images < max(2, target.machine.threads):
            outcome.missed("no convolution has an image for every thread")
            return outcome
        prepared = net.prepared_ops()
        order = [op for op in net.ops() if op not in prepared]
        steps, parts = _agree(net, order, images)
        segments: list[list[Op]] = [[]]
        for op in order:
            if op in parts:
                segments[-1].append(op)
            elif segments[-1]:
                segments.append([])
        position = {op: i for i, op in enumerate(order)}
        while segments:
            segment = segments.pop()
            found = self._best(net, segment, position, steps, parts, images)
            if found is None:
                if len(segment) > 1:
                    outcome.missed("reading weights for every image costs more than it saves", segment)
                continue
            i, j, saved = found
            segments += [segment[:i], segment[j:]]
            run = segment[i:j]
            if not outcome.allowed(self, net, *run):
                continue
            touched = {o.data for op in run for o in (*net.ins(op), *net.outs(op))}
            inside = {d: 0 for d in net.containers if d in touched and _inside(net, d, run)}
            net.streams.append(
                ImagePipeline(
                    images,
                    [op.label for op in run],
                    {d: steps[d] for d in net.containers if d in touched},
                    target.machine.threads,
                    inside,
                )
            )
            outcome.passed(run, count=len(run), bytes_saved=saved)
            outcome.saved_bytes += saved
        net.streams.sort(key=lambda s: position[_named(order)[s.ops[0]]])
        return outcome

    def _best(
        self,
        net: Network,
        segment: list[Op],
        position: dict[Op, int],
        steps: dict[str, int],
        parts: dict[Op, Share[Operator]],
        images: int,
    ) -> tuple[int, int, int] | None:
        """The best run [i, j) of a segment and the bytes inside it; None if none gains."""
        if len(segment) < 2:
            return None
        base = position[segment[0]]
        costs = target_of(net).costs
        memory = costs.memory
        ends: dict[int, list[tuple[int, int, float]]] = {}  # by the last user: first user, bytes, seconds saved
        for name, c in net.containers.items():
            users = (*net.writers(name), *net.readers(name))
            if c.role != "transient" or not users or any(op not in parts for op in users) or not net.writers(name):
                continue
            at = [position[op] - base for op in users]
            if min(at) < 0 or max(at) >= len(segment):
                continue
            size = steps[name] * itemsize(c.dtype)
            moved = images * size * len(users)
            saved = moved * (memory.seconds(images * size) - memory.seconds(size))
            ends.setdefault(max(at), []).append((min(at), moved, saved))
        weights = [_shared_bytes(parts[op]) for op in segment]
        compute = [parts[op].spec.operations() / costs.flops for op in segment]
        apart = [_apart(net, op, parts[op], images) for op in segment]
        by_far, by_memory = (
            [(images - 1) * max(0.0, w * rate - c) + a for w, c, a in zip(weights, compute, apart, strict=True)]
            for rate in (memory.far, memory.memory)
        )
        best, result = 0.0, None
        for i in range(len(segment)):
            gain, size, moved, cost_far, cost_memory = 0.0, 0, 0, by_far[i], by_memory[i]
            size = weights[i]
            for j in range(i + 1, len(segment)):
                for first, bytes_, saved in ends.get(j, ()):
                    if first >= i:
                        gain += saved
                        moved += bytes_
                size += weights[j]
                cost_far += by_far[j]
                cost_memory += by_memory[j]
                value = gain - (cost_far if size <= memory.far_bytes else cost_memory)
                if value > best:
                    best, result = value, (i, j + 1, moved)
        return result


def _apart(net: Network, op: Op, part: Share[Operator], images: int) -> float:
    """Seconds that ``images`` products take longer than one: of a matrix unit, or since they pack what all images share."""
    target = target_of(net)
    unit, isa = target.costs.matrix_unit, target.machine.isa
    if unit is not None:  # it wants more rows than an image may have
        return max(0.0, images * unit.seconds(part.spec) - unit.seconds(op.spec))
    whole, one = op.spec, part.spec
    if not isinstance(whole, ContractionSpec) or whole.panel or whole.epilogue is None:
        return 0.0
    assert isinstance(one, ContractionSpec)
    return max(0, images * packs(one, isa)[1] - packs(whole, isa)[1]) * target.costs.memory.packing


def _images(net: Network) -> int:
    """The batch of most convolutions."""
    found = Counter(op.spec.n for op in net.ops() if isinstance(op.spec, ConvolutionSpec))
    return max(found, key=lambda n: (found[n], n), default=0)


def _agree(net: Network, order: list[Op], images: int) -> tuple[dict[str, int], dict[Op, Share[Operator]]]:
    """Elements between two images for every container, and the parts of the operators that agree with them.

    Convolutions speak first: they know what an image is, where a loop's extent may divide by chance.
    """
    steps: dict[str, int] = {}
    parts: dict[Op, Share[Operator]] = {}
    kept = {*net.updates, *net.updates.values()}
    for op in sorted(order, key=lambda op: not isinstance(op.spec, ConvolutionSpec)):
        operands = (*net.ins(op), *net.outs(op))
        if any(o.data in kept for o in operands):
            continue
        for part in shares(op.spec, images):
            wanted = list(zip(operands, (*part.ins, *part.outs), (*part.read, *part.written), strict=True))
            new: dict[str, int] = {}
            if all(
                steps.get(o.data, new.setdefault(o.data, step)) == step
                and (step == 0 or (o.offset + low >= 0 and o.offset + high < step))
                for o, step, (low, high) in wanted
            ):
                steps.update(new)
                parts[op] = part
                break
    return steps, parts


def _inside(net: Network, name: str, run: list[Op]) -> bool:
    members = set(run)
    return net.containers[name].role == "transient" and bool(net.writers(name)) and all(
        op in members for op in (*net.writers(name), *net.readers(name))
    )  # fmt: skip


def _shared_bytes(part: Share[Operator]) -> int:
    reads, _ = part.spec.footprint()
    return sum(n for n, step in zip(reads, part.ins, strict=True) if not step)


def _named(order: list[Op]) -> dict[str, Op]:
    return {op.label: op for op in order}
