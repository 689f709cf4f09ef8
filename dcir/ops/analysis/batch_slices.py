"""Separability: the part of an operator that belongs to one of n images, and how far apart two images' operands lie.

An operator is separable if it is n runs of one smaller operator, image i with every operand ``step * i`` elements behind image 0's
(step 0: all images share it). The smaller operator is the same spec with a shorter leading loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from dcir.ir.annotations import ImagePipeline
from dcir.ir.loop_forms import drop_unit_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Operand
from dcir.ir.operator import Operator
from dcir.ir.statements import Access, Gather, Index, Store, Strides
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec

Range = tuple[int, int]
_Spec = TypeVar("_Spec", bound=Operator, covariant=True)


@dataclass(frozen=True)
class Share(Generic[_Spec]):
    """One image's part of an operator.

    Attributes:
        spec: the operator of one image.
        ins, outs: elements between two images, per operand.
        read, written: per operand, the first and last element of one image, relative to where the operand begins.
    """

    spec: _Spec
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    read: tuple[Range, ...]
    written: tuple[Range, ...]


def shares(spec: Operator, images: int, *, checked: bool = False) -> Iterator[Share[Operator]]:
    """Every way in which ``spec`` is ``images`` runs of a smaller operator; most have one or none.

    A ContractionSpec may have its images in the first batch dimension or in its rows, a LoopNest in any outer loop: which one
    is meant, the steps of containers that other operators agree on tell. ``checked``: programs that may meet a bad index too.
    """
    if images < 2:
        return
    if isinstance(spec, LoopNest):
        ways = (_program(spec, d, images, checked) for d in range(len(spec.outer)))
        yield from (replace(w, spec=drop_unit_loops(w.spec)) for w in ways if w is not None)
    elif isinstance(spec, ConvolutionSpec):
        yield from _convolution(spec, images)
    elif isinstance(spec, ContractionSpec):
        yield from _contraction(spec, images)


def _program(p: LoopNest, dim: int, images: int, checked: bool = False) -> Share[LoopNest] | None:
    part = p.outer[dim] // images
    if p.outer[dim] % images or not all(p.dims):
        return None
    whole = p.split(dim, part)
    ins: dict[int, set[int]] = {}
    outs: dict[int, set[int]] = {}
    dims = (*whole.dims[:dim], *whole.dims[dim + 1 :])

    def strides(old: Strides) -> Strides:
        return tuple(0 if d == 1 else t for t, d in zip((*old[:dim], *old[dim + 1 :]), dims, strict=True))

    body = []
    for s in whole.body:
        if isinstance(s, Gather) and s.checked and not checked:
            return None  # only a whole kernel tells which operator failed
        if isinstance(s, Access):
            (outs if isinstance(s, Store) else ins).setdefault(s.operand, set()).add(s.strides[dim])
        elif isinstance(s, Index) and s.dim == dim:
            return None
        body.append(s.over_loops(strides, lambda d: d - (d > dim)))
    if any(len(steps) > 1 for steps in (*ins.values(), *outs.values())):
        return None
    outer = (*whole.outer[:dim], *whole.outer[dim + 1 :])
    one = replace(whole, outer=outer, body=tuple(body))
    steps = [tuple(min(table.get(i, {0})) for i in range(len(types))) for table, types in
             ((ins, p.inputs), (outs, p.outputs))]  # fmt: skip
    read, written = _ranges(one)
    return _checked(Share(one, steps[0], steps[1], read, written))


def _checked(share: Share[_Spec]) -> Share[_Spec] | None:
    """Results of different images must not share memory."""
    return share if share.outs and min(share.outs) > 0 and min(share.ins, default=0) >= 0 else None


def _ranges(p: LoopNest) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """First and last element that every operand's accesses can reach."""
    found: dict[tuple[bool, int], Range] = {}
    for s in p.body:
        if not isinstance(s, Access):
            continue
        walks = list(zip(p.dims, s.strides, strict=True))
        if isinstance(s, Gather):
            walks += zip(s.extents, s.steps, strict=True)
        key = (isinstance(s, Store), s.operand)
        low, high = found.get(key, (0, 0))
        here = _span(walks)
        found[key] = min(low, here[0]), max(high, here[1])
    return (
        tuple(found.get((False, i), (0, 0)) for i in range(len(p.inputs))),
        tuple(found.get((True, i), (0, 0)) for i in range(len(p.outputs))),
    )


