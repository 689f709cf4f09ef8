"""What changes numbers is found, made small, and written to a file that fails while the defect is there."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from dcir.codegen.cpp.emitters import EMITTERS
from dcir.cost.machine import Machine
from dcir.driver.verify.bisect import bisect_module
from dcir.driver.verify.locate import CODE, KERNEL, PASS
from dcir.driver.verify.reproducer import literal
from dcir.driver.verify.slices import V, described, slice_of, smaller
from dcir.errors import Unsupported
from dcir.ir.loop_nest import LoopNest
from dcir.ir.memory_plan import ARENA
from dcir.transforms.pipelines import pipeline
from dcir.transforms.tier4_movement.plan_arena import PlanArena

pytestmark = pytest.mark.in_turn(3)

BROKEN = '''
"""A pass that takes a sine for a hyperbolic tangent."""
from dataclasses import dataclass, replace
from dcir.ir.loop_nest import LoopNest
from dcir.transforms.base import PassResult, Pass

@dataclass(frozen=True)
class TanhIsSine(Pass):
    new: str = "sin"

    def apply(self, net):
        outcome = PassResult()
        for op in net.ops():
            if isinstance(op.spec, LoopNest) and any(s.op == "tanh" for s in op.spec.body):
                body = tuple(replace(s, op=self.new) if s.op == "tanh" else s for s in op.spec.body)
                net.rewire(op, replace(op.spec, body=body), net.ins(op), net.outs(op))
                outcome.changed += 1
        return outcome
'''


class Net(nn.Module):
    """Convolutions, a normalisation, a view and one tanh in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 5, 3)
        self.norm, self.last = nn.BatchNorm2d(5), nn.Linear(5 * 12, 7)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.relu(self.first(x))
        b = torch.tanh(self.norm(self.second(a)) * 1.5)
        c = self.last(nn.functional.avg_pool2d(b, 2).flatten(1))
        return torch.log_softmax(c, -1), a.mean((2, 3))


@pytest.fixture
def net() -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(0)
    return Net().eval(), [torch.randn(2, 3, 10, 8)]


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Another cache: libraries are found by what the graph is, which knows nothing of patched emitters."""

    def use(name: str) -> Path:
        monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path / name))
        return tmp_path / name

    return use


def code_of(path: Path) -> int:
    """The exit code of a reproducer, in this process."""
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    return int(ended.value.code or 0)


def test_nothing_is_found_where_nothing_is_wrong(net, tmp_path) -> None:
    found = bisect_module(*net, tmp_path / "repro.py")
    assert found.finding is None and not (tmp_path / "repro.py").exists()


def test_a_broken_pass(net, tmp_path, monkeypatch) -> None:
    """It is named; its reproducer runs alone, fails, and passes once the pass is repaired."""
    (tmp_path / "my_passes.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    from my_passes import TanhIsSine

    passes = pipeline(4)
    broken = (*passes[:5], TanhIsSine(), *passes[5:])
    found = bisect_module(*net, tmp_path / "repro.py", pipeline=broken)
    assert found.finding is not None and found.finding.kind == PASS
    assert found.finding.culprit == "pass tanh-is-sine" and found.finding.error > 100 * found.finding.tolerance
    assert found.finding.passes == (TanhIsSine(),)
    assert found.calls == 1

    text = (tmp_path / "repro.py").read_text()
    assert "aten.tanh.default" in text and "convolution" not in text
    namespace = runpy.run_path(str(tmp_path / "repro.py"), run_name="loaded")
    assert sum(torch.Size(s.shape).numel() for s in namespace["SOURCES"]) <= 4

    def alone() -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-W", "ignore", str(tmp_path / "repro.py")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    done = alone()
    assert done.returncode == 1 and "pass tanh-is-sine changes numbers" in done.stdout, done.stderr
    (tmp_path / "my_passes.py").write_text(BROKEN.replace('new: str = "sin"', 'new: str = "tanh"'))
    repaired = text.replace("TanhIsSine(new='sin')", "TanhIsSine()")
    (tmp_path / "repro.py").write_text(repaired)
    done = alone()
    assert done.returncode == 0 and "nothing changes numbers" in done.stdout, done.stdout + done.stderr


def _wrong(right: Callable[[LoopNest, Machine], object]) -> Callable[[LoopNest, Machine], object]:
    """The emitter of loop nests, with a power of two for every exponential."""

    def emit(spec: LoopNest, machine: Machine) -> object:
        body = tuple(replace(s, op="exp2") if s.op == "exp" else s for s in spec.body)
        return right(replace(spec, body=body), machine)

    return emit


def test_a_broken_emitter(tmp_path, monkeypatch, fresh) -> None:
    """The kernel is named; its reproducer fails while the emitter is broken."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 30), nn.Softmax(-1), nn.Linear(30, 5), nn.Sigmoid()
    )
    inputs = [torch.randn(9, 12)]
    fresh("right")
    assert bisect_module(module.eval(), inputs, tmp_path / "repro.py").finding is None
    with monkeypatch.context() as patch:
        patch.setitem(EMITTERS.table, LoopNest, _wrong(EMITTERS.table[LoopNest]))
        fresh("wrong")
        found = bisect_module(module.eval(), inputs, tmp_path / "repro.py")
        assert found.finding is not None and found.finding.kind == KERNEL
        assert "LoopNest" in found.finding.culprit
        assert found.calls <= 2
        assert found.finding.passes == ()
        assert code_of(tmp_path / "repro.py") == 1
    fresh("repaired")
    assert code_of(tmp_path / "repro.py") == 0


