"""``dcir.train_step`` under DistributedDataParallel: losses, parameters, buffers and the optimiser's state as of PyTorch's own steps.

In double precision, after each step, in both processes, whose parameters are equal to the last bit.
"""

from typing import Any

import pytest

from tests.distributed import steps
from tests.distributed.pair import Pair

pytestmark = pytest.mark.in_turn(2)

# In training and in eval mode; an update does not depend on that.
_BOTH_MODES = {"forward": 2, "backward": 2}


@pytest.mark.parametrize(
    ("optimiser", "clip", "options"),
    [
        ("sgd", {}, {}),
        ("adamw", {}, {"gradient_as_bucket_view": True}),
        ("adamw", {"clip_grad_norm": 0.1}, {}),
        ("sgd", {"clip_grad_value": 0.001}, {"gradient_as_bucket_view": True, "static_graph": True}),
    ],
    ids=["sgd", "adamw, views of buckets", "clipped by norm", "clipped by value, static graph, views of buckets"],
)
def test_training(pair: Pair, optimiser: str, clip: dict[str, float], options: dict[str, Any]) -> None:
    for graphs in pair.run(steps.trained, optimiser, clip, options):
        assert graphs == _BOTH_MODES | {"update": 1}


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_a_model_that_is_optimised_already(pair: Pair, outside: bool) -> None:
    for graphs in pair.run(steps.of_an_optimised_model, outside):
        assert graphs == _BOTH_MODES | {"update": 1}


def test_parameters_without_gradients_are_left_alone(pair: Pair) -> None:
    for graphs, warned in pair.run(steps.sometimes, 16):
        assert graphs["forward"] == graphs["backward"] == 2
        # Without the layer, with it for the first time, and with both having been updated before.
        assert graphs["update"] == 3
        assert not warned


def test_sets_of_parameters_beyond_the_limit_are_updated_by_torch(pair: Pair) -> None:
    for graphs, warned in pair.run(steps.sometimes, 1):
        assert graphs["update"] == 1
        assert warned


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=["", "views of buckets"])
def test_accumulated_gradients(pair: Pair, options: dict[str, Any]) -> None:
    pair.run(steps.accumulated, options)


def test_changing_sizes(pair: Pair) -> None:
    pair.run(steps.of_changing_sizes)


def test_uneven_inputs(pair: Pair) -> None:
    pair.run(steps.uneven)


def test_a_bucket_is_sent_before_the_backward_ends(pair: Pair) -> None:
    for sent, parts in pair.run(steps.handed_over):
        assert len(sent) > 1
        assert sent == sorted(sent)
        assert sent[0] < sent[-1] == parts


def test_gradients_are_written_where_buckets_are(pair: Pair) -> None:
    whole = sum(p.numel() for p in steps.Network().parameters())
    weights = 3 * steps.SIDE**2  # the one that is used twice is a sum
    for eager, fast in pair.run(steps.not_copied):
        assert eager[:3] == [0, 0, 0]
        assert fast[:2] == [0, 0]  # there is no place yet, and then it is another one
        assert weights <= fast[2] <= whole
        assert fast[3] == 0  # added to what was accumulated
        assert fast[4:] == [fast[2]] * 2


@pytest.mark.parametrize("optimiser", steps.OPTIMISERS)
def test_checkpoints_of_either_side(pair: Pair, optimiser: str) -> None:
    pair.run(steps.checkpoints, optimiser)


def test_autocast(pair: Pair) -> None:
    for graphs in pair.run(steps.in_bfloat16):
        assert graphs == {"forward": 1, "backward": 1, "update": 1}


def test_refusals(pair: Pair) -> None:
    pair.run(steps.refused)


def test_nothing_is_left_of_it(pair: Pair) -> None:
    assert pair.run(steps.gone) == [[], []]
