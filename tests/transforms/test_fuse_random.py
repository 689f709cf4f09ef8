"""Fusion on random networks: valid graphs, the same numbers, never more bytes."""

from __future__ import annotations

import numpy as np
import pytest

from dcir.ir.verify import verify
from dcir.transforms.base import Pass
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.fuse_siblings import FuseSiblings
from tests.transforms.random_network import random_network, results


@pytest.mark.parametrize("seed", range(60))
def test_same_numbers(seed: int) -> None:
    """Vertical, then horizontal fusion of a random network."""
    net = random_network(seed)
    verify(net)
    before, traffic = results(net), net.bytes_moved()
    for p in (FuseProducers(), FuseSiblings(min_bytes=0)):
        run(p, net)
    assert net.bytes_moved() <= traffic
    for a, b in zip(before, results(net), strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=1e-5)


def run(p: Pass, net: object) -> None:
    """Apply a pass and check the graph."""
    p.apply(net)  # type: ignore[arg-type]
    verify(net)  # type: ignore[arg-type]
    net.validate()  # type: ignore[attr-defined]
