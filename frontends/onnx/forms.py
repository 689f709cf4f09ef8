"""How operands' shapes must fit each other: looked at before an operator runs.

torch broadcasts, cuts and flattens where ONNX's operators do not, and would compute something from operands that do not fit.
Each rule looks at the node and its operands, and raises `TypeMismatch` or `InvalidModel`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dcir.errors import InvalidModel, TypeMismatch
from dcir.frontends.onnx.einsum import check_terms
from dcir.frontends.onnx.registry import Node
from dcir.frontends.onnx.values import axis_of

Rule = Callable[..., None]
_FLOATS = (0, 1, 10, 11, 16)
"""Element types of a precision: none given, float, float16, double, bfloat16."""


def check_form(node: Node, operands: list[Any]) -> None:
    """Apply the operator's rules.

    Raises:
        TypeMismatch: shapes do not fit each other.
        InvalidModel: an attribute does not fit the shapes.
    """
    for rule in RULES.get(node.op, ()):
        rule(node, *operands)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape)


def _bad(what: str, have: Any, want: str) -> TypeMismatch:
    return TypeMismatch(f"{what} has shape {list(have)}, wanted is {want}", hint="look at what makes the operand")


def ranked(*positions: int, least: int, most: int = 64) -> Rule:
    """These operands, where given, have so many dimensions."""

    def rule(node: Node, *operands: Any) -> None:
        for i in positions:
            if i < len(operands) and operands[i] is not None and not least <= len(operands[i].shape) <= most:
                want = (
                    f"rank {least}"
                    if least == most
                    else f"rank {least} to {most}"
                    if most < 64
                    else f"rank {least} or more"
                )
                raise _bad(f"operand {i}", operands[i].shape, want)

    return rule


def per_channel(*positions: int) -> Rule:
    """These operands are lists with a number for each channel of the first one."""

    def rule(node: Node, x: Any, *rest: Any) -> None:
        channels = x.shape[1] if x.ndim > 1 else 1
        for i in positions:
            part = rest[i - 1] if i <= len(rest) else None
            if part is not None and _shape(part) != (channels,):
                raise _bad(f"operand {i}", part.shape, f"[{channels}], a number for each channel")

    return rule


def alike(first: int, *others: int) -> Rule:
    """These operands, where given, have one shape."""

    def rule(node: Node, *operands: Any) -> None:
        for i in others:
            other = operands[i] if i < len(operands) else None
            if other is not None and _shape(other) != _shape(operands[first]):
                raise _bad(f"operand {i}", other.shape, f"that of operand {first}: {list(operands[first].shape)}")

    return rule


def within(first: int, *others: int) -> Rule:
    """These operands, where given, broadcast to the shape of the first."""

    def rule(node: Node, *operands: Any) -> None:
        whole = _shape(operands[first])
        for i in others:
            if i >= len(operands) or operands[i] is None:
                continue
            part = _shape(operands[i])
            ends = zip(reversed(part), reversed(whole), strict=False)
            if len(part) > len(whole) or any(p not in (1, w) for p, w in ends):
                raise _bad(f"operand {i}", part, f"one that broadcasts to {list(whole)}")

    return rule


def single(*positions: int) -> Rule:
    """These operands, where given, hold one number."""

    def rule(node: Node, *operands: Any) -> None:
        for i in positions:
            if i < len(operands) and operands[i] is not None and _shape(operands[i]) not in ((), (1,)):
                raise _bad(f"operand {i}", operands[i].shape, "one number")

    return rule


def one_or(position: int, of: int, dim: int) -> Rule:
    """An operand holds one number, or one for each index of a dimension of another."""

    def rule(node: Node, *operands: Any) -> None:
        part = operands[position] if position < len(operands) else None
        if part is None or _shape(part) in ((), (1,)):
            return
        if part.ndim > 1 or part.shape[0] != operands[of].shape[dim]:
            raise _bad(f"operand {position}", part.shape, f"one number, or [{operands[of].shape[dim]}]")

    return rule


def _kernel(node: Node, *operands: Any) -> None:
    """A convolution's `kernel_shape` is that of its weights."""
    weights = operands[3 if node.op == "QLinearConv" else 1]
    given = node.get("kernel_shape")
    if given is not None and tuple(given) != _shape(weights)[2:]:
        raise InvalidModel(
            f"attribute 'kernel_shape' is {list(given)}, the weights have shape {list(weights.shape)}",
            hint=f"kernel_shape = {list(weights.shape[2:])}, or none",
        )


