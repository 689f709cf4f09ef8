"""What the text of ONNX's operators allows their attributes to be, where the schemas name a type alone."""

from __future__ import annotations

import math
from typing import Any

from dcir.errors import InvalidModel
from dcir.frontends.onnx.einsum import check_equation
from dcir.frontends.onnx.tensors import show

_AUTO_PAD = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
_DIRECTION = ("forward", "reverse", "bidirectional")
_LOSS = ("none", "sum", "mean")
_SCATTER = ("none", "add", "mul", "min", "max")
_ROUND = ("up", "down", "nearest")
_CORNERS = ("DCR", "CRD")

_WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
    ("Cast", "round_mode"): _ROUND, ("CastLike", "round_mode"): _ROUND,
    ("CausalConvWithState", "activation"): ("none", "silu", "swish"),
    ("DepthToSpace", "mode"): _CORNERS, ("SpaceToDepth", "mode"): _CORNERS,
    ("Gelu", "approximate"): ("none", "tanh"),
    ("GridSample", "mode"): ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    ("GridSample", "padding_mode"): ("zeros", "border", "reflection"),
    ("LinearAttention", "update_rule"): ("linear", "gated", "delta", "gated_delta"),
    ("Momentum", "mode"): ("nesterov", "standard"),
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("Resize", "coordinate_transformation_mode"): (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_crop_and_resize", "tf_half_pixel_for_nn",
    ),
    ("Resize", "keep_aspect_ratio_policy"): ("stretch", "not_larger", "not_smaller"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("Resize", "nearest_mode"): ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    ("RoiAlign", "coordinate_transformation_mode"): ("half_pixel", "output_half_pixel"),
    ("RoiAlign", "mode"): ("avg", "max"),
    ("ScatterElements", "reduction"): _SCATTER, ("ScatterND", "reduction"): _SCATTER,
    ("NegativeLogLikelihoodLoss", "reduction"): _LOSS, ("SoftmaxCrossEntropyLoss", "reduction"): _LOSS,
    ("StringNormalizer", "case_change_action"): ("NONE", "LOWER", "UPPER"),
    ("TensorScatter", "mode"): ("linear", "circular"),
    ("TfIdfVectorizer", "mode"): ("TF", "IDF", "TFIDF"),
    ("Upsample", "mode"): ("nearest", "linear", "bilinear", "trilinear"),
    **dict.fromkeys(((op, "direction") for op in ("GRU", "LSTM", "RNN")), _DIRECTION),
    **dict.fromkeys(
        ((op, "auto_pad") for op in (
            "AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool", "QLinearConv",
        )), _AUTO_PAD,
    ),
}  # fmt: skip

_FLAGS = frozenset((
    "align_corners", "allowzero", "antialias", "broadcast", "ceil_mode", "center_point_box", "count_include_pad",
    "detect_negative", "detect_positive", "exclude_outside", "exclusive", "fmod", "input_forget", "interleaved", "inverse",
    "is_case_sensitive", "is_causal", "is_test", "keepdims", "largest", "layout", "linear_before_reset", "new_axis",
    "noop_with_empty_axes", "onesided", "output_sequence", "periodic", "reverse", "saturate", "select_last_index", "sorted",
    "spatial", "storage_order", "training_mode", "transA", "transB", "upper",
))  # fmt: skip

_LEAST: dict[str, int] = {
    "batch_dims": 0, "block_size": 0, "blocksize": 1, "chunk_size": 1, "group": 1, "hidden_size": 1, "kv_num_heads": 1,
    "max_skip_count": 0, "min_gram_length": 1, "max_gram_length": 1, "n_targets": 1, "num_groups": 1, "num_heads": 0,
    "num_outputs": 1, "num_scan_inputs": 1, "offset_group": 1, "output_height": 1, "output_width": 1, "p": 1,
    "q_num_heads": 1, "rotary_embedding_dim": 0, "sample_size": 1, "sampling_ratio": 0, "size": 1,
    "left_window_size": -1, "right_window_size": -1,
}  # fmt: skip

_FINITE = ("alpha", "beta", "bias", "epsilon", "gamma", "momentum", "scale", "softcap", "spatial_scale")
_STASHED = (1, 10, 11, 16)
_EACH: dict[str, int] = {
    "dilations": 1, "kernel_shape": 1, "output_padding": 0, "output_shape": 1, "pooled_shape": 1, "strides": 1,
}  # fmt: skip
"""The least of each number of a list."""
_CROPS = ("Pad",)
"""Operators whose paddings may be negative: they cut off."""


def check_attributes(op: str, attributes: dict[str, Any], operands: int, label: str) -> None:
    """Hold attributes against what the operator's text says of them.

    Args:
        op: the operator.
        attributes: as read, with the schema's defaults.
        operands: how many the node has.
        label: the node.

    Raises:
        InvalidModel: with the attribute's name, its value, and what it may be.
    """
    if op == "Einsum":
        check_equation(attributes["equation"], operands, label)
    for name, value in attributes.items():
        words = _WORDS.get((op, name))
        if words is not None and value not in words:
            raise _wrong(name, value, label, f"one of {', '.join(words)}")
        if name == "stash_type" and value not in _STASHED:
            raise _wrong(name, value, label, "1, 10, 11 or 16: a float type")
        if name in _FLAGS and isinstance(value, int) and value not in (0, 1):
            raise _wrong(name, value, label, "0 or 1")
        if name in _FINITE and isinstance(value, float) and not math.isfinite(value):
            raise _wrong(name, value, label, "a finite number")
        if name in _LEAST and isinstance(value, int) and value < _LEAST[name]:
            raise _wrong(name, value, label, f"a number from {_LEAST[name]}")
        if not isinstance(value, tuple):
            continue
        least = 0 if name == "pads" and op not in _CROPS else _EACH.get(name)
        if least is not None and any(not isinstance(v, int) or v < least for v in value):
            raise _wrong(name, list(value), label, f"numbers from {least}")


def _wrong(name: str, value: Any, label: str, wanted: str) -> InvalidModel:
    shown = show(value) if isinstance(value, str) else str(value)
    return InvalidModel(f"attribute {name!r} is {shown}", where=label, hint=wanted)
