"""A folder with a model and a cache in it, in which processes compile that model one after another."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """
import copy, importlib, json, sys
import torch, dcir
import model
from dcir.frontends.torch.tape import programs_run
from tests.driver.kept.counted import counted_traces
from torch._dynamo.utils import counters

GELU, LINEAR, THREADS = torch.nn.functional.gelu, torch.nn.Linear.forward, torch.get_num_threads()


def tried(what):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    net = getattr(model, what.get("net", "Net"))(**what.get("made", {}))
    net = net.to(getattr(torch, what.get("dtype", "float32")))
    net.train(what.get("train", False))
    names = {"net": net, "model": model, "torch": torch}
    exec(what.get("before", ""), names)
    own = copy.deepcopy(net)
    keep = what.get("keep", True)
    wish = {} if keep is None else {"keep_traces": keep is True, "keep_graphs": keep == "graphs"}
    fast = dcir.optimize(own, **wish, **what.get("options", {}))
    results, worst, before = [], 0.0, programs_run()

    def call(f, n, seed):
        g = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        return f(*model.inputs(what.get("net", "Net"), n, g))

    with counted_traces() as ran, torch.set_grad_enabled(net.training):
        for i, n in enumerate(what.get("lengths", [7, 12, 9])):
            exec(what.get("each", ""), names)
            got, want = call(fast, n, i), call(net, n, i)
            found, right = [got], [want]
            if net.training:
                for m, r in ((own, got), (net, want)):
                    m.zero_grad()
                    r.pow(2).mean().backward()
                found += [p.grad for p in own.parameters()] + list(own.buffers())
                right += [p.grad for p in net.parameters()] + list(net.buffers())
            for a, b in zip(found, right):
                worst = max(worst, float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-3)))
            results.append([float(t.double().sum()) for t in found])
    graphs = [g.kind for g in fast.dcir.explain().graphs]
    # Whatever was put in the place of something goes again.
    exec(what.get("after", ""), names)
    torch.nn.functional.gelu, torch.nn.Linear.forward = GELU, LINEAR
    torch.set_num_threads(THREADS)
    importlib.reload(model)
    traced = counters["stats"].get("unique_graphs", 0)
    return {
        "traced": traced, "ahead": len(ran), "programs": programs_run() - before, "results": results, "worst": worst, "graphs": graphs,
    }


print("RESULT " + json.dumps([tried(what) for what in json.loads(sys.argv[1])]))
"""


class Place:
    """A folder with a module ``model`` in it, and a cache.

    Args:
        folder: an empty one.
        text: of the module; its ``inputs(net, n, generator)`` gives the arguments of a call.
    """

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        self.write(text)

    def write(self, text: str, name: str = "model") -> None:
        """Put the text of a module in the place of what was there."""
        (self.folder / f"{name}.py").write_text(text)

    def files(self) -> list[Path]:
        """Where traces are kept."""
        return sorted((self.folder / "cache").glob("v1/traces/*/*.trace"))

    def graphs(self) -> list[Path]:
        """Where it is kept what graphs become."""
        return sorted((self.folder / "cache").glob("v1/graphs/*/*.graph"))

    def run(self, **what: Any) -> dict[str, Any]:
        """One process that tries one thing."""
        (found,) = self.runs([what])
        return found

    def runs(self, tries: list[dict[str, Any]], **environment: str) -> list[dict[str, Any]]:
        """One process; it must agree with PyTorch."""
        return self.told(SCRIPT, tries, 1e-4, **environment)

    def told(self, script: str, tries: list[dict[str, Any]], most: float, **environment: str) -> list[dict[str, Any]]:
        """What a process finds that runs ``script``; no error may be ``most``."""
        done = subprocess.run(
            [sys.executable, "-c", script, json.dumps(tries)],
            capture_output=True, text=True, cwd=self.folder, check=False, timeout=300,
            env={**self._environment(), **environment},
        )  # fmt: skip
        rows = [row for row in done.stdout.splitlines() if row.startswith("RESULT ")]
        assert rows, done.stderr[-3000:]
        found: list[dict[str, Any]] = json.loads(rows[0].removeprefix("RESULT "))
        wrong = [(what, f) for what, f in zip(tries, found, strict=True) if not f["worst"] < most]
        assert not wrong, wrong
        return found

    def _environment(self) -> dict[str, str]:
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join((root, str(self.folder), os.environ.get("PYTHONPATH", "")))
        return {
            **os.environ, "DCIR_CACHE_DIR": str(self.folder / "cache"), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
