"""Compiled code among processes: the same text everywhere, built once, whole after a kill, usable after a fork."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_MODELS = """
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # started in a shell's background, a process ignores it
    import sys, torch, dcir
    from torch import nn
    torch.manual_seed(0)
    cnn = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    models = {"cnn": (cnn, torch.randn(2, 3, 8, 8)), "transformer": (block, torch.randn(2, 5, 16))}
    def train(name):
        net, x = models[name]
        fast = dcir.optimize(net)
        out = fast(x)
        out.sum().backward()
        return fast
"""


def start(code: str, cache: Path, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """A process that has the models above and runs ``code``."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(_MODELS) + textwrap.dedent(code)]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        env=os.environ | {"DCIR_CACHE_DIR": str(cache)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    """What a process that ended well has printed."""
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error[-3000:]
    return out


def test_the_same_source_under_every_hash_seed(tmp_path: Path) -> None:
    """Iteration over sets must leave no trace in the text: every unit and every address is the same in another process.

    The second process finds the objects of the first, but not its libraries, so it makes all texts again.
    """
    code = """
        from dcir.codegen.cpp import backend as compiling
        from dcir.codegen.cpp import toolchain as build
        units = []
        plain = compiling.compile_objects
        def seen(made, *rest):
            units.extend(unit.text for unit in made)
            return plain(made, *rest)
        compiling.compile_objects = seen
        for name in models:
            train(name)
        import hashlib
        print(len(units), hashlib.sha256("".join(units).encode()).hexdigest())
        from dcir.cache import Cache
        print(*sorted(e.key for e in Cache.default().ls() if e.kind in ("object", "graph", "library")))
    """
    first = output(start(code, tmp_path, PYTHONHASHSEED="1"))
    for kind in ("graph", "library"):
        shutil.rmtree(tmp_path / "v1" / kind, ignore_errors=True)
    second = output(start(code, tmp_path, PYTHONHASHSEED="77"))
    assert first == second
    assert int(first.split()[0]) > 10


_PARENT = """
    import json, os, traceback
    import torch._dynamo, torch._functorch.aot_autograd
    import dcir.codegen.compile, dcir.driver.optimize, dcir.transforms.pipelines
    for line in sys.stdin:
        wanted = json.loads(line)
        if isinstance(wanted, int):
            print(os.waitstatus_to_exitcode(os.waitpid(wanted, 0)[1]), flush=True)
            continue
        started = []
        for code, cache, said in wanted:
            started.append(os.fork())
            if started[-1] == 0:
                failed = 1
                os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 1)
                os.dup2(1, 2)
                os.environ["DCIR_CACHE_DIR"] = cache
                try:
                    exec(code, globals())
                    failed = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(failed)
        print(json.dumps(started), flush=True)
