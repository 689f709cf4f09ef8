"""Dynamo's cutter of graphs in replicas leaves those of marked backends whole, however small the buckets are."""

import pytest
from torch._dynamo.backends.distributed import DDPOptimizer

from dcir.frontends.torch.whole_graphs import keeps_graphs_whole

SMALL = 100_000
"""Below torch's first bucket, which is 1 MiB."""


def test_small_buckets_are_no_error_of_a_marked_backend():
    heard = []
    backend = keeps_graphs_whole(lambda graph, inputs: heard.append((graph, inputs)) or "compiled")
    assert DDPOptimizer(SMALL, backend).compile_fn("graph", ["inputs"]) == "compiled"
    assert heard == [("graph", ["inputs"])]


def test_other_backends_are_as_before():
    keeps_graphs_whole(lambda graph, inputs: None)
    with pytest.raises(AssertionError, match="First bucket"):
        DDPOptimizer(SMALL, lambda graph, inputs: None)
    assert DDPOptimizer(SMALL, lambda graph, inputs: None, first_bucket_cap=SMALL).first_bucket_cap == SMALL
