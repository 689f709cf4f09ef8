"""An optimised module is the user's module: same state, hooks, modes, results and errors."""

import copy
import pickle
import subprocess
import sys
import threading
from collections import namedtuple
from typing import ClassVar

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import FallbackFailed, IndexOutOfRange, InvalidInput, OptionError, Unsupported

Pair = namedtuple("Pair", ["first", "second"])


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, batch, *, scale=1.0, extra=None):
        x = self.linear(batch["x"]) * scale
        if extra is not None:
            x = x + extra[0]
        return {"out": x, "pair": Pair(x.sum(0), [x.mean(), None]), "same": batch["x"]}


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        print("in the middle")
        return torch.relu(x) * 2


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_state_is_shared():
    module = mlp()
    fast = dcir.optimize(module)
    assert isinstance(fast, nn.Sequential)
    assert list(fast.state_dict()) == list(module.state_dict())
    assert all(a is b for a, b in zip(fast.parameters(), module.parameters(), strict=True))
    x = torch.randn(5, 6)
    close(fast(x), module(x))
    with torch.no_grad():
        module[0].weight.mul_(2)
    close(fast(x), module(x))
    fast.load_state_dict({k: v + 1 for k, v in module.state_dict().items()})
    close(fast(x), module(x))


def test_training_steps_like_eager():
    module = mlp()
    twin = copy.deepcopy(module)
    fast = dcir.optimize(twin)
    x, y = torch.randn(16, 6), torch.randn(16, 3)
    ours = torch.optim.AdamW(fast.parameters(), lr=0.01)
    theirs = torch.optim.AdamW(module.parameters(), lr=0.01)
    for _ in range(4):
        for net, optimizer in ((fast, ours), (module, theirs)):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
    for a, b in zip(fast.parameters(), module.parameters(), strict=True):
        close(a, b)
    assert fast.dcir.explain().to_json()["graphs"]


def test_hooks_run():
    module = mlp()
    fast = dcir.optimize(module)
    seen = []
    fast.register_forward_pre_hook(lambda m, args: seen.append("pre") or (args[0] + 1,))
    fast.register_forward_hook(lambda m, args, out: seen.append("forward") or out * 2)
    fast.register_full_backward_hook(lambda m, gin, gout: seen.append("backward"))
    x = torch.randn(2, 6, requires_grad=True)
    out = fast(x)
    out.sum().backward()
    assert {"pre", "forward", "backward"} <= set(seen)
    with torch.no_grad():
        close(out, nn.Sequential.forward(module, x + 1) * 2)


def test_train_and_eval():
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    fast = dcir.optimize(copy.deepcopy(module))
    x = torch.randn(32, 6)
    torch.manual_seed(3)
    got = fast(x)
    torch.manual_seed(3)
    want = module(x)
    close(got, want)
    close(fast[1].running_mean, module[1].running_mean)
    close(fast[1].running_var, module[1].running_var)
    assert int(fast[1].num_batches_tracked) == 1
    fast.eval(), module.eval()
    close(fast(x), module(x))
    fast.train(), module.train()
    torch.manual_seed(5)
    got = fast(x)
    torch.manual_seed(5)
    close(got, module(x))


def test_keywords_and_nested_structures():
    module = Nested()
    fast = dcir.optimize(module)
    x, extra = torch.randn(3, 4), [torch.randn(4)]
    for arguments in ({}, {"scale": 2.0}, {"extra": extra}):
        got, want = fast({"x": x}, **arguments), module({"x": x}, **arguments)
        close(got["out"], want["out"])
        assert type(got["pair"]) is Pair
        close(got["pair"].first, want["pair"].first)
        close(got["pair"].second[0], want["pair"].second[0])
        assert got["pair"].second[1] is None
        assert got["same"] is x


def test_functions_and_exported_programs():
    fast = dcir.optimize(lambda x, y: torch.tanh(x) @ y)
    x, y = torch.randn(3, 4), torch.randn(4, 2)
    close(fast(x, y), torch.tanh(x) @ y)
    assert fast.dcir.explain().graphs
    module = mlp().eval()
    program = torch.export.export(module, (torch.randn(5, 6),))
    z = torch.randn(5, 6)
    close(dcir.optimize(program)(z), module(z))