"""


class Parent:
    """A process that has the models and torch, and has called neither: each piece of code runs in a fork of it, which is ready at once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(_MODELS) + textwrap.dedent(_PARENT)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def _ask(self, question: object) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def start(self, *caches: Path, code: str) -> list[tuple[int, Path]]:
        """A process per cache that runs ``code``: its number, and the file of what it says."""
        said = [self._folder / f"said{self._count + i}" for i in range(len(caches))]
        self._count += len(caches)
        wanted = [(textwrap.dedent(code), str(cache), str(file)) for cache, file in zip(caches, said, strict=True)]
        return list(zip(self._ask(wanted), said, strict=True))

    def end(self, started: tuple[int, Path]) -> tuple[int, str]:
        """Exit code and words of a process, when it has ended."""
        return int(self._ask(started[0])), started[1].read_text()

    def output(self, cache: Path, code: str) -> str:
        """What a process that ends well says."""
        status, said = self.end(self.start(cache, code=code)[0])
        assert status == 0, said[-3000:]
        return said

    def close(self) -> None:
        """End it and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parent]:
    made = Parent(tmp_path_factory.mktemp("said"))
    yield made
    made.close()


def test_eight_processes_build_every_kernel_once(tmp_path: Path, parent: Parent) -> None:
    """All eight want the same network at the same moment."""
    code = """
        fast = dcir.optimize(nn.Sequential(nn.Linear(16, 20), nn.GELU(), nn.LayerNorm(20), nn.Softmax(-1)))
        fast(torch.randn(3, 16)).sum().backward()
        from dcir.codegen.cpp.compiler_process import compiler_runs
        print(compiler_runs.compiles)
    """
    alone = int(parent.output(tmp_path / "alone", code))
    assert alone > 3
    ended = [parent.end(one) for one in parent.start(*[tmp_path / "together"] * 8, code=code)]
    assert [status for status, _ in ended] == [0] * 8, ended
    assert sum(int(said) for _, said in ended) == alone


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
def test_an_end_in_the_middle_of_a_compilation(tmp_path: Path, parent: Parent, ending: signal.Signals) -> None:
    """The next process builds what is missing; nothing half-made is used or left."""
    (process,) = parent.start(tmp_path, code="train('cnn')")
    until = time.monotonic() + 120
    while time.monotonic() < until and not list(tmp_path.glob("v1/object/*/.draft-*")):
        time.sleep(0.01)
    os.kill(process[0], ending)
    status, said = parent.end(process)
    assert status != 0
    if ending == signal.SIGINT:  # a killed process leaves it to the next one
        assert "KeyboardInterrupt" in said and not list(tmp_path.glob("v1/*/*/.draft-*"))
    again = """
        fast = train("cnn")
        torch.testing.assert_close(fast.eval()(models["cnn"][1]), cnn.eval()(models["cnn"][1]), rtol=1e-4, atol=1e-4)
        print("right")
    """
    assert parent.output(tmp_path, again) == "right\n"
    assert not list(tmp_path.glob("v1/*/*/.draft-*"))


def test_an_interrupt_leaves_the_module_usable(tmp_path: Path, parent: Parent) -> None:
    """Ctrl-C while kernels are compiled, then the same call again in the same process."""
    code = """
        import os, signal, threading
        from dcir.codegen.cpp import backend as compiling
        plain = compiling.compile_objects
        def interrupted(*arguments):
            compiling.compile_objects = plain
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            return plain(*arguments)
        compiling.compile_objects = interrupted
        fast = dcir.optimize(cnn)
        x = models["cnn"][1]
        try:
            fast(x)
            print("too fast")
        except KeyboardInterrupt:
            print("interrupted")
        torch.testing.assert_close(fast.eval()(x), cnn.eval()(x), rtol=1e-4, atol=1e-4)
        print("right")
    """
    assert parent.output(tmp_path, code) == "interrupted\nright\n"


_FORK = """
    import os
    torch.set_num_threads(2)
    x = torch.randn(64, 512, requires_grad=True)
    fast = dcir.optimize(nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)))
    want = fast(x)
    (slope,) = torch.autograd.grad(want, x, torch.ones_like(want))
    child = os.fork()
    if not child:
        good = torch.allclose(fast(x), want, rtol=1e-4, atol=1e-4)
        out = fast(x)
        good &= torch.allclose(torch.autograd.grad(out, x, torch.ones_like(out))[0], slope, rtol=1e-4, atol=1e-4)
        good &= torch.get_num_threads() == 2
        new = dcir.optimize(nn.Sequential(nn.Linear(512, 300), nn.Tanh()))
        with torch.no_grad():
            good &= bool(torch.isfinite(new(x)).all())
        os._exit(0 if good else 5)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_runs_and_compiles(tmp_path: Path) -> None:
    """libgomp waits forever for a team that the fork did not copy; forked processes do without one."""
    process = start(_FORK, tmp_path)
    try:
        assert process.communicate(timeout=180)[0] == "0\n"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the child too, should it wait for ever


def test_workers_of_a_data_loader(tmp_path: Path) -> None:
    """A data set that calls a compiled module."""
    code = """
        x = models["cnn"][1]
        fast = dcir.optimize(cnn.eval())
        with torch.no_grad():
            want = fast(x)
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 6
            def __getitem__(self, i):
                with torch.no_grad():
                    return fast(x)
        got = list(torch.utils.data.DataLoader(Data(), batch_size=None, num_workers=2))
        print(len(got), all(torch.allclose(g, want, rtol=1e-5, atol=1e-6) for g in got))
    """
    assert output(start(code, tmp_path)) == "6 True\n"
