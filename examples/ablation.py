"""What each tier brings: convolutional networks and a transformer at every level, measured in turns.

    python examples/ablation.py [--training] [--small] [--batch 1] [--threads N] [--seconds 3] [--networks resnet50,bert] [--json]

A row of the table is a level: the tier it adds, its kernels, the distinct bytes that they read and write in a call, its
scratch memory, the median and the least time of a call, and how much faster that is than the level before and than level 0.
The levels take turns within one run, so that other work on the machine slows all of them alike. The error is the largest
difference from PyTorch in float64 over the largest value.

With --training a call is a step: forward, loss and backward, without an optimiser. Kernels and bytes are those of both directions,
*saved* is what the forward keeps for the backward, and the error is that of all gradients together.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import levels
import torch
import torch.nn.functional as F
from levels import Level, Measured
from models import Bert, EfficientNet, ResNet50, SmallConvNet
from torch import Tensor, nn


@dataclass
class Network:
    """A network to measure: how to make it, what it is called with, and what is trained."""

    title: str
    make: Callable[[], nn.Module]
    inputs: Tensor
    loss: levels.Loss


def main() -> None:
    """The tables of all networks, as text or JSON."""
    parser = argparse.ArgumentParser(description="what each tier of dcir brings")
    parser.add_argument("--training", action="store_true", help="steps of forward, loss and backward")
    parser.add_argument("--small", action="store_true", help="small networks, for a quick run")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128, help="tokens per sequence")
    parser.add_argument("--threads", type=int, help="size of the thread team; as many as torch uses unless given")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each level")
    parser.add_argument("--networks", help="with commas between; resnet50,bert or, in training, efficientnet_b0,bert")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(chosen.threads or torch.get_num_threads())
    torch.manual_seed(0)
    networks = small(chosen.batch) if chosen.small else large(chosen.batch, chosen.length)
    names = (chosen.networks or ("efficientnet_b0,bert" if chosen.training else "resnet50,bert")).split(",")
    unknown = [name for name in names if name not in networks]
    if unknown:
        parser.error(f"no network {unknown[0]!r}; there are {', '.join(networks)}")
    done: dict[str, Any] = {
        "threads": torch.get_num_threads(), "batch": chosen.batch, "training": chosen.training, "networks": {}
    }  # fmt: skip
    for name in names:
        measured = measure(networks[name], chosen.training, chosen.seconds)
        done["networks"][name] = asdict(measured)
        if not chosen.json:
            print(text(measured, chosen.training), end="\n\n", flush=True)
    if chosen.json:
        print(json.dumps(done, indent=2))


def large(batch: int, length: int) -> dict[str, Network]:
    """ResNet-50, EfficientNet-B0 and BERT-base."""
    images, tokens = torch.randn(batch, 3, 224, 224), torch.randint(0, 30522, (batch, length))
    classes, states = torch.randint(0, 1000, (batch,)), torch.randn(batch, length, 768)
    return {
        "resnet50": Network("ResNet-50", ResNet50, images, lambda scores: F.cross_entropy(scores, classes)),
        "efficientnet_b0": Network(
            "EfficientNet-B0", EfficientNet, images, lambda scores: F.cross_entropy(scores, classes)
        ),
        "bert": Network("BERT-base", Bert, tokens, lambda hidden: F.mse_loss(hidden, states)),
    }


def small(batch: int) -> dict[str, Network]:
    """Networks of the same kinds that compile in seconds."""
    images, tokens = torch.randn(batch, 3, 32, 32), torch.randint(0, 100, (batch, 16))
    classes, states = torch.randint(0, 10, (batch,)), torch.randn(batch, 16, 32)
    return {
        "resnet50": Network("small CNN", SmallConvNet, images, lambda scores: F.nll_loss(scores.log(), classes)),
        "efficientnet_b0": Network(
            "one block of EfficientNet",
            lambda: EfficientNet(((6, 3, 1, 32, 1),), head=64, classes=10),
            images,
            lambda scores: F.cross_entropy(scores, classes),
        ),
        "bert": Network(
            "small transformer",
            lambda: Bert(size=32, layers=1, heads=2, tokens=100),
            tokens,
            lambda hidden: F.mse_loss(hidden, states),
        ),
    }


def measure(network: Network, training: bool, seconds: float) -> Measured:
    """Every level's figures."""
    torch.manual_seed(0)
    model = network.make()
    if training:
        return levels.training(network.title, model, network.inputs, network.loss, seconds)
    return levels.inference(network.title, model, network.inputs, seconds)


def text(measured: Measured, training: bool) -> str:
    """The table of one network."""
    what = "a step of eager PyTorch" if training else "eager PyTorch"
    lines = [
        f"{measured.title}: {what} {measured.eager_ms:.3f} ms, error {measured.eager_error:.1e}",
        f"{'':<4} {'adds':<21} {'kernels':>7} {'calls':>6} {'MB moved':>9} {'scratch MB':>10}"
        f" {'saved MB':>9} {'floor ms':>9} {'ms':>9} {'least':>9} {'gain':>6} {'in all':>7} {'error':>8}",
    ]
    first = before = measured.levels[0]
    for level in measured.levels:
        lines.append(_row(level, before, first))
        before = level
    return "\n".join(lines)


def _row(level: Level, before: Level, first: Level) -> str:
    floor = "-" if level.floor_ms is None else f"{level.floor_ms:.3f}"
    return (
        f"-O{level.level:<2} {level.tier:<21} {level.kernels:>7} {level.calls:>6} {level.bytes_moved / 1e6:>9.2f}"
        f" {level.scratch_bytes / 1e6:>10.2f} {level.saved_bytes / 1e6:>9.2f} {floor:>9} {level.median_ms:>9.3f}"
        f" {level.least_ms:>9.3f} {before.median_ms / level.median_ms:>5.2f}x"
        f" {first.median_ms / level.median_ms:>6.2f}x {level.error:>8.1e}"
    )


if __name__ == "__main__":
    main()
