"""A graph network (GraphSAGE, means by index_add) next to PyTorch: python examples/graph_network.py [--training] [--nodes N] ….

Eager PyTorch and dcir take turns within one run; with --onnx FILE the network is saved for other runtimes, too. Times are those of the
processor, all threads together, and of the clock; errors are the largest difference from PyTorch in float64 over the largest value, with
--training that of all gradients.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dcir


class GraphSage(nn.Module):
    """Layers of ``own(x) + near(mean of the neighbours' x)``."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.near = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Nodes (nodes, width) along edges (2, edges), from the first row to the second."""
        source, target = edges[0], edges[1]
        degree = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, target, torch.ones(target.shape[0], dtype=x.dtype))
        for i, (own, near) in enumerate(zip(self.own, self.near, strict=True)):
            total = torch.zeros_like(x).index_add(0, target, x[source])
            x = own(x) + near(total / degree.clamp(min=1)[:, None])
            if i + 1 < len(self.own):
                x = x.relu()
        return x


def main() -> None:
    """Errors and times, a line for each."""
    parser = argparse.ArgumentParser(description="a graph network next to PyTorch")
    parser.add_argument("--training", action="store_true", help="forward, loss and backward, without an optimiser")
    parser.add_argument("--onnx", help="where to save the network for other runtimes")
    parser.add_argument("--calls", type=int, default=15)
    for name, value in (("nodes", 20000), ("edges", 200000), ("width", 128), ("layers", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    model = GraphSage(chosen.width, chosen.layers)
    x, edges = torch.randn(chosen.nodes, chosen.width), torch.randint(0, chosen.nodes, (2, chosen.edges))
    classes = torch.randint(0, chosen.width, (chosen.nodes,))
    if chosen.onnx:
        torch.onnx.export(model, (x, edges), chosen.onnx, dynamo=True)

    def call(module: nn.Module) -> Tensor:
        if not chosen.training:
            with torch.no_grad():
                return module(x.to(next(module.parameters())), edges)
        module.zero_grad()
        F.cross_entropy(module(x.to(next(module.parameters())), edges), classes).backward()
        return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])

    exact, modules = call(copy.deepcopy(model).double()), {"eager": model, "dcir": dcir.optimize(copy.deepcopy(model))}
    error = {name: float((call(m) - exact).abs().max() / exact.abs().max()) for name, m in modules.items()}
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in modules}
    for _ in range(chosen.calls):
        for name, module in modules.items():
            spent[name].append(_times(lambda m=module: call(m)))  # type: ignore[misc]
    for name, times in spent.items():
        processor, clock = (statistics.median(t) for t in zip(*times, strict=True))
        print(
            f"{name}: {processor:.1f} ms of the processor, {clock:.1f} ms by the clock (medians), error {error[name]:.1e}"
        )


def _times(fn: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of the processor and of the clock."""
    processor, clock = time.process_time(), time.perf_counter()
    fn()
    return (time.process_time() - processor) * 1e3, (time.perf_counter() - clock) * 1e3


if __name__ == "__main__":
    main()
