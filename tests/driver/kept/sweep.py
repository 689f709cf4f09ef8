"""Keeps the traces of real networks in one process, runs them in another: what is traced there, what refused, whether numbers agree.

    python -m tests.driver.kept.sweep --bench models.py --modes inference training --sizes constant changing --only resnet
    python -m tests.driver.kept.sweep --graphs --only Llama

With ``--graphs`` it is what graphs become that is kept, and what AOTAutograd traces that is counted.

A line of JSON for each case. The networks are those of ``tests/endtoend/architectures.py``, and those of a file with ``NAMES`` and
``build(name, batch, train)``, such as a benchmark's. It is no test: it takes half an hour for all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import hashlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

import dcir
from tests.driver.kept.counted import counted_traces
from tests.endtoend.architectures import ARCHITECTURES

_LOGS = ("dcir.driver.kept", "dcir.frontends.torch.kept")
_CALLS = 3
_SHORTER = 3
"""By how many tokens a call is shorter than the one before."""
_FRAME = "benchmark"
Call = tuple[tuple[Any, ...], dict[str, Any]]
Case = tuple[str, str, str]
"""Name of a network, "inference" or "training", "constant" or "changing"."""


class _Heard(logging.Handler):
    """What the keeper logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    heard = _Heard()
    loggers = [logging.getLogger(name) for name in _LOGS]
    for logger in loggers:
        logger.addHandler(heard)
        logger.setLevel(logging.DEBUG)
    try:
        yield heard.lines
    finally:
        for logger in loggers:
            logger.removeHandler(heard)


def _of_file(path: str) -> ModuleType:
    """A module of networks, which is found again by its file."""
    if _FRAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(_FRAME, path)
        assert spec is not None and spec.loader is not None
        sys.modules[_FRAME] = made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    return sys.modules[_FRAME]


def _network(name: str, bench: str | None, *, train: bool) -> tuple[nn.Module, Call]:
    torch.manual_seed(0)
    if name in ARCHITECTURES:
        from tests.endtoend.test_architectures import _import_or_skip

        _import_or_skip(name.partition("-")[0])
        module, inputs = ARCHITECTURES[name]()
        return module, ((), inputs)
    assert bench is not None, f"{name} is a network of --bench"
    case = _of_file(bench).build(name, 2, train)
    return case.module, (tuple(case.inputs), {})


def _calls(given: Call, sizes: str) -> list[Call]:
    """Several calls: with other tokens or images, and where sizes change with fewer tokens, or else with more images."""
    flat, form = pytree.tree_flatten(given)
    # Beside rows of numbers integers are not words in order, but fields of a row.
    rows = any(isinstance(v, Tensor) and v.is_floating_point() and v.ndim == 2 for v in flat)
    tokens = [isinstance(v, Tensor) and v.dtype is torch.long and v.ndim == 2 and not rows for v in flat]
    past = [isinstance(v, Tensor) and v.is_floating_point() and v.ndim == 6 for v in flat]
    made = []
    for i in range(_CALLS):
        torch.manual_seed(i)
        values = []
        for value, is_tokens, is_past in zip(flat, tokens, past, strict=True):
            if not isinstance(value, Tensor):
                values.append(value)
            elif sizes == "constant":
                values.append(value if is_tokens else _like(value))
            elif is_past:
                values.append(value[..., : value.shape[4] - i * _SHORTER, :].contiguous())
            elif is_tokens and value.shape[1] > _CALLS * _SHORTER:
                values.append(value[:, : value.shape[1] - i * _SHORTER].contiguous())
            elif any(tokens):
                values.append(value)
            else:
                values.append(torch.cat([_like(value) for _ in range(i + 1)]))
        made.append(pytree.tree_unflatten(values, form))
    return made


def _like(value: Tensor) -> Tensor:
    return torch.randn_like(value) if value.is_floating_point() else value


def _step(module: nn.Module, call: Call, seed: int, *, train: bool) -> list[Tensor]:
    """Results, and of a training step gradients and buffers."""
    torch.manual_seed(seed)
    args, named = call
    out = [v for v in pytree.tree_leaves(_plain(module(*args, **named))) if isinstance(v, Tensor)]
    if not train:
        return out
    module.zero_grad()
    loss = sum((v.float().pow(2).mean() for v in out if v.is_floating_point() and v.requires_grad), torch.zeros(()))
    loss.backward()
    gradients = [p.grad if p.grad is not None else torch.zeros(()) for p in module.parameters()]
    return [v.detach() for v in (*out, *gradients, *module.buffers())]


def _plain(value: Any) -> Any:
    """What models return, without classes of their package's own."""
    return dict(value) if isinstance(value, dict) else value


