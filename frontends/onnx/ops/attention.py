"""Attention, rotary embedding and linear attention."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dcir.errors import InvalidModel
from dcir.frontends.onnx.program import Subprogram
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import torch_dtype


def _heads(x: Tensor, count: int | None) -> Any:
    """[batch, length, heads * size] to [batch, heads, length, size]."""
    if not count or x.shape[2] % count:
        raise InvalidModel(f"{count} heads do not divide the hidden size {x.shape[2]}")
    return x.unflatten(2, (count, x.shape[2] // count)).transpose(1, 2)


def _allowed(node: Node, q: Tensor, keys: int, past: int, valid: Tensor | None, *, causal: bool) -> Tensor | None:
    """Where causal order, sliding windows and the padding of the cache let a query see a key."""
    rows = torch.arange(q.shape[2], device=q.device).unsqueeze(1)
    columns = torch.arange(keys, device=q.device)
    offset: Any = past
    if past == 0 and valid is not None:
        offset = (valid.reshape(-1, 1, 1, 1) - q.shape[2]).to(torch.int64)
    position = rows + offset
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    parts: list[Tensor] = []
    if causal:
        parts.append(columns <= position)
    if left >= 0:
        parts.append(columns >= position - left)
    if right >= 0:
        parts.append(columns <= position + right)
    if valid is not None:
        parts.append(columns < valid.reshape(-1, 1, 1, 1))
    mask = None
    for part in parts:
        mask = part if mask is None else mask & part
    return mask


@onnx_op("Attention", since=23)
def attention(
    node: Node,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    valid: Tensor | None = None,
) -> Any:
    flat = q.ndim == 3
    if flat:
        q, k, v = (_heads(x, node.get(f"{n}_num_heads")) for x, n in ((q, "q"), (k, "kv"), (v, "kv")))
    past = 0 if past_key is None else past_key.shape[2]
    if past_key is not None and past_value is not None:
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    present = (k, v)
    scale = 1 / math.sqrt(q.shape[3]) if node.get("scale") is None else node["scale"]
    softcap, wants_scores = node.get("softcap", 0.0), node.used > 3
    if mask is not None and mask.shape[-1] < k.shape[2]:
        fill = False if mask.dtype == torch.bool else -math.inf
        mask = F.pad(mask, (0, k.shape[2] - mask.shape[-1]), value=fill)
    causal = bool(node["is_causal"])
    windows = node.get("left_window_size", -1) >= 0 or node.get("right_window_size", -1) >= 0
    precision = node.get("softmax_precision")
    plain = not softcap and not wants_scores and (not precision or torch_dtype(precision) == q.dtype)
    simple = causal and mask is None and past == 0 and valid is None and not windows
    allowed = None if simple and plain else _allowed(node, q, k.shape[2], past, valid, causal=causal)
    if plain:
        bias = _bias(mask, allowed, q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, bias, 0.0, simple, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
        scores = None
    else:
        y, scores = _explicit(node, q, k, v, _bias(mask, allowed, q.dtype), scale, softcap)
    if flat:
        y = y.transpose(1, 2).flatten(2)
    return (y, *present, scores) if node.used > 1 else y


def _bias(mask: Tensor | None, allowed: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or allowed is None:
        return mask if allowed is None else allowed
    if mask.dtype == torch.bool:
        return mask & allowed
    return torch.where(allowed, mask.to(dtype), -math.inf)


def _explicit(
    node: Node, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float
) -> tuple[Tensor, Tensor]:
    repeat = q.shape[1] // k.shape[1]
    if repeat > 1:
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    root = math.sqrt(scale)
    scores = raw = torch.matmul(q * root, (k * root).transpose(2, 3))
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    exposed = scores
    if bias is not None:
        additive = torch.where(bias, 0.0, -math.inf).to(scores.dtype) if bias.dtype == torch.bool else bias
        scores = scores + additive
        hidden = torch.amax(additive, -1, keepdim=True) == -math.inf
    mode = node.get("qk_matmul_output_mode", 0)
    if mode == 0:
        exposed = raw
    if mode == 2:
        exposed = scores
    wide = torch_dtype(node["softmax_precision"]) if node.get("softmax_precision") else scores.dtype
    weights = torch.softmax(scores.to(wide), -1)
    if bias is not None:
        # A query that sees no key gives zeros, not NaN.
        weights = torch.where(hidden, 0.0, weights)
    weights = weights.to(q.dtype)
    if mode == 3:
        exposed = weights
    return torch.matmul(weights, v), exposed


@onnx_op("FlexAttention", domain="ai.onnx.preview", raw=True)
def flex_attention(node: Node, q: Tensor, k: Tensor, v: Tensor, *captured: Any) -> Tensor:
    repeat = q.shape[1] // k.shape[1]
    if repeat > 1:
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scale = 1 / math.sqrt(q.shape[3]) if node.get("scale") is None else node["scale"]
    precision = node.get("softmax_precision")
    wide = torch_dtype(precision) if precision else torch.promote_types(q.dtype, torch.float32)
    scores = torch.matmul(q.to(wide), k.to(wide).transpose(2, 3)) * scale
    operands = (q, k, v, *captured)
    for name in ("score_mod", "prob_mod"):
        body: Subprogram | None = node.get(name)
        if body is not None:
            scores = body((scores,), operands)[0]
        if name == "score_mod":
            scores = torch.softmax(scores, -1)
    return torch.matmul(scores.to(q.dtype), v)


@onnx_op("RotaryEmbedding", since=23)
def rotary_embedding(node: Node, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
    flat = x.ndim == 3
    y = _heads(x, node["num_heads"]) if flat else x
    size = node["rotary_embedding_dim"] or y.shape[3]
    if positions is not None:
        cos, sin = F.embedding(positions, cos), F.embedding(positions, sin)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned, rest = y[..., :size], y[..., size:]
    if node["interleaved"]:
        a, b = turned[..., 0::2], turned[..., 1::2]
    else:
        a, b = turned.chunk(2, -1)
    real, imaginary = cos * a - sin * b, sin * a + cos * b
    turned = torch.stack((real, imaginary), -1).flatten(3) if node["interleaved"] else torch.cat((real, imaginary), -1)
    result = turned if size == y.shape[3] else torch.cat((turned, rest), -1)
    return result.transpose(1, 2).flatten(2) if flat else result


@onnx_op("LinearAttention", since=27)
def linear_attention(
    node: Node,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence of the specification, token by token; the state is [batch, kv heads, key size, value size]."""
    rule = node["update_rule"]
    q, k, v = _heads(q, node["q_num_heads"]), _heads(k, node["kv_num_heads"]), _heads(v, node["kv_num_heads"])
    dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    batch, heads, steps, size = k.shape
    scale = node["scale"] or 1 / math.sqrt(q.shape[3])
    state = q.new_zeros((batch, heads, size, v.shape[3]), dtype=wide) if past is None else past.to(wide)
    if decay is not None:
        decay = _heads(decay, heads).to(wide)
    if beta is not None:
        beta = beta.to(wide).transpose(1, 2).unsqueeze(-1)
    if ("gated" in rule and decay is None) or ("delta" in rule and beta is None):
        raise InvalidModel(f"update rule {rule!r} misses an operand")
    group = q.shape[1] // heads
    outputs = []
    for t in range(steps):
        key, value = k[:, :, t].to(wide).unsqueeze(-1), v[:, :, t].to(wide).unsqueeze(-2)
        if "gated" in rule and decay is not None:
            state = torch.exp(decay[:, :, t]).unsqueeze(-1) * state
        if "delta" in rule and beta is not None:
            value = beta[:, :, t].unsqueeze(-1) * (value - torch.matmul(key.transpose(-1, -2), state))
        state = state + key * value
        query = q[:, :, t].to(wide).unflatten(1, (heads, group))
        outputs.append(torch.matmul(query, state).flatten(1, 2) * scale)
    y = torch.stack(outputs, 2).to(dtype)
    return y.transpose(1, 2).flatten(2), state.to(dtype if past is None else past.dtype)
