"""Which results a program writes to the memory that its caller has for them."""

from __future__ import annotations

import torch

from dcir.runtime.given_memory import given_buffers
from dcir.runtime.program_info import BufferInfo, ProgramInfo, ResultInfo


def _info(
    *results: ResultInfo, buffers: tuple[BufferInfo, ...], shared: tuple[tuple[int, int], ...] = ()
) -> ProgramInfo:
    return ProgramInfo(8, 0, (), (), buffers, tuple(range(len(buffers))), results, {}, (), shared=shared)


def test_a_result_alone_in_memory_like_it() -> None:
    a, b = BufferInfo((2, 3), (3, 1), "f32"), BufferInfo((3,), (1,), "f32")
    info = _info(ResultInfo("literal"), ResultInfo("buffer", 1), ResultInfo("buffer", 0), buffers=(a, b))
    t, u = torch.empty(2, 3), torch.empty(3)
    found = given_buffers(info, {1: u, 2: t})
    assert found.keys() == {0, 1}
    assert found[0] is t and found[1] is u
    assert given_buffers(info, {2: t}).keys() == {0}


def test_memory_of_another_layout() -> None:
    info = _info(ResultInfo("buffer", 0), buffers=(BufferInfo((2, 3), (3, 1), "f32"),))
    for other in (torch.empty(3, 2), torch.empty(3, 2).t(), torch.empty(2, 3, dtype=torch.float64), torch.empty(6)):
        assert given_buffers(info, {0: other}) == {}
    assert given_buffers(info, {0: torch.empty(40)[7:13].view(2, 3)})


def test_results_that_are_not_alone() -> None:
    """A window, a buffer of two results, an argument, and a buffer that lies where an argument does."""
    a = BufferInfo((4,), (1,), "f32")
    t = torch.empty(4)
    cases = [
        _info(ResultInfo("buffer", 0, (2,), (1,), 2), buffers=(a,)),
        _info(ResultInfo("buffer", 0), ResultInfo("buffer", 0), buffers=(a,)),
        _info(ResultInfo("input", 0), buffers=(a,)),
        _info(ResultInfo("buffer", 0), buffers=(a,), shared=((0, 3),)),
    ]
    for info in cases:
        assert given_buffers(info, {0: t}) == {}
