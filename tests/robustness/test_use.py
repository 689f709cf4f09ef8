"""An optimised module under use: again and again, from threads, copied, after errors."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import FallbackFailed, IndexOutOfRange
from tests.robustness.cycles import alive

ROOT = Path(__file__).parents[2]


def test_cycles_leave_no_file_no_library_and_no_object(tmp_path: Path) -> None:
    """Compile and unload; `python -m tests.robustness.cycles 1000` is the long form."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.robustness.cycles", "12"],
        cwd=ROOT, env=os.environ | {"DCIR_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True, text=True, check=False, timeout=590,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "12 cycles" in done.stdout


class Ends(nn.Module):
    """A graph that ends in the middle, and one that begins there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        torch._dynamo.graph_break()
        return self.last(y) + 1


def double(x: torch.Tensor) -> torch.Tensor:
    """A function, which outlives what is compiled for it."""
    return torch.relu(x) * 2


def _trained(fast: Any) -> None:
    fast(torch.randn(3, 6, requires_grad=True)).sum().backward()


def _called(fast: Any) -> None:
    with torch.no_grad():
        for _ in range(6):  # the later ones by the short way
            fast(torch.ones(3, 6))


def _of_many_sizes(fast: Any) -> None:
    for rows in (2, 3, 5):
        fast(torch.randn(rows, 6, requires_grad=True)).sum().backward()


def _failed(fast: Any) -> None:
    with pytest.raises(IndexOutOfRange):
        fast(torch.full((3, 6), 99))


@pytest.mark.parametrize("use", [_trained, _called, _of_many_sizes])
@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh()), Ends, lambda: double])
def test_what_is_gone_leaves_nothing_behind(make: Any, use: Any) -> None:
    """Programs, networks, scratch memory and SDFGs go with the module, without a reset of Dynamo."""
    _leaves_nothing(make, use)


def test_an_error_leaves_nothing_behind() -> None:
    """No frame of a call that failed holds the program."""
    _leaves_nothing(lambda: nn.Embedding(7, 6), _failed)


def _leaves_nothing(make: Any, use: Any) -> None:
    torch._dynamo.reset()
    alive()
    gc.freeze()  # what is there now is looked at neither by the collector nor by alive()
    fast = dcir.optimize(make())
    use(fast)
    made = [type(o).__name__ for o in alive()]
    assert "Program" in made
    assert "Session" in made
    del fast
    # Not dcir's: AOTAutograd holds on to the last graph with parameters until it sees another.
    torch.compile(torch.neg, backend="aot_eager")(torch.ones(2))
    assert [type(o).__name__ for o in alive()] == []


def test_a_backward_outlives_its_module() -> None:
    """What is dropped with a module is not what autograd still needs."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
    x = torch.randn(3, 6, requires_grad=True)
    (want,) = torch.autograd.grad(net(x).square().sum(), x)
    fast = dcir.optimize(net)
    out = fast(x)
    del fast, net
    gc.collect()
    (got,) = torch.autograd.grad(out.square().sum(), x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_function_and_its_copy_are_compiled_apart() -> None:
    """Dropping one optimised form of a function leaves the other's, and the function's defaults and closure are its own."""

    def scaled(x: torch.Tensor, by: float = 3.0, *, plus: float = 1.0) -> torch.Tensor:
        return x * by + plus

    first, second = dcir.optimize(scaled), dcir.optimize(scaled)
    x = torch.ones(3)
    assert first(x).tolist() == second(x).tolist() == [4.0] * 3
    del first
    gc.collect()
    assert second(x).tolist() == [4.0] * 3
    assert second(x, 2.0, plus=0.0).tolist() == [2.0] * 3
    assert len(second.dcir.session.graphs) == 2
    assert second.__wrapped__ is scaled


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
