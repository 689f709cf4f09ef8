"""Higher-order operators that have a form in plain operators: flex_attention, traced for the operands at hand.

PyTorch itself runs these forms where it has no kernel: all scores, what the user's functions make of them, a softmax. Here they are parts
of the graph, whose passes may join them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._guards import tracing
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from dcir.frontends.torch.decompose import decompositions
from dcir.ops.library.subgraphs import Subgraph
from dcir.ops.lowering import Ref
from dcir.ops.torch_types import FROM_NAME

_NAMES = ("flex_attention",)


def dense_form(name: str, args: Sequence[Any]) -> tuple[fx.GraphModule, list[Ref]] | None:
    """The graph of a higher-order operator's form in plain operators and the tensors that it takes; None of others.

    Args:
        name: the operator's.
        args: windows, graphs and values.
    """
    if name not in _NAMES:
        return None
    form: Callable[..., Any] = getattr(torch.ops.higher_order, name).py_kernels[DispatchKey.CompositeExplicitAutograd]
    leaves, tree = pytree.tree_flatten(tuple(args))
    refs = [leaf for leaf in leaves if isinstance(leaf, Ref)]

    def run(*tensors: torch.Tensor) -> Any:
        left = iter(tensors)
        filled = [
            next(left) if isinstance(v, Ref) else v.graph if isinstance(v, Subgraph) else v for v in leaves
        ]  # fmt: skip
        results = form(*pytree.tree_unflatten(filled, tree))
        return [r for r in pytree.tree_leaves(results) if isinstance(r, torch.Tensor)]

    with torch.no_grad(), unset_fake_temporarily(), tracing(None):
        # Of real tensors, which nobody fills or reads, so that constants made on the way are real ones.
        given = [torch.empty_strided(r.shape, r.strides, dtype=FROM_NAME[r.dtype]) for r in refs]
        traced = make_fx(torch.func.functionalize(run), decomposition_table=decompositions(), tracing_mode="fake")
        graph: fx.GraphModule = traced(*given)
    return graph, refs
