"""Convolutions of every kind, layout, element type and instruction set, against float64."""

import random

import pytest
import torch

from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.rotation import taken

TORCH = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
KINDS = ("forward", "backward_data", "backward_weight")
CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
# n, groups, cin, cout, in_size, kernel, stride, padding, dilation, extra positions on the high side
SHAPES = {
    # Tiles that lie wholly beyond the image; the weights of a few inputs, too large for a stack.
    "depthwise-far": (1, 20, 1, 1, (5, 6), (3, 3), 1, 14, 1),
    "kernel-of-the-image": (1, 1, 8, 33, (40, 40), (40, 40), 1, 0, 1),
    "3x3": (2, 1, 5, 20, (9, 11), (3, 3), 1, 1, 1),
    "3x3-even": (1, 1, 32, 64, (14, 14), (3, 3), 1, 1, 1),
    "3x3-s2": (2, 1, 18, 33, (13, 16), (3, 3), 2, 1, 1),
    "7x7-s2": (1, 1, 3, 64, (30, 33), (7, 7), 2, 3, 1),
    "1x1": (3, 1, 40, 70, (8, 6), (1, 1), 1, 0, 1),
    "1x1-small": (2, 1, 40, 70, (7, 7), (1, 1), 1, 0, 1),
    "1x1-s2": (2, 1, 17, 35, (9, 7), (1, 1), 2, 0, 1),
    "1x1-padded": (1, 1, 8, 9, (5, 4), (1, 1), 1, 1, 1),
    "dilated": (1, 1, 6, 10, (15, 14), (3, 3), 1, 2, 2),
    "dilated-s3": (1, 1, 6, 10, (21, 19), (4, 3), 3, 2, 2),
    "dilated-s2": (1, 1, 6, 10, (21, 19), (3, 3), 2, 2, 2),
    "grouped": (2, 3, 4, 6, (9, 9), (3, 3), 1, 1, 1),
    "grouped-1x1": (2, 3, 20, 16, (4, 8), (1, 1), 1, 0, 1),
    "depthwise": (2, 19, 1, 1, (12, 15), (3, 3), 1, 1, 1),
    "depthwise-1x1": (2, 21, 1, 1, (9, 10), (1, 1), 1, 0, 1),
    "depthwise-s2": (2, 21, 1, 1, (13, 15), (5, 5), 2, 2, 1),
    "depthwise-s2-even": (2, 20, 1, 1, (14, 40), (3, 3), 2, 1, 1),
    "depthwise-s2-no-border": (1, 20, 1, 1, (9, 70), (2, 4), 2, 0, 1),
    "depthwise-s2-left-over": (1, 20, 1, 1, (8, 36), (3, 3), 2, 0, 1),
    "depthwise-9": (2, 19, 1, 1, (12, 37), (9, 9), 1, 4, 1),
    "depthwise-31": (1, 20, 1, 1, (9, 40), (5, 31), 1, (2, 15), 1),
    "depthwise-wide-s2": (1, 37, 1, 1, (14, 60), (11, 19), 2, (5, 9), 1),
    "depthwise-wide-dilated": (1, 16, 1, 1, (20, 50), (8, 9), 1, (7, 8), 2),
    "depthwise-3d": (1, 21, 1, 1, (5, 6, 8), (3, 2, 3), (1, 2, 1), 1, 1),
    "few-to-groups": (2, 5, 3, 24, (7, 9), (3, 3), 1, 1, 1),
    "depthwise-x2": (1, 7, 1, 2, (8, 9), (3, 3), 1, 1, 1),
    "depthwise-7": (1, 33, 1, 1, (7, 7), (3, 3), 1, 1, 1),
    "1d": (2, 1, 16, 32, (40,), (2,), 1, 0, 4),
    "1d-wide": (1, 1, 4, 8, (700,), (5,), 1, 2, 1),
    "1d-long": (2, 1, 21, 40, (3001,), (3,), 1, 2, 2),
    "3d": (1, 1, 4, 8, (6, 7, 8), (3, 3, 3), 1, 1, 1),
    "3d-s2": (1, 2, 4, 8, (6, 7, 8), (2, 3, 2), 2, 1, 1),
    "patch": (1, 1, 3, 48, (32, 32), (8, 8), 8, 0, 1),
    "mixed": (1, 1, 7, 5, (12, 10), (3, 2), (2, 1), (0, 2), (1, 3)),
    "lonely": (1, 1, 1, 1, (1, 1), (1, 1), 1, 0, 1),
    "many-inputs": (1, 1, 300, 40, (6, 7), (3, 3), 1, 1, 1),
    "tall": (1, 1, 20, 24, (40, 5), (3, 3), 1, 1, 1),
    "big-kernel": (1, 1, 4, 16, (20, 24), (9, 17), 1, 4, 1),
    "transposed-16": (1, 1, 5, 6, (40, 40), (16, 16), 8, 0, 1),
    "transposed-4": (1, 2, 16, 6, (13, 15), (4, 4), 2, 1, 1),
    "strided-gap": (1, 1, 3, 4, (11, 11), (2, 2), 3, 0, 1),
    "empty-batch": (0, 1, 3, 4, (5, 5), (3, 3), 1, 1, 1),
}
LAYOUTS = ("plain", "last", "strided")


