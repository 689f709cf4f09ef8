"""Compile, run and unload again and again, counting what stays: ``python -m tests.robustness.cycles 1000``.

Each cycle makes a module, compiles its forward and backward, calls both, and forgets them; sizes differ from cycle to cycle,
so that libraries differ. Counted, once what is made on first use has been made: open files and mapped libraries, of which none may
stay, and the memory that a cycle leaves behind, which is printed and not judged.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import torch
from torch import nn

import dcir

SIZES = (5, 8, 13, 21)
SETTLED = 12
"""Cycles before the first count: caches of torch, DaCe and Python are filled on the way."""


def cycle(number: int) -> None:
    """One module, compiled, called and forgotten."""
    torch.manual_seed(number)
    width = SIZES[number % len(SIZES)]
    net = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, width))
    fast = dcir.optimize(net)
    x = torch.randn(3, width, requires_grad=True)
    out = fast(x)
    torch.testing.assert_close(out, net(x), rtol=1e-4, atol=1e-5)
    out.sum().backward()
    with torch.no_grad():
        fast.eval()(x)
    assert held()[2] > 0, "the libraries of a living module are mapped"
    del net, fast, out, x
    torch._dynamo.reset()


def held() -> tuple[int, int, int]:
    """Bytes of resident memory that is not a file's, open files, mapped libraries of dcir."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    ours = [path for path in mapped if os.environ["DCIR_CACHE_DIR"] in path]
    return int(status["RssAnon"].split()[0]) * 1024, len(os.listdir("/proc/self/fd")), len(ours)


def main(cycles: int) -> int:
    """Run them; 1 if a file stays open or a library mapped."""
    for number in range(SETTLED):
        cycle(number)
    before = held()
    for number in range(cycles):
        cycle(number)
        if number % 10 == 9:
            print(number + 1, *held(), flush=True)
    after = held()
    memory, files, libraries = (b - a for a, b in zip(before, after, strict=True))
    print(
        f"{cycles} cycles: {memory / cycles:.0f} bytes a cycle, {files} files, {libraries} libraries; mapped {after[2]}"
    )
    return int(files > 0 or libraries > 0)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
