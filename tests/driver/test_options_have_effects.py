"""Every option does something: one test for each field of ``Options``, and none is without."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import dcir
from dcir.driver.session import Session
from dcir.errors import (
    InvalidInput,
    MemoryLimitTooLow,
    OptionError,
    RecompileWarning,
    Unsupported,
    VerificationFailed,
)
from dcir.frontends.torch import ahead_of_time
from dcir.ir.network import Network
from dcir.ir.schedule import Schedule
from dcir.options import Options
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(x)))


def made(fn: Any = None, inputs: Any = None, **options: Any) -> Any:
    """An optimised module after one call, and its graph's record."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    fast = dcir.optimize(Net() if fn is None else fn, **options)
    with torch.no_grad():
        fast(torch.ones(4, 6) if inputs is None else inputs)
    return fast, fast.dcir.explain().graphs[0]


def level(tmp_path: Any) -> None:
    plain, whole = made(level=0)[1], made(level=4)[1]
    assert [p.name for p in plain.passes] == ["run-in-order"] and whole.calls < plain.calls
    assert all(what.startswith("loops: ") for _, what, _ in plain.schedules)


def target(tmp_path: Any) -> None:
    assert made(target="cpp")[1].kernels and not made(target="dace")[1].kernels


def verify(tmp_path: Any) -> None:
    @dataclasses.dataclass(frozen=True)
    class Wrong(Pass):
        tier = 2

        def apply(self, net: Network) -> PassResult:
            first, *_ = [op for op in net.ops() if hasattr(op.spec, "body")]
            body = tuple(dataclasses.replace(s, op="sub") if s.op == "add" else s for s in first.spec.body)
            net.rewire(first, dataclasses.replace(first.spec, body=body), net.ins(first), net.outs(first))
            outcome = PassResult()
            outcome.changed = 1
            return outcome

    made(pipeline=(Wrong(),))
    with pytest.raises(VerificationFailed):
        made(pipeline=(Wrong(),), verify="passes")


def strict(tmp_path: Any) -> None:
    def inverse(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x)

    assert made(inverse, torch.eye(3))[1].fallbacks
    with pytest.raises(Unsupported):
        made(inverse, torch.eye(3), strict=True)


def threads(tmp_path: Any) -> None:
    assert made(threads=1)[1].threads == 1 and made(threads=2)[1].threads == 2


def until(tmp_path: Any) -> None:
    assert [p.name for p in made(until="fuse-epilogues")[1].passes][-1] == "fuse-epilogues" != made()[1].passes[-1].name


def dynamic(tmp_path: Any) -> None:
    fast, _ = made(dynamic={"x": {0: torch.export.Dim("batch", min=1, max=8)}})
    with torch.no_grad(), pytest.raises(InvalidInput):
        fast(torch.ones(9, 6))
    with torch.no_grad():
        made()[0](torch.ones(9, 6))


def shape_limit(tmp_path: Any) -> None:
    def mixed(x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)

    def told(limit: int) -> bool:
        fast, _ = made(mixed, shape_limit=limit)
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            for n in (5, 7):
                fast(torch.ones(n, 6))
        return any(w.category is RecompileWarning and "which is the limit" in str(w.message) for w in caught)

    assert told(1) and not told(16)


def pipeline(tmp_path: Any) -> None:
    assert [p.name for p in made(pipeline=(RemoveDeadCode(),))[1].passes] == ["remove-dead-code"]


def schedule(tmp_path: Any) -> None:
    def printed(**options: Any) -> list[str]:
        return [what for _, what, _ in made(**options)[1].schedules]

    assert all("vector" not in what for what in printed(schedule={"*": Schedule.of(method="loops", vector="")}))
    assert any("vector" in what for what in printed())


def debug_dir(tmp_path: Any) -> None:
    made()
    assert not list(tmp_path.iterdir())
    made(debug_dir=tmp_path)
    assert list(tmp_path.iterdir())


def memory_limit(tmp_path: Any) -> None:
    made(memory_limit="1MB")
    with pytest.raises(MemoryLimitTooLow):
        made(memory_limit=1)


def precision(tmp_path: Any) -> None:
    made(precision="fp32")
    with pytest.raises(OptionError):
        made(precision="bf16")


def fused_optimizers(tmp_path: Any) -> None:
    def form(wish: bool) -> Any:
        torch._dynamo.reset()
        fast = dcir.optimize(Net(), fused_optimizers=wish)
        optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
        seen: list[Any] = []
        optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append(o.param_groups[0]["fused"]))
        fast(torch.ones(4, 6)).sum().backward()
        optimizer.step()
        return seen

    assert form(True) == [True] and form(False) == [None]


