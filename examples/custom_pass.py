"""A pass of your own: it counts what every kind of operator moves, and runs between dcir's passes.

    python examples/custom_pass.py

A pass is a frozen dataclass whose fields are its options. `apply` gets the network, which is valid before and must be
valid after, and says how much it changed. This one changes nothing; passes that do are in `transforms/`. A pipeline is a tuple;
`with_passes` puts a pass where it declares to belong (here: the end of its tier), and there it runs if its package registers it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

import dcir
from dcir.ir.network import Network
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.pipelines import pipeline
from dcir.transforms.registered import with_passes


@dataclass(frozen=True)
class CountTraffic(Pass):
    """Prints the bytes that operators read and write, by kind.

    Attributes:
        title: what to print above.
    """

    tier: ClassVar[int] = 4
    title: str = "traffic"

    def apply(self, net: Network) -> PassResult:
        """Look at every operator; change nothing."""
        traffic: Counter[str] = Counter()
        for op in net.ops():
            reads, writes = op.spec.footprint()
            traffic[type(op.spec).__name__] += sum(reads) + sum(writes)
        print(self.title, *(f"{kind} {size} B" for kind, size in traffic.most_common()), sep="\n  ")
        return PassResult()


def main() -> None:
    """Optimise a network with the pass at the beginning, in the middle and at the end of the pipeline."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10)).eval()
    passes = (
        CountTraffic("before"),
        *with_passes(pipeline(4), CountTraffic("all tiers have rewritten the graph")),
        CountTraffic("after"),
    )
    fast = dcir.optimize(model, pipeline=passes)
    x = torch.randn(32, 64)
    with torch.no_grad():
        error = (fast(x) - model(x)).abs().max()
    print(f"largest error {float(error):.1e}")
    print(fast.dcir.explain())


if __name__ == "__main__":
    main()
