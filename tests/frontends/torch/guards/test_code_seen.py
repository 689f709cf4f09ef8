"""Other classes of modules and other code of functions are seen, in quick calls and in others; what was there before is right again."""

import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import dcir

Undo = Callable[[], None]


def another(self: Any, x: torch.Tensor, by: float = 2.0, *, more: float = 0.5) -> torch.Tensor:
    return torch.sin(self.layers(x)) * by + more


def times_nine(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 9


def model() -> Any:
    """A model of classes of its own."""

    class Child(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Base(nn.Module):
        def offset(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class Net(Base):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Child())

        def scaled(self, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
            return x * by

        def forward(self, x: torch.Tensor, by: float = 1.0, *, more: float = 0.0) -> torch.Tensor:
            return self.offset(self.scaled(self.layers(x))) * by + more

    torch.manual_seed(0)
    return Net()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def put(owner: Any, name: str, value: Any) -> Undo:
    before = getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before)


def forward_of(m: Any) -> Any:
    return type(m).forward


def in_class(m: Any) -> Undo:
    return put(type(m), "forward", another)


def code(m: Any) -> Undo:
    return put(forward_of(m), "__code__", another.__code__)


def defaults(m: Any) -> Undo:
    return put(forward_of(m), "__defaults__", (3.0,))


def named_defaults(m: Any) -> Undo:
    return put(forward_of(m), "__kwdefaults__", {"more": 3.0})


def defaults_of_a_method(m: Any) -> Undo:
    return put(type(m).scaled, "__defaults__", (3.0,))


def of_the_module(m: Any) -> Undo:
    m.forward = types.MethodType(another, m)
    return lambda: delattr(m, "forward")


def method(m: Any) -> Undo:
    return put(type(m), "scaled", lambda self, x: x * 7)


def code_of_a_method(m: Any) -> Undo:
    return put(type(m).scaled, "__code__", times_nine.__code__)


def method_before(m: Any) -> Undo:
    type(m).offset = lambda self, x: x + 7
    return lambda: delattr(type(m), "offset")


def of_a_child(m: Any) -> Undo:
    return put(type(m.layers[2]), "forward", times_nine)


def code_of_a_child(m: Any) -> Undo:
    return put(forward_of(m.layers[2]), "__code__", times_nine.__code__)


def class_of_a_child(m: Any) -> Undo:
    return put(m.layers[1], "__class__", nn.Tanh)


CHANGES = (
    in_class, code, defaults, named_defaults, defaults_of_a_method, method, code_of_a_method, method_before, of_the_module,
    of_a_child, code_of_a_child, class_of_a_child,
)  # fmt: skip
CALLS = 6  # the tags count from the second call on, quick calls are made of later ones


def check(fast: Any, m: Any, change: Callable[[Any], Undo], x: torch.Tensor) -> None:
    before = m(x)
    for _ in range(CALLS):
        torch.testing.assert_close(fast(x), before)
    undo = change(m)
    after = m(x)
    assert not torch.allclose(after, before)
    for _ in range(CALLS):
        torch.testing.assert_close(fast(x), after)
    undo()
    for _ in range(CALLS):
        torch.testing.assert_close(fast(x), before)


@pytest.mark.filterwarnings("ignore::dcir.errors.RecompileWarning")
@pytest.mark.parametrize("keep_traces", [False, True], ids=["traced", "kept"])
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_changes_of_a_module_are_seen(
    change: Callable[[Any], Undo], gradients: bool, keep_traces: bool
) -> None:  # fmt: skip
    m, x = model(), torch.randn(4, 8)
    fast = dcir.optimize(m, keep_traces=keep_traces)
    with torch.set_grad_enabled(gradients):
        check(fast, m, change, x)


def test_another_class_is_no_cause_for_a_warning() -> None:
    m, x = model(), torch.randn(4, 8)
    fast = dcir.optimize(m)
    with warnings.catch_warnings():
        warnings.simplefilter("error", dcir.errors.RecompileWarning)
        check(fast, m, class_of_a_child, x)


class Pieces(nn.Module):
    """Dynamo compiles its forward in two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        torch._dynamo.graph_break()
        return self.layers(y)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::dcir.errors.NotCompiledWarning")
def test_classes_are_seen_in_every_piece_of_a_model() -> None:
    torch.manual_seed(0)
    m = Pieces()
    check(dcir.optimize(m), m, class_of_a_child, torch.randn(4, 8))


def function() -> Any:
    layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def net(x: torch.Tensor, by: float = 1.0, *, more: float = 0.0) -> torch.Tensor:
        return layers(x) * by + more

    net.layers = layers  # type: ignore[attr-defined]
    return net


def other_code(f: Any) -> Undo:
    layers = f.layers

    def net(x: torch.Tensor, by: float = 2.0, *, more: float = 0.0) -> torch.Tensor:
        return torch.sin(layers(x)) * by + more

    return put(f, "__code__", net.__code__)


def other_defaults(f: Any) -> Undo:
    return put(f, "__defaults__", (3.0,))


def other_named_defaults(f: Any) -> Undo:
    return put(f, "__kwdefaults__", {"more": 3.0})


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::dcir.errors.RecompileWarning")
@pytest.mark.parametrize("keep_traces", [False, True], ids=["traced", "kept"])
@pytest.mark.parametrize("change", [other_code, other_defaults, other_named_defaults, class_of_a_child])
def test_changes_of_a_function_are_seen(change: Callable[[Any], Undo], keep_traces: bool) -> None:
    torch.manual_seed(0)
    f = function()
    check(dcir.optimize(f, keep_traces=keep_traces), f, change, torch.randn(4, 8))
