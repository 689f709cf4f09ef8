"""Remarks and switches where users meet them: the handle, the options, the key, the numbers of forward and backward."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dcir
from dcir.errors import OptionError
from dcir.options import Options


class Block(nn.Module):
    """Two convolutions with a norm, added, and a product of what is left of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
        self.norm, self.last = nn.BatchNorm2d(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm(self.first(x)))
        h = F.gelu(self.second(h) + h)
        return torch.softmax(self.last(h.mean((2, 3))), -1)


X = torch.randn(3, 8, 10, 10, generator=torch.Generator().manual_seed(0))


def results(fast: Any, double: bool = False) -> list[torch.Tensor]:
    """What a call gives, and the gradients of input and parameters."""
    x = (X.double() if double else X).clone().requires_grad_()
    out = fast(x)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    (out * weights).sum().backward()
    found = [out.detach(), x.grad, *(p.grad for p in fast.parameters())]
    fast.zero_grad()
    return found


def made(**options: Any) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return dcir.optimize(Block(), **options)


def trained(**options: Any) -> tuple[Any, list[torch.Tensor]]:
    fast = made(**options)
    return fast, results(fast)


@pytest.fixture(scope="module")
def eager() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return results(Block().double(), double=True)


def close(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        scale = float(b.abs().max())
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5 * max(scale, 1.0))


def test_places_of_forward_and_backward_switched_off_give_the_same_numbers(eager: list[torch.Tensor]) -> None:
    fast, got = trained(remarks=True)
    close(got, eager)
    passed = fast.dcir.remarks(kind="passed")
    by = sorted({row.remark.by for row in passed if row.remark.site})
    assert {"fuse-epilogues", "fuse-producers", "assign-layouts"} <= set(by)
    # Half of the places of every pass: the others are rewritten beside them.
    sites = [
        s
        for p in by
        for s in list(dict.fromkeys(row.remark.site for row in passed.where(by=p) if row.remark.site))[::2]
    ]
    other, got = trained(remarks=True, skip=sites)
    close(got, eager)
    off = [row.remark for row in other.dcir.remarks(kind="missed") if row.remark.reason == "switched off by the user"]
    assert len({r.by for r in off}) >= 4 and {r.site for r in off} <= set(sites)
    done = {row.remark.site for row in other.dcir.remarks(kind="passed")}
    assert not done & {s for s in sites if s.startswith(("fuse-epilogues@", "fuse-producers@"))}
    report = other.dcir.explain()
    assert set(report.not_come_up) == set(sites) - {r.site for r in off}
    assert "not done: switched off by the user" in str(report)


def kernels(fast: Any) -> list[Any]:
    with torch.no_grad():
        fast.eval()(X)
    return [(g.kernels, g.generated, [s[:2] for s in g.schedules]) for g in fast.dcir.explain().graphs]


def test_equal_switches_lead_to_the_same_library_and_none_to_todays() -> None:
    plain = made()
    first = kernels(plain)
    assert [g.generated for g in _graphs(made(remarks=True))] == [0]  # found in the cache: who watches changes nothing
    with_remarks = made(remarks=True)
    kernels(with_remarks)
    sites = [r.remark.site for r in with_remarks.dcir.remarks(by="fuse-epilogues", kind="passed")]
    off = made(skip=sites)
    other = kernels(off)
    assert other[0][2] != first[0][2]
    assert [g.generated for g in _graphs(made(skip=sites[::-1]))] == [0]


def _graphs(fast: Any) -> list[Any]:
    kernels(fast)
    return fast.dcir.explain().graphs  # type: ignore[no-any-return]


def test_a_site_that_never_came_up_is_told() -> None:
    fast = made(skip=["fuse-epilogues@program_999+contraction_1"])
    assert not fast.dcir.explain().not_come_up  # nothing is compiled yet
    with torch.no_grad():
        fast(X)
    report = fast.dcir.explain()
    assert "switched off, but has not come up: fuse-epilogues@program_999+contraction_1" in str(report)
    assert report.to_json()["not_come_up"] == ["fuse-epilogues@program_999+contraction_1"]


def test_what_cannot_be_switched_off_is_refused_at_once() -> None:
    with pytest.raises(OptionError, match="there is no pass 'fuse-epilog'") as told:
        made(skip=["fuse-epilog@a+b"])
    assert "fuse-epilogues" in told.value.hint
    for wrong in (["fuse-epilogues"], "fuse-epilogues@", [3], ["a@b c"]):
        with pytest.raises(OptionError, match="option skip"):
            made(skip=wrong)
    assert made(skip="fuse-epilogues@a+b").dcir.options.skip == ("fuse-epilogues@a+b",)


def test_remarks_that_were_not_recorded_are_an_error_with_a_way_out() -> None:
    fast = made()
    with torch.no_grad():
        fast(X)
    for ask in (fast.dcir.remarks, lambda: fast.dcir.explain(remarks=True)):
        with pytest.raises(OptionError) as told:
            ask()
        assert told.value.hint == "dcir.optimize(model, remarks=True)"


def test_explain_shows_them_on_request() -> None:
    fast = made(remarks=True).eval()
    with torch.no_grad():
        fast(X)
    assert "remarks:" not in str(fast.dcir.explain()) and "remarks" not in fast.dcir.explain().to_json()
    report = fast.dcir.explain(remarks=True)
    assert "remarks: " in str(report) and "skip=fuse-epilogues@" in str(report)
    data = json.loads(json.dumps(report.to_json()))
    assert len(data["remarks"]) == len(fast.dcir.remarks())
    assert {"graph", "kind", "pass", "index", "site", "ops", "reason", "args"} <= data["remarks"][0].keys()
    assert all("remarks" not in p for g in data["graphs"] for p in g["passes"])


def test_of_a_graph_for_many_sizes_too() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.exp().neg().sum(-1)

    rows = X[0, 0]
    torch._dynamo.reset()
    fast = dcir.optimize(fn, dynamic=True, remarks=True)
    with torch.no_grad():
        torch.testing.assert_close(fast(rows), fn(rows))
    (graph,) = fast.dcir.explain().graphs
    assert graph.bounds and sum(r.remark.count for r in fast.dcir.remarks(kind="passed")) == sum(
        p.changed for p in graph.passes
    )
    (site,) = {r.remark.site for r in fast.dcir.remarks(by="fuse-producers", kind="passed")[:1]}
    torch._dynamo.reset()
    off = dcir.optimize(fn, dynamic=True, skip=[site])
    with torch.no_grad():
        torch.testing.assert_close(off(rows), fn(rows))
        torch.testing.assert_close(off(rows[:3]), fn(rows[:3]))
    assert site in [s for g in off.dcir.explain().graphs for p in g.passes for s in p.skipped]


def test_keys_of_options() -> None:
    assert Options().cache_key() == Options(remarks=True).cache_key() == Options(skip=()).cache_key()
    a, b = "fuse-epilogues@a+b", "fuse-producers@a+b"
    assert Options(skip=(a, b)).cache_key() == Options(skip=(b, a)).cache_key() != Options(skip=(a,)).cache_key()
    assert "skip" not in Options().cache_key()
