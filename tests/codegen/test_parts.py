"""Where a driver stops: behind enough complete results, never inside a stream."""

from __future__ import annotations

import pytest
import torch

from dcir.codegen import parts
from dcir.codegen.cpp.print_driver import driver_text
from dcir.codegen.parts import parts_of
from dcir.codegen.steps import Call
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.importer import import_graph
from dcir.ir.network import Network


def _chain(count: int) -> Network:
    """As many results as steps, of 256 bytes each."""

    def chain(x: torch.Tensor) -> list[torch.Tensor]:
        made = []
        for _ in range(count):
            x = torch.cumsum(x, 0)
            made.append(x)
        return made

    from torch.fx.experimental.proxy_tensor import make_fx

    return import_graph(make_fx(chain)(torch.ones(64)), GraphContext()).network


def _calls(count: int, streams: dict[int, int] | None = None) -> list[Call]:
    return [Call(f"k{i}", i, (), True, False, (streams or {}).get(i, -1)) for i in range(count)]


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Network:
    monkeypatch.setattr(parts, "LEAST_BYTES", 512)
    return _chain(6)


def test_a_part_ends_when_enough_is_complete(net: Network) -> None:
    made = parts_of(net, _calls(6))
    assert made.stops == (3, 5)  # each is read by the next step
    assert [made.ready[r.data] for r in net.results] == [0, 0, 1, 1, 2, 2]


def test_no_part_ends_inside_a_stream(net: Network) -> None:
    made = parts_of(net, _calls(6, {1: 0, 2: 0, 3: 0}))
    assert made.stops == (4,)
    assert [made.ready[r.data] for r in net.results] == [0, 0, 0, 1, 1, 1]


def test_small_results_are_one_part() -> None:
    assert parts_of(_chain(6), _calls(6)).stops == ()


def test_the_driver_runs_its_parts_in_order() -> None:
    text = driver_text([*_calls(3), Call(None, 3, (), False, False)], stops=(1, 3))
    run = text[text.index("int dcir_run") :]
    assert "part < 3" in run
    cases = text[: text.index("int dcir_run")].split("case ")[1:]
    assert [[name for name in ("k0", "k1", "k2", "call_back(3)") if name in case] for case in cases] == [
        ["k0"], ["k1", "k2"], ["call_back(3)"],
    ]  # fmt: skip
