"""Programs of DaCe as operators: numbers against NumPy in float64, gradients, compiled and fused, and what is refused."""

# ruff: noqa: F821, F841 - memlets of a tasklet are statements to DaCe, and names in it come from them

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dcir
from dcir.errors import InvalidInput, OptionError, Unsupported

N, M, K = (dace.symbol(s) for s in "NMK")


@dace.program
def swish(x: dace.float32[N, M]):
    return x / (1.0 + np.exp(-x))


@dace.program
def softmax(x: dace.float32[N, M]):
    m = np.max(x, axis=1)
    e = np.exp(x - m[:, np.newaxis])
    return e / np.sum(e, axis=1)[:, np.newaxis]


@dace.program
def weighted(a: dace.float32[N, M], b: dace.float32[M]):
    out = np.empty((N,), dtype=np.float32)
    out[:] = 0
    for i, j in dace.map[0:N, 0:M]:
        with dace.tasklet:
            v << a[i, j]
            w << b[j]
            o >> out(1, lambda x, y: x + y)[i]
            o = v * w
    return out


@dace.program
def stencil(a: dace.float32[N]):
    b = np.zeros_like(a)
    b[1:-1] = 0.25 * a[:-2] + 0.5 * a[1:-1] + 0.25 * a[2:]
    return b


@dace.program
def dense(a: dace.float32[N, M], b: dace.float32[M, K]):
    return np.maximum(a @ b, 0)


@dace.program
def shifted(a: dace.float32[N, M], out: dace.float32[N, M]):
    for i, j in dace.map[0:N, 0:M]:
        out[i, j] = a[i, j] + 1


@dace.program
def repeated(a: dace.float32[N]):
    b = np.zeros_like(a)
    b[:] = a
    for _ in range(3):
        b[:] = b * b + a
    return b


def in_numpy(a: Any, times: int = 3) -> Any:
    b = a
    for _ in range(times):
        b = b * b + a
    return b


CASES: dict[str, tuple[Any, dict[str, Any], list[tuple[int, ...]], Any]] = {
    "swish": (swish, {}, [(5, 7)], lambda x: x / (1 + torch.exp(-x))),
    "softmax": (softmax, {}, [(5, 7)], lambda x: torch.softmax(x, 1)),
    "weighted": (weighted, {}, [(5, 7), (7,)], lambda a, b: a @ b),
    "stencil": (stencil, {}, [(9,)], lambda a: F.pad(0.25 * a[:-2] + 0.5 * a[1:-1] + 0.25 * a[2:], (1, 1))),
    "dense": (dense, {}, [(5, 7), (7, 3)], lambda a, b: (a @ b).relu()),
    "shifted": (shifted, {"outputs": ("out",)}, [(5, 7)], lambda a: a + 1),
    "repeated": (repeated, {}, [(6,)], in_numpy),
}


class Inside(nn.Module):
    """An operator between two of torch's."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op

    def forward(self, *xs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.op(*(x * 0.5 for x in xs)))


def numbers_and_gradients(f: Any, xs: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in xs]
    y = f(*leaves)
    y.square().sum().backward()
    return [y.detach(), *(x.grad for x in leaves)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_numbers_and_gradients(name: str, how: str) -> None:
    program, settings, shapes, plain = CASES[name]
    op = dcir.dace_operator(program, **settings)
    for scale in (1, 2):  # each combination of sizes is read by itself
        xs = [torch.randn([n * scale for n in shape]) for shape in shapes]
        model = Inside(op)
        f = dcir.optimize(model, dynamic=False) if how == "compiled" else model
        want = numbers_and_gradients(Inside(plain), [x.double() for x in xs])
        for g, w in zip(numbers_and_gradients(f, xs), want, strict=True):
            torch.testing.assert_close(g.double(), w, rtol=1e-5, atol=1e-5)
        if how == "compiled":
            report = f.dcir.explain()
            assert report.graphs and not report.fallbacks


def test_fused_with_what_surrounds_it() -> None:
    """One kernel: nothing of the program is stored, nor what goes in."""
    fast = dcir.optimize(Inside(dcir.dace_operator(swish)))
    with torch.no_grad():
        fast(torch.randn(64, 32))
    (graph,) = fast.dcir.explain().graphs
    assert graph.calls == 1


def test_gradient_of_the_user() -> None:
    op = dcir.dace_operator(stencil, backward=lambda a, g: g * 7)
    for f in (Inside(op), dcir.optimize(Inside(op))):
        x = torch.randn(9, requires_grad=True)
        y = f(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad, (1 - y.detach() ** 2) * 7 * 0.5)


def test_an_sdfg_is_a_program() -> None:
    op = dcir.dace_operator(swish.to_sdfg())
    x = torch.randn(3, 4)
    torch.testing.assert_close(op(x), F.silu(x))


def test_layout_of_arguments_does_not_matter() -> None:
    x = torch.randn(4, 3).t()
    torch.testing.assert_close(dcir.dace_operator(swish)(x), F.silu(x))


def test_refused() -> None:
    op = dcir.dace_operator(weighted)
    with pytest.raises(InvalidInput, match="extent of 6 where M is 7"):
        op(torch.randn(5, 7), torch.randn(6))
    with pytest.raises(InvalidInput, match="dimensions"):
        op(torch.randn(5), torch.randn(5))
    with pytest.raises(InvalidInput, match="float"):
        op(torch.randn(5, 7).double(), torch.randn(7))
    with pytest.raises(InvalidInput, match="2 arguments"):
        op(torch.randn(5, 7))
    with pytest.raises(OptionError, match="no program of DaCe"):
        dcir.dace_operator(len)
    with pytest.raises(OptionError, match="returns nothing"):
        dcir.dace_operator(shifted)
    with pytest.raises(OptionError, match="no array 'z'"):
        dcir.dace_operator(shifted, outputs=("z",))
    with pytest.raises(OptionError, match="gives no gradients"):
        dcir.dace_operator(swish, backward=3)


@dace.program
def until(a: dace.float32[N]):
    b = np.zeros_like(a)
    b[:] = a
    while b[0] < 10:
        b[:] = b + 1
    return b


def test_loops_on_data_are_refused() -> None:
    with pytest.raises(Unsupported, match="as loop nests"):
        dcir.dace_operator(until)(torch.randn(4))


@dace.program
def padded(a: dace.float32[N + 2], b: dace.float32[N]):
    return a[1:-1] + b


def test_extents_that_follow_from_others() -> None:
    op = dcir.dace_operator(padded)
    a, b = torch.randn(7), torch.randn(5)
    torch.testing.assert_close(op(a, b), a[1:-1] + b)
    with pytest.raises(InvalidInput, match="extent of 8 where N"):
        op(torch.randn(8), b)


@dace.program
def changing(a: dace.float32[N]):
    a[:] = a + 1
    return a * 2


@dace.program
def adding(a: dace.float32[N], out: dace.float32[N]):
    out[:] = out + a


def test_changed_arguments_are_refused() -> None:
    """Nothing that a program does to its arguments is lost."""
    with pytest.raises(Unsupported, match="the argument a, which is written"):
        dcir.dace_operator(changing)(torch.randn(4))
    with pytest.raises(Unsupported, match="the result out, which is read before"):
        dcir.dace_operator(adding, outputs=("out",))(torch.randn(4))
