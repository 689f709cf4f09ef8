"""Gates: gradients of a whole backward go on part by part, in the order in which they are complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dcir
from dcir.errors import IndexOutOfRange
from dcir.frontends.torch import ahead_of_time
from dcir.frontends.torch.gates import Gates, gradients_written_to
from dcir.runtime.part_by_part import PartByPart
from dcir.runtime.program import Program

pytestmark = pytest.mark.in_turn(3)

WIDTH = 160


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PartByPart]]:
    """The backward passes that began; graphs have gates as in a ``DistributedDataParallel``."""
    monkeypatch.setattr(ahead_of_time, "gates_of_call", Gates)
    begun: list[PartByPart] = []
    part_by_part = Program.part_by_part

    def noted(self: Program, *args: Any) -> Any:
        results, run = part_by_part(self, *args)
        begun.append(run)
        return results, run

    monkeypatch.setattr(Program, "part_by_part", noted)
    yield begun
    torch._dynamo.reset()


def _gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def _loss(model: Any, x: Tensor) -> Tensor:
    result: Tensor = model(x).square().sum()
    return result


def test_gradients_come_while_the_rest_is_computed(runs: list[PartByPart]) -> None:
    plain, model = _Layers(), _Layers()
    fast, x = dcir.optimize(model), torch.randn(8, WIDTH)
    ran: dict[str, int] = {}

    def noted(name: str) -> Any:
        def hook(_: Tensor) -> None:
            ran[name] = runs[-1]._next

        return hook

    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(noted(name))
    _loss(plain, x).backward()
    _loss(fast, x).backward()
    torch.testing.assert_close(_gradients(model), _gradients(plain))
    assert [g.kind for g in fast.dcir.session.graphs] == ["forward", "backward"]
    (run,) = runs
    assert run.ended
    assert f"runs in {run._parts} parts" in str(fast.dcir.explain())
    # The last layer's are there first, and each layer's weight before those of the layers in front of it.
    order = [ran[f"layers.{i}.weight"] for i in reversed(range(6))]
    assert order == sorted(order)
    assert len(set(order)) == 6
    assert order[0] < run._parts / 2


def test_some_gradients_alone(runs: list[PartByPart]) -> None:
    """Whoever asks for a few leaves the rest unrun; nothing is written to memory that others have."""
    plain, model = _Layers(), _Layers()
    fast, x = dcir.optimize(model), torch.randn(8, WIDTH)
    for _ in range(3):
        (have,) = torch.autograd.grad(_loss(fast, x), [model.layers[5].weight])  # type: ignore[list-item]
        (want,) = torch.autograd.grad(_loss(plain, x), [plain.layers[5].weight])  # type: ignore[list-item]
        torch.testing.assert_close(have, want)
    assert not runs[-1].ended
    _loss(fast, x).backward()
    _loss(plain, x).backward()
    torch.testing.assert_close(_gradients(model), _gradients(plain))


@pytest.mark.parametrize("anomaly", [False, True])
def test_graphs_that_are_kept_and_calls_that_add_up(runs: list[PartByPart], anomaly: bool) -> None:
    models = _Layers(), _Layers()
    calls = dcir.optimize(models[0]), models[1]
    first, second = torch.randn(2, 8, WIDTH)
    with torch.autograd.set_detect_anomaly(anomaly):
        for call in calls:
            (_loss(call, first) + _loss(call, second)).backward()
            kept = _loss(call, first)
            kept.backward(retain_graph=True)
            kept.backward()
    torch.testing.assert_close(*map(_gradients, models))
    assert len(runs) == 4
    assert all(run.ended for run in runs)


def test_gradients_of_inputs_and_frozen_parameters(runs: list[PartByPart]) -> None:
    """What passes through no gate is complete when the backward returns."""
    models = _Layers(), _Layers()
    found = []
    for model, call in ((models[0], dcir.optimize(models[0])), (models[1], models[1])):
        model.layers[2].weight.requires_grad_(False)
        x = torch.ones(8, WIDTH, requires_grad=True)
        _loss(call, x).backward()
        found.append((x.grad, _gradients(model)))
    torch.testing.assert_close(*found)


def test_gradients_are_not_copied(runs: list[PartByPart]) -> None:
    """A gradient becomes a parameter's ``grad`` as it is."""
    model = _Layers()
    fast, x = dcir.optimize(model), torch.randn(8, WIDTH)
    addresses = []

    def noted(gates: Gates, run: PartByPart, ready: Any) -> None:
        addresses.extend(t.data_ptr() for held in run._held for t in held)
        begin(gates, run, ready)

    begin = Gates.begin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gates, "begin", noted)
        _loss(fast, x).backward()
    assert {layer.weight.grad.data_ptr() for layer in model.layers} <= set(addresses)  # type: ignore[union-attr]


def test_a_failure_is_of_one_backward(runs: list[PartByPart], monkeypatch: pytest.MonkeyPatch) -> None:
    models = _Layers(), _Layers()
    calls = dcir.optimize(models[0]), models[1]
    x = torch.randn(8, WIDTH)
    part_by_part = Program.part_by_part

    def failing(self: Program, *args: Any) -> Any:
        results, run = part_by_part(self, *args)
        run._run = fails
        return results, run

    def fails(part: int) -> None:
        if part == 2:
            raise IndexOutOfRange("a bad index")

    with monkeypatch.context() as patch, pytest.raises(IndexOutOfRange):
        patch.setattr(Program, "part_by_part", failing)
        _loss(calls[0], x).backward()
    assert runs[-1].ended
    for call in calls:
        call.zero_grad()
        _loss(call, x).backward()
    torch.testing.assert_close(*map(_gradients, models))


