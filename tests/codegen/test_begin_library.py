"""A library that is compiled behind the caller: it is begun at once, waited for when it is wanted, and says there what went wrong."""

import threading
from typing import Any

import pytest
import torch
from torch import nn

import dcir
from dcir.cache import Cache
from dcir.codegen.compile import begin_library, compile_network
from dcir.codegen.cpp import backend
from dcir.driver import compile, moving_graph
from dcir.errors import CompilerFailed
from dcir.transforms import runner
from tests.transforms.build import network, unary


def net() -> Any:
    return network([(4, 6)], lambda c, x: [unary(c, "tanh", unary(c, "exp", x))])


def test_the_compiler_runs_behind_the_caller(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiles, may_end = threading.Event(), threading.Event()
    known = backend.compile_objects

    def waits(*args: Any, **named: Any) -> Any:
        compiles.set()
        assert may_end.wait(60)
        return known(*args, **named)

    monkeypatch.setattr(backend, "compile_objects", waits)
    begun = begin_library(net(), cache=Cache(tmp_path / "behind"))
    assert compiles.wait(60)  # though nobody has asked for it
    may_end.set()
    library = begun()
    assert library.path.is_file()
    assert library.compiled == library.kernels
    again = begin_library(net(), cache=Cache(tmp_path / "behind"))()
    assert (again.path, again.compiled) == (library.path, 0)
    assert compile_network(net(), cache=Cache(tmp_path / "at once")).key == library.key


def test_what_the_compiler_refuses_is_said_when_it_is_asked_for(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: Any, **named: Any) -> Any:
        raise CompilerFailed("no")

    monkeypatch.setattr(backend, "compile_objects", refuses)
    begun = begin_library(net(), cache=Cache(tmp_path))
    with pytest.raises(CompilerFailed):
        begun()


@pytest.mark.parametrize("dynamic", [False, True], ids=["one size", "all sizes"])
def test_a_forward_is_compiled_while_its_backward_is_rewritten(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, dynamic: bool
) -> None:
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path))
    rewritten = threading.Event()
    known, run = backend.compile_objects, runner.run_passes
    kinds: list[str] = []

    def waits(*args: Any, **named: Any) -> Any:
        # The first library is the forward's, unless the backward's passes are over before anything is compiled.
        assert rewritten.wait(60)
        return known(*args, **named)

    def imports(gm: Any, context: Any, *rest: Any, **named: Any) -> Any:
        kinds.append(context.kind)
        return imported(gm, context, *rest, **named)

    def passes(*args: Any, **named: Any) -> Any:
        if kinds[-1] == "backward":
            rewritten.set()
        return run(*args, **named)

    where = moving_graph if dynamic else compile
    imported = where.import_graph
    monkeypatch.setattr(backend, "compile_objects", waits)
    monkeypatch.setattr(where, "import_graph", imports)
    monkeypatch.setattr(moving_graph if dynamic else runner, "run_passes", passes)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    fast = dcir.optimize(model, dynamic=dynamic)
    for rows in (3, 5):
        fast(torch.ones(rows, 8)).sum().backward()
    assert {g.kind for g in fast.dcir.explain().graphs} == {"forward", "backward"}