def test_a_broken_arena(tmp_path, monkeypatch, fresh) -> None:
    """Every kernel is right alone; values that lie over each other show only in the whole code, since that pass."""
    plain = PlanArena.apply

    def overlapping(self, net):
        outcome = plain(self, net)
        offsets = dict.fromkeys(net.memory.offsets(ARENA), 0)
        net.memory = net.memory.with_block(ARENA, net.memory.nbytes(ARENA), offsets)
        return outcome

    monkeypatch.setattr(PlanArena, "apply", overlapping)
    monkeypatch.setattr("dcir.transforms.runner.verify", lambda net: None)
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 33), nn.Linear(33, 33)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.softmax(self.first(x), -1)
            return torch.softmax(y + torch.softmax(self.second(y), -1).flip(0), -1)

    fresh("wrong")
    found = bisect_module(Residual(), [torch.randn(5, 8)], tmp_path / "repro.py")
    assert found.finding is not None and found.finding.kind == CODE, found
    assert found.finding.culprit == "the code that runs the kernels, since pass plan-arena"
    assert code_of(tmp_path / "repro.py") == 1
    monkeypatch.undo()
    fresh("repaired")
    assert code_of(tmp_path / "repro.py") == 0


def test_what_no_drawn_input_shows_is_written_down(tmp_path, monkeypatch) -> None:
    """A pass that is wrong for one value only: the reproducer holds the model's own numbers."""
    text = BROKEN.replace('body = tuple(replace(s, op=self.new) if s.op == "tanh" else s for s in op.spec.body)',
                          "body = self.changed(op.spec.body)")  # fmt: skip
    text = (
        text.replace("TanhIsSine", "WrongAtSeven").replace('s.op == "tanh"', 's.op == "tanh"')
        + '''
    def changed(self, body):
        """tanh(x) becomes 5 where x is exactly 7."""
        from dcir.ir.statements import Compute, Const
        out, where = [], {}
        for i, s in enumerate(body):
            args = tuple(where[a] for a in s.args)
            out.append(s.with_args(args))
            where[i] = len(out) - 1
            if s.op == "tanh":
                seven, five = Const(7.0, s.dtype), Const(5.0, s.dtype)
                out += [seven, five, Compute("eq", "bool", (args[0], len(out)))]
                out.append(Compute("where", s.dtype, (len(out) - 1, len(out) - 2, where[i])))
                where[i] = len(out) - 1
        return tuple(out)
'''
    )
    (tmp_path / "rare_passes.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    from rare_passes import WrongAtSeven

    x = torch.linspace(-3, 3, 24).reshape(4, 6)
    x[2, 1] = 7.0
    module = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Softplus())
    found = bisect_module(module, [x], tmp_path / "repro.py", pipeline=(WrongAtSeven(),))
    assert found.finding is not None and found.finding.culprit == "pass wrong-at-seven"
    assert "data=" in (tmp_path / "repro.py").read_text()
    assert code_of(tmp_path / "repro.py") == 1


def test_slices_are_drawn_alike_and_shrink() -> None:
    x = torch.randint(3, 9, (4, 6)).t()
    source = described("x0", x)
    assert (source.low, source.high, source.strides) == (3.0, 8.0, (1, 6))
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = x
    out = graph.call_function(torch.ops.aten.sum.dim_IntList, (node, [1]))
    out.meta["val"] = x.sum(1)
    graph.output((out,))
    part, values = slice_of(torch.fx.GraphModule({}, graph), [], [x])
    assert torch.equal(part.evaluate(values)[0], x.sum(1))
    assert part.draw(3)["x0"].stride() == x.stride()
    assert torch.equal(part.draw(3)["x0"], part.draw(3)["x0"])
    small = smaller(part, 6, 2)
    assert small.sources[0].shape == (2, 4) and small.evaluate(small.draw(0))[0].shape == (2,)


def test_text_of_arguments() -> None:
    value = (V("a"), (1, 2.5, float("inf")), None, "nearest\n", torch.float32, torch.device("cpu"), True)
    text = literal(value)
    read = eval(text, {"V": V, "torch": torch})
    assert read == value
    with pytest.raises(Unsupported):
        literal(object())
