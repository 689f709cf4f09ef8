"""Sizes that come often get a program of their own, which gives what the one for all sizes gives."""

from typing import Any

import pytest
import torch
from torch import nn

import dcir
from dcir.driver.calls.often import SizesThatComeOften
from dcir.runtime.program import Program

pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore::dcir.errors.RecompileWarning")]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(40, 32), nn.LayerNorm(32)
        self.attend, self.dense = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 48)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        x = self.norm(x + self.attend(x, x, x, need_weights=False)[0])
        return torch.nn.functional.gelu(self.dense(x)).mean(1)


@torch.no_grad()
def test_a_size_that_comes_often_has_its_own_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SizesThatComeOften.__init__, "__kwdefaults__", {"often": 6, "most": 1})
    net = Encoder().eval()
    fast = dcir.optimize(net, background=True, dynamic=True)
    sizes = ((3, 9), (4, 12), (3, 9), (5, 7))
    for b, s in sizes:
        fast(torch.randint(0, 40, (b, s)))
        assert fast.dcir.wait(600)
    for _ in range(12):
        x = torch.randint(0, 40, (3, 9))
        torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
    assert fast.dcir.wait(600)
    moving, own = fast.dcir.session.graphs
    assert moving.bounds
    assert not own.bounds
    assert [value for _, value in own.sizes] == [3, 9]
    ran: list[Program] = []
    for name in ("__call__", "again"):
        plain = getattr(Program, name)

        def noted(self: Program, *args: Any, plain: Any = plain) -> Any:
            ran.append(self)
            return plain(self, *args)

        monkeypatch.setattr(Program, name, noted)
    for b, s in ((3, 9), (3, 9), (4, 12), (3, 9)):
        x = torch.randint(0, 40, (b, s))
        ran.clear()
        torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
        assert {bool(p.info.sizes) for p in ran} == {(b, s) != (3, 9)}
    for _ in range(12):
        fast(torch.randint(0, 40, (4, 12)))
    assert fast.dcir.wait(600)
    assert len(fast.dcir.session.graphs) == 2, "one size may get a program here"


def test_calls_are_counted_by_sizes_up_to_a_limit() -> None:
    jobs: list[Any] = []
    put: dict[tuple[int, ...], Any] = {}
    sizes = SizesThatComeOften(
        lambda key: {"s0": key[0]}, put.__setitem__, lambda values: values["s0"], jobs.append, often=3, most=2  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    for n in (5, 5, 7, 5, 5, 7, 7, 9, 9, 9, 9):
        sizes.called((n,))
    assert len(jobs) == 2
    for job in jobs:
        job()
    assert put == {(5,): 5, (7,): 7}
    assert sizes.made == [(5,), (7,)]


def test_what_cannot_be_compiled_alone_goes_on_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: object) -> Any:
        raise ValueError("no")

    sizes = SizesThatComeOften(
        lambda key: {}, lambda key, program: pytest.fail("nothing"), fails, lambda job: job(), often=1
    )  # type: ignore[arg-type,return-value]
    sizes.called((5,))
    assert not sizes.made
    assert "no program of their own" in caplog.text
