"""Generated C++ of random networks, as built and fused, against the reference interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dcir.codegen.compile import compile_network
from dcir.codegen.cpp.kernels import loop_nest_schedule
from dcir.driver.assemble import assemble
from dcir.frontends.torch.importer import Imported
from dcir.ir.network import Network
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.fuse_siblings import FuseSiblings
from tests.on_host import on_host
from tests.transforms.random_network import random_network, results


def run(net: Network, seed: int = 0) -> list[np.ndarray]:
    """The compiled network's results on the inputs that ``results`` uses."""
    rng = np.random.default_rng(seed)
    tensors = []
    for n in net.inputs:
        c = net.containers[n]
        flat = torch.from_numpy(rng.uniform(-2, 2, c.size).astype(np.float32))
        tensors.append(torch.as_strided(flat, c.shape, c.strides))
    done = Imported(net, {}, [("result", i) for i in range(len(net.results))])
    return [t.numpy() for t in assemble(done, compile_network(on_host(net, 2)))(tensors)]


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("group", range(3))
def test_same_numbers(group: int, fused: bool) -> None:
    """A few random networks, interpreted and compiled."""
    for seed in range(group * 4, group * 4 + 4):
        net = random_network(seed + 1000)
        if fused:
            FuseProducers().apply(net)
            FuseSiblings(min_bytes=0).apply(net)
        for a, b in zip(results(net), run(net), strict=True):
            np.testing.assert_allclose(b, a, rtol=3e-5, atol=2e-5)


def test_parallel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same with every loop dealt to several jobs, however small."""
    monkeypatch.setattr(loop_nest_schedule, "SERIAL_POINTS", 1)
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path))  # the cache knows nothing of the changed constant
    for seed in range(6):
        net = random_network(seed + 2000)
        FuseProducers().apply(net)
        for a, b in zip(results(net), run(net), strict=True):
            np.testing.assert_allclose(b, a, rtol=3e-5, atol=2e-5)
