"""A process that dies in the middle of training: the other one gets PyTorch's error in time, and can go on by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 240
SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import dcir

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
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


def test_a_process_that_dies(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    both = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) for rank in range(2)
    ]  # fmt: skip
    try:
        said = both[0].communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        pytest.fail("the process that lives waits for the other one")
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert "failed: " in said, said
    assert "goes on" in said, said
