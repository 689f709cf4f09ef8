"""A process that dies in the middle of training: the others get PyTorch's error in time, and can go on by themselves."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

SECONDS = 120
"""For each process, on a machine of two cores that is shared with others: imports, compiling, and the error."""
_BEGIN = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
import dcir

rank, ranks = int(sys.argv[1]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=ranks)
torch.manual_seed(0)
"""
REPLICAS = f"""{_BEGIN}
from torch.nn.parallel import DistributedDataParallel

inner = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
fast = dcir.optimize(inner)
model = DistributedDataParallel(fast, bucket_cap_mb=1)
x = torch.randn(4, 512)
for step in range(3):
    model.zero_grad()
    loss = model(x).square().mean()
    if step == 2 and rank == 1:
        os._exit(1)
    try:
        loss.backward()
    except RuntimeError as error:
        print("failed:", type(error).__name__, flush=True)
        want = torch.autograd.grad(inner(x).square().sum(), list(inner.parameters()))
        have = torch.autograd.grad(fast(x).square().sum(), list(inner.parameters()))
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)
        print("goes on", flush=True)
        os._exit(0)
"""
SHARDS = f"""{_BEGIN}
from torch.distributed.fsdp import fully_shard
from dcir.runtime.exchange import ReduceBySends
from dcir.driver.training.sharded_exchange import _groups

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.last(self.first(x).relu())

plain = Network()
model = dcir.optimize(Network(), own_exchange=True)
fully_shard(model)
x = torch.randn(4, 64)
for step in range(3):
    if step == 2 and rank == 1:
        os._exit(1)
    try:
        model(x).square().mean().backward()
    except RuntimeError as error:
        assert all(type(g._reduce_scatter_comm) is ReduceBySends for g in _groups(model))
        print("failed:", type(error).__name__, flush=True)
        fast = dcir.optimize(plain)
        torch.testing.assert_close(fast(x), plain(x), rtol=1e-4, atol=1e-5)
        print("goes on", flush=True)
        os._exit(0)
"""


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        pytest.param(REPLICAS, 2, id="replicas"),
        pytest.param(REPLICAS, 4, id="four replicas", marks=pytest.mark.in_turn(4)),
        pytest.param(SHARDS, 4, id="four shards that exchange by sends", marks=pytest.mark.in_turn(4)),
    ],
)
def test_a_process_that_dies(tmp_path: Path, text: str, ranks: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "store"), str(ranks)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) for rank in range(ranks)
    ]  # fmt: skip
    end, said = time.monotonic() + SECONDS * ranks, {}
    try:
        for rank, process in enumerate(processes):
            if rank != 1:
                said[rank] = process.communicate(timeout=max(end - time.monotonic(), 1))[0]
    except subprocess.TimeoutExpired:
        pytest.fail(f"processes that live wait for the other one: {said}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for words in said.values():
        assert "failed: " in words and "goes on" in words, said
