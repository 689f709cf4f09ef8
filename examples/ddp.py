"""Data-parallel training, eager and compiled in turn: equal gradients, times of a step, and when each bucket of gradients is sent.

torchrun --nproc-per-node 2 examples/ddp.py --network resnet44 --batch 32 --seconds 10

With --step a whole step is ``dcir.train_step``'s, the update included.
"""

import argparse
import copy
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import dcir


class Block(nn.Module):
    """Two convolutions and a way around them, which pads new channels with zeros."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
        )
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.stride, self.more = stride, after - before

    def forward(self, x: Tensor) -> Tensor:
        made = self.norm2(self.second(F.relu(self.norm1(self.first(x)))))
        if self.more:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        return F.relu(made + x)


def resnet(depth: int) -> nn.Module:
    """A residual network of 6n + 2 layers for images of 32 x 32 (He et al. 2015)."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    width = 16
    for stage, wider in enumerate((16, 32, 64)):
        for number in range((depth - 2) // 6):
            layers.append(Block(width, wider, 2 if stage and not number else 1))
            width = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mlp(width: int = 1024) -> nn.Module:
    """Eight dense layers."""
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet44": (lambda: resnet(44), (3, 32, 32)), "resnet20": (lambda: resnet(20), (3, 32, 32)), "mlp": (mlp, (1024,)),
}  # fmt: skip


def resnet44(batch: int = 16) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """What `dcir scaling examples/ddp.py:resnet44` measures in one process."""
    return resnet(44), (torch.randn(batch, 3, 32, 32),)


def eight_layers(batch: int = 16) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The same of the dense layers."""
    return mlp(), (torch.randn(batch, 1024),)


def cross_entropy(scores: Tensor) -> Tensor:
    """A loss for it: `--loss cross_entropy`."""
    return F.cross_entropy(scores, torch.arange(len(scores)) % 10)


class Replica:
    """A network in ``DistributedDataParallel``, and when it sent what."""

    def __init__(self, module: nn.Module, compiled: bool, whole: bool) -> None:
        self.module = module
        self.model = DistributedDataParallel(
            dcir.optimize(module) if compiled and not whole else module, bucket_cap_mb=1
        )
        self.model.register_comm_hook(None, self._sent)
        self.optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
        self.step = dcir.train_step(self.model, F.cross_entropy, self.optimizer) if compiled and whole else None
        self.at: list[float] = []

    # DistributedDataParallel looks at the types here, so they must be no strings.
    def _sent(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        self.at.append(time.perf_counter())
        count = dist.get_world_size()
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0] / count)

    def gradients(self, x: Tensor, y: Tensor) -> tuple[float, list[float]]:
        """The loss, and when each bucket was sent, in parts of the backward's time."""
        self.at.clear()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        start = time.perf_counter()
        loss.backward()
        took = time.perf_counter() - start
        return loss.item(), [(at - start) / took for at in self.at]

    def trained(self, x: Tensor, y: Tensor) -> tuple[float, list[float]]:
        """The same, and the update; of a whole step the times are parts of all of it."""
        if self.step is None:
            found = self.gradients(x, y)
            self.optimizer.step()
            return found
        self.at.clear()
        start = time.perf_counter()
        loss = self.step(x, y)
        took = time.perf_counter() - start
        return loss.item(), [(at - start) / took for at in self.at]

    def flat(self, what: str) -> Tensor:
        """All gradients, or all parameters."""
        found = [p.grad if what == "gradients" else p.detach() for p in self.module.parameters()]
        return torch.cat([t.flatten() for t in found if t is not None])


def main() -> None:
    """Compare gradients once, or parameters after two whole steps; then time steps in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, default="resnet44")
    parser.add_argument("--batch", type=int, default=16, help="of each process")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--step", action="store_true", help="whole steps by dcir.train_step")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    # torchrun gives a process one thread; two processes of one machine share its cores.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", processes))))
    torch.manual_seed(0)
    make, shape = NETWORKS[given.network]
    module = make()
    replicas = {
        "eager": Replica(copy.deepcopy(module), compiled=False, whole=given.step),
        "dcir": Replica(module, compiled=True, whole=given.step),
    }
    generator = torch.Generator().manual_seed(rank)
    x, y = torch.randn(given.batch, *shape, generator=generator), torch.randint(10, (given.batch,), generator=generator)
    for _ in range(2):  # after the first backward DistributedDataParallel sorts its buckets anew
        losses = {
            name: (replica.trained if given.step else replica.gradients)(x, y)[0] for name, replica in replicas.items()
        }
    compared = "parameters" if given.step else "gradients"
    eager, fast = (replica.flat(compared) for replica in replicas.values())
    difference = float((eager - fast).norm() / eager.norm())
    times: dict[str, list[float]] = {name: [] for name in replicas}
    sent: dict[str, list[list[float]]] = {name: [] for name in replicas}
    end = time.perf_counter() + given.seconds
    while True:
        again = torch.tensor([time.perf_counter() < end or len(times["dcir"]) < 3])
        dist.broadcast(again, 0)
        if not again.item():
            break
        for name, replica in replicas.items():
            dist.barrier()
            start = time.perf_counter()
            sent[name].append(replica.trained(x, y)[1])
            times[name].append((time.perf_counter() - start) * 1e3)
    if rank == 0:
        print(f"{given.network}, {processes} processes of {torch.get_num_threads()} threads, {given.batch} images each")
        print(f"loss {losses['eager']:.6f} and {losses['dcir']:.6f}; {compared} differ by {difference:.1e}")
        for name, taken in times.items():
            parts = " ".join(f"{statistics.median(at):.0%}" for at in zip(*sent[name], strict=True))
            of = "backward" if replicas[name].step is None else "step"
            print(f"{name:<6} step {statistics.median(taken):8.2f} ms; buckets sent at {parts} of the {of}")
        print(f"dcir is {statistics.median(times['eager']) / statistics.median(times['dcir']):.2f} x as fast")
    dist.destroy_process_group()


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")
        main()