def spread(values, dims):
    return (values,) * dims if isinstance(values, int) else values


def tensor(shape, layout, dtype, seed):
    g = torch.Generator().manual_seed(seed)
    if layout == "last":
        t = torch.randn([shape[0], *shape[2:], shape[1]], generator=g, dtype=torch.float64).to(dtype)
        return t.permute(0, len(shape) - 1, *range(1, len(shape) - 1))
    if layout == "strided":
        t = torch.randn([*shape[:-1], shape[-1] * 2 + 1], generator=g, dtype=torch.float64).to(dtype)
        return t[..., : 2 * shape[-1] : 2]
    return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)


def cases():
    rng = random.Random(3)
    out = []
    for name in SHAPES:
        for kind in KINDS:
            out.append((name, kind, "f32", "avx512", "plain", "plain", "plain", rng.choice([1, 2, 3])))
            layouts = [rng.choice(LAYOUTS) for _ in range(3)]
            isa = rng.choice(["avx512", "avx2", "generic"])
            out.append((name, kind, rng.choice(["f32", "f32", "f64", "bf16"]), isa, *layouts, 2))
    for kind in KINDS:
        for layout in LAYOUTS[1:]:
            for name in ("3x3-even", "1x1", "depthwise", "3x3-s2"):
                out.append((name, kind, "f32", "avx512", layout, layout, layout, 2))
            out.append(("1x1-s2", kind, "f32", "avx2", "last", layout, "last", 2))  # results in short rows
        out.append(("3x3", kind, "f16", "avx2", "plain", "plain", "plain", 2))
    return list(dict.fromkeys(out))


ALWAYS = [
    *(("depthwise-far", kind, "f32", "avx2", "last", "last", "last", 2) for kind in KINDS),
    *(
        (name, kind, "f32", isa, "last", "plain", "last", 2)
        for name in ("depthwise-31", "depthwise-wide-s2", "depthwise-wide-dilated")
        for kind, isa in zip(KINDS, ("avx2", "avx512", "generic"), strict=True)
    ),
    ("kernel-of-the-image", "forward", "f32", "avx512", "plain", "plain", "plain", 2),
]
PLANES = [
    (name, "backward_weight", "f32", "avx2", "plain", "plain", "plain", 2)
    for name in ("depthwise", "depthwise-s2", "depthwise-x2", "depthwise-7")
]
CASES = list(dict.fromkeys([*taken(cases(), 80), *ALWAYS, *PLANES]))


