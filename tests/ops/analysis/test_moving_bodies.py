"""Loops and branches at samples as one whose sizes move: trips, extents and windows in it, at every depth, and why it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dcir.errors import InvalidGraph
from dcir.ir.body import Body
from dcir.ir.memory_plan import ARENA
from dcir.ir.moving_file import load, save
from dcir.ir.moving_network import MovingNetwork, digest, digest_at, moving_body
from dcir.ir.network import Network
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds, size
from dcir.ir.text import network_text
from dcir.ir.verify_moving import verify_moving
from dcir.ops.analysis.size_unification import chosen_samples, few, unified
from dcir.ops.library.regions import LoopSpec
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.pipelines import pipeline, same_at_all_sizes
from dcir.transforms.runner import run_passes
from tests.bodies import body, branch, copied, graph, interpreted, loop, numbers, pointwise, repeat_while, tensor
from tests.transforms.build import binary, reduce, unary

S, T = size("s0"), size("s1")
ONE = {"s0": Bounds(3, 60)}
TWO = {"s0": Bounds(3, 60), "s1": Bounds(2, 30)}
COUNT = tensor(dtype="i64")


def cell(c: Lowering, h: Ref, x: Ref, w: Ref) -> list[Ref]:
    """With something to hoist, values in between, and a mean."""
    new = binary(c, "add", unary(c, "tanh", h), binary(c, "mul", x, unary(c, "exp", w)))
    total = reduce(c, "sum", new)
    return [pointwise(c, lambda a, b: a - b * (1.0 / h.shape[-1]), new, total), unary(c, "neg", new)]


def centred(c: Lowering, h: Ref, x: Ref, w: Ref) -> list[Ref]:
    """Less than the mean of a column, which is complete when all rows were seen, so it is kept meanwhile."""
    new, rest = cell(c, h, x, w)
    mean = reduce(c, "sum", new, 0)
    return [pointwise(c, lambda a, b: a - b * (1.0 / h.shape[0]), new, mean), rest]


def steps(s0: int, *, backward: bool = False) -> Network:
    of = body([tensor(5, 4)] * 3, cell, fixed=1)
    return graph(
        [tensor(5, 4), tensor(s0, 5, 4), tensor(5, 4)],
        lambda c, h, xs, w: loop(c, of, s0, [h], [xs], [w], backward=backward),
    )


def wide(s0: int) -> Network:
    """Extents within the body move, and with them the steps of the windows."""
    of = body([tensor(s0, 4)] * 3, cell, fixed=1)
    return graph([tensor(s0, 4), tensor(6, s0, 4), tensor(s0, 4)], lambda c, h, xs, w: loop(c, of, 6, [h], [xs], [w]))


def wide_and_centred(s0: int) -> Network:
    of = body([tensor(s0, 4)] * 3, centred, fixed=1)
    return graph([tensor(s0, 4), tensor(6, s0, 4), tensor(s0, 4)], lambda c, h, xs, w: loop(c, of, 6, [h], [xs], [w]))


def both(s0: int, s1: int) -> Network:
    of = body([tensor(s1, 4)] * 3, cell, fixed=1)
    return graph(
        [tensor(s1, 4), tensor(s0, s1, 4), tensor(s1, 4)],
        lambda c, h, xs, w: loop(c, of, s0, [h], [xs], [w], backward=True),
    )


def nested(s0: int) -> Network:
    """The inner loop's trips move, and within its body the place of an operand."""

    def rows(c: Lowering, h: Ref, xs: Ref) -> list[Ref]:
        def step(c: Lowering, h: Ref, x: Ref, all_: Ref) -> list[Ref]:
            last = replace(all_, shape=(4,), strides=(1,), offset=4 * (s0 - 1))
            return [binary(c, "add", binary(c, "sub", h, x), last)]

        of = body([tensor(4), tensor(4), tensor(s0, 4)], step, fixed=1)
        return [*loop(c, of, s0, [h], [xs], [xs], backward=True), copied(c, replace(xs, shape=(s0,), strides=(4,)))]

    around = Body.of(graph([tensor(4), tensor(s0, 4)], rows))
    return graph([tensor(4), tensor(3, s0, 4)], lambda c, h, xs: loop(c, around, 3, [h], [xs]))


