"""Threads of a pool: calls at the same time, a bound, errors, and an end."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import CancelledError

import pytest
import torch

from dcir.driver.calls.stream_pool import StreamPool
from dcir.errors import InvalidInput

NOWHERE: frozenset[int] = frozenset()


@pytest.fixture
def pool():
    made = StreamPool([NOWHERE] * 3, 1, "a test")
    yield made
    made.close()
    made.join()


def test_as_many_calls_as_streams_run_at_once(pool):
    together = threading.Barrier(3)  # none of three calls ends before all are there
    futures = [pool.submit(together.wait) for _ in range(3)]
    assert sorted(f.result(60) for f in futures) == [0, 1, 2]


def test_no_more_calls_are_taken_than_the_bound(pool):
    lock, done, seen = threading.Lock(), [0], []

    def call():
        with lock:
            done[0] += 1

    for i in range(200):
        pool.submit(call)
        with lock:
            seen.append(i + 1 - done[0])
    assert max(seen) <= pool.bound == 6


def test_an_error_is_its_call_s_alone(pool):
    futures = [pool.submit(lambda i=i: 6 // i) for i in (0, 2)]
    with pytest.raises(ZeroDivisionError):
        futures[0].result(60)
    assert futures[1].result(60) == 3


def test_threads_have_their_team_and_no_gradients():
    pool = StreamPool([NOWHERE], 3, "a test")
    assert pool.submit(lambda: (torch.get_num_threads(), torch.is_grad_enabled())).result(60) == (3, False)


def test_a_cancelled_call_does_not_run(pool):
    go, ran = threading.Event(), []
    busy = [pool.submit(go.wait) for _ in range(3)]
    waiting = pool.submit(lambda: ran.append(1))
    assert waiting.cancel()
    go.set()
    assert [f.result(60) for f in busy] == [True] * 3
    with pytest.raises(CancelledError):
        waiting.result(60)
    assert pool.submit(lambda: ran).result(60) == []


def test_a_closed_pool_runs_what_it_has_and_takes_no_more(pool):
    go = threading.Event()
    futures = [pool.submit(go.wait) for _ in range(6)]
    pool.close()
    with pytest.raises(InvalidInput, match="closed"):
        # A slot is free as soon as one is done.
        go.set()
        pool.submit(int)
    assert all(f.result(60) for f in futures)


def test_a_thread_does_not_wait_for_itself():
    pool = StreamPool([NOWHERE], 1, "a test")
    go, seen = threading.Event(), []

    def again(_):
        try:
            pool.submit(int)
        except InvalidInput as e:
            seen.append(e)

    first = pool.submit(go.wait)
    first.add_done_callback(again)
    second = pool.submit(int)
    go.set()
    assert second.result(60) == 0 and "add_done_callback" in str(seen[0])


def test_threads_end_when_nobody_has_the_pool():
    pool = StreamPool([NOWHERE] * 2, 1, "forgotten")
    future = pool.submit(lambda: 5)
    mine = [t for t in threading.enumerate() if t.name.startswith("dcir forgotten")]
    assert len(mine) == 2
    del pool
    gc.collect()
    for thread in mine:
        thread.join(60)
    assert future.result(60) == 5 and not any(t.is_alive() for t in mine)
