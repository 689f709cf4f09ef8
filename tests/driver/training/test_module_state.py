"""A training step follows what it depends on besides tensors, tensors that lie otherwise than their parameters, or refuses them."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import dcir
from dcir.errors import Unsupported

OPTIMISERS: dict[str, Callable[..., Any]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


def squares(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean()


def compared(
    model: nn.Module, change: Callable[[Any, Any, int], None], name: str, shape: tuple[int, ...], steps: int = 5
) -> None:
    """Steps by eager and compiled, both changed in front of each; the same losses and parameters."""
    found = []
    for compiled in (False, True):
        own = copy.deepcopy(model)
        optimizer = OPTIMISERS[name](own.parameters())
        step = dcir.train_step(own, squares, optimizer) if compiled else None
        losses = []
        for number in range(steps):
            change(own, optimizer, number)
            g = torch.Generator().manual_seed(number)
            x, target = torch.randn(4, *shape, generator=g), torch.randn(4, 2, generator=g)
            if step is not None:
                losses.append(step(x, target))
                continue
            loss = squares(own(x), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        found.append([*losses, *(p.detach() for p in own.parameters())])
    for e, d in zip(*found, strict=True):
        torch.testing.assert_close(d, e, rtol=1e-4, atol=1e-5)


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_state_that_lies_otherwise(name: str) -> None:
    def change(model: Any, optimizer: Any, number: int) -> None:
        if number == 2:
            model.to(memory_format=torch.channels_last)

    compared(images(), change, name, (3, 6, 6))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_gradients_from_before_that_lie_otherwise(name: str) -> None:
    def change(model: Any, optimizer: Any, number: int) -> None:
        p = model[0].weight
        g = torch.randn(p.shape, generator=torch.Generator().manual_seed(9))
        p.grad = g.contiguous(memory_format=torch.channels_last) if number % 2 else g.mT.contiguous().mT

    compared(images(), change, name, (3, 6, 6))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_parameter_that_is_a_part(name: str) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = torch.full((8, 6), 3.0)
            with torch.no_grad():
                self.whole[:, :2] = torch.randn(8, 2)
            self.weight = nn.Parameter(self.whole[:, :2])

        def __deepcopy__(self, memo: Any) -> Part:
            torch.manual_seed(0)
            return Part()

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    model: Any = Part()
    compared(model, lambda m, o, n: None, name, (8,))
    step = dcir.train_step(model, squares, OPTIMISERS[name](model.parameters()))
    for _ in range(3):
        step(torch.randn(4, 8), torch.randn(4, 2))
    assert (model.whole[:, 2:] == 3).all()


@pytest.mark.parametrize("name", OPTIMISERS)
def test_state_of_another_type_is_refused(name: str) -> None:
    model = nn.Linear(8, 2)
    step = dcir.train_step(model, squares, OPTIMISERS[name](model.parameters()))
    step(torch.randn(4, 8), torch.randn(4, 2))
    model.double()
    with pytest.raises(Unsupported, match=r"is torch\.float32 .* the parameter torch\.float64"):
        step(torch.randn(4, 8).double(), torch.randn(4, 2).double())


@pytest.mark.parametrize("how", ["gradient", "accumulated", "before", "behind", "all"])
def test_hooks_that_no_step_would_call(how: str) -> None:
    """Refused, also where they come after the first step, and no longer once they are gone."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = dcir.train_step(model, squares, optimizer)
    batch = torch.randn(4, 8), torch.randn(4, 2)
    step(*batch)
    hooked: dict[str, Callable[[], Any]] = {
        "gradient": lambda: model.weight.register_hook(lambda g: g * 0),
        "accumulated": lambda: model.bias.register_post_accumulate_grad_hook(lambda p: None),
        "before": lambda: optimizer.register_step_pre_hook(lambda o, a, k: None),
        "behind": lambda: optimizer.register_step_post_hook(lambda o, a, k: None),
        "all": lambda: register_optimizer_step_post_hook(lambda o, a, k: None),
    }
    handle = hooked[how]()
    try:
        with pytest.raises(Unsupported, match="hooks"):
            step(*batch)
    finally:
        handle.remove()
    assert step(*batch).isfinite()


