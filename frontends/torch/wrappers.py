"""Higher-order operators that only mark a part of a graph are taken away, and the part stays.

    y = invoke_quant_packed(subgraph, x)   -->   y = subgraph(x)

That is what they compute in eager; AOTAutograd refuses the record of options beside them, and would keep the part as one node.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._higher_order_ops import InvokeQuant

_MARKS = tuple(getattr(torch.ops.higher_order, name) for name in ("invoke_quant", "invoke_quant_packed"))


def inline_marked(gm: fx.GraphModule) -> None:
    """Call the marked parts of Dynamo's graph as they are."""
    changed = False
    for node in list(gm.graph.nodes):
        part = node.args[0] if node.op == "call_function" and node.target in _MARKS else None
        if not isinstance(part, fx.Node) or part.op != "get_attr":
            continue
        with gm.graph.inserting_before(node):
            called = gm.graph.call_module(str(part.target), node.args[1:])
        called.meta = dict(node.meta)
        node.replace_all_uses_with(called)
        gm.graph.erase_node(node)
        changed = True
    for node in reversed(gm.graph.nodes):
        if node.target is InvokeQuant and not node.users:
            gm.graph.erase_node(node)
    if changed:
        gm.recompile()
