"""Sums of thousands of products are made of short chains: their errors do not grow with the root of their length."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.ops.library.operand_types import alike
from tests.codegen.cpp.tiles.conv import test_conv
from tests.codegen.cpp.tiles.conv import test_nhwc as test_conv_last
from tests.codegen.cpp.tiles.conv import test_winograd as test_conv_winograd
from tests.codegen.cpp.tiles.tile_harness import RUNNABLE, compile_plans, isa_of

DEEPER = 8
GROWTH = 1.7  # of the error; one chain's grows by 2.8

# In channels-last: input channels, image, kernel, layout of the images. What the sums are divided by is in the name.
LAST = {
    "rows-of-taps": (512, (7, 7), (3, 3), "last"),
    "taps": (640, (4, 6), (3, 3), "gap"),
    "parts-of-a-row": (2048, (3, 7), (1, 2), "last"),
    "channels": (2048, (3, 7), (1, 1), "last"),
    "several-rows": (160, (4, 5, 6), (3, 3, 3), "last"),
    "blocks": (1536, (3, 6), (3, 3), "last"),
    "large-kernel": (96, (9, 9), (7, 7), "last"),
}
ISAS = tuple(dict.fromkeys((RUNNABLE[0], "avx2" if "avx2" in RUNNABLE else "generic", "generic")))


def exact(spec, given, result):
    """The same operands' results in float64."""
    wanted = np.zeros(result.shape)
    replace(spec, types=alike("f64")).reference([g.astype("f8") for g in given], [wanted])
    return torch.from_numpy(wanted)


def of_last(name, divided):
    cin, size, kernel, layout = LAST[name]
    border = tuple(k // 2 for k in kernel)
    ones = (1,) * len(size)
    shape = (1, 1, cin // divided, 64, size, kernel, ones, border, border, ones)
    spec = test_conv_last.spec_of(shape, "f32", layout, "last", "none")
    given, result = test_conv_last.operands(spec)
    return spec, [torch.from_numpy(t) for t in (*given, result)], exact(spec, given, result)


def of_winograd(tile, divided):
    spec = test_conv_winograd.spec_of((1, 512 // divided, 64, (14, 14), (1, 1), (1, 1)), "f32", tile, "none")
    given, result, _ = test_conv_winograd.operands(spec)
    return spec, [torch.from_numpy(t) for t in (*given, result)], exact(spec, given, result)


def of_planes(kind, divided):
    channels = 512 // divided
    cin, cout = (channels, 64) if kind == "forward" else (64, channels)
    shape = (2, 1, cin, cout, (7, 7), (3, 3), 1, 1, 1)
    spec, tensors, operands = test_conv.make((shape, kind, "f32", "", "plain", "plain", "plain", 1))
    return spec, tensors, test_conv.reference(spec, *operands, torch.float64)


MADE = (
    [("last", name, of_last) for name in LAST]
    + [("winograd", tile, of_winograd) for tile in test_conv_winograd.TILES]
    + [("planes", kind, of_planes) for kind in ("forward", "backward_data")]
)


@pytest.fixture(scope="module")
def errors():
    """Root mean square of the errors in units of that of the results, by family, name, instruction set and depth."""
    runs, entries = {}, []
    for family, name, make in MADE:
        for isa in ISAS:
            for divided in (1, DEEPER):
                spec, tensors, wanted = make(name, divided)
                runs[family, name, isa, divided] = tensors, wanted
                entries.append((plan_convolution(spec, isa_of(isa), 1), "f32", len(tensors) - 1))
    found = {}
    for (key, (tensors, wanted)), kernel in zip(runs.items(), compile_plans(entries, ["-O1"]), strict=True):
        kernel(*tensors)
        off = tensors[-1].double().reshape(-1) - wanted.reshape(-1)
        found[key] = math.sqrt(float(off.square().mean() / wanted.square().mean()))
    return found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("family", "name"), [(f, n) for f, n, _ in MADE], ids=str)
def test_errors_hardly_grow_with_the_number_of_products(errors, family, name, isa):
    deep, shallow = errors[family, name, isa, 1], errors[family, name, isa, DEEPER]
    assert deep < GROWTH * shallow, (deep, shallow)
