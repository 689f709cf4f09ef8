"""In all tests of passes: no rewrite forgets where operators came from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from dcir.ir.network import Network
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.pipelines import PASSES
from dcir.transforms.tidy.merge_common_subexpressions import MergeCommonSubexpressions
from dcir.transforms.tidy.simplify_algebra import SimplifyAlgebra
from dcir.transforms.tier1_operator.expand_loops import ExpandLoops
from dcir.transforms.tier1_operator.set_schedules import SetSchedules
from tests.origins import Before

EQUAL_VALUES = (MergeCommonSubexpressions, SimplifyAlgebra)
"""Passes after which operators read other values that are equal, and do not compute what they read before."""


def _held(kind: type[Pass], apply: Callable[..., PassResult]) -> Callable[..., PassResult]:
    @functools.wraps(apply)
    def held(self: Pass, net: Network, *place: Any) -> PassResult:
        before = Before(net)
        outcome = apply(self, net, *place)
        before.check(net, slices=kind not in EQUAL_VALUES)
        return outcome

    return held


@pytest.fixture(autouse=True)
def _origins_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass of dcir's, wherever a test runs it."""
    for kind in {type(p) for p in PASSES} | {ExpandLoops, SetSchedules}:
        for name in ("apply", "apply_at"):
            if name == "apply" or name in vars(kind):
                monkeypatch.setattr(kind, name, _held(kind, getattr(kind, name)))
