"""``fully_shard`` over two processes: numbers as without dcir, whichever is done first, and what of it runs compiled."""

import pytest

from tests.distributed import sharded, transformers
from tests.distributed.pair import Pair

pytestmark = pytest.mark.in_turn(2)

_ONE = {"forward": 1, "backward": 1, "inference": 1}
_EACH = {"forward": 3, "backward": 3, "inference": 3}
# A block's first call takes an input without gradients, the others one with; they are one function. The rest is PyTorch's.
_SHARED = {"forward": 2, "backward": 2, "inference": 1}


@pytest.mark.parametrize(
    ("order", "layers", "graphs"),
    [
        ("optimize, then shard", False, _ONE),
        ("shard, then optimize", False, _ONE),
        ("optimize layers, then shard", False, _EACH),
        ("optimize, then shard", True, _SHARED),
        ("shard, then optimize", True, _SHARED),
        ("optimize layers, then shard", True, _EACH),
    ],
)
def test_training(pair: Pair, order: str, layers: bool, graphs: dict[str, int]) -> None:
    assert pair.run(sharded.trained, order, layers) == [graphs, graphs]


@pytest.mark.parametrize("order", ["optimize, then shard", "optimize layers, then shard"])
@pytest.mark.parametrize("layers", [False, True])
def test_nothing_made_of_old_weights_is_kept(pair: Pair, order: str, layers: bool) -> None:
    for graphs in pair.run(sharded.changed_weights, order, layers):
        assert graphs["inference"]


def test_gathered_in_bfloat16(pair: Pair) -> None:
    for graphs in pair.run(sharded.in_bfloat16):
        assert graphs == {"forward": 1, "backward": 1}


def test_the_optimised_module_is_a_handle_too(pair: Pair) -> None:
    pair.run(sharded.handle)


def test_modules_of_torch_run_in_torch(pair: Pair) -> None:
    """Dynamo begins no trace in their frames, and ends one at the hooks of a sharded module."""
    assert pair.run(sharded.of_torch_alone) == [{}, {}]


def test_twenty_steps_of_a_transformer(pair: Pair) -> None:
    """Losses of each step, with checkpoints exchanged between PyTorch and compiled blocks in the middle."""
    for graphs, losses in pair.run(transformers.trained):
        assert graphs == {"forward": 2, "backward": 2}
        assert len(losses) == 20