def test_sizes_that_move(runs: list[PartByPart]) -> None:
    """One program for all of them runs part by part, too."""
    models = _Layers(), _Layers()
    calls = dcir.optimize(models[0]), models[1]
    for rows in (4, 9, 17, 6, 30):
        x = torch.randn(rows, WIDTH)
        for call in calls:
            call.zero_grad()
            _loss(call, x).backward()
        torch.testing.assert_close(*map(_gradients, models))
    bounds = [g.bounds for g in calls[0].dcir.session.graphs if g.kind == "backward"]
    assert any(bounds)
    assert len(runs) == 5
    assert all(run._parts > 2 and run.ended for run in runs)


def test_a_graph_without_gates_is_as_before() -> None:
    fast = dcir.optimize(_Layers())
    _loss(fast, torch.randn(8, WIDTH)).backward()
    assert all(p.info.parts == 1 for p in fast.dcir.session.programs)
    torch._dynamo.reset()


class _Added(nn.Module):
    """The gradient of ``added`` is that of the value behind it, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.added = nn.Parameter(torch.zeros(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            x = x + self.added if number == 1 else torch.tanh(x)
        return x


def test_what_is_done_to_a_gradient_stays_with_it(runs: list[PartByPart]) -> None:
    """A hook that writes to a gradient as soon as it is there; the rest of the backward reads what it was."""

    def emptied(p: Tensor) -> None:
        assert p.grad is not None
        p.grad.zero_()

    models = _Added(), _Added()
    calls = dcir.optimize(models[0]), models[1]
    x = torch.randn(WIDTH, WIDTH)
    for model, call in zip(models, calls, strict=True):
        model.added.register_post_accumulate_grad_hook(emptied)
        _loss(call, x).backward()
    torch.testing.assert_close(*map(_gradients, models), rtol=1e-4, atol=1e-4)
    assert not models[0].added.grad.any()  # type: ignore[union-attr]
    assert runs[0]._parts > 2


def _memory(model: nn.Module) -> tuple[Tensor, dict[int, Tensor]]:
    """A bucket, and a place in it for the gradient of each parameter."""
    sizes = [p.numel() for p in model.parameters()]
    bucket = torch.full((sum(sizes),), float("nan"))
    parts = bucket.split(sizes)
    return bucket, {id(p): part.view(p.shape) for p, part in zip(model.parameters(), parts, strict=True)}


def _in(bucket: Tensor, model: nn.Module) -> list[bool]:
    """Whether each gradient lies in a bucket."""
    place = bucket.untyped_storage().data_ptr()
    return [p.grad is not None and p.grad.untyped_storage().data_ptr() == place for p in model.parameters()]


def test_gradients_are_written_to_memory_that_is_offered(runs: list[PartByPart]) -> None:
    plain, model = _Layers(), _Layers()
    fast, x = dcir.optimize(model), torch.randn(8, WIDTH)
    _loss(plain, x).backward()
    for _ in range(2):
        model.zero_grad()
        bucket, memory = _memory(model)
        with gradients_written_to(memory):
            _loss(fast, x).backward()
        assert all(_in(bucket, model))
        torch.testing.assert_close(_gradients(model), _gradients(plain))
        # In the very places: nothing else was written.
        torch.testing.assert_close(bucket, torch.cat([p.grad.flatten() for p in plain.parameters()]))  # type: ignore[union-attr]
    model.zero_grad()
    _loss(fast, x).backward()  # nothing is offered
    assert not any(_in(bucket, model))


def test_two_calls_of_one_graph_use_no_offer(runs: list[PartByPart]) -> None:
    """A backward does not say which of them it is of; the gradients are sums."""
    plain, model = _Layers(), _Layers()
    fast, (first, second) = dcir.optimize(model), torch.randn(2, 8, WIDTH)
    (_loss(plain, first) + _loss(plain, second)).backward()
    bucket, memory = _memory(model)
    with gradients_written_to(memory):
        (_loss(fast, first) + _loss(fast, second)).backward()
    torch.testing.assert_close(_gradients(model), _gradients(plain))
    assert bucket.isnan().all()


def test_a_kept_graph_and_two_graphs_of_one_parameter(runs: list[PartByPart]) -> None:
    """Memory is written to once: by one graph, and by one backward of it."""
    plain, model = _Layers(), _Layers()
    x = torch.randn(8, WIDTH)
    calls = dcir.optimize(model), dcir.optimize(model, level=1)
    for _ in range(2):
        (_loss(plain, x)).backward()
    bucket, memory = _memory(model)
    with gradients_written_to(memory):
        kept = _loss(calls[0], x)
        kept.backward(retain_graph=True)
        kept.backward()
    torch.testing.assert_close(_gradients(model), _gradients(plain))
    model.zero_grad()
    bucket, memory = _memory(model)
    with gradients_written_to(memory):
        (_loss(calls[0], x) + _loss(calls[1], x)).backward()
    torch.testing.assert_close(_gradients(model), _gradients(plain))
    assert not any(_in(bucket, model))  # sums are new tensors


def test_an_offer_ends(runs: list[PartByPart]) -> None:
    """A backward after it writes elsewhere."""
    model = _Layers()
    fast, x = dcir.optimize(model), torch.randn(8, WIDTH)
    bucket, memory = _memory(model)
    with gradients_written_to(memory):
        loss = _loss(fast, x)
    loss.backward()
    assert bucket.isnan().all()
    assert not any(_in(bucket, model))
