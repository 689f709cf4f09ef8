"""Exchanges among processes inside compiled graphs."""

from tests.distributed import collectives
from tests.distributed.pair import Pair


def test_results_are_waited_for_and_none_vanishes_or_merges(pair: Pair) -> None:
    for called in pair.run(collectives.exchanges):
        assert called["_c10d_functional.all_reduce.default"] == 3
        assert called["_c10d_functional.all_gather_into_tensor.default"] == 1
        assert called["_c10d_functional.reduce_scatter_tensor.default"] == 1


def test_functions_that_write_in_place(pair: Pair) -> None:
    pair.run(collectives.written_in_place)
