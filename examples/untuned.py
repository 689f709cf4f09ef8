"""Networks that nobody tuned for, as ``dcir bench examples/untuned.py:mlp_row --against eager,inductor,ort,ov`` takes them.

Each function returns a module and its inputs, with random weights. The two convolutional networks are timm's (the extra ``architectures``),
the rivals come with the extra ``bench``.
"""

from __future__ import annotations

import torch
from graph_network import GraphSage
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]


def mlp_row() -> Example:
    """784-512-256-10 with batch norms, one row: what a call costs around the kernels."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(784, 512),
        nn.BatchNorm1d(512),
        nn.ReLU(),
        nn.Linear(512, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Linear(256, 10),
    ).eval()
    return module, (torch.randn(1, 784),)


def graph_network() -> Example:
    """GraphSAGE by ``index_add``: 20,000 nodes, 200,000 edges, three layers of 128."""
    torch.manual_seed(0)
    return GraphSage(128, 3).eval(), (torch.randn(20000, 128), torch.randint(0, 20000, (2, 200000)))


def language_model() -> Example:
    """Two layers of LSTM, 650 wide, batch 20, 35 steps, 10,000 words."""

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10000, 650)
            self.lstm = nn.LSTM(650, 650, 2)
            self.head = nn.Linear(650, 10000)

        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.lstm(self.embedding(words))[0])

    torch.manual_seed(0)
    return LanguageModel().eval(), (torch.randint(0, 10000, (35, 20)),)


def _timm(name: str) -> Example:
    import torchvision_beside_cpu_torch  # noqa: F401
    import timm  # isort: skip

    torch.manual_seed(0)
    return timm.create_model(name).eval(), (torch.randn(4, 3, 224, 224),)


def resnext50() -> Example:
    """resnext50_32x4d, 4 images: convolutions of 32 groups of 4 to 32 channels."""
    return _timm("resnext50_32x4d")


def regnety_008() -> Example:
    """regnety_008, 4 images: groups of 16 channels, squeeze-and-excitation."""
    return _timm("regnety_008")


def _linears(rows: int, dtype: torch.dtype) -> Example:
    torch.manual_seed(0)
    layers = [nn.Linear(*sizes) for _ in range(3) for sizes in ((2048, 8192), (8192, 2048))]
    return nn.Sequential(*layers).eval().to(dtype), (torch.randn(rows, 2048, dtype=dtype),)


def linears_row() -> Example:
    """Six linear layers (2048 to 8192 and back), one row, float32: reading the weights."""
    return _linears(1, torch.float32)


def linears_row_bf16() -> Example:
    """The same as transformers loads language models: bfloat16."""
    return _linears(1, torch.bfloat16)


def linears_row_f16() -> Example:
    """The same in float16."""
    return _linears(1, torch.float16)


def linears_128() -> Example:
    """128 rows through the six linear layers, float32."""
    return _linears(128, torch.float32)


def linears_128_bf16() -> Example:
    """The same in bfloat16."""
    return _linears(128, torch.bfloat16)
