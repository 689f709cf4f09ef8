"""The whole layer of a transformer's encoder, which PyTorch's nn.TransformerEncoderLayer calls as one operator in inference, taken apart.

PyTorch has no decomposition of it. As one call into torch nothing of it would be fused, and half types would take torch's slowest way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_OF_POSITIONS, _OF_KEYS = 0, 1


def encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor,
    ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor, mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """``aten._transformer_encoder_layer_fwd`` over dense tensors, as ATen's transformers/transformer.cpp has it.

    Args:
        src: (batch, positions, embed_dim).
        mask: true, or not zero, where a key is hidden. Type 0: (queries, keys), 1: (batch, keys), else (batch, heads, queries, keys).
    """
    size = [embed_dim]
    x = F.layer_norm(src, size, norm_weight_1, norm_bias_1, eps) if norm_first else src
    x = (
        F.linear(_attention(F.linear(x, qkv_weight, qkv_bias), num_heads, mask, mask_type), proj_weight, proj_bias)
        + src
    )
    if not norm_first:
        x = F.layer_norm(x, size, norm_weight_1, norm_bias_1, eps)
    y = F.layer_norm(x, size, norm_weight_2, norm_bias_2, eps) if norm_first else x
    y = F.linear(y, ffn_weight_1, ffn_bias_1)
    y = F.linear(F.gelu(y) if use_gelu else F.relu(y), ffn_weight_2, ffn_bias_2) + x
    return y if norm_first else F.layer_norm(y, size, norm_weight_2, norm_bias_2, eps)


def _attention(qkv: Tensor, heads: int, mask: Tensor | None, mask_type: int | None) -> Tensor:
    batch, positions, width = qkv.shape
    q, k, v = qkv.view(batch, positions, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4).unbind()
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, positions, width // 3)
    if mask_type == _OF_POSITIONS:
        mask = mask.view(1, 1, positions, positions)
    elif mask_type == _OF_KEYS:
        mask = mask.view(batch, 1, 1, positions)
    # A query that may look at no key is NaN, which scaled_dot_product_attention would make 0.
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    weights: Tensor = scores.masked_fill(mask.to(torch.bool), float("-inf")).softmax(-1)
    return (weights @ v).transpose(1, 2).reshape(batch, positions, width // 3)


DECOMPOSED: dict[Any, Any] = {torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer}
"""By operator, for the table that AOTAutograd traces with."""
