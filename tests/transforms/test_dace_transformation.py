"""DaCe's transformations as passes: what they rewrite, that numbers stay, what is refused and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dace import properties
from dace.sdfg import nodes
from dace.transformation import dataflow
from dace.transformation.transformation import PatternNode, SingleStateTransformation

import dcir
from dcir.errors import OptionError
from dcir.transforms.dace_transformation import DaceTransformation
from dcir.transforms.pipelines import pipeline
from dcir.transforms.registered import with_passes
from dcir.transforms.tier1_operator.expand_loops import ExpandLoops
from tests.transforms.imported import imported, same_numbers

X = torch.randn(2, 3, 8, 12)


def softmax_gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh").softmax(-1)


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x * 2, (12,)).sigmoid()


def attention(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.transpose(-1, -2) * 0.3, -1) @ x


def convolution(x: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, torch.ones(4, 3, 3, 3).cumsum(0), padding=1).relu()


FUNCTIONS = {f.__name__: f for f in (softmax_gelu, layer_norm, attention, convolution)}
TRANSFORMATIONS: dict[str, tuple[list[Any], Any]] = {  # what comes before, and what is looked at
    "MapExpansion": ([], dataflow.MapExpansion),
    "MapCollapse": ([dataflow.MapExpansion], dataflow.MapCollapse),
    "MapFusionVertical": ([dataflow.MapExpansion], dataflow.MapFusionVertical),
    "MapTiling": ([], (dataflow.MapTiling, {"tile_sizes": (2,)})),
    "StripMining": ([], (dataflow.StripMining, {"tile_size": 3})),
    "MapInterchange": ([dataflow.MapExpansion], dataflow.MapInterchange),
    "MapDimShuffle": ([], (dataflow.MapDimShuffle, {"parameters": ["i3", "i2", "i0", "i1"]})),
    "InLocalStorage": ([dataflow.MapExpansion], dataflow.InLocalStorage),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_rewrites_and_numbers_stay(function: str, name: str) -> None:
    """Interpreted and as generated code, after the library nodes are expanded; the transformation itself has done something."""
    before, last = TRANSFORMATIONS[name]
    changed = 0
    if before:
        changed = same_numbers(FUNCTIONS[function], X, passes=(ExpandLoops(), DaceTransformation(*before)))[-1].changed
    outcome = same_numbers(FUNCTIONS[function], X, passes=(ExpandLoops(), DaceTransformation(*before, last)))[-1]
    assert outcome.changed > changed


def test_fusion_makes_one_operator() -> None:
    """What is between GELU and softmax is not stored any more."""
    net = imported(softmax_gelu, X).network
    before = net.bytes_moved()
    DaceTransformation(dataflow.MapExpansion, dataflow.MapFusionVertical).apply(net)
    assert len(net.ops()) == 1
    assert net.bytes_moved() < before
    assert net.ops()[0].made_by == "dace-map-expansion-map-fusion-vertical"


def test_tiles_are_no_other_nest() -> None:
    """The order of points is a schedule, so an operator whose map is tiled stays the one that it is."""
    net = imported(softmax_gelu, X).network
    before = [op.spec for op in net.ops()]
    assert DaceTransformation(dataflow.MapTiling, tile_sizes=(5,)).apply(net).changed
    assert [op.spec for op in net.ops()] == before


def test_only_says_what_is_opened() -> None:
    net = imported(softmax_gelu, X).network
    assert DaceTransformation(dataflow.MapExpansion, only="exp").apply(net).changed == 1


def test_at_the_end_of_its_tier_it_takes_nothing_away() -> None:
    """Attention is still found; in front of the passes that look for it, its parts are fused otherwise."""

    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return attention(x)

    step = DaceTransformation(dataflow.MapExpansion, dataflow.MapFusionVertical)
    x = torch.randn(2, 4, 64, 32)
    calls = []
    for passes in (pipeline(4), with_passes(pipeline(4), step)):
        fast = dcir.optimize(Attention(), pipeline=passes, dynamic=False)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), attention(x), rtol=1e-4, atol=1e-5)
        calls.append(fast.dcir.explain().graphs[0].calls)
    assert calls == [1, 1]


def test_in_a_pipeline_forward_and_backward() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.GELU(), torch.nn.Softmax(-1), torch.nn.LayerNorm(12))
    step = DaceTransformation(dataflow.MapExpansion, dataflow.MapFusionVertical)
    fast = dcir.optimize(model, pipeline=(step, *pipeline(4)))
    x = torch.randn(6, 12)
    grads = []
    for f in (fast, model):
        model.zero_grad()
        f(x).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    assert any(r.name == step.name and r.changed for g in fast.dcir.explain().graphs for r in g.passes)


@properties.make_properties
class Wrong(SingleStateTransformation):
    """Changes a number in every tasklet."""

    tasklet = PatternNode(nodes.Tasklet)

    @classmethod
    def expressions(cls) -> Any:
        from dace.sdfg.utils import node_path_graph

        return [node_path_graph(cls.tasklet)]

    def can_be_applied(self, graph: Any, expr_index: int, sdfg: Any, permissive: bool = False) -> bool:
        return "dace.float32(2.0)" in self.tasklet.code.as_string

    def apply(self, graph: Any, sdfg: Any) -> None:
        self.tasklet.code.as_string = self.tasklet.code.as_string.replace("2.0", "2.5")


class Broken(Wrong):
    """Fails."""

    def apply(self, graph: Any, sdfg: Any) -> None:
        raise KeyError("nothing here")


@pytest.mark.parametrize(
    ("kind", "reason"), [(Wrong, "other numbers than before"), (Broken, "Broken fails with KeyError: 'nothing here'")]
)
def test_what_is_wrong_is_refused(kind: type[Any], reason: str) -> None:
    net = imported(lambda x: x * 2, X).network
    before = [op.spec for op in net.ops()]
    outcome = DaceTransformation(kind).apply(net)
    assert not outcome.changed and outcome.refused == {reason: 1}
    assert [op.spec for op in net.ops()] == before


def test_what_has_no_loop_nests_is_refused() -> None:
    net = imported(softmax_gelu, X).network
    outcome = DaceTransformation(dataflow.MapToForLoop).apply(net)
    assert not outcome.changed
    assert any("no loop nests say" in r for r in outcome.refused)


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="no transformation of DaCe"):
        DaceTransformation(int)
    with pytest.raises(OptionError, match="no property 'tile'"):
        DaceTransformation(dataflow.MapTiling, tile=3)