def test_complex_numbers_by_adam_are_refused() -> None:
    model = nn.Linear(8, 2).to(torch.complex64)
    step = dcir.train_step(model, lambda y, t: (y - t).abs().mean(), torch.optim.Adam(model.parameters()))
    with pytest.raises(Unsupported, match="complex numbers by Adam"):
        step(torch.randn(4, 8, dtype=torch.complex64), torch.randn(4, 2, dtype=torch.complex64))


def test_an_autocast_around_a_step_is_refused() -> None:
    model = nn.Linear(8, 2)
    step = dcir.train_step(model, squares, torch.optim.SGD(model.parameters(), lr=0.1))
    with torch.autocast("cpu"), pytest.raises(Unsupported, match="its own autocast"):
        step(torch.randn(4, 8), torch.randn(4, 2))


FACTOR = 1.0


def test_numbers_that_a_loss_function_holds() -> None:
    """In its closure, its defaults, a partial's arguments, a global, and an object that it is a method of."""
    held = 1.0
    place = SimpleNamespace(weight=1.0, inner=SimpleNamespace(weight=1.0))

    def closure(y: Tensor, t: Tensor) -> Tensor:
        return held * squares(y, t)

    def default(y: Tensor, t: Tensor, by: float = 1.0) -> Tensor:
        return by * squares(y, t)

    def named(y: Tensor, t: Tensor) -> Tensor:
        return FACTOR * squares(y, t)

    class Own:
        by = 1.0

        def loss(self, y: Tensor, t: Tensor) -> Tensor:
            return self.by * squares(y, t)

    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * place.weight * self.place.inner.weight

    own = Own()
    x, t = torch.randn(4, 8), torch.randn(4, 2)

    def steps(loss: Any, change: Callable[[float], None], model: nn.Module | None = None) -> None:
        model = nn.Linear(8, 2) if model is None else model
        step = dcir.train_step(model, loss, torch.optim.SGD(model.parameters(), lr=0.01))
        for value in (1.0, 2.0, 3.0):
            change(value)
            want = loss(model(x), t).detach()
            torch.testing.assert_close(step(x, t), want)

    def in_closure(value: float) -> None:
        nonlocal held
        held = value

    steps(closure, in_closure)
    steps(default, lambda v: setattr(default, "__defaults__", (v,)))
    steps(named, lambda v: globals().update(FACTOR=v))
    steps(own.loss, lambda v: setattr(own, "by", v))
    model: Any = Scaled(8, 2)
    model.place = place
    steps(squares, lambda v: setattr(place.inner, "weight", v), model)


def test_numbers_that_nobody_reads_make_no_program() -> None:
    """A trainer counts its steps, and a model's logger its calls."""

    class Logger:
        def __init__(self) -> None:
            self.calls, self.last = 0, torch.zeros(1)

    class Trainer:
        def __init__(self) -> None:
            self.steps, self.scale = 0, 2.0

        def loss(self, y: Tensor, t: Tensor) -> Tensor:
            return self.scale * squares(y, t)

    trainer = Trainer()
    model: Any = nn.Linear(8, 2)
    model.logger = Logger()
    step = dcir.train_step(model, trainer.loss, torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in range(4):
        step(torch.randn(4, 8), torch.randn(4, 2))
        trainer.steps += 1
        model.logger.calls += 1
        model.logger.last = torch.zeros(1)
    assert len(step.dcir.explain().graphs) == 1


TABLE = {"scale": 1.0}


def scaled(x: Tensor) -> Tensor:
    return x * FACTOR


class Settings:
    scale = 1.0


SETTINGS = Settings()


class Reading(nn.Linear):
    """Its forward reads a number in one of several ways."""

    scale = 1.0

    def __init__(self, way: str) -> None:
        super().__init__(8, 2)
        self.way, self.held = way, Settings()
        self.held.scale = 1.0

    @property
    def factor(self) -> float:
        return FACTOR

    def through(self, x: Tensor) -> Tensor:
        return x * 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        ways: dict[str, Callable[[], Tensor]] = {
            "global": lambda: y * FACTOR, "function": lambda: scaled(y), "property": lambda: y * self.factor,
            "class": lambda: y * self.scale, "table": lambda: y * TABLE["scale"], "object": lambda: y * self.held.scale,
            "global object": lambda: y * SETTINGS.scale, "another class": lambda: y * Settings.scale, "method": lambda: self.through(y),
        }  # fmt: skip
        return ways[self.way]()


def _set_global(model: Any, value: float) -> None:
    globals().update(FACTOR=value)


def _set_method(model: Any, value: float) -> None:
    Reading.through = lambda self, x: x * value  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[Any, float], Any]] = {
    "global": _set_global,
    "function": _set_global,
    "property": _set_global,
    "class": lambda model, value: setattr(Reading, "scale", value),
    "table": lambda model, value: TABLE.update(scale=value),
    "object": lambda model, value: setattr(model.held, "scale", value),
    "global object": lambda model, value: setattr(SETTINGS, "scale", value),
    "another class": lambda model, value: setattr(Settings, "scale", value),
    "method": _set_method,
}


