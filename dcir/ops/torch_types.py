"""Which torch type each of dcir's element types is."""

from __future__ import annotations

import torch

from dcir.ir.types import TYPES

FROM_NAME: dict[str, torch.dtype] = {name: getattr(torch, t.torch) for name, t in TYPES.items()}
TORCH_TYPES: dict[torch.dtype, str] = {v: k for k, v in FROM_NAME.items()}