def _loss(node: Node, x: Any, target: Any, weight: Any = None) -> None:
    want = (*_shape(x)[:1], *_shape(x)[2:])
    if x.ndim < 2 or _shape(target) != want:
        raise _bad("the target", target.shape, f"{list(want)} for scores of shape {list(x.shape)}")
    if weight is not None and _shape(weight) != (x.shape[1],):
        raise _bad("the weight", weight.shape, f"[{x.shape[1]}], a number for each class")


def _scatter_nd(node: Node, x: Any, index: Any, updates: Any) -> None:
    if index.ndim < 1 or index.shape[-1] > x.ndim:
        raise _bad("the indices", index.shape, f"at most {x.ndim} of them in the last dimension")
    want = (*_shape(index)[:-1], *_shape(x)[index.shape[-1] :])
    if _shape(updates) != want:
        raise _bad("operand 2", updates.shape, str(list(want)))


def _tensor_scatter(node: Node, past: Any, update: Any, write: Any = None) -> None:
    axis = axis_of(node["axis"], past.ndim)
    fits = update.ndim == past.ndim
    if not fits or any(p != u for d, (p, u) in enumerate(zip(past.shape, update.shape, strict=True)) if d != axis):
        raise _bad("operand 1", update.shape, f"{list(past.shape)} but for dimension {axis}")
    if write is not None and _shape(write) != (past.shape[0],):
        raise _bad("operand 2", write.shape, f"[{past.shape[0]}], a place for each entry of the batch")


def _reverse_sequence(node: Node, x: Any, lengths: Any) -> None:
    time, batch = node["time_axis"], node["batch_axis"]
    if {time, batch} != {0, 1}:
        raise InvalidModel(
            f"attributes 'time_axis' and 'batch_axis' are {time} and {batch}", hint="0 and 1, or 1 and 0"
        )
    if x.ndim < 2 or _shape(lengths) != (x.shape[batch],):
        raise _bad("operand 1", lengths.shape, f"a length for each entry of the batch of {list(x.shape)}")


def _one_hot(node: Node, index: Any, depth: Any, values: Any) -> None:
    if _shape(values) != (2,):
        raise _bad("operand 2", values.shape, "[2], the values for off and on")


def _steps(groups: int) -> Rule:
    """An optimiser's tensors come in groups of one shape each."""

    def rule(node: Node, rate: Any, step: Any, *tensors: Any) -> None:
        if len(tensors) % groups:
            raise InvalidModel(f"{len(tensors)} tensors are no {groups} groups of equally many")
        count = len(tensors) // groups
        for i, tensor in enumerate(tensors):
            if _shape(tensor) != _shape(tensors[i % count]):
                raise _bad(f"operand {2 + i}", tensor.shape, f"that of operand {2 + i % count}")

    return rule


def _recurrent(gates: int) -> Rule:
    def rule(
        node: Node, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h0: Any = None, c0: Any = None,
        peep: Any = None,
    ) -> None:  # fmt: skip
        directions, hidden = w.shape[0], r.shape[-1]
        if node.get("hidden_size") not in (None, hidden):
            raise InvalidModel(
                f"attribute 'hidden_size' is {node['hidden_size']}, the weights have shape {list(r.shape)}",
                hint=f"hidden_size = {hidden}, or none",
            )
        batch_first = node.get("layout", 0)
        batch = x.shape[0 if batch_first else 1]
        state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
        wants = (
            ("operand 1", w, (directions, gates * hidden, x.shape[2])),
            ("operand 2", r, (directions, gates * hidden, hidden)),
            ("operand 3", b, (directions, 2 * gates * hidden)), ("operand 4", lengths, (batch,)),
            ("operand 5", h0, state), ("operand 6", c0, state), ("operand 7", peep, (directions, 3 * hidden)),
        )  # fmt: skip
        for what, tensor, want in wants:
            if tensor is not None and _shape(tensor) != want:
                raise _bad(what, tensor.shape, str(list(want)))

    return rule


def _attention(node: Node, q: Any, k: Any, v: Any, *rest: Any) -> None:
    if not q.ndim == k.ndim == v.ndim:
        raise _bad("operand 0", q.shape, f"the rank of operands 1 and 2: {list(k.shape)}, {list(v.shape)}")
    heads = [n for n in ("q_num_heads", "kv_num_heads") if node.get(n) is not None]
    if q.ndim == 4 and heads:
        raise InvalidModel(f"attribute {heads[0]!r} is given for operands of rank 4", hint="leave it out")
    if not node.get("softcap", 0.0) >= 0:
        raise InvalidModel(f"attribute 'softcap' is {node['softcap']}", hint="a positive number, or 0 for none")
    mode = node.get("qk_matmul_output_mode", 0)
    if mode not in range(4):
        raise InvalidModel(f"attribute 'qk_matmul_output_mode' is {mode}", hint="0, 1, 2 or 3")
    _precision(node)


