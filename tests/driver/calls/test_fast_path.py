"""Repeated calls take the short way, and every change that could matter sends them the long way, with eager's results."""

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dcir
from dcir.codegen.cpp import watch as native
from dcir.runtime import watch

pytestmark = [
    pytest.mark.in_turn(3),
    pytest.mark.skipif(not watch.available(), reason="dictionaries without versions"),
    pytest.mark.usefixtures("fresh"),
]

FLAG = 1.0


class Net(nn.Module):
    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.ReLU())
        self.last = nn.Linear(16, 16)
        self.register_buffer("shift", torch.randn(16))
        self.power = 2.0

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.middle(self.inner(self.first(x))) * self.gain + self.shift
        return torch.as_tensor(self.last(y) * self.power * FLAG)


class Above(Net):
    """Its methods call those of its base, so Dynamo's guards look at classes that can change."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Lifted(*self.inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


class Lifted(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(super().forward(x) * 2)


def same(fast: Any, plain: Any, *inputs: Any, **named: Any) -> None:
    for got, wanted in zip(
        torch.utils._pytree.tree_leaves(fast(*inputs, **named)),
        torch.utils._pytree.tree_leaves(plain(*inputs, **named)),
        strict=True,
    ):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
            assert got.stride() == wanted.stride()
        else:
            assert got == wanted


def warm(module: nn.Module, *inputs: Any, **named: Any) -> Any:
    fast = dcir.optimize(module)
    for _ in range(4):
        same(fast, module, *inputs, **named)
    return fast


def data(m: Any) -> None:
    m.first.weight.data = torch.randn(16, 16)


def data_turned(m: Any) -> None:
    m.first.weight.data = m.first.weight.data.t()


def data_written(m: Any) -> None:
    m.first.weight.data.mul_(2)


def data_of_another_type(m: Any) -> None:
    m.shift.data = m.shift.data.double()


def turned(m: Any) -> None:
    m.first.weight.t_()


def parameter(m: Any) -> None:
    m.inner[0].weight = nn.Parameter(torch.randn(16, 16))


def parameter_in_dictionary(m: Any) -> None:
    m.inner[0]._parameters["weight"] = nn.Parameter(torch.randn(16, 16))


def bias_removed(m: Any) -> None:
    m.last.bias = None


def in_place(m: Any) -> None:
    m.last.weight.mul_(2)


def buffer_in_place(m: Any) -> None:
    m.inner[2].running_mean.add_(1)


def buffer(m: Any) -> None:
    m.shift = torch.randn(16)


def tied(m: Any) -> None:
    m.last.weight = m.first.weight


def child(m: Any) -> None:
    m.last = nn.Linear(16, 5)


def grandchild(m: Any) -> None:
    m.inner[3] = nn.Tanh()


def state(m: Any) -> None:
    m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()})


def mode(m: Any) -> None:
    m.inner[2].train()


def number(m: Any) -> None:
    m.power = 3.0


def number_of_a_child(m: Any) -> None:
    m.inner[2].eps = 0.5


def own_method(m: Any) -> None:
    m.middle = torch.sigmoid


def child_method(m: Any) -> None:
    m.last.forward = torch.sin


CHANGES = (
    data, data_turned, data_written, turned, parameter, parameter_in_dictionary, bias_removed, in_place, buffer_in_place,
    buffer, tied, child, grandchild, state, mode, number, number_of_a_child, own_method, child_method,
)  # fmt: skip


@pytest.mark.parametrize("kind", [Net, Above])
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@torch.no_grad()
def test_changes_are_seen(change: Callable[[Any], None], kind: type[Net], short: list[bool]) -> None:
    m, x = kind().eval(), torch.randn(3, 16)
    fast = warm(m, x)
    assert short[-1]
    # The optimised module shares the dictionaries of children; its own attributes are its own.
    for module in (m, fast) if change in (parameter, child, buffer, tied, number, own_method) else (m,):
        torch.manual_seed(1)
        change(module)
    del short[:]
    for _ in range(3):
        same(fast, m, x)
    assert not short[0]


class Turned(nn.Module):
    """A complex factor."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.randn(16, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@torch.no_grad()
