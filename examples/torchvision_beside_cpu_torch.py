"""Makes PyPI's torchvision importable beside a torch without CUDA: ``import torchvision_beside_cpu_torch`` before timm or transformers.

That torchvision is built with CUDA, and its import ends at the shapes of two operators of its library, which no example calls.
"""

from __future__ import annotations

import importlib.util

import torch

if importlib.util.find_spec("torchvision") is not None:
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for _name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float limit) -> Tensor")