def _worst(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """The largest error over the largest magnitude of its tensor, or of a thousandth of all."""
    floor = 1e-3 * max((float(t.double().abs().max()) for t in want if t.numel()), default=1.0)
    return max(
        (float((a.double() - b.double()).abs().max()) / max(float(b.double().abs().max()), floor, 1e-30)
         for a, b in zip(got, want, strict=True) if b.numel() and a.shape == b.shape),
        default=0.0,
    )  # fmt: skip


def _digest(results: Sequence[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for t in results:
        digest.update(t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if t.numel() else b"-")
    return digest.hexdigest()


def _tried(case: Case, bench: str | None, *, graphs: bool) -> dict[str, Any]:
    """One case in this process."""
    name, mode, sizes = case
    train = mode == "training"
    torch._dynamo.reset()
    counters.clear()
    module, given = _network(name, bench, train=train)
    module.train(train)
    calls = _calls(given, sizes)
    own = copy.deepcopy(module)
    fast = dcir.optimize(own, keep_traces=not graphs, keep_graphs=graphs, fused_optimizers=False)
    what = "a kept graph is used:" if graphs else "a kept trace is used:"
    digests, worst, seconds, traced = [], 0.0, [], []
    with _listening() as heard, counted_traces() as ran, torch.set_grad_enabled(train):
        for i, call in enumerate(calls):
            start = sum(os.times()[:4])
            got = _step(fast, call, i, train=train)
            seconds.append(round(sum(os.times()[:4]) - start, 2))
            traced.append(len(ran) if graphs else int(counters["stats"].get("unique_graphs", 0)))
            digests.append(_digest(got))
            worst = max(worst, _worst(got, _step(module, call, i, train=train)))
    kept = sum(line.startswith("a trace is kept:") for line in heard)
    used = sum(line.startswith(what) for line in heard)
    rest = [line for line in heard if not line.startswith(("a trace is kept:", what))]
    return {
        "traced": traced, "kept": kept, "used": used, "said": list(dict.fromkeys(rest)), "digests": digests, "worst": worst,
        "seconds": seconds,
    }  # fmt: skip


def _child(cases: Sequence[Case], bench: str | None, *, graphs: bool) -> None:
    for case in cases:
        try:
            found = _tried(case, bench, graphs=graphs)
        except BaseException as error:  # of one network; pytest's skip among them
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        print("RESULT " + json.dumps([case, found]), flush=True)
        gc.collect()


def _process(
    cases: Sequence[Case], bench: str | None, cache: str, seconds: float, *, graphs: bool
) -> dict[Case, dict[str, Any]]:
    command = [sys.executable, "-m", "tests.driver.kept.sweep", "--child", json.dumps(cases)]
    command += (["--bench", bench] if bench else []) + ["--graphs"] * graphs
    found: dict[Case, dict[str, Any]] = {}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds, env=os.environ | {"DCIR_CACHE_DIR": cache}
        )  # fmt: skip
        text, ended = done.stdout, f"ended with {done.returncode}: {done.stderr[-300:]}"
    except subprocess.TimeoutExpired as late:
        text = late.stdout.decode() if isinstance(late.stdout, bytes) else str(late.stdout or "")
        ended = f"took more than {seconds:.0f} s"
    for line in text.splitlines():
        if line.startswith("RESULT "):
            case, result = json.loads(line.removeprefix("RESULT "))
            found[tuple(case)] = result
    return {case: found.get(case, {"error": ended}) for case in cases}


def _row(case: Case, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What became of a case."""
    row: dict[str, Any] = {"case": "/".join(case)}
    for name, found in (("first", first), ("second", second)):
        row[name] = {k: v for k, v in found.items() if k != "digests"}
    if "error" not in first and "error" not in second:
        row["same"] = first["digests"] == second["digests"]
    return row


def swept(
    cases: Sequence[Case], bench: str | None, cache: str, *, at_once: int = 6, seconds: float = 600.0, graphs: bool = False,
    tell: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The cases, each in two processes one after another, several in a process.

    Args:
        cases: what to try.
        bench: path of the file with further networks.
        cache: folder in which traces are kept.
        at_once: how many cases a process has.
        seconds: how long a process may take.
        graphs: whether it is what graphs become that is kept.
        tell: hears of every case.
    """
    rows = []
    for start in range(0, len(cases), at_once):
        some = cases[start : start + at_once]
        first = _process(some, bench, cache, seconds, graphs=graphs)
        second = _process(some, bench, cache, seconds, graphs=graphs)
        for case in some:
            rows.append(_row(case, first[case], second[case]))
            tell(rows[-1])
    return rows


def main() -> None:
    """Read the arguments, and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", help="a file with further networks: NAMES, build(name, batch, train)")
    parser.add_argument("--only", default="", help="networks with this in their name")
    parser.add_argument("--names", nargs="*", help="these networks")
    parser.add_argument("--modes", nargs="*", default=["inference", "training"])
    parser.add_argument("--sizes", nargs="*", default=["constant", "changing"])
    parser.add_argument("--cache", help="where traces and code are kept; a new folder if it is not said")
    parser.add_argument("--at-once", type=int, default=6, help="cases of a process")
    parser.add_argument("--seconds", type=float, default=600.0, help="of a process, at most")
    parser.add_argument("--graphs", action="store_true", help="keep what graphs become, not traces")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _child([(n, m, s) for n, m, s in json.loads(given.child)], given.bench, graphs=given.graphs)
        return
    names = given.names or [*(_of_file(given.bench).NAMES if given.bench else ()), *ARCHITECTURES]
    # A decoder's step has no backward in the benchmark.
    cases = [
        (n, m, s) for n in names if given.only in n for m in given.modes for s in given.sizes
        if not (m == "training" and n.endswith("_decode"))
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        start = time.time()
        rows = swept(
            cases, given.bench, given.cache or folder, at_once=given.at_once, seconds=given.seconds, graphs=given.graphs,
            tell=lambda row: print(json.dumps(row), flush=True),
        )  # fmt: skip
    again = [row for row in rows if row["second"].get("traced", [1])[-1]]
    print(json.dumps({
        "cases": len(rows), "seconds": round(time.time() - start), "traced_again": [row["case"] for row in again],
        "not_the_same": [row["case"] for row in rows if not row.get("same")],
        "failed": [row["case"] for row in rows if "error" in row["first"] or "error" in row["second"]],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