def others(s0: int) -> Network:
    """A while loop, and a branch, over as much as there is."""
    inputs = [COUNT, tensor(s0, 4)]
    below = body(inputs, lambda c, n, x: [pointwise(c, lambda v: v < s0, n, dtype="bool")])
    grow = body(inputs, lambda c, n, x: [pointwise(c, lambda v: v + 7, n), unary(c, "tanh", x)])
    sides = [body(inputs[1:], lambda c, x, op=op: [unary(c, op, x)]) for op in ("neg", "exp")]

    def make(c: Lowering, flag: Ref, n: Ref, x: Ref) -> list[Ref]:
        return [*repeat_while(c, below, grow, [n, x]), *branch(c, flag, sides[0], sides[1], [x])]

    return graph([tensor(dtype="bool"), *inputs], make)


def found(
    make: Callable[..., Network], bounds: Any = ONE, passes: Any = ()
) -> tuple[Any, list[Network], list[dict[str, int]]]:
    """What the networks at all samples are, these, and the samples."""
    sizes, samples = chosen_samples(bounds, {4, 5, 8})
    nets = [made(make, passes, **s) for s in samples]
    return unified(nets, samples, sizes), nets, samples


def made(make: Callable[..., Network], passes: Any = (), **sizes: int) -> Network:
    net = make(**sizes)
    run_passes(net, passes)
    return net


CASES: dict[str, tuple[Callable[..., Network], Any]] = {
    "trips": (steps, ONE),
    "trips backward": (lambda s0: steps(s0, backward=True), ONE),
    "extents": (wide, ONE),
    "both": (both, TWO),
    "nested": (nested, ONE),
    "while and branch": (others, ONE),
}
BETWEEN = {"s0": (3, 4, 17, 60), "s1": (2, 30, 11, 4)}


@pytest.mark.parametrize("rewritten", [False, True], ids=["as it is", "rewritten"])
@pytest.mark.parametrize("name", CASES)
def test_one_network_is_all_of_them(name: str, rewritten: bool) -> None:
    make, bounds = CASES[name]
    passes = same_at_all_sizes(pipeline(4)) if rewritten else ()
    net, constant, samples = found(make, bounds, passes)
    assert isinstance(net, MovingNetwork), net
    verify_moving(net)
    for seen, at in zip(constant, samples, strict=True):
        assert digest(net.at(at)) == digest(seen) == digest_at(net, at)
    for values in zip(*(BETWEEN[s] for s in bounds), strict=True):
        at = dict(zip(bounds, values, strict=True))
        again, want = net.at(at), made(make, passes, **at)
        again.validate()
        given = numbers(want)
        torch.testing.assert_close(interpreted(again, given), interpreted(want, given), rtol=1e-5, atol=1e-5)
        assert digest(again) == digest(want) or rewritten


def test_what_moves() -> None:
    for name, want in (("trips", (S, 20, 20)), ("extents", (6, 4 * S, 4 * S)), ("both", (S, -4 * T, -4 * T))):
        net, _, _ = found(*CASES[name])
        (op,) = net.operators.values()
        assert isinstance(op.spec, LoopSpec)
        assert (op.spec.trips, op.spec.in_steps[0], op.spec.out_steps[0]) == want
    assert op.in_offsets == (0, 4 * S * T - 4 * T, 0) and op.out_offsets == (0, 4 * S * T - 4 * T)
    assert {c.shape for c in op.spec.body.containers} == {(T, 4), (T, 1)}
    net, _, _ = found(nested)
    (inner,) = (
        o for o in next(iter(net.operators.values())).spec.bodies()[0].operators if isinstance(o.spec, LoopSpec)
    )
    assert inner.spec.trips == S and 4 * S - 4 in [n for o in inner.spec.body.operators for _, n in o.ins]


def test_plans_of_memory_are_those_at_the_upper_ends() -> None:
    net, constant, _ = found(wide_and_centred, passes=same_at_all_sizes(pipeline(4)))
    (last,) = (of for op in constant[-1].ops() for of in op.spec.bodies())
    (of,) = (of for op in net.operators.values() for of in op.spec.bodies())
    (made,) = (of for op in net.at({"s0": 3}).ops() for of in op.spec.bodies())
    assert of.memory == made.memory == last.memory and made.network.memory.nbytes(ARENA)


