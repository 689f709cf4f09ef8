"""Calls that are replays of a recorded one, through the twin's capture: when one is recorded, what moves, what is refused."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dcir
from dcir.cost.cuda import SETTING, TWIN
from dcir.driver.backend import dcir as backend
from dcir.errors import IndexOutOfRange, OptionError, Unsupported
from dcir.runtime import cuda_program
from dcir.runtime.cuda_capture import TwinCapture
from tests.harness import check_close

pytestmark = pytest.mark.in_turn(3)


@pytest.fixture(autouse=True)
def twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels run on the CPU."""
    monkeypatch.setenv(SETTING, TWIN)
    torch._dynamo.reset()
    yield


def network() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(4 * 16, 5))


def programs(fast: Any) -> list[Any]:
    return list(fast.dcir.session.programs)


def test_calls_from_the_second_on_are_replays() -> None:
    """With other arguments, at other addresses; and what a call has given stays."""
    model = network().eval()
    exact, fast = copy.deepcopy(model).double(), dcir.optimize(model, target="cuda", cuda_graphs=True)
    inputs = [torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    with torch.no_grad():
        got = [fast(x) for x in inputs]
        for x, y in zip(inputs, got, strict=True):
            check_close(y, model(x), exact(x.double()))
    (program,) = programs(fast)
    assert program.replays.captures == 1 and program.replays.why_not() == ""
    assert not fast.dcir.explain().graphs[0].unrecorded


def test_nothing_runs_while_a_call_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded has launches and calls of libraries, and is replayed once a call."""
    made, replayed = [], []
    replay = TwinCapture.replay
    monkeypatch.setattr(
        TwinCapture, "replay", lambda self: (made.append(self), replayed.append(self.steps), replay(self))[2]
    )
    model = network().eval()
    fast = dcir.optimize(model, target="cuda", cuda_graphs=True)
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
    (graph,) = fast.dcir.explain().graphs
    assert len(replayed) == 2 and len(set(map(id, made))) == 1 and replayed[0] >= graph.calls


def test_training_is_replayed_too() -> None:
    """Forward and backward, with running statistics that are written where they lie."""
    model = network()
    plain, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    fast = dcir.optimize(model, target="cuda", cuda_graphs=True)
    for i in range(4):
        x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(i))
        for m, given in ((fast, x), (plain, x), (exact, x.double())):
            m.zero_grad(set_to_none=True)
            F.cross_entropy(m(given), torch.tensor([1, 3])).backward()
        for p, q, e in zip(model.parameters(), plain.parameters(), exact.parameters(), strict=True):
            check_close(p.grad, q.grad, e.grad, factor=4, units=16)
    torch.testing.assert_close(model[1].running_mean, plain[1].running_mean)
    assert all(p.replays.captures >= 1 and not p.replays.why_not() for p in programs(fast))


class Counts(nn.Module):
    """Adds to a tensor of the caller's."""

    def forward(self, x: Tensor, total: Tensor) -> Tensor:
        total.add_(x)
        return x * 2


def test_what_is_written_lies_where_it_did() -> None:
    """A tensor that a call writes to is never a copy; where it is another one, the call is recorded again, and given up in the end."""
    fast = dcir.optimize(Counts(), target="cuda", cuda_graphs=True)
    x, total = torch.ones(4), torch.zeros(4)
    with torch.no_grad():
        for _ in range(4):
            fast(x, total)
        assert total.tolist() == [4.0] * 4
        (program,) = programs(fast)
        assert program.replays.captures == 1
        others = [torch.zeros(4) for _ in range(6)]
        for other in others:
            assert fast(x, other).tolist() == [2.0] * 4
    assert [t.tolist() for t in others] == [[1.0] * 4] * 6
    assert "other addresses every time" in program.replays.why_not()


def test_in_a_capture_of_the_users_a_call_is_no_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything asked that a capture forbids: whether earlier calls met a bad index."""
    table = torch.randn(5, 3)
    fast = dcir.optimize(lambda i: table[i] * 2, target="cuda", cuda_graphs=True)
    x = torch.tensor([0, 4, 2])
    for _ in range(3):
        fast(x)
    (program,) = programs(fast)
    monkeypatch.setattr(cuda_program, "capturing", lambda device: True)
    monkeypatch.setattr(program.replays, "called", None)
    monkeypatch.setattr(program.replays, "words", None)
    torch.testing.assert_close(fast(x), table[x] * 2)


def test_random_numbers_are_drawn_once_a_call() -> None:
    """As many as eager draws, in the same order."""
    fast = dcir.optimize(lambda x: x * 2 + torch.rand_like(x), target="cuda", cuda_graphs=True)
    x = torch.ones(3)
    torch.manual_seed(5)
    got = [fast(x) for _ in range(4)]
    torch.manual_seed(5)
    torch.testing.assert_close(got, [x * 2 + torch.rand_like(x) for _ in range(4)])


def test_a_bad_index_is_told_in_a_replay() -> None:
    table = torch.randn(5, 3)
    fast = dcir.optimize(lambda i: table[i] * 2, target="cuda", cuda_graphs=True)
    good, bad = torch.tensor([0, 4, 2]), torch.tensor([0, 5, 2])
    for _ in range(3):
        torch.testing.assert_close(fast(good), table[good] * 2)
    with pytest.raises(IndexOutOfRange):
        fast(bad)
    torch.testing.assert_close(fast(good), table[good] * 2)


def test_what_waits_for_the_device_is_not_recorded() -> None:
    """It runs as without, the report says why, and ``strict`` refuses it."""

    def fn(x: Tensor) -> Tensor:
        return torch.linalg.inv(x) + 1

    x = torch.eye(3) * 2
    fast = dcir.optimize(fn, target="cuda", cuda_graphs=True)
    for _ in range(3):
        torch.testing.assert_close(fast(x), fn(x))
    assert "may wait for the device" in fast.dcir.explain().graphs[0].unrecorded
    assert "no graph of CUDA's" in str(fast.dcir.explain())
    torch._dynamo.reset()
    with pytest.raises((Unsupported, torch._dynamo.exc.BackendCompilerFailed)):
        dcir.optimize(lambda x: torch.linalg.inv(x) + 2, target="cuda", cuda_graphs=True, strict=True)(x)


def test_other_targets_have_none() -> None:
    with pytest.raises(OptionError, match="no graphs of CUDA to replay"):
        dcir.optimize(torch.exp, cuda_graphs=True)


@pytest.mark.parametrize(("options", "asked"), [({"target": "cuda"}, True), ({}, False)])
def test_the_mode_of_torch_compile_asks_for_it(options: dict[str, Any], asked: bool) -> None:
    """Where the target has it."""
    fast = torch.compile(lambda x: x.exp() + 1, backend="dcir", mode="reduce-overhead")
    if options:  # torch takes a mode or options
        fast = torch.compile(
            lambda x: x.exp() + 1, backend=functools.partial(backend, options=options, mode="reduce-overhead")
        )
    x = torch.randn(7)
    for _ in range(3):
        torch.testing.assert_close(fast(x), x.exp() + 1)
    session = dcir.sessions()[-1].session
    assert session.options.cuda_graphs is asked
    assert [p.replays.captures for p in session.programs] == [1] if asked else session.options.target == "cpp"
