"""An optimised module under use: again and again, from threads, copied, after errors."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import FallbackFailed, IndexOutOfRange

ROOT = Path(__file__).parents[2]


def test_cycles_leave_no_file_and_no_library(tmp_path: Path) -> None:
    """Compile and unload; `python -m tests.robustness.cycles 1000` is the long form."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.robustness.cycles", "12"],
        cwd=ROOT, env=os.environ | {"DCIR_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True, text=True, check=False, timeout=590,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "12 cycles" in done.stdout


class Mixed(nn.Module):
    """A layer, a look-up, and a solver that runs through torch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(7, 6), nn.Linear(6, 6)

    def forward(self, ids: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(a, self.linear(self.table(ids)).T)


@pytest.fixture
def mixed() -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    net = Mixed()
    return net, dcir.optimize(net), torch.randint(0, 7, (6,)), torch.randn(6, 6) + 6 * torch.eye(6)


def test_errors_inside_a_call_leave_the_module_usable(mixed) -> None:
    """In our code, and in an operator of torch in the middle of it; the results afterwards are those of before."""
    net, fast, ids, a = mixed
    want = net(ids, a)
    for _ in range(3):
        torch.testing.assert_close(fast(ids, a), want, rtol=1e-4, atol=1e-5)
        with pytest.raises(IndexOutOfRange):
            fast(ids.clone().fill_(70), a)
        with pytest.raises(FallbackFailed, match="singular"):
            fast(ids, torch.zeros_like(a))
    out = fast(ids, a)
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
    (got,) = torch.autograd.grad(out.sum(), net.linear.weight)
    (right,) = torch.autograd.grad(want.sum(), net.linear.weight)
    torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)


def test_eight_threads_some_of_which_fail(mixed) -> None:
    """The first call, which compiles, is everybody's; each thread gets its own results, errors and gradients."""
    net, fast, _, a = mixed
    start, wrong = threading.Barrier(8), []

    def work(number: int) -> None:
        start.wait()
        try:
            for step in range(12):
                generator = torch.Generator().manual_seed(100 * number + step)
                ids = torch.randint(0, 7, (6,), generator=generator)
                if number % 4 == 3 and step % 3 == 1:
                    try:
                        fast(ids + 10, a)
                    except IndexOutOfRange:
                        continue
                    wrong.append(f"thread {number}: no error")
                out, want = fast(ids, a), net(ids, a)
                torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
                grads = [torch.autograd.grad(o.sum(), net.table.weight)[0] for o in (out, want)]
                torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
        except Exception as e:
            wrong.append(f"thread {number}: {e!r}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_copies_and_pickles_after_use_and_after_an_error(mixed) -> None:
    """Copies share nothing with what they are of: a step of one leaves the other's results."""
    _, fast, ids, a = mixed
    before = fast(ids, a).detach()
    with pytest.raises(IndexOutOfRange):
        fast(ids + 10, a)
    for twin in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        torch.testing.assert_close(twin(ids, a), before)
        with torch.no_grad():
            for p in twin.parameters():
                p.add_(1.0)
        assert not torch.allclose(twin(ids, a), before)
        torch.testing.assert_close(fast(ids, a), before)
