"""Calls submitted to streams: the module's own results in order, errors, refusals, weights that change, processes that fork or end."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

import dcir
from dcir import cores
from dcir.errors import IndexOutOfRange, InvalidInput, OptionError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        y = self.down(torch.nn.functional.gelu(self.up(x)))
        return y * 2 if twice else y


@pytest.fixture(autouse=True)
def processors(monkeypatch):
    """Four processors, whatever tests may use here."""
    monkeypatch.setattr(cores, "usable_threads", lambda *_: 4)
    torch._dynamo.reset()
    torch.manual_seed(0)
    others = set(threading.enumerate())
    return lambda: [t for t in threading.enumerate() if t not in others and t.name.startswith("dcir ")]


@pytest.mark.parametrize("options", [{"streams": 3}, {"streams": 1}, {"hint": "throughput"}], ids=str)
def test_many_in_flight_are_equal_to_the_module_called_directly(options):
    fast = dcir.optimize(Net().eval(), **options)
    inputs = [torch.randn(4, 16) for _ in range(100)]
    with torch.no_grad():
        futures = [fast.dcir.submit(x) for x in inputs]
        got = fast.dcir.gather(futures)
        assert all(torch.equal(y, fast(x)) for x, y in zip(inputs, got, strict=True))
        assert all(torch.equal(y, f.result()) for y, f in zip(fast.dcir.map(inputs), futures, strict=True))
    # Streams and the direct call share one program, and so its prepared weights.
    assert len(fast.dcir.explain().graphs) == len(fast.dcir.session.programs) == 1


def test_futures_that_are_made_on_the_way_are_all_submitted_before_one_is_waited_for():
    fast = dcir.optimize(Net().eval(), streams=2)
    inputs = [torch.randn(4, 16) for _ in range(9)]
    with torch.no_grad():
        got = fast.dcir.gather(fast.dcir.submit(x, twice=True) for x in inputs)
        assert all(torch.equal(y, fast(x, twice=True)) for x, y in zip(inputs, got, strict=True))


def test_several_shapes_at_once():
    module = Net().eval()
    fast = dcir.optimize(module, streams=3)
    inputs = [torch.randn(n, 16) for n in (3, 5, 7, 2) * 10]
    with torch.no_grad():
        for x, y in zip(inputs, fast.dcir.map(inputs), strict=True):
            torch.testing.assert_close(y, module(x), atol=1e-5, rtol=1e-5)


def test_map_runs_no_further_ahead_than_the_bound():
    fast, given = dcir.optimize(Net().eval(), streams=2), []

    def inputs():
        for i in range(30):
            given.append(i)
            yield torch.randn(4, 16)

    with torch.no_grad():
        for taken, _ in enumerate(fast.dcir.map(inputs())):
            assert len(given) <= taken + 4


def test_an_error_arrives_where_its_result_would():
    fast = dcir.optimize(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)).eval(), streams=2)
    good, bad = torch.tensor([1, 2, 3]), torch.tensor([1, 10, 3])
    with torch.no_grad():
        futures = [fast.dcir.submit(x) for x in (good, bad, good)]
        assert torch.equal(futures[0].result(), futures[2].result())
        assert isinstance(futures[1].exception(), IndexOutOfRange)
        with pytest.raises(IndexOutOfRange):
            fast.dcir.gather(futures)
        assert torch.equal(fast.dcir.submit(good).result(), futures[0].result())


def test_changed_weights_are_seen():
    module = Net().eval()
    fast, x = dcir.optimize(module, streams=2), torch.randn(4, 16)
    with torch.no_grad():
        for change in (lambda: None, lambda: module.up.weight.mul_(2), lambda: module.down.bias.data.add_(1)):
            fast.dcir.gather(fast.dcir.submit(x) for _ in range(6))
            change()
            for y in fast.dcir.gather(fast.dcir.submit(x) for _ in range(6)):
                torch.testing.assert_close(y, module(x), atol=1e-5, rtol=1e-5)


def test_what_wants_gradients_is_refused():
    fast, x = dcir.optimize(Net().eval(), streams=2), torch.randn(4, 16)
    with pytest.raises(InvalidInput, match=r"up\.weight"):
        fast.dcir.submit(x)
    fast.requires_grad_(False)
    with pytest.raises(InvalidInput, match="input 0"):
        fast.dcir.submit(x.clone().requires_grad_())
    assert not fast.dcir.submit(x).result().requires_grad
    assert not fast.dcir.session.graphs[0].fallbacks


def test_modules_that_train_and_modes_of_the_thread_are_refused():
    fast, x = dcir.optimize(Net(), streams=2), torch.randn(4, 16)
    with torch.no_grad():
        with pytest.raises(InvalidInput, match="training mode"):
            fast.dcir.submit(x)
        fast.eval()
        with torch.autocast("cpu"), pytest.raises(InvalidInput, match="autocast"):
            fast.dcir.submit(x)
        with torch.device("cpu"), pytest.raises(InvalidInput, match="default device"):
            fast.dcir.submit(x)
        with torch.inference_mode():
            assert torch.equal(fast.dcir.submit(x).result(), fast(x))


def test_a_module_trains_and_is_called_directly_as_ever(processors):
    module = Net()
    fast, x = dcir.optimize(module, streams=2), torch.randn(4, 16)
    threads = torch.get_num_threads()
    fast(x).sum().backward()
    got = module.up.weight.grad
    module.up.weight.grad = None
    module(x).sum().backward()
    torch.testing.assert_close(got, module.up.weight.grad, atol=1e-5, rtol=1e-5)
    assert torch.get_num_threads() == threads and not processors()


def test_threads_are_gone_with_the_module_and_what_was_submitted_is_done(processors):
    fast = dcir.optimize(Net().eval(), streams=3)
    with torch.no_grad():
        futures = [fast.dcir.submit(torch.randn(4, 16)) for _ in range(6)]
    mine, gone = processors(), weakref.ref(fast)
    assert len(mine) == 3
    del fast
    assert all(f.result().shape == (4, 5) for f in futures)
    gc.collect()
    for thread in mine:
        thread.join(60)
    assert not any(t.is_alive() for t in mine) and gone() is None


def test_functions_and_copies_have_streams_of_their_own():
    double = dcir.optimize(lambda x: x * 2 + 1, streams=2)
    assert torch.equal(double.dcir.submit(torch.ones(3)).result(), torch.full((3,), 3.0))
    fast = dcir.optimize(Net().eval(), streams=2)
    twin = copy.deepcopy(fast)
    with torch.no_grad():
        nn.init.zeros_(twin.down.weight)
        x = torch.randn(4, 16)
        assert torch.equal(twin.dcir.submit(x).result(), twin.down.bias.expand(4, 5))
        assert torch.equal(fast.dcir.submit(x).result(), fast(x))


def test_a_function_lives_as_long_as_its_handle():
    fast = dcir.optimize(lambda x: x * 2, hint="throughput")
    handle, gone = fast.dcir, weakref.ref(fast)
    del fast
    assert torch.equal(handle.submit(torch.ones(3)).result(), torch.full((3,), 2.0))
    del handle
    gc.collect()
    assert gone() is None


def test_iterables_of_different_lengths_are_refused():
    fast = dcir.optimize(lambda x, y: x + y, streams=2)
    results = fast.dcir.map([torch.ones(3)] * 2, [torch.ones(3)])
    with pytest.raises(InvalidInput, match="1 of 2 iterables have 1 values, and others more"):
        list(results)


def test_kernels_are_made_for_the_team_and_explain_says_why():
    fast = dcir.optimize(Net().eval(), streams=2, threads=4)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        fast = dcir.optimize(Net().eval(), streams=2)
    finally:
        torch.set_num_threads(before)
    with torch.no_grad():
        fast.dcir.submit(torch.randn(4, 16)).result()
    report = fast.dcir.explain()
    assert report.graphs[0].threads == 2 and report.to_json()["streams"]["threads"] == 2
    assert report.to_text().startswith("2 streams of 2 threads each: asked for")
    chosen = dcir.optimize(Net().eval(), hint="throughput")
    with torch.no_grad():
        chosen.dcir.submit(torch.randn(4, 16)).result()
    assert "predicted calls a second" in chosen.dcir.explain().to_text()


def test_a_number_of_streams_with_larger_teams_is_compiled_for_them(monkeypatch):
    from dcir.cost.stream_number import StreamNumber
    from dcir.driver.calls import submissions

    monkeypatch.setattr(submissions, "chosen", lambda *_: StreamNumber(1, 2, "a test"))
    fast, x = dcir.optimize(Net().eval(), hint="throughput"), torch.randn(4, 16)
    with torch.no_grad():
        got = fast.dcir.submit(x).result()
        assert torch.equal(got, fast(x))
    gc.collect()
    assert [g.threads for g in fast.dcir.session.graphs] == [1, 2] and len(fast.dcir.session.programs) == 1


def test_what_has_no_streams_says_so(tmp_path):
    fast: Any = dcir.optimize(Net().eval())
    with pytest.raises(OptionError, match="hint='throughput'"):
        fast.dcir.submit(torch.randn(4, 16))
    with pytest.raises(BackendCompilerFailed, match="one call at a time"):
        torch.compile(Net(), backend="dcir", options={"hint": "throughput"})(torch.randn(4, 16))
    net = Net()
    with pytest.raises(OptionError, match="one call at a time"):
        dcir.train_step(net, lambda y, _: y.sum(), torch.optim.SGD(net.parameters(), lr=0.1), streams=2)


_FORK = """
import os, torch, dcir
from torch import nn
from dcir import cores
cores.usable_threads = lambda *_: 2
fast = dcir.optimize(nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4)).eval().requires_grad_(False), streams=2)
inputs = [torch.randn(4, 16) for _ in range(10)]
wanted = fast.dcir.gather(fast.dcir.submit(x) for x in inputs)
child = os.fork()
if not child:
    got = fast.dcir.gather(fast.dcir.submit(x) for x in inputs)
    os._exit(0 if all(map(torch.equal, got, wanted)) else 3)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("parent", all(map(torch.equal, fast.dcir.gather(fast.dcir.submit(x) for x in inputs), wanted)))
"""

_END = """
import os, torch, dcir
from torch import nn
from dcir import cores
cores.usable_threads = lambda *_: 2
fast = dcir.optimize(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 4)).eval().requires_grad_(False), streams=2)
for i in range(4):
    fast.dcir.submit(torch.randn(512, 512)).add_done_callback(lambda f, i=i: os.write(1, f"done {tuple(f.result().shape)}\\n".encode()))
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [(_FORK, ["child 0", "parent True"]), (_END, ["done (512, 4)"] * 4)],
    ids=["a process that forks", "a program that ends with calls under way"],
)
def test_processes(program, said):
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (run.returncode, run.stdout.split("\n")[:-1]) == (0, said), run.stderr
