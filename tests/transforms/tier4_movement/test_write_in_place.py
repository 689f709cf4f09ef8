"""Updates of a part of an input: which are made where it lies, which are not, and the numbers."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.decompose import decompositions
from dcir.frontends.torch.importer import Imported, import_graph
from dcir.frontends.torch.written_inputs import updates_at_the_end
from dcir.ir.updates import settle
from dcir.ir.verify import verify
from dcir.transforms.tier4_movement.keep_in_place import KeepInPlace
from dcir.transforms.tier4_movement.write_in_place import WriteInPlace
from tests.harness import run_cpp, run_interpreted
from tests.on_host import on_host

ROWS = torch.tensor([1, 3])


def updating(fn, *inputs) -> Imported:
    """The network of a function that writes its first input."""

    def functional(*args):
        out = fn(*args)
        return (*out,) if isinstance(out, tuple) else (out,)

    graph = make_fx(torch.func.functionalize(functional), decompositions(), tracing_mode="fake")(*inputs)
    assert isinstance(graph, fx.GraphModule)
    updates = updates_at_the_end(graph, "inference")
    assert updates
    done = import_graph(graph, GraphContext(updates=updates))
    on_host(done.network)
    settle(done.network)
    return done


def tensors():
    g = torch.Generator().manual_seed(1)
    return [torch.randn(6, 8, generator=g), torch.randn(2, 8, generator=g), ROWS.clone()]


def rows(x, v, at):
    x.index_copy_(0, at, v)
    return x.sum(1), x @ v.t()


def put(x, v, at):
    x[at] = v * 2
    return (x.exp(),)


def added(x, v, at):
    x.index_put_((at,), v, accumulate=True)
    return (x * 2,)


def window(x, v, at):
    x[2:4] = v
    return (x.sum(0),)


def window_of_columns(x, v, at):
    x[:, 1:7:2] = v[0, 0]
    return (x.sum(0),)


def rows_of_a_part(x, v, at):
    x.view(2, 3, 8)[1].index_copy_(0, at - 1, v)
    return (x.sum(0),)


def old_before(x, v, at):
    old = x.sum()
    x.index_copy_(0, at, v + old)
    return x.sum(0), old


IN_PLACE = [rows, put, added, window, window_of_columns, rows_of_a_part, old_before]


@pytest.mark.parametrize("fn", IN_PLACE, ids=lambda f: f.__name__)
def test_rows_are_written_in_place(fn):
    given = tensors()
    done = updating(fn, *given)
    net, whole = done.network, given[0].numel() * 4
    assert WriteInPlace().apply(net).changed
    settle(net)
    assert KeepInPlace().apply(net).changed
    verify(net)
    (data,) = net.updates
    writers = net.writers(data)
    written = sum(op.spec.footprint()[1][i] for op in writers for i, o in enumerate(net.outs(op)) if o.data == data)
    assert written < whole
    same(done, fn)


def same(done, fn):
    wanted = tensors()
    want = fn(*wanted)
    got = run_interpreted(done, tensors())
    for g, w in zip(got, want, strict=False):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
    compiled = tensors()
    for g, w in zip(run_cpp(done, compiled), want, strict=False):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled, wanted, rtol=1e-4, atol=1e-5)


def all_of_it(x, v, at):
    x.mul_(2)
    return (x.sum(),)


def old_after(x, v, at):
    old = x.clone()
    x.index_copy_(0, at, v)
    return (old @ x.t(),)


def other_rows(x, v, at):
    x[2:4] = x[3:5].clone()
    return (x.sum(0),)


def twice(x, v, at):
    x.index_copy_(0, at, v)
    x.index_copy_(0, at + 1, v)
    return (x.sum(0),)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (all_of_it, "the update changes all of its input"),
        (old_after, "the old contents are read after the new ones"),
        (other_rows, "what is written is made of other old contents"),
        (twice, "the update changes all of its input"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_refused(fn, reason):
    done = updating(fn, *tensors())
    outcome = WriteInPlace().apply(done.network)
    assert not outcome.changed and reason in outcome.refused
    KeepInPlace().apply(done.network)
    same(done, fn)


def test_nothing_to_do():
    net = import_graph(make_fx(lambda x: x + 1, tracing_mode="fake")(torch.randn(3))).network
    assert not WriteInPlace().apply(net).changed and not KeepInPlace().apply(net).changed


def test_an_order_that_is_lost_costs_a_copy():
    """A reader of the old contents that comes to need the new ones: the update is made elsewhere, and others read it there."""
    done = updating(rows, *tensors())
    net = done.network
    WriteInPlace().apply(net)
    settle(net)
    (data, source), (writer,) = *net.updates.items(), net.writers(next(iter(net.updates)))
    last = net.readers(data)[-1]
    net.rewire(
        last, last.spec, [o._replace(data=source) if o.data == data else o for o in net.ins(last)], net.outs(last)
    )
    assert net.readers(source) != [writer]
    settle(net)
    verify(net)
