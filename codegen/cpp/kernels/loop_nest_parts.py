"""Long reductions whose length moves, in two steps: partial results of parts of constant length, then their combination.

    y[i] = f(sum_{j < n} g(x[i, j]))   -->   t[p, i] = sum_{C p <= j < C p + C, j < n} g(x[i, j]);  y[i] = f(sum_{p < n / C} t[p, i])

A pass does the same where sizes are constants (``split-reduction``), by a divisor of the length, which one that moves has not. Here the
last part is shorter. All threads have parts to sum, and the error grows with the part, not with the length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dcir.codegen.cpp.scalar_ops import CPP_TYPE
from dcir.codegen.cpp.tiles.emit import ceil_div, round_up
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import Symbolic, most, moves, usual, usually
from dcir.cost.cpu import BUSY_JOBS
from dcir.ir.loop_forms import side_by_side
from dcir.ir.loop_nest import LoopNest
from dcir.ir.partial_results import first_step, last_step, partial_types, unsplittable
from dcir.ir.statements import Read, Reduce
from dcir.ir.types import itemsize

# Figures of the pass: steps and points from which it pays, points of a part, and parts.
LEAST_STEPS, LEAST_ROWS = 2048, 384
LEAST_POINTS = 131072
PART = 16384
MOST_PARTS = 1024
NEARLY = 2  # rows of images and their columns are about as many


@dataclass(frozen=True)
class InParts:
    """A reduction in two steps.

    Attributes:
        nest: the loop nest.
        first, last: the steps. Partial results are the last outputs of the first, and the last inputs of the last one.
        results: partial results of each reduce.
    """

    nest: LoopNest
    first: LoopNest
    last: LoopNest
    results: int

    def joined(self, first: KernelPlan, last: KernelPlan) -> KernelPlan:
        """The kernel of both steps' kernels, with the partial results in scratch."""
        before, after, at = "", "", 0
        for k, t in enumerate(partial_types(self.nest)):
            place = f"(scratch + {at}LL);\n"
            before += f"{CPP_TYPE[t]} *o{len(self.nest.outputs) + k} = ({CPP_TYPE[t]} *){place}"
            after += f"const {CPP_TYPE[t]} *a{len(self.nest.inputs) + k} = (const {CPP_TYPE[t]} *){place}"
            at += round_up(self.results * itemsize(t), 64)
        # In braces: what is declared here hides what a kernel has under the same name.
        phases = [
            Phase(phase.jobs, f"{{\n{given}{phase.code}\n}}")
            for given, plan in ((before, first), (after, last))
            for phase in plan.phases
        ]
        both = "\n".join(dict.fromkeys((*first.globals.splitlines(), *last.globals.splitlines())))
        return KernelPlan(first.name, both, tuple(phases), at)


def in_parts(p: LoopNest) -> InParts | None:
    """A loop nest whose loops are in order as two steps, if any of its loops moves and that pays at some sizes."""
    if not moves(*p.dims) or not p.inner or not any(isinstance(s, Reduce) for s in p.body):
        return None
    lanes = side_by_side(usually(p))
    if most(p.points()) < LEAST_POINTS or most(math.prod(p.inner)) < (LEAST_ROWS if lanes > 1 else LEAST_STEPS):
        return None
    if ceil_div(usual(math.prod(p.outer)), lanes) > BUSY_JOBS or unsplittable(p) is not None:
        return None
    d = loop_in_parts(p)
    extent = p.dims[d]
    others = usual(math.prod(p.inner)) // max(1, usual(extent))
    size = max(1, PART // (lanes * max(1, others)), ceil_div(most(extent), MOST_PARTS))
    if most(extent) <= size:
        return None
    cut = _cut(p, d, size)
    behind = tuple(math.prod(cut.outer[e + 1 :]) for e in range(len(cut.outer)))
    return InParts(
        p,
        first_step(cut, behind),
        last_step(p, cut.outer[:1], (*behind[1:], behind[0])),
        math.prod(cut.outer),
    )


def loop_in_parts(p: LoopNest) -> int:
    """The longest inner loop; of such as are nearly as long the one of the largest steps, so that a part's elements lie together."""
    inner = range(len(p.outer), len(p.dims))
    longest = max(usual(p.dims[d]) for d in inner)
    reads = [s for s in p.body if isinstance(s, Read)]
    long = [d for d in inner if NEARLY * usual(p.dims[d]) >= longest]
    return max(long, key=lambda d: sum(abs(usual(s.strides[d])) for s in reads))


def _cut(p: LoopNest, d: int, size: int) -> LoopNest:
    """``p`` with parts of inner loop ``d`` as its first outer loop."""
    extent, n_outer = p.dims[d], len(p.outer)
    parts = ceil_div(extent, size)
    inner = [*p.inner]
    inner[d - n_outer] = parts * size
    cut = replace(p, inner=tuple(inner)).split(d, size)
    cut = cut.reorder([d, *range(n_outer)], [e for e in range(n_outer, len(cut.dims)) if e != d])
    names = next(n.names for n in p.dims if isinstance(n, Symbolic))
    # Steps that the part has, which is the one that loop i0 is at.
    left = names.local(f"i0 * {size}LL + {size}LL <= {extent} ? {size}LL : {extent} - i0 * {size}LL", 1, size, size)
    inner = [*cut.inner]
    inner[d - n_outer] = left
    return replace(cut, inner=tuple(inner))
