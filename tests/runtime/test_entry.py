"""The native entry of repeated calls: what both of its sides know, what it refuses, and that other threads run meanwhile."""

import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import dcir
from dcir.codegen.cpp import entry as native
from dcir.driver.calls.fast_path import QuickCalls
from dcir.runtime import entry

pytestmark = pytest.mark.skipif(not entry.available(), reason="nothing to watch changes with")


@pytest.fixture
def learnt(monkeypatch):
    """Learns a module's calls with an input and returns what was learnt."""
    torch._dynamo.reset()
    found = []
    learn = QuickCalls._learn
    monkeypatch.setattr(QuickCalls, "_learn", lambda self, *a: (learn(self, *a), found.append(self))[0])

    def make(module, x):
        fast = dcir.optimize(module.eval())
        for _ in range(4):
            fast(x)
        return found[-1]._learnt[0]

    return make


def test_both_sides_agree():
    assert (native.OTHER_MODES, native.CHANGED) == (entry.OTHER_MODES, entry.CHANGED)


@torch.no_grad()
def test_what_it_refuses(learnt):
    m, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(3, 8)
    known = learnt(m, x)
    run = known.program.again
    torch.testing.assert_close(run(known.fixed, [x])[0], m(x))
    with torch.inference_mode():
        assert run(known.fixed, [x]) == entry.OTHER_MODES
    refused = []
    with torch.inference_mode():
        thread = threading.Thread(target=lambda: refused.append(run(known.fixed, [x])))
        thread.start()
        thread.join()
    torch.testing.assert_close(refused[0][0], m(x))  # another thread has modes of its own
    # Writes that no version counts show in the memory itself.
    version = m[0].weight._version
    m[0].weight.mul_(2)
    torch._C._autograd._unsafe_set_version_counter((m[0].weight,), (version,))
    assert run(known.fixed, [x]) == entry.CHANGED


@torch.no_grad()
def test_other_threads_run_meanwhile(learnt):
    m, x = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)), torch.randn(256, 512)
    known = learnt(m, x)
    count, stop = [0], threading.Event()

    def work():
        while not stop.is_set():
            count[0] += 1
            time.sleep(0)

    seen = []

    def enter(*given):
        before = count[0]
        status = known.fixed.enter(*given)
        seen.append(count[0] - before)
        return status

    fixed = replace(known.fixed, enter=enter)
    interval = sys.getswitchinterval()
    thread = threading.Thread(target=work)
    try:
        sys.setswitchinterval(1000)  # nobody has to let another thread run
        thread.start()
        for _ in range(200):
            known.program.again(fixed, [x])
            if any(seen):
                break
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert any(seen)