def test_a_parameter_that_becomes_its_own_conjugate(short: list[bool]) -> None:
    """In the same memory, with the same count of writes."""
    module, x = Turned().eval(), torch.randn(4, 16, dtype=torch.complex64)
    fast = warm(module, x)
    assert any(short)
    for _ in range(2):
        module.factor.data = module.factor.data.conj()
        for _ in range(4):
            same(fast, module, x)


@torch.no_grad()
def test_changed_back_and_forth(short: list[bool]) -> None:
    m, x = Net().eval(), torch.randn(3, 16)
    fast = warm(m, x)
    for i in range(5):
        (m.last.weight if i % 2 else m.first.weight).mul_(1.1)
        del short[:]
        for _ in range(70):
            same(fast, m, x)
        assert short[-1] and not short[0]


@pytest.mark.parametrize("kind", [Net, Above])
@torch.no_grad()
def test_class_attributes_are_seen(kind: type[Net], monkeypatch: pytest.MonkeyPatch, short: list[bool]) -> None:
    m, x = kind().eval(), torch.randn(3, 16)
    fast = warm(m, x)
    assert short[-1]
    monkeypatch.setattr(Net, "gain", 2.5)
    same(fast, m, x)
    assert not short[-1]


@torch.no_grad()
def test_globals_are_seen(monkeypatch: pytest.MonkeyPatch, short: list[bool]) -> None:
    m, x = Net().eval(), torch.randn(3, 16)
    fast = warm(m, x)
    assert short[-1]
    monkeypatch.setitem(globals(), "FLAG", 0.25)
    same(fast, m, x)


@torch.no_grad()
def test_inputs(short: list[bool]) -> None:
    m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    x = torch.randn(2, 3, 9, 11)
    fast = warm(m, x)
    assert short[-1]
    del short[:]
    same(fast, m, x + 1)
    same(fast, m, torch.randn(4, 3, 9, 11)[2:])
    assert all(short)
    for other in (
        x.to(memory_format=torch.channels_last),
        torch.randn(2, 3, 9, 22)[..., ::2],
        torch.randn(1, 3, 9, 11),
        torch.randn(2, 3, 11, 9),
        nn.Parameter(torch.randn(2, 3, 9, 11)),
        x,
    ):
        for _ in range(3):
            same(fast, m, other)
    assert short[-1]
    with pytest.raises(RuntimeError):
        fast(x.double())
    with pytest.raises(TypeError):
        fast(x, x)


def test_gradients(short: list[bool]) -> None:
    m, x = Net().eval(), torch.randn(3, 16)
    with torch.no_grad():
        fast = warm(m, x)
    assert short[-1]
    y = fast(x)
    assert not short[-1] and y.requires_grad
    y.sum().backward()
    assert m.first.weight.grad is not None
    z = x.clone().requires_grad_()
    assert torch.autograd.grad(fast(z).sum(), z)[0].abs().sum() > 0
    with torch.no_grad():
        same(fast, m, x)
        assert short[-1]
        assert not fast(z).requires_grad


def test_inference_mode(short: list[bool]) -> None:
    m, x = Net().eval(), torch.randn(3, 16)
    with torch.no_grad():
        fast = warm(m, x)
    with torch.inference_mode():
        for _ in range(4):
            same(fast, m, x)
            assert fast(x).is_inference()
        assert short[-1]
    with torch.no_grad():
        same(fast, m, x)
        assert not fast(x).is_inference()


def test_parameters_made_in_inference_mode(short: list[bool]) -> None:
    with torch.inference_mode():
        m, x = Net().eval(), torch.randn(3, 16)
        fast = warm(m, x)
        m.last.weight.mul_(2)
        same(fast, m, x)
        assert not any(short)


