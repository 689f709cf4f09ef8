"""Repeated calls in one native function: they are made, and whatever their conditions are about is noticed when it changes."""

import gc
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dcir
from dcir.driver.calls.fast_path import MISS, QuickCalls
from dcir.runtime import watch

pytestmark = [pytest.mark.in_turn(3), pytest.mark.skipif(not watch.available(), reason="dictionaries without versions")]

SCALE = 2.0
COUNT = 0


def outer(x: torch.Tensor, by: float = 3.0, *, more: float = 1.0) -> torch.Tensor:
    return nn.functional.relu(x) * by * SCALE + more


def another(x: torch.Tensor, by: float = 3.0, *, more: float = 1.0) -> torch.Tensor:
    return torch.sin(x) * by + more


class Base(nn.Module):
    gain = 1.5

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * self.gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return outer(self.middle(self.inner(x)))


class Net(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


class Twice(Net):
    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many direct calls have run."""
    count = [0]
    gather = QuickCalls._gather

    def counted(self: QuickCalls) -> None:
        gather(self)

        def noting(call: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*args: Any) -> Any:
                result = call(*args)
                count[0] += result is not MISS
                return result

            return noted

        self.direct[:] = map(noting, self.direct)

    monkeypatch.setattr(QuickCalls, "_gather", counted)
    return lambda: count[0]


def warm(m: nn.Module, *inputs: torch.Tensor) -> Any:
    fast = dcir.optimize(m.eval())
    for _ in range(6):
        same(fast, m, *inputs)
    return fast


def same(fast: Any, plain: Any, *inputs: torch.Tensor) -> None:
    got, wanted = fast(*inputs), plain(*inputs)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert got.stride() == wanted.stride() and got.is_inference() == wanted.is_inference()


def code_of(f: Any, other: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(f, "__code__", other.__code__)


def sine(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return torch.sin(input)


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "relu": lambda patch: patch.setattr(nn.functional, "relu", sine),
    "relu code": code_of(nn.functional.relu, sine),
    "tanh": lambda patch: patch.setattr(torch, "tanh", torch.cos),
    "functional": lambda patch: patch.setattr(
        nn, "functional", types.SimpleNamespace(**{**vars(nn.functional), "relu": sine})
    ),
    "function": lambda patch: patch.setitem(globals(), "outer", another),
    "function code": code_of(outer, another),
    "defaults": lambda patch: patch.setattr(outer, "__defaults__", (5.0,)),
    "named defaults": lambda patch: patch.setattr(outer, "__kwdefaults__", {"more": 5.0}),
    "item of named defaults": lambda patch: patch.setitem(outer.__kwdefaults__, "more", 5.0),  # type: ignore[arg-type]
    "constant": lambda patch: patch.setitem(globals(), "SCALE", 4.0),
    "method of a class before": lambda patch: patch.setattr(Net, "middle", lambda self, x: torch.sin(x), raising=False),
    "method that is called as its super's": lambda patch: patch.setattr(Base, "forward", lambda self, x: torch.sin(x)),
    "code of that": code_of(Base.forward, lambda self, x: x.sin()),
    "attribute of a class": lambda patch: patch.setattr(Base, "gain", 3.0),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_functions_and_classes_are(change: str, monkeypatch: pytest.MonkeyPatch, ran: Callable[[], int]) -> None:
    m, x = Net(), torch.randn(3, 8)
    fast = warm(m, x)
    assert ran()
    before = ran()
    with monkeypatch.context() as patch:
        CHANGES[change](patch)
        for _ in range(2):
            same(fast, m, x)
        assert ran() == before
    for _ in range(80):
        same(fast, m, x)
    assert ran() > before


def test_the_class_of_the_module(ran: Callable[[], int]) -> None:
    m, x = Net(), torch.randn(3, 8)
    fast = warm(m, x)
    before = ran()
    assert before
    fast.__class__ = type("Other", (type(fast).__mro__[1], Twice), {})
    m.__class__ = Twice
    same(fast, m, x)
    assert ran() == before


class _Function(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def settings(put: Callable[[Any], Any], new: Any, old: Any) -> Iterator[None]:
    put(new)
    try:
        yield
    finally:
        put(old)


@contextmanager
def hooked() -> Iterator[None]:
    hook = nn.modules.module.register_module_forward_hook(lambda module, args, result: None)
    try:
        yield
    finally:
        hook.remove()


MODES: dict[str, Callable[[], Any]] = {
    "gradients": torch.enable_grad,
    "inference": torch.inference_mode,
    "function mode": _Function,
    "no functions": torch._C.DisableTorchFunction,
    "dispatch mode": _Dispatch,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "stance": lambda: torch.compiler.set_stance("force_eager"),
    "device": lambda: torch.device("cpu"),
    "type": lambda: settings(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": lambda: settings(torch.use_deterministic_algorithms, True, False),
    "threads": lambda: settings(torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads()),
    "forward derivatives": forward_ad.dual_level,
    "hooks for all": hooked,
}


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str, ran: Callable[[], int]) -> None:
    m, x = Net(), torch.randn(3, 8)
    fast = warm(m, x)
    before = ran()
    assert before
    with MODES[mode]():
        wanted, got = m(x), fast(x)
        assert got.dtype == wanted.dtype and got.requires_grad == wanted.requires_grad
        assert got.is_inference() == wanted.is_inference()
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)
    assert ran() == before
    for _ in range(80):
        same(fast, m, x)
    assert ran() > before


def test_inside_other_compiled_code() -> None:
    m, x = Net(), torch.randn(3, 8)
    fast = warm(m, x)
    outside = torch.compile(lambda y: fast(y) * 2, backend="eager", fullgraph=True)
    torch.testing.assert_close(outside(x), m(x) * 2)
    same(fast, m, x)


def test_forgotten_by_dynamo(ran: Callable[[], int]) -> None:
    m, x = Net(), torch.randn(3, 8)
    fast = warm(m, x)
    before = ran()
    torch._dynamo.reset()
    same(fast, m, x)
    assert ran() == before


def test_globals_of_users_may_be_written(ran: Callable[[], int]) -> None:
    m, x = Net(), torch.randn(3, 8)
    fast = warm(m, x)
    before = ran()
    for i in range(20):
        globals()["COUNT"] = i
        same(fast, m, x)
    assert ran() == before + 20


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("b", torch.randn(2, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.a(x) + y * self.b)


def test_inputs(ran: Callable[[], int]) -> None:
    m, x, y = Two(), *torch.randn(2, 2, 4)
    fast = warm(m, x, y)
    before = ran()
    for pair in ((x, y), (y, x), (torch.randn(4, 4)[1:3], y), (x + 1, y)):
        same(fast, m, *pair)
    assert ran() == before + 4
    before = ran()
    named = torch.randn(2, 4)
    torch._dynamo.mark_static(named, 0)
    for pair in (
        (x, x),  # one tensor twice
        (x, m.b),  # the module's own
        (torch.randn(4, 2).t(), y),
        (torch.randn(2, 4), torch.randn(1, 4)[0]),
        (nn.Parameter(x), y),
        (x.clone().requires_grad_(), y),
        (torch.randn(2, 4, dtype=torch.complex64).conj().imag, y),
        (named, y),
    ):
        same(fast, m, *pair)
    assert ran() == before
    torch.testing.assert_close(fast(x, y=y), m(x, y))
    for wrong in ((x,), (x, y, x), (x, "y"), (x, torch.randn(2, 5)), (x.double(), y)):
        with pytest.raises((TypeError, RuntimeError, dcir.errors.DcirError)):
            fast(*wrong)
    for _ in range(80):
        same(fast, m, x, y)
    assert ran() > before


def test_inputs_made_in_inference_mode(ran: Callable[[], int]) -> None:
    m, x, y = Two(), *torch.randn(2, 2, 4)
    fast = warm(m, x, y)
    before = ran()
    with torch.inference_mode():
        other = torch.randn(2, 4)
    same(fast, m, other, y)
    assert ran() == before


def test_inputs_are_let_go(ran: Callable[[], int]) -> None:
    m, x = Net(), torch.randn(3, 8)
    fast = warm(m, x)
    assert ran()
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
    same(fast, m, torch.randn(3, 8))


def test_the_module_is_let_go(ran: Callable[[], int]) -> None:
    m, x = Net(), torch.randn(3, 8)
    fast = warm(m, x)
    assert ran()
    gone = [weakref.ref(fast), weakref.ref(m), weakref.ref(m.inner[0].weight)]
    del fast, m
    torch._dynamo.reset()
    gc.collect()
    assert [g() for g in gone] == [None] * 3


def test_a_call_inside_a_call(ran: Callable[[], int]) -> None:
    """What a garbage collection calls while the result is made must not write into the table of the call under way."""
    m, x, other = Net(), torch.randn(3, 8), torch.randn(3, 8)
    fast = warm(m, x)
    before = ran()
    inside = []

    def collected(phase: str, info: Any) -> None:
        if phase == "start" and not inside:
            inside.append(None)
            inside[0] = fast(other)

    wanted, thresholds = m(x), gc.get_threshold()
    gc.callbacks.append(collected)
    try:
        gc.set_threshold(1)
        got = [fast(x) for _ in range(4)]
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collected)
    for y in got:
        torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(inside[0], m(other))
    assert ran() > before


def test_threads(ran: Callable[[], int]) -> None:
    m = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    inputs = [torch.randn(8, 256) for _ in range(6)]
    fast = warm(m, inputs[0])
    wanted, wrong = [m(x) for x in inputs], []

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(100):
                if not torch.allclose(fast(inputs[i]), wanted[i], atol=1e-5):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and ran()


def test_large_scratch_memory_is_shared(ran: Callable[[], int]) -> None:
    """Programs for two sizes have one block, which they take turns at; whose turn it is not goes the longer way with another one."""
    m = nn.Sequential(
        nn.Conv2d(3, 48, 5, padding=2), nn.BatchNorm2d(48), nn.SiLU(), nn.Conv2d(48, 4, 5, stride=4)
    ).eval()
    inputs = [torch.randn(1, 3, side, side) for side in (200, 224)]
    fast = dcir.optimize(m, dynamic=False)
    for x in [*inputs, *reversed(inputs)] * 6:
        same(fast, m, x)
    session, before = fast.dcir.session, ran()
    sizes = [g.arena_bytes for g in session.graphs]
    assert len(sizes) == 2 and min(sizes) > 4 << 20
    for x in inputs:
        same(fast, m, x)
    assert ran() == before + 2
    assert session.arenas._shared is not None and session.arenas._shared.block.nbytes == max(sizes)
    assert not session.arenas._idle
    wanted, wrong = [m(x) for x in inputs], []

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(40):
                if not torch.allclose(fast(inputs[i]), wanted[i], atol=1e-4):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and ran() > before + 2


def test_a_forked_process_calls() -> None:
    m, x = Net(), torch.randn(3, 8)
    fast = warm(m, x)
    wanted = fast(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.allclose(fast(x), wanted, atol=1e-5) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_indices_outside_raise(ran: Callable[[], int]) -> None:
    m, inside = nn.Sequential(nn.Embedding(5, 3)), torch.tensor([1, 2])
    fast = warm(m, inside)
    before = ran()
    assert before
    for _ in range(3):
        with pytest.raises(IndexError):
            fast(torch.tensor([1, 7]))
        same(fast, m, torch.tensor([4, 0]))
    assert ran() == before + 3


def test_weights(ran: Callable[[], int]) -> None:
    m, x = Net(), torch.randn(3, 8)
    fast = warm(m, x)
    weight = m.inner[0].weight
    version = weight._version
    for change in (
        lambda: weight.mul_(2),
        lambda: weight.data.mul_(2),
        lambda: weight.detach().numpy().__imul__(2),
        lambda: setattr(weight, "data", torch.randn(8, 8)),
        lambda: (weight.mul_(2), torch._C._autograd._unsafe_set_version_counter((weight,), (version,))),
    ):
        for _ in range(80):
            same(fast, m, x)
        before = ran()
        change()
        same(fast, m, x)
        assert ran() == before


def test_what_breaks_all_the_time_is_made_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    m, x = Net(), torch.randn(3, 8)
    fast = warm(m, x)
    made = []
    learnt = "dcir.driver.calls.fast_path._Learnt._made"
    from dcir.driver.calls import fast_path

    plain = fast_path._Learnt._made
    monkeypatch.setattr(learnt, lambda self, args: (made.append(1), plain(self, args))[1])
    for i in range(200):
        monkeypatch.setattr(nn.functional, "dcir_mark", i, raising=False)
        same(fast, m, x)
    assert 0 < len(made) < 8
