"""Weight gradients of depthwise convolutions in channels-last: borders, strides, dilation, channels that fill no vector, many rows."""

from __future__ import annotations

import pytest
import torch

from dcir.frontends.torch.importer import import_graph
from tests.harness import check_close, double, graph_of, run_cpp

aten = torch.ops.aten

CASES = [
    (2, 16, 9, 11, 3, 1, 1, 1),
    (3, 40, 14, 14, 3, 2, 1, 1),
    (2, 7, 8, 9, 3, 1, 1, 1),
    (4, 72, 7, 7, 5, 1, 2, 1),
    (2, 33, 17, 31, 5, 2, 2, 1),
    (2, 24, 12, 30, 3, 1, 2, 2),
    (1, 19, 5, 4, 3, 1, 0, 1),
    (5, 48, 40, 37, 3, 1, 1, 1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_numbers(case: tuple[int, ...], dtype: torch.dtype) -> None:
    n, c, h, w, k, stride, padding, dilation = case
    torch.manual_seed(n + c)
    x = torch.randn(n, c, h, w, dtype=dtype).to(memory_format=torch.channels_last)
    weight = torch.randn(c, 1, k, k, dtype=dtype)
    error = torch.nn.functional.conv2d(x, weight, None, stride, padding, dilation, c)
    error = torch.randn_like(error).to(memory_format=torch.channels_last)
    pairs = [[v, v] for v in (stride, padding, dilation)]
    args = (error, x, weight, None, *pairs, False, [0, 0], c, [False, True, False])
    op = aten.convolution_backward.default
    graph, tensors = graph_of(op, args, {})
    got = [r for r in run_cpp(import_graph(graph), tensors) if r is not None]
    if dtype == torch.float64:
        torch.testing.assert_close(got[0], op(*args)[1], rtol=1e-13, atol=1e-11)
    else:
        check_close(got[0], op(*args)[1], op(*(double(a) for a in args))[1])