def _span(walks: Sequence[tuple[int, int]]) -> Range:
    return sum((d - 1) * s for d, s in walks if s < 0), sum((d - 1) * s for d, s in walks if s > 0)


def _strided(shape: Sequence[int], strides: Sequence[int]) -> Range:
    return _span(list(zip(shape, strides, strict=True)))


_NOTHING: Range = (0, 0)


def _convolution(spec: ConvolutionSpec, images: int) -> Iterator[Share[Operator]]:
    if spec.n % images or spec.kind == "backward_weight":
        return
    n = spec.n // images
    x, y = (s if n > 1 else (0, *s[1:]) for s in (spec.x, spec.y))
    tail = _program(spec.epilogue, 0, images) if spec.epilogue is not None else None
    if spec.epilogue is not None and tail is None:
        return
    one = replace(spec, n=n, x=x, y=y, epilogue=tail.spec if tail else None)
    ends = [_strided(*pair) for pair in zip(one.shapes, (one.x, one.w, one.y), strict=True)]
    bias = int(spec.bias)
    share: Share[Operator] | None
    if spec.kind == "backward_data":
        share = Share(one, (n * spec.y[0], 0), (n * spec.x[0],), (ends[2], _NOTHING), (ends[0],))
    elif tail is None:
        ins = (n * spec.x[0], 0, *[0] * bias)
        share = Share(one, ins, (n * spec.y[0],), (ends[0], *[_NOTHING] * (1 + bias)), (ends[2],))
    else:
        ins = (n * spec.x[0], 0, *[0] * bias, *tail.ins[1:])
        share = Share(one, ins, tail.outs, (ends[0], *[_NOTHING] * (1 + bias), *tail.read[1:]), tail.written)
    share = _checked(share)
    if share is not None:
        yield share


def _contraction(spec: ContractionSpec, images: int) -> Iterator[Share[Operator]]:
    rank = len(spec.batch)
    places = [(0, spec.batch[0], True)] if rank else []
    for dim, extent, batched in (*places, (rank, spec.m, False)):
        if extent % images:
            continue
        part = extent // images
        tail = _program(spec.epilogue, dim, images) if spec.epilogue is not None else None
        if spec.epilogue is not None and tail is None:
            continue
        a, c = part * spec.a[dim], part * spec.c[dim]
        b = part * spec.b[0] if batched else 0
        epilogue = tail.spec if tail else None
        one = (
            replace(spec, batch=(part, *spec.batch[1:]), epilogue=epilogue)
            if batched
            else replace(spec, m=part, epilogue=epilogue)
        )
        read_b = _strided(one.batch, one.b[:rank]) if spec.panel else _strided(one.shapes[1], one.b)
        if spec.panel:
            read_b = (read_b[0], read_b[1] + -(-spec.n // spec.panel) * spec.panel * spec.k - 1)
        read = (_strided(one.shapes[0], one.a), read_b, *(tail.read[1:] if tail else ()))
        share = _checked(
            Share(one, (a, b, *(tail.ins[1:] if tail else ())), tail.outs if tail else (c,), read,
                  tail.written if tail else (_strided(one.shapes[2], one.c),))
        )  # fmt: skip
        if share is not None:
            yield share


def one_image(spec: Operator, stream: ImagePipeline, ins: Sequence[Operand], outs: Sequence[Operand]) -> Operator:
    """The operator of one image of a stream that holds ``spec``."""
    steps = [tuple(stream.steps[o.data] for o in operands) for operands in (ins, outs)]
    return next(s.spec for s in shares(spec, stream.images) if [s.ins, s.outs] == steps)
