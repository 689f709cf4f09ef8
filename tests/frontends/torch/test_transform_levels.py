"""Levels of function transformations end with the trace that failed within them."""

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch
from torch import nn

import dcir
from dcir.errors import NotCompiledWarning
from dcir.frontends.torch import ahead_of_time
from dcir.frontends.torch.shapes.conditions import OneSize
from dcir.frontends.torch.transform_levels import levels_end_with_errors

depth: Any = torch._C._functorch.get_dynamic_layer_stack_depth  # type: ignore[attr-defined]


def failing(x: torch.Tensor) -> torch.Tensor:
    raise KeyError("within vmap")


def test_an_error_leaves_what_was_there() -> None:
    def within(x: torch.Tensor) -> torch.Tensor:
        before = depth()
        with pytest.raises(KeyError), levels_end_with_errors():
            torch._C._functorch._vmap_increment_nesting(2, "error")  # type: ignore[attr-defined]
            failing(x)
        assert depth() == before
        return x + 1

    assert torch.vmap(within)(torch.zeros(3)).tolist() == [1, 1, 1]
    assert depth() == 0


class Windows(nn.Module):
    """Means of pairs of words, by ``vmap`` over sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From [n, words, 4] to as much."""
        mean = torch.vmap(lambda row: row * row.mean(0))(self.out(x))
        return mean.relu()  # type: ignore[no-any-return]


def test_a_trace_for_all_sizes_that_fails_within_vmap_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    known, failed = ahead_of_time.aot_module_simplified, []

    def once(gm: Any, inputs: Sequence[Any], **named: Any) -> Any:
        if any(isinstance(x, torch.SymInt) for x in inputs) and len(failed) < 2:
            failed.append(gm)
            torch._C._functorch._vmap_increment_nesting(2, "error")  # type: ignore[attr-defined]
            raise OneSize(sympy.Eq(sympy.Symbol("s0"), 3))
        return known(gm, inputs, **named)

    monkeypatch.setattr(ahead_of_time, "aot_module_simplified", once)
    torch._dynamo.reset()
    net = Windows()
    fast = dcir.optimize(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiledWarning)  # Dynamo's guards found levels in a call that had none
        for words in (5, 7, 6):
            x = torch.randn(2, words, 4)
            torch.testing.assert_close(fast(x), net(x))
    assert len(failed) == 2
    assert [graph.kind for graph in fast.dcir.explain().graphs].count("forward") == 3
