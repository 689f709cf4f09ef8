"""What all parts of the GPU day share: a worker's cases, one row of JSON each, and times by events."""

from __future__ import annotations

import argparse
import functools
import json
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_CLOCK = 2e9
"""Cycles a second of a multiprocessor, at most."""

Case = tuple[str, Callable[[], dict[str, Any]]]
"""A name, and what gives the figures of the case; it raises where the case fails."""


def work(cases: Callable[[], Iterable[Case]]) -> None:
    """Work through this worker's share of the cases; of those that it has begun before, none again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--of", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600)
    given = parser.parse_args()
    end = time.monotonic() + given.seconds - 3
    begun = {json.loads(line)["case"] for line in given.rows.read_text().splitlines()} if given.rows.exists() else set()
    for i, (name, run) in enumerate(cases()):
        if i % given.of != given.number or name in begun:
            continue
        if time.monotonic() > end:
            return
        row: dict[str, Any] = {"case": name}
        _write(given.rows, row)
        start = time.monotonic()
        try:
            row |= {"ok": True, **run()}
        except Exception as e:
            row |= {"ok": False, "error": f"{type(e).__name__}: {e}"[:1500], "trace": traceback.format_exc()[-3000:]}
        row["seconds"] = round(time.monotonic() - start, 3)
        _write(given.rows, row)
        if "CUDA error" in row.get("error", "") or "CUDA_ERROR" in row.get("error", ""):
            raise SystemExit(3)  # nothing runs in this process any more


def _write(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as f:
        f.write(json.dumps(row) + "\n")


@functools.cache
def _opens(device: str) -> bool:
    """Whether ``dcir.optimize`` works with the PyTorch at hand, which may be older than the one dcir is made for."""
    import torch

    import dcir

    try:
        dcir.optimize(torch.nn.Linear(3, 2).to(device), target="cuda")(torch.zeros(1, 3, device=device))
    except (TypeError, ImportError, AttributeError):
        return False
    return True


def compiled(model: Any, device: str = "cuda") -> tuple[Callable[..., Any], Callable[[], list[Any]]]:
    """A compiled form of a module or function, through the other door where the first is shut; and what gives its graphs' records."""
    import torch

    import dcir
    from dcir.driver.backend import dcir as backend

    if _opens(device):
        fast = dcir.optimize(model, target="cuda")
        return fast, lambda: fast.dcir.explain().graphs
    before = len(dcir.sessions())
    other = torch.compile(model, backend=backend, dynamic=False, options={"target": "cuda"})
    return other, lambda: [g for s in dcir.sessions()[before:] for g in s.explain().graphs]


def device_milliseconds(call: Callable[[], Any], *, repeats: int = 20, warm: int = 3) -> float:
    """The median time that a call's kernels take: the device is kept busy until the host has put all of them on the stream.

    Between two events alone a short call is the time that the host takes to put it there.
    """
    import torch

    for _ in range(warm):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(5):
        call()
    ahead = (time.perf_counter() - start) / 5
    torch.cuda.synchronize()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in pairs:
        torch.cuda._sleep(int((3 * ahead + 50e-6) * _CLOCK))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in pairs)[repeats // 2]


def milliseconds(call: Callable[[], Any], *, repeats: int = 20, warm: int = 3) -> float:
    """The median time of a call on the device, by events."""
    import torch

    for _ in range(warm):
        call()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in pairs:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in pairs)[repeats // 2]
