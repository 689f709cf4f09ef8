"""Bodies of loops and branches for tests, operators that run them, and ways to run the networks around these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dcir.codegen.compile import compile_network
from dcir.driver.assemble import assemble
from dcir.frontends.torch.importer import Imported
from dcir.ir.body import Body
from dcir.ir.network import Network, Result, contiguous
from dcir.ops.library.regions import BranchSpec, LoopSpec, WhileSpec
from dcir.ops.lowering import Lowering, Meta, Ref
from dcir.ops.torch_types import FROM_NAME
from tests.harness import run_interpreted
from tests.on_host import on_host

Make = Callable[..., Sequence[Ref]]
"""Adds operators to the network of a context, given that and its inputs; returns the results."""


def tensor(*shape: int, dtype: str = "f32") -> Meta:
    """An input in rows without gaps."""
    return Meta(shape, contiguous(shape), dtype)


def graph(inputs: Sequence[Meta], make: Make) -> Network:
    """A network of these inputs."""
    net = on_host(Network())
    ctx, refs = Lowering(net), []
    for x in inputs:
        refs.append(Ref(net.add_container(x.shape, x.dtype, "input", x.strides), x.shape, x.strides, 0, x.dtype))
    for ref in make(ctx, *refs):
        net.promote(ref.data)
        net.results.append(Result(ref.data, ref.shape, ref.strides, ref.offset, ref.dtype))
    return net


def body(inputs: Sequence[Meta], make: Make, *, fixed: int = 0) -> Body:
    """A body of which the last ``fixed`` inputs do not change."""
    net = graph(inputs, make)
    net.static = set(net.inputs[len(inputs) - fixed :])
    return Body.of(net)


def pointwise(ctx: Lowering, fn: Callable[..., Any], *args: Ref, dtype: str | None = None) -> Ref:
    """One loop nest over the elements of ``args``, of the first one's shape, and of its type unless ``dtype`` says otherwise."""
    ctx.outs = [Meta(args[0].shape, contiguous(args[0].shape), dtype or args[0].dtype)]
    return ctx.pointwise(fn, *args)


def copied(ctx: Lowering, x: Ref) -> Ref:
    """The same elements in a container of their own."""
    return ctx.copy(x, ctx.new(x.shape, x.dtype))


def first(x: Ref) -> Ref:
    """The first element."""
    return replace(x, shape=(), strides=())


def loop(
    ctx: Lowering, of: Body, trips: int, values: Sequence[Ref], xs: Sequence[Ref] = (), fixed: Sequence[Ref] = (), *,
    backward: bool = False,
) -> list[Ref]:  # fmt: skip
    """A loop over the parts of ``xs`` along their first dimension, the last part first if it runs ``backward``.

    Returns:
        The values after the last trip, and the stacked results.
    """
    n, sign, first = len(values), -1 if backward else 1, trips - 1 if backward else 0
    made = [of.network.containers[r.data] for r in of.network.results]
    last = [ctx.new(c.shape, c.dtype, c.strides) for c in made[:n]]
    stacked = [ctx.new((trips, *c.shape), c.dtype) for c in made[n:]]
    steps_in, steps_out = ([sign * t.strides[0] for t in side] for side in (xs, stacked))
    spec = LoopSpec(of, trips, n, (*steps_in, *(0 for _ in fixed)), tuple(steps_out))
    parts, written = ([replace(t, offset=t.offset + first * t.strides[0]) for t in side] for side in (xs, stacked))
    ctx.emit(spec, [*values, *parts, *fixed], [*last, *written])
    return [*last, *stacked]


def repeat_while(
    ctx: Lowering, condition: Body, of: Body, values: Sequence[Ref], fixed: Sequence[Ref] = ()
) -> list[Ref]:
    """A loop while a condition holds; returns the values after it."""
    last = [ctx.new(v.shape, v.dtype, v.strides) for v in values]
    ctx.emit(WhileSpec(condition, of, len(values)), [*values, *fixed], last)
    return last


def branch(ctx: Lowering, flag: Ref, then: Body, otherwise: Body, operands: Sequence[Ref]) -> list[Ref]:
    """A branch; returns its results."""
    made = [then.network.containers[r.data] for r in then.network.results]
    last = [ctx.new(c.shape, c.dtype, c.strides) for c in made]
    ctx.emit(BranchSpec(then, otherwise), [flag, *operands], last)
    return last


def called(net: Network) -> Imported:
    """The network as if a graph had been imported: what runs networks for tests asks for that."""
    return Imported(net, {}, [("result", i) for i in range(len(net.results))])


def numbers(net: Network, seed: int = 0) -> list[torch.Tensor]:
    """Random inputs."""
    chance = torch.Generator().manual_seed(seed)
    found = []
    for name in net.inputs:
        c = net.containers[name]
        drawn = torch.empty_strided(c.shape, c.strides).uniform_(-2, 2, generator=chance)
        found.append(
            (drawn > 0) if c.dtype == "bool" else (drawn * (1 if c.dtype[0] == "f" else 3)).to(FROM_NAME[c.dtype])
        )
    return found


def interpreted(net: Network, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """Results by the references of the operators."""
    return run_interpreted(called(net), inputs)


def generated(net: Network, inputs: Sequence[torch.Tensor], threads: int = 2) -> list[Any]:
    """Results of generated code."""
    return assemble(called(net), compile_network(on_host(net, threads)))(list(inputs))


def check_generated(
    net: Network, threads: Sequence[int] = (1, 2), inputs: Sequence[torch.Tensor] | None = None
) -> None:
    """Generated code, for teams of so many threads, gives what the interpreter does."""
    given = numbers(net) if inputs is None else inputs
    want = interpreted(net, given)
    for team in threads:
        torch.testing.assert_close(generated(net, given, team), want, rtol=1e-5, atol=1e-5)
