"""With ``background=True`` no call waits for a compilation: torch runs graphs until their programs are there, with the same results."""

import sys
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

import dcir
from dcir.driver.calls.background import Background, InTorchAtFirst
from dcir.errors import Unsupported

pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore::dcir.errors.RecompileWarning")]


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense, self.norm = nn.Embedding(40, 16), nn.Linear(16, 24), nn.LayerNorm(24)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.tanh(self.dense(self.table(ids)))).sum(1)


def ids(b: int, s: int) -> torch.Tensor:
    return torch.randint(0, 40, (b, s))


class Gate:
    """Holds up what is done behind the calls until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        start = Background.start

        def held(background: Background, work: Any) -> None:
            start(background, lambda: (self.opened.wait(60), work()))

        monkeypatch.setattr(Background, "start", held)


@pytest.mark.parametrize("dynamic", [None, True])
@torch.no_grad()
def test_calls_run_in_torch_until_the_program_is_there(dynamic: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    net = Rows().eval()
    fast = dcir.optimize(net, background=True, dynamic=dynamic)
    for _ in range(3):
        x = ids(4, 9)
        torch.testing.assert_close(fast(x), net(x))
    assert not fast.dcir.session.graphs, "nothing is compiled yet, and three calls are done"
    assert "which PyTorch runs until then" in str(fast.dcir.explain())
    gate.opened.set()
    assert fast.dcir.wait(600)
    assert "which PyTorch runs until then" not in str(fast.dcir.explain())
    assert [g.kind for g in fast.dcir.session.graphs] == ["inference"]
    programs = {id(p) for p in fast.dcir.session.programs}
    for _ in range(3):
        x = ids(4, 9)
        torch.testing.assert_close(fast(x), net(x))
    assert dynamic or programs == {id(p) for p in fast.dcir.session.programs}
    assert len(fast.dcir.session.graphs) == 1


@torch.no_grad()
def test_sizes_that_move_run_in_torch_until_one_program_serves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    net = Rows().eval()
    fast = dcir.optimize(net, background=True, dynamic=True)
    for b, s in ((4, 9), (5, 11), (2, 7), (6, 30)):
        x = ids(b, s)
        torch.testing.assert_close(fast(x), net(x))
    assert not fast.dcir.session.graphs
    gate.opened.set()
    assert fast.dcir.wait(600)
    for b, s in ((3, 8), (5, 11), (2, 50)):
        x = ids(b, s)
        torch.testing.assert_close(fast(x), net(x))
    assert fast.dcir.wait(600)
    (graph,) = fast.dcir.session.graphs
    assert len(graph.bounds) == 2


@torch.no_grad()
def test_a_call_that_is_repeated_becomes_short_once_the_program_is_there() -> None:
    net = Rows().eval()
    fast = dcir.optimize(net, background=True)
    x = ids(4, 9)
    fast(x)
    assert fast.dcir.wait(600)
    wanted = net(x)
    for _ in range(20):
        torch.testing.assert_close(fast(x), wanted)


def test_training_is_compiled_before_it_runs() -> None:
    net = Rows()
    fast = dcir.optimize(net, background=True)
    x = ids(4, 9)
    fast(x).sum().backward()
    got = [p.grad for p in net.parameters()]
    assert sorted(g.kind for g in fast.dcir.session.graphs) == ["backward", "forward"]
    net.zero_grad()
    net(x).sum().backward()
    for p, g in zip(net.parameters(), got, strict=True):
        torch.testing.assert_close(g, p.grad, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_graphs_that_write_are_compiled_before_they_run() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x.sum(0)
            return x * self.seen

    net, twin = Counts(), Counts()
    fast = dcir.optimize(net, background=True)
    for _ in range(3):
        x = torch.randn(5, 8)
        torch.testing.assert_close(fast(x), twin(x))
    torch.testing.assert_close(net.seen, twin.seen)


def test_an_error_behind_the_calls_reaches_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from dcir.driver import compile as driver

    def refuse(*_: object) -> None:
        raise Unsupported("nothing is compiled today")

    monkeypatch.setattr(driver.Compilation, "compiled", refuse)
    gate = Gate(monkeypatch)
    net = Rows().eval()
    fast = dcir.optimize(net, background=True)
    x = ids(4, 9)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x))
        gate.opened.set()
        assert fast.dcir.wait(600)
        with pytest.raises(Unsupported, match="nothing is compiled today"):
            fast(x)


def test_work_is_done_in_order_by_a_thread_that_ends() -> None:
    background, done, before = Background(), [], sys.getswitchinterval()
    turns: list[float] = []
    background.start(lambda: (time.sleep(0.05), done.append(1)))
    background.start(lambda: (turns.append(sys.getswitchinterval()), done.append(2)))
    assert background.wait(30)
    assert done == [1, 2]
    assert turns[0] <= 1e-4
    assert sys.getswitchinterval() == before
    assert background.wait(0)
    for thread in threading.enumerate():
        if thread.name == "dcir compiles":
            thread.join(30)
            assert not thread.is_alive()


def test_stop_leaves_what_has_not_begun() -> None:
    background, done, begun, go = Background(), [], threading.Event(), threading.Event()
    background.start(lambda: (begun.set(), go.wait(30), done.append(1)))
    background.start(lambda: done.append(2))
    begun.wait(30)
    stopper = threading.Thread(target=background.stop)
    stopper.start()
    while background._waiting:
        time.sleep(0.001)
    go.set()
    stopper.join(30)
    assert done == [1]


def test_a_program_that_is_there_is_run_without_torch() -> None:
    jobs: list[Any] = []
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))  # type: ignore[arg-type]
    call = InTorchAtFirst(graph, lambda: lambda args: [args[0] * 100], jobs.append)
    assert call([torch.tensor(1.0)])[0].item() == 2
    assert call.calls == 1
    jobs[0]()
    assert call([torch.tensor(1.0)])[0].item() == 100
    assert call.calls == 1
