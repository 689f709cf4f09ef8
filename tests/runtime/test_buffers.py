"""Result buffers: used again when free, never while anything holds them, nor after their memory was moved."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dcir.runtime.backward_blocks import BackwardBlocks
from dcir.runtime.buffers import BufferPool, SizedBuffers
from dcir.runtime.program_info import BufferInfo


def pool() -> BufferPool:
    return BufferPool((1 << 18,), (1,), torch.float32)


def test_free_buffer_is_used_again() -> None:
    p = pool()
    a = p.take()
    address = a.data_ptr()
    del a
    assert p.take().data_ptr() == address


def test_held_buffers_are_left_alone() -> None:
    p = pool()
    a = p.take()
    view, array = p.take()[3:9], p.take().numpy()
    taken = {a.data_ptr(), view.data_ptr() - 12, array.ctypes.data}
    assert len(taken) == 3
    assert p.take().data_ptr() not in taken


def test_threads_get_different_buffers() -> None:
    p, held = pool(), []

    def work() -> None:
        for _ in range(20):
            t = p.take()
            t.fill_(threading.get_ident() % 1000)
            held.append(t)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({t.data_ptr() for t in held}) == len(held)


def test_sizes_in_turn_share_memory_that_nobody_holds() -> None:
    buffers = SizedBuffers(hidden=[1])
    for number, spare in ((0, 1.0), (1, 1.25)):
        for rows in (512, 2048, 600, 2048, 512):
            t = taken(buffers, number, rows)
            assert t.shape == (rows, 1024) and t.is_contiguous()
            if number == 0:  # what a user saves is no larger than it looks
                assert t.untyped_storage().nbytes() == t.nbytes
            del t
        assert buffers.nbytes(number) <= 2 * spare * 2048 * 4096
    held = [taken(buffers, number, rows).fill_(rows) for rows in (512, 2048, 600) for number in (0, 1)]
    assert len({t.data_ptr() for t in held}) == 6
    assert [t.unique().tolist() for t in held] == [[rows] for rows in (512, 512, 2048, 2048, 600, 600)]


def test_larger_memory_serves_what_the_user_never_sees() -> None:
    buffers = SizedBuffers(hidden=[0])
    address = taken(buffers, 0, 2048).data_ptr()
    assert [taken(buffers, 0, rows).data_ptr() for rows in (512, 2047, 2048, 2500)] == [address] * 4
    assert buffers.nbytes(0) == int(1.25 * 2048 * 4096)


def taken(buffers: SizedBuffers, number: int, rows: int) -> torch.Tensor:
    return buffers.take(number, BufferInfo((rows, 1024), (1024, 1), "f32"))()


Takes = Callable[[], torch.Tensor]


def every_pool() -> list[Takes]:
    """All kinds of pools, each of one result of 2 MB."""
    blocks = BackwardBlocks([2 << 20], {0: (0, 0)}, {0: (0, 0)})
    sized, hidden = SizedBuffers(), SizedBuffers(hidden=[0])
    return [
        BufferPool((1 << 19,), (1,), torch.float32).take,
        lambda: taken(sized, 0, 512),
        lambda: taken(hidden, 0, 512),
        lambda: blocks.take()[0],
    ]


@pytest.mark.parametrize("take", every_pool(), ids=["one size", "sizes", "hidden", "backward"])
def test_memory_that_other_processes_may_have_is_given_up(take: Takes) -> None:
    y = take()
    y.share_memory_()
    shared = y.data_ptr()
    del y
    for _ in range(4):
        y = take()
        assert not y.is_shared() and y.data_ptr() != shared
        del y


@pytest.mark.parametrize("take", every_pool(), ids=["one size", "sizes", "hidden", "backward"])
def test_a_storage_that_somebody_has_is_left_alone(take: Takes) -> None:
    holds: tuple[Callable[[Any], Any], ...] = (lambda s: s, lambda s: s[8:])
    for part in holds:
        y = take()
        storage = part(y.fill_(3).untyped_storage())
        content = bytes(storage[:64])
        del y
        for _ in range(4):
            take().fill_(5)
        assert bytes(storage[:64]) == content


@pytest.mark.parametrize("take", every_pool(), ids=["one size", "sizes", "hidden", "backward"])
@pytest.mark.parametrize("size", [0, 4096, 1 << 24])
def test_memory_of_another_size_is_given_up(take: Takes, size: int) -> None:
    y = take()
    usual = y.untyped_storage().nbytes()
    y.untyped_storage().resize_(size)
    del y
    for _ in range(4):
        y = take()
        assert y.untyped_storage().nbytes() == usual
        y.fill_(1)
        del y


@pytest.mark.parametrize("take", every_pool(), ids=["one size", "sizes", "hidden", "backward"])
def test_memory_serves_calls_in_either_mode(take: Takes) -> None:
    addresses = set()
    for inference in (True, False, True, False):
        with torch.inference_mode(inference):
            y = take()
        assert y.is_inference() == inference
        addresses.add(y.data_ptr())
        del y
    assert len(addresses) == 1