def test_a_few_samples_do() -> None:
    sizes, samples = chosen_samples(ONE, {4, 5})
    chosen = [samples[i] for i in few(samples)]
    net = unified([steps(s["s0"]) for s in chosen], chosen, sizes)
    assert isinstance(net, MovingNetwork)
    assert digest(net.at({"s0": 31})) == digest(steps(31))


def test_a_body_is_a_network_of_its_own() -> None:
    net, _, _ = found(nested)
    (label,) = net.operators
    (widest,) = (of for op in net.widest.ops() for of in op.spec.bodies())
    (of,) = net.operators[label].spec.bodies()
    alone = moving_body(of, widest, net.sizes)
    for n in (3, 29, 60):
        (want,) = (of for op in nested(n).ops() for of in op.spec.bodies())
        assert digest(alone.at({"s0": n})) == digest(want.network)


def test_it_survives_a_file(tmp_path: Path) -> None:
    net, _, _ = found(nested)
    save(net, tmp_path / "net.zip")
    again = load(tmp_path / "net.zip")
    verify_moving(again)
    assert replace(again, widest=net.widest) == net
    assert network_text(again.at({"s0": 7})) == network_text(net.at({"s0": 7}))


def two_at_one_size(s0: int) -> Network:
    """Twice the same operator where another body has it once."""

    def step(c: Lowering, h: Ref, x: Ref) -> list[Ref]:
        return [binary(c, "add", unary(c, "neg", unary(c, "neg", h)) if s0 < 20 else unary(c, "neg", h), x)]

    return graph([tensor(4), tensor(s0, 4)], lambda c, h, xs: loop(c, body([tensor(4)] * 2, step), s0, [h], [xs]))


def another_operator(s0: int) -> Network:
    of = body([tensor(4)] * 2, lambda c, h, x: [binary(c, "add" if s0 % 2 else "sub", h, x)])
    return graph([tensor(4), tensor(s0, 4)], lambda c, h, xs: loop(c, of, s0, [h], [xs]))


def a_third_of_the_trips(s0: int) -> Network:
    of = body([tensor(4)] * 2, lambda c, h, x: [binary(c, "add", h, x)])
    return graph([tensor(4), tensor(s0, 4)], lambda c, h, xs: loop(c, of, (s0 + 2) // 3, [h], [xs]))


def a_branch_or_a_loop(s0: int) -> Network:
    of = body([tensor(4)] * 2, lambda c, h, x: [binary(c, "add", h, x)])

    def make(c: Lowering, flag: Ref, h: Ref, x: Ref) -> list[Ref]:
        return loop(c, of, 3, [h], [], [x]) if s0 < 20 else branch(c, flag, of, of, [h, x])

    return graph([tensor(dtype="bool"), tensor(4), tensor(4)], make)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (two_at_one_size, "differs with the sizes"),
        (another_operator, "differs with the sizes"),
        (a_third_of_the_trips, "no polynomial of the sizes"),
        (a_branch_or_a_loop, "the operators are others"),
    ],
)
def test_bodies_of_another_structure_are_refused(make: Callable[..., Network], reason: str) -> None:
    net, _, _ = found(make)
    assert isinstance(net, Refusal) and reason in net.reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"shape": (S - 10, 4)}, "an extent"),
        ({"strides": (16 - S, 1)}, "a stride"),
        ({"shape": (62 - S, 4)}, "less at other sizes"),
        ({"shape": (T, 4)}, "no size of the network"),
    ],
)
def test_rules_hold_within_bodies(fields: dict[str, Any], reason: str) -> None:
    net, _, _ = found(wide)
    ((label, op),) = net.operators.items()
    of = op.spec.body
    spoilt = replace(of, containers=(replace(of.containers[0], **fields), *of.containers[1:]))
    with pytest.raises(InvalidGraph, match=reason):
        verify_moving(replace(net, operators={label: replace(op, spec=replace(op.spec, body=spoilt))}))
