"""What each tier brings: one convolutional network and one transformer at every level, measured in turns.

    python examples/ablation.py [--small] [--batch 1] [--threads N] [--seconds 3] [--networks resnet50,bert] [--json]

A row of the table is a level: the tier it adds, its kernels, the distinct bytes that they read and write in a call, its
scratch memory, the median time of a call, and how much faster that is than the level before and than level 0. The levels
take turns within one run, so that other work on the machine slows all of them alike. The error is the largest difference
from PyTorch in float64 over the largest value.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from models import Bert, ResNet50, SmallConvNet
from torch import Tensor, nn

import dcir

TIERS = ("lowering only", "inside operators", "fusion", "layout", "global data movement")


@dataclass
class Level:
    """One level of one network: figures of the compiled graph, and times in milliseconds."""

    level: int
    tier: str
    kernels: int
    calls: int
    bytes_moved: int
    scratch_bytes: int
    median_ms: float
    least_ms: float
    error: float
    floor_ms: float | None


def main() -> None:
    """The tables of all networks, as text or JSON."""
    parser = argparse.ArgumentParser(description="what each tier of dcir brings")
    parser.add_argument("--small", action="store_true", help="small networks, for a quick run")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128, help="tokens per sequence")
    parser.add_argument("--threads", type=int, help="size of the thread team; as many as torch uses unless given")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each level")
    parser.add_argument("--networks", default="resnet50,bert", help="with commas between")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(chosen.threads or torch.get_num_threads())
    networks = small(chosen) if chosen.small else large(chosen)
    unknown = [name for name in chosen.networks.split(",") if name not in networks]
    if unknown:
        parser.error(f"no network {unknown[0]!r}; there are {', '.join(networks)}")
    done: dict[str, Any] = {"threads": torch.get_num_threads(), "batch": chosen.batch, "networks": {}}
    for name in chosen.networks.split(","):
        torch.manual_seed(0)
        title, make, inputs = networks[name]
        eager, levels = ablation(make().eval(), inputs, chosen.seconds)
        done["networks"][name] = {"title": title, "eager_ms": eager, "levels": [asdict(level) for level in levels]}
        if not chosen.json:
            print(text(title, eager, levels), end="\n\n", flush=True)
    if chosen.json:
        print(json.dumps(done, indent=2))


def large(chosen: argparse.Namespace) -> dict[str, tuple[str, Callable[[], nn.Module], Tensor]]:
    """ResNet-50 and BERT-base."""
    tokens = torch.randint(0, 30522, (chosen.batch, chosen.length))
    return {
        "resnet50": ("ResNet-50", ResNet50, torch.randn(chosen.batch, 3, 224, 224)),
        "bert": ("BERT-base", Bert, tokens),
    }


def small(chosen: argparse.Namespace) -> dict[str, tuple[str, Callable[[], nn.Module], Tensor]]:
    """Networks of the same kinds that compile in seconds."""
    tokens = torch.randint(0, 100, (chosen.batch, 16))
    return {
        "resnet50": ("small CNN", SmallConvNet, torch.randn(chosen.batch, 3, 32, 32)),
        "bert": ("small transformer", lambda: Bert(size=32, layers=1, heads=2, tokens=100), tokens),
    }


def ablation(model: nn.Module, inputs: Tensor, seconds: float) -> tuple[float, list[Level]]:
    """Median of PyTorch's eager mode in milliseconds, and every level's figures."""
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        exact = wide(inputs.double() if inputs.is_floating_point() else inputs)
        del wide
        modules = [dcir.optimize(model, level=level) for level in range(len(TIERS))]
        errors = [float((module(inputs) - exact).abs().max() / exact.abs().max()) for module in modules]
        eager, *times = interleaved([lambda m=m: m(inputs) for m in (model, *modules)], seconds)
    levels = []
    for number, (module, taken) in enumerate(zip(modules, times, strict=True)):
        graphs = module.dcir.explain().to_json()["graphs"]
        floors = [graph["floor_seconds"] for graph in graphs]
        levels.append(
            Level(
                number,
                TIERS[number],
                sum(graph["kernels"] for graph in graphs),
                sum(graph["calls"] for graph in graphs),
                sum(graph["bytes_moved"] for graph in graphs),
                sum(graph["arena_bytes"] for graph in graphs),
                statistics.median(taken),
                min(taken),
                errors[number],
                None if None in floors else sum(floors) * 1e3,
            )
        )
    return statistics.median(eager), levels


def interleaved(runs: list[Callable[[], Any]], seconds: float) -> list[list[float]]:
    """Times in milliseconds of calls that take turns, at least five of each."""
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    stop = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < stop or len(times[0]) < 5:
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append((time.perf_counter() - start) * 1e3)
    return times


def text(title: str, eager: float, levels: list[Level]) -> str:
    """The table of one network."""
    lines = [
        f"{title}: eager PyTorch {eager:.3f} ms",
        f"{'':<4} {'adds':<21} {'kernels':>7} {'calls':>6} {'MB moved':>9} {'scratch MB':>10} {'floor ms':>9}"
        f" {'ms':>9} {'gain':>6} {'in all':>7} {'error':>8}",
    ]
    for before, level in zip([levels[0], *levels], levels, strict=False):
        floor = "-" if level.floor_ms is None else f"{level.floor_ms:.3f}"
        lines.append(
            f"-O{level.level:<2} {level.tier:<21} {level.kernels:>7} {level.calls:>6} {level.bytes_moved / 1e6:>9.2f}"
            f" {level.scratch_bytes / 1e6:>10.2f} {floor:>9} {level.median_ms:>9.3f}"
            f" {before.median_ms / level.median_ms:>5.2f}x {levels[0].median_ms / level.median_ms:>6.2f}x"
            f" {level.error:>8.1e}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
