"""Four processes over gloo: gradients, losses and sums as in PyTorch, and as near to float64."""

import pytest

from tests.distributed import four as work
from tests.distributed.pair import Pair

pytestmark = pytest.mark.in_turn(4)


def test_gradients_of_replicas(four: Pair) -> None:
    for eager, fast in four.run(work.gradients):
        assert 0 < fast < max(2 * eager, 1e-6) < 1e-4


@pytest.mark.parametrize("own_exchange", [False, True], ids=["gloo", "sends"])
def test_losses_of_five_steps_of_shards(four: Pair, own_exchange: bool) -> None:
    exact = work.exact_losses()
    for (eager, fast, graphs), float64 in zip(four.run(work.losses, own_exchange), exact, strict=True):
        assert fast == pytest.approx(eager, rel=1e-5) and fast == pytest.approx(float64, rel=1e-5)
        assert len(fast) == 5 and fast[-1] != fast[0]
        assert graphs == {"forward": 3, "backward": 3}


def test_sums_are_in_the_order_of_the_ranks_and_within_their_bound(four: Pair) -> None:
    for worst in four.run(work.sums):
        assert set(worst) == {"torch.float32", "torch.bfloat16"} and 0 < max(worst.values()) <= 1


def test_parts_are_gathered_in_the_order_of_the_ranks(four: Pair) -> None:
    four.run(work.gathered)
