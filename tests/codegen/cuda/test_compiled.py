"""Kernels as NVRTC compiles them, without a GPU: those of typical nests at sizes of networks, which spill nothing."""

from __future__ import annotations

import re

import pytest

from dcir.codegen.cuda.nvrtc import Nvrtc
from dcir.codegen.cuda.prelude import prelude_text
from dcir.ir.loop_nest import LoopNest
from dcir.ops.library.fused_product import FusedProduct
from tests.codegen.cuda.nests import (
    batch_norm,
    biased,
    column_reduce,
    embedding,
    layer_norm,
    product,
    softmax,
    transposed,
)
from tests.codegen.cuda.products import activated, matrices, normalised, stored, summed
from tests.codegen.cuda.resources import most_registers, resources_of
from tests.codegen.cuda.running import planned

NESTS = {
    "product": product(1 << 24), "bf16 product": product((1 << 24) + 3, "bf16"), "bias": biased(8192, 768, "f16"),
    "embedding": embedding(8192, 30000, 768, "bf16"), "transposed": transposed(4096, 4096),
    "norm": layer_norm(4096, 768, "bf16"), "long norm": layer_norm(4096, 32768), "softmax": softmax(4096, 1000),
    "images": batch_norm(256, 64, 3136, "bf16"), "columns": column_reduce(8192, 768, "sum", "bf16"),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_kernels_compile(nvrtc: Nvrtc, name: str, arch: str) -> None:
    nest: LoopNest = NESTS[name]
    for launch in planned(nest).launches:
        assert nvrtc.compile(prelude_text() + launch.text, arch)


def _products() -> dict[str, FusedProduct]:
    """At sizes of networks."""
    narrow, wide, few = (
        matrices(256 * 56 * 56, 64, 256),
        matrices(256 * 56 * 56, 256, 64, b="columns"),
        matrices(4096, 32, 96, "f16"),
    )
    return {
        "plain": FusedProduct(wide, stored(wide)), "summed": FusedProduct(wide, summed(wide)),
        "normalised": FusedProduct(narrow, summed(narrow), normalised(narrow)),
        "activated": FusedProduct(wide, activated(wide)), "few columns": FusedProduct(few, activated(few)),
        "gradient": FusedProduct(s := matrices(256, 512, 4096, a="columns"), stored(s)),
    }  # fmt: skip


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("name", _products())
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_products_spill_nothing_and_leave_room_for_two_blocks(nvrtc: Nvrtc, name: str, arch: str) -> None:
    launch = planned(_products()[name]).launches[0]
    found = resources_of(launch, nvrtc, arch)
    assert not found.spilled and not found.stack
    assert found.registers <= most_registers(launch)


def test_the_prelude_itself_is_understood_whole(nvrtc: Nvrtc) -> None:
    names = re.findall(r"^D_UNARY\((\w+),", prelude_text(), re.MULTILINE)
    calls = " + ".join(f"d_{n}(a[0]) + (float)d_{n}((double)a[1])" for n in names)
    special = "d_polygamma(1.0f, a[0]) + d_digamma(a[1]) + d_erfinv(a[2]) + d_legendre_p(a[3], 2.0f)"
    text = f'extern "C" __global__ void k(float *o, const float *a) {{ o[0] = {calls} + {special}; }}\n'
    assert nvrtc.compile(prelude_text() + text, "sm_90a")
