"""Strings: they live on the host, and what is made of them is strings, counts or numbers."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dcir.errors import InvalidInput, InvalidModel
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import TEXT, Host, scalar, to_tensor

_MAX_GRAMS = 1 << 24


def words_of(node: Node, value: Any) -> Host:
    """The operand, if it holds strings."""
    if not isinstance(value, Host) or value.dtype is not TEXT:
        raise InvalidInput("the operator takes strings", where=node.label)
    return value


@onnx_op("StringConcat", since=20, raw=True)
def string_concat(node: Node, *operands: Any) -> Any:
    """Reached only when the host form declines: the shapes do not broadcast, or there are no strings."""
    shapes = [list(words_of(node, value).shape) for value in operands]
    raise InvalidInput(f"shapes {shapes[0]} and {shapes[1]} do not broadcast", where=node.label)


@onnx_op("StringSplit", since=20, raw=True)
def string_split(node: Node, x: Any) -> tuple[Host, Host]:
    text = words_of(node, x)
    delimiter, limit = node.get("delimiter") or None, node.get("maxsplit")
    rows = [word.split(delimiter, -1 if limit is None else limit) for word in text.values]
    width = max([0, *[len(row) for row in rows]])
    padded = tuple(part for row in rows for part in [*row, *[""] * (width - len(row))])
    return Host(padded, (*text.shape, width), TEXT), Host(tuple(len(row) for row in rows), text.shape, torch.int64)


@onnx_op("StringNormalizer", since=10, raw=True)
def string_normalizer(node: Node, x: Any) -> Host:
    text = words_of(node, x)
    if len(text.shape) not in (1, 2) or (len(text.shape) == 2 and text.shape[0] != 1):
        raise InvalidModel(f"strings of shape {list(text.shape)} where [C] or [1, C] is wanted", where=node.label)
    strict, stops = bool(node.get("is_case_sensitive", 0)), node.get("stopwords") or ()
    unwanted = set(stops) if strict else {word.lower() for word in stops}
    kept = [word for word in text.values if (word if strict else word.lower()) not in unwanted]
    action = node.get("case_change_action", "NONE")
    if action not in ("NONE", "LOWER", "UPPER"):
        raise InvalidModel(f"there is no change of case {action!r}", where=node.label)
    if action != "NONE":
        kept = [word.lower() if action == "LOWER" else word.upper() for word in kept]
    # An empty result is one empty string.
    kept = kept or [""]
    return Host(tuple(kept), (*text.shape[:-1], len(kept)), TEXT)


_TABLES = ("tensor", "strings", "int64s", "floats")


def table_of(node: Node, role: str) -> Host | None:
    """Keys or values of a LabelEncoder, in whichever attribute they are given."""
    given = [n for n in _TABLES if node.get(f"{role}_{n}") is not None]
    if len(given) > 1:
        raise InvalidModel(f"attributes '{role}_{given[0]}' and '{role}_{given[1]}' are both given", hint="one of them")
    tensor: Host | None = node.get(f"{role}_tensor")
    if tensor is not None:
        return Host(tensor.values, (len(tensor.values),), tensor.dtype)
    for kind, dtype in (("strings", TEXT), ("int64s", torch.int64), ("floats", torch.float32)):
        values = node.get(f"{role}_{kind}")
        if values is not None:
            return Host(values, (len(values),), dtype)
    return None


def default_of(node: Node, dtype: Any) -> Any:
    """What a LabelEncoder answers for what it does not know."""
    tensor = node.get("default_tensor")
    if tensor is not None:
        return scalar(tensor)
    if dtype is TEXT:
        return node.get("default_string", "_Unused")
    return node.get("default_float", -0.0) if dtype.is_floating_point else node.get("default_int64", -1)


def _same(key: Any) -> Any:
    return "nan" if isinstance(key, float) and math.isnan(key) else key


@onnx_op(
    "LabelEncoder", since=2, domain="ai.onnx.ml", raw=True, numbers=("keys_tensor", "values_tensor", "default_tensor")
)
def label_encoder(node: Node, x: Any) -> Any:
    keys, values = table_of(node, "keys"), table_of(node, "values")
    if keys is None or values is None or len(keys.values) != len(values.values):
        hint = "attributes 'keys_...' and 'values_...' of one length"
        raise InvalidModel("keys and values must be given, as many of each", where=node.label, hint=hint)
    other = default_of(node, values.dtype)
    if isinstance(other, str) != (values.dtype is TEXT):
        raise InvalidModel("the default is a string where the values are numbers, or the other way", where=node.label)
    if keys.dtype is TEXT or values.dtype is TEXT or isinstance(x, Host):
        given = x if isinstance(x, Host) else Host(tuple(x.reshape(-1).tolist()), tuple(x.shape), x.dtype)
        if (given.dtype is TEXT) != (keys.dtype is TEXT):
            raise InvalidInput("keys and input must both be strings, or both numbers", where=node.label)
        # The first of equal keys counts last here, so that it stays.
        table = {_same(k): v for k, v in zip(reversed(keys.values), reversed(values.values), strict=True)}
        return Host(tuple(table.get(_same(v), other) for v in given.values), given.shape, values.dtype)
    known = torch.tensor(keys.values, dtype=keys.dtype, device=x.device)
    answers = torch.tensor((*values.values, other), dtype=values.dtype, device=x.device)
    same = x.unsqueeze(-1) == known
    if keys.dtype.is_floating_point:
        same = same | (torch.isnan(x).unsqueeze(-1) & torch.isnan(known))
    # argmax finds the first of equal keys; a column of its own stands for what no key matches.
    found = torch.cat([same, torch.ones_like(same[..., :1])], -1).to(torch.uint8)
    return answers[torch.argmax(found, -1)]


@onnx_op("TfIdfVectorizer", since=9, raw=True)
def tf_idf(node: Node, x: Any) -> Tensor:
    """How often each n-gram of a pool occurs, counted by comparing all windows with all of the pool at once."""
    words, indexes = node.get("pool_strings"), list(node["ngram_indexes"])
    if (words is None) == (node.get("pool_int64s") is None):
        raise InvalidModel("there must be one pool, of strings or of integers", where=node.label)
    pool: list[int] = list(node.get("pool_int64s") or ())
    if words is not None:
        known = {word: number for number, word in enumerate(dict.fromkeys(words))}
        pool = [known[word] for word in words]
        text = words_of(node, x)
        x = Host(tuple(known.get(word, -1) for word in text.values), text.shape, torch.int64)
    tokens = to_tensor(x).to(torch.int64)
    width = max(indexes, default=-1) + 1
    if min(indexes, default=0) < 0 or width > _MAX_GRAMS or node["mode"] not in ("TF", "IDF", "TFIDF"):
        hint = f"'ngram_indexes' from 0 below {_MAX_GRAMS}, 'mode' TF, IDF or TFIDF"
        raise InvalidModel("the n-grams' places or the mode are not possible", where=node.label, hint=hint)
    flat = tokens if tokens.ndim == 2 else tokens.reshape(1, -1)
    counts = torch.zeros(flat.shape[0], width, dtype=torch.float32, device=flat.device)
    place = 0
    for size, grams in enumerate(_grams(node, pool), start=1):
        at = torch.tensor(indexes[place : place + len(grams)], dtype=torch.int64, device=flat.device)
        place += len(grams)
        if grams and node["min_gram_length"] <= size <= node["max_gram_length"]:
            wanted = torch.tensor(grams, dtype=torch.int64, device=flat.device)
            counts = counts.index_add(1, at, _occurrences(flat, wanted, node["max_skip_count"] if size > 1 else 0))
    if node["mode"] != "TF":
        weights = _weights(node, indexes, width, flat.device)
        counts = (counts.clamp(max=1) if node["mode"] == "IDF" else counts) * weights
    return counts if tokens.ndim == 2 else counts.reshape(width)


def _grams(node: Node, pool: list[int]) -> list[list[list[int]]]:
    """The pool's n-grams by length, from 1."""
    starts = [*node["ngram_counts"], len(pool)]
    if not all(0 <= a <= b for a, b in pairwise(starts)):
        raise InvalidModel(
            f"'ngram_counts' is {node['ngram_counts']}, which does not ascend within a pool of {len(pool)}",
            where=node.label, hint="where the n-grams of each length begin in the pool, from 0",
        )  # fmt: skip
    by_size = []
    for size, (start, stop) in enumerate(pairwise(starts), start=1):
        if (stop - start) % size:
            raise InvalidModel(
                f"the pool of {size}-grams is cut off", where=node.label, hint=f"a multiple of {size} items for it"
            )
        by_size.append([pool[i : i + size] for i in range(start, stop, size)])
    if sum(map(len, by_size)) != len(node["ngram_indexes"]):
        raise InvalidModel(
            "there must be one place per n-gram",
            where=node.label,
            hint="as many 'ngram_indexes' as the pool has n-grams",
        )
    return by_size


def _occurrences(tokens: Tensor, grams: Tensor, skips: int) -> Tensor:
    """[rows, n-grams]: windows of the row that are the n-gram, over all distances between neighbours."""
    total = torch.zeros(tokens.shape[0], grams.shape[0], dtype=torch.float32, device=tokens.device)
    for distance in range(1, skips + 2):
        windows = tokens.shape[1] - distance * (grams.shape[1] - 1)
        if windows < 1:
            break
        same = None
        for j in range(grams.shape[1]):
            part = tokens[:, j * distance : j * distance + windows].unsqueeze(-1) == grams[:, j]
            same = part if same is None else same & part
        assert same is not None
        total = total + same.sum(1)
    return total


def _weights(node: Node, indexes: list[int], width: int, device: torch.device) -> Tensor:
    given = node.get("weights") or [1.0] * len(indexes)
    if len(given) != len(indexes):
        raise InvalidModel("there must be one weight per n-gram", where=node.label)
    weights = [0.0] * width
    for place, weight in zip(indexes, given, strict=True):
        weights[place] = weight
    return torch.tensor(weights, dtype=torch.float32, device=device)