@torch.no_grad()
def test_modes(short: list[bool]) -> None:
    class Doubled(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    m, x = Net().eval(), torch.randn(3, 16)
    fast = warm(m, x)
    for context in (Doubled(), Seen(), torch.autocast("cpu", torch.bfloat16), torch.compiler.set_stance("force_eager")):
        with context:
            wanted, got = m(x), fast(x)
            assert not short[-1] and got.dtype == wanted.dtype
            torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)
        same(fast, m, x)
    wanted = torch.func.vmap(m)(torch.stack([x, x + 1]))
    torch.testing.assert_close(torch.stack([fast(x), fast(x + 1)]), wanted, rtol=1e-5, atol=1e-5)
    same(fast, m, x)
    assert short[-1]


@torch.no_grad()
def test_reset_forgets(short: list[bool]) -> None:
    m, x = Net().eval(), torch.randn(3, 16)
    fast = warm(m, x)
    torch._dynamo.reset()
    same(fast, m, x)
    assert not short[-1]
    for _ in range(8):
        same(fast, m, x)
    assert short[-1]


@torch.no_grad()
def test_threads(short: list[bool]) -> None:
    m = Net().eval()
    inputs = [torch.randn(3, 16) for _ in range(8)]
    fast = warm(m, inputs[0])
    wanted = [m(x) for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(50):
                if not torch.allclose(fast(inputs[i]), wanted[i], atol=1e-5):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and short[-1]


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor, *, z: torch.Tensor | None = None) -> Any:
        out = self.a(x) + y
        if z is not None:
            out = out * z
        return {"out": out, "parts": (out.sum(), [x + 1, None, 3])}


@torch.no_grad()
def test_forms_of_results(short: list[bool]) -> None:
    m, x, y, z = Several().eval(), *torch.randn(3, 2, 4)
    fast = dcir.optimize(m)
    for named in ({}, {"z": z}, {}):
        for _ in range(9):
            same(fast, m, x, y, **named)
        assert short[-1]
    got = fast(x, y)
    assert got is not fast(x, y) and got["parts"][1] is not fast(x, y)["parts"][1]


@torch.no_grad()
def test_one_tensor_twice(short: list[bool]) -> None:
    m, x, y = Several().eval(), *torch.randn(2, 2, 4)
    fast = warm(m, x, y)
    assert short[-1]
    for _ in range(6):
        same(fast, m, x, x)
        same(fast, m, x, y)
    fast = warm(m, x, x)
    same(fast, m, x, y)
    weight = nn.Parameter(torch.randn(4, 4))
    m.a.weight = weight
    fast = warm(m, torch.randn(4, 4), torch.randn(4))
    same(fast, m, weight, torch.randn(4))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.calls = nn.Linear(4, 4), 0
        self.seen: list[int] = []
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, how: str) -> torch.Tensor:
        if how == "list":
            self.seen.append(len(x))
        elif how == "buffer":
            self.count.add_(1)
        elif how == "input":
            x.add_(1)
        elif how == "last":
            self.last = x + 1
        elif how == "itself":
            return x
        elif how == "view":
            return x.view(-1)
        return torch.as_tensor(self.a(x))


@pytest.mark.parametrize("how", ("list", "buffer", "input", "last", "itself", "view"))
@torch.no_grad()
def test_effects_happen_every_time(how: str) -> None:
    m = Counting().eval()
    fast = dcir.optimize(m)
    x, x2 = torch.zeros(2, 4), torch.zeros(2, 4)
    seen = len(m.seen)
    for i in range(1, 8):
        got, wanted = fast(x, how), m(x2, how) if how == "input" else None
        if how == "list":
            assert len(m.seen) == seen + i
        elif how == "buffer":
            assert fast.count == i
        elif how == "input":
            assert torch.equal(x, x2) and x[0, 0] == i
            torch.testing.assert_close(got, wanted)
        elif how == "last":
            x = torch.full((2, 4), float(i))
            fast(x, how)
            assert torch.equal(fast.last, x + 1)
        elif how == "itself":
            assert got is x
        elif how == "view":
            assert got.data_ptr() == x.data_ptr()


