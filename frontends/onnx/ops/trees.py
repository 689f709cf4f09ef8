"""Ensembles of decision trees: all samples walk down all trees at once, one level at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dcir.errors import InvalidModel
from dcir.frontends.onnx.registry import Node, onnx_op

_MEMBER = 6
_COMPARE = (torch.le, torch.lt, torch.ge, torch.gt, torch.eq, torch.ne)


def _checked(node: Node) -> tuple[list[int], list[int]]:
    """For every node, then every leaf (which leads to itself), where it leads when true and when false."""
    count, leaves = len(node["nodes_featureids"]), node["leaf_weights"].numel()
    lists = [node[f"nodes_{n}"] for n in ("truenodeids", "falsenodeids", "trueleafs", "falseleafs")]
    counts = (len(node["nodes_modes"].values), node["nodes_splits"].numel())
    extra = node.get("nodes_missing_value_tracks_true")
    lists += [] if extra is None else [extra]
    if any(len(v) != count for v in lists) or any(n != count for n in counts) or not node["tree_roots"]:
        raise InvalidModel("the lists that describe the nodes differ in length", where=node.label)
    if len(node["leaf_targetids"]) != leaves or not all(0 <= t < node["n_targets"] for t in node["leaf_targetids"]):
        raise InvalidModel("the leaves' targets do not fit", where=node.label)
    branches = []
    for ids, ends in ((lists[0], lists[2]), (lists[1], lists[3])):
        if not all(0 <= i < (leaves if end else count) for i, end in zip(ids, ends, strict=True)):
            raise InvalidModel("a branch leads to a node that is not there", where=node.label)
        own = range(count, count + leaves)
        branches.append([*(count + i if end else i for i, end in zip(ids, ends, strict=True)), *own])
    return branches[0], branches[1]


def _depth(node: Node, yes: list[int], no: list[int], count: int) -> int:
    """Steps from the roots to the last leaf."""
    depth, level = 0, set(node["tree_roots"])
    if not all(0 <= root < count for root in level):
        raise InvalidModel("a root is not there", where=node.label)
    while level:
        depth += 1
        if depth > count:
            raise InvalidModel("the branches of a tree lead in a circle", where=node.label)
        level = {t for at in level for t in (yes[at], no[at]) if t < count}
    return depth


def _members(node: Node, modes: list[int]) -> list[list[float]]:
    """The set of each node that asks for membership, of one length by repetition of NaN, which nothing equals."""
    given = node.get("membership_values")
    values = given.values if given is not None else ()
    sets: list[list[float]] = [[]]
    for value in values:
        if math.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    if len(sets) - 1 != modes.count(_MEMBER) or sets[-1]:
        raise InvalidModel("there must be one set of members per node that asks for one", where=node.label)
    width = max(len(s) for s in sets)
    rows = iter(sets)
    return [[*s, *[math.nan] * (width - len(s))] for s in (next(rows) if m == _MEMBER else [] for m in modes)]


@onnx_op("TreeEnsemble", since=5, domain="ai.onnx.ml", numbers=("nodes_modes", "membership_values"))
def tree_ensemble(node: Node, x: Tensor) -> Tensor:
    yes, no = _checked(node)
    count, leaves = len(node["nodes_featureids"]), node["leaf_weights"].numel()
    depth = _depth(node, yes, no, count)
    modes = [int(m) for m in node["nodes_modes"].values]
    if not all(0 <= m <= _MEMBER for m in modes):
        raise InvalidModel("a node compares in a way that there is not", where=node.label)

    def table(values: Sequence[Any], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=x.device)

    still = [0] * leaves
    features, splits = table([*node["nodes_featureids"], *still]), node["nodes_splits"].reshape(-1).to(x)
    splits = torch.cat([splits, splits.new_zeros(leaves)])
    missing = table([*(node.get("nodes_missing_value_tracks_true") or [0] * count), *still], torch.bool)
    kinds, targets = table([*modes, *still]), table(node["leaf_targetids"])
    true, false = table(yes), table(no)
    members = table(_members(node, modes), x.dtype) if _MEMBER in modes else None
    roots = node["tree_roots"]
    at = table(roots).expand(x.shape[0], len(roots))
    for _ in range(depth):
        value, split, kind = torch.gather(x, 1, features[at]), splits[at], kinds[at]
        taken = missing[at] & torch.isnan(value)
        for mode in sorted(set(modes)):
            if mode == _MEMBER:
                assert members is not None
                holds = (value.unsqueeze(-1) == members[at.clamp(max=count - 1)]).any(-1)
            else:
                holds = _COMPARE[mode](value, split)
            taken = taken | (holds & (kind == mode))
        at = torch.where(taken, true[at], false[at])
    leaf = at - count
    return _transformed(node, _aggregated(node, x, node["leaf_weights"].reshape(-1).to(x)[leaf], targets[leaf]))


def _aggregated(node: Node, x: Tensor, weights: Tensor, targets: Tensor) -> Tensor:
    """One number per sample and target from the leaves that the sample has reached."""
    shape, how = (x.shape[0], node["n_targets"]), node.get("aggregate_function", 1)
    if how in (0, 1):
        total = x.new_zeros(shape).scatter_add(1, targets, weights)
        return total / weights.shape[1] if how == 0 else total
    if how not in (2, 3):
        raise InvalidModel(f"there is no aggregation {how}", where=node.label)
    info = torch.finfo(x.dtype)
    start = x.new_full(shape, info.max if how == 2 else info.min)
    return start.scatter_reduce(1, targets, weights, "amin" if how == 2 else "amax")


def _transformed(node: Node, scores: Tensor) -> Tensor:
    how = node.get("post_transform", 0)
    if how == 0:
        return scores
    if how == 1:
        return torch.softmax(scores, 1)
    if how == 2:
        return torch.sigmoid(scores)
    if how == 3:
        # A score of zero stays zero and takes no part.
        there = scores != 0
        return torch.softmax(scores.masked_fill(~there, -math.inf), 1).masked_fill(~there, 0)
    if how == 4:
        return math.sqrt(2) * torch.erfinv(2 * scores - 1)
    raise InvalidModel(f"there is no transform {how} of scores", where=node.label)
