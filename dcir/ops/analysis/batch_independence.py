"""Whether a network does the same to every image of a batch, whatever their number: shown on the networks of two sizes of batch.

    y = f(x) for 2 images and for 4   -->   y[i] = g(x[i]), the same g in both

Every operator is either equal in both networks and reads nothing of an image, or it is separable (``batch_slices.py``) into the same
smaller operator in both, with the operands of image i at ``step * i``. Then both networks are the same function of one image. Sizes enter a
graph as affine functions of the batch (its maker sees to that), and one that is equal for two batches is equal for all, so
that function is the one of every batch. Nothing is assumed of operators that have no such form: they make the answer no.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network, Operand
from dcir.ir.operator import Operator
from dcir.ir.refusal import Refusal
from dcir.ops.analysis.batch_slices import Range, Share, shares
from dcir.ops.library.attention import AttentionSpec
from dcir.ops.library.scan import ScanSpec
from dcir.ops.library.sort import SortSpec


def inseparable(first: Network, second: Network, images: tuple[int, int], batched: Sequence[int]) -> Refusal | None:
    """Why two networks are not one function, applied to 2 numbers of images; None if they are.

    Args:
        first, second: imported from one graph, before any pass.
        images: how many each of them is for.
        batched: numbers of the inputs whose first dimension is the batch; all others are shared by all images.
    """
    pair = (first, second)
    if first.inputs != second.inputs or len(first.ops()) != len(second.ops()):
        return Refusal("the graph has other operators for another batch")
    if first.updates or second.updates:
        return Refusal("an input is written to")
    steps: dict[str, int] = {}
    for number, name in enumerate(first.inputs):
        if not name:
            continue
        a, b = (net.containers[name] for net in pair)
        if number in batched:
            if a.shape[1:] != b.shape[1:] or a.strides != b.strides or (a.shape[0], b.shape[0]) != images:
                return Refusal("an input is laid out differently for another batch")
            steps[name] = a.strides[0]
        elif (a.shape, a.strides) != (b.shape, b.strides):
            return Refusal("another input changes with the batch")
        else:
            steps[name] = 0
    for name in first.constants:
        if first.containers[name] != second.containers.get(name):
            return Refusal("a constant changes with the batch")
        steps[name] = 0
    for a, b in zip(first.ops(), second.ops(), strict=True):
        refusal = _operator(pair, (a, b), images, steps)
        if refusal is not None:
            return Refusal(f"{refusal.reason} ({a.origin or a.label})")
    return _results(pair, images, steps)


def _operator(
    pair: tuple[Network, Network], ops: tuple[Op, Op], images: tuple[int, int], steps: dict[str, int]
) -> Refusal | None:
    """Note the steps of an operator's results; the reason if it has none."""
    net = pair[0]
    if ops[0].spec.calls_out:  # it may draw random numbers: once for a batch is not once for a piece
        return Refusal(f"{ops[0].spec.calls_out} runs in torch")
    ins, outs = net.ins(ops[0]), net.outs(ops[0])
    if (ins, outs) != (pair[1].ins(ops[1]), pair[1].outs(ops[1])):
        return Refusal("operands lie elsewhere for another batch")
    shared = all(steps.get(o.data) == 0 for o in ins) and ops[0].spec == ops[1].spec
    if shared and all(steps.get(o.data, 0) == 0 and _same(pair, o.data) for o in outs):
        steps.update((o.data, 0) for o in outs)
        return None
    others = [(p.spec, p.ins, p.outs, p.read, p.written) for p in _shares(ops[1].spec, images[1])]
    for part in _shares(ops[0].spec, images[0]):
        new = _agreed(part, ins, outs, steps)
        if new is not None and (part.spec, part.ins, part.outs, part.read, part.written) in others:
            steps.update(new)
            return None
    return Refusal(f"{ops[0].label.rsplit('_', 1)[0]} mixes the images of a batch")


def _same(pair: tuple[Network, Network], name: str) -> bool:
    return pair[0].containers[name] == pair[1].containers[name]


def _agreed(
    part: Share[Operator], ins: Sequence[Operand], outs: Sequence[Operand], steps: dict[str, int]
) -> dict[str, int] | None:
    """The steps that a share wants, if they are those already known and no image reaches into the next one."""
    new: dict[str, int] = {}
    for o, step, (low, high) in zip((*ins, *outs), (*part.ins, *part.outs), (*part.read, *part.written), strict=True):
        if steps.get(o.data, new.setdefault(o.data, step)) != step:
            return None
        if step and (o.offset + low < 0 or o.offset + high >= step):
            return None
    return new if all(o.data in steps for o in ins) else None


def _results(pair: tuple[Network, Network], images: tuple[int, int], steps: dict[str, int]) -> Refusal | None:
    first, second = pair
    if len(first.results) != len(second.results) or len(first.result_containers()) != len(first.results):
        return Refusal("results share memory")
    for a, b in zip(first.results, second.results, strict=True):
        if first.containers[a.data].role != "result":
            return Refusal("a result is an input")
        same = (a.data, a.shape[1:], a.strides, a.offset, a.dtype) == (
            b.data,
            b.shape[1:],
            b.strides,
            b.offset,
            b.dtype,
        )
        if not same or (a.shape[:1], b.shape[:1]) != tuple((n,) for n in images) or a.strides[0] != steps.get(a.data):
            return Refusal("a result has no dimension of images in front")
        span = sum((d - 1) * s for d, s in zip(a.shape[1:], a.strides[1:], strict=True))
        if a.strides[0] <= 0 or a.offset + span >= a.strides[0]:
            return Refusal("the images of a result lie in between each other")
    return None


def _shares(spec: Operator, images: int) -> Iterator[Share[Operator]]:
    """Of the operators that streams know, and of some more."""
    if isinstance(spec, AttentionSpec):
        yield from _attention(spec, images)
    elif isinstance(spec, SortSpec | ScanSpec):
        yield from _rows(spec, images)
    else:
        yield from shares(spec, images, checked=True)


def _attention(spec: AttentionSpec, images: int) -> Iterator[Share[Operator]]:
    if spec.grads or spec.batch % images:
        return
    one = replace(spec, batch=spec.batch // images)
    rows = (one.batch, spec.heads, spec.m, spec.d)
    reads = [(rows, spec.q), *one.pieces()]
    if spec.mask:
        reads.append(((*rows[:3], spec.n), spec.mask))
    writes = [(rows, spec.o), (rows[:3], spec.lse)]
    yield _share(one, one.batch, reads, writes)


def _rows(spec: SortSpec | ScanSpec, images: int) -> Iterator[Share[Operator]]:
    for d, extent in enumerate(spec.rows):
        if extent % images:
            continue
        rows = (*spec.rows[:d], extent // images, *spec.rows[d + 1 :])
        one = replace(spec, rows=rows)
        if isinstance(spec, SortSpec):
            writes = [((*rows, spec.k), spec.values), ((*rows, spec.k), spec.positions)]
        else:
            writes = [((*rows, spec.n), s) for s in (spec.y, spec.positions) if s is not None]
        yield _share(one, rows[d], [((*rows, spec.n), spec.x)], writes, d)


def _share(
    one: Any,
    part: int,
    reads: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    writes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    d: int = 0,
) -> Share[Operator]:
    def reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> Range:
        low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
        return low, sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)

    steps = [tuple(part * strides[d] for _, strides in side) for side in (reads, writes)]
    return Share(one, steps[0], steps[1], tuple(reach(*r) for r in reads), tuple(reach(*w) for w in writes))
