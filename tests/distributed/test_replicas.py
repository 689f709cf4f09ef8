"""DistributedDataParallel over two processes: gradients, parameters and buffers as without dcir, however the model is wrapped.

Buckets hold one layer; the graph stays whole, and its backward hands over gradients part by part.
"""

from typing import Any

import pytest

from tests.distributed import replicas
from tests.distributed.pair import Pair

pytestmark = pytest.mark.in_turn(2)


@pytest.mark.parametrize("order", replicas.ORDERS)
def test_training(pair: Pair, order: str) -> None:
    for graphs in pair.run(replicas.trained, order, {}, False):
        if graphs is not None:
            assert graphs == {"forward": 1, "backward": 1, "inference": 1}


@pytest.mark.parametrize(
    "options",
    [{"gradient_as_bucket_view": True}, {"static_graph": True}],
    ids=["views of buckets", "static graph"],
)
def test_options(pair: Pair, options: dict[str, Any]) -> None:
    pair.run(replicas.trained, "optimize inside", options, False)


@pytest.mark.parametrize("order", ["optimize inside", "optimize outside"])
def test_a_layer_that_is_not_always_used(pair: Pair, order: str) -> None:
    pair.run(replicas.trained, order, {"find_unused_parameters": True}, True)


@pytest.mark.parametrize("order", ["optimize inside", "backend outside"])
def test_accumulated_gradients_and_a_kept_graph(pair: Pair, order: str) -> None:
    pair.run(replicas.accumulated, order)


@pytest.mark.parametrize("order", ["optimize inside", "optimize outside"])
def test_a_table_with_a_sparse_gradient(pair: Pair, order: str) -> None:
    pair.run(replicas.with_a_table, order)


def test_changing_sizes(pair: Pair) -> None:
    pair.run(replicas.of_changing_sizes)


def test_a_communication_hook_sees_every_bucket(pair: Pair) -> None:
    for buckets in pair.run(replicas.with_hook):
        assert buckets > 1


def test_a_bucket_is_sent_before_the_backward_ends(pair: Pair) -> None:
    for sent, parts in pair.run(replicas.handed_over):
        assert len(sent) > 1
        assert sent == sorted(sent)
        assert sent[0] < sent[-1] == parts


def test_uneven_inputs(pair: Pair) -> None:
    pair.run(replicas.uneven)


def test_a_replica_and_what_it_was_made_of_are_in_one_state(pair: Pair) -> None:
    pair.run(replicas.through_either)


def test_a_broadcast_of_buffers_is_seen(pair: Pair) -> None:
    pair.run(replicas.broadcast_buffer)


def test_what_an_optimised_one_is(pair: Pair) -> None:
    pair.run(replicas.twins)


def test_nothing_is_left_of_it(pair: Pair) -> None:
    assert pair.run(replicas.gone) == [[], []]
