"""Layouts for a library's convolutions: half types get channels last, float32 where tensor cores take it, and the rest stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dcir.cost.cuda import CudaMachine, cuda_costs, cuda_machine
from dcir.driver.targets.cuda import CudaTarget
from dcir.driver.targets.host import host_machine
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.library_layouts import channels_last, turned_bytes
from dcir.transforms.tier3_layout.assign_layouts import AssignLayouts
from tests.harness import check_close, run_interpreted
from tests.transforms.imported import imported


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def chain(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Three convolutions with activations and a pooling between them."""
    y = F.conv2d(x, v, padding=1).relu()
    y = F.max_pool2d(F.conv2d(y, w, padding=1, groups=4).sigmoid(), 2)
    return F.conv2d(y, u).mean((2, 3))


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(rand(*s, dtype=dtype) for s in ((2, 3, 12, 12), (16, 3, 3, 3), (32, 4, 3, 3), (8, 32, 1, 1)))


def laid_out(dtype: torch.dtype, *, tf32: bool) -> tuple[Network, list[bool | None]]:
    """The network for a GPU, and whether channels are last in what each convolution reads and writes."""
    args = operands(dtype)
    done = imported(chain, *args)
    machine = cuda_machine(host_machine(1))
    assert isinstance(machine, CudaMachine)
    done.network.target = CudaTarget(replace(machine, tf32=tf32))
    before = run_interpreted(done, args)
    AssignLayouts().apply(done.network)
    verify(done.network)
    done.network.validate()
    check_close(run_interpreted(done, args)[0], before[0], before[0])
    specs = [op.spec for op in done.network.ops() if isinstance(op.spec, ConvolutionSpec)]
    return done.network, [
        last for s in specs for last in (channels_last(s.shapes[0], s.x), channels_last(s.shapes[2], s.y))
    ]


@pytest.mark.parametrize(("dtype", "tf32"), [(torch.bfloat16, False), (torch.float16, False), (torch.float32, True)])
def test_what_tensor_cores_multiply_has_channels_last(dtype: torch.dtype, tf32: bool) -> None:
    """All but the photograph, which the caller has laid out."""
    net, last = laid_out(dtype, tf32=tf32)
    assert last == [False, *[True] * 5]
    specs = [op.spec for op in net.ops() if isinstance(op.spec, ConvolutionSpec)]
    assert [turned_bytes(s, last_alone=True) > 0 for s in specs] == [True, False, False]


def test_what_runs_on_ordinary_units_is_turned_nowhere() -> None:
    """Either layout will do, as long as all have it."""
    net, last = laid_out(torch.float32, tf32=False)
    assert len(set(last[1:])) == 1
    specs = [op.spec for op in net.ops() if isinstance(op.spec, ConvolutionSpec)]
    assert [turned_bytes(s) for s in specs[1:]] == [0, 0]


def test_costs_follow_the_settings_of_torch() -> None:
    setting = torch.backends.cudnn.conv
    before = setting.fp32_precision
    try:
        for precision, wanted in (("tf32", True), ("ieee", False)):
            setting.fp32_precision = precision
            machine = cuda_machine(host_machine(1))
            assert machine.tf32 is wanted and ("f32" in (cuda_costs(machine).layout.last_alone or ())) is wanted
            assert "bf16" in (cuda_costs(machine).layout.last_alone or ())
    finally:
        setting.fp32_precision = before
