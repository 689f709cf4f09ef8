"""DaCe's arrays and nodes made from patterns: its constructors set and check every property one by one."""

from __future__ import annotations

import functools
import uuid
from typing import Any

import dace
from dace.data import Array
from dace.sdfg.nodes import AccessNode, Node

from dcir.ir.types import TYPES

_ACCESS = AccessNode("x")

DACE_TYPES = {name: getattr(dace, t.dace) for name, t in TYPES.items()}


def like(pattern: Node, **fields: Any) -> Node:
    """A node like another, with an identity and tables of its own, and fields that differ."""
    node = object.__new__(type(pattern))
    node.__dict__.update({k: v.copy() if isinstance(v, list | dict) else v for k, v in pattern.__dict__.items()})
    node.__dict__.update(fields, _guid=str(uuid.uuid4()))
    return node


def access_node(data: str) -> AccessNode:
    """What ``dace.sdfg.nodes.AccessNode`` makes."""
    return like(_ACCESS, _data=data)


def array(shape: tuple[int, ...], strides: tuple[int, ...], dtype: dace.typeclass, size: int, transient: bool) -> Array:
    """An array of ``size`` elements: what ``dace.data.Array`` makes, whose constructor runs once for equal arguments."""
    pattern = _pattern(shape, strides, dtype, size, transient)
    new = object.__new__(Array)
    new.__dict__.update(pattern.__dict__)
    new._location = {}
    return new


@functools.lru_cache(maxsize=4096)
def _pattern(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: dace.typeclass, size: int, transient: bool
) -> Array:
    return Array(dtype, list(shape), strides=strides, total_size=size, transient=transient)