@torch.no_grad()
def test_random_numbers_are_new(short: list[bool]) -> None:
    m, x = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)), torch.randn(2, 4)
    fast = dcir.optimize(m)
    results = [fast(x) for _ in range(6)]
    assert all(not torch.equal(a, b) for i, a in enumerate(results) for b in results[:i])


@torch.no_grad()
def test_a_hook_of_the_module_itself(short: list[bool]) -> None:
    m, x = nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(2, 4)
    fast = warm(m, x)
    fast.eval()
    same(fast, m, x)
    assert short[-1]


@torch.no_grad()
def test_indices_outside_raise() -> None:
    m = nn.Sequential(nn.Embedding(5, 3)).eval()
    fast = warm(m, torch.tensor([1, 2]))
    with pytest.raises(IndexError):
        fast(torch.tensor([1, 7]))
    same(fast, m, torch.tensor([4, 0]))


@torch.no_grad()
def test_results_are_not_overwritten(short: list[bool]) -> None:
    m, x = Net().eval(), torch.randn(3, 16)
    fast = warm(m, x)
    a = fast(x)
    kept = a.clone()
    fast(x + 1)
    assert short[-1] and torch.equal(a, kept)


@torch.no_grad()
def test_the_old_weights_are_let_go(short: list[bool]) -> None:
    import gc
    import weakref

    m, x = Net().eval(), torch.randn(3, 16)
    fast = warm(m, x)
    old = weakref.ref(m.first.weight)
    m.first.weight = nn.Parameter(torch.randn(16, 16))
    for _ in range(12):
        same(fast, m, x)
    gc.collect()
    assert short[-1] and old() is None


def test_functions_have_one_order() -> None:
    assert native.FUNCTIONS == watch._FUNCTIONS and native.LARGEST_RANK == watch._LARGEST_RANK


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Functions(nn.Module):
    """Holds what is neither a module nor a dictionary: Dynamo's guards ask it itself."""

    def __init__(self) -> None:
        super().__init__()
        shift = [1.0]
        self.linear = nn.Linear(8, 8)
        self.activation = F.relu
        self.own = types.FunctionType(scaled.__code__, scaled.__globals__)
        self.closed = lambda x: x + shift[0]
        self.shift = shift
        self.partial = functools.partial(torch.add, alpha=2)
        self.sizes = [2, 4]
        self.parts = {"first": [torch.sin, torch.cos]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.closed(self.own(self.activation(self.linear(x)))) * self.sizes[1]
        return self.parts["first"][0](self.partial(y, x))


def another_function(m: Any) -> None:
    m.activation = torch.tanh


def other_code(m: Any) -> None:
    m.own.__code__ = (lambda x: x * 3).__code__


def in_a_closure(m: Any) -> None:
    m.shift[0] = 2.0


def other_arguments(m: Any) -> None:
    m.partial = functools.partial(torch.add, alpha=3)


def in_a_list(m: Any) -> None:
    m.sizes[1] = 5


def deep_in_a_list(m: Any) -> None:
    m.parts["first"][0] = torch.cos


@pytest.mark.parametrize(
    "change",
    [another_function, other_code, in_a_closure, other_arguments, in_a_list, deep_in_a_list],
    ids=lambda f: f.__name__,
)
@torch.no_grad()
def test_functions_and_lists_of_a_module_are_asked(change: Callable[[Any], None], short: list[bool]) -> None:
    m, x = Functions().eval(), torch.randn(3, 8)
    fast = warm(m, x)
    assert short[-1]
    for module in (m, fast) if change in (another_function, other_arguments) else (m,):
        change(module)
    del short[:]
    for _ in range(3):
        same(fast, m, x)
    assert not short[0]