def make(case):
    name, kind, dtype, _, lx, lw, ly, _ = case
    n, groups, cin, cout, size, kernel, stride, padding, dilation = SHAPES.get(name, name)
    dims, t = len(size), TORCH[dtype]
    stride, padding, dilation = (spread(v, dims) for v in (stride, padding, dilation))
    out = tuple(
        (s + 2 * p - d * (k - 1) - 1) // st + 1
        for s, p, d, k, st in zip(size, padding, dilation, kernel, stride, strict=True)
    )
    x = tensor((n, groups * cin, *size), lx, t, 1)
    w = tensor((groups * cout, cin, *kernel), lw, t, 2)
    y = tensor((n, groups * cout, *out), ly, t, 3)
    bias = kind == "forward" and cout % 2 == 0
    spec = ConvolutionSpec(
        kind, alike(dtype), n, groups, cin, cout, size, kernel, out, stride, padding, dilation, x.stride(), w.stride(),
        y.stride(), bias,
    )  # fmt: skip
    b = tensor((groups * cout, 1), "plain", t, 4)[:, 0].contiguous() if bias else None
    tensors = {"forward": [x, w, b, y], "backward_data": [y, w, x], "backward_weight": [x, y, w]}[kind]
    return spec, [v for v in tensors if v is not None], (x, w, b, y)


def reference(spec, x, w, b, y, dtype):
    x, w, y = (t.detach().to(dtype).clone().requires_grad_() for t in (x, w, y))
    conv = CONV[len(spec.kernel)]
    b = None if b is None else b.to(dtype)
    out = conv(x, w, b, spec.stride, spec.padding, spec.dilation, spec.groups)
    if spec.kind == "forward":
        return out.detach()
    which = x if spec.kind == "backward_data" else w
    return torch.autograd.grad(out, which, y.detach())[0]


@pytest.fixture(scope="module")
def kernels():
    made = {case: make(case) for case in CASES}
    plans = [
        (plan_convolution(spec, isa_of(case[3]), case[7]), case[2], len(tensors) - 1)
        for case, (spec, tensors, _) in made.items()
    ]
    return dict(zip(made, compile_plans(plans, ["-O1"]), strict=True))


@pytest.mark.parametrize(("shape", "on_stack"), [("3x3-even", True), ("kernel-of-the-image", False)])
def test_weights_that_are_used_once_lie_on_the_stack_if_they_fit(shape, on_stack):
    spec, *_ = make((shape, "forward", "f32", "avx512", "plain", "plain", "plain", 1))
    plan = plan_convolution(spec, isa_of("avx512"), 1)
    assert ("T w[" in plan.globals) == on_stack == (plan.scratch < 8 * 1600 * 33 * 4)


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_convolution(kernels, case):
    spec, tensors, operands = make(case)
    exact = reference(spec, *operands, torch.float64)
    eager = reference(spec, *operands, TORCH[case[2]]).double()
    result = tensors[-1].fill_(float("nan"))
    kernels[case](*tensors)
    assert not torch.isnan(result).any()
    if exact.numel() == 0:
        return
    reach = exact.abs().max().item() + 1
    small = {"f32": 1e-6, "f64": 1e-14, "bf16": 1e-2, "f16": 1e-3}[case[2]] * reach
    assert (result.double() - exact).abs().max() <= 3 * (eager - exact).abs().max() + small
    before = result.clone()
    kernels[case](*tensors)
    assert torch.equal(before, result)


@pytest.mark.parametrize("case", PLANES, ids=lambda c: c[0])
def test_infinities_count_where_an_error_meets_them(kernels, case):
    """Rows lie one behind the other, so a row's last vector sees the next one's first pixels."""
    spec, (x, error, result), operands = make(case)
    x[:, 0, 4, 0], x[:, 1, 3, -1], x[0, 2, 1, 0] = float("inf"), -float("inf"), float("nan")
    exact = reference(spec, *operands, torch.float64)
    assert exact.isfinite().sum() not in (0, exact.numel())
    kernels[case](x, error, result)
    torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-4, equal_nan=True)
