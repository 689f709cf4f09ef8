"""Compiled code among processes: the same text everywhere, built once, whole after a kill, usable after a fork."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

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
    """Iteration over sets must leave no trace in the text: every unit and every address is the same in another process."""
    code = """
        from dcir.codegen import build, compile as compiling
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
    said = [output(start(code, tmp_path / seed, PYTHONHASHSEED=seed)) for seed in ("1", "77")]
    assert said[0] == said[1]
    assert int(said[0].split()[0]) > 10


def test_eight_processes_build_every_kernel_once(tmp_path: Path) -> None:
    """All eight want the same network at the same moment."""
    code = """
        fast = dcir.optimize(nn.Sequential(nn.Linear(16, 20), nn.GELU(), nn.LayerNorm(20), nn.Softmax(-1)))
        fast(torch.randn(3, 16)).sum().backward()
        from dcir.codegen.build import compiler_runs
        print(compiler_runs.compiles)
    """
    alone = int(output(start(code, tmp_path / "alone")))
    assert alone > 3
    together = [start(code, tmp_path / "together") for _ in range(8)]
    assert sum(int(output(process)) for process in together) == alone


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
def test_an_end_in_the_middle_of_a_compilation(tmp_path: Path, ending: signal.Signals) -> None:
    """The next process builds what is missing; nothing half-made is used or left."""
    process = start("train('cnn')", tmp_path)
    until = time.monotonic() + 120
    while time.monotonic() < until and not list(tmp_path.glob("v1/object/*/.draft-*")):
        time.sleep(0.01)
    process.send_signal(ending)
    _, error = process.communicate(timeout=120)
    assert process.returncode != 0
    assert ending == signal.SIGKILL or "KeyboardInterrupt" in error
    again = """
        fast = train("cnn")
        torch.testing.assert_close(fast.eval()(models["cnn"][1]), cnn.eval()(models["cnn"][1]), rtol=1e-4, atol=1e-4)
        print("right")
    """
    assert output(start(again, tmp_path)) == "right\n"
    assert not list(tmp_path.glob("v1/*/*/.draft-*"))


def test_an_interrupt_leaves_the_module_usable(tmp_path: Path) -> None:
    """Ctrl-C while kernels are compiled, then the same call again in the same process."""
    code = """
        import os, signal, threading
        from dcir.codegen import compile as compiling
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
    assert output(start(code, tmp_path)) == "interrupted\nright\n"


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
