"""Whole models compiled once for all lengths and run by the interpreter: their numbers are eager PyTorch's at every length."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from dcir.driver.moving_graph import MovingGraph
from dcir.ir.dace.symbols import symbolic_sdfg
from dcir.ir.dace.validation import validate
from dcir.ir.sizes import Bounds, Polynomial
from tests.harness import check_close, double
from tests.moving import Decoder, Encoder, Moving, check_memlets


def encoder_inputs(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    ids = torch.randint(0, 50, (batch, length))
    return ids, (torch.rand(batch, length) > 0.2).float()


def decoder_inputs(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 50, (batch, length)),)


def agree(got: Any, want: Any, exact: Any) -> None:
    """As near to float64 as eager is."""
    pairs = [pytree.tree_leaves(v) for v in (got, want, exact)]
    for number, (g, w, e) in enumerate(zip(*pairs, strict=True)):
        check_close(g.detach(), w.detach(), e.detach(), what=str(number))


@pytest.mark.parametrize(("make", "inputs"), [(Encoder, encoder_inputs), (Decoder, decoder_inputs)])
@pytest.mark.parametrize("batches", [False, True])
def test_inference_at_any_size(make: Any, inputs: Any, batches: bool) -> None:
    torch.manual_seed(0)
    model = make().eval()
    exact = copy.deepcopy(model).double()
    compiled = Moving(model, [Bounds(2, 30), Bounds(17, 90)] if batches else [Bounds(17, 90)])
    dims = [(i, d) for i in range(len(inputs(1, 1))) for d in ((0, 1) if batches else (1,))]
    sizes = [(5, 40), (2, 17), (13, 64), (24, 24)] if batches else [(3, 40), (3, 17), (3, 24), (3, 64), (3, 90)]
    with torch.no_grad():
        for batch, length in sizes:
            args = inputs(batch, length)
            agree(compiled(*args, dims=dims), model(*args), exact(*double(args)))
    network = compiled.graph.network
    assert [v["s1" if batches else "s0"] for v in compiled.seen] == [n for _, n in sizes]
    assert len({tuple(sorted(v.items())) for v in compiled.seen} - {values for values, _ in network.samples}) >= 3
    assert {"contraction", "attention"} & {label.rsplit("_", 1)[0] for label in network.operators}
    validate(symbolic_sdfg(network))
    for values in compiled.seen[:3]:
        assert check_memlets(network, values) == 0


@pytest.mark.parametrize(("make", "inputs"), [(Encoder, encoder_inputs), (Decoder, decoder_inputs)])
def test_training_at_any_length(make: Any, inputs: Any) -> None:
    torch.manual_seed(0)
    model = make()
    exact = copy.deepcopy(model).double()
    compiled = Moving(model, [Bounds(17, 90)])

    def step(fn: Any, args: Any, of: torch.nn.Module) -> Any:
        out = fn(*args)
        out = out if isinstance(out, torch.Tensor) else torch.cat([t.flatten() for t in out])
        weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).to(out.dtype).view_as(out)
        return out, torch.autograd.grad((out * weights).sum(), list(of.parameters()))

    for length in (40, 24, 90):
        args = inputs(3, length)
        got = step(lambda *a: compiled(*a, dims=[(i, 1) for i in range(len(a))]), args, model)
        agree(got, step(model, args, model), step(exact, double(args), exact))
    forward, backward = compiled.graphs
    assert isinstance(forward, MovingGraph) and isinstance(backward, MovingGraph)
    assert len(compiled.seen) == 6
    for graph in (forward, backward):
        assert check_memlets(graph.network, compiled.seen[0]) == 0


def test_numbers_that_a_graph_returns_move() -> None:
    compiled = Moving(lambda x: (x * 2, x.shape[0] * x.shape[1]), [Bounds(17, 90)], level=0)
    for n in (20, 31):
        got = compiled(torch.randn(3, n), dims=[(0, 1)])
        assert got[1] == 3 * n
    (number,) = [v for kind, v in compiled.graph.outputs if kind == "literal"]
    assert isinstance(number, Polynomial)
    assert str(number) == "3*s0"


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: x[:, : max(x.shape[1] - 30, 7)] * 2, "no polynomial|the trace is for"),
        (lambda x: x * x.shape[1] ** 0.5, "a fraction that moves"),
    ],
)
def test_what_is_no_polynomial_is_refused_with_its_reason(fn: Any, reason: str) -> None:
    compiled = Moving(fn, [Bounds(17, 90)])
    with pytest.raises(AssertionError, match=reason):
        compiled(torch.randn(3, 20), dims=[(0, 1)])
