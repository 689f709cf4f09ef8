"""A pass of your own that changes something: a row is multiplied by one reciprocal in place of being divided, element by element.

    python examples/custom_pass.py

    y[i, j] = e[i, j] / s[i]   -->   r = 1 / s[i];  y[i, j] = e[i, j] * r

A rule is a frozen dataclass with three questions: what begins at this operator and looks like it (``pattern``), may it be done and what
does it save (``check``), and do it (``rewrite``). Its fields would be its options, its name in reports is reciprocal-of-rows. The graph is
valid before and after; dcir verifies it, and with ``verify="passes"`` its numbers. ``with_passes`` puts it where it declares to belong.

The product has one more rounding than the quotient, and 1 / s is infinite for s below 2^-128: a trade for you to make, not for a level.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from levels import interleaved
from torch import nn

import dcir
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Compute
from dcir.ir.types import FLOATS
from dcir.transforms.pipelines import pipeline
from dcir.transforms.registered import with_passes
from dcir.transforms.rule import Rule


@dataclass(frozen=True)
class Quotients:
    """A loop nest that divides.

    Attributes:
        op: its operator.
        nest: the loops and their statements.
        numbers: which of the statements are divisions.
        fixed: those of them whose divisor is the same along the inner loops, and whose dividend is not.
    """

    op: Op
    nest: LoopNest
    numbers: tuple[int, ...]
    fixed: tuple[int, ...]


@dataclass(frozen=True)
class ReciprocalOfRows(Rule[None, Quotients]):
    """One division per row."""

    tier: ClassVar[int] = 1
    after: ClassVar[tuple[str, ...]] = ("fuse-producers",)

    def survey(self, net: Network) -> None:
        """There is nothing to find out beforehand."""

    def pattern(self, net: Network, op: Op, known: None) -> Quotients | None:
        """A loop nest over rows and columns, with a division of floats."""
        nest = op.spec
        if not isinstance(nest, LoopNest) or not nest.inner:
            return None
        varies = [full for _, full in nest.levels()]
        numbers = tuple(i for i, s in enumerate(nest.body) if s.op == "div" and s.dtype in FLOATS)
        fixed = tuple(i for i in numbers if varies[nest.body[i].args[0]] and not varies[nest.body[i].args[1]])
        return Quotients(op, nest, numbers, fixed) if numbers else None

    def check(self, net: Network, match: Quotients, known: None) -> Refusal | int:
        """It saves divisions; the bytes that move stay."""
        return 0 if match.fixed else Refusal("no divisor is the same for a whole row")

    def rewrite(self, net: Network, match: Quotients, known: None) -> Sequence[Op]:
        """Write the nest again, statement by statement; the builder numbers equal ones once."""
        nest, body = match.nest, LoopNestBuilder(match.nest.outer, match.nest.inner)
        where: list[int] = []
        for number, old in enumerate(nest.body):
            new = old.renumbered(where)
            if number in match.fixed:
                dividend, divisor = new.args
                one = body.const(1.0, new.dtype).n
                reciprocal = body.add(Compute("div", new.dtype, (one, divisor)))
                new = Compute("mul", new.dtype, (dividend, reciprocal))
            where.append(body.add(new))
        spec = simplify(replace(nest, body=tuple(body.body)))
        net.rewire(match.op, spec, net.ins(match.op), net.outs(match.op), made_by=self.name)
        return ()


def main() -> None:
    """Optimise a softmax between two layers with the pass in -O4's pipeline, and time a softmax alone without it and with it."""
    torch.manual_seed(0)
    passes = with_passes(pipeline(4), ReciprocalOfRows())
    model = nn.Sequential(nn.Linear(64, 256), nn.Softmax(-1), nn.LayerNorm(256), nn.Linear(256, 10)).eval()
    fast = dcir.optimize(model, pipeline=passes, verify="passes")
    x = torch.randn(32, 64)
    with torch.no_grad():
        error = (fast(x) - model(x)).abs().max()
    (row,) = [p for g in fast.dcir.explain().graphs for p in g.passes if p.name == "reciprocal-of-rows"]
    print(f"{row.name}: {row.changed} rewritten, refused {dict(row.refused)}")
    print(f"largest error against eager {float(error):.1e}")

    rows = torch.randn(4096, 768)
    forms = [dcir.optimize(nn.Softmax(-1), pipeline=p, threads=1) for p in (pipeline(4), passes)]
    with torch.no_grad():
        without, with_it = map(statistics.median, interleaved([lambda f=f: f(rows) for f in forms], 1.0))
    print(f"softmax of 4096 rows of 768, one thread: -O4 {without:.2f} ms, with the pass {with_it:.2f} ms")


if __name__ == "__main__":
    main()
