"""Convolutions in one normal form: three spatial dimensions, any input offset, any (also negative) weight strides.

y[n,g,o,p] = bias[g,o] + sum_{i,k} x[n,g,i, p*stride + base + k*dilation] * w[g,o,i,k], x zero outside. The forward product is one
such problem. So is the data gradient with stride 1, with w flipped and transposed. With larger strides it is one problem per residue
of the result's position: those taps that hit it form a smaller kernel, and no inserted zero is ever multiplied.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dcir.codegen.symbolic import moves, usual
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Strides
from dcir.ops.library.convolution import ConvolutionSpec

Three = tuple[int, int, int]


@dataclass(frozen=True)
class Residue:
    """What tells the members of a family of problems apart: starts in w and y, input offset, extents of the result."""

    w0: int
    y0: int
    base: Three
    out: Three


@dataclass(frozen=True)
class ConvolutionProblem:
    """One correlation; sizes and strides in elements.

    Attributes:
        dtype: "f32" or "f64".
        n, groups, ci, co: batch, groups, input and output channels per group.
        inp, ker, out: extents of x, w and y.
        stride, base, dil: input position = output position * stride + base + tap * dil.
        xs, ys: strides over (n, group, channel, 3 spatial); y0: where y starts.
        ws: strides over (group, out, in, 3 spatial); w0: where w starts.
        bias: whether a2 holds groups * co values.
        panel: if not 0, w is packed in panels of so many output channels (``library/packing.py``), and ``ws`` says nothing.
        epilogue: what is done before storing, over (n, group, channel, 3 spatial); ``ys`` are the strides of its first store.
        winograd: if not empty, the form of the weights: transformed for tiles of so many results.
        halves: what is multiplied holds nothing but numbers of bf16.
        pairs: packed w holds pairs of input channels, of bf16, each as large as a number of f32.
        family: if not empty, as many problems in one, with these in place of w0, y0 and base; ``out`` is the largest.
    """

    dtype: str
    n: int
    groups: int
    ci: int
    co: int
    inp: Three
    ker: Three
    out: Three
    stride: Three
    base: Three
    dil: Three
    xs: tuple[int, ...]
    ys: tuple[int, ...]
    ws: tuple[int, ...]
    y0: int = 0
    w0: int = 0
    bias: bool = False
    panel: int = 0
    epilogue: LoopNest | None = None
    winograd: tuple[int, ...] = ()
    halves: bool = False
    pairs: bool = False
    family: tuple[Residue, ...] = ()

    @property
    def taps(self) -> int:
        """Positions of the kernel."""
        return math.prod(self.ker)

    @property
    def moves(self) -> bool:
        """Whether an extent or a stride is known when the kernel runs."""
        return moves(self.n, *self.inp, *self.out, *self.xs, *self.ys)

    @property
    def work(self) -> int:
        """Multiply-adds, of the usual sizes."""
        return (
            max(1, len(self.family))
            * usual(self.n)
            * self.groups
            * self.co
            * self.ci
            * self.taps
            * usual(math.prod(self.out))
        )


@dataclass(frozen=True)
class DataGradient:
    """The data gradient of a convolution.

    Attributes:
        spec: the convolution, of kind "backward_data".
        forward: its forward problem, without a bias.
    """

    spec: ConvolutionSpec
    forward: ConvolutionProblem

    @functools.cached_property
    def residues(self) -> tuple[ConvolutionProblem, ...]:
        """The problems whose results together are the gradient."""
        return tuple(data_problems(self.spec))

    @property
    def met(self) -> list[ConvolutionProblem]:
        """Those of them that have taps and results."""
        return [p for p in self.residues if p.taps and math.prod(p.out)]


def data_gradient(s: ConvolutionSpec) -> DataGradient:
    """The data gradient that a spec is."""
    return DataGradient(s, forward_problem(replace(s, bias=False)))


def _three(values: tuple[int, ...], fill: int) -> Three:
    a, b, c = (*(fill,) * (3 - len(values)), *values)
    return a, b, c


def _channels(s: tuple[int, ...], per_group: int) -> tuple[int, ...]:
    return (s[0], s[1] * per_group, s[1], *_three(s[2:], 0))


def forward_problem(s: ConvolutionSpec) -> ConvolutionProblem:
    """A spec's forward product; for the weight gradient it tells what is differentiated."""
    low: Three = _three(tuple(-p for p in s.padding), 0)
    return _simplify(
        ConvolutionProblem(
            s.dtype, s.n, s.groups, s.cin, s.cout, _three(s.in_size, 1), _three(s.kernel, 1), _three(s.out_size, 1),
            _three(s.stride, 1), low, _three(s.dilation, 1), _channels(s.x, s.cin), _channels(s.y, s.cout),
            (s.w[0] * s.cout, s.w[0], s.w[1], *_three(s.w[2:], 0)), bias=s.bias and s.kind == "forward",
            panel=s.panel, epilogue=_six_loops(s, s.cout) if s.kind == "forward" else None, winograd=s.winograd,
            halves=s.halves, pairs=s.pairs,
        )
    )  # fmt: skip


