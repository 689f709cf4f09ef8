"""All tiers on training steps: every pass checked, the generated code against eager torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dcir.driver.verify.check import PassChecker
from dcir.ir.memory_plan import ARENA
from dcir.transforms.cuda_pipeline import CUDA_PASSES
from dcir.transforms.pipelines import PASSES, pipeline
from dcir.transforms.runner import PassRecord, check_order, run_passes
from dcir.transforms.tidy import fold_constants
from dcir.transforms.tier4_movement.memory.lifetimes import live_bytes_lower_bound
from tests.harness import run_cpp
from tests.transforms.imported import imported
from tests.transforms.random_network import random_network

pytestmark = pytest.mark.processor

FOLDERS = ("tidy", "tier1_operator", "tier2_fusion", "tier3_layout", "tier4_movement")


def rand(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * scale


def step(loss: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Loss and gradients of all floating-point arguments."""

    def fn(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        floats = tuple(i for i, a in enumerate(args) if a.is_floating_point())
        gradients, value = torch.func.grad_and_value(loss, argnums=floats)(*args)
        return (value, *gradients)

    return fn


def perceptron(x: Any, w: Any, b: Any, v: Any, target: Any) -> torch.Tensor:
    h = F.layer_norm(F.gelu(F.linear(x, w, b)), (64,))
    return F.cross_entropy(F.linear(h, v), target)


def attention(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> torch.Tensor:
    n = F.layer_norm(x, (32,))
    q, k, v = ((n @ w).view(2, 16, 4, 8).transpose(1, 2) for w in (wq, wk, wv))
    mask = torch.full((16, 16), float("-inf")).triu(1)
    a = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5 + mask, -1) @ v
    return (x + a.transpose(1, 2).reshape(2, 16, 32) @ wo).pow(2).mean()


def convolutions(x: Any, w: Any, b: Any, g: Any, v: Any) -> torch.Tensor:
    h = F.relu(F.batch_norm(F.conv2d(x, w, b, padding=1), None, None, g, b, training=True))
    h = F.max_pool2d(h, 2)
    h = torch.cat([h, F.conv2d(h, v, padding=1)], 1)
    return F.adaptive_avg_pool2d(h, 1).pow(2).sum()


STEPS: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "perceptron": (
        perceptron,
        [rand(8, 24), rand(64, 24, scale=0.2), rand(64), rand(10, 64, scale=0.1), torch.arange(8)],
    ),
    "attention": (attention, [rand(2, 16, 32), *(rand(32, 32, scale=0.1 + 0.02 * i) for i in range(4))]),
    "convolutions": (
        convolutions,
        [rand(2, 3, 16, 16), rand(8, 3, 3, 3, scale=0.2), rand(8), rand(8), rand(8, 8, 3, 3, scale=0.1)],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_training_steps(name: str) -> None:
    loss, inputs = STEPS[name]
    done = imported(step(loss), *inputs)
    records = run_passes(done.network, pipeline(4), after=PassChecker(done.network), validate_each=True)
    assert records[-1].bytes_after < 0.9 * records[0].bytes_before
    assert live_bytes_lower_bound(done.network) <= done.network.memory.nbytes(ARENA) < 0.8 * records[0].peak_before
    for got, want in zip(run_cpp(done, inputs), step(loss)(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("seed", range(1000, 1030))
def test_random_networks(seed: int) -> None:
    net = random_network(seed, 30)
    run_passes(net, pipeline(4), after=PassChecker(net, seed), validate_each=True)


def test_every_pass_has_a_name_a_summary_and_the_tier_of_its_folder() -> None:
    for p in PASSES:
        folder = type(p).__module__.split(".")[-2]
        assert folder == FOLDERS[p.tier], p.name
        assert p.name == p.name.lower() and p.summary.endswith(".")
    files = {
        path.stem
        for folder in FOLDERS
        for path in Path(fold_constants.__file__).parents[1].joinpath(folder).glob("*.py")
        if path.stem != "__init__"
    }
    # The others run where somebody asks for schedules, or for loops.
    names = {p.name for p in (*PASSES, *pipeline(0), *CUDA_PASSES)} | {"set-schedules", "expand-loops"}
    assert files == {name.replace("-", "_") for name in names}, "a pass that no level runs"


def test_levels_run_the_passes_of_their_tiers_in_one_order() -> None:
    assert [p.name for p in pipeline(0)] == ["run-in-order"]
    whole = pipeline(4)
    assert [type(p) for p in whole] == [type(p) for p in PASSES]
    for level in (1, 2, 3):
        passes = pipeline(level)
        check_order(passes)
        assert {p.tier for p in passes} == set(range(level + 1))
        assert passes == tuple(p for p in whole if p.tier <= level)


def test_no_option_of_a_pass_says_where_it_stands() -> None:
    runs = Counter(p.name for p in PASSES)
    for name in (name for name, number in runs.items() if number > 1):
        first, *more = (p for p in PASSES if p.name == name)
        assert all(p == first for p in more), name


def test_sums_over_a_convolution_stay_whole_until_it_had_its_chance() -> None:
    """They are split where no later pass wants them, and get later stages once that has left them."""

    def statistics(x: Any, w: Any) -> torch.Tensor:
        y = F.conv2d(x, w, padding=1)
        return (y - y.mean((0, 2, 3), keepdim=True)).relu()

    def records(level: int, form: torch.memory_format) -> dict[str, list[PassRecord]]:
        image = rand(4, 16, 48, 48).to(memory_format=form)
        done: dict[str, list[PassRecord]] = {}
        for r in run_passes(imported(statistics, image, rand(16, 16, 3, 3, scale=0.1)).network, pipeline(level)):
            done.setdefault(r.name, []).append(r)
        return done

    alone = records(1, torch.channels_last)
    assert [r.changed for r in alone["split-reduction"]] == [1, 0] and not alone["split-reduction"][0].refused
    taken = records(2, torch.channels_last)
    assert taken["split-reduction"][0].refused == {"a convolution may take the sums": 1}
    assert [r.changed for r in taken["fuse-channel-statistics"]] == [1]
    left = records(2, torch.contiguous_format)  # its tiles hold no channels side by side
    assert [r.changed for r in left["fuse-channel-statistics"]] == [0]
    assert left["fuse-producers"][0].refused["a convolution may take the sums"]
    assert left["fuse-producers"][1].changed == 1
