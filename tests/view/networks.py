"""Networks whose sessions the page is tested with and its pictures are of: an MLP, ResNet-50 and BERT, at small sizes."""

from __future__ import annotations

import torch
from torch import nn

from tests.harness import example_models
from tests.view import models

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def mlp(batch: int = 4) -> Made:
    """Two linear layers."""
    return models.mlp(batch)


def resnet50(batch: int = 4) -> Made:
    """ResNet-50 at small images."""
    torch.manual_seed(0)
    return example_models().ResNet50(classes=100), (torch.randn(batch, 3, 64, 64),)


def first_stages(batch: int = 4) -> Made:
    """The first two stages of ResNet-50, at small images."""
    (model, inputs), blocks = resnet50(batch), 7
    model.blocks, model.head = model.blocks[:blocks], nn.Linear(512, 100)  # type: ignore[index]
    return model, inputs


def bert(batch: int = 2) -> Made:
    """An encoder of BERT-base's depth, a quarter as wide."""
    torch.manual_seed(0)
    return example_models().Bert(size=192, heads=3, tokens=1000), (torch.randint(0, 1000, (batch, 48)),)
