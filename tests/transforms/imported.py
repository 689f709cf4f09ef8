"""Torch functions as networks, for the tests of passes: traced to ATen, imported, run by the interpreter and as generated code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dcir.frontends.torch.decompose import decompositions
from dcir.frontends.torch.importer import Imported, import_graph
from dcir.ir.verify import verify
from dcir.transforms.base import Pass, PassResult
from tests.harness import check_close, run_cpp, run_interpreted
from tests.on_host import on_host


def imported(fn: Callable[..., Any], *inputs: torch.Tensor) -> Imported:
    """The network of a function over tensors (a tensor or a tuple of tensors comes back)."""

    def flat(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = fn(*args)
        return tuple(out) if isinstance(out, tuple | list) else (out,)

    done = import_graph(make_fx(torch.func.functionalize(flat), decompositions(), tracing_mode="fake")(*inputs))
    on_host(done.network)
    return done


def same_numbers(fn: Callable[..., Any], *inputs: torch.Tensor, passes: tuple[Pass, ...]) -> list[PassResult]:
    """Apply passes to the network of ``fn``; its results before, after, as generated code and in eager torch agree."""
    done = imported(fn, *inputs)
    before = run_interpreted(done, inputs)
    outcomes = []
    for p in passes:
        outcomes.append(p.apply(done.network))
        verify(done.network)
        done.network.validate()
    want = fn(*inputs)
    want = tuple(want) if isinstance(want, tuple | list) else (want,)
    for g, b, w in zip(run_interpreted(done, inputs), before, want, strict=True):
        check_close(g, b, b, what="after against before")
        assert g.shape == w.shape and g.dtype == w.dtype
        torch.testing.assert_close(g, w, equal_nan=True, rtol=1e-4, atol=1e-5)
    for g, w in zip(run_cpp(done, inputs), want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        torch.testing.assert_close(g, w, equal_nan=True, rtol=1e-4, atol=1e-5)
    return outcomes
