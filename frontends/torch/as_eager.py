"""PyTorch's decompositions that compute otherwise than its kernels are made right while a graph is traced.

Of PyTorch 2.13 these are:
- recurrent layers: an LSTM whose input needs no gradient becomes oneDNN's layer for inference, though its weights may need theirs,
  and the backward of that layer wants a workspace that only its training form makes;
- recurrent layers: the dropout between layers is left out, since the layer's number is compared with their count the wrong way round;
- the multi-label margin loss counts what stands behind the end of a row's targets as targets;
- both margin losses: of a vector without a reduction they have the shape (1,), not ();
- normalisations of batches and groups, of a half type with weights of float32, as under autocast: what they keep for the backward is
  rounded to the half type, an error that a channel's elements share: sums over them (gradients of weights, here and below) keep it.

And of two operators PyTorch takes derivatives for constant sizes alone, so that a graph whose sizes move could not be traced:
- grids of affine maps, whose decomposition is differentiated in its place;
- bicubic interpolation with antialiasing, whose gradient gets the meta function of the bilinear one: what that says holds for both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table, decompositions
from torch._decomp.decompositions import one_layer_lstm
from torch._meta_registrations import meta_upsample_bimode2d_aa_backward
from torch._subclasses.fake_tensor import FakeTensorMode, _BypassDispatchCache

# (input, state, weights, biases, reverse) -> (output of every step, last state)
_Layer = Callable[..., tuple[Tensor, Any]]


_aten = torch.ops.aten
_MARGIN = _aten.multi_margin_loss.default
_LABELS = _aten.multilabel_margin_loss_forward.default


def multi_margin_loss(
    data: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """The loss, by how much less than the margin other classes are behind the target.

    Args:
        data: scores of each class, a row per image or one row.
        target: the class of each row.
        p: the power of what is missing, 1 or 2.
        margin: by how much the target is to be ahead.
        weight: a factor for each class.
        reduction: 0 none, 1 mean, 2 sum.
    """
    loss = decompositions.multi_margin_loss(data, target, p, margin, weight, reduction)
    return loss if reduction else loss.reshape(target.shape)


def multilabel_margin_loss(data: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The loss, and which classes are targets, as 0 and 1.

    Args:
        data: scores of each class, a row per image or one row.
        target: in each row the classes up to the first -1.
        reduction: 0 none, 1 mean, 2 sum.
    """
    torch._check(
        data.dim() <= 2 and data.shape == target.shape, lambda: "scores and targets need one or two dimensions"
    )
    rows, labels = torch.atleast_2d(data), torch.atleast_2d(target)
    classes = rows.shape[1]
    places = torch.arange(classes, device=data.device)
    named = places < torch.where(labels == -1, places, classes).amin(-1, keepdim=True)
    is_target = (torch.where(named, labels, -1).unsqueeze(-1) == places).any(1)
    missing = 1 - rows.gather(-1, torch.where(named, labels, 0)).unsqueeze(-1) + rows.unsqueeze(-2)
    counted = named.unsqueeze(-1) & ~is_target.unsqueeze(-2)
    loss = torch.where(counted, missing.clamp_min(0), 0).sum((-2, -1)) / classes
    if reduction == 0:
        loss = loss if data.dim() > 1 else loss.reshape(())
    else:
        loss = loss.mean() if reduction == 1 else loss.sum()
    return loss, is_target.to(data.dtype).reshape(target.shape)


_whole_batch = decompositions.native_batch_norm_helper


def batch_norm(data: Tensor, *more: Any) -> tuple[Tensor | None, ...]:
    """The batch normalisation, its statistics in float32 where PyTorch's kernel has them so.

    Args:
        data: what is normalised.
        more: weight, bias, running mean and variance, each a tensor or None; then what else PyTorch's has.
    """
    y, mean, root, *moved = _whole_batch(data, *more)
    return (y, *_as_kept(data, more[:4], mean, root), *moved)