@pytest.mark.parametrize("way", CHANGES)
def test_numbers_that_code_of_a_model_reads(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of globals, classes and objects, also where functions and methods that the forward calls do; three values are three programs."""
    monkeypatch.setattr(Reading, "through", Reading.through)
    monkeypatch.setattr(Reading, "scale", 1.0)
    monkeypatch.setattr(Settings, "scale", 1.0)
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    monkeypatch.setitem(TABLE, "scale", 1.0)
    SETTINGS.__dict__.clear()
    model = Reading(way)
    step = dcir.train_step(model, squares, torch.optim.SGD(model.parameters(), lr=0.01))
    x, t = torch.randn(4, 8), torch.randn(4, 2)
    for value in (1.0, 1.0, 2.0, 3.0, 3.0, 1.0):
        CHANGES[way](model, value)
        want = squares(model(x), t).detach()
        torch.testing.assert_close(step(x, t), want)
    assert len(step.dcir.explain().graphs) == 3


class Place:
    """Holds a number, also by names that its code alone knows."""

    def __init__(self, value: Any = 1.0) -> None:
        self.value = value

    @property
    def seen(self) -> Any:
        return self.value

    def weight(self) -> Any:
        return self.value

    def times(self, y: Tensor, t: Tensor) -> Tensor:
        return self.weight() * squares(y, t)

    def plain(self, y: Tensor, t: Tensor) -> Tensor:
        return self.value * squares(y, t)

    def shown(self, y: Tensor, t: Tensor) -> Tensor:
        return self.seen * squares(y, t)

    def first(self, y: Tensor, t: Tensor) -> Tensor:
        return self.value[0] * squares(y, t)

    def deep(self, y: Tensor, t: Tensor) -> Tensor:
        return self.value.value * squares(y, t)

    def __call__(self, y: Tensor, t: Tensor) -> Tensor:
        return self.times(y, t)

    def made(self) -> Callable[..., Tensor]:
        return lambda y, t: self.value.value * squares(y, t)


LOSSES: dict[str, tuple[Callable[[], Place], Callable[[Place], Any], Callable[[Place, float], Any]]] = {
    "called": (Place, lambda p: p, lambda p, v: setattr(p, "value", v)),
    "called in a partial": (Place, partial, lambda p, v: setattr(p, "value", v)),
    "method of a method": (Place, lambda p: p.times, lambda p, v: setattr(p, "value", v)),
    "property": (Place, lambda p: p.shown, lambda p, v: setattr(p, "value", v)),
    "list": (lambda: Place([1.0]), lambda p: p.first, lambda p, v: p.value.__setitem__(0, v)),
    "record": (lambda: Place(SimpleNamespace(value=1.0)), lambda p: p.deep, lambda p, v: setattr(p.value, "value", v)),
    "object": (lambda: Place(Place()), lambda p: p.deep, lambda p, v: setattr(p.value, "value", v)),
    "closure": (lambda: Place(Place()), lambda p: p.made(), lambda p, v: setattr(p.value, "value", v)),
}


def follows(model: nn.Module, loss: Any, change: Callable[[float], Any]) -> None:
    """Steps with a number that changes are eager's losses, with one program for each of its values."""
    step = dcir.train_step(model, loss, torch.optim.SGD(model.parameters(), lr=0.01))
    x, t = torch.randn(4, 8), torch.randn(4, 2)
    for value in (1.0, 1.0, 2.0, 2.0, 1.0):
        change(value)
        want = loss(model(x), t).detach()
        torch.testing.assert_close(step(x, t), want)
    assert len(step.dcir.explain().graphs) == 2


@pytest.mark.parametrize("way", LOSSES)
def test_numbers_that_a_loss_reaches(way: str) -> None:
    make, loss, change = LOSSES[way]
    place = make()
    follows(nn.Linear(8, 2), loss(place), lambda value: change(place, value))


class Slots:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1.0


@dataclass(slots=True)
class Row:
    value: float = 1.0


class Stored:
    """Has its numbers in a table."""

    def __init__(self) -> None:
        object.__setattr__(self, "_content", {"value": 1.0})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._content[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._content[name] = value


def by_factor(x: Tensor) -> Tensor:
    return x * FACTOR


class Holding(nn.Linear):
    """Multiplies by what it holds."""

    def __init__(self, held: Any, read: Callable[[Any], Any] | None = None) -> None:
        super().__init__(8, 2)
        self.held, self.read = held, read

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.read is not None:
            return y * self.read(self.held)
        return self.held(y) if callable(self.held) else y * self.held.value


HELD: dict[str, Callable[[], tuple[nn.Module, Callable[[float], Any]]]] = {}


def held(make: Callable[[], Any], change: Callable[[Any, float], Any], read: Callable[[Any], Any] | None = None) -> Any:
    """A model and what changes a number that it holds."""

    def made() -> tuple[nn.Module, Callable[[float], Any]]:
        value = make()
        return Holding(value, read), lambda number: change(value, number)

    return made


def hooked() -> tuple[nn.Module, Callable[[float], Any]]:
    model = nn.Linear(8, 2)
    model.register_forward_hook(lambda module, args, result: result * FACTOR)
    return model, lambda value: globals().update(FACTOR=value)


HELD |= {
    "slots": held(Slots, lambda h, v: setattr(h, "value", v)),
    "record with slots": held(Row, lambda h, v: setattr(h, "value", v)),
    "getattr": held(Stored, lambda h, v: setattr(h, "value", v)),
    "ordered": held(lambda: OrderedDict(a=1.0), lambda h, v: h.update(a=v), lambda h: h["a"]),
    "defaults": held(lambda: defaultdict(float, a=1.0), lambda h, v: h.update(a=v), lambda h: h["a"]),
    "user's dict": held(lambda: UserDict(a=1.0), lambda h, v: h.update(a=v), lambda h: h["a"]),
    "deque": held(lambda: deque([1.0]), lambda h, v: h.__setitem__(0, v), lambda h: h[0]),
    "array": held(lambda: np.array([1.0]), lambda h, v: h.__setitem__(0, v), lambda h: float(h[0])),
    "object in object": held(lambda: Place(Place()), lambda h, v: setattr(h.value, "value", v), lambda h: h.value.value),
    "table in object": held(lambda: Place({"a": 1.0}), lambda h, v: h.value.update(a=v), lambda h: h.value["a"]),
    "method of object": held(Place, lambda h, v: setattr(h, "value", v), lambda h: h.weight()),
    "function": held(lambda: by_factor, lambda h, v: globals().update(FACTOR=v)),
    "partial": held(lambda: partial(torch.mul, other=1.0), lambda h, v: h.keywords.update(other=v)),
    "hook": hooked,
}  # fmt: skip


@pytest.mark.parametrize("what", HELD)
def test_numbers_that_a_model_reaches(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    model, change = HELD[what]()
    follows(model, squares, change)


class _Makes(nn.Linear):
    """It makes a tensor of the default type."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.full((2,), 1.1)


def test_another_default_type_is_another_program() -> None:
    model = _Makes(8, 2)
    step = dcir.train_step(model, squares, torch.optim.SGD(model.parameters(), lr=0.01))
    x, t = torch.randn(4, 8), torch.randn(4, 2)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            want, got = squares(model(x), t).detach(), step(x, t)
        finally:
            torch.set_default_dtype(torch.float32)
        torch.testing.assert_close(got, want)
    assert len(step.dcir.explain().graphs) == 2


def test_parameters_that_are_not_made_yet_are_refused_by_name() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    step = dcir.train_step(model, squares, torch.optim.SGD(model.parameters(), lr=0.01))
    x, t = torch.randn(4, 8), torch.randn(4, 2)
    with pytest.raises(Unsupported, match=r"(?s)lazy layers.*0\.weight.*2\.bias.*call the model once"):
        step(x, t)
    with torch.no_grad():
        want = squares(model(x), t)
    torch.testing.assert_close(step(x, t), want)