def tune(tmp_path: Any) -> None:
    assert "tuning" not in made()[1].seconds
    # Of a busy machine nothing is kept, and tests share theirs.
    with mock.patch("dcir.driver.measure.tune.share_of_others", lambda threads, work: [work(), 0.0][1]):
        assert made(tune="1s")[1].seconds["tuning"] > 0


def prepare(tmp_path: Any) -> None:
    def follows(how: str) -> list[bool]:
        net = Net().eval()
        fast, _ = made(net, prepare=how)
        seen = []
        with torch.no_grad():
            for change in (lambda: net.up.weight.mul_(2), lambda: fast.dcir.refresh()):
                change()
                seen.append(torch.allclose(fast(torch.ones(4, 6)), net(torch.ones(4, 6)), atol=1e-5))
        return seen

    assert follows("version") == follows("always") == [True, True] and follows("frozen") == [False, True]


def hint(tmp_path: Any) -> None:
    fast, _ = made(Net().eval(), hint="throughput")
    with torch.no_grad():
        assert fast.dcir.submit(torch.ones(4, 6)).result().shape == (4, 3)
    with pytest.raises(OptionError):
        made(Net().eval())[0].dcir.submit(torch.ones(4, 6))


def streams(tmp_path: Any) -> None:
    with mock.patch("dcir.cores.usable_threads", lambda: 3):
        assert "3 streams of 1 thread each" in str(made(streams=3)[0].dcir.explain())


def record_function(tmp_path: Any) -> None:
    def events(wish: bool) -> int:
        fast, _ = made(Net().eval(), record_function=wish)
        with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
            fast(torch.ones(4, 6))
        return sum(e.name.startswith("dcir") for e in prof.events())

    assert events(False) == 1 < events(True)


def background(tmp_path: Any) -> None:
    held: list[Any] = []
    with mock.patch("dcir.driver.calls.background.Background.start", lambda self, work: held.append(work)):
        fast = dcir.optimize(Net().eval(), background=True)
        with torch.no_grad():
            fast(torch.ones(4, 6))
    assert held
    assert not fast.dcir.session.graphs


def keep_traces(tmp_path: Any) -> None:
    def graphs_traced() -> int:
        counters.clear()
        made(Net().eval(), keep_traces=True)
        return int(counters["stats"]["unique_graphs"])

    with mock.patch.dict("os.environ", {"DCIR_CACHE_DIR": str(tmp_path)}):
        assert [graphs_traced(), graphs_traced()] == [1, 0]


def keep_graphs(tmp_path: Any) -> None:
    with mock.patch.dict("os.environ", {"DCIR_CACHE_DIR": str(tmp_path)}):
        for wish in (False, True):
            for _ in range(2):
                torch._dynamo.reset()
                with mock.patch.object(
                    ahead_of_time, "aot_module_simplified", wraps=ahead_of_time.aot_module_simplified
                ) as traced:
                    made(Net().eval(), keep_graphs=wish)
            assert traced.called is not wish


def remarks(tmp_path: Any) -> None:
    assert len(made(remarks=True)[0].dcir.remarks()) > 0
    with pytest.raises(OptionError):
        made()[0].dcir.remarks()


def skip(tmp_path: Any) -> None:
    fast, graph = made(remarks=True)
    site = next(r.remark.site for r in fast.dcir.remarks(by="fuse-epilogues", kind="passed"))
    changed = [p.changed for p in graph.passes if p.name == "fuse-epilogues"]
    assert [p.changed for p in made(skip=[site])[1].passes if p.name == "fuse-epilogues"] != changed


def history(tmp_path: Any) -> None:
    kept = made(history=True)[0].dcir.report().to_json()
    assert len(kept["graphs"][0]["snapshots"]) > 1
    with pytest.raises(OptionError):
        made()[0].dcir.report()


def own_exchange(tmp_path: Any) -> None:
    with mock.patch("dcir.driver.session.keep_freed_memory") as keep:
        for wish in (False, True):
            Session(Options.make(own_exchange=wish)).gathers()
            assert keep.called is wish


def cuda_graphs(tmp_path: Any) -> None:
    with mock.patch.dict("os.environ", {"DCIR_CUDA": "twin"}):
        for wish in (False, True):
            fast, _ = made(target="cuda", cuda_graphs=wish)
            assert [p.replays is not None for p in fast.dcir.session.programs] == [wish]


EFFECTS = {
    f.__name__: f
    for f in (
        level, target, verify, strict, threads, until, dynamic, shape_limit, pipeline, schedule, debug_dir, memory_limit, precision,
        fused_optimizers, tune, prepare, hint, streams, record_function, remarks, skip, background,
        history, keep_traces, keep_graphs, own_exchange, cuda_graphs,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Options)])
def test_it_has_an_effect(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    EFFECTS[name](tmp_path)
