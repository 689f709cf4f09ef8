"""Exchanges among processes inside compiled graphs, tensors that lie in several of them, and what is refused there."""

from pathlib import Path

from tests.distributed import collectives
from tests.distributed.pair import Pair


def test_tensor_parallel_layers(pair: Pair) -> None:
    for graphs in pair.run(collectives.tensor_parallel):
        assert graphs == {"forward": 1, "backward": 1, "inference": 1}


def test_results_are_waited_for_and_none_vanishes_or_merges(pair: Pair) -> None:
    for called in pair.run(collectives.exchanges):
        assert called["_c10d_functional.all_reduce.default"] == 3
        assert called["_c10d_functional.all_gather_into_tensor.default"] == 1
        assert called["_c10d_functional.reduce_scatter_tensor.default"] == 1


def test_functions_that_write_in_place(pair: Pair) -> None:
    pair.run(collectives.written_in_place)


def test_tensors_in_several_processes_as_arguments_and_results(pair: Pair) -> None:
    pair.run(collectives.given_and_returned)


def test_whole_steps_and_files_are_for_one_process(pair: Pair, tmp_path: Path) -> None:
    pair.run(collectives.refused, str(tmp_path / "model.dcir"))
