"""The examples that add something to dcir run, say what they should, and keep the numbers."""

from __future__ import annotations

import copy
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dcir
from dcir.transforms.base import PassResult
from dcir.transforms.pipelines import pipeline
from dcir.transforms.registered import with_passes
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from tests.transforms.imported import same_numbers

pytestmark = pytest.mark.in_turn(3)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: str) -> list[str]:
    """What a script prints, in lines."""
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def custom_pass() -> Any:
    """The module; it imports one that lies beside it."""
    return module_of("custom_pass")


def module_of(name: str) -> Any:
    """An example, which may import those beside it."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXAMPLES))
    return module


def outcome(module: Any, fn: Any) -> PassResult:
    """What the rule does to a function of positive numbers, behind the pass that joins its loop nests."""
    return same_numbers(fn, torch.rand(5, 33) + 1, passes=(FuseProducers(), module.ReciprocalOfRows()))[-1]


def test_the_rule_rewrites_a_softmax(custom_pass: Any) -> None:
    assert outcome(custom_pass, lambda x: x.softmax(-1)).changed == 1


def test_the_rule_leaves_what_does_not_divide(custom_pass: Any) -> None:
    done = outcome(custom_pass, lambda x: (x * x).sum(-1))
    assert not done.changed and not done.refused


def test_the_rule_refuses_divisors_of_single_columns(custom_pass: Any) -> None:
    done = outcome(custom_pass, lambda x: (x / (x + 1)).sum(-1))
    assert not done.changed and done.refused == {"no divisor is the same for a whole row": 1}


def branches(count: int, x: torch.Tensor) -> torch.Tensor:
    """The mean of the sum of so many images, channel by channel, as split attention has it."""
    parts = x.reshape(x.shape[0], count, x.shape[1] // count, *x.shape[2:])
    return parts.sum(1).mean((2, 3), keepdim=True) * 2


@pytest.mark.parametrize(("shape", "count"), [((1, 12, 5, 4), 2), ((3, 12, 5, 4), 3), ((2, 4, 1, 7), 4)])
def test_means_of_sums_are_sums_of_means(shape: tuple[int, ...], count: int) -> None:
    rule = module_of("sum_of_branches").SumOfBranches()
    (done,) = same_numbers(lambda x: branches(count, x), torch.rand(shape), passes=(rule,))
    assert done.changed == 1 and done.saved_bytes > 0


def test_sums_that_are_read_for_more_stay() -> None:
    """The sum itself is a result; means over other places; and no sum at all, which is not refused."""
    rule = module_of("sum_of_branches").SumOfBranches()
    for fn, refused in (
        (lambda x: (s := x.reshape(2, 2, 3, 5, 4).sum(1), s.mean((2, 3))), {"the sum is read for more than a mean": 1}),
        (
            lambda x: x.reshape(2, 2, 3, 5, 4).sum(1)[:, :, :3].mean((2, 3)),
            {"the mean runs over other loops than the sum": 1},
        ),
        (lambda x: x.mean((2, 3)), {}),
    ):
        (done,) = same_numbers(fn, torch.rand(2, 6, 5, 4), passes=(rule,))
        assert not done.changed and done.refused == refused


def test_a_convolution_takes_the_sums_of_branches() -> None:
    """As in ResNeSt: with the pass the sum of the branches is no operator any more, and the numbers stay."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(16, 64, 3, padding=1), torch.nn.ReLU()).eval()
    model = Pooled(net)
    rule, x = module_of("sum_of_branches").SumOfBranches(), torch.rand(1, 16, 40, 40)
    plain, fast = (dcir.optimize(model, pipeline=p) for p in (pipeline(4), with_passes(pipeline(4), rule)))
    with torch.no_grad():
        want = copy.deepcopy(model).double()(x.double())
        for way in (plain, fast):
            torch.testing.assert_close(way(x).double(), want, rtol=1e-5, atol=1e-6)
    before, after = (way.dcir.explain().graphs[0] for way in (plain, fast))
    assert after.bytes_moved < 0.8 * before.bytes_moved and after.calls < before.calls


class Pooled(torch.nn.Module):
    """The mean of the sum of two branches of a convolution."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return branches(2, self.net(x))


def test_custom_pass() -> None:
    rule, error, times = run("custom_pass.py")
    assert rule == "reciprocal-of-rows: 1 rewritten, refused {}"
    assert float(error.split()[-1]) < 1e-5
    assert times.startswith("softmax of 4096 rows")


def test_custom_kernel() -> None:
    lines = run("custom_kernel.py")
    samples = [line for line in lines if "largest error" in line]
    assert len(samples) == 2 and all(float(line.split()[-1]) < 1e-6 for line in samples)
    assert "no operators run through torch" in lines
    assert any("smoothing of 64 rows of 1000" in line for line in lines)


def test_dace_fusion() -> None:
    """DaCe's fusion alone brings the traffic to what dcir's own brings it to."""
    lines = run("dace_fusion.py", "--rows", "64", "--columns", "48", "--seconds", "0.1")
    assert len(lines) == 10
    for table in (lines[:5], lines[5:]):
        rows = [line.split()[-5:] for line in table[1:]]
        plain, fused, own, both = ([int(v) for v in row[:3]] for row in rows)
        assert plain[0] == own[0] == 0 and fused[0] > 0 and both[0] > 0
        assert fused[1] == own[1] == both[1] == 1 < plain[1]
        assert fused[2] == own[2] == both[2] < plain[2]
        assert all(float(row[3]) < 1e-6 for row in rows)


def test_explore_mbconv() -> None:
    lines = run("explore_mbconv.py", "--channels", "4", "--size", "8", "--batch", "2", "--seconds", "0.1")
    refused = [line for line in lines if ": refused, " in line]
    table = lines[len(refused) + 1 : -2]
    assert [line.split(":")[0] for line in refused] == ["weights packed at first"]
    assert table[0].startswith("-O4 ") and table[-1].startswith("1 of 2 images at a time")
    assert len(table) == 18
    assert all(float(line.split()[-4]) < 1e-5 for line in table)
    assert lines[-2].startswith("measured again: ") and lines[-1].startswith("fastest: ")


def test_a_program_of_dace_trains() -> None:
    *kernels, error = run("dace_program.py")
    assert [line.split(":")[0] for line in kernels] == ["forward", "backward"]
    assert all(line.endswith("0 through torch") for line in kernels)
    assert float(error.split()[-1]) < 1e-5


def test_plans_of_threads_are_held_against_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def make():\n    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval(), (torch.randn(1, 3, 16, 16),)\n"
    )
    lines = run(
        "thread_sweep.py", f"{tmp_path}/net.py:make", "--made-for", "8", "--cores", "4", "2x4", "--seconds", "0.02"
    )
    assert [line.split("  ")[:2] for line in lines[:2]] == [["make", "4 cores"], ["make", "8 cores in 2 sockets"]]
    least = {line.split(" over ")[0]: float(line.split("least ")[1].split(",")[0]) for line in lines[2:]}
    assert least["sweep"] >= 0.95 and all(ratio >= 1.0 for name, ratio in least.items() if name != "sweep")
