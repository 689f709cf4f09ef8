"""Reductions in lanes: every width around a block, NaN, infinities and signed zeros anywhere, rows and columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dcir.codegen.compile import compile_network
from dcir.driver.assemble import assemble
from dcir.frontends.torch.importer import Imported
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, Result
from tests.on_host import on_host

ROWS = 9
KINDS = ("max", "min", "sum", "prod", "any", "all")
TYPES = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "i32": torch.int32}


def _values(dtype: str, n: int) -> torch.Tensor:
    """Rows of n elements and a gap of three that holds NaN, or small integers."""
    torch.manual_seed(n)
    if not dtype.startswith("f"):
        x = torch.randint(-3, 4, (ROWS, n + 3)).to(TYPES[dtype])
        x[4, :n] = 0
        return x
    x = (torch.randn(ROWS, n + 3) * 2).to(TYPES[dtype])
    x[1, n // 2] = float("nan")
    x[2, 0], x[3, n - 1] = float("inf"), -float("inf")
    x[4], x[5], x[6] = -float("inf"), float("inf"), 0
    x[6, n // 3] = -0.0
    x[7] = -x[7].abs() - 1
    x[8, n - 1] = -float("nan")
    x[:, n:] = float("nan")
    return x


def _want(kind: str, v: torch.Tensor) -> torch.Tensor:
    if kind in ("sum", "prod"):
        return getattr(torch, kind)(v.double() if v.dtype.is_floating_point else v, 1).to(v.dtype)
    return {"max": torch.amax, "min": torch.amin}[kind](v, 1) if kind in ("max", "min") else getattr(v.bool(), kind)(1)


def _run(net: Network, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    done = Imported(net, {}, [("result", i) for i in range(len(net.results))])
    results: list[torch.Tensor] = assemble(done, compile_network(on_host(net, 2)))(tensors)
    return results


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("dtype", list(TYPES))
def test_reductions(dtype: str, columns: bool) -> None:
    """All kinds over all widths equal torch; neighbours of a row are not read."""
    net, tensors, wants = Network(), [], []
    for n in (1, 5, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 200):
        x = _values(dtype, n)
        stored = x.t().contiguous() if columns else x
        name = net.add_container(stored.shape, dtype, "input")
        tensors.append(stored)
        for kind in KINDS:
            out = "bool" if kind in ("any", "all") else dtype
            body = LoopNestBuilder((ROWS,), (n,))
            value = body.reduce(kind, body.load(body.input(dtype), (1, ROWS) if columns else (n + 3, 1)))
            body.store(body.output(out), (1, 0), value)
            result = net.add_container((ROWS,), out)
            net.add_op(body.finish(), [Operand(name)], [Operand(result)])
            net.promote(result)
            net.results.append(Result(result, (ROWS,), (1,), 0, out))
            wants.append((f"{kind} of {n}", _want(kind, x[:, :n])))
    for got, (what, want) in zip(_run(net, tensors), wants, strict=True):
        loose = 1e-5 if "sum" in what or "prod" in what else 0
        torch.testing.assert_close(got, want, rtol=loose, atol=loose, equal_nan=True, msg=lambda m, w=what: f"{w}: {m}")


@pytest.mark.parametrize("n", [7, 33, 70, 197, 256])
def test_masked_softmax(n: int) -> None:
    """A mask in memory and one of indices, rows of any width; a row without anything left is NaN, as in torch."""

    def program(causal: bool) -> LoopNestBuilder:
        body = LoopNestBuilder((6,), (n,))
        x = body.load(body.input("f32"), (n, 1))
        hidden = body.index(1) > body.index(0) * 3 + 1 if causal else body.load(body.input("bool"), (n, 1))
        s = body.where(hidden, body.const(-np.inf, "f32"), x)
        e = body.op("exp", s - body.reduce("max", s))
        body.store(body.output("f32"), (n, 1), e / body.reduce("sum", e))
        return body

    torch.manual_seed(n)
    x, mask = torch.randn(6, n) * 4, torch.rand(6, n) < 0.5
    mask[2], mask[3] = True, False
    index = torch.arange(n)[None] > torch.arange(6)[:, None] * 3 + 1
    net = Network()
    names = [net.add_container((6, n), "f32", "input"), net.add_container((6, n), "bool", "input")]
    for causal in (False, True):
        out = net.add_container((6, n), "f32")
        net.add_op(program(causal).finish(), [Operand(k) for k in (names[:1] if causal else names)], [Operand(out)])
        net.promote(out)
        net.results.append(Result(out, (6, n), (n, 1), 0, "f32"))
    for got, m in zip(_run(net, [x, mask]), (mask, index), strict=True):
        want = torch.softmax(x.double().masked_fill(m, -np.inf), -1)
        torch.testing.assert_close(got.double(), want, rtol=3e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("shape", [(13, 4, 15), (1000, 4, 3), (130, 3, 7, 2), (7, 4, 31)], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
def test_sums_of_many_short_rows_lose_no_digits(shape: tuple[int, ...], last: bool) -> None:
    """Positive numbers, so that every rounding shows; one accumulator would lose a digit, a gradient of a bias then too."""
    torch.manual_seed(0)
    x = torch.rand(shape) + 0.5
    strides = x.stride()
    if last:
        order = [0, *range(2, len(shape)), 1]
        strides = tuple(torch.empty([shape[d] for d in order]).stride()[order.index(d)] for d in range(len(shape)))
    c, rest = strides[1], [d for d in range(len(shape)) if d != 1]
    body = LoopNestBuilder((shape[1],), tuple(shape[d] for d in rest))
    value = body.load(body.input("f32"), (c, *(strides[d] for d in rest)))
    body.store(body.output("f32"), (1,) + (0,) * len(rest), body.reduce("sum", value))
    net = Network()
    name, out = net.add_container(shape, "f32", "input", strides), net.add_container((shape[1],), "f32")
    net.add_op(body.finish(), [Operand(name)], [Operand(out)])
    net.promote(out)
    net.results.append(Result(out, (shape[1],), (1,), 0, "f32"))
    (got,) = _run(net, [torch.empty_strided(shape, strides).copy_(x)])
    want = x.double().sum(rest)
    assert ((got - want) / want).abs().max() <= 3 * 2.0**-24
