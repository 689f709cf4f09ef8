"""Exchanges of ``fully_shard`` by sends: torch's numbers, and torch's exchanges where not all processes have ours."""

import pytest

from tests.distributed import exchanges
from tests.distributed.pair import Pair

pytestmark = pytest.mark.in_turn(2)


def test_the_numbers_are_those_of_torch(pair: Pair) -> None:
    pair.run(exchanges.as_torch_does)


def test_several_may_be_under_way(pair: Pair) -> None:
    pair.run(exchanges.several_under_way)


def test_large_memory_is_used_again(pair: Pair) -> None:
    pair.run(exchanges.large)


def test_a_sharded_model_gets_them_with_its_first_call(pair: Pair) -> None:
    pair.run(exchanges.installed)


def test_all_processes_have_to_agree(pair: Pair) -> None:
    assert pair.run(exchanges.only_one_has_dcir) == [(1, 4), (0, 4)]
