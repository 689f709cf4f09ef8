"""The GPU day: everything that wants a device, as one command that goes on after failures, writes JSON after every case and a table last.

    python -m tests.gpu.day --out FOLDER --budget 540 [--only smoke,running,samples,networks,bench] [--workers 8]

Each part runs in processes of its own, since an access outside of memory ends all CUDA work of a process. ``FOLDER/<part>.jsonl`` has a
row a case, ``FOLDER/day.json`` the summary. ``smoke`` needs nothing but PyTorch and the folder ``codegen/cuda``.

On a machine without a network, in the tree, with the wheels of what it lacks in ``whl/`` at its root (dace without ``viewer/`` and
``external/``, fparser, dill, platformdirs, ply, astunparse, ordered-set, six, expecttest), as one line:

    for f in frontends transforms codegen; do [ -e dcir/$f/__init__.py ] || { rm -rf dcir/$f; ln -s ../$f dcir/$f; }; done;
    python -m pip install -q --no-index --no-deps --no-compile --target /tmp/site whl/*.whl;
    PYTHONPATH=$PWD:/tmp/site DCIR_CACHE_DIR=/tmp/dcir python -m tests.gpu.day --out $OUT --budget 450

(on 16 cores about 40 s for smoke, 150 s for samples, 110 s for networks, 130 s for bench; what one leaves is the next one's).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PARTS = {"smoke": 0.1, "running": 0.1, "samples": 0.3, "networks": 0.25, "bench": 0.25}
"""Each part's share of the budget; what one leaves is the next one's."""
_PARALLEL = {"samples", "networks"}
_RESTARTS = 12


@dataclass
class Worker:
    """A process that works through its share of a part's cases, started again behind a case that has ended it.

    Attributes:
        part, number, of: what it does; the cases ``number``, ``number + of``, ...
        out: folder of the results.
        process: it, while it runs.
        restarts: how often it was started again.
    """

    part: str
    number: int
    of: int
    out: Path
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.out / f"{self.part}-{self.number}.log"

    @property
    def rows(self) -> Path:
        """Its file of results."""
        return self.out / f"{self.part}-{self.number}.jsonl"

    def start(self, seconds: float) -> None:
        """Begin, or go on behind the case that is written as begun."""
        module = f"tests.gpu.{self.part}"
        words = ["--rows", self.rows, "--number", self.number, "--of", self.of, "--seconds", int(seconds)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, words)], stdout=log, stderr=log, env=_environment(self.of)
            )

    def ended(self, left: float) -> bool:
        """Whether nothing is left to do; a process that a case has killed is started again."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return False
        if code == 0 or left < 15 or self.restarts >= _RESTARTS:
            return True
        self.restarts += 1
        self.start(left)
        return False

    def stop(self) -> None:
        """End it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _environment(workers: int) -> dict[str, str]:
    threads = max(1, (os.cpu_count() or 1) // workers)
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONFAULTHANDLER": "1"}


def run_part(part: str, out: Path, seconds: float, workers: int) -> list[dict[str, Any]]:
    """All rows of a part, within a time."""
    of = workers if part in _PARALLEL else 1
    end = time.monotonic() + seconds
    started = [Worker(part, i, of, out) for i in range(of)]
    for w in started:
        w.start(seconds)
    waiting = list(started)
    while waiting and time.monotonic() < end:
        time.sleep(0.2)
        waiting = [w for w in waiting if not w.ended(end - time.monotonic())]
    for w in waiting:
        w.stop()
    rows = [row for w in started for row in read_rows(w.rows)]
    with (out / f"{part}.jsonl").open("w") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)
    return rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Results of a file: of a case that has begun and never ended, that it killed its process."""
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:  # the process ended in the middle of it
            continue
        found[row["case"]] = row
    return [
        {**r, "ok": False, "error": "it ended its process, or the time"} if "ok" not in r else r for r in found.values()
    ]


def table(part: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """What a part's rows say, for people: failures first, figures where there are some."""
    good = sum(bool(r.get("ok")) for r in rows)
    lines = [f"== {part}: {good} of {len(rows)} cases pass"]
    shown = 0
    for r in rows:
        if not r.get("ok") and shown < 40:
            lines.append(f"  FAIL {r['case']}: {' '.join(str(r.get('error', '?')).split())}"[:300])
            shown += 1
    for r in rows:
        figures = {k: v for k, v in r.items() if k not in ("case", "ok", "error", "trace", "seconds")}
        if r.get("ok") and figures:
            shown_figures = "  ".join(f"{k}={_number(v)}" for k, v in figures.items())
            lines.append(f"  {r['case']:<34} {shown_figures}"[:200])
    return lines


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Run the parts and print the table."""
    parser = argparse.ArgumentParser(description="everything that wants a device")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=540, help="seconds in all")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--workers", type=int, default=8)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    start, parts = time.monotonic(), given.only.split(",")
    unknown = [p for p in parts if p not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    summary: dict[str, Any] = {}
    lines: list[str] = []
    for i, part in enumerate(parts):
        left = given.budget - (time.monotonic() - start) - 5
        share = PARTS[part] / sum(PARTS[p] for p in parts[i:])
        began = time.monotonic()
        rows = run_part(part, given.out, max(20.0, left * share), given.workers)
        lines += table(part, rows)
        summary[part] = {
            "cases": len(rows), "pass": sum(bool(r.get("ok")) for r in rows), "seconds": time.monotonic() - began
        }  # fmt: skip
        (given.out / "day.json").write_text(json.dumps(summary, indent=1))
        (given.out / "table.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
