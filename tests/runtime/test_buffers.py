"""Result buffers: used again when free, never while anything holds them."""

from __future__ import annotations

import threading

import torch

from dcir.runtime.buffers import BufferPool


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
