"""Tensors over the memory of a call, for operators that run through torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dcir.runtime.cuda_calls import DeviceCall, call_on_device, letting_go, made_on_device, tensor_in


def test_a_window_of_a_tensor_of_the_same_type() -> None:
    base = torch.arange(24.0).reshape(4, 6)[1:]
    window = tensor_in(base, 8, (2, 3), (6, 1), torch.float32)
    assert window.tolist() == [[8, 9, 10], [14, 15, 16]] and window.data_ptr() == base.data_ptr() + 8


def test_a_window_of_bytes() -> None:
    arena = torch.zeros(256, dtype=torch.uint8)
    tensor_in(arena, 64, (3,), (2,), torch.float32).copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert arena[64:88].view(torch.float32).tolist() == [1, 0, 2, 0, 3, 0]


def test_a_window_without_elements() -> None:
    assert tensor_in(torch.zeros(1), 0, (0, 3), (3, 1), torch.int64).shape == (0, 3)


@dataclass
class Frame:
    """The tensors of a call."""

    bases: list[Any]

    def put(self, slot: int, t: torch.Tensor) -> None:
        self.bases[slot] = t


@dataclass
class Adds:
    """An operator that adds one."""

    ins: Any = (((2,), (1,), "f32"),)
    outs: Any = (((2,), (1,), "f32"),)

    def made(self, ins: Any) -> torch.Tensor:
        return ins[0] + 1

    def call(self, ins: Any, outs: Any) -> None:
        outs[0].copy_(ins[0] + 1)


def test_a_call_reads_and_writes_in_place_without_a_graph() -> None:
    given, made = torch.ones(4, requires_grad=True), torch.zeros(4)
    call_on_device(Adds(), [(2, 4)], [(3, 8)])(Frame([None, None, given, made]))
    assert made.tolist() == [0, 0, 2, 2] and made.grad_fn is None


def test_what_a_library_makes_is_put_at_its_slot() -> None:
    frame = Frame([torch.ones(2), None])
    made_on_device(Adds(), [(0, 0)], 1)(frame)
    assert frame.bases[1].tolist() == [2, 2]


def test_what_a_library_makes_is_copied_where_it_lies_otherwise() -> None:
    frame = Frame([torch.ones(2), None])
    made_on_device(Adds(outs=(((2,), (3,), "f32"),)), [(0, 0)], 1)(frame)
    assert frame.bases[1].tolist() == [2, 2] and frame.bases[1].stride() == (3,)


def test_what_nobody_reads_any_more_is_let_go_of_before_the_call() -> None:
    frame, seen = Frame([torch.ones(1), torch.ones(2), torch.ones(3)]), []
    letting_go(DeviceCall(lambda f: seen.append([t is None for t in f.bases])), [1])(frame)
    assert seen == [[False, True, False]]