def test_backend_by_name():
    module = mlp()
    fast = torch.compile(module, backend="dcir")
    x = torch.randn(5, 6, requires_grad=True)
    out = fast(x)
    close(out, module(x))
    out.sum().backward()
    assert x.grad is not None
    with pytest.raises(Exception, match="levle"):
        torch.compile(module, backend="dcir", options={"levle": 3})(x)


def test_graph_breaks_work_and_are_reported(capsys):
    module = Breaks()
    fast = dcir.optimize(module)
    x = torch.randn(2, 4)
    close(fast(x), module(x))
    breaks = fast.dcir.explain().breaks
    assert len(breaks) == 1
    assert "print" in breaks[0][0]
    assert "test_optimize.py" in breaks[0][1]
    assert "graph breaks:" in str(fast.dcir.explain())
    whole = dcir.optimize(mlp())
    whole(torch.randn(2, 6))
    assert whole.dcir.explain().breaks == []


def test_copies_and_pickles_stay_optimised():
    fast = dcir.optimize(mlp(), level=2)
    x = torch.randn(2, 6)
    want = fast(x)
    for twin in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert twin.dcir.options.level == 2
        assert twin[0].weight is not fast[0].weight
        close(twin(x), want)
        assert twin.dcir.explain().graphs
    again = dcir.optimize(fast, level=1)
    assert again.dcir.options.level == 1
    assert again[0].weight is fast[0].weight
    close(again(x), want)


class Registered(nn.Linear):
    """A base class that has to hear of every subclass that a user writes, once."""

    kinds: ClassVar[dict] = {}

    def __init_subclass__(cls, *, kind, **named):
        super().__init_subclass__(**named)
        if kind in Registered.kinds:
            raise ValueError(f"there is a {kind} already")
        Registered.kinds[kind] = cls


class Kind(Registered, kind="one"):
    pass


def test_the_hook_for_subclasses_is_for_those_that_users_write():
    module = Kind(4, 3)
    fast, x = dcir.optimize(module), torch.randn(2, 4)
    close(fast(x), module(x))
    assert Registered.kinds == {"one": Kind}

    class Own(type(fast), kind="own"):
        pass

    assert Registered.kinds.pop("own") is Own


class Meta(type):
    def __new__(cls, name, bases, members, *, tag):
        return super().__new__(cls, name, bases, members)

    def __init__(cls, name, bases, members, *, tag):
        super().__init__(name, bases, members)


class Tagged(nn.Linear, metaclass=Meta, tag="t"):
    pass


class Slots(nn.Linear):
    __slots__ = ("gain",)


@pytest.mark.parametrize("cls", [Tagged, Slots])
def test_a_class_that_has_no_subclasses_is_named(cls):
    module, x = cls(4, 3), torch.randn(2, 4)
    with pytest.raises(InvalidInput, match=f"the class {cls.__name__} cannot have a subclass"):
        dcir.optimize(module)
    close(dcir.optimize(lambda x: module(x))(x), module(x))


def test_threads():
    module = mlp().eval()
    fast = dcir.optimize(module)
    inputs = [torch.randn(7, 6) for _ in range(8)]
    with torch.no_grad():
        wants = [module(x) for x in inputs]
        fast(inputs[0])
    wrong = []

    def work(number):
        with torch.no_grad():
            for _ in range(50):
                if not torch.allclose(fast(inputs[number]), wants[number], atol=1e-5):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_a_bad_index_leaves_the_module_usable():
    module = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    fast = dcir.optimize(module)
    good, bad = torch.tensor([1, 2, 3]), torch.tensor([1, 10, 3])
    with torch.no_grad():
        close(fast(good), module(good))
        for index in (bad, -bad):
            with pytest.raises(IndexError) as caught:
                fast(index)
            assert isinstance(caught.value, IndexOutOfRange)
        close(fast(good), module(good))


_AGAIN = """
import torch, dcir
from torch import nn
from dcir.codegen.cpp.compiler_process import compiler_runs
torch.manual_seed(0)
net = dcir.optimize(nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)))
net(torch.randn(4, 6)).sum().backward()
print("runs", compiler_runs.total)
"""


def test_a_second_process_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path))

    def runs():
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _AGAIN], capture_output=True, text=True, check=True
        )
        return int(done.stdout.split()[-1])

    assert runs() > 0
    assert runs() == 0


