"""Compile, run and unload again and again, counting what stays: ``python -m tests.robustness.cycles 1000``.

Each cycle makes a module, compiles its forward and backward, calls both, and forgets them; sizes differ from cycle to cycle,
so that libraries differ. Counted, once what is made on first use has been made: open files, mapped libraries and objects of
a compilation, of which none may stay, and the memory that a cycle leaves behind, which is printed and not judged: TorchDynamo
leaves 350 KB itself, two thirds of it through finalizers that its guards put on types and modules that never die
(``CheckFunctionManager.id_ref``); ``--backend eager`` says how much, for such cycles without dcir. With ``--keep`` Dynamo
is not reset after a cycle; what belongs to dcir goes all the same.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from dace import SDFG, SDFGState
from torch import nn

import dcir
from dcir.driver.session import Session
from dcir.frontends.torch.importer import Imported
from dcir.ir.network import Network
from dcir.runtime.blocks import Arenas, Block
from dcir.runtime.program import Program

SIZES = (5, 8, 13, 21)
SETTLED = 12
"""Cycles before the first count: caches of torch, DaCe and Python are filled on the way."""
OURS = (Network, Imported, Program, Session, Arenas, Block, SDFG, SDFGState)
"""What a compilation makes, and nobody needs when the module is gone."""


class Layers(nn.Module):
    """A small network whose every cycle differs from the one before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def cycle(number: int, backend: str = "dcir", *, reset: bool = True) -> None:
    """One module, compiled, called and forgotten; a container of torch's own and a class of the user's in turn."""
    torch.manual_seed(number)
    width = SIZES[number % len(SIZES)]
    net: Any = Layers(width)
    if backend == "dcir":
        net = net.layers if number // len(SIZES) % 2 else net
        fast = dcir.optimize(net)
    else:
        fast = torch.compile(net, backend=backend)
    x = torch.randn(3, width, requires_grad=True)
    out = fast(x)
    torch.testing.assert_close(out, net(x), rtol=1e-4, atol=1e-5)
    out.sum().backward()
    with torch.no_grad():
        fast.eval()(x)
    if backend == "dcir":
        assert mapped() > 0, "the libraries of a living module are mapped"
    del net, fast, out, x
    if reset:
        torch._dynamo.reset()


def mapped() -> int:
    """Libraries of dcir in this process."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    return sum(os.environ["DCIR_CACHE_DIR"] in path for path in paths)


def alive() -> list[Any]:
    """The objects that compilations have made and nobody has freed."""
    for _ in range(3):  # what C++ holds of torch is seen to be free one level at a time
        gc.collect()
    return [o for o in gc.get_objects() if issubclass(type(o), OURS)]


def held() -> tuple[int, int, int, int]:
    """Bytes of resident memory that is not a file's, open files, mapped libraries of dcir, objects of compilations."""
    objects = len(alive())
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024, len(os.listdir("/proc/self/fd")), mapped(), objects


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; 1 if a file stays open, a library mapped or an object alive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cycles", type=int)
    parser.add_argument("--backend", default="dcir", help="another of torch.compile, for comparison")
    parser.add_argument("--keep", action="store_true", help="do not reset Dynamo")
    given = parser.parse_args(arguments)
    counts = []
    for number in range(SETTLED + given.cycles):
        if number >= SETTLED and (number - SETTLED) % 10 == 0:
            counts.append(held())
            print(number - SETTLED, *counts[-1], flush=True)
        cycle(number, given.backend, reset=not given.keep)
    counts.append(held())
    memory, files, libraries, objects = (b - a for a, b in zip(counts[0], counts[-1], strict=True))
    print(
        f"{given.cycles} cycles: {memory / given.cycles:.0f} bytes a cycle, {files} files, {libraries} libraries, "
        f"{objects} objects; mapped {counts[-1][2]}"
    )
    return int(files > 0 or libraries > 0 or objects > 0)


if __name__ == "__main__":
    raise SystemExit(main())
