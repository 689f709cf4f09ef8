"""Results of libraries in tensors of their own: which are, which are not and why, how long they live, and the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dcir
from dcir.cost.cuda import SETTING, TWIN
from dcir.ir.verify import verify
from dcir.ops.library.library_call import LibraryCall
from dcir.transforms.tier1_operator.call_libraries import CallLibraries
from dcir.transforms.tier4_movement.leave_results_to_libraries import LeaveResultsToLibraries
from tests.harness import check_close, double, run_interpreted
from tests.transforms.imported import imported


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


ARGS = rand(2, 3, 6, 6), rand(4, 3, 3, 3), rand(5, 4, 1, 1)


def chain(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.conv2d(x, w).relu(), v).sigmoid()


def test_a_convolution_keeps_what_it_makes() -> None:
    done = imported(chain, *ARGS)
    net = done.network
    CallLibraries().apply(net)
    outcome = LeaveResultsToLibraries().apply(net)
    made = [net.outs(op)[0].data for op in net.ops() if isinstance(op.spec, LibraryCall)]
    assert outcome.changed == 2 and [net.containers[m].role for m in made] == ["result"] * 2
    assert outcome.saved_bytes == 2 * 4 * (2 * 4 * 16 + 2 * 5 * 16)
    verify(net)
    net.validate()
    check_close(run_interpreted(done, ARGS)[0], chain(*ARGS), chain(*map(double, ARGS)))


def test_without_libraries_nothing_changes() -> None:
    assert not LeaveResultsToLibraries().apply(imported(chain, *ARGS).network).changed


def test_a_product_writes_where_it_is_told_to() -> None:
    done = imported(lambda a, b: (a @ b).relu(), rand(3, 4), rand(4, 5))
    CallLibraries().apply(done.network)
    assert not LeaveResultsToLibraries().apply(done.network).changed


def test_a_result_of_the_network_is_one_already() -> None:
    done = imported(lambda x, w: F.conv2d(x, w), *ARGS[:2])
    CallLibraries().apply(done.network)
    outcome = LeaveResultsToLibraries().apply(done.network)
    assert not outcome.changed and "it is a result already" in outcome.refused


def test_a_part_of_a_container_is_copied() -> None:
    """A padded row: what a library makes has no gaps."""
    done = imported(chain, *ARGS)
    net = done.network
    CallLibraries().apply(net)
    op = next(op for op in net.ops() if isinstance(op.spec, LibraryCall))
    data = net.outs(op)[0].data
    net.resize(data, (3, 4, 4, 4), (64, 16, 4, 1))
    outcome = LeaveResultsToLibraries().apply(net)
    assert outcome.changed == 1 and "it is a part of what others write, too" in outcome.refused


class Layers(nn.Module):
    """Convolutions with a branch, whose results are read at different times."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 8), (8, 8), (8, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.a(x).relu()
        return (self.c(self.b(first).tanh() * first).exp() + 1).mean((2, 3))


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("train", [False, True])
def test_numbers_and_what_is_let_go_of(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the kernels' twin, twice: tensors that nobody reads any more are gone before the call ends."""
    from dcir.runtime import cuda_program

    monkeypatch.setenv(SETTING, TWIN)
    torch._dynamo.reset()
    gone: list[set[int]] = []
    clear = cuda_program._Frame.clear

    def counted(frame: Any) -> None:
        gone.append({slot for slot, t in enumerate(frame.bases) if t is None})
        clear(frame)

    monkeypatch.setattr(cuda_program._Frame, "clear", counted)
    torch.manual_seed(0)
    model, x = Layers(), rand(2, 3, 8, 8)
    plain, exact = Layers(), Layers().double()
    plain.load_state_dict(model.state_dict())
    exact.load_state_dict(model.state_dict())
    fast = dcir.optimize(model, target="cuda")
    for _ in range(2):
        if not train:
            with torch.no_grad():
                check_close(fast(x), plain(x), exact(x.double()))
            continue
        for m, given in ((fast, x), (plain, x), (exact, x.double())):
            m.zero_grad()
            m(given).square().sum().backward()
        for p, q, e in zip(model.parameters(), plain.parameters(), exact.parameters(), strict=True):
            check_close(p.grad, q.grad, e.grad, factor=4, units=16)
    if not train:
        (program,) = fast.dcir.session.programs
        assert len(program._made) == 3 and all(slots & program._made for slots in gone)