def group_norm(data: Tensor, *more: Any) -> tuple[Tensor, ...]:
    """The group normalisation, likewise.

    Args:
        data: what is normalised.
        more: weight and bias, each a tensor or None; then what else PyTorch's has.
    """
    y, mean, root = torch._refs.native_group_norm(data, *more)
    return (y, *_as_kept(data, more[:2], mean, root))


_NORMS = {
    _aten._native_batch_norm_legit_functional, _aten._batch_norm_with_update_functional, _aten._native_batch_norm_legit,
    _aten.native_batch_norm, _aten.native_group_norm,
}  # fmt: skip
_cache_key = FakeTensorMode._cache_key


def _uncached(mode: FakeTensorMode, state: Any, func: Any, *more: Any) -> Any:
    """Where fake results are kept; those of norms that others have asked for are not to be found."""
    if getattr(func, "overloadpacket", None) in _NORMS:
        raise _BypassDispatchCache("statistics in another type")
    return _cache_key(mode, state, func, *more)


def _as_kept(data: Tensor, beside: Sequence[Tensor | None], *statistics: Tensor) -> Iterator[Tensor]:
    half = data.dtype in (torch.bfloat16, torch.float16)
    mixed = half and any(t is not None and t.dtype == torch.float32 for t in beside)
    return (s.float() if mixed else s for s in statistics)


DECOMPOSED: dict[Any, Callable[..., Any]] = {_MARGIN: multi_margin_loss, _LABELS: multilabel_margin_loss}
"""What takes the place of PyTorch's decompositions where autograd has no part in it."""


@contextlib.contextmanager
def decomposed_as_eager() -> Iterator[None]:
    """PyTorch's decompositions compute what its kernels do, while this lasts."""
    with (
        _in_python(_MARGIN, multi_margin_loss),
        _in_python(_LABELS, multilabel_margin_loss),
        _in_python(_aten.affine_grid_generator.default, decompositions.affine_grid_generator),
        _in_python(_aten.native_group_norm.default, group_norm, DispatchKey.Meta),
        mock.patch.dict(decomposition_table, {_aten.native_group_norm.default: group_norm}),  # of sizes that move
        _in_python(_aten._upsample_bicubic2d_aa_backward.default, meta_upsample_bimode2d_aa_backward, DispatchKey.Meta),
        mock.patch.object(decompositions, "_rnn_helper", stacked),
        mock.patch.object(decompositions, "native_batch_norm_helper", batch_norm),
        mock.patch.object(FakeTensorMode, "_cache_key", _uncached),
        mock.patch.object(decompositions, "select_one_layer_lstm_function", lambda *_: one_layer_lstm),
    ):
        yield


@contextlib.contextmanager
def _in_python(operator: Any, function: Callable[..., Any], key: DispatchKey = DispatchKey.Autograd) -> Iterator[None]:
    """The operator's Python form in autograd, or for another key, while this lasts."""
    with mock.patch.dict(operator.py_kernels, {key: function}):
        operator._dispatch_cache.clear()
        try:
            yield
        finally:
            operator._dispatch_cache.clear()


def stacked(
    data: Tensor, states: Sequence[Any], weights: Sequence[Any], biases: bool, layers: int, dropout: float, train: bool,
    both: bool, batch_first: bool, layer: _Layer,
) -> tuple[Tensor, list[Any]]:  # fmt: skip
    """The output of the last layer, and the last states of all layers and directions."""
    data = data.transpose(0, 1) if batch_first else data
    last: list[Any] = []
    for number in range(layers):
        if number and dropout and train:
            data = torch.dropout(data, dropout, train)
        outputs = []
        for reverse in (False, True)[: 1 + both]:
            place = len(last)
            output, state = layer(data, states[place], weights[place], biases, reverse=reverse)
            outputs.append(output)
            last.append(state)
        data = torch.cat(outputs, -1) if both else outputs[0]
    return data.transpose(0, 1) if batch_first else data, last
