"""What a loaded file must not do silently: go on with old weights, become a constant, lose an order; and files that are damaged."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import dcir
from dcir.cli.main import main
from dcir.driver import api
from dcir.errors import ArtefactInvalid, InvalidInput


@pytest.fixture
def linear(tmp_path: Path) -> Any:
    torch.manual_seed(0)
    api.save(nn.Linear(4, 3).eval(), torch.randn(2, 4), tmp_path / "linear.dcir")
    return dcir.load(tmp_path / "linear.dcir")


def test_other_tensors_in_the_place_of_weights(linear: Any) -> None:
    """They are refused, in all three ways; to copy into them is seen by the next call."""
    x, zeros = torch.randn(2, 4), {name: torch.zeros_like(t) for name, t in linear.state_dict().items()}
    before = linear(x)
    with pytest.raises(RuntimeError, match="cannot be another tensor"):
        linear.load_state_dict(zeros, assign=True)
    with pytest.raises(InvalidInput, match="cannot be another tensor"):
        torch.func.functional_call(linear, zeros, (x,))
    with pytest.raises(InvalidInput, match="weight of a compiled file"):
        linear.weight = zeros["weight"]
    assert torch.equal(linear(x), before)
    linear.load_state_dict(zeros)
    assert not linear(x).any()


@pytest.mark.parametrize("tracer", ["make_fx", "jit"])
def test_a_trace_would_hold_a_constant(linear: Any, tracer: str) -> None:
    x = torch.randn(2, 4)
    with pytest.raises(InvalidInput, match="cannot be traced"):
        if tracer == "make_fx":
            make_fx(lambda x: linear(x) + 1)(x)
        else:
            torch.jit.trace(lambda x: linear(x) + 1, x, check_trace=False)


def test_tensors_of_vmap(linear: Any) -> None:
    with pytest.raises(InvalidInput, match="stand for many"):
        torch.func.vmap(linear)(torch.randn(5, 2, 4))


def test_batched_gradients_of_an_optimised_module() -> None:
    torch._dynamo.reset()
    fast, x = dcir.optimize(nn.Linear(4, 3)), torch.randn(2, 4, requires_grad=True)
    y = fast(x)
    with pytest.raises(InvalidInput, match="stand for many"):
        torch.autograd.grad(y, x, torch.ones(5, 2, 3), is_grads_batched=True)
    assert torch.autograd.functional.jacobian(fast, x.detach()).shape == (2, 3, 2, 4)


@pytest.fixture
def hooked() -> Iterator[None]:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 0)
    yield
    handle.remove()


def test_hooks_of_all_modules_run(linear: Any, hooked: None) -> None:
    x = torch.randn(2, 4)
    assert not linear(x).any() and not linear(input=x).any()


class Named(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"z": x + 1, "a": {"y": x * 2, "b": x * 3}}


def test_results_in_a_dict_keep_their_order(tmp_path: Path) -> None:
    api.save(Named(), torch.full((3,), 10.0), tmp_path / "named.dcir")
    out = dcir.load(tmp_path / "named.dcir")(torch.full((3,), 10.0))
    assert list(out) == ["z", "a"] and list(out["a"]) == ["y", "b"]
    found = api.run_file(tmp_path / "named.dcir", [np.full(3, 10, np.float32)])
    assert [v[0] for v in found.values()] == [11, 20, 30]


def test_numbers_in_the_other_order_of_bytes(linear: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x.astype(x.dtype.newbyteorder()))
    run = CliRunner().invoke(
        main, ["run", str(tmp_path / "linear.dcir"), "--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "r"), "--json"]
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    (written,) = (tmp_path / "r").glob("*.npy")
    np.testing.assert_allclose(np.load(written), linear(torch.from_numpy(x)).numpy(), rtol=1e-6)


def test_a_directory_that_begins_before_the_file(linear: Any, tmp_path: Path) -> None:
    """Python's reader seeks there; one bit of the archive's last record is enough."""
    good = (tmp_path / "linear.dcir").read_bytes()
    bad = tmp_path / "bad.dcir"
    with zipfile.ZipFile(tmp_path / "linear.dcir") as archive:
        assert archive.start_dir == int.from_bytes(good[-6:-2], "little")
    bad.write_bytes(good[:-6] + (int.from_bytes(good[-6:-2], "little") + (1 << 30)).to_bytes(4, "little") + good[-2:])
    for read in (dcir.load, api.explain_file):
        with pytest.raises(ArtefactInvalid, match="cut off"):
            read(bad)
    with pytest.raises(FileNotFoundError):
        dcir.load(tmp_path / "none.dcir")
