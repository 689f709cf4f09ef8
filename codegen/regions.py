"""Loops and branches as steps of the driver: where the values of their bodies lie, and the kernels of these.

scratch memory of the operator:  | second places of what is handed on | arena of the body | scratch memory of its kernels, or of a
                                                                                            loop inside |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dcir.codegen.invocations import Invocation, invocations
from dcir.codegen.placement import Placement
from dcir.codegen.steps import AnyStep, Branch, Call, Carried, Loop, Place, Window
from dcir.errors import Unsupported
from dcir.ir.body import Body, BodyContainer
from dcir.ir.memory_plan import aligned
from dcir.ir.moving_network import MovingContainer
from dcir.ir.network import Network, Operand
from dcir.ir.operator import Operator
from dcir.ir.sizes import Number
from dcir.ir.types import itemsize
from dcir.ops.library.regions import BranchSpec, LoopSpec, Region, WhileSpec


@dataclass(frozen=True)
class Made:
    """The kernel of an operator in a body: its name ("" where there is nothing to do), and what a call of it must know.

    Attributes:
        sizes: where the values of the sizes are, if it computes with them.
    """

    name: str
    parallel: bool
    checked: bool
    scratch: int
    sizes: Place | None = None


class RegionPlanner:
    """Plans regions of one network.

    Args:
        made: gives the kernel of an operator, given what moves in its spec.
        threads: of the team.
    """

    def __init__(self, made: Callable[[Invocation, Operator], Made], threads: int) -> None:
        self.made, self.threads = made, threads
        self._count = 0

    def plan(
        self, spec: Region, widest: Region, number: int, ins: Sequence[Place], outs: Sequence[Place], base: int
    ) -> tuple[AnyStep, int]:
        """The step of a region, and the end of the arena that it needs.

        Args:
            spec: what runs, with what moves.
            widest: the same at the upper ends.
            number: the operator's.
            ins, outs: places of its operands.
            base: where in the arena memory is free while it runs.

        Raises:
            Unsupported: a body calls torch.
        """
        name = f"r{self._count}"
        self._count += 1
        if isinstance(spec, LoopSpec | WhileSpec):
            return self._loop(spec, widest, name, number, ins, outs, base)
        assert isinstance(spec, BranchSpec)
        return self._branch(spec, widest, name, number, ins, outs, base)

    def _loop(
        self, spec: LoopSpec | WhileSpec, widest: Region, name: str, number: int, ins: Sequence[Place],
        outs: Sequence[Place], base: int,
    ) -> tuple[Loop, int]:  # fmt: skip
        carried, n, body = [], spec.carried, spec.body
        of = {c.name: c for c in body.containers}
        most = {c.name: c for c in widest.bodies()[-1].containers}
        for i, result in enumerate(body.results[:n]):
            other = Place(0, base)
            base += aligned(_nbytes(most[result]))  # type: ignore[arg-type]  # at the upper ends nothing moves
            carried.append(Carried(f"{name}i{i}", f"{name}o{i}", ins[i], outs[i], other, _nbytes(of[result])))
        steps_in, steps_out = (spec.in_steps, spec.out_steps) if isinstance(spec, LoopSpec) else ((0,) * len(ins), ())
        read, written = (
            [
                Window(f"{name}{side}{i}", place, step * itemsize(of[x].dtype))
                for i, (place, step, x) in enumerate(zip(places[n:], steps, names[n:], strict=False))
            ]
            for side, places, steps, names in (("a", ins, steps_in, body.inputs), ("y", outs, steps_out, body.results))
        )
        given = [*(c.read for c in carried), *(w.name for w in read)]
        made = [*(c.written for c in carried), *(w.name for w in written)]
        windows = (*read, *written)
        if isinstance(spec, LoopSpec):
            steps, end = self._steps(body, widest.bodies()[-1], given, made, base, number)
            return Loop(number, name, tuple(carried), windows, steps, spec.trips), end
        # Nothing else may lie there: a thread may be in the body while another one has yet to look.
        flag, test = Place(0, base), f"{name}c"
        base += aligned(1)
        before, later = self._steps(spec.condition, widest.bodies()[0], given, [test], base, number)
        steps, end = self._steps(body, widest.bodies()[-1], given, made, base, number)
        windows = (*windows, Window(test, flag))
        return Loop(number, name, tuple(carried), windows, steps, None, before, flag), max(end, later)

    def _branch(
        self, spec: BranchSpec, widest: Region, name: str, number: int, ins: Sequence[Place], outs: Sequence[Place],
        base: int,
    ) -> tuple[Branch, int]:  # fmt: skip
        read = [Window(f"{name}a{i}", place) for i, place in enumerate(ins[1:])]
        written = [Window(f"{name}y{i}", place) for i, place in enumerate(outs)]
        names = [w.name for w in read], [w.name for w in written]
        (then, end), (otherwise, later) = (
            self._steps(body, most, *names, base, number)
            for body, most in zip(spec.bodies(), widest.bodies(), strict=True)
        )
        return Branch(number, name, (*read, *written), ins[0], then, otherwise), max(end, later)

    def _steps(
        self, body: Body, widest: Body, ins: Sequence[str], outs: Sequence[str], base: int, number: int
    ) -> tuple[tuple[AnyStep, ...], int]:
        """The steps of a body whose inputs and results are what pointers of these names point to, and where its memory ends."""
        net, moving = widest.network, {o.label: o for o in body.operators}
        pointers = dict(zip((*body.inputs, *body.results), (*ins, *outs), strict=True))
        placement = Placement(net)
        scratch = end = base + placement.end
        steps: list[AnyStep] = []
        for run in invocations(net, self.threads):
            if run.calls_torch:
                raise Unsupported.collect([(f"{run.spec.calls_out} inside of a loop or branch", "")])
            op = moving[run.label]
            ins_at, outs_at = (
                [_place(net, placement, pointers, Operand(*o), base) for o in side] for side in (op.ins, op.outs)
            )
            if isinstance(run.spec, Region):
                assert isinstance(op.spec, Region)
                step, later = self.plan(op.spec, run.spec, number, ins_at, outs_at, scratch)
                steps.append(step)
            else:
                kernel = self.made(run, op.spec)
                later = scratch + kernel.scratch
                if kernel.name:
                    table = () if kernel.sizes is None else (kernel.sizes,)
                    operands = (*ins_at, *table, *outs_at, Place(0, scratch))
                    steps.append(Call(kernel.name, number, operands, kernel.parallel, kernel.checked))
            end = max(end, aligned(later))
        return tuple(steps), end


def _nbytes(c: BodyContainer) -> Number:
    return MovingContainer(c.shape, c.strides, c.dtype, c.role).size * itemsize(c.dtype)


def _place(net: Network, placement: Placement, pointers: dict[str, str], o: Operand, base: int) -> Place:
    if o.data in pointers:
        return Place(-1, o.offset * itemsize(net.containers[o.data].dtype), pointer=pointers[o.data])
    place = placement.place(o)
    assert place.slot == 0, "a body has no prepared values"
    return replace(place, offset=base + place.offset)