def _precision(node: Node, *operands: Any) -> None:
    given = node.get("softmax_precision")
    if given is not None and given not in _FLOATS[1:]:
        raise InvalidModel(f"attribute 'softmax_precision' is {given}", hint="1, 10, 11 or 16: a float type")


def _rotary(node: Node, x: Any, cos: Any, sin: Any, positions: Any = None) -> None:
    size = node["rotary_embedding_dim"]
    if not size:
        size = x.shape[3] if x.ndim == 4 else x.shape[2] // max(node["num_heads"], 1)
    for what, table in (("operand 1", cos), ("operand 2", sin)):
        if table.shape[-1] != size // 2 or table.ndim != (3 if positions is None else 2):
            raise _bad(
                what, table.shape, f"rank {3 if positions is None else 2} with {size // 2} numbers for each position"
            )


def _regions(node: Node, x: Any, rois: Any, batch: Any = None) -> None:
    width = 4 if node.op == "RoiAlign" else 5
    if rois.ndim != 2 or rois.shape[1] != width:
        raise _bad("operand 1", rois.shape, f"[regions, {width}]")
    if batch is not None and _shape(batch) != (rois.shape[0],):
        raise _bad("operand 2", batch.shape, f"[{rois.shape[0]}], an image for each region")


def _boxes(node: Node, boxes: Any, scores: Any, *limits: Any) -> None:
    if boxes.shape[2] != 4 or (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
        want = f"[{scores.shape[0]}, {scores.shape[2]}, 4] for scores of shape {list(scores.shape)}"
        raise _bad("operand 0", boxes.shape, want)


def _blocks(node: Node, x: Any, *rest: Any) -> None:
    """DepthToSpace and SpaceToDepth: what is divided into blocks divides."""
    size = node["blocksize"]
    deep = node.op == "DepthToSpace"
    if (x.shape[1] % size**2) if deep else (x.shape[2] % size or x.shape[3] % size):
        want = f"channels a multiple of {size**2}" if deep else f"height and width multiples of {size}"
        raise _bad("operand 0", x.shape, f"{want}, for blocks of {size}")


def _groups(node: Node, x: Any, scale: Any, b: Any) -> None:
    groups, channels = node["num_groups"], x.shape[1]
    if channels % groups:
        raise InvalidModel(f"attribute 'num_groups' is {groups}, operand 0 has {channels} channels", hint="a divisor")
    want = (groups,) if node.version < 21 else (channels,)
    for i, part in ((1, scale), (2, b)):
        if _shape(part) != want:
            raise _bad(f"operand {i}", part.shape, str(list(want)))


def _quantized(node: Node, x: Any, scale: Any, zero: Any = None) -> None:
    if zero is not None and _shape(zero) != _shape(scale) and not {_shape(zero), _shape(scale)} <= {(), (1,)}:
        raise _bad("operand 2", zero.shape, f"that of operand 1: {list(scale.shape)}")
    block = node.get("block_size", 0)
    if scale.ndim < 2 or not block:
        return
    axis = axis_of(node.get("axis", 1), x.ndim)
    want = tuple(-(-n // block) if d == axis else n for d, n in enumerate(x.shape))
    if _shape(scale) != want:
        raise _bad("operand 1", scale.shape, f"{list(want)}, for blocks of {block} along dimension {axis}")


def _deformed(node: Node, x: Any, w: Any, offset: Any, b: Any = None, mask: Any = None) -> None:
    taps, parts = w.shape[2] * w.shape[3], node["offset_group"]
    strides, dilations = node.get("strides") or (1, 1), node.get("dilations") or (1, 1)
    pads = node.get("pads") or (0, 0, 0, 0)
    out = [
        (x.shape[2 + i] + pads[i] + pads[i + 2] - dilations[i] * (w.shape[2 + i] - 1) - 1) // strides[i] + 1
        for i in range(2)
    ]
    for what, part, each in (("operand 2", offset, 2), ("operand 4", mask, 1)):
        want = (x.shape[0], parts * taps * each, *out)
        if part is not None and _shape(part) != want:
            raise _bad(what, part.shape, str(list(want)))


def _slope(node: Node, x: Any, slope: Any) -> None:
    if node.version >= 7:
        within(0, 1)(node, x, slope)


def _causal(node: Node, x: Any, w: Any, b: Any = None, past: Any = None) -> None:
    channels = x.shape[1]
    wants = (("operand 1", w, (channels, 1, w.shape[2])), ("operand 2", b, (channels,)),
             ("operand 3", past, (x.shape[0], channels, w.shape[2] - 1)))  # fmt: skip
    for what, part, want in wants:
        if part is not None and _shape(part) != want:
            raise _bad(what, part.shape, str(list(want)))


def _trained(node: Node, *operands: Any) -> None:
    if node.version >= 14 and node.outputs > 1 and not node.get("training_mode", 0):
        raise InvalidModel(
            "statistics are results of a node that does not train", hint="training_mode = 1, or one result"
        )


RULES: dict[str, tuple[Rule, ...]] = {
    "Attention": (ranked(0, 1, 2, least=3, most=4), ranked(3, least=1, most=4), ranked(4, 5, least=4, most=4),
                  ranked(6, least=1, most=1), _attention),
    "FlexAttention": (ranked(0, 1, 2, least=4, most=4), _precision),
    "RotaryEmbedding": (ranked(0, least=3, most=4), _rotary),
    "BatchNormalization": (per_channel(1, 2, 3, 4), _trained),
    "InstanceNormalization": (ranked(0, least=2), per_channel(1, 2)),
    "GroupNormalization": (ranked(0, least=2), _groups),
    "LayerNormalization": (ranked(0, least=1), within(0, 1, 2)),
    "RMSNormalization": (ranked(0, least=1), within(0, 1)),
    "LRN": (ranked(0, least=3),),
    "Einsum": (check_terms,),
    "SwiGLU": (alike(0, 1),),
    "GlobalAveragePool": (ranked(0, least=3),), "GlobalMaxPool": (ranked(0, least=3),),
    "GlobalLpPool": (ranked(0, least=3),),
    "AveragePool": (ranked(0, least=3),), "MaxPool": (ranked(0, least=3),), "LpPool": (ranked(0, least=3),),
    "MaxUnpool": (ranked(0, least=3), alike(0, 1)),
    "Conv": (ranked(0, 1, least=3), _kernel), "ConvTranspose": (ranked(0, 1, least=3), _kernel),
    "ConvInteger": (ranked(0, 1, least=3), _kernel, single(2), one_or(3, 1, 0)),
    "QLinearConv": (ranked(0, 3, least=3), _kernel, single(1, 2, 6, 7), one_or(4, 3, 0), one_or(5, 3, 0)),
    "DeformConv": (ranked(0, 1, 2, 4, least=4, most=4), _kernel, _deformed),
    "MatMulInteger": (one_or(2, 0, -2), one_or(3, 1, -1)), "QLinearMatMul": (single(6, 7),),
    "PRelu": (_slope,), "CausalConvWithState": (ranked(0, 1, 3, least=3, most=3), _causal),
    "QuantizeLinear": (_quantized,), "DequantizeLinear": (_quantized,),
    "NegativeLogLikelihoodLoss": (_loss,), "SoftmaxCrossEntropyLoss": (_loss,),
    "Scatter": (alike(1, 2),), "ScatterElements": (alike(1, 2),), "ScatterND": (_scatter_nd,),
    "TensorScatter": (_tensor_scatter,),
    "Compress": (ranked(1, least=1, most=1),), "OneHot": (_one_hot,), "ReverseSequence": (_reverse_sequence,),
    "RNN": (ranked(0, 1, 2, least=3, most=3), _recurrent(1)), "GRU": (ranked(0, 1, 2, least=3, most=3), _recurrent(3)),
    "LSTM": (ranked(0, 1, 2, least=3, most=3), _recurrent(4)),
    "RoiAlign": (ranked(0, least=4, most=4), _regions), "MaxRoiPool": (ranked(0, least=4, most=4), _regions),
    "NonMaxSuppression": (ranked(0, 1, least=3, most=3), _boxes),
    "DepthToSpace": (ranked(0, least=4, most=4), _blocks), "SpaceToDepth": (ranked(0, least=4, most=4), _blocks),
    "EyeLike": (ranked(0, least=2, most=2),), "Col2Im": (ranked(0, least=3, most=3),),
    "TfIdfVectorizer": (ranked(0, least=1, most=2),), "STFT": (ranked(0, least=2, most=3), ranked(2, least=1, most=1)),
    "TreeEnsemble": (ranked(0, least=2, most=2),), "Trilu": (ranked(0, least=2),), "Det": (ranked(0, least=2),),
    "Adagrad": (single(0, 1), _steps(3)), "Adam": (single(0, 1), _steps(4)), "Momentum": (single(0, 1), _steps(3)),
}  # fmt: skip
