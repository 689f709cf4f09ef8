"""Heavy operators of ATen graphs: widths of networks that people know, operations, and gradients that count twice."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dcir.driver.optimize import compiled_with
from dcir.driver.session import Session
from dcir.frontends.torch.export import export_inference
from dcir.frontends.torch.heavy_operators import heavy_operators, is_heavy
from dcir.options import Options

pytestmark = pytest.mark.in_turn(2)

aten = torch.ops.aten


def width(module, *inputs):
    return heavy_operators(export_inference(module.eval(), inputs).graph).width()


# Name: heavy operators, depth, widest level, work over critical path of one image of 224 (299 for Inception) pixels.
NETWORKS = {
    "resnet50": (54, 50, 2, 1.10), "vgg16": (16, 16, 1, 1.00), "mobilenet_v2": (53, 53, 1, 1.00), "squeezenet1_1": (26, 18, 2, 1.06),
    "shufflenet_v2_x1_0": (57, 51, 2, 1.05), "googlenet": (58, 22, 4, 1.23), "inception_v3": (95, 48, 4, 1.51),
    "densenet121": (121, 121, 1, 1.00), "efficientnet_b0": (82, 82, 1, 1.00), "convnext_tiny": (59, 59, 1, 1.00),
    "vit_b_16": (62, 62, 1, 1.00), "resnext50_32x4d": (54, 50, 2, 1.09),
}  # fmt: skip


def torchvision_models():
    """Its networks; PyPI's torchvision is built with CUDA, and its import ends at two operators beside a torch that is not."""
    try:
        return pytest.importorskip("torchvision", reason="torchvision is not installed").models
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float limit) -> Tensor")
        return importlib.import_module("torchvision").models


@pytest.mark.parametrize("name", NETWORKS)
def test_widths_of_networks_that_people_know(name):
    models = torchvision_models()
    more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    side = 299 if name == "inception_v3" else 224
    with torch.device("meta"):
        module = models.get_model(name, weights=None, **more)
    found = width(module.to_empty(device="cpu"), torch.zeros(1, 3, side, side))
    heavy, depth, widest, parallelism = NETWORKS[name]
    assert (found.heavy, found.depth, found.widest) == (heavy, depth, widest)
    assert found.parallelism == pytest.approx(parallelism, abs=0.011)


class Recommender(nn.Module):
    """Embeddings of 26 tables and a layer beside them, their products with one another, and two layers."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 16) for _ in range(26))
        self.first, self.middle, self.last = nn.Linear(13, 16), nn.Linear(27 * 27, 32), nn.Linear(32, 1)

    def forward(self, numbers, words):
        rows = [self.first(numbers), *(table(words[:, i]) for i, table in enumerate(self.tables))]
        x = torch.stack(rows, 1)
        return self.last(F.relu(self.middle(torch.bmm(x, x.transpose(1, 2)).flatten(1))))


def test_a_recommender_is_wide_and_has_its_work_in_a_row():
    found = width(Recommender(), torch.zeros(4, 13), torch.zeros(4, 26, dtype=torch.long))
    assert (found.heavy, found.depth, found.widest, found.pools) == (30, 4, 27, 8)
    assert found.average == 7.5 and found.parallelism == pytest.approx(1.0, abs=0.01)


class Encoder(nn.Module):
    """Layers of a transformer, with three projections side by side."""

    def __init__(self, layers=4, size=32):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [*(nn.Linear(size, size) for _ in range(4)), nn.Linear(size, 4 * size), nn.Linear(4 * size, size)]
            )
            for _ in range(layers)
        )

    def forward(self, x):
        for query, key, value, out, up, down in self.layers:
            q, k, v = (layer(x).unflatten(-1, (4, -1)).transpose(1, 2) for layer in (query, key, value))
            x = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            x = x + down(F.gelu(up(x)))
        return x


def test_a_transformer_is_three_wide_in_front_of_attention():
    found = width(Encoder(), torch.zeros(2, 8, 32))
    assert (found.heavy, found.depth, found.widest) == (28, 20, 3)
    assert found.levels == (3, 1, 1, 1, 1) * 4
    # 4 s^2 d of attention and 24 s d^2 of products, of which 2 x 2 s d^2 lie beside: s = 8 in each of two, d = 32.
    attention, products = 2 * 4 * 8 * 8 * 32, 2 * 24 * 8 * 32 * 32
    assert found.work == 4 * (attention + products)
    assert found.critical_path == 4 * (attention + products * 20 / 24)


@pytest.mark.parametrize(
    ("module", "inputs", "operations"),
    [
        (nn.Conv2d(6, 8, 3, padding=1), [(2, 6, 5, 5)], 2 * 2 * 8 * 25 * 6 * 9),
        (nn.Conv2d(6, 6, 3, groups=6), [(1, 6, 5, 5)], 2 * 6 * 9 * 9),
        (nn.ConvTranspose2d(6, 4, 2, stride=2), [(1, 6, 5, 5)], 2 * 6 * 25 * 4 * 4),
        (nn.Linear(7, 3), [(5, 7)], 2 * 5 * 7 * 3),
        (nn.Linear(7, 3, bias=False), [(2, 5, 7)], 2 * 2 * 5 * 7 * 3),
        (nn.ReLU(), [(5, 7)], 0),
    ],
)
def test_operations(module, inputs, operations):
    found = width(module, *(torch.zeros(s) for s in inputs))
    assert found.work == operations and found.heavy == (operations > 0)


def test_a_backward_is_wider_than_its_forward():
    seen = []
    model = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())))
    session = Session(
        Options.make(dynamic=False, threads=1), on_import=lambda gm, done: seen.append(heavy_operators(gm).width())
    )
    compiled_with(model, session)(torch.randn(2, 4, 8, 8)).sum().backward()
    forward, backward = seen
    assert (forward.heavy, forward.depth, forward.average) == (5, 5, 1.0)
    # The first layer's image has no gradient.
    assert (backward.heavy, backward.depth, backward.widest) == (9, 5, 2)
    assert backward.work == pytest.approx(forward.work * 9 / 5)


@pytest.mark.parametrize(
    "heavy",
    [aten.mm, aten.addmm.default, aten.convolution.default, aten.embedding.default, aten._embedding_bag.default,
     aten._scaled_dot_product_flash_attention_for_cpu.default],
)  # fmt: skip
def test_what_is_heavy(heavy):
    assert is_heavy(heavy)


@pytest.mark.parametrize(
    "light", [aten.relu.default, aten.add.Tensor, aten.upsample_bilinear2d.default, aten.native_batch_norm.default, max]
)
def test_what_is_light(light):
    assert not is_heavy(light)
