"""Memory of calls of libraries: what they hold, what they take, and that a limit counts it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import dcir
from dcir.cost.cuda import SETTING, TWIN
from dcir.errors import MemoryLimitTooLow
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.library_call import LibraryCall
from dcir.ops.library.library_memory import copied_bytes, own_bytes
from dcir.ops.library.operand_types import alike

pytestmark = pytest.mark.in_turn(3)

IMAGE = 8 * 2 * 4 * 8 * 8  # bytes of what one convolution makes; of float64, which no library turns around


@pytest.fixture(autouse=True)
def twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels run on the CPU."""
    monkeypatch.setenv(SETTING, TWIN)
    torch._dynamo.reset()
    yield


def chain(length: int) -> nn.Module:
    torch.manual_seed(0)
    return (
        nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(length)), nn.Flatten(), nn.ReLU())
        .double()
        .eval()
    )


def needed(length: int) -> int:
    fast = dcir.optimize(chain(length), target="cuda")
    with torch.no_grad():
        fast(torch.randn(2, 4, 8, 8, dtype=torch.float64))
    (graph,) = fast.dcir.explain().graphs
    assert ("of libraries" in str(fast.dcir.explain())) == (graph.library_bytes > 0)
    return int(graph.library_bytes)


def test_what_libraries_hold_is_let_go_of_behind_its_reader() -> None:
    """A chain's results live two at a time, whatever its length; the first is gone when the third is made."""
    assert needed(1) == IMAGE
    assert needed(3) == needed(6) == 2 * IMAGE


def test_a_limit_counts_it() -> None:
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)
    plain = dcir.optimize(chain(4), target="cuda")
    with torch.no_grad():
        plain(x)
    (graph,) = plain.dcir.explain().graphs
    whole = graph.arena_bytes + graph.library_bytes
    torch._dynamo.reset()
    with torch.no_grad():
        dcir.optimize(chain(4), target="cuda", memory_limit=whole)(x)
        torch._dynamo.reset()
        with pytest.raises(MemoryLimitTooLow):
            dcir.optimize(chain(4), target="cuda", memory_limit=whole - 1)(x)


def test_a_batch_of_one_stride_is_not_copied() -> None:
    one = ContractionSpec(alike("f32"), (2, 3), 5, 4, 6, (90, 30, 6, 1), (72, 24, 4, 1), (60, 20, 4, 1))
    apart = ContractionSpec(alike("f32"), (2, 3), 5, 4, 6, (90, 6, 18, 1), (72, 24, 4, 1), (60, 20, 4, 1))
    assert copied_bytes(one) == 0
    assert copied_bytes(apart) == 4 * 6 * 30 == own_bytes(LibraryCall(apart))
