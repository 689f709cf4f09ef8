"""Calls that run part by part: what runs when, what is let go of, what a failure leaves."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from dcir.errors import IndexOutOfRange
from dcir.runtime.part_by_part import PartByPart


def _call(parts: int = 3, fails: int | None = None) -> tuple[PartByPart, list[int], list[str], list[torch.Tensor]]:
    ran: list[int] = []
    released: list[str] = []
    results = [torch.zeros(1) for _ in range(parts)]

    def run(part: int) -> None:
        if part == fails:
            raise IndexOutOfRange("a bad index")
        ran.append(part)

    def release() -> None:
        released.append("released")

    return PartByPart(parts, run, results, range(parts), [torch.ones(1)], release), ran, released, results


def test_parts_run_once_and_in_order() -> None:
    call, ran, released, _ = _call()
    call.advance(1)
    assert ran == [0, 1]
    call.advance(0)
    assert not released
    call.finish()
    call.finish()
    assert ran == [0, 1, 2]
    assert released == ["released"]
    assert call.ended


def test_a_complete_result_belongs_to_whoever_got_it() -> None:
    """Autograd makes a copy of a gradient that somebody else holds; one that is not written yet must not go."""
    call, _, _, results = _call()
    first, second = weakref.ref(results[0]), weakref.ref(results[1])
    results.clear()
    call.advance(0)
    gc.collect()
    assert first() is None
    assert second() is not None
    call.advance(1)
    assert second() is None


def test_a_call_that_nobody_finishes_gives_back_what_it_took() -> None:
    call, ran, released, _ = _call()
    call.advance(0)
    del call
    gc.collect()
    assert ran == [0]
    assert released == ["released"]


def test_a_failure_stays() -> None:
    call, ran, released, _ = _call(fails=1)
    for part in (1, 2):
        with pytest.raises(IndexOutOfRange):
            call.advance(part)
    assert ran == [0]
    assert released == ["released"]
