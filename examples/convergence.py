"""Whether training with dcir ends where PyTorch's eager mode ends: a small CNN and a small transformer on data that can be learnt.

    python examples/convergence.py [--steps 300] [--seeds 5] [--networks cnn,transformer] [--json]

Every seed makes new weights, new data and a new stream of dropout, and is trained in three ways: eagerly, with ``dcir.optimize`` and
torch's optimiser, and with ``dcir.train_step``. The loss is that of 512 examples that were not trained on, in eval mode and float64.
*Noise* is the standard error of the difference of two means over the seeds: two runs of the same program on other seeds differ by
as much.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dcir

Batch = tuple[Tensor, Tensor]
WAYS = ("eager", "optimize", "train_step")


class ConvNet(nn.Module):
    """Images [batch, 3, 16, 16] to scores of ten classes, with batch norms and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        x = F.relu(self.norm2(self.conv2(x)))
        return self.head(self.dropout(x.mean((2, 3))))


class Transformer(nn.Module):
    """Tokens [batch, 12] to scores of 16 tokens for every place."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(16, 32), nn.Parameter(torch.randn(12, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(tokens) + self.places))


def images(number: int, world: torch.Generator, draw: torch.Generator) -> Batch:
    """Ten patterns, drawn once for the seed, somewhere in the image and under noise."""
    patterns = torch.randn(10, 3, 8, 8, generator=world)
    labels = torch.randint(0, 10, (number,), generator=draw)
    shown = torch.randn(number, 3, 16, 16, generator=draw) * 0.7
    for image, label, (row, column) in zip(
        shown, labels, torch.randint(0, 9, (number, 2), generator=draw), strict=True
    ):
        image[:, row : row + 8, column : column + 8] += patterns[label]
    return shown, labels


def sentences(number: int, world: torch.Generator, draw: torch.Generator) -> Batch:
    """At every place a substitute for the token before it, by a table drawn once for the seed; every tenth is a random one."""
    table = torch.randperm(16, generator=world)
    tokens = torch.randint(0, 16, (number, 12), generator=draw)
    targets = table[tokens.roll(1, 1)]
    wrong = torch.rand(number, 12, generator=draw) < 0.1
    return tokens, torch.where(wrong, torch.randint(0, 16, (number, 12), generator=draw), targets)


@dataclass(frozen=True)
class Task:
    """A network, its data, its optimiser and the number of examples in a batch."""

    make: Callable[[], nn.Module]
    data: Callable[[int, torch.Generator, torch.Generator], Batch]
    optimiser: Callable[[Any], torch.optim.Optimizer]
    batch: int = 32


TASKS = {
    "cnn": Task(ConvNet, images, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4)),
    "transformer": Task(Transformer, sentences, lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=1e-2)),
}


@dataclass
class Outcome:
    """Losses of one way of training, one for each seed, and how they stand to eager's."""

    losses: list[float] = field(default_factory=list)
    mean: float = 0.0
    deviation: float = 0.0
    difference: float = 0.0
    noise: float = 0.0

    @property
    def within_noise(self) -> bool:
        """Whether the mean differs from eager's by less than twice what two means differ by."""
        return abs(self.difference) <= 2 * self.noise


def main() -> None:
    """The table of all networks, as text or JSON; exit code 1 if a loss is not within the noise."""
    parser = argparse.ArgumentParser(description="losses after training with dcir and with eager PyTorch")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--networks", default=",".join(TASKS), help="with commas between")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.seeds < 2:
        parser.error("the noise is measured over two seeds at least")
    done, alike = {}, True
    for name in chosen.networks.split(","):
        if name not in TASKS:
            parser.error(f"no network {name!r}; there are {', '.join(TASKS)}")
        before, outcomes = compare(TASKS[name], chosen.steps, chosen.seeds)
        done[name] = {"untrained": before, "ways": {way: asdict(o) for way, o in outcomes.items()}}
        alike &= all(outcome.within_noise for outcome in outcomes.values())
        if not chosen.json:
            print(text(name, chosen.steps, before, outcomes), end="\n\n", flush=True)
    if chosen.json:
        print(json.dumps(done, indent=2))
    raise SystemExit(0 if alike else 1)


def compare(task: Task, steps: int, seeds: int) -> tuple[float, dict[str, Outcome]]:
    """Mean loss before training, and what every way of training comes to."""
    before = statistics.mean(train(task, "eager", 0, seeds))
    outcomes = {way: Outcome(train(task, way, steps, seeds)) for way in WAYS}
    for outcome in outcomes.values():
        outcome.mean, outcome.deviation = statistics.mean(outcome.losses), statistics.stdev(outcome.losses)
        outcome.difference = outcome.mean - outcomes["eager"].mean
        outcome.noise = ((outcome.deviation**2 + outcomes["eager"].deviation ** 2) / seeds) ** 0.5
    return before, outcomes


def train(task: Task, way: str, steps: int, seeds: int) -> list[float]:
    """For each seed the loss on examples not trained on, after some steps in one way; what is compiled serves all seeds."""
    model = task.make()
    optimiser = task.optimiser(model.parameters())
    step = _step(way, model, optimiser)
    losses = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        model.load_state_dict(task.make().state_dict())
        optimiser.state.clear()
        draw = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            step(*task.data(task.batch, torch.Generator().manual_seed(seed), draw))
        losses.append(_unseen(task, model, seed))
    return losses


def _unseen(task: Task, model: nn.Module, seed: int) -> float:
    draw = torch.Generator().manual_seed(10**6 + seed)
    inputs, targets = task.data(512, torch.Generator().manual_seed(seed), draw)
    judged = copy.deepcopy(model).double().eval()  # float64, so that what differs are the parameters
    with torch.no_grad():
        return float(loss(judged(inputs.double() if inputs.is_floating_point() else inputs), targets))


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over the last dimension."""
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten())


def _step(way: str, model: nn.Module, optimiser: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], Any]:
    if way == "train_step":
        return dcir.train_step(model, loss, optimiser)
    called = dcir.optimize(model) if way == "optimize" else model

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimiser.zero_grad()
        loss(called(inputs), targets).backward()
        optimiser.step()

    return step


def text(name: str, steps: int, before: float, outcomes: dict[str, Outcome]) -> str:
    """The table of one network."""
    lines = [
        f"{name}: loss {before:.4f} before training, after {steps} steps",
        f"{'':<11} {'mean':>7} {'deviation':>10} {'- eager':>9} {'noise':>8}  of each seed",
    ]
    for way, o in outcomes.items():
        every = " ".join(f"{value:.4f}" for value in o.losses)
        lines.append(f"{way:<11} {o.mean:>7.4f} {o.deviation:>10.4f} {o.difference:>+9.4f} {o.noise:>8.4f}  {every}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