def test_strict_names_operators_and_places():
    class Solves(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x) + torch.linalg.det(x)

    x = torch.eye(3) * 2
    close(dcir.optimize(Solves())(x), Solves()(x))
    with pytest.raises(Unsupported, match="linalg") as caught:
        dcir.optimize(Solves(), strict=True)(x)
    assert "test_optimize.py" in str(caught.value)
    with pytest.raises(FallbackFailed, match="singular"):
        dcir.optimize(Solves())(torch.zeros(3, 3))


def test_levels_agree():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
            self.head = nn.Linear(8, 5)

        def forward(self, x):
            return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3))).softmax(-1)

    module = Block().eval()
    x = torch.randn(2, 3, 9, 9)
    want = module(x)
    for level in range(5):
        fast = dcir.optimize(copy.deepcopy(module), level=level)
        out = fast(x)
        close(out, want)
        out.square().sum().backward()
        assert all(p.grad is not None for p in fast.parameters())


def test_results_are_the_callers():
    fast = dcir.optimize(mlp().eval())
    with torch.no_grad():
        held = fast(torch.ones(2, 6))
        before = held.clone()
        for value in range(5):
            fast(torch.full((2, 6), float(value)))
    assert torch.equal(held, before)


def test_sizes_change_from_call_to_call():
    module = mlp()
    fast = dcir.optimize(module)
    for batch in (1, 2, 7, 3, 7, 16, 1):
        x = torch.randn(batch, 6)
        out = fast(x)
        close(out, module(x))
        out.sum().backward()


def test_many_modules_of_one_class_and_many_shapes():
    for size in range(3, 15):
        fast = dcir.optimize(nn.Sequential(nn.Linear(size, 2), nn.ReLU()))
        fast(torch.ones(2, size))
        assert len(fast.dcir.explain().graphs) == 1
    pooled = dcir.optimize(lambda x: x.flatten().sum() * 2)
    for rank in range(1, 12):
        x = torch.ones([2] * rank)
        assert float(pooled(x)) == 2.0 * x.numel()
    assert len(pooled.dcir.explain().graphs) >= 11


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    module = mlp()
    fast = dcir.optimize(module)
    x = torch.randn(2, 6)
    with mode():
        out = fast(x)
    assert not out.requires_grad
    close(out, module(x).detach())
    assert fast(x).requires_grad


def test_gradients_of_inputs():
    module = mlp()
    fast = dcir.optimize(module)
    a, b = (torch.randn(2, 6, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    fast(a).square().sum().backward()
    module(b).square().sum().backward()
    close(a.grad, b.grad)


def test_a_result_without_part_in_the_loss():
    """Zeros, not None, as with torch.compile."""
    model = Nested()
    model.other = nn.Linear(4, 4)
    model.forward = lambda x: (model.linear(x), model.other(x))
    dcir.optimize(model)(torch.ones(2, 4))[0].sum().backward()
    assert model.linear.weight.grad.any() and not model.other.weight.grad.any()


def test_writing_to_arguments_and_buffers():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            x.mul_(2)
            return x + self.calls

    fast, module = dcir.optimize(Counts()), Counts()
    a, b = torch.ones(3), torch.ones(3)
    for _ in range(3):
        assert torch.equal(fast(a), module(b))
        assert torch.equal(a, b)
    assert float(fast.calls) == 3


def test_what_cannot_be_optimised():
    with pytest.raises(InvalidInput, match="cannot optimise a int"):
        dcir.optimize(3)
    with pytest.raises(OptionError, match="levle"):
        dcir.optimize(mlp(), levle=3)


def test_a_report_before_the_first_call():
    assert "call the module once" in str(dcir.optimize(mlp()).dcir.explain())


def test_the_same_through_dace():
    module = mlp()
    fast = dcir.optimize(module, target="dace")
    x = torch.randn(4, 6)
    out = fast(x)
    close(out, module(x))
    out.sum().backward()
    assert fast.dcir.explain().graphs[0].kind == "forward"


def test_constants_made_in_the_function() -> None:
    """Tensors that the function itself makes are constants of the graph."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[torch.tensor([2, 0])] * torch.tensor([3.0, 4.0]), torch.tensor([3, 4])

    x = torch.arange(3.0)
    for got, want in zip(dcir.optimize(fn)(x), fn(x), strict=True):
        torch.testing.assert_close(got, want)