def _six_loops(s: ConvolutionSpec, channels: int) -> LoopNest | None:
    """The epilogue over (n, group, channel, depth, height, width), with so many channels per group."""
    if s.epilogue is None:
        return None
    e = s.epilogue.split(1, channels)
    missing = 3 - len(s.out_size)

    def wider(strides: Strides) -> Strides:
        return (*strides[:3], *(0,) * missing, *strides[3:])

    body = tuple(s.over_loops(wider, lambda d: d + missing if d >= 3 else d) for s in e.body)
    return replace(e, outer=(*e.outer[:3], *(1,) * missing, *e.outer[3:]), body=body)


def data_problems(s: ConvolutionSpec) -> Iterator[ConvolutionProblem]:
    """The data gradient: problems whose results together are the gradient; those without taps are zeros."""
    f = forward_problem(replace(s, bias=False))
    for residue in itertools.product(*(range(min(st, n)) for st, n in zip(f.stride, f.inp, strict=True))):
        w0, y0 = 0, 0
        ker, out, base, dil, wk = [], [], [], [], []
        for d in range(3):
            st, di, r = f.stride[d], f.dil[d], residue[d]
            taps = [k for k in range(f.ker[d]) if (r - f.base[d] - k * di) % st == 0]
            step = st // math.gcd(st, di)
            out.append(ceil(f.inp[d] - r, st))
            y0 += r * f.xs[3 + d]
            ker.append(len(taps))
            # Taps run backwards, so that the position read grows with the tap.
            last = taps[-1] if taps else 0
            base.append((r - f.base[d] - last * di) // st)
            dil.append(step * di // st)
            wk.append(-step * f.ws[3 + d])
            w0 += last * f.ws[3 + d]
        g, o, i, *_ = f.ws
        yield _simplify(
            ConvolutionProblem(
                f.dtype, f.n, f.groups, f.co, f.ci, f.out, _as_three(ker), _as_three(out), (1, 1, 1), _as_three(base),
                _as_three(dil), f.ys, (*f.xs[:3], *(a * b for a, b in zip(f.xs[3:], f.stride, strict=True))),
                (g, i, o, *wk), y0, w0,
                epilogue=_six_loops(s, s.cin) if f.stride == (1, 1, 1) else None, halves=s.halves,
            )
        )  # fmt: skip


def families(problems: list[ConvolutionProblem]) -> list[ConvolutionProblem]:
    """Problems that differ in what a `Residue` holds become one each, so that their code is generated once."""
    groups: dict[ConvolutionProblem, list[ConvolutionProblem]] = {}
    for p in problems:
        groups.setdefault(replace(p, w0=0, y0=0, base=(0, 0, 0), out=(0, 0, 0)), []).append(p)
    made = []
    for group in groups.values():
        if len(group) == 1 or group[0].taps == 0:
            made += group
            continue
        largest = _as_three([max(p.out[d] for p in group) for d in range(3)])
        members = tuple(Residue(p.w0, p.y0, p.base, p.out) for p in group)
        made.append(replace(group[0], w0=0, y0=0, base=(0, 0, 0), out=largest, family=members))
    return made


def usual_problem(p: ConvolutionProblem) -> ConvolutionProblem:
    """A problem at the sizes that costs are counted at; its epilogue stays as it is."""

    def three(values: Three) -> Three:
        return _as_three([usual(v) for v in values])

    return replace(
        p, n=usual(p.n), inp=three(p.inp), out=three(p.out), xs=tuple(map(usual, p.xs)), ys=tuple(map(usual, p.ys))
    )


def loops_of(p: ConvolutionProblem) -> tuple[tuple[str, int], ...]:
    """The loops of a convolution but for its taps: those along which there is one point are left out."""
    d, h, w = p.out
    extents = {"n": p.n, "g": p.groups, "d": d, "h": h, "w": w, "co": p.co, "ci": p.ci}
    return tuple((loop, usual(n)) for loop, n in extents.items() if usual(n) != 1)


def ceil(a: int, b: int) -> int:
    """The quotient rounded up."""
    return -(-a // b)


def _as_three(values: list[int]) -> Three:
    a, b, c = values
    return a, b, c


def _simplify(p: ConvolutionProblem) -> ConvolutionProblem:
    """Unit dilation where there is one tap."""
    dil = _as_three([1 if k <= 1 else d for k, d in zip(p.ker, p.dil, strict=True)])
    return replace(p, dil=dil)


def is_pointwise(p: ConvolutionProblem) -> bool:
    """A 1x1 kernel over exactly the input's positions."""
    return p.ker == (1, 1, 1) and p.stride == (1, 1, 1) and p.base == (0, 0, 0) and p.inp == p.out


def flat(p: ConvolutionProblem) -> ConvolutionProblem:
    """A pointwise problem with its spatial dimensions merged where both operands allow."""
    inp, xs, ys = list(p.inp), list(p.xs), list(p.ys)
    for outer, inner in ((1, 2), (0, 2), (0, 1)):
        o, i = 3 + outer, 3 + inner
        if inp[outer] == 1:
            continue
        if inp[inner] == 1:
            xs[i], ys[i] = xs[o], ys[o]
        elif (xs[o], ys[o]) != (xs[i] * inp[inner], ys[i] * inp[inner]):
            continue
        inp[inner] *= inp[outer]
        inp[outer] = 1
    return replace(p, inp=_as_three(inp), out=_as_three(inp), xs=tuple(xs), ys=tuple(ys))
